"""What a paged cache may answer, and what of a program depends on its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend, Duty, Kind
from lockstep.harness.backends.paged import Pool
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.paged.checks import check_pool
from lockstep.harness.core.errors import Broken
from lockstep.harness.execution.executor import Result, run
from lockstep.harness.programs.ledger import why_unsupported
from lockstep.harness.programs.program import Program, parse_program
from lockstep.impl.shared.operations import PAGED_OPERATIONS, PAGED_TELLS
from lockstep.impl.shared.paged_facts import Telling
from tests.harness.misbehaving import correct

FULL = {"type": "full", "block": 1, "layers": 1}
STATE = {"type": "state", "block": 2, "layers": 1}
VICTIM = Duty({"op": "preempt", "scheduled": [1, None]}, "preempt of a scheduled one")
WITHDRAW = Duty({"op": "free", "reuse": [0, 0]}, "free with reuse false")

RUN: Op = {"op": "run"}


def open_request(name: str, *tokens: int) -> Op:
    return {"op": "open", "request": name, "tokens": list(tokens)}


def ask(name: str, op: str, **fields: Any) -> Op:
    return {"op": op, "request": name, **fields}


def make(*ops: Op, groups: Sequence[Mapping[str, Any]] = (FULL,), **config: Any) -> Any:
    kind = f"paged-{groups[0]['type']}"
    config = {"kind": kind, "groups": list(groups), **config}
    program = {"contract": "paged", "config": config, "ops": list(ops)}
    return parse_program({"format": "lockstep/1", **program}, "a program")


class Manager(Telling):
    """Ours.

    Attributes:
        answers: request → what to answer for it in place of the right answer.
    """

    answers: Mapping[str, Any] = {}

    def evict(self, count: int) -> int:
        return int(self.answers.get("evict", super().evict(count)))

    def schedule(self, request: str, count: int) -> Any:
        if request not in self.answers:
            return super().schedule(request, count)
        answer = self.answers[request]
        if answer is None:
            return None
        return super().schedule(request, answer[1]), answer[1]


def declare(answers: Mapping[str, Any] = {}, **promises: Any) -> Backend:
    def open_cache(config: Mapping[str, Any]) -> Manager:
        names = "blocks", "max_length", "hash_block", "prefix_cache"
        cache = Manager(config["groups"], *(config[name] for name in names))
        cache.answers = answers
        return cache

    kind = Kind(PAGED_OPERATIONS, **{"tells": PAGED_TELLS, **promises})
    kinds = dict.fromkeys(CONTRACTS["paged"].kinds, kind)
    return replace(correct(), contracts={"paged": kinds}, open=open_cache)


def run_on(program: Program, answers: Mapping[str, Any] = {}, **promises: Any) -> Result:
    return run(program, declare(answers, **promises))


def get_what(result: Result) -> str | None:
    return result.divergence and result.divergence.what


# --- what is legal --------------------------------------------------------------------


def test_a_duty_is_kept_while_a_program_runs() -> None:
    program = make(
        open_request("a", 1, 1), ask("a", "schedule"), ask("a", "preempt"), RUN
    )
    kept = run_on(program, duties=(VICTIM,))
    assert (kept.steps, kept.skipped, kept.divergence) == (3, 1, None)
    assert kept.why_skipped == "callers must not: preempt of a scheduled one"
    assert run_on(program).why_skipped == "the step is empty"
    assert why_unsupported(program, declare(duties=(VICTIM,))) is None


def test_a_call_that_only_the_answers_make_a_misuse_is_skipped() -> None:
    program = make(open_request("a", 1), open_request("a", 1), ask("a", "schedule"))
    skipped = run_on(program)
    assert (skipped.steps, skipped.skipped) == (2, 1)
    assert skipped.why_skipped == "a misuse, which the backend is not declared to refuse"
    assert run_on(program, refuses=True).steps == 3


@pytest.mark.parametrize(("reuse", "steps"), [(True, 4), (False, 3)])
def test_a_duty_may_be_about_a_boolean(reuse: bool, steps: int) -> None:
    program = make(
        open_request("a", 1), ask("a", "schedule"), RUN, ask("a", "free", reuse=reuse)
    )
    assert run_on(program, duties=(WITHDRAW,)).steps == steps


def test_what_a_duty_leaves_out_is_not_to_be_reached() -> None:
    rules = CONTRACTS["paged"]
    declared = Kind(PAGED_OPERATIONS)
    left_out = {("withdrawn", "open"), ("scheduled", "preempt")}
    cells = set(rules.list_cells("paged-full", declared))
    kept = rules.list_cells("paged-full", replace(declared, duties=(VICTIM, WITHDRAW)))
    assert left_out <= cells
    assert not left_out & set(kept)
    assert ("scheduled", "free") in kept


# --- answers --------------------------------------------------------------------------


def test_a_step_may_have_fewer_tokens() -> None:
    program = make(
        *(open_request("a", 1, 1, 2), ask("a", "schedule", count=3), RUN),
        *(ask("a", "accept", sampled=1), ask("a", "schedule", count=1), RUN),
        groups=[STATE],
        aligned=True,
    )
    result = run_on(program, {"a": (0, 1)})
    assert result.divergence is None
    assert result.why_skipped == "a misuse, which the backend is not declared to refuse"


def test_a_step_that_is_not_aligned_has_all_that_was_asked_for() -> None:
    ops = open_request("a", 1, 1, 2), ask("a", "schedule", count=2)
    assert get_what(run_on(make(*ops, groups=[STATE]), {"a": (0, 1)})) == "result"
    assert get_what(run_on(make(*ops), {"a": (0, 2)})) is None


@pytest.mark.parametrize("count", [0, 3])
def test_the_number_of_tokens_is_one_that_was_asked_for(count: int) -> None:
    class Wrong(Telling):
        def schedule(self, request: str, more: int) -> Any:
            return 0, count

    backend = replace(declare(), open=lambda config: Wrong([FULL], 8, 8))
    program = make(open_request("a", 1, 1, 2), ask("a", "schedule", count=2))
    assert get_what(run(program, backend)) == "result"


@pytest.mark.parametrize(("count", "what"), [(1, None), (2, "result"), (3, "result")])
def test_a_step_that_cannot_end_a_block_of_states_may_wait(
    count: int, what: str | None
) -> None:
    ops = open_request("a", 1, 1, 2), ask("a", "schedule", count=count)
    aligned = make(*ops, groups=[STATE], aligned=True)
    assert get_what(run_on(aligned, {"a": None})) == what
    assert get_what(run_on(make(*ops, groups=[STATE]), {"a": None})) == "result"


@pytest.mark.parametrize(("first", "what"), [(1, None), (2, "result")])
def test_a_request_may_wait_for_a_state_of_the_step(first: int, what: str | None) -> None:
    program = make(
        *(open_request("a", 1, 1, 2), open_request("b", first, 1, 2)),
        *(ask("a", "schedule", count=3), ask("b", "schedule", count=3)),
        groups=[STATE],
        aligned=True,
    )
    assert get_what(run_on(program, {"b": None})) == what


@pytest.mark.parametrize(("blocks", "what"), [(8, None), (9, "result")])
def test_rejected_drafts_may_keep_their_blocks(blocks: int, what: str | None) -> None:
    program = make(
        *(open_request("a", 1), ask("a", "schedule"), RUN),
        *(ask("a", "accept", sampled=1, drafts=[1, 1]), ask("a", "schedule"), RUN),
        *(ask("a", "accept", sampled=1), ask("a", "schedule"), RUN),
        *(open_request("b", 1), ask("b", "schedule")),
        blocks=blocks,
        lookahead=2,
    )
    assert get_what(run_on(program, {"b": None}, tells=NO_POOL)) == what


def test_blocks_that_wait_for_a_copy_are_held() -> None:
    tables = {"a": [[1, None]]}
    check_pool(tables, Pool({1: 2, 2: 1}, [3], [], [1, 2]), 3)
    with pytest.raises(Broken, match="block 1 has 2 references, and 1 tables"):
        check_pool(tables, Pool({1: 2, 2: 1}, [3], [], [2]), 3)


def test_copies_are_made_before_what_they_wrote_is_checked() -> None:
    """The copy of a block is told when it is scheduled, and can be hit from then on."""
    program = make(
        *(open_request("a", 1, 1, 2), ask("a", "schedule"), RUN),
        {"op": "fork", "source": "a", "target": "b", "tokens": [1]},
        ask("b", "schedule"),
        ask("a", "preempt"),
        groups=[{**FULL, "block": 4}],
        hash_block=1,
    )

    class Moving(Telling):
        """Lets the copy be hit in place of the original."""

        def copy(self, source: int, target: int) -> None:
            super().copy(source, target)
            for key in self.blocks.keys[source]:
                self.blocks.entries[0][key] = target

    backend = declare()
    names = "blocks", "max_length", "hash_block"
    moving = replace(
        backend,
        open=lambda config: Moving(config["groups"], *(config[name] for name in names)),
    )
    assert run(program, moving).divergence is None


# --- what must be, and what cannot ------------------------------------------------------

COMPUTED = open_request("a", 1, 1), ask("a", "schedule"), RUN
FREED = (*COMPUTED, ask("a", "free"))
EVICT: Op = {"op": "evict", "count": 9}
NO_POOL: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("ops", "config", "evicted", "what"),
    [
        (FREED, {}, 2, None),
        (FREED, {}, 3, "result"),
        ((*FREED, EVICT), {}, 2, "result"),
        (COMPUTED, {}, 1, "result"),
    ],
)
def test_no_more_is_evicted_than_the_pool_has(
    ops: Sequence[Op], config: Any, evicted: int, what: str | None
) -> None:
    program = make(*ops, EVICT, **config)
    assert get_what(run_on(program, {"evict": evicted})) == what
    assert get_what(run_on(program, {"evict": evicted}, tells=NO_POOL)) is None


@pytest.mark.parametrize(
    ("ops", "config", "what"),
    [
        (FREED, {}, None),
        (FREED, {"prefix_cache": False}, "result"),
        ((), {}, "result"),
        (FREED[:2], {}, "result"),
        ((*FREED, {"op": "reset"}), {}, "result"),
        ((*FREED[:3], ask("a", "free", reuse=False)), {}, "result"),
        ((*FREED[:3], ask("a", "preempt")), {}, None),
    ],
)
def test_nothing_is_evicted_where_nobody_has_computed_anything(
    ops: Sequence[Op], config: Any, what: str | None
) -> None:
    program = make(*ops, EVICT, **config)
    assert get_what(run_on(program, {"evict": 1}, tells=NO_POOL)) == what


SHARING = (*COMPUTED, open_request("b", 1, 1, 2), ask("b", "schedule"), RUN)


@pytest.mark.parametrize(
    ("blocks", "tells", "what"),
    [
        (3, PAGED_TELLS, None),
        (4, PAGED_TELLS, "result"),
        (4, NO_POOL, None),
        (5, NO_POOL, None),
        (6, NO_POOL, "result"),
    ],
)
def test_shared_blocks_leave_room(
    blocks: int, tells: frozenset[str], what: str | None
) -> None:
    """Two requests hold three blocks. Without the pool they may hold five."""
    program = make(*SHARING, open_request("c", 3), ask("c", "schedule"), blocks=blocks)
    assert get_what(run_on(program, {"c": None}, tells=tells)) == what


class Tired(Telling):
    """Gives no slots to a request that has some."""

    def schedule(self, request: str, count: int) -> Any:
        held = self.requests[request].tables is not None
        return None if held else super().schedule(request, count)


@pytest.mark.parametrize(("blocks", "what"), [(6, None), (7, "result")])
def test_a_request_that_runs_needs_room_for_its_new_tokens(
    blocks: int, what: str | None
) -> None:
    """Five blocks are held; its step needs two more."""
    program = make(
        *(*SHARING, open_request("d", 7, 7, 7), ask("d", "schedule", count=1), RUN),
        *(open_request("e", 8), ask("e", "schedule"), RUN),
        ask("d", "schedule", count=2),
        blocks=blocks,
    )
    tired = replace(declare(), open=lambda config: Tired([FULL], blocks, 24))
    assert get_what(run(program, tired)) == what


def test_each_block_that_is_shared_and_written_may_be_copied() -> None:
    """Behind rejected drafts the step writes both blocks that the fork holds as well, and
    one block is left."""
    drafts = ask("b", "accept", sampled=0, drafts=[0, 1])
    program = make(
        *(open_request("a", 0), open_request("b", 0, 1)),
        *(ask("b", "schedule"), ask("a", "schedule"), RUN),
        *(drafts, ask("b", "schedule"), RUN),
        {"op": "fork", "source": "b", "target": "c", "tokens": [0]},
        *(ask("b", "accept", sampled=0, drafts=[0]), ask("b", "schedule")),
        groups=[{"type": "chunked", "block": 4, "width": 1, "layers": 1}],
        blocks=4,
        lookahead=2,
    )
    assert run_on(program).divergence is None


@pytest.mark.parametrize(("blocks", "what"), [(7, None), (8, "result")])
def test_a_step_may_read_no_more_than_the_memory_has(
    blocks: int, what: str | None
) -> None:
    """A request and its fork read four tokens each; three of them are shared."""
    program = make(
        *(open_request("a", 1, 1, 1), ask("a", "schedule"), RUN),
        {"op": "fork", "source": "a", "target": "b", "tokens": [2]},
        *(ask("a", "accept", sampled=3), ask("a", "schedule"), ask("b", "schedule")),
        blocks=blocks,
    )
    assert get_what(run_on(program, {"b": None})) == what


@pytest.mark.parametrize(
    ("blocks", "more", "lookahead", "what"),
    [(6, 1, 0, "result"), (6, 4, 1, None), (7, 4, 1, None), (8, 4, 1, "result")],
)
def test_blocks_beyond_those_of_the_config_may_be_kept_for_drafts(
    blocks: int, more: int, lookahead: int, what: str | None
) -> None:
    """Five blocks are held; its step needs two more, and with a draft three."""
    program = make(
        *(*SHARING, open_request("d", 7, 7, 7), ask("d", "schedule", count=1), RUN),
        *(open_request("e", 8), ask("e", "schedule"), RUN),
        ask("d", "schedule", count=2),
        blocks=blocks,
        lookahead=lookahead,
    )
    tired = replace(declare(), open=lambda config: Tired([FULL], blocks + more, 24))
    assert get_what(run(program, tired)) == what
