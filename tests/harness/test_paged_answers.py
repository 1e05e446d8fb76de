"""What a paged cache may answer, and what of a program depends on its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend, Duty, Kind
from lockstep.harness.backends.paged import Ring
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import HeldToken, Op
from lockstep.harness.execution.executor import Result, run
from lockstep.harness.programs.ledger import why_unsupported
from lockstep.harness.programs.program import Program, walk
from lockstep.impl.shared.operations import PAGED_OPERATIONS, PAGED_TELLS
from tests.harness import paging
from tests.harness.paging import RUN, Manager, ask, fork, open_request

FULL = {"type": "full", "block": 1, "layers": 1}
STATE = {"type": "state", "block": 2, "layers": 1}
VICTIM = Duty({"op": "preempt", "scheduled": [1, None]}, "preempt of a scheduled one")
WITHDRAW = Duty({"op": "free", "reuse": [0, 0]}, "free with reuse false")

make = partial(paging.make, groups=[FULL])


class Answering(Manager):
    """answers: request, or `evict`, → what to answer in place of the right answer."""

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


def declare(cache: Any, **promises: Any) -> Backend:
    return paging.declare(cache, **{"refuses": False, "tells": PAGED_TELLS, **promises})


def run_on(program: Program, answers: Mapping[str, Any] = {}, **promises: Any) -> Result:
    cache = type("Told", (Answering,), {"answers": answers})
    return run(program, declare(cache, **promises))


def get_what(result: Result) -> str | None:
    return result.divergence and result.divergence.what


# --- what is legal --------------------------------------------------------------------


def test_a_duty_is_kept_while_a_program_runs() -> None:
    program = make(
        open_request("a", 1, 1), ask("schedule", "a"), ask("preempt", "a"), RUN
    )
    kept = run_on(program, duties=(VICTIM,))
    assert (kept.steps, kept.skipped, kept.divergence) == (3, 1, None)
    assert kept.why_skipped == "callers must not: preempt of a scheduled one"
    assert run_on(program).why_skipped == "the step is empty"
    assert why_unsupported(program, declare(Manager, duties=(VICTIM,))) is None


def test_the_tokens_of_requests_are_listed() -> None:
    first = open_request("b", 6), open_request("a", 7, 8, 9)
    ops = *first, ask("schedule", "b"), ask("schedule", "a", count=2), RUN
    [*_, last] = walk(make(*ops, open_request("c", 1)))
    last.finish()
    held = last.model.list_held({"op": "free", "request": "a"})
    a, b = [HeldToken(1, 0), HeldToken(2, 1)], [HeldToken(0, 0)]
    assert list(held) == [("request a", a), ("request b", b), ("request c", [])]


def test_a_call_that_only_the_answers_make_a_misuse_is_skipped() -> None:
    program = make(open_request("a", 1), open_request("a", 1), ask("schedule", "a"))
    skipped = run_on(program)
    assert (skipped.steps, skipped.skipped) == (2, 1)
    assert skipped.why_skipped == "an invalid call; the backend need not refuse it"
    assert run_on(program, refuses=True).steps == 3


@pytest.mark.parametrize(("reuse", "steps"), [(True, 4), (False, 3)])
def test_a_duty_may_be_about_a_boolean(reuse: bool, steps: int) -> None:
    program = make(
        open_request("a", 1), ask("schedule", "a"), RUN, ask("free", "a", reuse=reuse)
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
        *(open_request("a", 1, 1, 2), ask("schedule", "a", count=3), RUN),
        *(ask("accept", "a", sampled=1), ask("schedule", "a", count=1), RUN),
        groups=[STATE],
        aligned=True,
    )
    result = run_on(program, {"a": (0, 1)})
    assert result.divergence is None
    assert result.why_skipped == "an invalid call; the backend need not refuse it"


def test_a_step_that_is_not_aligned_has_all_that_was_asked_for() -> None:
    ops = open_request("a", 1, 1, 2), ask("schedule", "a", count=2)
    assert get_what(run_on(make(*ops, groups=[STATE]), {"a": (0, 1)})) == "result"
    assert get_what(run_on(make(*ops), {"a": (0, 2)})) is None


@pytest.mark.parametrize("count", [0, 3])
def test_the_number_of_tokens_is_one_that_was_asked_for(count: int) -> None:
    class Wrong(Manager):
        def schedule(self, request: str, more: int) -> Any:
            return 0, count

    program = make(open_request("a", 1, 1, 2), ask("schedule", "a", count=2))
    assert get_what(run(program, declare(Wrong))) == "result"


@pytest.mark.parametrize(("count", "what"), [(1, None), (2, "result"), (3, "result")])
def test_a_step_that_cannot_end_a_block_of_states_may_wait(
    count: int, what: str | None
) -> None:
    ops = open_request("a", 1, 1, 2), ask("schedule", "a", count=count)
    aligned = make(*ops, groups=[STATE], aligned=True)
    assert get_what(run_on(aligned, {"a": None})) == what
    assert get_what(run_on(make(*ops, groups=[STATE]), {"a": None})) == "result"


@pytest.mark.parametrize(("first", "what"), [(1, None), (2, "result")])
def test_a_request_may_wait_for_a_state_of_the_step(first: int, what: str | None) -> None:
    program = make(
        *(open_request("a", 1, 1, 2), open_request("b", first, 1, 2)),
        *(ask("schedule", "a", count=3), ask("schedule", "b", count=3)),
        groups=[STATE],
        aligned=True,
    )
    assert get_what(run_on(program, {"b": None})) == what


@pytest.mark.parametrize(("blocks", "what"), [(8, None), (9, "result")])
def test_rejected_drafts_may_keep_their_blocks(blocks: int, what: str | None) -> None:
    program = make(
        *(open_request("a", 1), ask("schedule", "a"), RUN),
        *(ask("accept", "a", sampled=1, drafts=[1, 1]), ask("schedule", "a"), RUN),
        *(ask("accept", "a", sampled=1), ask("schedule", "a"), RUN),
        *(open_request("b", 1), ask("schedule", "b")),
        blocks=blocks,
        lookahead=2,
    )
    assert get_what(run_on(program, {"b": None}, tells=NO_POOL)) == what


def test_copies_are_made_before_what_they_wrote_is_checked() -> None:
    """The copy of a block is told when it is scheduled, and can be hit from then on."""
    program = make(
        *(open_request("a", 1, 1, 2), ask("schedule", "a"), RUN),
        fork("a", "b", 1),
        ask("schedule", "b"),
        ask("preempt", "a"),
        groups=[{**FULL, "block": 4}],
        hash_block=1,
    )

    class Moving(Manager):
        """Lets the copy be hit in place of the original."""

        def copy(self, source: int, target: int) -> None:
            super().copy(source, target)
            for key in self.blocks.keys[source]:
                self.blocks.entries[0][key] = target

    assert run(program, declare(Moving)).divergence is None


# --- what must be, and what cannot ------------------------------------------------------

COMPUTED = open_request("a", 1, 1), ask("schedule", "a"), RUN
FREED = (*COMPUTED, ask("free", "a"))
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
        ((*FREED[:3], ask("free", "a", reuse=False)), {}, "result"),
        ((*FREED[:3], ask("preempt", "a")), {}, None),
    ],
)
def test_nothing_is_evicted_where_nobody_has_computed_anything(
    ops: Sequence[Op], config: Any, what: str | None
) -> None:
    program = make(*ops, EVICT, **config)
    assert get_what(run_on(program, {"evict": 1}, tells=NO_POOL)) == what


SHARING = (*COMPUTED, open_request("b", 1, 1, 2), ask("schedule", "b"), RUN)


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
    program = make(*SHARING, open_request("c", 3), ask("schedule", "c"), blocks=blocks)
    assert get_what(run_on(program, {"c": None}, tells=tells)) == what


class Tired(Manager):
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
        *(*SHARING, open_request("d", 7, 7, 7), ask("schedule", "d", count=1), RUN),
        *(open_request("e", 8), ask("schedule", "e"), RUN),
        ask("schedule", "d", count=2),
        blocks=blocks,
    )
    assert get_what(run(program, declare(Tired))) == what


def test_each_block_that_is_shared_and_written_may_be_copied() -> None:
    """Behind rejected drafts the step writes both blocks that the fork holds as well, and
    one block is left."""
    drafts = ask("accept", "b", sampled=0, drafts=[0, 1])
    program = make(
        *(open_request("a", 0), open_request("b", 0, 1)),
        *(ask("schedule", "b"), ask("schedule", "a"), RUN),
        *(drafts, ask("schedule", "b"), RUN),
        fork("b", "c", 0),
        *(ask("accept", "b", sampled=0, drafts=[0]), ask("schedule", "b")),
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
        *(open_request("a", 1, 1, 1), ask("schedule", "a"), RUN),
        fork("a", "b", 2),
        *(ask("accept", "a", sampled=3), ask("schedule", "a"), ask("schedule", "b")),
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
        *(*SHARING, open_request("d", 7, 7, 7), ask("schedule", "d", count=1), RUN),
        *(open_request("e", 8), ask("schedule", "e"), RUN),
        ask("schedule", "d", count=2),
        blocks=blocks,
        lookahead=lookahead,
    )
    tired = declare(lambda config: Tired({**config, "blocks": blocks + more}))
    assert get_what(run(program, tired)) == what


# --- what no caller could ask after the answers -----------------------------------------

BEGUN = open_request("a", 1, 2, 3), ask("schedule", "a", count=3), RUN
TIGHT = (
    *(*BEGUN, open_request("c", *range(20)), ask("schedule", "c", count=20), RUN),
    *(fork("a", "b", 1), ask("schedule", "b")),
)
"""A copy of all blocks of a has no room, so that a backend may answer as it likes."""


@pytest.mark.parametrize(
    ("refuses", "skipped", "asked"), [(False, 1, []), (True, 0, ["b"])]
)
def test_a_misuse_after_the_answers_is_asked_only_of_what_refuses_it(
    refuses: bool, skipped: int, asked: list[str]
) -> None:
    """After this answer there is no request b."""
    seen: list[str] = []

    class Full(Manager):
        """Has no room for a fork."""

        def fork(self, source: str, target: str, tokens: Sequence[int]) -> bool:
            seen.clear()
            return False

        def schedule(self, request: str, count: int) -> int | None:
            seen.append(request)
            return super().schedule(request, count)

    program = make(*TIGHT, groups=[{**FULL, "block": 2}])
    result = run(program, declare(Full, refuses=refuses))
    assert (result.divergence, result.skipped, seen) == (None, skipped, asked)


def test_a_duty_holds_after_the_answers() -> None:
    duty = Duty({"op": "reset", "held": [1, None]}, "reset under requests")

    class Obliging(Manager):
        def reset(self) -> bool:
            return True

    program = make(*BEGUN, {"op": "reset"})
    result = run(program, declare(Obliging, duties=(duty,)))
    assert result.divergence is None
    assert result.why_skipped == "callers must not: reset under requests"
    assert run(program, declare(Obliging)).divergence


def test_a_ring_needs_a_backend_that_stores() -> None:
    class Round(Manager):
        def tables(self, request: str) -> Any:
            return [Ring([1])]

    sliding = {"type": "sliding", "block": 2, "width": 3, "layers": 1}
    divergence = run(make(*BEGUN, groups=[sliding]), declare(Round)).divergence
    assert divergence is not None
    message = 'tables(a) has a Ring, but the config has data "tags"; give a list'
    assert divergence.message == message
