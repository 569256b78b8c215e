"""Writes contrib ops with the results of ONNX Runtime's CPU provider, as golden_nodes.py does.

golden_contrib.py OUTPUT_FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
from golden_nodes import node_text, packed, tensor_text
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(7)


def normal(*dims):
    return RNG.standard_normal(dims).astype(np.float32)


def int32(*values):
    return np.array(values, np.int32)


def write_case(
    folder, name, op, inputs, outputs, domain="com.microsoft", compared=None, **attributes
):
    """inputs: arrays by position, None where left out; outputs: how many; compared: of these."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    tensors = {n: numpy_helper.from_array(x, n) for n, x in zip(names, inputs, strict=True) if n}
    infos = [
        helper.make_tensor_value_info(n, t.data_type, list(t.dims)) for n, t in tensors.items()
    ]
    ends = [helper.make_tensor_value_info(r, TensorProto.FLOAT, None) for r in results]
    graph = helper.make_graph([node], "case", infos, ends)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given = session.run(None, {n: x for n, x in zip(names, inputs, strict=True) if n})
    kept = slice(0, compared)
    lines = ["graph case {"]
    lines += [f'  input %"{n}": {tensor_text(t)[0]}' for n, t in tensors.items()]
    dims = {r: ",".join(map(str, y.shape)) for r, y in zip(results, given, strict=True)}
    types = {r: TensorProto.FLOAT for r in results}
    text = node_text(node, types, dims, version=1)
    lines += [text, *[f'  output %"{r}"' for r in results[kept]], "}"]
    (folder / f"{name}.ir").write_text("\n".join(lines) + "\n")
    for i, x in enumerate(x for x in inputs if x is not None):
        (folder / f"{name}.in{i}").write_bytes(packed(x))
    for i, y in enumerate(given[kept]):
        (folder / f"{name}.out{i}").write_bytes(packed(y))


def group_query_attention(folder):
    cases = {
        "decode": (2, 1, 8, [7, 2], 8, {}),
        "decode_grows": (2, 1, 8, [8, 2], 9, {}),
        "prefill": (2, 6, 8, [5, 5], 6, {}),
        "chunk": (1, 3, 8, [6], 7, {}),
        "append": (1, 2, 8, [9], 10, {}),
        "window": (1, 3, 8, [6], 7, {"local_window_size": 2}),
        "softcap": (2, 1, 8, [7, 4], 8, {"softcap": 1.5}),
        "smooth": (2, 1, 8, [7, 4], 8, {"smooth_softmax": 1}),
        "scale": (2, 1, 8, [7, 4], 8, {"scale": 0.3}),
        "rotary": (2, 1, 8, [7, 4], 8, {"do_rotary": 1}),
        "rotary_prompt": (1, 5, 8, [4], 5, {"do_rotary": 1, "rotary_interleaved": 1}),
        "sink": (2, 1, 8, [7, 4], 8, {}),
        "packed": (2, 1, 8, [7, 4], 8, {}),
    }
    heads, kv_heads, width = 4, 2, 16
    for name, (batch, queries, past, lengths, total, attributes) in cases.items():
        q, k, v = (normal(batch, queries, n * width) for n in (heads, kv_heads, kv_heads))
        inputs = [
            q,
            k,
            v,
            normal(batch, kv_heads, past, width),
            normal(batch, kv_heads, past, width),
            int32(*lengths),
            np.array(total, np.int32),
        ]
        if "do_rotary" in attributes:
            inputs += [normal(16, width // 2), normal(16, width // 2)]
        if name == "sink":
            inputs += [None, None, None, None, normal(heads)]
        if name == "packed":
            inputs[:3] = [np.concatenate([q, k, v], axis=2), None, None]
        # Rows of present beyond a sequence's length hold what ORT left there: only y is compared.
        write_case(
            folder,
            f"gqa_{name}",
            "GroupQueryAttention",
            inputs,
            3,
            compared=3 if batch == 1 and total > past else 1,
            num_heads=heads,
            kv_num_heads=kv_heads,
            **attributes,
        )


def multi_head_attention(folder):
    batch, queries, keys, heads, width = 2, 3, 5, 4, 8
    q, k, v = (
        normal(batch, queries, heads * width),
        *(normal(batch, keys, heads * width) for _ in "kv"),
    )
    variants = {
        "plain": [q, k, v],
        "bias": [q, k, v, normal(3 * heads * width)],
        "attention_bias": [q, k, v, None, None, normal(1, heads, queries, keys)],
        "padding": [q, k, v, None, (RNG.random((batch, keys)) > 0.3).astype(np.int32)],
        "lengths": [q, k, v, None, int32(3, 5)],
    }
    for name, inputs in variants.items():
        write_case(folder, f"mha_{name}", "MultiHeadAttention", inputs, 1, num_heads=heads)
    write_case(
        folder,
        "mha_causal",
        "MultiHeadAttention",
        [q, k[:, :queries], v[:, :queries]],
        1,
        num_heads=heads,
        unidirectional=1,
        scale=0.2,
    )
    past = normal(batch, heads, 4, width), normal(batch, heads, 4, width)
    write_case(
        folder,
        "mha_past",
        "MultiHeadAttention",
        [q, k, v, None, None, None, *past],
        3,
        num_heads=heads,
    )


def matmul_nbits(folder):
    for bits in (4, 8):
        for k, block in ((64, 32), (80, 16), (96, 64)):
            n, blocks = 7, -(-k // block)
            a = normal(3, k)
            b = RNG.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
            scales = normal(n, blocks)
            zeros = RNG.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
            given = {
                "plain": [],
                "zeros": [zeros],
                "float_zeros": [normal(n, blocks) + 7],
                "bias": [zeros, None, normal(n)],
            }
            for name, extra in given.items():
                if bits == 8 and name == "float_zeros":
                    continue
                write_case(
                    folder,
                    f"nbits{bits}_{k}_{block}_{name}",
                    "MatMulNBits",
                    [a, b, scales, *extra],
                    1,
                    K=k,
                    N=n,
                    bits=bits,
                    block_size=block,
                )


def gather_block_quantized(folder):
    rows, width, block = 9, 64, 32
    indices = np.array([[0, 8, 3], [2, 2, 7]], np.int64)
    scales = normal(rows, width // block)
    codes = RNG.integers(0, 256, (rows, width // 2)).astype(np.uint8)
    zeros = RNG.integers(0, 256, (rows, 1)).astype(np.uint8)
    for name, extra in {"plain": [], "zeros": [zeros]}.items():
        write_case(
            folder,
            f"gather_quantized_{name}",
            "GatherBlockQuantized",
            [codes, indices, scales, *extra],
            1,
            bits=4,
            block_size=block,
            gather_axis=0,
            quantize_axis=1,
        )


def norms_and_activations(folder):
    x, skip, gamma, beta, bias = normal(2, 5, 12), normal(2, 5, 12), *(normal(12) for _ in range(3))
    write_case(
        folder, "skip_norm", "SkipLayerNormalization", [x, skip, gamma, beta, bias], 1, epsilon=1e-5
    )
    write_case(
        folder,
        "skip_norm_sum",
        "SkipSimplifiedLayerNormalization",
        [x, skip, gamma, bias],
        1,
        epsilon=1e-6,
    )
    write_case(
        folder,
        "rms_norm",
        "SimplifiedLayerNormalization",
        [x, gamma],
        1,
        domain="",
        axis=-1,
        epsilon=1e-6,
    )
    write_case(folder, "bias_gelu", "BiasGelu", [x, bias], 1)
    write_case(folder, "fast_gelu", "FastGelu", [x, bias], 1)
    write_case(folder, "quick_gelu", "QuickGelu", [x], 1)
    write_case(folder, "gelu", "Gelu", [x], 1)
    write_case(
        folder,
        "fused_matmul",
        "FusedMatMul",
        [normal(2, 6, 5), normal(2, 7, 6)],
        1,
        transA=1,
        transB=1,
        alpha=0.5,
    )


def rotary(folder):
    cos, sin = normal(32, 8), normal(32, 8)
    for name, positions in {
        "start": np.array([3], np.int64),
        "each": RNG.integers(0, 32, (2, 5)).astype(np.int64),
    }.items():
        for interleaved in (0, 1):
            write_case(
                folder,
                f"rotary_{name}_{interleaved}",
                "RotaryEmbedding",
                [normal(2, 5, 48), positions, cos, sin],
                1,
                interleaved=interleaved,
            )


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for write in (
        group_query_attention,
        multi_head_attention,
        matmul_nbits,
        gather_block_quantized,
        norms_and_activations,
        rotary,
    ):
        write(folder)


if __name__ == "__main__":
    main()
