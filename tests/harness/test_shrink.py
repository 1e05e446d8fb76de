"""Shrinking: it reaches what a person would write, and stops in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.execution.shrink import Shrinker, get_simpler, make_busy_clock
from lockstep.harness.programs.generate.drawer import Drawer, RandomSource
from lockstep.harness.programs.program import Program, trace
from lockstep.impl.shared.operations import CONFIG, OPERATIONS

Make = Callable[..., Program]
Fails = Callable[[Program], bool]


def draw_failing(kind: str, fails: Fails, seed: int) -> Program:
    declared = Kind(OPERATIONS[kind], CONFIG[kind])
    drawer = Drawer("layer", kind, declared, ("float32", "bfloat16"))
    source = RandomSource(seed)
    while True:
        program = drawer.draw(source)
        if fails(program):
            return program


def shrink(program: Program, fails: Fails) -> tuple[list[dict[str, Any]], Shrinker]:
    shrinker = Shrinker(program, fails, 20)
    small = shrinker.shrink()
    assert fails(small)
    return small.to_json()["ops"], shrinker


def trims_two_of_five(program: Program) -> bool:
    """Some trim takes two tokens or more from a cache that has five or more."""
    answers = zip(program.ops, trace(program), strict=True)
    return any(
        op["op"] == "trim" and answer["trimmed"] >= 2
        and answer["trimmed"] + answer["offset"] >= 5
        for op, answer in answers
    )  # fmt: skip


def comes_back(program: Program) -> bool:
    """A snapshot of two tokens or more is restored into an empty cache."""
    offsets: dict[str, int] = {}
    for op, answer in zip(program.ops, trace(program), strict=True):
        if op["op"] == "clone":
            offsets[op["into"]] = offsets.get(op["cache"], 0)
        if "offset" not in answer:
            continue
        before = offsets.get(op["cache"], 0)
        offsets[op["cache"]] = answer["offset"]
        if op["op"] == "restore" and before == 0 and answer["offset"] > 1:
            return True
    return False


def wraps_and_chunks(program: Program) -> bool:
    """An update of several tokens after the ring has wrapped."""
    window, offset = program.config["window"], 0
    for op, answer in zip(program.ops, trace(program), strict=True):
        if op.get("cache") == "a" and "offset" in answer:
            if op["op"] == "update" and op["length"] > 1 and offset > window:
                return True
            offset = answer["offset"]
    return False


@pytest.mark.parametrize("seed", range(4))
def test_a_trim(seed: int) -> None:
    program = draw_failing("kv", trims_two_of_five, seed)
    ops, shrinker = shrink(program, trims_two_of_five)
    assert ops == [{"op": "update", "length": 5}, {"op": "trim", "count": 2}]
    assert shrinker.runs < 300


@pytest.mark.parametrize("seed", range(4))
def test_a_snapshot_that_is_restored(seed: int) -> None:
    """An empty cache is had by free, or by taking another; names that are left are the
    first."""
    ops, shrinker = shrink(draw_failing("state", comes_back, seed), comes_back)
    assert len(ops) <= 4
    assert {op["length"] for op in ops if op["op"] == "update"} == {2}
    assert ops[-1]["op"] == "restore"
    assert ops[-1]["snapshot"] == "s0"
    assert shrinker.runs < 300


@pytest.mark.parametrize("seed", range(4))
def test_the_window_shrinks_too(seed: int) -> None:
    program = draw_failing("rotating", wraps_and_chunks, seed)
    ops, shrinker = shrink(program, wraps_and_chunks)
    assert shrinker.best.config["window"] == 1
    assert ops == [{"op": "update", "length": 2}, {"op": "update", "length": 2}]


def test_a_config_that_does_not_matter_ends_plain(make: Make) -> None:
    """A person reads the fields that stand in a file as those that are needed."""
    program = make(
        {"op": "update", "length": 3},
        heads=3, key_dim=8, value_dim=6, step=8, dtype="float16", mask_padding=4,
    )  # fmt: skip
    small = Shrinker(program, lambda candidate: bool(candidate.ops), 10).shrink()
    assert small.to_json()["config"] == {"kind": "kv"}


def test_a_config_that_matters_stays(make: Make) -> None:
    program = make({"op": "update", "length": 3}, heads=3, step=8, dtype="bfloat16")

    def fails(candidate: Program) -> bool:
        return candidate.config["heads"] > 1 and candidate.config["dtype"] == "bfloat16"

    config = Shrinker(program, fails, 10).shrink().config
    assert (config["heads"], config["dtype"]) == (2, "bfloat16")


def test_names_end_in_the_order_of_their_appearance(make: Make) -> None:
    ops = [
        {"op": "update", "length": 1, "cache": "c"},
        {"op": "snapshot", "from": 0, "into": "s4", "cache": "c"},
        {"op": "snapshot", "from": 0, "into": "s2", "cache": "c"},
        {"op": "restore", "snapshot": "s4", "target": 1},
    ]
    program = make(*ops)
    ends = [*map(frozenset, trace(program))]

    def fails(candidate: Program) -> bool:
        caches = [op["cache"] for op in candidate.ops]
        names = [op.get("into") for op in candidate.ops[1:3]]
        same = len({*caches[:3]}) == 1 and caches[0] != caches[-1] and len({*names}) == 2
        return same and ends == [*map(frozenset, trace(candidate))]

    small = Shrinker(program, fails, 10).shrink().to_json()["ops"]
    assert [op.get("cache") for op in small] == ["b", "b", "b", None]
    assert [small[1]["into"], small[2]["into"]] == ["s0", "s1"]
    assert small[3]["snapshot"] in ("s0", "s1", None)


@pytest.mark.parametrize(
    ("value", "schema", "simpler"),
    [
        (7, {"minimum": 1}, [1, 2, 3, 4, 6]),
        (1, {"minimum": 1}, []),
        (5, {"minimum": 0, "default": 9}, [9, 0, 1, 2, 3, 4]),
        (-3, {"minimum": -9}, [0]),
        ("b", {"default": "a"}, ["a"]),
        ("a", {"default": "a"}, []),
        ([4, 5], {}, [[5], [4], [3, 5]]),
        (["s0", "s1"], {}, [["s1"], ["s0"]]),
        (False, {"default": True}, [True]),
        (None, {"default": None}, []),
    ],
)
def test_simpler_values(value: Any, schema: dict[str, Any], simpler: list[Any]) -> None:
    assert get_simpler(value, schema) == simpler


def test_nothing_is_tried_twice(make: Make) -> None:
    seen: list[str] = []

    def fails(candidate: Program) -> bool:
        seen.append(candidate.digest())
        return len(candidate.ops) > 3

    Shrinker(make(*[{"op": "update", "length": 2}] * 9), fails, 10).shrink()
    assert len(seen) == len(set(seen))


def test_it_stops_in_time_and_with_what_still_fails(make: Make) -> None:
    def fails(candidate: Program) -> bool:
        time.sleep(0.02)
        return sum(op["length"] for op in candidate.ops) > 30

    started = time.monotonic()
    small = Shrinker(make(*[{"op": "update", "length": 2}] * 60), fails, 0.3).shrink()
    assert time.monotonic() - started < 1
    assert 30 < sum(op["length"] for op in small.ops) < 120


def test_it_stops_in_time_when_the_program_is_long(make: Make) -> None:
    """To think about candidates takes time too, when there are thousands."""
    program = make(*[{"op": "update", "length": 1}, {"op": "trim", "count": 1}] * 750)
    started = time.monotonic()
    Shrinker(program, lambda candidate: False, 0.2).shrink()
    assert time.monotonic() - started < 2


def test_a_busy_machine_has_more_time_but_not_for_ever() -> None:
    clock = make_busy_clock()
    time.sleep(0.4)
    assert 0.1 <= clock() < 0.3
    started = time.process_time()
    while time.process_time() - started < 0.4:
        pass
    assert clock() >= 0.4
