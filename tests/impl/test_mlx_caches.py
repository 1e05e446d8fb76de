"""Our caches on MLX: what is handed out is a value, snapshots are lazy and compact."""

from __future__ import annotations

import gc
from typing import Any

import mlx.core as mx
import pytest

from lockstep.impl.mlx.kv import KVCache
from lockstep.impl.mlx.rotating import RotatingCache
from lockstep.impl.mlx.state import StateCache

HEADS, KEY_DIM, VALUE_DIM = 2, 4, 3
TOKEN_BYTES = HEADS * (KEY_DIM + VALUE_DIM) * 4


def feed(first: int, count: int = 1, heads: int = HEADS) -> tuple[mx.array, mx.array]:
    """K and V of the tokens first, first + 1, …: token n full of n, and of -n."""
    tokens = mx.arange(first, first + count, dtype=mx.float32).reshape(1, 1, count, 1)
    keys = mx.broadcast_to(tokens, (1, heads, count, KEY_DIM))
    return keys, -mx.broadcast_to(tokens, (1, heads, count, VALUE_DIM))


def see(pair: Any) -> list[int]:
    keys, values = pair
    assert mx.all(keys == keys[:, :1, :, :1])
    assert mx.all(values == -keys[:, :1, :, :1])
    return [int(number) for number in keys[0, 0, :, 0].tolist()]


def make(kind: str) -> Any:
    return KVCache(step=4) if kind == "kv" else RotatingCache(4, step=4)


BOTH = pytest.mark.parametrize("kind", ["kv", "rotating"])


@BOTH
def test_what_was_handed_out_never_changes(kind: str) -> None:
    cache = make(kind)
    held = [(cache.update(*feed(n)), n) for n in range(3)]
    cache.trim(3)
    for n in range(9):
        cache.update(*feed(100 + n))
    for pair, last in held:
        assert see(pair) == list(range(last + 1))


@BOTH
def test_a_snapshot_owns_nothing_until_it_must_and_says_so_once(kind: str) -> None:
    cache, copied = make(kind), list[int]()
    cache.update(*feed(0, 3))
    snapshot = cache.snapshot(0)
    snapshot.on_copy = copied.append
    assert (snapshot.nbytes, copied) == (0, [])
    cache.trim(3)
    cache.update(*feed(7))
    cache.update(*feed(8))
    assert (snapshot.nbytes, copied) == (3 * TOKEN_BYTES, [3 * TOKEN_BYTES])
    assert see(snapshot.read()) == [0, 1, 2]
    cache.free()
    assert copied == [3 * TOKEN_BYTES]


def test_a_copied_snapshot_keeps_no_buffer_alive() -> None:
    """8 MiB of buffer, of which a snapshot names one token."""
    cache, before = KVCache(step=1 << 17), mx.get_active_memory()
    cache.update(*feed(0, 2))
    snapshot = cache.snapshot(1)
    assert snapshot is not None
    cache.free()
    mx.eval(snapshot.read())
    gc.collect()
    assert mx.get_active_memory() - before < 1 << 20
    assert see(snapshot.read()) == [1]


@BOTH
def test_k_and_v_of_another_form_are_refused(kind: str) -> None:
    cache = make(kind)
    cache.update(*feed(0, 2))
    keys, values = feed(2, 2)
    for bad in (feed(2, 2, heads=1), (keys, values[:, :, :1]), (keys[..., :2], values)):
        with pytest.raises(ValueError, match="heads"):
            cache.update(*bad)
    assert (cache.offset, see(cache.view())) == (2, [0, 1])


def test_merge_refuses_what_is_not_adjacent() -> None:
    cache = KVCache()
    cache.update(*feed(0, 4))
    with pytest.raises(ValueError, match=r"\[0, 4\) and \[3, 4\) are not adjacent"):
        cache.merge(cache.snapshot(0), cache.snapshot(3))


def test_single_tokens_never_move_a_full_ring() -> None:
    cache = RotatingCache(16, step=4)
    for number in range(16):
        cache.update(*feed(number))
    capacity = cache.memory.capacity
    for number in range(16, 100):
        keys, values = cache.update(*feed(number))
        assert see((keys, values)) == list(range(number - 15, number + 1))
    assert cache.memory.capacity == capacity


def test_a_state_refuses_other_arrays_and_a_write_across_a_capture() -> None:
    cache = StateCache((1, 2, 4), (1, 2, 4, 3))
    conv, delta = cache.read()
    cache.prepare([2])
    assert cache.boundaries(3) == [2, 1]
    with pytest.raises(ValueError, match="offset 2 is scheduled for capture"):
        cache.write(conv, delta, 3)
    with pytest.raises(ValueError, match="delta is"):
        cache.write(conv, delta.astype(mx.float16), 1)
    assert cache.offset == 0
