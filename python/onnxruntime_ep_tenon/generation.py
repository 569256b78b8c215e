"""The token loop: a decoder's steps with everything bound beforehand, the caches never copied.

Where the model lets past and present share memory, one buffer per cache serves all steps, and a
step of one token finds every input and output at the address of the step before, so that a GPU
replays one graph. Elsewhere what a step writes is what the next one reads.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from . import tensors
from .bindings import bind, bind_addresses
from .genai_folder import GenaiFolder
from .inputs import InputError
from .kv_heads import local_kv_heads
from .provider_sessions import gpu_of

_ELEMENTS = {
    "float": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "float16": 10, "bfloat16": 16,
    "float8e4m3fn": 17,
}  # fmt: skip
_INTEGERS = {6: np.int32, 7: np.int64}


class _Memory:
    """Tensors where a session wants them: on its GPU, or on the host."""

    def __init__(self, gpu: int | None):
        self.gpu = gpu

    def empty(self, shape: Sequence[int], element: int):
        import onnxruntime

        if self.gpu is not None:
            return tensors.gpu_value(shape, element, self.gpu)
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), element)

    def put(self, array: np.ndarray, into=None):
        """The array's values, in the given tensor if there is one of that shape."""
        import onnxruntime

        on_host = tensors.to_ort_value(array)
        if into is None or list(into.shape()) != list(array.shape):
            into = self.empty(array.shape, on_host.element_type())
        if self.gpu is None:
            ctypes.memmove(into.data_ptr(), on_host.data_ptr(), on_host.tensor_size_in_bytes())
        else:
            onnxruntime.copy_tensors([on_host], [into])
        return into

    def get(self, value) -> np.ndarray:
        on_host = tensors.from_ort_value if self.gpu is None else tensors.from_gpu_value
        return on_host(value)


class TokenLoop:
    """Feeds tokens to a session step by step and keeps its caches.

    share_cache  one buffer for past and present; by default as the folder says
    fixed_mask   the mask always has max_length entries, of which the first count: shapes then
                 stay the same from step to step, which CUDA graphs want
    """

    def __init__(
        self,
        session,
        folder: GenaiFolder,
        batch: int = 1,
        max_length: int = 0,
        share_cache: bool | None = None,
        fixed_mask: bool = False,
    ):
        self._session, self._folder, self._batch = session, folder, batch
        self.max_length = max_length or folder.context_length
        self.shares_cache = folder.shares_cache if share_cache is None else share_cache
        self._fixed_mask = fixed_mask and self.shares_cache
        self.length = 0  # tokens so far
        self._memory = _Memory(gpu_of(session))
        self._inputs = {value.name: value for value in session.get_inputs()}
        self._outputs = {value.name: value for value in session.get_outputs()}
        self._check_names()
        self._heads = local_kv_heads(session)
        self._caches = self._first_caches()
        self._kept: dict[str, object] = {}  # small inputs and logits, which keep their addresses
        by_address = session.get_providers()[0] == "CUDAExecutionProvider"
        self._bind = bind_addresses if by_address else bind
        self._bound: tuple | None = None  # tokens' shape, binding, outputs of the last step

    def step(self, ids) -> np.ndarray:
        """Logits [batch, vocabulary] after these tokens [batch, count], in float32."""
        return self.run(ids)[:, -1].astype(np.float32)

    def run(self, ids) -> np.ndarray:
        """All logits that the model gives: [batch, count or 1, vocabulary], in its own type."""
        ids = np.atleast_2d(np.asarray(ids))
        binding, outputs = self.bound_step(ids)
        self._session.run_with_iobinding(binding)
        self.accept(ids.shape[1], outputs)
        return self.logits(outputs)

    def bound_step(self, ids) -> tuple:
        """A step that is ready to run: the binding and the outputs that it will fill."""
        self._check_tokens(ids)
        small = self._small_inputs(ids)
        if self._bound is None or self._bound[0] != ids.shape or not self._fixed_mask:
            outputs = self._outputs_for(ids.shape[1])
            binding = self._bind(self._session, small | self._caches, outputs)
            self._bound = ids.shape, binding, outputs
        return self._bound[1:]

    def assume(self, length: int, cache: np.ndarray) -> None:
        """As if so many tokens had been fed: every cache [batch, heads, max_length, size]; caches
        of codes take as much of it as they have elements."""
        if not self.shares_cache:
            raise InputError("only shared caches can be filled from outside")
        one = next(iter(self._caches.values()))
        typed = cache[..., : one.shape()[-1]].astype(tensors.dtype_of(one))
        for value in self._caches.values():
            self._memory.put(typed, value)
        self.length = length

    def logits(self, outputs: dict) -> np.ndarray:
        """What a bound step wrote, once it has run."""
        return self._memory.get(outputs[self._folder.logits])

    def accept(self, count: int, outputs: dict) -> None:
        """The step has run: what it wrote is what the next one reads."""
        self.length += count
        if self.shares_cache:
            return
        for layer, names in enumerate(self._folder.present):
            for name, past in zip(names, self._folder.past[layer], strict=True):
                self._caches[past] = outputs[name]

    def _small_inputs(self, ids: np.ndarray) -> dict:
        folder, total = self._folder, self.length + ids.shape[1]
        mask = np.zeros((self._batch, self.max_length if self._fixed_mask else total), np.int64)
        mask[:, :total] = 1
        positions = np.broadcast_to(np.arange(self.length, total), ids.shape)
        given = {folder.ids: ids, folder.mask: mask, folder.positions: positions}
        for name in [name for name in given if name in self._inputs]:
            typed = given[name].astype(_INTEGERS[self._element(self._inputs[name])])
            self._kept[name] = self._memory.put(typed, self._kept.get(name))
        return {name: self._kept[name] for name in given if name in self._inputs}

    def _outputs_for(self, count: int) -> dict:
        folder = self._folder
        value = self._outputs[folder.logits]
        rows = 1 if value.shape[1] == 1 else count
        shape = [self._batch, rows, value.shape[2]]
        logits = self._kept.get(folder.logits)
        if logits is None or list(logits.shape()) != shape:
            logits = self._memory.empty(shape, self._element(value))
            self._kept[folder.logits] = logits
        outputs = {folder.logits: logits}
        for layer, names in enumerate(folder.present):
            for name, past in zip(names, folder.past[layer], strict=True):
                outputs[name] = (
                    self._caches[past]
                    if self.shares_cache
                    else self._cache(past, self._outputs[name], self.length + count)
                )
        return outputs

    def _first_caches(self) -> dict:
        length = self.max_length if self.shares_cache else 0
        return {
            name: self._cache(name, self._inputs[name], length)
            for names in self._folder.past
            for name in names
        }

    def _cache(self, past: str, value, length: int):
        """Of one rank of several: with its own heads, where the file lets ranks differ. What the
        file leaves open besides, the folder's configuration says."""
        _, heads, _, size = value.shape
        heads = self._heads.get(past, heads)
        if not isinstance(heads, int):
            heads = self._folder.kv_heads
        if not isinstance(size, int):
            size = self._folder.cache_width(value.type)
        if not heads or not size:
            raise InputError(
                f"{past} is {value.shape}: genai_config.json should say num_key_value_heads and "
                "head_size"
            )
        rows = self._folder.windows.get(past, length)
        return self._memory.empty([self._batch, heads, rows, size], self._element(value))

    def _element(self, value) -> int:
        name = value.type.removeprefix("tensor(").removesuffix(")")
        if name not in _ELEMENTS:
            raise InputError(f"{value.name} is a {value.type}, which this loop cannot feed")
        return _ELEMENTS[name]

    def _check_names(self) -> None:
        folder = self._folder
        past = {name for names in folder.past for name in names}
        present = {name for names in folder.present for name in names}
        for wanted, offered, what in (
            (past | {folder.ids, folder.mask}, self._inputs, "inputs"),
            (present | {folder.logits}, self._outputs, "outputs"),
        ):
            if missing := sorted(wanted - set(offered)):
                raise InputError(
                    f"{folder.model} has no {missing[0]} among its {what}, which are: "
                    f"{', '.join(list(offered)[:6])}, ..."
                )
        known = past | {folder.ids, folder.mask, folder.positions}
        if strange := sorted(set(self._inputs) - known):
            raise InputError(f"{folder.model} wants {strange[0]}, which this loop cannot feed")

    def _check_tokens(self, ids: np.ndarray) -> None:
        if ids.shape[0] != self._batch or ids.shape[1] < 1:
            raise InputError(
                f"expected tokens of shape [{self._batch}, 1 or more], got {list(ids.shape)}"
            )
        vocabulary = self._outputs[self._folder.logits].shape[2]
        if ids.min() < 0 or (isinstance(vocabulary, int) and ids.max() >= vocabulary):
            raise InputError(f"token ids lie from 0 to {vocabulary - 1}")
        if self.length + ids.shape[1] > self.max_length:
            raise InputError(
                f"{self.length} tokens and {ids.shape[1]} more are beyond max_length, "
                f"{self.max_length}"
            )


@dataclass
class Pace:
    """When tokens came."""

    prompt_tokens: int = 0
    begin: float = 0.0
    arrivals: list[float] = field(default_factory=list)

    @property
    def first_token_s(self) -> float:
        return self.arrivals[0] - self.begin if self.arrivals else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first, which waits for the whole prompt."""
        spent = self.arrivals[-1] - self.arrivals[0] if len(self.arrivals) > 1 else 0.0
        return (len(self.arrivals) - 1) / spent if spent else float("nan")

    def __str__(self) -> str:
        return (
            f"{len(self.arrivals)} tokens after a prompt of {self.prompt_tokens}: the first after "
            f"{self.first_token_s * 1e3:.1f} ms, then {self.tokens_per_second:.1f} tokens/s"
        )


Choice = Callable[[np.ndarray], int]


def greedy(logits: np.ndarray) -> int:
    return int(np.argmax(logits))


def sampler(temperature: float, top_k: int = 0, seed: int = 0) -> Choice:
    """Draws from the softmax of the top_k logits over the temperature; 0 takes the largest."""
    if temperature <= 0:
        return greedy
    random = np.random.default_rng(seed)

    def draw(logits: np.ndarray) -> int:
        scaled = logits.astype(np.float64) / temperature
        if 0 < top_k < scaled.size:
            scaled[scaled < np.partition(scaled, -top_k)[-top_k]] = -np.inf
        weights = np.exp(scaled - scaled.max())
        return int(random.choice(scaled.size, p=weights / weights.sum()))

    return draw


def generate(
    loop: TokenLoop,
    prompt: Sequence[int],
    count: int,
    choose: Choice = greedy,
    pace: Pace | None = None,
    end_tokens: Sequence[int] = (),
) -> Iterator[int]:
    """Tokens as they come, until `count`, an end token, or the end of the cache."""
    if len(prompt) == 0:
        raise InputError("the prompt is empty: give at least one token")
    pace = pace if pace is not None else Pace()
    pace.prompt_tokens, pace.begin = len(prompt), time.perf_counter()
    feed = np.asarray(prompt)[None]
    for _ in range(count):
        if loop.length + feed.shape[1] > loop.max_length:
            if not pace.arrivals:
                loop.step(feed)  # says what is too long
            return
        token = choose(loop.step(feed)[0])
        pace.arrivals.append(time.perf_counter())
        if token in end_tokens:
            return
        yield token
        feed = np.asarray([[token]])
