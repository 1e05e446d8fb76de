"""Failures that are kept: several of one signature, and those that are flaky."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.jobs.failures import MAX_KEPT
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.jobs.shards import Shards
from lockstep.harness.programs.program import (
    Divergence,
    Flaky,
    Program,
    load_programs,
    read_flaky,
)
from lockstep.harness.reports.console import PlainConsole, print_failures
from lockstep.harness.workers.messages import Found, RandomTask, Shown
from tests.harness.building import SMALL, make, trim, update
from tests.harness.commands import HERE, Run
from tests.harness.misbehaving import correct

SIGNATURE = "layer-kv-update-contents"
KIND = correct().contracts["layer"]["kv"]
TASK = RandomTask("mine", "layer", "kv", 3, seed=1, programs=9)


def find(program: Program, original: Program | None = None, **more: Any) -> Found:
    last = len(program.ops) - 1
    divergence = Divergence("contents", last, "update", "row 0 sees nothing")
    digest = None if original is None else original.digest()
    return Found(program.to_json(), divergence, original=digest, **more)


class Kept:
    """A check that is told of failures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pair = Pair("mine", "layer", "kv", KIND)
        outcome = Outcome(Settings(failures=folder), [self.pair])
        self.shards = Shards(outcome, [[self.pair]], lambda _: None)
        self.shards.tasks.append(TASK)

    def tell(self, *found: Found) -> None:
        for each in found:
            self.shards.take(TASK, each)

    def list_programs(self) -> list[list[str]]:
        """The operations of what is kept, and of the files, which must be the same."""
        kept = [[op["op"] for op in one.program.ops] for one in self.pair.failures]
        assert {one.path for one in self.pair.failures} == {*self.folder.rglob("*.json")}
        return kept


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    TASK.known.clear()
    return Kept(tmp_path)


LONG = make(*[update(1)] * 9)
SHORT = make(update(2))
AFTER_TRIM = make(update(2), trim(1), update(1))


def test_a_shorter_program_replaces_the_one_it_was_made_of(kept: Kept) -> None:
    kept.tell(find(LONG))
    assert kept.list_programs() == [["update"] * 9]
    kept.tell(find(SHORT, LONG, states=["empty"]))
    assert kept.list_programs() == [["update"]]
    assert TASK.known == {SIGNATURE: Shown(1, {SHORT.digest(): ["empty"]})}
    TASK.known.clear()


def test_a_program_that_cannot_be_shortened_stays(kept: Kept) -> None:
    kept.tell(find(SHORT), find(SHORT, SHORT))
    assert kept.list_programs() == [["update"]]


def tell(*pairs: Pair) -> str:
    console = PlainConsole(width=200, record=True, quiet=False, file=None)
    with console.capture() as capture:
        print_failures(console, Outcome(Settings(), list(pairs)))
    return capture.get()


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([find(LONG)], "the run ended before it was shrunk"),
        ([find(LONG), find(SHORT, LONG)], None),
        (
            [find(LONG), find(SHORT, LONG, unshrunk="the search ended")],
            "the search ended",
        ),
        ([find(LONG), find(LONG, LONG, flaky="1 of 3")], None),
    ],
)
def test_a_failure_says_that_it_may_not_be_the_shortest(
    kept: Kept, events: list[Found], why: str | None
) -> None:
    kept.tell(*events)
    (failure,) = kept.pair.failures
    assert failure.program.meta.get("unshrunk") == why
    assert load_programs(failure.path)[0].meta.get("unshrunk") == why
    said = f"  not shrunk to the end: {why}; `lockstep shrink` goes on\n"
    assert (said in tell(kept.pair)) == (why is not None)
    assert ("not shrunk" in tell(kept.pair)) == (why is not None)


def test_the_steps_of_a_failure_are_printed_once(tmp_path: Path) -> None:
    """It shows in two ways, and in a cache of another kind."""
    kept = Kept(tmp_path)
    other = Divergence("attention", 2, "update", "off by 3")
    ring = make(*AFTER_TRIM.ops, kind="rotating", window=4)
    kept.tell(find(AFTER_TRIM, AFTER_TRIM), find(SHORT, SHORT))
    kept.tell(Found(AFTER_TRIM.to_json(), other, original=AFTER_TRIM.digest()))
    rotating = Pair("mine", "layer", "rotating", KIND)
    failure = replace(kept.pair.failures[0], signature="layer-rotating-update-contents")
    rotating.failures = [replace(failure, program=replace(ring, meta={}))]
    text = tell(kept.pair, rotating)
    assert text.count("step 1: trim 1 token") == 1
    first, again = "layer-kv-update-attention", "the steps of layer-kv-update-attention"
    assert text.count(again + " above") == text.count(f"✗ mine {first}") + 1 == 2
    assert "  attention: off by 3\n" in text
    assert f"  rotating cache, window 4: {again} above\n" in text


def test_programs_of_another_form_are_kept_beside_it(kept: Kept) -> None:
    kept.tell(find(LONG), find(SHORT, LONG))
    other = make(update(9), *LONG.ops)
    kept.tell(find(other), find(AFTER_TRIM, other))
    assert kept.list_programs() == [["update"], ["update", "trim", "update"]]
    kept.tell(find(make(update(1)), LONG))  # simpler, and of the same form
    assert [one.program.ops[0]["length"] for one in kept.pair.failures] == [1, 2]
    kept.tell(*(find(make(*[update(1)] * n), LONG) for n in (5, 4, 2, 3)))
    assert len(kept.list_programs()) == MAX_KEPT == 3
    assert kept.list_programs()[:2] == [["update"], ["update"] * 2]


def test_one_flaky_program_is_kept_whole(kept: Kept) -> None:
    kept.tell(find(LONG), find(LONG, LONG, flaky="1 of 3"))
    other = make(*[update(1)] * 12)
    kept.tell(find(other, other, flaky="0 of 3"))
    (failure,) = kept.pair.failures
    assert failure.flaky == Flaky(1, 3)
    assert load_programs(failure.path)[0].meta["flaky"] == "1 of 3"
    kept.tell(find(SHORT, LONG))
    assert kept.list_programs() == [["update"]]


def test_two_mistakes_with_one_signature_are_found(run: Run, tmp_path: Path) -> None:
    command = ("check", "--backend", f"{HERE}:wrong_twice", "--programs", 200, "--json")
    ended = run(*command, "--jobs", 1, "--failures", tmp_path)
    assert ended.status == 1
    (pair,) = json.loads(ended.out)["pairs"]
    assert {one["signature"] for one in pair["failures"]} == {SIGNATURE}
    forms = [[op["op"] for op in one["program"]["ops"]] for one in pair["failures"]]
    assert sorted(forms) == [["update"], ["update", "trim", "update"]]
    assert 2 < pair["signatures"][SIGNATURE] <= 200
    assert len(list((tmp_path / SIGNATURE).glob("*.json"))) == 2
    text = run("report", tmp_path, "--format", "markdown").out
    assert text.count("lockstep replay") == 2
    assert text.count(f"{pair['signatures'][SIGNATURE]} programs fail with this") == 2


# --- failures that do not come back -----------------------------------------------------


def test_a_flaky_failure_is_not_called_fixed(run: Run, tmp_path: Path) -> None:
    backend = f"{HERE}:wrong_now_and_then"
    command = ("check", "--backend", backend, "--programs", 100, "--jobs", 1)
    ended = run(*command, "--failures", tmp_path)
    assert ended.status == 1
    assert "flaky: failed once, then agreed 3 times" in ended.words
    (path,) = (tmp_path / SIGNATURE).glob("*.json")
    (program,) = load_programs(path)
    assert program.meta["flaky"] == "0 of 3"
    assert program.meta["step"] == len(program.ops) - 1
    for name in ("wrong_now_and_then", "correct"):
        again = run("replay", path, "--backend", f"{HERE}:{name}")
        assert again.status == 1
        assert again.out.startswith("FLAKY")
        assert "flaky: failed 0 of 3 now, 0 of 3 when it was found" in again.words
    shown = run("report", tmp_path, "--format", "markdown").out
    assert "flaky: failed once, then agreed 3 times" in shown


def test_a_flaky_failure_that_is_there_fails(run: Run, tmp_path: Path) -> None:
    program = {**make(update(3), **SMALL).to_json(), "meta": {"flaky": "1 of 4"}}
    path = tmp_path / "one.json"
    path.write_text(json.dumps(program))
    ended = run("replay", path, "--backend", f"{HERE}:wrong_mask_width")
    assert ended.status == 1
    said = "flaky: failed 4 of 4 now, 1 of 4 when it was found: step 0 (update)"
    assert said in ended.words


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("1 of 3", Flaky(1, 3)),
        ("3 of 3", Flaky(3, 3)),
        ("4 of 3", None),
        ("0 of 0", None),
        ("1 of 999", None),
        ("1 of 3\n", None),
        (3, None),
        (None, None),
    ],
)
def test_what_a_file_says_of_it_is_read_with_suspicion(
    said: Any, read: Flaky | None
) -> None:
    meta: Mapping[str, Any] = {"flaky": said}
    assert read_flaky(meta) == read
