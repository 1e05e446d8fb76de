"""Our caches on MLX: what is handed out is a value, and snapshots are compact."""

from __future__ import annotations

import gc

import mlx.core as mx
import pytest
from frameworks import Framework


@pytest.fixture(scope="module")
def on() -> Framework:
    return Framework("mlx")


@pytest.mark.parametrize("kind", ["kv", "rotating"])
def test_what_was_handed_out_never_changes(on: Framework, kind: str) -> None:
    cache = on.layer(kind, step=4)
    held = [cache.update(*on.feed([number])) for number in range(3)]
    cache.trim(3)
    for number in range(9):
        on.append(cache, [100 + number])
    for last, pair in enumerate(held):
        assert on.hold(pair) == list(range(last + 1))


def test_a_copied_snapshot_keeps_no_buffer_alive(on: Framework) -> None:
    """8 MiB of buffer, of which a snapshot names one token."""
    cache, before = on.layer("kv", step=1 << 17), mx.get_active_memory()
    on.append(cache, [0, 1])
    snapshot = cache.snapshot(1)
    cache.free()
    mx.eval(snapshot.read())
    gc.collect()
    assert mx.get_active_memory() - before < 1 << 20
    assert on.hold(snapshot.read()) == [1]
