"""A tick says that contents were compared: a check that looked at nothing has none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend, Duty, Kind
from lockstep.harness.execution.comparisons import CONFIG_SIZES
from lockstep.harness.execution.executor import Result
from tests.harness import paging
from tests.harness.commands import CORRECT, Run
from tests.harness.misbehaving import correct

HERE = "tests.harness.test_ticks"
NEVER = Duty({"op": "schedule", "count": [1, None]}, "schedule: the engine does it")


class Silent(paging.Manager):
    """Lists nothing that can be hit."""

    def entries(self) -> Any:
        return []


def no_schedule() -> Backend:
    return paging.declare(duties=(NEVER,))


def silent() -> Backend:
    return paging.declare(Silent, tells=frozenset({"entries"}))


def talking() -> Backend:
    return paging.declare(tells=frozenset({"entries"}))


def no_update() -> Backend:
    duty = Duty({"op": "update"}, "update: the engine does it")
    backend = correct()
    kind = Kind(frozenset({"update"}), duties=(duty,))
    return replace(backend, contracts={"layer": {"kv": kind}})


def executes_nothing() -> Backend:
    return replace(correct(), execute=lambda *given: Result())


def executes_without_comparing() -> Backend:
    """Reports steps in cells, and compares nothing."""

    def execute(program: Any, every: bool, coverage: Any, *more: Any) -> Result:
        if coverage is not None:
            coverage.update(("empty", op["op"]) for op in program.ops)
        return Result(steps=len(program.ops))

    return replace(correct(), execute=execute)


def returns_none() -> Backend:
    return replace(correct(), execute=lambda *given: None)


def check(run: Run, folder: Path, name: str, *more: object) -> tuple[int, str, Any]:
    """The exit status, what was printed, and the pair in the file."""
    backend = f"{HERE}:{name}" if name in globals() else name
    ended = run("check", "--backend", backend, "--failures", folder, *more)
    (pair,) = json.loads((folder / "outcome.json").read_text())["pairs"]
    return ended.status, ended.words, pair


@pytest.mark.parametrize(
    ("name", "programs", "why"),
    [
        (
            "no_schedule",
            20,
            "schedule, run never ran, maybe because of a duty; contents: never compared",
        ),
        ("silent", 20, "entries: always empty, in "),
        ("executes_nothing", 5, "update never ran"),
        ("executes_without_comparing", 5, "update never ran; contents: never compared"),
    ],
)
def test_no_tick_without_a_look(
    run: Run, tmp_path: Path, name: str, programs: int, why: str
) -> None:
    kind = ("--kind", "paged-full") if programs == 20 else ()
    status, words, pair = check(run, tmp_path, name, "--programs", programs, *kind)
    assert status == 2
    assert "! unproven" in words and "✓" not in words
    assert f"{pair['kind']}: no tick: {why}" in words
    assert "no failure, but not all agree" in words
    assert why in "; ".join(pair["unproven"])
    report = run("report", tmp_path, "--format", "markdown").words
    assert "! unproven" in report and why in report


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        (
            *("no_schedule", "paged-full"),
            "schedule, run never ran, maybe because of a duty; contents: never compared",
        ),
        *[
            (name, "kv", "update never ran")
            for name in ("executes_nothing", "executes_without_comparing", "no_update")
        ],
    ],
)
def test_an_exploration_without_a_look_does_not_agree(
    run: Run, name: str, kind: str, why: str
) -> None:
    domain = ("--depth", 3, "--size", "tiny", "--kind", kind)
    ended = run("explore", "--backend", f"{HERE}:{name}", *domain)
    assert ended.status == 2, ended.words
    assert "! unproven" in ended.words and "agree " not in ended.words
    assert f"{kind}: no tick: {why}" in ended.words
    again = run("explore", "--backend", f"{HERE}:{name}", *domain, "--json")
    outcome = json.loads(again.out)
    assert why in "; ".join(outcome["pairs"][0]["unproven"])
    assert outcome["exit_status"] == 2


@pytest.mark.parametrize("kind", ["session", "trie"])
def test_operations_that_no_cell_counts(run: Run, tmp_path: Path, kind: str) -> None:
    """`feed` of most conversations is in no cell."""
    more = "--kind", kind, "--programs", 3
    status, _, pair = check(run, tmp_path, "torch-cpu", *more)
    assert (status, pair["unproven"]) == (0, [])
    assert pair["operations"]["feed"] > 10


@pytest.mark.parametrize("name", ["talking", CORRECT])
def test_a_tick_with_a_look(run: Run, tmp_path: Path, name: str) -> None:
    kind = ("--kind", "paged-full") if name == "talking" else ()
    status, words, pair = check(run, tmp_path, name, "--programs", 8, *kind)
    assert status == 0 and "✓ 8" in words
    assert pair["unproven"] == []
    assert pair["compared"]["contents"] > 20
    if name == CORRECT:
        assert 20 < pair["compared"]["masks"] < pair["compared"]["contents"]
    else:
        assert pair["compared"]["entries"] > 0
    assert f"{pair['kind']}: attention: never compared" in words


def test_what_a_run_covers(run: Run, tmp_path: Path) -> None:
    status, words, pair = check(run, tmp_path, CORRECT, "--programs", 40, "--jobs", 1)
    assert status == 0
    assert 0 < pair["compared"]["attention"] < 200
    assert "never compared" not in words
    assert pair["dtypes"] == {"float32": 40}
    sizes = pair["sizes"]
    assert set(sizes) == {*CONFIG_SIZES, "cache", "offset", "update", "updates"}
    assert sizes["update"] < sizes["cache"] == sizes["offset"]
    special = pair["compared"]["special numbers"]
    assert 0 < special < 10
    assert (
        f"covered up to: {sizes['heads']} heads, key_dim {sizes['key_dim']}, value_dim"
        f" {sizes['value_dim']}, {sizes['cache']:,} tokens in a cache, offset"
        f" {sizes['offset']:,}, {sizes['update']:,} tokens in an update,"
        f" {sizes['updates']} updates in a program, programs with special numbers:"
        f" {special}; float32; not checked: threads"
    ) in words


def test_an_execute_without_a_result(run: Run, tmp_path: Path) -> None:
    status, words, _ = check(run, tmp_path, "returns_none", "--programs", 5)
    assert status == 2
    assert "`execute` returned NoneType, not a Result" in words
