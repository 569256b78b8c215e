"""What a decoder is: its sizes, what sets its architecture apart, and how it is to be written."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .builder import BFLOAT16, FLOAT, FLOAT16
from .cache_formats import CACHE_FORMATS, CacheFormat

ACTIVATION_TYPES = {"f32": FLOAT, "f16": FLOAT16, "bf16": BFLOAT16}


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes, and the features in which architectures differ; the defaults are Llama's."""

    architecture: str = "llama"  # what genai_config.json calls it
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    feed_forward: int = 128
    vocabulary: int = 96
    positions: int = 128
    theta: float = 10000.0  # base of the rotary frequencies
    epsilon: float = 1e-6
    activation: str = "silu"  # silu, gelu_tanh, clamped_silu
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False  # queries and keys are normed head by head, before rotary
    sinks: bool = False  # a learned logit per head that takes part in the softmax
    post_norms: bool = False  # attention's and MLP's results are normed before they are added
    norm_offset: float = 0.0  # a norm multiplies by this plus its weight
    softcap: float = 0.0  # of attention's scores
    final_softcap: float = 0.0  # of the logits
    query_scale: float = 0.0  # 0: the root of the head's size
    scaled_embedding: bool = False  # times the root of the hidden size
    window: int = 0  # keys that every second layer sees, from the first on; 0: all
    tied: bool = False  # the embedding is also the last product's weight

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def attention_scale(self) -> float:
        return self.query_scale or self.head_size**-0.5

    @property
    def embedding_scale(self) -> float:
        return math.sqrt(self.hidden) if self.scaled_embedding else 1.0

    def window_of(self, layer: int) -> int:
        return self.window if layer % 2 == 0 else 0


@dataclass(frozen=True)
class Spelling:
    """How a decoder is written.

    form                 genai: the operators that ONNX Runtime GenAI writes
                         attention: torch's exporter, opset 23, Attention fused
                         unfused: torch's exporter, softmax(QK)V spelled out
    use_qdq              genai: weights by DequantizeLinear, as the other forms have them
    quantized_embedding  the table is stored as the products' weights are
    last_token_only      logits of each row's last token, not of all
    lengths              genai: the longest total is the mask's shape, or the largest of its sums,
                         as GenAI writes it for runtimes that capture whole graphs
    accuracy_level       of MatMulNBits; 4 lets a provider round activations to 8 bits
    cache                genai: int8, fp8 or int4 codes; none: numbers of the activations' type
    names_head_size      genai: the caches' last size is a name, as in folders of GenAI's builder,
                         whose genai_config.json has the number
    """

    form: str = "genai"
    weights: str = "f32"
    activations: str = "f32"
    packed_qkv: bool = False
    use_qdq: bool = False
    quantized_embedding: bool = False
    last_token_only: bool = False
    lengths: str = "shape"
    accuracy_level: int = 0
    cache: str = ""
    names_head_size: bool = False

    def __post_init__(self):
        _expect("form", self.form, FORMS)
        _expect("weights", self.weights, WEIGHT_FORMATS)
        _expect("activations", self.activations, ACTIVATION_TYPES)
        _expect("lengths", self.lengths, ("shape", "values"))
        if self.cache:
            _expect("cache", self.cache, CACHE_FORMATS)
            if self.form != "genai":
                raise ValueError(f"only GroupQueryAttention has caches of codes, not {self.form}")
        if self.weights in ACTIVATION_TYPES and self.weights != self.activations:
            raise ValueError(
                f"plain weights have the type of the activations: {self.weights} with "
                f"{self.activations} cannot be written"
            )

    @property
    def element(self) -> int:
        return ACTIVATION_TYPES[self.activations]

    @property
    def cache_format(self) -> CacheFormat | None:
        return CACHE_FORMATS[self.cache] if self.cache else None

    @property
    def by_operator(self) -> bool:
        """Quantised weights are read by ONNX Runtime's own operators, where it has them."""
        return self.form == "genai" and not self.use_qdq

    @property
    def packs_table(self) -> bool:
        return self.quantized_embedding and self.weights not in ACTIVATION_TYPES


FORMS = ("genai", "attention", "unfused")
WEIGHT_FORMATS = (*ACTIVATION_TYPES, "nvfp4", "mxfp8", "mxfp4", "int4")


def _expect(what: str, value: str, allowed) -> None:
    if value not in allowed:
        raise ValueError(f"unknown {what} '{value}'; one of: {', '.join(allowed)}")


_GEMMA2 = {
    "architecture": "gemma2",
    "activation": "gelu_tanh",
    "post_norms": True,
    "norm_offset": 1.0,
    "softcap": 50.0,
    "final_softcap": 30.0,
    "scaled_embedding": True,
    "tied": True,
}
# Experts are left out: one dense MLP of the same gate stands in for them, since no other provider
# on the machines that the models are made for runs com.microsoft::QMoE.
_GPT_OSS = {
    "architecture": "gpt_oss",
    "activation": "clamped_silu",
    "qkv_bias": True,
    "output_bias": True,
    "sinks": True,
    "theta": 150000.0,
    "epsilon": 1e-5,
}

# Small ones for tests: 2 layers, and windows shorter than what a test feeds.
ARCHITECTURES: dict[str, DecoderConfig] = {
    "llama": DecoderConfig(),
    "qwen2": DecoderConfig("qwen2", qkv_bias=True, tied=True, theta=1e6),
    "qwen3": DecoderConfig("qwen3", qk_norm=True, theta=1e6),
    "gemma2": DecoderConfig(**_GEMMA2, window=5, query_scale=0.05),
    "gpt_oss": DecoderConfig(**_GPT_OSS, window=5),
}


def _sized(architecture: str, *sizes: int, **more) -> DecoderConfig:
    names = (
        "layers", "hidden", "heads", "kv_heads", "head_size", "feed_forward", "vocabulary",
    )  # fmt: skip
    values = dict(zip(names, sizes, strict=True))
    return replace(ARCHITECTURES[architecture], positions=8192, **values, **more)


PRESETS: dict[str, DecoderConfig] = {
    **{f"tiny-{name}": config for name, config in ARCHITECTURES.items()},
    "llama-1b": _sized("llama", 16, 2048, 32, 8, 64, 8192, 128256, theta=5e5, tied=True),
    "llama-8b": _sized("llama", 32, 4096, 32, 8, 128, 14336, 128256, theta=5e5, epsilon=1e-5),
    "qwen2-0.5b": _sized("qwen2", 24, 896, 14, 2, 64, 4864, 151936),
    "qwen2-7b": _sized("qwen2", 28, 3584, 28, 4, 128, 18944, 152064, tied=False),
    "qwen3-0.6b": _sized("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, tied=True),
    "qwen3-8b": _sized("qwen3", 36, 4096, 32, 8, 128, 12288, 151936),
    "gemma2-2b": _sized(
        "gemma2", 26, 2304, 8, 4, 256, 9216, 256000, window=4096, query_scale=256**-0.5
    ),
    "gemma2-9b": _sized(
        "gemma2", 42, 3584, 16, 8, 256, 14336, 256000, window=4096, query_scale=256**-0.5
    ),
    "gpt-oss-20b-dense": _sized("gpt_oss", 24, 2880, 64, 8, 64, 11520, 201088, window=128),
}
