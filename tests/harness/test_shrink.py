"""Shrinking: what is simpler, what is reached, and that it stops in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.prefix import PREFIX
from lockstep.harness.execution.causes import find_likely, is_likely_one
from lockstep.harness.execution.executor import Result
from lockstep.harness.execution.record import Record
from lockstep.harness.execution.shrink import (
    Shrinker,
    get_domain_steps,
    get_merged,
    get_rank,
    get_simpler,
    get_simpler_configs,
    get_simpler_fields,
    make_busy_clock,
)
from lockstep.harness.programs.program import Divergence, Program, parse_program, trace
from lockstep.harness.workers.runner import Runner
from lockstep.impl.shared.operations import CONFIG
from tests.harness.building import (
    KINDS,
    declare_all,
    draw,
    draw_some,
    forward,
    make,
    trim,
    update,
)
from tests.harness.misbehaving import correct

Fails = Callable[[Program], bool]
DTYPES = ("float32", "bfloat16")

every_seed = pytest.mark.parametrize("seed", range(2))


def shrink(contract: str, kind: str, declared: Kind, fails: Fails, seed: int) -> Program:
    """The first program that fails, shrunk. Programs that planted faults fail are shrunk
    in `tests/conformance`."""
    program = next(filter(fails, draw(contract, kind, declared, seed, DTYPES)))
    shrinker = Shrinker(program, fails, 20)
    small = shrinker.shrink()
    assert fails(small)
    assert parse_program(small.to_json(), "here") == small
    assert shrinker.runs < (300 if contract == "layer" else 1000)
    return small


def get_ops(program: Program) -> list[dict[str, Any]]:
    """As a file has them."""
    ops: list[dict[str, Any]] = program.to_json()["ops"]
    return ops


def trims_two_of_five(program: Program) -> bool:
    """Some trim takes two tokens or more from a cache that has five or more."""
    answers = [a for a in trace(program) if a.get("trimmed", 0) >= 2]
    return any(answer["trimmed"] + answer["offset"] >= 5 for answer in answers)


@every_seed
def test_a_trim(seed: int) -> None:
    declared = Kind(frozenset(CONTRACTS["layer"].list_operations("kv")), CONFIG["kv"])
    small = shrink("layer", "kv", declared, trims_two_of_five, seed)
    assert get_ops(small) == [update(5), trim(2)]


def reuses_two(program: Program) -> bool:
    """Some request reuses two tokens or more."""
    return any(
        len(op["tokens"]) - len(answer["remaining"]) >= 2
        for op, answer in zip(program.ops, trace(program), strict=True)
        if op["op"] == "begin" and "remaining" in answer
    )


@every_seed
@pytest.mark.parametrize("kind", PREFIX.kinds)
def test_a_reuse_needs_one_request_before(kind: str, seed: int) -> None:
    declared = declare_all("prefix", kind, config={"interval": (None, 2)})
    small = shrink("prefix", kind, declared, reuses_two, seed)
    names = [op["op"] for op in small.ops]
    if kind == "slots" and small.config["several_users"]:  # a fork needs no close
        assert names == ["begin", "feed", "begin"]
    else:
        assert names == ["begin", "feed", "close", "begin"]
    assert [len(op["tokens"]) for op in small.ops if op["op"] == "begin"] == [2, 3]
    assert small.config["layers"] == ["causal" if kind == "slots" else "kv"]
    assert {token for op in small.ops for token in op.get("tokens", ())} == {1}


LAYER = {"heads": 3, "key_dim": 8, "value_dim": 6, "step": 8, "mask_padding": 4}
PASS = {"sequences": 7, "heads": 3, "cache_padding": 4}


@pytest.mark.parametrize(
    ("program", "simpler"),
    [
        (make(update(3), dtype="float16", **LAYER), make(update(1))),
        (
            make(forward([41, 900], [3, 5]), contract="unified", kind="causal", **PASS),
            make(forward([0], [0]), contract="unified", kind="causal"),
        ),
    ],
)
def test_a_config_without_effect_ends_plain(program: Program, simpler: Program) -> None:
    """A person reads the fields that stand in a file as those that are needed."""
    small = Shrinker(program, lambda candidate: bool(candidate.ops), 10).shrink()
    assert small.to_json() == simpler.to_json()


def test_a_config_that_matters_stays() -> None:
    program = make(update(3), heads=3, step=8, dtype="bfloat16")

    def fails(candidate: Program) -> bool:
        return candidate.config["heads"] > 1 and candidate.config["dtype"] == "bfloat16"

    config = Shrinker(program, fails, 10).shrink().config
    assert (config["heads"], config["dtype"]) == (2, "bfloat16")


def test_names_end_in_the_order_of_their_appearance() -> None:
    program = make(
        update(1, cache="c"),
        {"op": "snapshot", "from": 0, "into": "s4", "cache": "c"},
        {"op": "snapshot", "from": 0, "into": "s2", "cache": "c"},
        {"op": "restore", "snapshot": "s4", "target": 1},
    )
    ends = [*map(frozenset, trace(program))]

    def fails(candidate: Program) -> bool:
        caches = [op["cache"] for op in candidate.ops]
        names = [op.get("into") for op in candidate.ops[1:3]]
        same = len({*caches[:3]}) == 1 and caches[0] != caches[-1] and len({*names}) == 2
        return same and ends == [*map(frozenset, trace(candidate))]

    small = get_ops(Shrinker(program, fails, 10).shrink())
    assert [op.get("cache") for op in small] == ["b", "b", "b", None]
    assert [small[1]["into"], small[2]["into"]] == ["s0", "s1"]
    assert small[3]["snapshot"] in ("s0", "s1", None)


@pytest.mark.parametrize("value", [65_535, [65_535]])
def test_a_large_number_comes_down_in_few_runs(value: Any) -> None:
    runs = 0

    def fails(candidate: Any) -> bool:
        nonlocal runs
        runs += 1
        numbers = candidate if isinstance(candidate, list) else [candidate]
        return max(numbers, default=0) >= 40_001

    while (lower := next(filter(fails, get_simpler(value, {})), None)) is not None:
        value = lower
    assert value in (40_001, [40_001])
    assert runs < 150


PASSES = (get_simpler_configs, get_merged, get_domain_steps, get_simpler_fields)


@pytest.mark.parametrize(("contract", "kind"), KINDS)
def test_whatever_is_left_of_misuse_can_be_made_simpler(contract: str, kind: str) -> None:
    """Most of what is proposed is illegal; but it is a program, or is left out before it
    runs."""
    declared = declare_all(contract, kind, refuses=True)
    for whole in draw_some(12, contract, kind, declared, 11, misuse=1):
        for op in whole.ops:
            program = replace(whole, ops=[op])
            candidates = [one for propose in PASSES for one in propose(program)]
            renamed = replace(program, ops=program.rules.rename(program.ops))
            for candidate in [renamed, *candidates]:
                assert CONTRACTS[contract].why_illegal(candidate.config) is None
                assert len(candidate.ops) <= 1


def test_nothing_is_tried_twice() -> None:
    seen: list[str] = []

    def fails(candidate: Program) -> bool:
        seen.append(candidate.digest())
        return len(candidate.ops) > 3

    Shrinker(make(*[update(2)] * 9), fails, 10).shrink()
    assert len(seen) == len(set(seen))


def test_it_stops_in_time_and_with_what_still_fails() -> None:
    """To think about candidates takes time too, when there are thousands."""

    def fails(candidate: Program) -> bool:
        return sum(op["length"] for op in candidate.ops) > 30

    clock = map(float, count())
    shrinker = Shrinker(make(*[update(2)] * 60), fails, 9, clock=lambda: next(clock))
    assert 30 < sum(op["length"] for op in shrinker.shrink().ops) < 120
    assert shrinker.runs < 10
    assert shrinker.why_unshrunk() == "the search ended after 9 s"
    shrinker = Shrinker(make(*[update(2)] * 60), fails, 9)
    assert sum(op["length"] for op in shrinker.shrink().ops) == 31
    assert shrinker.why_unshrunk() == ""


def test_a_busy_machine_has_more_time_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = {"process_time": 5.0, "monotonic": 70.0}
    for name in times:
        monkeypatch.setattr(time, name, lambda name=name: times[name])
    clock = make_busy_clock()
    times["monotonic"] += 4
    assert clock() == 1
    times["process_time"] += 3
    assert clock() == 3


make_trie = partial(make, contract="prefix", kind="trie")


def limit(number: int) -> dict[str, Any]:
    return {"op": "limit", "bytes": number}


def talk(*tokens: int) -> Program:
    return make_trie({"op": "begin", "tokens": [*tokens]}, {"op": "feed", "count": 2})


ORDER = [
    (make(update(9)), make(update(1), trim(1))),  # operations first
    (make(update(1), trim(2), heads=4), make(update(2), trim(1))),  # then tokens
    (make(update(1), trim(1), heads=4), make(update(1), trim(2))),  # then numbers
    (make(update(1), heads=4), make(update(1, cache="b"))),  # then caches
    (make(update(1), dtype="float16"), make(update(1), heads=2)),
    (make(update(1), step=3), make(update(1), dtype="float16")),
    (make(update(1), step=300), make(update(1), step=3, key_dim=6)),
    (make(update(1), step=3), make(update(1), step=300)),
    (talk(5, 5), talk(7, 9)),  # not which tokens, but how many different ones
    # bytes come last: they double with the dtype, which must not hold it where it is
    (make_trie(limit(64)), make_trie(limit(32), dtype="float16")),
    (make_trie(limit(32)), make_trie(limit(64))),
]


@pytest.mark.parametrize(("better", "worse"), ORDER)
def test_what_counts_first(better: Program, worse: Program) -> None:
    assert get_rank(better) < get_rank(worse)


def test_names_do_not_count() -> None:
    assert get_rank(talk(7, 9)) == get_rank(talk(1, 2))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["kv", "rotating", "state"])
def test_a_result_never_ranks_worse(kind: str, seed: int) -> None:
    declared = Kind(frozenset(CONTRACTS["layer"].list_operations(kind)), CONFIG[kind])
    program = next(draw("layer", kind, declared, seed, ("float32", "bfloat16")))
    seen = [get_rank(program)]

    def fails(candidate: Program) -> bool:
        """Whatever: about one in three."""
        chosen = int(candidate.digest(), 16) % 3 == 0
        if chosen:
            seen.append(get_rank(candidate))
        return chosen

    small = Shrinker(program, fails, 5).shrink()
    assert seen == sorted(seen, reverse=True)
    assert get_rank(small) == seen[-1]


Shows = Callable[[Program], str | None]
KNOWN = {"update": update(1), "clone": {"op": "clone", "into": "b"}, "trim": trim(1)}


def named(names: str) -> Program:
    return make(*(KNOWN.get(name, {"op": name}) for name in names.split()))


def show(bugs: Mapping[str, str]) -> Shows:
    """steps → the operation that is wrong where a program has them, in this order."""

    def shows(program: Program) -> str | None:
        for steps, last in bugs.items():
            rest = iter([op["op"] for op in program.ops])
            if all(name in rest for name in steps.split()):
                return last
        return None

    return shows


ONE, OTHER = "update clone view", "update clone state"
DIFFERENT = "trim size state"
SHOWS_CLONE = show({ONE: "view", OTHER: "state"})
SHOWS_TWO = show({ONE: "view", DIFFERENT: "state"})
SHOWS_STATE = show({ONE: "view", "update state": "state"})
SHOWS_ALL = show({"update view": "view", "update state": "state"})


@pytest.mark.parametrize(
    ("left", "right", "last", "shows", "is_one"),
    [
        (ONE, OTHER, "state", SHOWS_CLONE, True),  # seen by two operations
        (ONE, DIFFERENT, "state", SHOWS_TWO, False),
        (DIFFERENT, ONE, "view", SHOWS_TWO, False),
        (ONE, "update size state", "state", SHOWS_STATE, False),  # not all are needed
        ("update view", "update state", "state", SHOWS_ALL, False),  # leads anywhere
    ],
)
def test_the_same_steps_are_likely_one_bug(
    left: str, right: str, last: str, shows: Shows, is_one: bool
) -> None:
    assert shows(named(right)) == last
    assert is_likely_one(named(left), named(right), last, shows) == is_one


def test_failures_are_clustered() -> None:
    one, other = (named(ONE), "view"), (named(OTHER), "state")
    different, short = (named(DIFFERENT), "state"), (named("trim size"), "size")
    assert find_likely([one, other], SHOWS_CLONE) == {1: 0}
    assert find_likely([one, different], SHOWS_TWO) == {}
    assert find_likely([short, one, other], SHOWS_CLONE) == {2: 1}


OPS = 12


@pytest.mark.parametrize("failing", [2, 3, 5, 8, 12, 19, 20, 39])
def test_a_step_that_is_reported_is_a_step_of_the_shrunk_program(
    failing: int, tmp_path: Path
) -> None:
    """The backend fails in so many runs, at the last step, and in no later run."""
    program, runs = make(*[update(1)] * OPS), 0
    record = Record(tmp_path / "record.json")

    class Sometimes(Runner):
        def run(self, program: Program, *given: Any, **more: Any) -> Result:
            nonlocal runs
            runs += 1
            last = len(program.ops) - 1
            if runs > failing or last < 0:
                return Result(steps=1)
            return Result(divergence=Divergence("contents", last, "update", "m"))

    found = Divergence("contents", OPS - 1, "update", "m")
    runner = Sometimes(record, lambda event: None)
    small = runner.shrink(program, found, correct(), 5.0)
    record.close()
    assert 0 <= small.divergence.step < len(small.program.ops)
    assert (small.flaky is not None) == (len(small.program.ops) == OPS)
    assert failing < 20 or small.flaky is None


@pytest.mark.parametrize(
    ("outcomes", "flaky"),
    [
        ([True, False, True, True], "2 of 3"),
        ([True, True, *[False] * 99], "0 of 3"),
        ([True] * 99, "3 of 3"),
    ],
)
def test_a_flaky_program_did_not_fail_in_each_run_that_is_counted(
    outcomes: list[bool], flaky: str, tmp_path: Path
) -> None:
    """Of the whole program; a shorter program fails in its first run only."""
    program = make(*[update(1)] * OPS)
    results, met = iter(outcomes), set[str]()
    record = Record(tmp_path / "record.json")

    class Sometimes(Runner):
        def run(self, program: Program, *given: Any, **more: Any) -> Result:
            last = len(program.ops) - 1
            fails = next(results) if last == OPS - 1 else program.digest() not in met
            met.add(program.digest())
            divergence = Divergence("contents", last, "update", "m")
            return Result(divergence=divergence if fails and last >= 0 else None)

    found = Divergence("contents", OPS - 1, "update", "m")
    runner = Sometimes(record, lambda event: None)
    small = runner.shrink(program, found, correct(), 5.0)
    record.close()
    assert str(small.flaky) == flaky
    assert small.flaky is not None
    is_steady = (
        "but not in each earlier run of it or of shorter programs"
        in small.flaky.describe()
    )
    assert is_steady == (flaky == "3 of 3")
