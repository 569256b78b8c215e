"""Training a small Llama-shaped decoder in numpy: enough for a model whose numbers mean something.

Every operation returns its result and a function that turns the result's gradient into those of
its operands, so that a layer's backward pass is its forward pass read from the end.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from .decoder_config import DecoderConfig
from .decoder_genai import rotary_tables

Weights = dict[str, np.ndarray]
Progress = Callable[[int, int, str], None]
_PARTS = 2  # of a batch, each on a thread of its own; the same everywhere, since sums differ


@dataclass(frozen=True)
class Schedule:
    """How long and how fast; the rate rises for a tenth of the steps, then falls to a twentieth."""

    steps: int = 500
    batch: int = 8
    length: int = 256
    rate: float = 4e-3
    seed: int = 0

    def rate_at(self, step: int) -> float:
        warm = max(1, self.steps // 10)
        if step < warm:
            return self.rate * (step + 1) / warm
        done = (step - warm) / max(1, self.steps - warm)
        return self.rate * (0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * done)))


def first_weights(config: DecoderConfig, seed: int = 0) -> Weights:
    """Small random matrices, norms of one."""
    random = np.random.default_rng(seed)
    depth = (2 * config.layers) ** -0.5  # what adds to the residual begins smaller

    def matrix(n: int, k: int, scale: float = 1.0) -> np.ndarray:
        return (random.standard_normal((n, k)) * scale * k**-0.5).astype(np.float32)

    hidden, inner = config.hidden, config.feed_forward
    weights: Weights = {"model.embed_tokens.weight": matrix(config.vocabulary, hidden)}
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}"
        for part, width in (("q", config.query_width), ("k", config.kv_width)):
            weights[f"{prefix}.self_attn.{part}_proj.weight"] = matrix(width, hidden)
        weights[f"{prefix}.self_attn.v_proj.weight"] = matrix(config.kv_width, hidden)
        weights[f"{prefix}.self_attn.o_proj.weight"] = matrix(hidden, config.query_width, depth)
        weights[f"{prefix}.mlp.gate_proj.weight"] = matrix(inner, hidden)
        weights[f"{prefix}.mlp.up_proj.weight"] = matrix(inner, hidden)
        weights[f"{prefix}.mlp.down_proj.weight"] = matrix(hidden, inner, depth)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{norm}.weight"] = np.ones(hidden, np.float32)
    weights["model.norm.weight"] = np.ones(hidden, np.float32)
    weights["lm_head.weight"] = matrix(config.vocabulary, hidden)
    return weights


def train(
    config: DecoderConfig,
    tokens: np.ndarray,
    schedule: Schedule,
    progress: Progress | None = None,
) -> tuple[Weights, list[float]]:
    """Weights under the checkpoint's names, and the loss of every step in nats per token."""
    if len(tokens) < schedule.length + 2:
        raise ValueError(
            f"{len(tokens)} tokens are too few: windows of {schedule.length} are drawn from them"
        )
    weights = first_weights(config, schedule.seed)
    optimizer = _Adam(weights)
    random = np.random.default_rng(schedule.seed)
    losses = []
    with ThreadPoolExecutor(_PARTS) as pool:
        for step in range(schedule.steps):
            begins = random.integers(0, len(tokens) - schedule.length - 1, schedule.batch)
            windows = tokens[begins[:, None] + np.arange(schedule.length + 1)]
            parts = np.split(windows, _PARTS)
            results = list(pool.map(lambda part: loss_and_gradients(config, weights, part), parts))
            optimizer.update(_mean([found for _, found in results]), schedule.rate_at(step))
            losses.append(float(np.mean([loss for loss, _ in results])))
            if progress:
                progress(step + 1, schedule.steps, f"{losses[-1]:.3f} nats")
    return weights, losses


def _mean(parts: list[Weights]) -> Weights:
    share = np.float32(1 / len(parts))
    return {name: share * sum(part[name] for part in parts) for name in parts[0]}


def loss_and_gradients(
    config: DecoderConfig, weights: Weights, windows: np.ndarray
) -> tuple[float, Weights]:
    """The mean loss of predicting each token of [batch, length + 1] from those before it."""
    gradients: Weights = {}
    ids, targets = windows[:, :-1], windows[:, 1:].reshape(-1)
    batch, length = ids.shape
    x = weights["model.embed_tokens.weight"][ids.reshape(-1)]
    angles = tuple(table[:length].astype(np.float32) for table in rotary_tables(config))
    layers = []
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}"
        for block in (_attention_block, _mlp_block):
            added, back = block(config, weights, gradients, prefix, x, (batch, length), angles)
            x = x + added
            layers.append(back)
    normed, norm_back = _norm(x, weights["model.norm.weight"], config.epsilon)
    logits, head_back = _linear(normed, weights["lm_head.weight"])
    loss, d_logits = _cross_entropy(logits, targets)
    d_normed, gradients["lm_head.weight"] = head_back(d_logits)
    d_x, gradients["model.norm.weight"] = norm_back(d_normed)
    for back in reversed(layers):
        d_x = d_x + back(d_x)
    embedding = np.zeros_like(weights["model.embed_tokens.weight"])
    np.add.at(embedding, ids.reshape(-1), d_x)
    gradients["model.embed_tokens.weight"] = embedding
    return loss, gradients


def _attention_block(config, weights, gradients, prefix: str, x, shape, angles):
    name = f"{prefix}.self_attn"
    scale = f"{prefix}.input_layernorm.weight"
    normed, norm_back = _norm(x, weights[scale], config.epsilon)
    parts = [_linear(normed, weights[f"{name}.{part}_proj.weight"]) for part in "qkv"]
    attended, attention_back = _attention(config, *(y for y, _ in parts), shape, angles)
    y, output_back = _linear(attended, weights[f"{name}.o_proj.weight"])

    def back(d_y):
        d_attended, gradients[f"{name}.o_proj.weight"] = output_back(d_y)
        d_normed = 0
        for part, d_part, (_, part_back) in zip(
            "qkv", attention_back(d_attended), parts, strict=True
        ):
            d_from_part, gradients[f"{name}.{part}_proj.weight"] = part_back(d_part)
            d_normed = d_normed + d_from_part
        d_x, gradients[scale] = norm_back(d_normed)
        return d_x

    return y, back


def _mlp_block(config, weights, gradients, prefix: str, x, _shape, _angles):
    name = f"{prefix}.mlp"
    scale = f"{prefix}.post_attention_layernorm.weight"
    normed, norm_back = _norm(x, weights[scale], config.epsilon)
    gate, gate_back = _linear(normed, weights[f"{name}.gate_proj.weight"])
    up, up_back = _linear(normed, weights[f"{name}.up_proj.weight"])
    sigmoid = 1 / (1 + np.exp(-gate))
    silu = gate * sigmoid
    y, down_back = _linear(silu * up, weights[f"{name}.down_proj.weight"])

    def back(d_y):
        d_inner, gradients[f"{name}.down_proj.weight"] = down_back(d_y)
        d_gate = d_inner * up * (sigmoid + silu * (1 - sigmoid))
        from_gate, gradients[f"{name}.gate_proj.weight"] = gate_back(d_gate)
        from_up, gradients[f"{name}.up_proj.weight"] = up_back(d_inner * silu)
        d_x, gradients[scale] = norm_back(from_gate + from_up)
        return d_x

    return y, back


def _linear(x: np.ndarray, weight: np.ndarray):
    return x @ weight.T, lambda d_y: (d_y @ weight, d_y.T @ x)


def _norm(x: np.ndarray, weight: np.ndarray, epsilon: float):
    inverse = 1 / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(epsilon))
    scaled = x * inverse

    def back(d_y):
        d_scaled = d_y * weight
        along = (d_scaled * scaled).mean(-1, keepdims=True)
        return (d_scaled - scaled * along) * inverse, (d_y * scaled).sum(0)

    return scaled * weight, back


def _attention(config: DecoderConfig, q, k, v, shape, angles):
    """Causal; query heads that share a key head are further rows of one product."""
    batch, length = shape
    size, shared = config.head_size, config.kv_heads
    group = config.heads // shared

    def split(x, heads: int):
        return x.reshape(batch, length, heads, size).transpose(0, 2, 1, 3)

    def join(x):
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(batch * length, -1)

    def rows(x):
        return x.reshape(batch, shared, group * length, size)

    def heads(x):
        return x.reshape(batch, config.heads, length, size)

    q = rows(_rotated(split(q, config.heads), angles)) * np.float32(config.attention_scale)
    k, v = _rotated(split(k, shared), angles), split(v, shared)
    scores = q @ k.swapaxes(-1, -2)
    barred = np.triu(np.full((length, length), -np.inf, np.float32), 1)
    scores = scores.reshape(batch, shared, group, length, length) + barred
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    weights = weights.reshape(batch, shared, group * length, length)

    def back(d_y):
        d_attended = rows(split(d_y, config.heads))
        d_weights = d_attended @ v.swapaxes(-1, -2)
        along = (d_weights * weights).sum(-1, keepdims=True)
        d_scores = weights * (d_weights - along)
        d_q = heads(d_scores @ k) * np.float32(config.attention_scale)
        d_k = d_scores.swapaxes(-1, -2) @ q
        d_v = weights.swapaxes(-1, -2) @ d_attended
        opposite = angles[0], -angles[1]  # the inverse of a rotation
        return join(_rotated(d_q, opposite)), join(_rotated(d_k, opposite)), join(d_v)

    return join(heads(weights @ v)), back


def _rotated(x: np.ndarray, angles) -> np.ndarray:
    cos, sin = angles
    first, second = np.split(x, 2, -1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _cross_entropy(logits: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean loss, and its gradient with respect to the logits."""
    logits = logits - logits.max(-1, keepdims=True)
    weights = np.exp(logits)
    total = weights.sum(-1, keepdims=True)
    rows = np.arange(len(targets))
    loss = float((np.log(total[:, 0]) - logits[rows, targets]).mean())
    weights /= total
    weights[rows, targets] -= 1
    return loss, weights / np.float32(len(targets))


class _Adam:
    """With decay of matrices and gradients cut at length one."""

    _FIRST, _SECOND, _DECAY = 0.9, 0.98, 0.02

    def __init__(self, weights: Weights):
        self._weights = weights
        self._moments = {
            name: (np.zeros_like(value), np.zeros_like(value)) for name, value in weights.items()
        }
        self._steps = 0

    def update(self, gradients: Weights, rate: float) -> None:
        self._steps += 1
        length = np.sqrt(sum(float(np.square(g).sum()) for g in gradients.values()))
        shrink = np.float32(min(1.0, 1.0 / (length + 1e-6)))
        first_part = 1 - self._FIRST**self._steps
        second_part = 1 - self._SECOND**self._steps
        for name, weight in self._weights.items():
            gradient = gradients[name] * shrink
            first, second = self._moments[name]
            first += (1 - self._FIRST) * (gradient - first)
            second += (1 - self._SECOND) * (np.square(gradient) - second)
            step = first / first_part / (np.sqrt(second / second_part) + 1e-8)
            if weight.ndim > 1:
                step = step + self._DECAY * weight
            weight -= np.float32(rate) * step
