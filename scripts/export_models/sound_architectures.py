"""Networks of sound and of several kinds of input at once."""

from __future__ import annotations

from .architecture import Architecture, Input

_WAVE = {"input_values": Input(("batch", "samples"))}
_SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 32,
}  # fmt: skip
_EARS = {
    **_SMALL, "conv_dim": (32, 32, 32), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 2),
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_WHISPER = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    "vocab_size": 200, "num_mel_bins": 16, "max_source_positions": 50,
    "max_target_positions": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "use_cache": False,
}  # fmt: skip


def _listener(name, kind, config, inputs=None, tail="Model", **more):
    return Architecture(
        name, f"transformers:{kind}{tail}", inputs or _WAVE, config,
        f"transformers:{kind}Config", **more,
    )  # fmt: skip


SOUND = (
    _listener("wav2vec2", "Wav2Vec2", _EARS, None, "ForCTC"),
    _listener("hubert", "Hubert", _EARS, None, "ForCTC"),
    _listener("wavlm", "WavLM", _EARS),
    _listener("unispeech", "UniSpeech", _EARS),
    _listener("wav2vec2-conformer", "Wav2Vec2Conformer",
              {**_EARS, "conv_depthwise_kernel_size": 7, "position_embeddings_type": "rotary"}),
    _listener("data2vec-audio", "Data2VecAudio", {**_EARS, "num_conv_pos_embeddings": 3}),
    _listener("whisper-encoder", "Whisper", _WHISPER,
              {"input_features": Input(("batch", 16, 100))}, "ForConditionalGeneration",
              part="model.encoder"),
    _listener("whisper-decoder", "Whisper", _WHISPER,
              {"input_ids": Input(("batch", "sequence"), 200),
               "encoder_hidden_states": Input(("batch", "source_sequence", 64))},
              "ForConditionalGeneration", call={"use_cache": False}, part="model.decoder"),
    _listener("conformer", "ParakeetEncoder", {**_SMALL, "num_mel_bins": 16,
              "subsampling_conv_channels": 16, "conv_kernel_size": 7, "vocab_size": 32},
              {"input_features": Input(("batch", "frames", 16))}, "",),
    _listener("speech-transformer", "Speech2Text", {**_WHISPER, "input_feat_per_channel": 16,
              "num_conv_layers": 2, "conv_channels": 32, "max_source_positions": 100},
              {"input_features": Input(("batch", "frames", 16))}, "Model",
              part="encoder"),
    _listener("ast", "AST", {**_SMALL, "max_length": 64, "num_mel_bins": 32},
              {"input_values": Input(("batch", 64, 32))}),
    _listener("vits", "Vits", {**_SMALL, "flow_size": 32, "spectrogram_bins": 33,
              "ffn_dim": 64, "upsample_initial_channel": 32, "upsample_rates": [4, 2],
              "upsample_kernel_sizes": [8, 4], "resblock_kernel_sizes": [3],
              "resblock_dilation_sizes": [[1, 3]], "wavenet_dilation_rate": 1,
              "prior_encoder_num_flows": 2, "posterior_encoder_num_wavenet_layers": 2,
              "prior_encoder_num_wavenet_layers": 2, "use_stochastic_duration_prediction": False,
              "noise_scale": 0.0},
              {"input_ids": Input(("batch", "sequence"), 32)}),
    _listener("encodec-decoder", "Encodec", {"num_filters": 8, "hidden_size": 32,
              "upsampling_ratios": [4, 2], "codebook_dim": 32, "codebook_size": 16},
              {"hidden_states": Input(("batch", 32, "frames"))}, part="decoder"),
    Architecture("transformer-encoder", "torch.nn:TransformerEncoder",
                 {"features": Input(("batch", "frames", 64))}, {
                 "encoder_layer": {"": "torch.nn:TransformerEncoderLayer", "d_model": 64,
                 "nhead": 4, "dim_feedforward": 128, "batch_first": True}, "num_layers": 2},
                 takes_names=False),
    Architecture("lstm", "torch.nn:LSTM", {"features": Input(("batch", "frames", 32))},
                 {"input_size": 32, "hidden_size": 48, "num_layers": 2, "batch_first": True,
                  "bidirectional": True}, takes_names=False),
    Architecture("gru", "torch.nn:GRU", {"features": Input(("batch", "frames", 32))},
                 {"input_size": 32, "hidden_size": 48, "num_layers": 2, "batch_first": True},
                 takes_names=False),
)  # fmt: skip
