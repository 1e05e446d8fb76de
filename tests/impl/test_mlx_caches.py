"""Our caches on MLX: snapshots are compact."""

from __future__ import annotations

import gc

import mlx.core as mx
import pytest
from frameworks import Framework


@pytest.fixture(scope="module")
def on() -> Framework:
    return Framework("mlx")


@pytest.mark.parametrize("named", [1, 40])
def test_a_copied_snapshot_keeps_no_buffer_alive(on: Framework, named: int) -> None:
    """8 MiB of buffer, of which a snapshot names few tokens."""
    cache, before = on.layer("kv", step=1 << 17), mx.get_active_memory()
    on.append(cache, range(1 + named))
    snapshot = cache.snapshot(1)
    cache.free()
    mx.eval(snapshot.read())
    gc.collect()
    assert mx.get_active_memory() - before < 1 << 20
    assert on.hold(snapshot.read()) == [*range(1, 1 + named)]


def test_the_parts_of_a_copied_snapshot_keep_no_whole_alive(on: Framework) -> None:
    cache, count = on.layer("kv"), 1 << 16
    on.append(cache, range(count))
    snapshot, before = cache.snapshot(0), mx.get_active_memory()
    cache.free()
    left, right = cache.split(snapshot, 40)
    cache.close(right)
    del snapshot, right
    gc.collect()
    assert mx.get_active_memory() < before - (1 << 20)
    assert on.hold(left.read()) == [*range(40)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dim", [3, 4])
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_part_of_many_tokens_is_restored(
    on: Framework, dtype: str, dim: int, is_turned: bool
) -> None:
    """Whatever the size of a row in bytes, and the order of the axes in memory."""
    pair = on.feed(range(40), key_dim=dim, value_dim=dim)
    pair = tuple(on.array(on.numpy(array), dtype) for array in pair)
    if is_turned:
        turned = [mx.contiguous(array.swapaxes(1, 2)) for array in pair]
        pair = tuple(array.swapaxes(1, 2) for array in turned)
    cache, other = (on.layer("kv", step=step) for step in (40, 64))
    cache.update(*pair)
    snapshot = cache.snapshot(0)
    assert other.restore(snapshot, 20)  # from the memory of another cache
    assert on.hold(other.view()) == [*range(20)]
    cache.free()
    for target in (40, 33, 1):
        other.free()
        assert other.restore(snapshot, target)
        assert on.hold(other.view()) == [*range(target)]
    left, right = other.split(snapshot, 17)
    assert on.hold(left.read()) == [*range(17)]
    assert on.hold(right.read()) == [*range(17, 40)]


def test_a_copied_window_is_in_order(on: Framework) -> None:
    """Around the ring, without a twin: two spans."""
    cache = on.layer("rotating", window=32, step=32, twin=False)
    for number in range(45):
        on.append(cache, [number])
    snapshot = cache.snapshot(0)
    on.append(cache, [45])
    assert on.hold(snapshot.read()) == [*range(13, 45)]
