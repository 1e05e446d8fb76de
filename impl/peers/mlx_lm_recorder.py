"""Records caches of mlx-lm in a running engine.

This module is the inverse of `mlx_lm_layers` and `mlx_lm_batches`, where you find the
operation for each call. A model requests a mask from the first layer of each type; the
arguments of this call determine which backend uses the class in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from lockstep.harness.backends.recorder import (
    Form,
    Scribe,
    Tape,
    Then,
    get_scribe,
    make_plain,
)
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.recording import Recording

QUANTIZED = {
    (8, 32): ("mlx-lm-quantized", 32),
    **{(bits, 64): (f"mlx-lm-quantized-{bits}", 64) for bits in (6, 5, 4, 3)},
    (2, 32): ("mlx-lm-quantized-2", 32),
}
"""Bits and group size → the backend, and the dimensions that it declares."""

BATCHED = {
    "mlx-lm": "mlx-lm-batched",
    "mlx-lm-max-kv-size": "mlx-lm-batched-max-kv-size",
}
"""Backend of single caches → the backend of batches of these caches."""

OF_BATCHES = {"rotating": {"ring": "columns"}, "state": {"offsets": "none"}}
"""Kind → the config fields that only its batches have."""


def record(cache: Any, recording: Recording) -> None:
    """Records a cache, the list of a model's layer caches, or a list of such lists with
    one list for each request.

    Raises:
        UsageError: a cache is not empty, or is already recorded.
    """
    requests = cache if is_list(cache) and cache and is_list(cache[0]) else [cache]
    for layers in requests:
        layers = layers if is_list(layers) else [layers]
        for number, layer in enumerate(layers):
            for label, member in iterate_parts(f"layer {number}", layer):
                attach(label, member, recording)
    if not recording.tapes:
        raise UsageError(
            "nothing to record; pass the caches that make_prompt_cache(model) returns"
        )


def is_list(cache: Any) -> bool:
    return isinstance(cache, list | tuple)


def iterate_parts(label: str, cache: Any) -> Iterator[tuple[str, Any]]:
    """Yields the cache of a layer; if it is a list, yields the caches of the list
    instead."""
    if not isinstance(cache, CacheList):
        yield label, cache
        return
    for number, item in enumerate(cache.caches):
        yield from iterate_parts(f"{label} part {number}", item)


def attach(label: str, cache: Any, recording: Recording) -> None:
    if cache is None:  # a layer without a cache
        return None
    form = get_form(cache)
    if form is None:
        kind = type(cache).__name__
        return recording.skip(label, f"no backend drives such a {kind}")
    if get_scribe(cache) is not None:
        raise UsageError(f"{label} is recorded already")
    if not cache.empty():
        raise UsageError(f"{label} is not empty; start to record before its first update")
    tape = recording.open_tape(label, form)
    name = tape.choose_name()
    if form.contract == "layer":
        Single(cache, [tape], name)
    else:
        tape.note(name, "open", rows=cache.left_padding.size)
        Batch(cache, [tape], name).left = cache.left_padding.tolist()
    return None


def get_form(cache: Any) -> Form | None:
    """Returns the form of a cache, or None if no backend opens such a cache."""
    match cache:
        case KVCache():
            return Form("mlx-lm", "layer", {"kind": "kv", "step": cache.step})
        case RotatingKVCache():
            sizes = {"window": cache.max_size, "keep": cache.keep, "step": cache.step}
            return Form("mlx-lm", "layer", {"kind": "rotating", **sizes})
        case ArraysCache() if len(cache.cache) == 2:
            return Form("mlx-lm", "layer", {"kind": "state"})
        case ConcatenateKVCache():
            return Form("mlx-lm-concatenate", "layer", {"kind": "kv"})
        case ChunkedKVCache():
            sizes = {"chunk": cache.chunk_size, "step": cache.step}
            return Form("mlx-lm-chunked", "layer", {"kind": "kv", **sizes})
        case QuantizedKVCache() if (cache.bits, cache.group_size) in QUANTIZED:
            backend, dim = QUANTIZED[cache.bits, cache.group_size]
            sizes = {"key_dim": dim, "value_dim": dim, "step": cache.step}
            return Form(backend, "layer", {"kind": "kv", **sizes})
        case BatchKVCache():
            sizes = {"kind": "batch-kv", "step": cache.step}
            return Form("mlx-lm-batched", "batched", sizes)
        case BatchRotatingKVCache():
            sizes = {"window": cache.max_size, "step": cache.step, "ring": "columns"}
            return Form("mlx-lm-batched", "batched", {"kind": "batch-rotating", **sizes})
    return None


class Own(Scribe):
    """Base class of recorded single caches and recorded batches; each belongs to one
    layer."""

    has_mask = False

    @property
    def tape(self) -> Tape:
        return self.tapes[0]

    def choose_backend(self, name: str, **config: Any) -> None:
        """Chooses the backend by the first mask that a model requests."""
        form = self.tape.draft.form
        if self.has_mask and form.backend != name:
            self.tape.draft.remark(f"masks of another form, those of {name}")
        elif form.backend != name:
            self.tape.draft.turn(replace(form, backend=name).with_fields(**config))
        self.has_mask = True

    def note_inputs(self, conv: Any) -> None:
        """Notes width and dtype of the inputs of a convolution, [rows, width - 1, …]."""
        form = self.tape.draft.form
        if "dtype" not in form.config:
            sizes = {"dtype": str(conv.dtype).rpartition(".")[2]}
            sizes |= {"conv_width": conv.shape[1] + 1}
            self.tape.draft.turn(form.with_fields(**sizes))

    def __setitem__(self, index: int, value: Any) -> Then:
        """Notes no operation, because `advance` counts the tokens that a state
        has read."""
        if index == 0 and value is not None:
            self.note_inputs(value)
        return None


class Single(Own):
    """A recorded cache of one sequence."""

    calls = (
        *("make_mask", "update_and_fetch", "trim", "to_quantized", "merge"),
        *("__setitem__", "advance", "prepare", "filter", "extend"),
    )

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> Then:
        form = self.tape.draft.form
        size, is_batched = form.config.get("window"), form.contract == "batched"
        if is_batched or form.config["kind"] == "state":
            return None
        if size is None:
            if window_size is not None:
                self.stop(f"a mask with a window of {window_size} over {self.plain}")
            elif return_array and form.backend == "mlx-lm":
                self.choose_backend("mlx-lm-return-array")
        elif form.backend == "mlx-lm-plamo3" or window_size == size + 1:
            self.choose_backend("mlx-lm-plamo3", window=window_size)
        elif window_size is None:
            is_array = "return-array" if return_array else "max-kv-size"
            self.choose_backend(f"mlx-lm-{is_array}")
        elif window_size == size:
            self.choose_backend("mlx-lm")
        else:
            self.stop(f"a mask with a window of {window_size} over a ring of {size}")
        return None

    def update_and_fetch(self, keys: Any, values: Any) -> Then:
        self.tape.note_sizes(keys, values)
        if keys.shape[0] > 1:
            rows = keys.shape[0]
            self.tape.draft.remark(f"all rows but one of {rows}, which have one length")
        self.note("update", length=keys.shape[2])
        return None

    def advance(self, N: int) -> Then:
        self.note("update", length=N)
        return None

    def trim(self, n: int) -> Then:
        cache = self.cache()
        if cache is not None and not cache.is_trimmable():
            self.stop("trim of a full ring: callers ask is_trimmable() first")
        self.note("trim", count=n)
        return None

    def to_quantized(self, *args: Any, **kwargs: Any) -> Then:
        self.stop("to_quantized, and what the quantized cache does")
        return None

    def merge(self, caches: Sequence[Any]) -> Then:
        """Notes that caches of several requests become the rows of a batch."""
        turn_to_batches(self.tape)
        names = [self.tape.find_name(cache) or self.adopt(cache) for cache in caches]
        name = self.tape.choose_name()
        self.tape.note(name, "stack", caches=names)
        self.tape.gone.update(names)
        return lambda batch: Batch(batch, self.tapes, name)

    def adopt(self, cache: Any) -> str:
        """Begins to record an empty cache, and returns its name."""
        name = self.tape.choose_name()
        if name in self.tape.names or not cache.empty():
            self.stop("a batch of a cache that is not recorded")
        else:
            Single(cache, self.tapes, name)
        return name

    def prepare(self, *args: Any, **kwargs: Any) -> Then:
        """Ends the program at an `ArraysCache` that is a batch although it was not
        merged."""
        self.stop(f"a {self.plain.__name__} that is a batch from its beginning")
        return None

    filter = extend = prepare


class Batch(Own):
    """A recorded cache of several sequences.

    Attributes:
        left: for each row, the padding on the left of the next update.
    """

    calls = (
        *("make_mask", "update_and_fetch", "trim", "__setitem__", "advance"),
        *("prepare", "finalize", "filter", "extend", "extract"),
    )
    left: Sequence[int] = ()
    is_padded = False

    def make_mask(self, N: int, window_size: int | None = None, **kwargs: Any) -> Then:
        if self.tape.draft.form.config["kind"] == "batch-rotating":
            is_plain = window_size is not None
            self.choose_backend(BATCHED["mlx-lm" if is_plain else "mlx-lm-max-kv-size"])
        return None

    def update_and_fetch(self, keys: Any, values: Any) -> Then:
        self.tape.note_sizes(keys, values)
        return self.advance(keys.shape[2])

    def advance(self, N: int) -> Then:
        left = {"left": list(self.left)} if any(self.left) else {}
        self.note("update", length=N, **left)
        self.left = ()
        return None

    def trim(self, n: int) -> Then:
        self.note("trim", count=n)
        return None

    def prepare(
        self,
        *,
        left_padding: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
        right_padding: Sequence[int] | None = None,
    ) -> Then:
        if left_padding is not None:
            padding = make_plain(left_padding)
            announced = self.left or [0] * len(padding)
            self.left = [a + b for a, b in zip(announced, padding, strict=True)]
        if right_padding is not None and lengths is None:
            self.stop("padding on the right without the lengths of the rows")
        if lengths is not None and len(set(make_plain(lengths))) > 1:
            self.note("pad_right", lengths=lengths)
            self.is_padded = True
        return None

    def finalize(self) -> Then:
        if self.is_padded:
            self.note("finalize")
        self.is_padded = False
        return None

    def filter(self, batch_indices: Any) -> Then:
        rows = make_plain(batch_indices)
        self.note("filter", rows=rows)
        if self.left:
            self.left = [self.left[row] for row in rows]
        return None

    def extend(self, joined: Any) -> Then:
        name = self.tape.find_name(joined)
        if name is None:
            self.stop("rows of a batch that is not recorded")
            return None
        self.note("extend", other=name)
        self.tape.gone.add(name)
        return None

    def extract(self, idx: int) -> Then:
        name = self.tape.choose_name()
        self.note("extract", row=idx, into=name)
        return lambda single: Single(single, self.tapes, name)

    def join(self, joined: Any, name: str) -> None:
        copy = Batch(joined, self.tapes, name)
        copy.left, copy.is_padded = self.left, self.is_padded


def turn_to_batches(tape: Tape) -> None:
    """Changes the program of a layer to the batched contract, which also has operations
    on single caches."""
    form = tape.draft.form
    if form.contract == "batched":
        return
    if form.backend not in BATCHED:
        tape.stop(f"a batch of what {form.backend} is")
        return
    kind = form.config["kind"]
    config = {**form.config, "kind": f"batch-{kind}", **OF_BATCHES.get(kind, {})}
    tape.draft.turn(Form(BATCHED[form.backend], "batched", config, form.about))
