"""Transfers to and from other caches: what may be answered, and what must not happen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.paged import PAGED
from lockstep.harness.contracts.paged.states import get_states
from lockstep.harness.execution.executor import Result, run
from lockstep.harness.programs.program import trace, walk
from lockstep.impl.shared.block_pool import list_held
from lockstep.impl.shared.operations import PAGED_TELLS
from tests.harness import paging
from tests.harness.paging import FULL, RUN, Manager, ask, make, open_request

draw_up = partial(make, remote=True, groups=[{**FULL, "block": 2}])


def run_on(cache: type[Manager], *ops: Op, **config: Any) -> Result:
    declared = paging.declare(cache, tells=PAGED_TELLS)
    return run(draw_up(*ops, **config), declared, every=True)


def end(op: str, transfer: str, **fields: Any) -> Op:
    return {"op": op, "transfer": transfer, **fields}


def send(name: str, transfer: str) -> Op:
    return ask("send", name, transfer=transfer)


def receive(name: str, transfer: str, end: int) -> Op:
    return ask("receive", name, transfer=transfer, end=end)


COMPUTED: Sequence[Op] = (open_request("a", 1, 2, 3), ask("schedule", "a"), RUN)
SENT: Sequence[Op] = (
    *(*COMPUTED, send("a", "out"), ask("free", "a", reuse=False)),
    *(open_request("b", 4, 5, 6), ask("schedule", "b"), RUN, end("landed", "out")),
)
"""The sender ends before its content has been copied."""
PIECES: Sequence[Op] = (
    *(open_request("a", 1, 2, 3, 4, 5), ask("schedule", "a", count=2), RUN),
    *(send("a", "t"), end("landed", "t"), ask("schedule", "a"), RUN, send("a", "u")),
)
RECEIVED: Sequence[Op] = (
    *(*COMPUTED, open_request("b", 1, 2, 3, 4, 5, 6), receive("b", "in", 5)),
    *(open_request("c", 1, 2, 3, 4, 7), ask("match", "c"), end("landed", "in")),
    *(ask("match", "c"), ask("schedule", "b"), RUN),
)


def test_ours_agrees() -> None:
    for ops in (SENT, PIECES, RECEIVED):
        result = run_on(Manager, *ops)
        assert (result.steps, result.skipped, result.divergence) == (len(ops), 0, None)


def test_tokens_can_be_hit_after_they_have_landed() -> None:
    answers = list(trace(draw_up(*RECEIVED)))
    assert answers[4] == {"received": {"one_of": [2, 0]}}
    assert answers[6] == {"hit": {"one_of": [2, 0]}}
    assert answers[8] == {"hit": {"one_of": [4, 2, 0]}}


def test_a_request_that_needs_too_many_blocks_receives_nothing() -> None:
    ops = (open_request("a", 1, 2, 3, 4), open_request("b", 5, 6, 7, 8))
    ops = (*ops, receive("a", "t", 3), receive("b", "u", 3))
    *_, last = trace(draw_up(*ops, blocks=3))
    assert last == {"received": {"one_of": [0, None]}}
    result = run_on(Manager, *ops, blocks=3)
    assert (result.skipped, result.divergence) == (0, None)


def test_states() -> None:
    *_, step = walk(draw_up(*SENT))
    assert step.model.happened == {"withdrawn"}
    begun = {"sent": send("a", "t"), "loading": receive("b", "t", 5)}
    for state, op in begun.items():
        opened = open_request("b", 7, 2, 3, 4, 5, 6)
        *_, step = walk(draw_up(*COMPUTED, opened, op))
        assert state in get_states(ask("preempt", op["request"]), step.model)


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (send("a", "t"), "its step has not finished"),
        (receive("b", "t", 3), "the request can hit these tokens, or has no token after"),
        (receive("b", "t", 4), "the request can hit these tokens, or has no token after"),
        (ask("offload", "a", transfer="t"), "there is no memory to copy to"),
    ],
)
def test_illegal_calls_are_not_made(op: Op, why: str) -> None:
    first = (*COMPUTED, ask("accept", "a", sampled=4), open_request("b", 1, 2, 9))
    result = run_on(Manager, *first, ask("schedule", "a"), op)
    assert result.skipped == 1
    assert result.why_skipped is not None
    assert result.why_skipped.startswith(why)


def test_other_caches_need_contents_of_the_harness() -> None:
    config = {**draw_up(*COMPUTED).config, "data": "backend"}
    assert (
        PAGED.why_illegal(config) == "remote needs data of the harness; set data to tags"
    )


def test_wrong_calls_are_refused() -> None:
    held = (*COMPUTED, receive("a", "t", 1), send("x", "t"), receive("x", "t", 1))
    waiting = (open_request("d", 1, 2), send("d", "t"), end("landed", "t"))
    answers = list(trace(draw_up(*held, *waiting)))
    assert answers.count({"error": "usage"}) == 5
    assert run_on(Manager, *held, *waiting).divergence is None


def test_sent_blocks_have_what_lies_before_a_window() -> None:
    """Position 2 lies before the window at first; later the window goes back to it."""
    ops = (
        *(open_request("a", 0, 1, 1, 1, 1, 1, 1), ask("schedule", "a"), RUN),
        *(send("a", "t"), ask("rewind", "a", to=6, tokens=[0]), send("a", "u")),
        *(end("landed", "t"), end("landed", "u")),
    )
    groups = [{"type": "sliding", "block": 2, "width": 5, "layers": 1}]
    result = run_on(Manager, *ops, groups=groups)
    assert (result.steps, result.skipped, result.divergence) == (len(ops), 0, None)


class PinsTables(Manager):
    """Pins all blocks of a receiver until the transfer ends, also those it reuses, and no
    block of a sender, which holds its blocks."""

    def hold_device(self, transfer: Any) -> None:
        if not transfer.leaves:
            super().hold_device(transfer)

    def receive(self, name: str, transfer: str, end: int) -> Any:
        received = super().receive(name, transfer, end)
        tables = self.get(name).tables or []
        self.reused = [block for table in tables for block in list_held(table)]
        self.blocks.hold(self.reused)
        self.pinned.update(self.reused)
        return received

    def release_device(self, transfer: Any) -> None:
        if not transfer.leaves:
            self.pinned.subtract(self.reused)
            self.blocks.release(self.reused)
            super().release_device(transfer)


def test_a_running_transfer_may_pin_the_blocks_that_its_request_reuses() -> None:
    ops = (
        *(open_request("a", 1, 2), ask("schedule", "a"), RUN),
        *(open_request("b", 1, 2, 3, 4), receive("b", "t", 3), ask("free", "b")),
        *(send("a", "u"), end("landed", "u"), end("landed", "t")),
    )
    result = run_on(PinsTables, *ops)
    assert (result.steps, result.skipped, result.divergence) == (len(ops), 0, None)


# --- mistakes ---------------------------------------------------------------------------


class SendsNothing(Manager):
    def send(self, name: str, transfer: str) -> list[int]:
        super().send(name, transfer)
        return []


class SendsWhole(Manager):
    """Leaves out the block that is not full."""

    def send(self, name: str, transfer: str) -> list[int]:
        return super().send(name, transfer)[:1]


class FreesAtOnce(Manager):
    def hold_device(self, transfer: Any) -> None:
        pass

    release_device = hold_device


class ReceivesElsewhere(Manager):
    def receive(self, name: str, transfer: str, end: int) -> tuple[int, list[int]] | None:
        received = super().receive(name, transfer, end)
        assert received is not None
        return received[0], received[1][:-1]


class IsAlwaysFull(Manager):
    def receive(self, name: str, transfer: str, end: int) -> None:
        return None


class HitsEarly(Manager):
    def receive(self, name: str, transfer: str, end: int) -> Any:
        received = super().receive(name, transfer, end)
        self.requests[name].set_computed(end)
        self.settle(self.requests[name])
        self.requests[name].set_computed(0)
        return received


@pytest.mark.parametrize(
    ("cache", "ops", "what", "message"),
    [
        (
            SendsNothing,
            SENT,
            "transfer",
            "position 0 of request a, group 0, is not sent",
        ),
        (
            SendsWhole,
            SENT,
            "transfer",
            "the blocks [0], but position 2 of request a",
        ),
        (FreesAtOnce, SENT, "references", "transfer out still needs"),
        (ReceivesElsewhere, RECEIVED, "contents", "position 4 of request b, group 0, is"),
        (IsAlwaysFull, RECEIVED, "result", "received is none, allowed: 2 or 0"),
        (HitsEarly, RECEIVED, "hash", "position 2"),
    ],
)
def test_mistakes_are_found(
    cache: type[Manager], ops: Sequence[Op], what: str, message: str
) -> None:
    divergence = run_on(cache, *ops).divergence
    assert divergence is not None
    assert divergence.what == what
    assert message in divergence.message
