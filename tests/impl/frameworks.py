"""Our caches of either framework, filled and read through numpy."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.impl.shared.causal import Sizes
from lockstep.impl.shared.slots import Slots

Floats = npt.NDArray[np.float32]

INSTALLED = [name for name in ("torch", "mlx") if find_spec(name)]
HEADS, KEY_DIM, VALUE_DIM = 2, 4, 3
CONV, DELTA = (2, 5), (2, 4, 3)
SEQUENCES, CAPACITY, BATCH = 3, 16, 8


class Framework:
    """name: "torch" or "mlx". Arrays go in and out as float32."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.module = {
            part: import_module(f"lockstep.impl.{name}.{part}")
            for part in (
                *("backend", "arrays", "causal", "encoder", "recurrent", "rope"),
                *("kv", "rotating", "state", "batched", "batched_state"),
            )
        }
        self.backend = self.module["backend"].cpu()

    def array(self, content: Any, dtype: str = "float32") -> Any:
        return self.backend.arrays.from_numpy(np.array(content, np.float32), dtype)

    def numpy(self, array: Any) -> Floats:
        return np.array(self.backend.arrays.to_numpy(array))

    def dtype(self, array: Any) -> str:
        return str(self.backend.arrays.dtype(array))

    def options(self, dtype: str, mask: str, options: dict[str, Any]) -> dict[str, Any]:
        dtypes = self.module["arrays"].DTYPES
        if self.name == "mlx":
            return {"dtype": dtypes[dtype], "mask": dtypes[mask], **options}
        empty = import_module("torch").empty
        pair = empty(0, dtype=dtypes[dtype]), empty(0, dtype=dtypes[mask])
        return {"like": pair[0], "mask": pair[1], **options}

    def causal(
        self, *, dtype: str = "float32", mask: str = "float32", **options: Any
    ) -> Any:
        """A causal cache; what `Sizes` knows of the options goes there."""
        sizes = take_sizes(options)
        make = self.module["causal"].CausalCache
        return make(sizes, **self.options(dtype, mask, options))

    def recurrent(
        self,
        *,
        slots: int = SEQUENCES,
        interval: int | None = None,
        kept: int = 2,
        **options: Any,
    ) -> Any:
        sizes = take_sizes(options)
        options = self.options("float32", "float32", {"rope": None, **options})
        make = self.module["recurrent"].RecurrentCache
        return make(sizes, Slots(slots, interval, kept), CONV, DELTA, **options)

    def encoder(self) -> Any:
        return self.module["encoder"].EncoderCache(SEQUENCES, BATCH)

    def layer(self, kind: str, **options: Any) -> Any:
        """A cache of one sequence: kv, rotating with a window of 4, or state."""
        if kind == "kv":
            return self.module["kv"].KVCache(**options)
        if kind == "rotating":
            return self.module["rotating"].RotatingCache(**{"window": 4, **options})
        return self.module["state"].StateCache((1, *CONV), (1, *DELTA))

    def batch(self, rows: int, window: int | None = None, **options: Any) -> Any:
        """A batch of full caches, or with a window."""
        return self.module["batched"].BatchedCache(rows, window, **options)

    def batch_states(self, rows: int) -> Any:
        return self.module["batched_state"].BatchedState(self.states(*[0.0] * rows))

    def stack(self, caches: Sequence[Any]) -> Any:
        return self.module["batched"].BatchedCache.stack(caches)

    # --- tokens -------------------------------------------------------------------------

    def append(self, cache: Any, numbers: Sequence[float]) -> None:
        """Writes tokens to a cache of one sequence, or a state that has read them."""
        if not hasattr(cache, "boundaries"):
            cache.update(*self.feed(numbers))
            return
        for length in cache.boundaries(len(numbers)):
            cache.write(*self.states(numbers[length - 1]), length)
            numbers = numbers[length:]

    def hold(self, pair: Any) -> list[float]:
        """The numbers of the tokens in K and V, or the one that a state is full of."""
        if pair is None:
            return []
        first, second = (self.numpy(array) for array in pair)
        if first.ndim == 3:
            assert (first == first[0, 0, 0]).all() and (second == first[0, 0, 0]).all()
            return [float(first[0, 0, 0])]
        numbers = first[0, 0, :, 0]
        assert (first == numbers[:, None]).all() and (second == -numbers[:, None]).all()
        return list(numbers.tolist())

    def feed(
        self,
        numbers: Sequence[float],
        heads: int = HEADS,
        key_dim: int = KEY_DIM,
        value_dim: int = VALUE_DIM,
    ) -> tuple[Any, Any]:
        """K [1, heads, rows, key_dim], full of the token's number, and V, of minus it."""
        tokens = np.asarray(numbers, np.float32)[None, None, :, None]
        keys = np.broadcast_to(tokens, (1, heads, len(numbers), key_dim))
        values = -np.broadcast_to(tokens, (1, heads, len(numbers), value_dim))
        return self.array(keys), self.array(values)

    def step(
        self,
        cache: Any,
        positions: Sequence[int],
        sequence: int | Sequence[int] = 0,
        numbers: Sequence[float] | None = None,
        **options: Any,
    ) -> list[list[int]]:
        """A whole pass. numbers: of the tokens, their positions if not said; layer l has
        1000 · l more. What the rows see in layer 0, and no other number in the others."""
        owners = [sequence] * len(positions) if isinstance(sequence, int) else sequence
        numbers = positions if numbers is None else numbers
        cache.forward(list(positions), owners, **options)
        for layer in range(cache.layers):
            cache.put(layer, *self.feed([number + 1000 * layer for number in numbers]))
        rows = self.see(cache)
        for layer in range(1, cache.layers):
            further = self.see(cache, layer)
            assert further == [[n + 1000 * layer for n in row] for row in rows]
        return rows

    def see(self, cache: Any, layer: int = 0) -> list[list[int]]:
        """The numbers that each row of the pass sees, ascending, after K and V were
        looked at as a whole: for caches that have turned no keys and permute nothing."""
        keys, values, mask = (self.numpy(array) for array in cache.get(layer))
        assert keys.shape[1:3] == values.shape[1:3] == (HEADS, mask.shape[1])
        seen = mask == 0
        some = seen.any(axis=0)
        numbers = keys[0, 0, :, 0]
        assert (keys[..., some, :] == numbers[some, None]).all()
        assert (values[..., some, :] == -numbers[some, None]).all()
        return [sorted(numbers[row].astype(int).tolist()) for row in seen]

    def feed_rows(self, rows: Sequence[Sequence[float]]) -> tuple[Any, Any]:
        """The same for rows of equally many columns."""
        pairs = [[self.numpy(array) for array in self.feed(row)] for row in rows]
        keys, values = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        return self.array(keys), self.array(values)

    def feed_wide(self, length: int, rows: int = 1, **form: int) -> tuple[Any, Any]:
        """K and V of zeros, of another form. form: heads, key_dim, value_dim."""
        keys, values = self.feed([0.0] * length, **form)
        return tuple(
            self.array(np.concatenate([self.numpy(array)] * rows))
            for array in (keys, values)
        )

    def states(self, *numbers: float) -> tuple[Any, Any]:
        """conv and delta of some sequences, full of one number each."""
        conv, delta = (
            np.stack([np.full(form, number) for number in numbers])
            for form in (CONV, DELTA)
        )
        return self.array(conv), self.array(delta)

    def read(self, cache: Any, layer: int = 0) -> list[float]:
        """The numbers that the states of the pass are full of."""
        conv, delta = (self.numpy(array) for array in cache.read_states(layer))
        assert (conv == conv[:, :1, :1]).all()
        assert (delta == conv[:, :1, :1, None]).all()
        return list(conv[:, 0, 0].tolist())


def take_sizes(options: dict[str, Any]) -> Sizes:
    names = ("window", "memory", "chunk", "cache_padding", "mask_padding")
    return Sizes(
        options.pop("sequences", SEQUENCES),
        options.pop("capacity", CAPACITY),
        options.pop("batch", BATCH),
        **{x: options.pop(x) for x in (*names, "small", "sections") if x in options},
    )
