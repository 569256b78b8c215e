"""Independent GroupQueryAttentions of one shape, each with caches of its own: what is timed.

Queries and fresh keys are the same for all of them, as in a batch of layers they would be small;
the caches together are too large for the GPU's own.
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx

from .builder import BFLOAT16, FLOAT16, INT32, GraphBuilder
from .cache_formats import CACHE_FORMATS
from .tolerances import UNIT_ROUNDOFF

_ELEMENTS = {"f16": (FLOAT16, np.float16), "bf16": (BFLOAT16, ml_dtypes.bfloat16)}
_DRAWN = (1 << 20) - 3  # drawing gigabytes takes minutes; odd, so that rows differ
_ROUNDINGS = 8  # of a key's share in a result, each as large as they come


class AttentionStack:
    """The model of a case (see AttentionCase), its inputs, and what its results should be."""

    def __init__(self, case, seed: int = 0):
        self.case = case
        self.element, self.dtype = _ELEMENTS[case.element]
        random = np.random.default_rng((seed, case.keys, case.head_size))
        self._pool = random.standard_normal(_DRAWN, np.float32).astype(self.dtype)
        self.codes = CACHE_FORMATS.get(case.cache)
        if self.codes:
            self.cache_element = self.codes.element
            self.cache_shape = (*case.cache_shape[:3], self.codes.width(case.head_size))
            self._scale = self.codes.scales(case.kv_heads, case.head_size)
            one = np.float32(self._scale.mean())
            self._cache_pool = self.codes.quantize(self._pool[:-1].reshape(-1, 2), one).reshape(-1)
        else:
            self.cache_element, self.cache_shape = self.element, case.cache_shape
            self._cache_pool = self._pool

    def model(self, folder: Path) -> Path:
        c = self.case
        g = GraphBuilder("attentions", 21, ("com.microsoft",))
        fresh = [
            g.input(name, self.element, [c.batch, c.queries, heads * c.head_size])
            for name, heads in (("q", c.heads), ("k", c.kv_heads), ("v", c.kv_heads))
        ]
        lengths = [g.input("seqlens_k", INT32, [c.batch]), g.input("total", INT32, [1])]
        scales, attributes = [], {}
        if self.codes:
            scales = [*[""] * 5, *[g.constant(f"{x}_scale", self._scale) for x in "kv"]]
            attributes = self.codes.attributes()
        cache = self.cache_element, list(self.cache_shape)
        for number in range(c.copies):
            past = [g.input(f"past_{x}{number}", *cache) for x in "kv"]
            width = c.heads * c.head_size
            results = [g.output(f"y{number}", self.element, [c.batch, c.queries, width])]
            results += [g.output(f"present_{x}{number}", *cache) for x in "kv"]
            g.node(
                "GroupQueryAttention", [*fresh, *past, *lengths, *scales], outputs=results,
                domain="com.microsoft", num_heads=c.heads, kv_num_heads=c.kv_heads, **attributes,
            )  # fmt: skip
        path = Path(folder) / "attentions.onnx"
        onnx.save(g.model(check=False), path)
        return path

    def fresh(self, name: str) -> np.ndarray:
        """The queries, keys or values of this step: [batch, queries, heads * size]."""
        c = self.case
        heads = c.heads if name == "q" else c.kv_heads
        return self._drawn("qkv".index(name), (c.batch, c.queries, heads * c.head_size))

    def past(self, name: str, number: int) -> np.ndarray:
        """A cache as it is before the first Run: positions to be written hold NaN, or zeros."""
        c = self.case
        place = 3 + 2 * number + "kv".index(name)
        cache = self._drawn(place, self.cache_shape, self._cache_pool)
        cache[:, :, c.keys - c.queries :] = 0 if self.codes else np.nan
        return cache

    def lengths(self) -> dict[str, np.ndarray]:
        """seqlens_k is where the last key goes; total is read on the host."""
        c = self.case
        return {
            "seqlens_k": np.full(c.batch, c.keys - 1, np.int32),
            "total": np.array([c.keys], np.int32),
        }

    def present(self, name: str, number: int) -> np.ndarray:
        """The cache as it should be after a Run."""
        c = self.case
        cache = self.past(name, number)
        fresh = self.fresh(name).reshape(c.batch, c.queries, c.kv_heads, c.head_size)
        fresh = fresh.transpose(0, 2, 1, 3)
        if self.codes:
            fresh = self.codes.quantize(fresh, self._scale)
        cache[:, :, c.keys - c.queries :] = fresh
        return cache

    def _numbers(self, cache: np.ndarray, batch: int, group: int, visible: int) -> np.ndarray:
        """Rows of a head as they count, in float64."""
        rows = cache[batch, group, :visible]
        if not self.codes:
            return rows.astype(np.float64)
        per_channel = self._scale.size > 1
        return self.codes.dequantize(rows, self._scale[0, group] if per_channel else self._scale)

    def error_over_bound(self, caches: dict, y: np.ndarray, rows: list[tuple]) -> float:
        """The largest error of y at (batch, head, query) over what rounding explains.

        caches  "k" and "v" of the attention that y belongs to, as they are after the Run
        """
        c = self.case
        q = self.fresh("q").reshape(c.batch, c.queries, c.heads, c.head_size)
        results = y.reshape(q.shape)
        worst = 0.0
        for batch, head, query in rows:
            group = head // (c.heads // c.kv_heads)
            visible = c.keys - c.queries + query + 1
            k, v = (self._numbers(caches[x], batch, group, visible) for x in "kv")
            expected, bound = self._row(q[batch, query, head].astype(np.float64), k, v)
            error = np.abs(results[batch, query, head].astype(np.float64) - expected) / bound
            worst = float("inf") if np.isnan(error).any() else max(worst, float(error.max()))
        return worst

    def _row(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple:
        scores = k @ q / np.sqrt(self.case.head_size)
        weights = np.exp(scores - scores.max())
        shares = (weights / weights.sum())[:, None] * v
        expected = shares.sum(axis=0)
        roundoff = UNIT_ROUNDOFF[np.dtype(self.dtype)]
        # Every share is rounded on its own, sums are float32, the result is rounded once.
        spread = np.sqrt(np.square(shares).sum(axis=0))
        sums = np.sqrt(len(k)) * 2.0**-22 * np.abs(shares).sum(axis=0)
        return expected, 2 * roundoff * np.abs(expected) + _ROUNDINGS * roundoff * spread + sums

    def _drawn(self, number: int, shape: tuple[int, ...], pool=None) -> np.ndarray:
        return np.resize(np.roll(self._pool if pool is None else pool, 104729 * number), shape)
