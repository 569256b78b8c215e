"""Attention as exporters write it, as ONNX has it, and as ONNX Runtime's contrib operators do."""

from __future__ import annotations

import numpy as np

from ..graph import BOOL, F16, F32, I32, I64, Graph

MS = "com.microsoft"


def unfused(g: Graph) -> None:
    """softmax(q k' * scale + mask) v in many spellings."""
    dtype = g.pick((F32, F32, F32, F16))
    batch, queries, keys = g.label(), g.label(), g.label()
    heads, width, v_width = g.between(1, 4), g.pick((1, 4, 8, 16, 33)), g.pick((4, 8, 16))
    k_width = g.wild(width, g.label(width))
    loud = g.wild(1.0, 30.0, 100.0)
    q = g.input(dtype, [batch, heads, queries, width], scale=loud)
    v = g.input(dtype, [batch, heads, g.wild(keys, g.label(g.sizes[keys])), v_width])
    if g.chance(0.6):
        k = g.input(dtype, [batch, heads, keys, k_width], scale=loud)
        k = g.node("Transpose", [k], perm=[0, 1, 3, 2])
    else:
        k = g.input(dtype, [batch, heads, k_width, keys], scale=loud)
    scale = g.constant(np.asarray(g.pick((width**-0.5, 1.0, 0.3)), dtype))
    manner = g.pick(("before", "after", "divided", "none"))
    if manner == "before":
        q = g.node("Mul", [q, scale])
    s = g.keep(g.node("MatMul", [q, g.keep(k, dtype)]), dtype)
    if manner == "after":
        s = g.keep(g.node("Mul", [s, scale]), dtype)
    elif manner == "divided":
        s = g.keep(g.node("Div", [s, g.constant(np.asarray(width**0.5, dtype))]), dtype)
    if g.chance(0.15):
        cap = g.constant(np.asarray(20, dtype))
        s = g.node("Mul", [g.node("Tanh", [g.node("Div", [s, cap])]), cap])
    s = _masked(g, s, dtype, batch, heads, queries, keys)
    p = g.keep(g.node("Softmax", [s], axis=g.wild(-1, 3, 2)), dtype)
    if g.chance(0.1):
        g.output(p, dtype)
    y = g.node("MatMul", [p, v])
    if g.chance(0.5):
        y = g.node("Transpose", [g.keep(y, dtype)], perm=[0, 2, 1, 3])
        y = g.node("Reshape", [y, g.ints(0, 0, heads * v_width)])
    g.output(y, dtype)


def _masked(g: Graph, s: str, dtype, batch, heads, queries, keys) -> str:
    dims = [g.pick((batch, 1)), g.pick((1, heads)), g.pick((queries, queries, 1)), keys]
    dims = g.wild(dims, dims[1:], dims[2:], [*dims[:3], 1])
    least = float(np.finfo(dtype).min)
    fill = g.pick((-1e4, -1e9, least, -np.inf, -10.0, 0.0))
    with np.errstate(over="ignore"):
        fill = np.asarray(fill, dtype)
    manner = g.pick(("none", "where", "where_other", "add", "product"))
    if manner in ("where", "where_other"):
        share = g.pick((0.0, 0.5, 0.9, 1.0))
        mask = g.input(BOOL, dims, lambda g, shape: g.random.random(shape) < share)
        order = [mask, s, g.constant(fill)] if manner == "where" else [mask, g.constant(fill), s]
        return g.keep(g.node("Where", order), dtype)
    if manner == "add":
        bias = g.input(dtype, dims, scale=3.0)
        return g.keep(g.node("Add", [s, bias] if g.chance(0.7) else [bias, s]), dtype)
    if manner == "product":
        # (1 - mask) * fill, added: what encoders do.
        mask = g.indices(I64, [batch, keys], 0, 2)
        m = g.node(
            "Unsqueeze", [g.node("Cast", [mask], to=1 if dtype == F32 else 10), g.ints(1, 2)]
        )
        hidden = g.node("Sub", [g.constant(np.asarray(1, dtype)), m])
        finite = np.asarray(g.pick((-1e4, least)), dtype)
        return g.keep(g.node("Add", [s, g.node("Mul", [hidden, g.constant(finite)])]), dtype)
    return s


def onnx_attention(g: Graph) -> None:
    g.opset = g.pick((23, 24))
    dtype = g.pick((F32, F32, F16))
    batch, queries, keys = g.label(), g.label(), g.label()
    groups = g.between(1, 2)
    heads, width, v_width = groups * g.between(1, 3), g.pick((2, 8, 16)), g.pick((4, 8, 16))
    if g.chance(0.5):
        q = g.input(dtype, [batch, heads, queries, width])
        k = g.input(dtype, [batch, groups, keys, g.wild(width, g.label(width))])
        v = g.input(dtype, [batch, groups, keys, v_width])
        counts = {}
    else:
        q = g.input(dtype, [batch, queries, heads * width])
        k = g.input(dtype, [batch, keys, groups * width])
        v = g.input(dtype, [batch, keys, groups * v_width])
        counts = {"q_num_heads": g.wild(heads, heads + 1), "kv_num_heads": groups}
    past = g.label() if g.chance(0.3) else ""
    inputs, outputs = [q, k, v, ""], 1
    if g.chance(0.5) and not past:
        kind = g.pick((BOOL, dtype))
        dims = [queries, g.wild(keys, g.label(g.sizes[keys]), g.label())]
        dims = g.pick((dims, [1, 1, *dims], [batch, 1, *dims], [batch, heads, *dims]))
        inputs[3] = g.input(kind, dims)
    if past:
        inputs += [
            g.input(dtype, [batch, groups, past, width]),
            g.input(dtype, [batch, groups, past, v_width]),
        ]
        outputs = 3
    elif g.opset == 24 and g.chance(0.2) and not counts:
        inputs += ["", "", g.indices(I64, [batch], 1, g.sizes[keys] + 1)]
    scores = g.chance(0.15)
    if scores:
        outputs = 4
    names = g.node(
        "Attention",
        inputs,
        outputs,
        is_causal=g.pick((None, 0, 1)),
        scale=g.pick((None, 0.5)),
        softcap=g.wild(None, 20.0),
        qk_matmul_output_mode=g.pick((None, 0, 1, 2, 3)) if scores else None,
        softmax_precision=g.wild(None, 1),
        **counts,
    )
    for name in [names] if isinstance(names, str) else names:
        g.output(name, dtype)


def multi_head(g: Graph) -> None:
    dtype = F32
    batch, queries = g.label(), g.label()
    # Stock masks all but the last query where there are more keys than queries.
    causal = g.pick((None, None, 1))
    keys = queries if causal else g.label()
    heads, width = g.between(1, 4), g.pick((4, 8, 16))
    # Stock hides keys by finite scores: a visible one of -inf is less than they are.
    q = g.tame_input(dtype, [batch, queries, heads * width])
    k = g.tame_input(dtype, [batch, g.wild(keys, queries), heads * width])
    v = g.input(dtype, [batch, g.wild(keys, g.label(g.sizes[keys])), heads * width])
    bias = g.weight(3 * heads * width) if g.chance(0.2) else ""
    mask = ""
    if g.chance(0.3):
        mask = g.indices(I32, g.pick(([batch, keys], [batch])), 0, 2)
    add = g.input(dtype, [g.pick((batch, 1)), heads, queries, keys]) if g.chance(0.3) else ""
    y = g.node(
        "MultiHeadAttention",
        [q, k, v, bias, mask, add],
        domain=MS,
        num_heads=g.wild(heads, heads + 1),
        scale=g.pick((None, 0.3)),
        unidirectional=causal,
        mask_filter_value=g.wild(None, -10.0),
    )
    g.output(y, dtype)


def group_query(g: Graph) -> None:
    dtype = F32
    batch = g.label(g.between(1, 3))
    new = g.label(g.wild(1, 2, 5))
    past = g.label(g.between(1, 20))
    groups = g.between(1, 2)
    heads, width = groups * g.between(1, 3), g.pick((8, 16))
    most = g.sizes[past]
    q = g.input(dtype, [batch, new, heads * width])
    k, v = (g.input(dtype, [batch, new, groups * width]) for _ in range(2))
    pk, pv = (g.input(dtype, [batch, groups, past, width]) for _ in range(2))
    last = g.indices(I32, [batch], g.sizes[new] - 1, most)
    total = g.input(
        I32, g.pick(([], [1])), lambda g, shape: np.full(shape, g.wild(most, 0, -3, 2**31 - 1), I32)
    )
    rotary = []
    if g.chance(0.4):
        angles = np.outer(np.arange(64), 1 / 100 ** (np.arange(width // 2) / width)).astype(F32)
        rotary = [g.constant(np.cos(angles)), g.constant(np.sin(angles))]
    names = g.node(
        "GroupQueryAttention",
        [q, k, v, pk, pv, last, total, *rotary],
        3,
        domain=MS,
        num_heads=heads,
        kv_num_heads=g.wild(groups, groups + 1),
        do_rotary=1 if rotary else None,
        scale=g.pick((None, 0.3)),
        local_window_size=g.wild(None, 4, 1, 0, -2),
        softcap=g.wild(None, 20.0),
        rotary_interleaved=g.pick((None, 1)) if rotary else None,
    )
    for name in names:
        g.output(name, dtype)


def rotary(g: Graph) -> None:
    batch, length, heads = g.label(), g.label(g.between(1, 9)), g.between(1, 3)
    width = g.pick((2, 4, 8, 16))
    rows = g.pick((16, 64))
    half = g.wild(width // 2, width, 1)
    cos, sin = (g.weight(rows, half) for _ in range(2))
    if g.chance(0.5):
        g.opset = max(g.opset, 23)
        x = g.input(F32, [batch, heads, length, width])
        positions = g.indices(I64, [batch, g.wild(length, g.label())], 0, rows)
        y = g.node(
            "RotaryEmbedding",
            [x, cos, sin, positions],
            interleaved=g.pick((None, 1)),
            rotary_embedding_dim=g.wild(None, width, 2),
        )
    else:
        x = g.input(F32, g.pick(([batch, heads, length, width], [batch, length, heads * width])))
        positions = g.indices(I64, [batch, g.wild(length, g.label())], 0, rows)
        y = g.node(
            "RotaryEmbedding",
            [x, positions, cos, sin],
            domain=MS,
            interleaved=g.pick((None, 1)),
            num_heads=heads if g.chance(0.8) else None,
        )
    g.output(y)


def rotated_by_halves(g: Graph) -> None:
    """x * cos + rotate_half(x) * sin with angles computed from positions."""
    batch, length = g.label(), g.label()
    heads, width = g.between(1, 3), g.pick((2, 8, 16))
    x = g.input(F32, [batch, heads, length, width])
    positions = g.indices(I64, [batch, g.wild(length, g.label(g.sizes[length]))], 0, 50)
    p = g.node("Unsqueeze", [g.node("Cast", [positions], to=1), g.ints(-1)])
    rates = g.constant(
        (1 / 100 ** (np.arange(width // 2) / max(width, 1))).astype(F32)[None, None, :]
    )
    angles = g.node("Mul", [p, rates])
    both = g.node("Unsqueeze", [g.node("Concat", [angles, angles], axis=-1), g.ints(1)])

    def part(start, end):
        return g.node("Slice", [x, g.ints(start), g.ints(end), g.ints(3)])

    low, high = part(0, width // 2), part(width // 2, 2**63 - 1)
    turned = g.node("Concat", [g.node("Neg", [high]), low], axis=-1)
    y = g.node(
        "Add",
        [
            g.node("Mul", [x, g.node("Cos", [both])]),
            g.node("Mul", [g.keep(turned), g.node("Sin", [both])]),
        ],
    )
    g.output(y)


def packed_self_attention(g: Graph) -> None:
    """Projections, heads, attention and the projection back: a layer of an encoder."""
    batch, length = g.label(), g.label()
    heads, width = g.between(1, 3), g.pick((4, 8, 16))
    model = heads * width
    x = g.input(F32, [batch, length, model])

    def headed(perm):
        y = g.node("Add", [g.node("MatMul", [x, g.weight(model, model)]), g.weight(model)])
        y = g.node("Reshape", [g.keep(y), g.ints(0, g.wild(0, -1), heads, width)])
        return g.keep(g.node("Transpose", [g.keep(y)], perm=perm))

    s = g.node("MatMul", [headed([0, 2, 1, 3]), headed([0, 2, 3, 1])])
    s = g.keep(g.node("Div", [g.keep(s), g.constant(np.asarray(width**0.5, F32))]))
    s = _masked(g, s, F32, batch, heads, length, length)
    y = g.node("MatMul", [g.node("Softmax", [s], axis=-1), headed([0, 2, 1, 3])])
    y = g.node("Reshape", [g.node("Transpose", [y], perm=[0, 2, 1, 3]), g.ints(0, 0, model)])
    y = g.node("MatMul", [g.keep(y), g.weight(model, model)])
    g.output(g.node("Add", [x, y]) if g.chance(0.5) else y)


GRAPHS = (
    unfused,
    unfused,
    unfused,
    onnx_attention,
    onnx_attention,
    multi_head,
    group_query,
    rotary,
    rotated_by_halves,
    packed_self_attention,
)
