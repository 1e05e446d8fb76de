"""Known divergences of paged caches, whose answers decide what a program leads to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.execution.executor import Result, run
from lockstep.harness.execution.record import Record
from lockstep.harness.programs.ledger import (
    Entry,
    find_known,
    leave_out,
    list_known,
    load_ledger,
)
from lockstep.harness.workers.backend_run import tidy
from lockstep.harness.workers.messages import Agreed, Found
from lockstep.harness.workers.runner import Runner, Search
from tests.harness.building import draw_some
from tests.harness.commands import run_slice
from tests.harness.paging import GROUPS, RUN, Manager, ask, declare
from tests.harness.paging import make as program

TOKENS = [1, 1, 1]
EVICT = {"op": "evict", "count": 1}
Ops = Sequence[Mapping[str, Any]]


def open_request(name: str) -> dict[str, Any]:
    return ask("open", name, tokens=TOKENS)


COMPUTED = (open_request("a"), ask("schedule", "a"), RUN)
HIT = (*COMPUTED, open_request("b"), ask("schedule", "b"))
SHOWS = (*HIT, ask("preempt", "b"))


class Losing(Manager):
    """Loses a block of a request that is preempted after a hit."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.hits: dict[str, int] = {}

    def schedule(self, request: str, count: int) -> int | None:
        waits = self.get(request).tables is None
        start = super().schedule(request, count)
        if waits and start is not None:
            self.hits[request] = start
        return start

    def preempt(self, request: str) -> None:
        if self.hits.pop(request, 0):
            self.get(request).tables[0].pop()  # type: ignore[index]
        super().preempt(request)

    def free(self, request: str, reuse: bool) -> None:
        self.hits.pop(request, None)
        super().free(request, reuse)


class Missing(Losing):
    """Hits nothing, and so loses nothing."""

    def match(self, request: str) -> int:
        return 0


class Forgetful(Losing):
    """Says of every eviction that it was none, too many."""

    def evict(self, count: int) -> int:
        super().evict(count)
        return -1


WHEN = {"op": "preempt", "states": ["hit"]}
SIGNATURE = "paged-paged-full-preempt-references"


def write_ledger(folder: Path, when: Mapping[str, Any], ops: Ops) -> list[Entry]:
    entry = {
        "id": "lost",
        "backend": "paging",
        "kind": "paged-full",
        "operation": "preempt",
        "verdict": "bug",
        "reason": "It loses a block.",
        "link": None,
        "signature": SIGNATURE,
        "when": when,
        "program": program(*ops).to_json(),
    }
    (folder / "lost.json").write_text(json.dumps(entry))
    return load_ledger(folder, "paging")


@pytest.fixture
def known(tmp_path: Path) -> list[Entry]:
    return write_ledger(tmp_path, WHEN, SHOWS)


def run_on(
    cache: type[Manager], avoid: Sequence[Entry], *ops: Mapping[str, Any]
) -> Result:
    return run(program(*ops), declare(cache), avoid=avoid)


def get_what(result: Result) -> str | None:
    return result.divergence and result.divergence.what


# --- one run ----------------------------------------------------------------------------


def test_a_run_goes_on_without_what_is_known(known: list[Entry]) -> None:
    ops = (*SHOWS, ask("preempt", "a"), ask("schedule", "a"), RUN)
    assert get_what(run_on(Losing, (), *ops)) == "references"
    result = run_on(Losing, known, *ops)
    assert (get_what(result), result.steps, result.skipped) == (None, 8, 1)
    assert result.left_out == {5: known[0]}
    assert result.why_skipped == "it leads to a known divergence: lost"


def test_the_answers_of_the_backend_decide(known: list[Entry]) -> None:
    """Where it hits nothing, a preemption is as it should be."""
    result = run_on(Missing, known, *SHOWS)
    assert (get_what(result), result.steps, result.left_out) == (None, 6, {})


def test_what_was_left_out_is_shown_by_a_program_of_its_own(known: list[Entry]) -> None:
    again = open_request("c"), ask("schedule", "c"), ask("preempt", "c")
    whole = program(*SHOWS, *again)
    result = run(whole, declare(Losing), avoid=known)
    assert [*result.left_out] == [5, 8]
    assert leave_out(whole, result.left_out) == program(*HIT, *again[:2])
    first, second = list_known(whole, result.left_out)
    assert (first.program, first.step) == (program(*SHOWS), 5)
    assert (second.program, second.step) == (program(*HIT, *again), 7)
    for each in (first, second):
        divergence = run(each.program, declare(Losing)).divergence
        assert divergence is not None
        assert (divergence.step, divergence.what) == (each.step, "references")


def test_no_generator_leaves_out_what_only_a_run_can_judge(known: list[Entry]) -> None:
    declared = declare(Losing).contracts["paged"]["paged-full"]
    drawn = [
        draw_some(20, "paged", "paged-full", declared, 2, avoid=avoid)
        for avoid in ((), known)
    ]
    assert drawn[0] == drawn[1]
    assert find_known(program(*SHOWS), known) is None


# --- a slice ----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the programs that lead to a known divergence run on into it."""
    monkeypatch.setattr("lockstep.harness.workers.backend_run.KNOWN_SHARE", 2)


def check(folder: Path, cache: type[Manager], programs: int = 100) -> Any:
    """Runs a slice of programs with the ledger in a folder."""
    config = {"groups": GROUPS, "data": ("tags",)}
    backend: Backend = replace(declare(cache, config=config), ledger=folder)
    kind = "paged", "paged-full"
    done, events = run_slice(folder, backend, programs, *kind)
    return done.counts, events


def test_a_slice_meets_what_is_known(tmp_path: Path, known: list[Entry]) -> None:
    counts, events = check(tmp_path, Losing)
    assert not [event for event in events if isinstance(event, Found | Agreed)]
    assert counts.signatures == {}
    assert counts.entered["lost"] > 0
    assert counts.programs == 100


def test_a_failure_behind_what_is_known_is_told_without_it(
    tmp_path: Path, known: list[Entry]
) -> None:
    """Its program is to fail in the same way where the ledger is not looked at."""
    counts, events = check(tmp_path, Forgetful)
    assert set(counts.signatures) == {"paged-paged-full-evict-result"}
    found = [event for event in events if isinstance(event, Found)]
    assert found
    for event in found:
        failing = event.parsed
        divergence = run(failing, declare(Forgetful)).divergence
        assert divergence is not None
        assert divergence.step == event.divergence.step < len(failing.ops)
        assert divergence.get_signature(failing) == "paged-paged-full-evict-result"
    shortest = min((event.parsed for event in found), key=lambda one: len(one.ops))
    assert len(shortest.ops) == 1


def test_an_entry_that_describes_what_agrees_is_reported(tmp_path: Path) -> None:
    write_ledger(tmp_path, {"op": "preempt", "computed": [1, None]}, SHOWS)
    _, events = check(tmp_path, Missing)
    [agreed] = [event for event in events if isinstance(event, Agreed)]
    assert agreed.entry == "lost"
    counts, events = check(tmp_path, Losing)
    assert counts.entered["lost"]  # some agree, and some show it
    assert not [event for event in events if isinstance(event, Agreed)]


def test_an_answer_that_was_chosen_proves_nothing(tmp_path: Path) -> None:
    """A request that may hit something need not."""
    ops = (*COMPUTED, open_request("b"), ask("schedule", "b"), ask("preempt", "b"))
    write_ledger(tmp_path, {"op": "schedule", "longest": [1, None]}, ops)
    assert 4 in run_on(Missing, (), *ops).choices
    assert 1 not in run_on(Missing, (), *ops).choices
    counts, events = check(tmp_path, Missing)
    assert not [event for event in events if isinstance(event, Agreed)]
    assert not counts.entered


def test_a_failing_program_is_told_without_what_was_left_out(known: list[Entry]) -> None:
    whole = program(*SHOWS, EVICT, RUN)
    result = run(whole, declare(Forgetful), avoid=known)
    tidied, divergence = tidy(whole, result)
    assert tidied == program(*HIT, EVICT, RUN)
    assert (divergence.step, divergence.what) == (5, "result")
    again = run(tidied, declare(Forgetful)).divergence
    assert again is not None
    assert (again.step, again.what) == (5, "result")


@pytest.mark.parametrize(
    ("failing", "candidate"), [(SHOWS, SHOWS), ((*HIT, EVICT), (*SHOWS, EVICT))]
)
def test_no_shorter_program_leads_to_what_is_known(
    tmp_path: Path, known: list[Entry], failing: Ops, candidate: Ops
) -> None:
    """Not even if it goes on and fails as the given one does."""
    record = Record(tmp_path / "record")
    given, backend = program(*failing), declare(Forgetful)
    divergence = run(given, backend).divergence
    assert divergence is not None
    search = Search(Runner(record, print), given, divergence, backend, known)
    assert search.find(program(*candidate), every_check=False) is None
    assert (search.find(given, every_check=False) is None) is (failing == candidate)
    record.close()
