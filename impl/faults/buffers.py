"""Mistakes of a cache that keeps every token: writes, trims, clones and frees."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import edit, mistake
from lockstep.impl.shared.memory import Arrays


@mistake("kv", 2, "ollama, x/mlxrunner/cache of 2026-02")
def free_keeps_offset(cache: Any) -> None:
    """Free drops the buffer, but keeps the offset."""
    free = cache.free

    def free_memory() -> None:
        offset = cache.offset
        free()
        cache.offset = offset

    cache.free = free_memory


@mistake("kv", 3, "mlx-lm PR#976")
def clone_shares(cache: Any) -> None:
    """A clone shares storage with the original."""
    clone = cache.clone

    def share() -> Any:
        copied = clone()
        copied.memory = cache.memory
        return copied

    cache.clone = share


@mistake("kv", 3, "ollama 6f8ddbb26")
def trim_all_whole_buffer(cache: Any) -> None:
    """After a trim of all tokens, `state` returns the whole buffer, because the stop 0 of
    a slice is taken as "to the end"."""

    def state() -> Arrays | None:
        end = cache.offset or cache.memory.columns.capacity
        return cache.memory.read(0, end) if end else None

    cache.state = state


@mistake("kv", 2, "transformers#47433")
def crop_negative_slice(cache: Any) -> None:
    """Trimming more than is stored keeps tokens, through a negative slice."""
    wrong = "self.offset - len(range(self.offset)[: self.offset - count])"
    edit(cache, "trim", "min(count, self.offset)", wrong)


@mistake("state", 5)
def state_kept_by_offset(cache: Any) -> None:
    """The state is cached by offset and returned again, even after other tokens."""
    states: dict[int, Arrays] = {}

    def state() -> Arrays:
        if cache.offset not in states:
            states[cache.offset] = cache.memory.copy(0, cache.offset)
        return states[cache.offset]

    cache.state = state


@mistake("kv", 2, "t5x, examples/t5/layers.py")
def one_hot_write(cache: Any) -> None:
    """A token that is written alone is multiplied by a one-hot mask and added to all
    columns: 0 · NaN is NaN in the columns of the other tokens."""
    update = cache.update

    def add(keys: Any, values: Any) -> Arrays:
        cache.accept((keys, values))
        if cache.offset and keys.shape[2] == 1:
            pairs = zip(cache.memory.copy(0, cache.offset), (keys, values), strict=True)
            keys_added, values_added = [old + new * 0 for old, new in pairs]
            cache.store(0, 0, cache.offset, (keys_added, values_added))
        added: Arrays = update(keys, values)
        return added

    cache.update = add
