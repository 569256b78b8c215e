"""Products in every format that Tenon packs, and the epilogues that exporters write."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ..graph import BF16, F16, F32, F64, I8, I32, U8, Graph

MS = "com.microsoft"
_DEPTHS = (1, 2, 3, 8, 16, 31, 32, 33, 48, 64, 65, 96, 128)


def _depth(g: Graph) -> int:
    return g.pick(_DEPTHS)


def epilogue(g: Graph, y: str, dtype, width: int) -> None:
    """Bias, activation, residual or a cast behind a product."""
    if g.chance(0.4):
        bias = g.weight(width, dtype=dtype) if g.chance(0.8) else g.weight(1, dtype=dtype)
        y = g.node(g.pick(("Add", "Mul", "Sub")), [g.keep(y, dtype), bias])
    if g.chance(0.4):
        y = g.node(g.pick(("Relu", "Sigmoid", "Tanh", "Softplus", "Neg")), [g.keep(y, dtype)])
    if g.chance(0.15):
        y = g.node("Mul", [g.keep(y, dtype), g.node("Sigmoid", [y])])
    if g.chance(0.15):
        g.output(g.node("Cast", [y], to=10 if dtype == F32 else 1), F16 if dtype == F32 else F32)
    if g.chance(0.2):
        g.output(g.node("Shape", [y]), np.int64)
    g.output(y, dtype)


def _left(g: Graph, depth: int, dtype, rank: int | None = None) -> str:
    rank = g.wild(g.between(2, 4), 1) if rank is None else rank
    lead = [g.label() if g.chance(0.7) else g.size() for _ in range(rank - 1)]
    return g.input(dtype, [*lead, g.label(depth) if g.chance(0.4) else depth])


def matmul(g: Graph) -> None:
    dtype = g.pick((F32, F32, F32, F16, F64))
    depth, width = _depth(g), g.size()
    a = _left(g, depth, dtype)
    own = g.wild(depth, depth + 1, 1, 2)
    epilogue(g, g.node("MatMul", [a, g.weight(own, width, dtype=dtype)]), dtype, width)


def matmul_inputs(g: Graph) -> None:
    dtype = g.pick((F32, F32, F16, F64, I32))
    depth = g.label(_depth(g))
    batch = g.dims(g.between(0, 2))
    other = [g.wild(d, 1, g.label(), g.label(g.concrete([d])[0])) for d in batch]
    a = g.input(dtype, [*batch, *([g.label()] if g.chance(0.85) else []), depth])
    b_depth = g.wild(depth, g.label(), g.label(g.sizes[depth]))
    b = g.input(
        dtype,
        [*other[g.between(0, len(other)) :], b_depth, *([g.label()] if g.chance(0.85) else [])],
    )
    y = g.node("MatMul", [a, b])
    if g.chance(0.3) and dtype == F32:
        y = g.node("Softmax", [g.keep(y)])
    g.output(y, dtype)


def gemm(g: Graph) -> None:
    dtype = g.pick((F32, F32, F32, F16, F64))
    depth, rows, width = _depth(g), g.label(), g.size()
    turn_a, turn_b = g.pick((0, 0, 1)), g.pick((0, 1))
    a_depth = g.label(depth) if g.chance(0.5) else depth
    a = g.input(dtype, [a_depth, rows] if turn_a else [rows, a_depth])
    own = g.wild(depth, depth + 1, 2)
    b = g.weight(*((width, own) if turn_b else (own, width)), dtype=dtype)
    if g.chance(0.15):
        b = g.input(dtype, [width, g.label(own)] if turn_b else [g.label(own), width])
    shape = g.wild(g.pick(((width,), (1, width), (), (1,))), (width + 1,), (3, 1), (1, 1, width))
    c = g.constant(g.numbers(shape, dtype)) if g.chance(0.7) else ""
    if c and g.chance(0.15):
        c = g.input(dtype, [rows, width])
    y = g.node(
        "Gemm",
        [a, b, c],
        transA=turn_a,
        transB=turn_b,
        alpha=g.wild(None, 0.5, 0.0, -2.0),
        beta=g.wild(None, 0.0, 2.0),
    )
    epilogue(g, y, dtype, width)


def fused_matmul(g: Graph) -> None:
    depth, rows, width = g.label(_depth(g)), g.label(), g.label()
    batch = [g.label()] if g.chance(0.5) else []
    turn_a, turn_b = g.pick((0, 1)), g.pick((0, 1))
    b_depth = g.wild(depth, g.label(), g.label(g.sizes[depth]))
    a = g.input(F32, [*batch, *((depth, rows) if turn_a else (rows, depth))])
    b = g.input(F32, [*batch, *((width, b_depth) if turn_b else (b_depth, width))])
    y = g.node(
        "FusedMatMul",
        [a, b],
        domain=MS,
        transA=turn_a,
        transB=turn_b,
        alpha=g.wild(1.0, 0.125, -1.0),
    )
    g.output(y, F32)


def matmul_nbits(g: Graph) -> None:
    bits, block = g.pick((4, 4, 8, 2)), g.pick((16, 32, 64, 128))
    depth, width = g.pick((16, 32, 48, 64, 96, 128, 160, 33)), g.pick((1, 5, 8, 16, 33, 64))
    blocks = -(-depth // block)
    dtype = g.pick((F32, F32, F16))
    a = _left(g, depth, dtype)
    stored = g.random.integers(0, 256, (width, blocks, block * bits // 8), np.uint8)
    scales = g.constant(
        (g.numbers((width, blocks), F32) * 0.1)
        .astype(dtype)
        .reshape(g.pick(((-1,), (width, blocks))))
    )
    zero = ""
    if g.chance(0.4):
        row = -(-blocks * bits // 8)
        zero = g.constant(g.random.integers(0, 256, (width, row), np.uint8))
    bias = g.weight(width, dtype=dtype) if g.chance(0.2) else ""
    y = g.node(
        "MatMulNBits",
        [a, g.constant(stored), scales, zero, "", bias],
        domain=MS,
        bits=bits,
        block_size=block,
        K=g.wild(depth, depth + 1),
        N=width,
        accuracy_level=g.pick((None, None, 0, 1)),
    )
    epilogue(g, y, dtype, width)


def _scale(g: Graph, shape, dtype=F32) -> str:
    return g.constant((g.random.random(shape) * 0.2 + 0.01).astype(dtype))


def dequantized(g: Graph) -> None:
    """DequantizeLinear of a stored weight: per tensor, per axis, in blocks; then the product."""
    g.opset = max(g.opset, 21)
    code = g.pick((I8, U8, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn))
    dtype = g.pick((F32, F32, F16))
    depth, width = g.pick((16, 32, 48, 64, 128)), g.pick((1, 5, 8, 16, 33, 64))
    turned = g.chance(0.5)
    shape = (width, depth) if turned else (depth, width)
    axis_k = 1 if turned else 0
    manner = g.pick(("tensor", "axis", "block"))
    block = g.pick((16, 32))
    if manner == "tensor":
        scale_shape, axis = (), 0
    elif manner == "axis":
        axis = g.wild(1 - axis_k, axis_k)
        scale_shape = (g.wild(shape[axis], shape[axis] + 1),)
    else:
        axis = axis_k
        sizes = list(shape)
        sizes[axis] = -(-sizes[axis] // block)
        scale_shape = tuple(sizes)
    codes = g.constant(g.numbers(shape, code))
    zero = (
        g.constant(g.numbers(scale_shape, code))
        if g.chance(0.4) and code not in (ml_dtypes.float8_e4m3fn,)
        else ""
    )
    w = g.node(
        "DequantizeLinear",
        [codes, _scale(g, scale_shape, dtype), zero],
        axis=axis,
        block_size=block if manner == "block" else None,
    )
    a = _left(g, depth, dtype)
    if turned:
        w = g.node("Transpose", [g.keep(w, dtype)], perm=[1, 0])
    epilogue(g, g.node("MatMul", [a, g.keep(w, dtype)]), dtype, width)


def nvfp4(g: Graph) -> None:
    """Two DequantizeLinear: block scales of fp8 under one global scale; stock has no kernel."""
    g.opset = max(g.opset, 23)
    depth, width = g.pick((16, 32, 48, 64, 128)), g.pick((1, 8, 16, 33, 64))
    codes = g.constant(g.numbers((width, depth), ml_dtypes.float4_e2m1fn, 2.0))
    scales = g.constant(
        (g.random.random((width, depth // 16)) + 0.1).astype(ml_dtypes.float8_e4m3fn)
    )
    dtype = g.pick((F32, F32, F16, BF16))
    scale = g.node("DequantizeLinear", [scales, g.constant(np.asarray(0.02, dtype))])
    w = g.node("DequantizeLinear", [codes, scale], axis=g.pick((-1, 1)), block_size=16)
    w = g.node("Transpose", [w], perm=[1, 0])
    a = _left(g, depth, dtype, g.between(2, 3))
    epilogue(g, g.node("MatMul", [a, w]), dtype, width)


def mx(g: Graph) -> None:
    g.opset = max(g.opset, 24)
    depth, width = g.pick((32, 64, 128)), g.pick((1, 8, 33, 64))
    code = g.pick((ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
    codes = g.constant(g.numbers((width, depth), code, 2.0))
    powers = g.random.integers(118, 124, (width, depth // 32)).astype(np.uint8)
    scales = g.constant(powers.view(ml_dtypes.float8_e8m0fnu))
    dtype = g.pick((F32, F16))
    w = g.node(
        "DequantizeLinear",
        [codes, scales],
        axis=-1,
        block_size=32,
        output_dtype=1 if dtype == F32 else 10,
    )
    w = g.node("Transpose", [w], perm=[1, 0])
    epilogue(g, g.node("MatMul", [_left(g, depth, dtype, 2), w]), dtype, width)


def integer_product(g: Graph) -> None:
    depth, width = _depth(g), g.size()
    left, right = g.pick((U8, I8)), g.pick((U8, I8))
    a = g.input(left, [g.label(), g.label(depth)])
    b = g.constant(g.numbers((g.wild(depth, depth + 1), width), right))
    if g.chance(0.5):
        zero_a = g.constant(np.asarray(g.between(0, 3), left)) if g.chance(0.6) else ""
        zero_b = g.constant(np.asarray(g.between(0, 3), right)) if g.chance(0.6) else ""
        y = g.node("MatMulInteger", [a, b, zero_a, zero_b])
        g.output(
            g.node("Cast", [g.keep(y, I32)], to=1) if g.chance(0.5) else y,
            F32 if g.nodes[-1].op_type == "Cast" else I32,
        )
        return

    def quantisation(dtype):
        return [g.constant(np.asarray(0.05, F32)), g.constant(np.asarray(g.between(0, 3), dtype))]

    out = g.pick((U8, I8))
    y = g.node(
        "QLinearMatMul", [a, *quantisation(left), b, *quantisation(right), *quantisation(out)]
    )
    g.output(y, out)


def dynamically_quantized(g: Graph) -> None:
    """DynamicQuantizeLinear, MatMulInteger and the rescaling behind it."""
    depth, width = _depth(g), g.pick((1, 8, 33))
    x = g.input(F32, [g.label(), depth])
    q, scale, zero = g.node("DynamicQuantizeLinear", [x], 3)
    y = g.node("MatMulInteger", [q, g.constant(g.numbers((depth, width), I8)), zero])
    y = g.node("Mul", [g.node("Cast", [y], to=1), scale])
    g.output(g.node("Mul", [y, g.constant(np.asarray(0.03, F32))]))


def gated_mlp(g: Graph) -> None:
    dtype = g.pick((F32, F32, F16))
    width, inner = g.pick((8, 16, 33, 64)), g.pick((8, 24, 32, 65))
    x = g.input(dtype, [g.label(), g.label(), g.wild(width, g.label(width))])
    gate = g.keep(g.node("MatMul", [x, g.weight(width, inner, dtype=dtype)]), dtype)
    up = g.keep(g.node("MatMul", [x, g.weight(width, inner, dtype=dtype)]), dtype)
    kind = g.pick(("silu", "gelu", "relu", "quick"))
    if kind == "silu":
        gate = g.node("Mul", [gate, g.node("Sigmoid", [gate])])
    elif kind == "gelu" and g.opset >= 20:
        gate = g.node("Gelu", [gate], approximate=g.pick(("none", "tanh")))
    elif kind == "quick" and dtype == F32:
        gate = g.node("QuickGelu", [gate], domain=MS, alpha=g.pick((None, 1.0)))
    else:
        gate = g.node("Relu", [gate])
    y = g.node("Mul", [g.keep(gate, dtype), up] if g.chance(0.7) else [up, gate])
    y = g.node("MatMul", [g.keep(y, dtype), g.weight(inner, width, dtype=dtype)])
    if g.chance(0.6):
        y = g.node("Add", [x, g.keep(y, dtype)])
    g.output(y, dtype)
    if g.chance(0.15):
        g.output(up, dtype)


def several(g: Graph) -> None:
    """Products of one input, cut or joined afterwards: they may be merged into one."""
    depth = g.pick((8, 32, 48))
    x = g.input(F32, [g.label(), g.label(depth) if g.chance(0.4) else depth])
    widths = [g.pick((1, 8, 16, 33)) for _ in range(g.between(2, 4))]
    parts = [g.keep(g.node("MatMul", [x, g.weight(depth, n)])) for n in widths]
    if g.chance(0.5):
        parts = [g.node(g.pick(("Relu", "Sigmoid", "Identity")), [p]) for p in parts]
    if g.chance(0.5):
        g.output(g.node("Concat", parts, axis=g.wild(-1, 1, 0)))
    else:
        for part in parts:
            g.output(part)


def einsum(g: Graph) -> None:
    equation, shapes = g.pick(
        (
            ("ij,jk->ik", ("ij", "jk")),
            ("bij,bjk->bik", ("bij", "bjk")),
            ("j,j->", ("j", "j")),
            ("bhid,bhjd->bhij", ("bhid", "bhjd")),
            ("ij->ji", ("ij",)),
            ("ij->", ("ij",)),
            ("ij,ij->i", ("ij", "ij")),
            ("i,j->ij", ("i", "j")),
            ("bij,jk->bik", ("bij", "jk")),
            ("lmj,jl->lmj", ("lmj", "jl")),
            ("ji,ij->i", ("ji", "ij")),
            ("...i,ij->...j", ("bi", "ij")),
            ("ii->i", ("ii",)),
            ("bijd,bjkd->bikd", ("bijd", "bjkd")),
            ("ij,jk,kl->il", ("ij", "jk", "kl")),
        )
    )
    labels = {c: g.label() for c in "".join(shapes)}
    dtype = g.pick((F32, F32, F64, I32))

    def dim(c):
        return g.wild(labels[c], g.label(1), g.label(g.sizes[labels[c]]), 1)

    y = g.node("Einsum", [g.input(dtype, [dim(c) for c in s]) for s in shapes], equation=equation)
    g.output(y, dtype)


GRAPHS = (
    matmul,
    matmul,
    matmul_inputs,
    matmul_inputs,
    gemm,
    gemm,
    fused_matmul,
    matmul_nbits,
    matmul_nbits,
    dequantized,
    dequantized,
    nvfp4,
    mx,
    integer_product,
    dynamically_quantized,
    gated_mlp,
    several,
    einsum,
    einsum,
)
