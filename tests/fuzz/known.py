"""Differences from the stock provider that are allowed, each with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .outcome import DIFFERS, NAMES_CONTRADICT, NOTHING, STALE, STOCK_REFUSES, TENON_REFUSES


@dataclass(frozen=True)
class Known:
    state: str
    graph: str  # a prefix of the graph's name
    text: str  # a pattern of the outcome's text
    reason: str

    def fits(self, state: str, graph: str, text: str) -> bool:
        return (
            state == self.state
            and graph.startswith(self.graph)
            and bool(re.search(self.text, text))
        )


KNOWN = (
    Known(
        TENON_REFUSES,
        "",
        f"^{NAMES_CONTRADICT}",
        "the model gives two sizes one name: stock warns and runs, Tenon refuses by name",
    ),
    Known(
        TENON_REFUSES,
        "",
        f"^{STALE}((input|node) '|.*Shape mismatch attempting to re-use buffer)",
        "a value between partitions is declared with another size: stock warns and runs, Tenon "
        "refuses by name",
    ),
    Known(
        TENON_REFUSES,
        "",
        "has a default value that Tenon packed",
        "weights listed as graph inputs are packed; feeding another value is refused by name",
    ),
    Known(
        TENON_REFUSES,
        "norms.skip_norm",
        r"node 'SkipLayerNormalization_\d+': sizes .* do not broadcast",
        "stock repeats the elements of a skip of any size",
    ),
    Known(
        TENON_REFUSES,
        "shapes.",
        r"and 2147483647 do not fit|sizes -2147483648 and|a tensor size overflows 64 bits$",
        "sizes computed beyond their type's range: stock's wrap around",
    ),
    Known(
        TENON_REFUSES,
        "",
        r"node 'Reshape_\d+': sizes 1( \(.*\))? and 0( \(.*\))? do not fit",
        "a size of 0 that the graph computes would mean a copy of the input's",
    ),
    Known(
        TENON_REFUSES,
        "chains",
        r"node 'PRelu_\d+': sizes .* do not broadcast",
        "ONNX stretches the slope only; stock stretches the input too",
    ),
    Known(
        TENON_REFUSES,
        "attention.",
        r"node 'Reshape_\d+': sizes .* and .*broadcast\(.* must be equal",
        "a mask of more batches than the query has",
    ),
    Known(
        STOCK_REFUSES,
        "norms.written_out",
        "Scale and .*bias must match X.shape",
        "stock's own fusion to LayerNormalization forgets that the scale may be the larger one",
    ),
    Known(
        STOCK_REFUSES,
        "attention.unfused",
        "right operand cannot broadcast on dim",
        "a batch of 0 beside one of 1",
    ),
    Known(
        STOCK_REFUSES,
        "movement.pad",
        f"^{NOTHING}Unexpected mode of 3",
        "stock cannot wrap nothing, and here there is nothing to wrap",
    ),
    Known(
        STOCK_REFUSES,
        "products.dequantized",
        r"output_dtype INT8 does not match y_zero_point type UINT8",
        "stock's own optimiser writes a QuantizeLinear that contradicts itself",
    ),
    Known(
        STOCK_REFUSES,
        "norms.layer_norm",
        f"^{NOTHING}.*Missing Input",
        "stock loses a scale of no elements that is an input with a default",
    ),
    Known(
        DIFFERS,
        "chains.reductions",
        r"first .*: 0 instead of nan$",
        "ReduceMean of nothing where stock has no kernel: NumPy says NaN, stock's kernels 0",
    ),
    Known(
        DIFFERS,
        "chains.reductions",
        r"where the largest is 0, first .*: nan instead of",
        "ReduceMax along the same axis twice: the reference cannot tell, stock drops NaN",
    ),
    Known(
        TENON_REFUSES,
        "selection.tensor_scatter",
        r"index or length -?\d{10,} is outside \[0, 2147483647\)",
        "positions of a circular cache beyond 31 bits",
    ),
    Known(
        TENON_REFUSES,
        "",
        r"^input 'v\d+' has shape \[.*\], but the model expects \[",
        "the runtime had told another shape than its own kernel gives: PRelu stretched to its "
        "slope, a Slice backwards to INT32_MAX",
    ),
    Known(
        TENON_REFUSES,
        "movement.concat",
        r"node 'Concat_\d+': sizes .* must be equal",
        "stock skips inputs without elements, whatever their sizes; some of its results have "
        "places that nobody wrote",
    ),
    Known(
        STOCK_REFUSES,
        "",
        r"\[ShapeInferenceError\]|Shape mismatch attempting to re-use buffer|"
        r"Invalid value in 'split'\. Split size \d+ exceeds the remaining|"
        r"Cannot split using values in",
        "the runtime believes stale declarations where it optimises a graph and reuses buffers",
    ),
    Known(
        STOCK_REFUSES,
        "attention.group_query",
        r"head_size shall be a multiple|batch_size must be 1 when sequence_length > 1|"
        r"sequence_length shall be 1 when it is not prompt",
        "limits of the stock kernel, not of the operator",
    ),
    Known(
        TENON_REFUSES,
        "",
        r"^\[ONNXRuntimeError\] : 1 : FAIL : Node .* \[ShapeInferenceError\]",
        "stale declarations contradict each other: the runtime refuses them once nodes are fused",
    ),
    Known(
        TENON_REFUSES,
        "selection.gather_nd",
        r"node 'GatherND_\d+': sizes .* must be equal",
        "ONNX wants equal batches of data and indices; stock takes some others",
    ),
    Known(
        STOCK_REFUSES,
        "attention.group_query",
        r"seqlens_k\[\d+\] = \d+ is too small for sequence_length",
        "fewer keys than new tokens: that row is undefined, and the others are right",
    ),
    Known(
        TENON_REFUSES,
        "attention.group_query",
        r"index or length 0 is outside \[1, ",
        "a total beyond the past's rows: stock makes present longer, Tenon only where the model "
        "declares another size for it",
    ),
    Known(
        STOCK_REFUSES,
        "attention.group_query",
        r"total_sequence_length must (be at least kv_sequence_length|equal past_sequence_length)",
        "seqlens_k says which keys there are; the total is held to 1 and to the cache",
    ),
    Known(
        STOCK_REFUSES,
        "norms",
        r"hidden_size must be positive|X.shape\[axis:\] must be at least 1",
        "rows of no elements: there is nothing to normalise, and the output is empty",
    ),
    Known(
        STOCK_REFUSES,
        "attention.onnx_attention",
        r"sequence_length > 0 was false|batch_size > 0 was false|attention_helper.h:55 ",
        "no batches, queries or keys: the result is empty, or sums of nothing",
    ),
    Known(
        STOCK_REFUSES,
        "",
        r"ReshapeHelper.*size != 0 && \(input_shape_siz.*, requested shape:\{.*\b0\b",
        "-1 beside a size of 0: stock cannot tell it; Tenon takes what it is for any other size",
    ),
    Known(
        STOCK_REFUSES,
        "",
        f"^{NOTHING}.*(operand cannot broadcast on dim|with zero effective input extent)",
        "batches of 0 beside 1, a Pad of nothing to nothing: empty here, refused by stock",
    ),
    Known(
        STOCK_REFUSES,
        "attention.onnx_attention",
        r"inconsistent total_sequence_length \(between attn_mask",
        "from opset 24 on ONNX hides the keys beyond a short mask; stock wants a whole one",
    ),
    Known(
        TENON_REFUSES,
        "norms.channel_norm",
        r"sizes 1 (\(.*\) )?and \d+ (\(.*\) )?must be equal",
        "ONNX has a weight for each channel; stock, which writes the norm out, stretches one",
    ),
    Known(
        STOCK_REFUSES,
        "norms.channel_norm",
        f"^{NOTHING}.*ReshapeHelper",
        "stock writes GroupNormalization out with Reshapes that cannot be of nothing",
    ),
    Known(
        TENON_REFUSES,
        "selection.arg_max",
        r"sizes 1 (\(.*\) )?and 0 (\(.*\) )?do not fit",
        "nothing has no largest element: stock refuses too, but for a negative axis",
    ),
    Known(
        DIFFERS,
        "attention.onnx_attention",
        r"where the largest is 0, first .* instead of 0$",
        "stock's float16 Attention with grouped heads gives zeros",
    ),
    Known(
        DIFFERS,
        "chains.pointwise",
        r"by up to \d(\.\d+)?e-1[3-9] where",
        "exp(x) - 1 near 0 in float64: the last digits are those of the exponential",
    ),
    Known(
        DIFFERS,
        "selection.arg_max",
        r"shape \((.*\b)?0\b.*\) instead of \((.*\b)?0\b.*\)$",
        "an empty input and a negative axis: stock's result keeps that axis's size of 0",
    ),
    Known(
        DIFFERS,
        "attention.multi_head",
        r"by up to (0\.00|\d(\.\d+)?e-0|\d(\.\d+)? where the largest is \d(\.\d+)?e\+0)",
        "scores of -10000 + s have three digits of s left; which ones depends on the order of sums",
    ),
)


def known_difference(state: str, graph: str, text: str) -> Known | None:
    return next((known for known in KNOWN if known.fits(state, graph, text)), None)
