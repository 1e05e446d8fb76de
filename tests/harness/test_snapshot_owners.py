"""A snapshot is closed through the cache that made it, and a step that closes one says
so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.execution.executor import run
from lockstep.harness.workers.registry import load
from tests.harness.building import draw_some, make, update
from tests.harness.changing import change_caches


def own_snapshots(cache: Any, owners: dict[int, Any], close: Any = None) -> Any:
    """Lets our cache close only snapshots that it made itself."""

    def note(made: Any) -> Any:
        for taken in made if type(made) is tuple else (made,):
            if taken is not None:
                owners[id(taken)] = cache, taken
        return made

    def make_noting(method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: note(method(*given))

    def close_own(taken: Any) -> None:
        if owners[id(taken)][0] is not cache:
            raise ValueError("another cache has made this snapshot")
        closes(taken)

    clone, closes = cache.clone, cache.close
    for name in ("snapshot", "split", "merge"):
        setattr(cache, name, make_noting(getattr(cache, name)))
    cache.clone = lambda: own_snapshots(clone(), owners, close)
    cache.close = close or close_own
    return cache


def open_backend(close: Any = None) -> Backend:
    backend = load("torch-cpu")
    kind = backend.contracts["layer"]["kv"]
    kind = replace(kind, operations=kind.operations - {"take", "prepare"}, held=None)

    owners: dict[int, Any] = {}
    backend = replace(backend, contracts={"layer": {"kv": kind}})
    return change_caches(backend, lambda cache: own_snapshots(cache, owners, close))


def test_a_cache_closes_its_own_snapshots_only() -> None:
    backend = open_backend()
    declared = backend.contracts["layer"]["kv"]
    for program in draw_some(150, "layer", "kv", declared):
        assert run(program, backend).divergence is None


SNAPSHOT = {"op": "snapshot", "from": 0, "into": "s0"}
IN_B = {**SNAPSHOT, "cache": "b"}


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param([update(2, cache="b"), IN_B], id="of another cache"),
        pytest.param(
            [update(2, cache="b"), IN_B, {"op": "free", "cache": "b"}],
            id="of a freed cache",
        ),
        pytest.param(
            [update(2), update(1, cache="b"), IN_B, {"op": "clone", "into": "b"}],
            id="of a cache whose name another has",
        ),
        pytest.param(
            [
                update(2, cache="b"),
                IN_B,
                {"op": "restore", "snapshot": "s0", "target": 2},
            ],
            id="of a cache that did not restore it",
        ),
    ],
)
def test_its_maker_closes_a_snapshot(ops: list[dict[str, Any]]) -> None:
    for last in ({"op": "close", "snapshot": "s0"}, SNAPSHOT):
        program = make(*ops, last, update(1))
        assert run(program, open_backend()).divergence is None


def test_a_step_that_closes_says_which_snapshot_and_why() -> None:
    def stick(taken: Any) -> None:
        raise RuntimeError("stuck")

    program = make(update(2), SNAPSHOT, SNAPSHOT)
    divergence = run(program, open_backend(stick)).divergence
    assert divergence is not None
    assert (divergence.what, divergence.operation, divergence.step) == (
        *("error", "close"),
        2,
    )
    assert divergence.message.startswith(
        "closing snapshot s0, whose name this step gives to another snapshot: raised"
        " RuntimeError: stuck, in stick (test_snapshot_owners.py:"
    )
