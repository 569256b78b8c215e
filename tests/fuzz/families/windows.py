"""Convolutions, pools, resizes: whatever slides a window."""

from __future__ import annotations

import numpy as np

from ..graph import F16, F32, F64, I8, U8, Graph


def _image(g: Graph, channels: int, spatial: int, dtype=F32) -> str:
    sizes = [g.label(g.pick((1, 3, 5, 8, 9, 16, 17))) for _ in range(spatial)]
    return g.input(dtype, [g.label(g.between(0, 3)), g.wild(channels, g.label(channels)), *sizes])


def _window(g: Graph, spatial: int) -> dict:
    attributes = {
        "strides": [g.wild(g.pick((1, 1, 2, 3)), 0, 40) for _ in range(spatial)],
        "dilations": [g.wild(g.pick((1, 1, 2)), 0, 9) for _ in range(spatial)],
    }
    if g.chance(0.6):
        attributes["pads"] = [g.wild(g.pick((0, 1, 2)), 9, -1) for _ in range(2 * spatial)]
    else:
        attributes["auto_pad"] = g.pick(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    return {key: value for key, value in attributes.items() if g.chance(0.7)}


def conv(g: Graph) -> None:
    dtype = g.pick((F32, F32, F32, F64, F16))
    # Stock's float16 convolution with groups breaks its heap on aarch64.
    spatial, group = g.between(1, 2), g.pick((1, 1, 2, 3)) if dtype != F16 else 1
    channels, made = group * g.between(1, 3), group * g.between(1, 4)
    kernel = [g.pick((1, 2, 3)) for _ in range(spatial)]
    x = _image(g, channels, spatial, dtype)
    w = g.constant(
        g.numbers((made, g.wild(channels // group, channels // group + 1), *kernel), dtype, 0.3)
    )
    bias = g.constant(g.numbers((g.wild(made, made + 1),), dtype)) if g.chance(0.5) else ""
    y = g.node(
        "Conv",
        [x, w, bias],
        group=g.wild(group, 1),
        kernel_shape=g.wild(kernel, None),
        **_window(g, spatial),
    )
    if g.chance(0.4):
        y = g.node(
            g.pick(("Relu", "Sigmoid", "HardSwish" if g.opset >= 14 else "Relu")),
            [g.keep(y, dtype)],
        )
    g.output(y, dtype)


def conv_transpose(g: Graph) -> None:
    spatial, group = g.between(1, 2), g.pick((1, 1, 2))
    channels = group * g.between(1, 3)
    kernel = [g.pick((1, 2, 3)) for _ in range(spatial)]
    w = g.constant(g.numbers((channels, g.between(1, 3), *kernel), F32, 0.3))
    padding = [g.wild(g.pick((0, 0, 1)), 2) for _ in range(spatial)]
    y = g.node(
        "ConvTranspose",
        [_image(g, channels, spatial), w],
        group=group,
        output_padding=padding if g.chance(0.3) else None,
        **_window(g, spatial),
    )
    g.output(y)


def pool(g: Graph) -> None:
    spatial = g.between(1, 2)
    kind = g.pick(("MaxPool", "AveragePool", "LpPool"))
    kernel = [g.wild(g.pick((1, 2, 3)), 5, 0) for _ in range(spatial)]
    window = _window(g, spatial)
    if kind == "AveragePool" and g.opset < 19 or kind == "LpPool" and g.opset < 18:
        window.pop("dilations", None)
    extra = {}
    if g.chance(0.3) and g.opset >= (18 if kind == "LpPool" else 10):
        extra["ceil_mode"] = 1
    if kind == "AveragePool" and g.chance(0.5):
        extra["count_include_pad"] = 1
    g.output(
        g.node(kind, [_image(g, g.between(1, 4), spatial)], kernel_shape=kernel, **window, **extra)
    )


def global_pool(g: Graph) -> None:
    kind = g.pick(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"))
    y = g.node(kind, [_image(g, g.between(1, 4), g.between(1, 2))])
    if g.chance(0.5):
        y = g.node("Flatten", [g.keep(y)])
    g.output(y)


def resize(g: Graph) -> None:
    g.opset = max(g.opset, 13)
    dims = [1, g.between(1, 3), *(g.label(g.pick((1, 2, 3, 5, 8))) for _ in range(2))]
    mode = g.pick(("nearest", "nearest", "linear", "cubic"))
    place = g.pick(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    inputs = [g.input(F32, dims), ""]
    if g.chance(0.5):
        factors = g.pick((1.0, 2.0, 0.5, 3.0, 1.5))
        scales = np.asarray([1, 1, factors, g.wild(factors, 0.7, 10.0)], F32)
        inputs += [g.constant(scales)]
    else:
        inputs += ["", g.ints(1, dims[1], *(g.wild(g.between(1, 9), 0) for _ in range(2)))]
    y = g.node(
        "Resize",
        inputs,
        mode=mode,
        coordinate_transformation_mode=place,
        nearest_mode=g.pick((None, "floor", "ceil", "round_prefer_ceil"))
        if mode == "nearest"
        else None,
    )
    g.output(y)


def grid_sample(g: Graph) -> None:
    g.opset = max(g.opset, 20)
    batch, channels = g.label(), g.between(1, 3)
    spatial = g.pick((2, 2, 3))
    x = g.input(F32, [batch, channels, *(g.label(g.between(2, 6)) for _ in range(spatial))])
    grid = g.input(F32, [batch, *(g.label(g.between(1, 5)) for _ in range(spatial)), spatial])
    y = g.node(
        "GridSample",
        [x, grid],
        mode=g.pick(("linear", "cubic" if spatial == 2 else "linear")),
        padding_mode=g.pick((None, "zeros", "border", "reflection")),
        align_corners=g.pick((None, 0, 1)),
    )
    g.output(y)


def integer_conv(g: Graph) -> None:
    channels, made = g.between(1, 3), g.between(1, 4)
    left, right = U8, g.pick((U8, I8))
    w = g.constant(g.numbers((made, channels, 3, 3), right))
    x = _image(g, channels, 2, left)
    zero = g.constant(np.asarray(g.between(0, 5), left))
    if g.chance(0.5):
        y = g.node("ConvInteger", [x, w, zero], pads=[1, 1, 1, 1] if g.chance(0.5) else None)
        g.output(y, np.int32)
        return
    scale = g.constant(np.asarray(0.05, F32))
    zero_w = g.constant(np.asarray(g.between(0, 2), right))
    bias = g.constant(g.numbers((made,), np.int32)) if g.chance(0.4) else ""
    y = g.node(
        "QLinearConv",
        [x, scale, zero, w, scale, zero_w, g.constant(np.asarray(0.3, F32)), zero, bias],
        pads=[1, 1, 1, 1] if g.chance(0.5) else None,
    )
    g.output(y, left)


def small_net(g: Graph) -> None:
    """Conv, batch norm, activation, pool, flatten and a product."""
    made = g.pick((2, 4))
    x = g.input(F32, [g.label(), 3, g.wild(8, g.label(8)), 8])
    y = g.node("Conv", [x, g.constant(g.numbers((made, 3, 3, 3), F32, 0.2))], pads=[1, 1, 1, 1])
    vectors = [g.constant((g.random.random(made) + 0.5).astype(F32)) for _ in range(4)]
    y = g.node("BatchNormalization", [g.keep(y), *vectors])
    y = g.node("MaxPool", [g.node("Relu", [g.keep(y)])], kernel_shape=[2, 2], strides=[2, 2])
    y = g.node("Flatten", [g.keep(y)])
    g.output(g.node("Gemm", [g.keep(y), g.weight(made * 16, 5), g.weight(5)]))


GRAPHS = (
    conv,
    conv,
    conv_transpose,
    pool,
    pool,
    global_pool,
    resize,
    grid_sample,
    integer_conv,
    small_net,
)
