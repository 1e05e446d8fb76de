"""The recurrent state on torch: what a write must be, and when a snapshot copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lockstep.impl.torch.state import StateCache

CONV, DELTA = (1, 3, 4), (1, 2, 4, 3)
BYTES = 4 * (3 * 4 + 2 * 4 * 3)


def make(number: float, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A state full of `number`."""
    return torch.full(CONV, number, dtype=dtype), torch.full(DELTA, float(number))


def see(pair: Any) -> float:
    conv, delta = pair
    assert (conv == conv[0, 0, 0]).all()
    assert (delta == conv[0, 0, 0]).all()
    return float(conv[0, 0, 0])


@pytest.fixture
def cache() -> StateCache:
    """At offset 3, full of sevens."""
    cache = StateCache(CONV, DELTA)
    cache.write(*make(7), 3)
    return cache


def test_a_fresh_state_is_zeros_in_its_dtypes() -> None:
    conv, delta = StateCache(CONV, DELTA, torch.bfloat16).read()
    assert (conv.dtype, delta.dtype) == (torch.bfloat16, torch.float32)
    assert (tuple(conv.shape), tuple(delta.shape)) == (CONV, DELTA)
    assert not conv.any()
    assert not delta.any()


def test_a_write_moves_nothing(cache: StateCache) -> None:
    places = [buffer.data_ptr() for buffer in cache.read()]
    cache.write(*make(8), 1)
    assert [buffer.data_ptr() for buffer in cache.read()] == places
    assert see(cache.read()) == 8


CONV_8, DELTA_8 = make(8)


@pytest.mark.parametrize(
    ("conv", "delta", "words"),
    [
        (torch.zeros(2, 3, 4), DELTA_8, r"conv is torch.float32 of shape \[2, 3, 4\]"),
        (torch.zeros(1, 2, 4), DELTA_8, "conv is"),
        (torch.zeros(1, 1, 1), DELTA_8, "conv is"),
        (CONV_8.half(), DELTA_8, "conv is torch.float16"),
        (CONV_8, DELTA_8.half(), "delta is torch.float16"),
        (CONV_8, DELTA_8.double(), "delta is torch.float64"),
        (CONV_8, DELTA_8[:, :1], "delta is"),
        (CONV_8, DELTA_8[0], "delta is"),
    ],
)
def test_a_write_of_another_shape_or_dtype_changes_nothing(
    cache: StateCache, conv: Any, delta: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        cache.write(conv, delta, 2)
    assert (cache.offset, see(cache.read())) == (3, 7)


@pytest.mark.parametrize("length", [0, -1])
def test_a_write_has_a_length(cache: StateCache, length: int) -> None:
    with pytest.raises(ValueError, match="less than 1"):
        cache.write(*make(8), length)
    with pytest.raises(ValueError, match="less than 1"):
        cache.boundaries(length)
    assert (cache.offset, see(cache.read())) == (3, 7)


def test_a_write_across_a_capture_is_refused(cache: StateCache) -> None:
    cache.prepare([5, 8])
    assert cache.boundaries(6) == [2, 3, 1]
    assert cache.boundaries(5) == [2, 3]
    assert cache.boundaries(2) == [2]
    with pytest.raises(ValueError, match="offset 5 is scheduled for capture"):
        cache.write(*make(8), 3)
    assert (cache.offset, see(cache.read())) == (3, 7)
    for number, length in ((8, 2), (9, 3), (10, 1)):
        cache.write(*make(number), length)
    first, second = cache.take()
    assert first is not None
    assert second is not None
    assert (see(first.read()), see(second.read())) == (8, 9)
    assert (first.begin, first.end, second.begin, second.end) == (3, 5, 5, 8)


def test_trim(cache: StateCache) -> None:
    assert (cache.trim(2), cache.offset) == (0, 3)
    with pytest.raises(ValueError, match="count -1 is negative"):
        cache.trim(-1)


def test_prepare_refuses(cache: StateCache) -> None:
    for offsets in ([5, 4], [4, 4], [2]):
        with pytest.raises(ValueError, match="prepare"):
            cache.prepare(offsets)
    cache.prepare([9])
    with pytest.raises(ValueError, match="not taken yet"):
        cache.prepare([9])


@pytest.mark.parametrize("change", ["write", "restore", "free"])
def test_a_snapshot_copies_once_before_it_would_change(
    cache: StateCache, change: str
) -> None:
    other = StateCache(CONV, DELTA)
    other.write(*make(5), 2)
    snapshot, foreign = cache.snapshot(0), other.snapshot(0)
    assert snapshot is not None
    copied: list[int] = []
    snapshot.on_copy = copied.append
    assert (snapshot.nbytes, see(snapshot.read())) == (0, 7)
    if change == "write":
        cache.write(*make(8), 1)
    elif change == "restore":
        assert cache.restore(foreign, 2)
        assert (cache.offset, see(cache.read())) == (2, 5)
    else:
        cache.free()
        assert (cache.offset, see(cache.read())) == (0, 0)
    assert (snapshot.nbytes, copied) == (BYTES, [BYTES])
    cache.write(*make(9), 1)
    assert (see(snapshot.read()), copied) == (7, [BYTES])
    assert cache.restore(snapshot, 3)
    assert (cache.offset, see(cache.read())) == (3, 7)


def test_a_refused_restore_copies_nothing(cache: StateCache) -> None:
    snapshot = cache.snapshot(0)
    assert snapshot is not None
    assert not cache.restore(snapshot, 2)
    assert not cache.restore(None, 2)
    assert cache.restore(snapshot, 3)
    assert (snapshot.nbytes, cache.offset) == (0, 3)


def test_a_clone_has_a_state_of_its_own(cache: StateCache) -> None:
    copy = cache.clone()
    cache.write(*make(8), 1)
    copy.write(*make(6), 2)
    assert (cache.offset, see(cache.read())) == (4, 8)
    assert (copy.offset, see(copy.read())) == (5, 6)


def test_closing_twice(cache: StateCache) -> None:
    snapshot = cache.snapshot(0)
    assert snapshot is not None
    cache.close(snapshot)
    with pytest.raises(ValueError, match="closed before"):
        cache.close(snapshot)
    with pytest.raises(ValueError, match="has been closed"):
        cache.restore(snapshot, 3)
    assert (cache.offset, see(cache.read())) == (3, 7)
