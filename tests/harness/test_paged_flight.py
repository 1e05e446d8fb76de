"""Steps in flight: what may be answered, and what must not happen before they finish."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.paged import PAGED
from lockstep.harness.contracts.paged.states import get_states
from lockstep.harness.execution.executor import Result, run
from lockstep.harness.execution.shrink import get_merged
from lockstep.harness.programs.program import trace, walk
from lockstep.harness.workers.registry import load
from lockstep.impl.shared.operations import PAGED_TELLS
from tests.harness import paging
from tests.harness.paging import FULL, RUN, Manager, ask, make, open_request

LAUNCH: Op = {"op": "launch"}
FINISH: Op = {"op": "finish"}
REWIND = ask("rewind", "a", to=1, tokens=[7])
EVICT: Op = {"op": "evict", "count": 256}

draw_up = partial(make, host=4, flight=2, blocks=6, groups=[{**FULL, "block": 1}])


def plan(name: str, count: int = 9) -> Op:
    return ask("schedule", name, count=count)


def end(op: str, transfer: str) -> Op:
    return {"op": op, "transfer": transfer}


def run_on(cache: type[Manager], *ops: Op, **config: Any) -> Result:
    declared = paging.declare(cache, tells=PAGED_TELLS)
    return run(draw_up(*ops, **config), declared, every=True)


CHUNKS = (open_request("a", 1, 2, 3), plan("a", 1), LAUNCH, plan("a", 1))
"""The second step is planned while the first is unfinished."""

STORED: Sequence[Op] = (
    *(open_request("a", 1, 2, 3), plan("a"), RUN, ask("offload", "a", transfer="out")),
    *(end("landed", "out"), ask("free", "a"), EVICT),
)
LOADED: Sequence[Op] = (
    *(
        *STORED,
        open_request("b", 4, 5, 6),
        plan("b"),
        LAUNCH,
        ask("free", "b", reuse=False),
    ),
    *(
        open_request("c", 1, 2, 3, 4),
        ask("load", "c", transfer="in"),
        end("landed", "in"),
    ),
    *(FINISH, plan("c"), RUN),
)
"""Content lands while the step of a request that has ended is unfinished."""

EARLY = (open_request("a", 1, 2), plan("a", 1), RUN, plan("a", 1), LAUNCH)
OFFLOADED = (*EARLY, ask("offload", "a", transfer="t"), end("landed", "t"), FINISH)


class ChangesTables(Manager):
    """Writes the tables of a request into the same lists again."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.buffers: dict[str, list[Any]] = {}

    def tables(self, request: str) -> list[Any]:
        buffer = self.buffers.setdefault(request, [])
        buffer[:] = super().tables(request)
        return buffer


class FreesAtOnce(Manager):
    """Lets a load have the blocks to which a launched step has still to write."""

    def hold(self, flight: Any, blocks: Sequence[int]) -> None:
        pass


class StoresEarly(Manager):
    """Offloads blocks to which a launched step has still to write."""

    def offload(self, name: str, transfer: str) -> Any:
        launched, self.launched = self.launched, []
        pairs = super().offload(name, transfer)
        self.launched = launched
        return pairs


class CountsLate(Manager):
    """Counts the tokens of the step of a request that was preempted."""

    def preempt(self, name: str) -> None:
        segments = [segment for flight in self.launched for segment in flight.segments]
        request = self.get(name)
        mine = [segment for segment in segments if segment.request is request]
        super().preempt(name)
        for segment in mine:
            segment.request = request


def sample(token: int) -> Op:
    return ask("accept", "a", sampled=token)


AHEAD: Sequence[Op] = (
    *(open_request("a", 1, 2), plan("a"), LAUNCH, sample(3), plan("a")),
    *(LAUNCH, open_request("b", 1, 2, 3, 4)),
)
"""Token 3 has a slot before the step that samples it has finished."""


class TakesDropped(Manager):
    """Appends the tokens that come for a request that was preempted."""

    def finish(self, sampled: Sequence[int | None] = ()) -> None:
        late = [segment.request is None for segment in self.launched[0].segments]
        super().finish(sampled)
        for token, is_late in zip(sampled, late, strict=False):
            if is_late and token is not None and "a" in self.requests:
                self.requests["a"].tokens.append(token)


RIGHT: dict[str, Sequence[Op]] = {
    "chunks": (*CHUNKS, LAUNCH, FINISH, FINISH, ask("accept", "a", sampled=1)),
    "load": LOADED,
    "offload": OFFLOADED,
    "preempted": (*CHUNKS, ask("preempt", "a"), plan("a"), LAUNCH, FINISH, FINISH),
    "reopened": (*CHUNKS, ask("free", "a"), *CHUNKS, FINISH, LAUNCH, FINISH, FINISH),
    "restored": (*STORED, {"op": "save"}, *CHUNKS, {"op": "restore"}, *CHUNKS, FINISH),
}


@pytest.mark.parametrize("name", RIGHT)
def test_one_that_is_correct_agrees(name: str) -> None:
    result = run_on(Manager, *RIGHT[name])
    assert (result.skipped, result.divergence) == (0, None)
    assert result.steps == len(RIGHT[name])


def test_ours_attends_in_each_step_to_the_slots_of_its_requests() -> None:
    """The second step ends without another call after the end of the first."""
    pytest.importorskip("torch")
    steps = 2 * (ask("schedule", "a", count=1), {"op": "launch"})
    ops = (open_request("a", 1, 2, 3), *steps, FINISH, FINISH)
    result = run(make(*ops, flight=2, data="backend"), load("torch-cpu"), every=True)
    assert (result.skipped, result.divergence) == (0, None)


WRONG: dict[type[Manager], tuple[Sequence[Op], str, str, str]] = {
    ChangesTables: (
        *((*CHUNKS, FINISH), "table", "finish"),
        "the tables of request a were [[0]] when its step was launched, and were changed"
        " to [[0, 1]] before the step has finished; return a copy",
    ),
    FreesAtOnce: (
        *(LOADED, "contents", "landed"),
        "position 0 of request c, group 0, is token 3, not token 0",
    ),
    StoresEarly: (
        *(OFFLOADED, "hash", "landed"),
        "the entry of the tokens [1, 2] (namespace None, group 0) names block 1, which"
        " holds nothing in place of token 1 at position 1",
    ),
    CountsLate: (
        *((*CHUNKS, ask("preempt", "a"), plan("a", 1), FINISH, REWIND), "error"),
        *("rewind", "did not refuse; expected usage"),
    ),
}


@pytest.mark.parametrize("cache", WRONG)
def test_what_happens_before_a_step_finishes(cache: type[Manager]) -> None:
    ops, what, operation, message = WRONG[cache]
    caches_prefixes = {"prefix_cache": cache is not CountsLate}
    assert run_on(Manager, *ops, **caches_prefixes).divergence is None
    divergence = run_on(cache, *ops, **caches_prefixes).divergence
    assert divergence is not None
    assert (divergence.what, divergence.operation) == (what, operation)
    assert message in divergence.message


def test_copies_wait_for_the_step_that_writes_what_they_copy() -> None:
    """b continues inside a block that the step of a has still to write."""
    first = (open_request("a", 1, 2, 3), plan("a", 1), LAUNCH)
    then = (open_request("b", 1, 5), plan("b"), LAUNCH, plan("a", 1), FINISH, LAUNCH)
    groups = {"groups": [{**FULL, "block": 4}], "hash_block": 1}
    ops = (*first, *then, FINISH, FINISH)
    result = run_on(Manager, *ops, **groups)
    assert (result.skipped, result.divergence) == (0, None)
    program = draw_up(*ops, **groups)
    assert list(trace(program))[4] == {"start": {"one_of": [1, 0]}}

    class CopiesTooLate(Manager):
        def copies(self) -> list[tuple[int, int]]:
            return [] if self.launched else super().copies()

    divergence = run_on(CopiesTooLate, *ops, **groups).divergence
    assert divergence is not None
    assert (divergence.what, divergence.operation) == ("contents", "launch")


def test_what_was_published_at_the_launch_may_be_evicted_before_the_end() -> None:
    same = (open_request("b", 1, 1), plan("b"), ask("free", "a"), LAUNCH, EVICT, FINISH)
    ops = (open_request("a", 1, 1), plan("a"), RUN, *same)
    assert run_on(Manager, *ops, hash_block=1).divergence is None

    class NeverPublishes(Manager):
        def settle(self, request: Any) -> None:
            pass

    divergence = run_on(NeverPublishes, *EARLY, FINISH).divergence
    assert divergence is not None
    assert (divergence.what, divergence.operation) == ("reuse", "run")


def test_a_finish_answers_for_the_requests_that_are_left() -> None:
    both = (open_request("a", 1), open_request("b", 2), plan("a"), plan("b"), LAUNCH)
    answers = list(trace(draw_up(*both, ask("free", "a"), open_request("a", 3), FINISH)))
    assert answers[-1] == {"caches": [{"first": 0, "slots": [1]}]}


def test_blocks_of_launched_steps_may_be_missing_until_they_finish() -> None:
    ops = (
        open_request("a", 1, 2, 3, 4),
        plan("a"),
        LAUNCH,
        ask("free", "a", reuse=False),
    )
    again = (*ops, open_request("b", 5, 6, 7), plan("b"))
    assert list(trace(draw_up(*again)))[-1] == {"start": {"one_of": [None, 0]}}
    finished = (*ops, FINISH, *again[-2:])
    assert list(trace(draw_up(*finished)))[-1] == {"start": 0}


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ([LAUNCH], "the step is empty"),
        ([FINISH], "no step is unfinished"),
        ([*CHUNKS, RUN], "1 steps are unfinished"),
        ([*CHUNKS, LAUNCH, plan("a", 1), LAUNCH], "2 steps are unfinished"),
    ],
)
def test_steps_are_launched_and_finished_in_turn(ops: Sequence[Op], reason: str) -> None:
    [*_, last] = walk(draw_up(*ops))
    assert last.skipped == reason
    undeclared = [*walk(draw_up(*CHUNKS, flight=0))]
    assert undeclared[2].skipped == "0 steps are unfinished"


def test_states_of_requests_in_flight() -> None:
    program = draw_up(*CHUNKS, FINISH, LAUNCH, ask("preempt", "a"), FINISH)
    states = [get_states(step.op, step.model) for step in walk(program)]
    assert "launched" in states[3]
    assert {"launched", "scheduled"} <= {*states[4]}
    assert {*states[7]} == {"none", "dropped"}
    cells = PAGED.list_cells(
        "paged-full", paging.declare().contracts["paged"]["paged-full"]
    )
    assert ("launched", "schedule") not in cells


def test_a_launch_and_a_finish_are_merged_into_a_run() -> None:
    [merged] = get_merged(draw_up(*CHUNKS[:3], FINISH))
    assert [op["op"] for op in merged.ops] == ["open", "schedule", "run"]


def test_a_sampled_token_is_hit_once_it_is_told() -> None:
    match = ask("match", "b")
    ops = (*AHEAD, match, FINISH, match, FINISH, match, sample(5), plan("a"), RUN)
    config: Any = {"overlap": True, "blocks": 12}
    result = run_on(Manager, *ops, **config)
    assert (result.skipped, result.divergence) == (0, None)
    answers = list(trace(draw_up(*ops, **config)))
    assert [answers[at]["hit"]["one_of"][0] for at in (7, 9, 11)] == [2, 3, 3]


def test_a_told_token_may_be_evicted_before_its_step_has_finished() -> None:
    """The block of a stays without an entry, because b has computed the same."""
    other = (open_request("b", 1, 2, 3, 4), plan("b"), RUN, ask("free", "b"))
    ops = (*other, *AHEAD[:-1], FINISH, EVICT, FINISH)
    assert run_on(Manager, *ops, overlap=True, blocks=8).divergence is None


@pytest.mark.parametrize(
    "release", [ask("preempt", "a"), ask("free", "a"), ask("free", "a", reuse=False)]
)
def test_a_token_that_comes_too_late_is_dropped(release: Op) -> None:
    again = [] if release["op"] == "preempt" else [open_request("a", 1, 2)]
    ops = (*AHEAD, release, *again, FINISH, FINISH, plan("a"), RUN, sample(7))
    result = run_on(Manager, *ops, overlap=True, blocks=12)
    assert (result.skipped, result.divergence) == (0, None)
    assert run_on(TakesDropped, *ops, overlap=True, blocks=12).divergence is not None


def test_a_sampled_token_is_accepted_before_it_is_scheduled() -> None:
    drafts = ask("accept", "a", sampled=3, drafts=[4])
    ops = (*AHEAD[:3], plan("a"), drafts, sample(3), sample(4))
    steps = [*walk(draw_up(*ops, overlap=True, lookahead=1))]
    assert [step.skipped for step in steps[3:]] == [
        *(
            "its sampled token is not accepted",
            "the sampled token comes before its drafts",
        ),
        *(None, None),
    ]
    assert list(trace(draw_up(*ops, overlap=True)))[-1] == {"error": "usage"}
    assert list(trace(draw_up(*AHEAD[:4])))[-1] == {"error": "usage"}
    assert run_on(Manager, *ops, overlap=True, lookahead=1).divergence is None
    assert run_on(Manager, *AHEAD[:5]).divergence is None
    assert "untold" in get_states(steps[-1].op, steps[-1].model)
    reason = PAGED.why_illegal({**steps[0].model.config, "flight": 0})
    assert reason == "overlap needs steps in flight; set flight to 1 or more"
