"""Networks of text: encoders, decoders, and both halves of translators."""

from __future__ import annotations

from .architecture import Architecture, Input

_VOCABULARY = 200
_TOKENS = {
    "input_ids": Input(("batch", "sequence"), _VOCABULARY),
    "attention_mask": Input(("batch", "sequence"), "ones"),
}
_SEGMENTED = {**_TOKENS, "token_type_ids": Input(("batch", "sequence"), 2)}
# What goes into a translator's second half: its own tokens, and what the first half said.
_TRANSLATED = {
    "input_ids": Input(("batch", "sequence"), _VOCABULARY),
    "encoder_hidden_states": Input(("batch", "source_sequence", 64)),
    "encoder_attention_mask": Input(("batch", "source_sequence"), "ones"),
}
_PLAIN = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": _VOCABULARY, "max_position_embeddings": 512,
}  # fmt: skip
_GROUPED = {**_PLAIN, "num_key_value_heads": 2, "head_dim": 16, "use_cache": False}
_EXPERTS = {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}
_GEMMA3 = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_BART = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    "vocab_size": _VOCABULARY, "max_position_embeddings": 512, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False,
}  # fmt: skip
_T5 = {
    "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
    "vocab_size": _VOCABULARY, "decoder_start_token_id": 0, "use_cache": False,
}  # fmt: skip


def _encoder(name, kind, config, inputs=_TOKENS, **more):
    return Architecture(
        name, f"transformers:{kind}Model", inputs, config, f"transformers:{kind}Config", **more
    )


def _decoder(name, kind, config, head="ForCausalLM", config_class="Config"):
    return Architecture(
        name, f"transformers:{kind}{head}", _TOKENS, config, f"transformers:{kind}{config_class}",
        {"use_cache": False},
    )  # fmt: skip


def _mixture(name, kind, config):
    """Experts as one batched product: the loop over those that were chosen depends on data."""
    return _decoder(name, kind, {**_GROUPED, "experts_implementation": "batched_mm", **config})


def _translator(name, kind, config, part="model."):
    whole, of = f"transformers:{kind}ForConditionalGeneration", f"transformers:{kind}Config"
    if kind == "Marian":
        whole = "transformers:MarianMTModel"
    return (
        Architecture(f"{name}-encoder", whole, _TOKENS, config, of, part=f"{part}encoder"),
        Architecture(f"{name}-decoder", whole, _TRANSLATED, config, of, {"use_cache": False},
                     part=f"{part}decoder"),
    )  # fmt: skip


TEXT = (
    _encoder("bert", "Bert", _PLAIN, _SEGMENTED),
    _encoder("roberta", "Roberta", {**_PLAIN, "pad_token_id": 1}),
    _encoder("distilbert", "DistilBert", {"dim": 64, "n_layers": 2, "n_heads": 4,
             "hidden_dim": 128, "vocab_size": _VOCABULARY}),
    _encoder("albert", "Albert", {**_PLAIN, "embedding_size": 32}, _SEGMENTED),
    _encoder("electra", "Electra", {**_PLAIN, "embedding_size": 32}, _SEGMENTED),
    _encoder("deberta", "DebertaV2", {**_PLAIN, "relative_attention": True,
             "pos_att_type": ["p2c", "c2p"], "position_buckets": 32, "type_vocab_size": 0,
             "share_att_key": True, "norm_rel_ebd": "layer_norm", "max_relative_positions": -1,
             "position_biased_input": False}),
    _encoder("mpnet", "MPNet", _PLAIN),
    _encoder("camembert", "Camembert", {**_PLAIN, "pad_token_id": 1}),
    _encoder("xlm-roberta", "XLMRoberta", {**_PLAIN, "pad_token_id": 1}),
    _encoder("modernbert", "ModernBert", {**_PLAIN, "pad_token_id": 0, "bos_token_id": 1,
             "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 8,
             "global_attn_every_n_layers": 2}),
    _encoder("squeezebert", "SqueezeBert", {**_PLAIN, "embedding_size": 64}, _SEGMENTED),
    _encoder("mobilebert", "MobileBert", {**_PLAIN, "embedding_size": 32,
             "intra_bottleneck_size": 32}, _SEGMENTED),
    _encoder("xlnet", "XLNet", {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128,
             "vocab_size": _VOCABULARY}),
    _encoder("fnet", "FNet", _PLAIN, {"input_ids": _TOKENS["input_ids"]}),
    *_translator("t5", "T5", _T5, ""),
    *_translator("bart", "Bart", _BART),
    *_translator("marian", "Marian", _BART),
    *_translator("pegasus", "Pegasus", _BART),
    *_translator("m2m100", "M2M100", _BART),
    _decoder("gpt2", "GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512,
             "vocab_size": _VOCABULARY}, "LMHeadModel"),
    _decoder("gpt-neo", "GPTNeo", {**_PLAIN, "num_layers": 2, "num_heads": 4,
             "attention_types": [[["global", "local"], 1]], "window_size": 8}),
    _decoder("gpt-neox", "GPTNeoX", _PLAIN),
    _decoder("gptj", "GPTJ", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512,
             "rotary_dim": 8, "vocab_size": _VOCABULARY}),
    _decoder("opt", "OPT", {**_PLAIN, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    _decoder("bloom", "Bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4,
             "vocab_size": _VOCABULARY}),
    _decoder("falcon", "Falcon", {**_PLAIN, "multi_query": True}),
    _decoder("llama", "Llama", _GROUPED),
    _decoder("mistral", "Mistral", {**_GROUPED, "sliding_window": 8}),
    _decoder("qwen2", "Qwen2", _GROUPED),
    _decoder("qwen3", "Qwen3", _GROUPED),
    _decoder("gemma", "Gemma", _GROUPED),
    _decoder("gemma2", "Gemma2", {**_GROUPED, "sliding_window": 8}),
    _decoder("gemma3", "Gemma3", {**_GROUPED, **_GEMMA3}, config_class="TextConfig"),
    _decoder("phi", "Phi", _PLAIN),
    _decoder("phi3", "Phi3", {**_GROUPED, "pad_token_id": 0}),
    _decoder("olmo2", "Olmo2", _GROUPED),
    _decoder("cohere", "Cohere", _GROUPED),
    _decoder("stablelm", "StableLm", _GROUPED),
    _decoder("starcoder2", "Starcoder2", {**_GROUPED, "sliding_window": 8}),
    _decoder("granite", "Granite", _GROUPED),
    _decoder("smollm3", "SmolLM3", {**_GROUPED, "pad_token_id": 0}),
    _mixture("mixtral", "Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2,
             "sliding_window": None}),
    _mixture("gpt-oss", "GptOss", {"num_local_experts": 4,
             "num_experts_per_tok": 2, "sliding_window": 8, "rope_parameters": {
             "rope_type": "default", "rope_theta": 10000.0}}),
    _mixture("qwen2-moe", "Qwen2Moe", {**_EXPERTS, "shared_expert_intermediate_size": 64}),
    _mixture("qwen3-moe", "Qwen3Moe", _EXPERTS),
    _decoder("mamba", "Mamba", {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8,
             "vocab_size": _VOCABULARY}),
)  # fmt: skip
