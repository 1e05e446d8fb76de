"""Transfers of paged caches: what may be answered, and what must not happen meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.paged import PAGED
from lockstep.harness.contracts.paged.checks import check_busy, check_host, check_pinned
from lockstep.harness.contracts.paged.contents import Contents
from lockstep.harness.contracts.paged.states import get_states
from lockstep.harness.contracts.paged.transfers import list_away
from lockstep.harness.core.errors import Broken
from lockstep.harness.execution.executor import Result, run
from lockstep.harness.programs.program import trace, walk
from lockstep.impl.shared.operations import PAGED_TELLS
from tests.harness import paging
from tests.harness.paging import RUN, Manager, ask, make, open_request

EVICT: Op = {"op": "evict", "count": 256}


def end(op: str, transfer: str, **fields: Any) -> Op:
    return {"op": op, "transfer": transfer, **fields}


STORED: Sequence[Op] = (
    *(open_request("a", 1, 2, 3, 4, 5), ask("schedule", "a"), RUN),
    *(ask("offload", "a", transfer="out"), end("landed", "out"), ask("free", "a"), EVICT),
    open_request("b", 1, 2, 3, 4, 6),
)
"""Four tokens in two blocks of other memory, and none on the device."""
LOADING = (*STORED, ask("load", "b", transfer="in"))
LANDED = (*LOADING, end("landed", "in"), ask("schedule", "b"), RUN)


draw_up = partial(make, host=4)
declare = partial(paging.declare, tells=PAGED_TELLS)


def run_on(cache: type[Manager], *ops: Op, **more: Any) -> Result:
    return run(draw_up(*ops), declare(cache, **more))


def test_one_that_is_correct_agrees() -> None:
    result = run_on(Manager, *LANDED)
    assert (result.steps, result.skipped, result.divergence) == (len(LANDED), 0, None)


# --- what may be answered ---------------------------------------------------------------


def test_without_a_backend_what_is_away_is_loaded() -> None:
    answers = list(trace(draw_up(*LANDED)))
    assert answers[8] == {"loaded": {"one_of": [4, None, 2]}}
    assert answers[10] == {"start": 4}


def test_nothing_need_be_loaded() -> None:
    """Then its transfer is none, and the end of it a misuse."""

    class Lazy(Manager):
        def load(self, request: str, transfer: str) -> None:
            return None

    result = run_on(Lazy, *LANDED)
    assert result.divergence is None
    skipped = run_on(Lazy, *LANDED, refuses=False)
    assert (skipped.skipped, skipped.divergence) == (1, None)


def test_what_a_failed_load_keeps_must_be_there() -> None:
    class Hopeful(Manager):
        kept = 4

        def failed(self, transfer: str, arrived: int) -> int:
            super().landed(transfer)
            return self.kept

    failed = (*LOADING, end("failed", "in", arrived=9), ask("schedule", "b"), RUN)
    assert run_on(Manager, *failed).divergence is None
    divergence = run_on(Hopeful, *failed, tells=frozenset()).divergence
    assert divergence is not None
    assert (divergence.what, divergence.step) == ("contents", 9)
    assert "position 2 of request b, group 0, is nothing" in divergence.message
    Hopeful.kept = 3
    divergence = run_on(Hopeful, *failed).divergence
    assert divergence is not None
    assert "kept is 3, allowed: 0 or 4 or 2" in divergence.message


def test_after_a_restore_there_are_no_requests() -> None:
    ops = (*STORED, {"op": "save"}, *LOADING[8:], {"op": "restore"})
    again = (*ops, open_request("b", 1, 2, 3, 4, 6), ask("load", "b", transfer="in"))
    result = run_on(Manager, *again, end("landed", "in"), ask("schedule", "b"), RUN)
    assert (result.skipped, result.divergence) == (0, None)
    [*_, last] = walk(draw_up(*again))
    assert list(last.model.cache.requests) == ["b"]
    skipped = run_on(Manager, {"op": "restore"})
    assert (skipped.skipped, skipped.why_skipped) == (
        1,
        "nothing was saved with these weights",
    )


# --- what must not happen meanwhile -----------------------------------------------------


class NeverRefuses(Manager):
    def landed(self, transfer: str) -> None:
        if transfer in self.transfers:
            super().landed(transfer)


class MixesUp(Manager):
    """Restores the keys of the host's blocks in another order."""

    def restore(self, saved: Any) -> None:
        (sizes, device, host), prefixes = saved
        blocks = [block for block, *_ in reversed(host)]
        mixed = [(block, *rest) for block, (_, *rest) in zip(blocks, host, strict=True)]
        super().restore(((sizes, device, mixed), prefixes))


class NeverLends(Manager):
    """Lets nobody load what has landed on the host."""

    def publish(self, over: Any, pairs: Any) -> None:
        pass


class ForgetsTheDevice(Manager):
    """Resets the device alone."""

    def reset(self) -> bool:
        return self.is_idle and self.blocks.evict(self.blocks.count) is not None


class ForgetsTheHost(Manager):
    """Resets other memory alone."""

    def reset(self) -> bool:
        return self.is_idle and self.host.evict(self.host.count) is not None


RESET: Op = {"op": "reset"}
SAVED = (*STORED, {"op": "save"}, {"op": "restore"}, STORED[-1], LOADING[-1])

FAULTS: Sequence[tuple[type[Manager], Sequence[Op], Sequence[str], str, str]] = [
    # cache, program, what it tells, what differs, words
    (NeverRefuses, [end("landed", "x")], [], "error", "usage"),
    (MixesUp, SAVED, ["host_entries"], "hash", "holds token 0 in place of token 2"),
    (NeverLends, STORED, ["host_entries", "reuse"], "reuse", "1 of group 0 (full) at"),
    (ForgetsTheDevice, (*STORED, RESET), ["host_entries"], "hash", "2 entries of other"),
    (ForgetsTheHost, (*STORED[:-2], RESET), ["entries"], "hash", "2 entries, the first"),
]
"""More are in `impl/faults/transfers.py`."""


@pytest.mark.parametrize(("cache", "ops", "tells", "what", "words"), FAULTS)
def test_a_mistake_is_named(
    cache: type[Manager], ops: Sequence[Op], tells: Any, what: str, words: str
) -> None:
    program = draw_up(*ops, blocks=4, host=2)
    assert run(program, declare()).divergence is None
    divergence = run(program, declare(cache, tells=frozenset(tells))).divergence
    assert divergence is not None
    assert (divergence.what, words in divergence.message) == (what, True), divergence


def test_what_nobody_may_reuse_need_not_be_loaded() -> None:
    begun = (*STORED[:3], ask("offload", "a", transfer="out"))
    gone = (
        *begun,
        ask("preempt", "a"),
        ask("free", "a", reuse=False),
        end("landed", "out"),
    )
    backend = declare(NeverLends, tells=frozenset({"host_entries", "reuse"}))
    assert run(draw_up(*gone), backend).divergence is None


# --- contents ---------------------------------------------------------------------------


def test_a_transfer_copies_what_is_there_when_it_lands() -> None:
    contents = Contents()
    contents.device = {(1, 0): (0, 10, ()), (1, 1): (0, 11, ()), (2, 0): (0, 12, (1,))}
    contents.host = {(5, 0): (0, 99, ())}
    contents.begin("t", [(1, 5), (2, 6)], leaves=True)
    assert contents.host == {}
    contents.device[1, 1] = 0, 20, ()
    assert contents.list_busy(on_host=False) == {1: "t", 2: "t"}
    assert contents.list_busy(on_host=True) == {5: "t", 6: "t"}
    assert len(contents.transfers["t"].pairs) == 2
    contents.end("t")
    second = {(5, 0): (0, 10, ()), (5, 1): (0, 20, ())}
    assert contents.host == {**second, (6, 0): (0, 12, (1,))}
    contents.begin("u", [(5, 1), (6, 3)], leaves=False)
    assert contents.device == {(2, 0): (0, 12, (1,))}
    contents.end("u", 1)
    first = {(1, 0): (0, 10, ()), (1, 1): (0, 20, ())}
    assert contents.device == {(2, 0): (0, 12, (1,)), **first}


@pytest.mark.parametrize(
    ("leaves", "pairs", "words"),
    [
        (True, [(3, 5)], "transfer u writes block 5 of other memory, which transfer t"),
        (False, [(9, 1)], "transfer u writes block 1 of the device, which transfer t"),
        (True, [(1, 9)], None),  # both read it
    ],
)
def test_no_transfer_writes_what_another_needs(
    leaves: bool, pairs: Any, words: str | None
) -> None:
    contents = Contents()
    contents.begin("t", [(1, 5)], leaves=True)
    if words is None:
        contents.begin("u", pairs, leaves)
        return
    with pytest.raises(Broken, match=words) as caught:
        contents.begin("u", pairs, leaves)
    assert caught.value.what == "transfer"


def test_a_block_that_a_transfer_needs_may_not_be_given_out() -> None:
    check_busy([2, 3], {1: "t"}, "")
    words = "block 1 of the host is available, but transfer t still needs it"
    with pytest.raises(Broken, match=words):
        check_busy([2, 1], {1: "t"}, " of the host")


@pytest.mark.parametrize(
    ("idle", "capacity", "words"),
    [
        ([1, 2], 3, None),
        (
            [1],
            3,
            "1 blocks of other memory are free or can be evicted, and transfers use",
        ),
        ([1, 2, 2], 3, "3 blocks .* use 1: 4 in total, but there are 3"),
        ([1, 0], 2, "block 0 of other memory is available, but transfer t"),
        ([], 0, None),  # not reported
    ],
)
def test_no_block_of_other_memory_is_lost(
    idle: list[int], capacity: int, words: str | None
) -> None:
    with nullcontext() if words is None else pytest.raises(Broken, match=words):
        check_host(idle, {0: "t"}, capacity)


def test_only_what_a_transfer_needs_is_pinned() -> None:
    check_pinned([1, 1, 2], {1, 2, 3})
    words = "block 1 is pinned, but no running transfer or step needs it"
    with pytest.raises(Broken, match=words):
        check_pinned([2, 1], {2})


# --- states -----------------------------------------------------------------------------


def find_states(*ops: Op) -> set[str]:
    """The states in which the last operation runs."""
    states = [get_states(step.op, step.model) for step in walk(draw_up(*ops))]
    return set(states[-1])


def test_states_of_transfers() -> None:
    fail = end("failed", "in")
    assert "loading" in find_states(*LOADING, fail)
    assert "loaded" in find_states(*LANDED)
    offload = (*STORED[:3], ask("offload", "a", transfer="out"))
    assert "offloading" in find_states(*offload, end("landed", "out"))
    preempted = find_states(*offload, ask("preempt", "a"), end("landed", "out"))
    assert {"offloading", "waiting"} <= preempted
    orphaned = find_states(*LOADING, ask("free", "b"), fail)
    assert {"none", "orphaned"} <= orphaned
    assert "failed" in find_states(*LOADING, fail, ask("match", "b"))
    save = (*STORED, {"op": "save"}, {"op": "restore"})
    assert "restored" in find_states(*save, STORED[-1], ask("match", "b"))


def test_what_is_drawn_for_a_load() -> None:
    """What is withdrawn must not be hit again, and may be asked for; other content that
    begins with the same token is not."""
    both = (
        *(*STORED[:5], open_request("c", 1, 9, 3), ask("schedule", "c"), RUN),
        *(ask("offload", "c", transfer="out"), end("landed", "out"), EVICT),
    )
    freed = (*both, ask("free", "a", reuse=False), STORED[-1], ask("match", "b"))
    *_, last = walk(draw_up(*freed))
    [(_, withdrawn)] = last.model.withdrawn
    assert withdrawn[:4] == (1, 2, 3, 4)
    assert last.model.offloaded == last.model.away != []
    assert list_away(last.model) == ["b"]


def test_any_number_of_blocks_is_evicted_unless_content_is_to_be_loaded() -> None:
    first: Any = SimpleNamespace(below=lambda limit: 1, pick=lambda options: options[0])
    drawn = [
        PAGED.operations["evict"].draw_fields(first, step.model)
        for step in walk(draw_up(*STORED))
    ]
    assert drawn == 5 * [{"count": 1}] + 3 * [{"count": 256}]


def test_only_what_is_declared_is_to_be_reached() -> None:
    tiers = {"loading", "loaded", "offloading", "host-full", "orphaned", "failed"}
    every = frozenset(PAGED.operations)
    config = {"host": (0, 4)}
    assert tiers | {"restored"} <= {*PAGED.list_states("paged-full", Kind(every, config))}
    assert not tiers & {*PAGED.list_states("paged-full", Kind(every))}
    kind = Kind(every - {"restore", "load"}, config)
    left = {*PAGED.list_states("paged-full", kind)} & (tiers | {"restored"})
    assert left == {"offloading", "host-full", "failed"}
