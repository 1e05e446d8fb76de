"""Programs of layer caches that are too long to be drawn often: each shows a mistake that
is found by chance in one of some thousand programs only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockstep.harness.execution.executor import Run
from lockstep.harness.workers.registry import load
from lockstep.impl.faults import FAULTS
from lockstep.impl.faults.fault import make_fault
from lockstep.impl.shared.memory import Arrays, Snapshot
from tests.harness.building import make, trim, update

Ops = list[dict[str, Any]]
Parts = tuple[Snapshot | None, Snapshot | None]
Taken = list[Snapshot | None]


def views_share_scratch(cache: Any) -> None:
    """A view is gathered in the arrays of the last view of as many tokens, of whichever
    clone."""
    scratch = vars(cache).setdefault("scratch", {})
    view, clone = cache.view, cache.clone

    def gather() -> Arrays | None:
        arrays = view()
        if arrays is None:
            return None
        copied = cache.memory.copy(0, cache.offset)
        gathered: Arrays = scratch.setdefault(cache.offset, copied)
        for array, new in zip(gathered, arrays, strict=True):
            array[:] = new
        return gathered

    def share() -> Any:
        other = clone()
        other.scratch = scratch
        return other

    cache.view, cache.clone = gather, share


def cut_counted_from_zero(cache: Any) -> None:
    """A copied snapshot that does not begin at 0 is cut too far behind."""
    split, cut = cache.split, cache.cut

    def split_late(snapshot: Snapshot, at: int) -> Parts:
        cache.cut = lambda arrays, place: cut(arrays, place + snapshot.begin)
        parts: Parts = split(snapshot, at)
        return parts

    cache.split = split_late


def merge_in_memory_of_parent(cache: Any) -> None:
    """Two snapshots that were not copied yet are taken to be in one memory, though they
    are of two caches."""
    merge = cache.merge

    def merge_lazily(parent: Any, child: Any) -> Any:
        if parent and child and parent.memory and child.memory:
            child.memory = parent.memory
        return merge(parent, child)

    cache.merge = merge_lazily


def captured_again(cache: Any) -> None:
    """A cache that went back captures once more where it has captured before."""
    captures = cache.captures
    reach = captures.reach

    def reach_again(before: int, after: int, take: Callable[..., Snapshot]) -> None:
        for offset in list(captures.captured):
            if before < offset <= after:
                captures.captured.pop(offset).close()
        reach(before, after, take)

    captures.reach = reach_again


def taken_as_they_came(cache: Any) -> None:
    """Captures are returned in the order in which they were made: another one, if the
    cache was restored past an offset and came back to it."""
    take, captures = cache.take, cache.captures

    def take_in_turn() -> Taken:
        made = iter(list(captures.captured.values()))
        return [taken and next(made) for taken in take()]

    cache.take = take_in_turn


CLONE, VIEW = {"op": "clone", "into": "b"}, {"op": "view"}

VIEWS: Ops = [CLONE, update(1), update(1, cache="b"), VIEW, {**VIEW, "cache": "b"}]
"""What was viewed of the first is that of the second now."""

CUT: Ops = [
    update(3),
    {"op": "snapshot", "from": 1, "into": "s"},
    trim(1),
    update(1),  # the snapshot is copied
    {"op": "split", "snapshot": "s", "at": 2, "parent": "left", "child": "right"},
    {"op": "restore", "snapshot": "right", "target": 3},
    VIEW,
]

MERGED: Ops = [
    update(1),
    {"op": "snapshot", "from": 0, "into": "s"},
    CLONE,
    update(1, cache="b"),
    {"op": "snapshot", "from": 1, "into": "t", "cache": "b"},
    {"op": "merge", "parent": "s", "child": "t", "into": "u"},
    {"op": "restore", "snapshot": "u", "target": 2},
    VIEW,
]

AGAIN: Ops = [
    {"op": "prepare", "offsets": [1]},
    update(1),
    trim(1),
    update(1),
    {"op": "take", "into": ["s"]},
    {"op": "restore", "snapshot": "s", "target": 1},
    VIEW,
]

TAKEN: Ops = [
    update(2),
    {"op": "snapshot", "from": 0, "into": "s"},
    {"op": "prepare", "offsets": [1, 3], "cache": "b"},
    {"op": "restore", "snapshot": "s", "target": 2, "cache": "b"},  # past 1
    update(1, cache="b"),
    trim(3, cache="b"),
    update(1, cache="b"),
    {"op": "take", "into": ["t", "u"], "cache": "b"},
]

PROGRAMS = [
    (views_share_scratch, "kv", VIEWS, "alias"),
    (cut_counted_from_zero, "kv", CUT, "contents"),
    (merge_in_memory_of_parent, "kv", MERGED, "contents"),
    (captured_again, "rotating", AGAIN, "contents"),
    (taken_as_they_came, "kv", TAKEN, "result"),
]


@pytest.mark.parametrize("framework", ["torch", "mlx"])
@pytest.mark.parametrize(("change", "kind", "ops", "what"), PROGRAMS)
def test_program_shows_mistake(
    change: Callable[[Any], None],
    kind: str,
    ops: Ops,
    what: str,
    framework: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = change.__name__
    fault = make_fault(change, kind, len(ops))
    monkeypatch.setitem(FAULTS, name.replace("_", "-"), fault)
    config = {"window": 2} if kind == "rotating" else {}
    program = make(*ops, kind=kind, **config)

    correct = Run(program, load(f"{framework}-cpu"), every=True).run()
    assert (correct.divergence, correct.skipped) == (None, 0)
    planted = load(f"lockstep.impl.faults.{framework}:{name}")
    divergence = Run(program, planted, every=True).run().divergence
    assert divergence is not None
    assert (divergence.what, divergence.step) == (what, len(ops) - 1)
