"""The weights change while requests hold K and V: what may be hit, and what goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.paged.states import get_states
from lockstep.harness.execution.executor import Result, run
from lockstep.harness.programs.program import trace, walk
from lockstep.impl.shared.operations import PAGED_CONFIG, PAGED_OPERATIONS, PAGED_TELLS
from lockstep.impl.torch.backend import cpu
from tests.harness import paging
from tests.harness.building import draw_some
from tests.harness.paging import RUN, Manager, ask, fork, make, open_request

UPDATE: Op = {"op": "update_weights"}
LAUNCH: Op = {"op": "launch"}
FINISH: Op = {"op": "finish"}

draw_up = partial(make, host=4, flight=2)


def end(op: str, transfer: str) -> Op:
    return {"op": op, "transfer": transfer}


def compute(name: str, *tokens: int) -> Sequence[Op]:
    return open_request(name, *tokens), ask("schedule", name), RUN


def sample(name: str, *tokens: int) -> Sequence[Op]:
    steps = ((ask("accept", name, sampled=x), ask("schedule", name), RUN) for x in tokens)
    return [op for step in steps for op in step]


def run_on(cache: Callable[[Any], Any], *ops: Op, **promises: Any) -> Result:
    promises = {"tells": PAGED_TELLS, **promises}
    return run(draw_up(*ops), paging.declare(cache, **promises), every=True)


GOES_ON = (*compute("a", 1, 2, 3), UPDATE, *sample("a", 4, 5))
"""The second block of a request has one token of older weights, and one of newer."""
BESIDE = (*GOES_ON, *compute("b", 1, 2, 3))
"""Another request has the same tokens of newer weights."""
FORKED = (*GOES_ON, fork("a", "b", 7), ask("schedule", "b"), RUN, *sample("b", 8))
REWOUND = (*GOES_ON, ask("rewind", "a", to=1, tokens=[7, 8]), ask("schedule", "a"), RUN)
PREEMPTED = (*GOES_ON, ask("preempt", "a"), ask("schedule", "a"), RUN)
IN_FLIGHT = (
    *(open_request("a", 1, 2, 3), ask("schedule", "a"), LAUNCH, UPDATE, FINISH),
    *sample("a", 4),
)
STORED = (*compute("a", 1, 2, 3), ask("offload", "a", transfer="out"))
LANDED = (*STORED, UPDATE, end("landed", "out"))
ON_HOST = (*STORED, end("landed", "out"), UPDATE)
LOADING = (
    *(*STORED, end("landed", "out"), ask("free", "a"), {"op": "evict", "count": 256}),
    *(open_request("b", 1, 2, 3), ask("load", "b", transfer="in"), UPDATE),
    *(end("landed", "in"), ask("schedule", "b"), RUN, *sample("b", 4)),
)
FAILED = (
    *(*compute("a", 1, 2, 3, 4, 5), ask("offload", "a", transfer="out")),
    *(end("landed", "out"), ask("free", "a"), {"op": "evict", "count": 256}),
    *(open_request("b", 1, 2, 3, 4, 5), ask("load", "b", transfer="in"), UPDATE),
    *({**end("failed", "in"), "arrived": 1}, ask("schedule", "b"), RUN),
)
"""The first block has arrived, and is kept."""


class Ignores(Manager):
    """Keeps all prefixes."""

    def update_weights(self) -> None:
        pass


class WhenIdle(Manager):
    """Keeps all prefixes while requests hold blocks."""

    def update_weights(self) -> None:
        self.reset()


class Publishes(Manager):
    """What is computed later can be hit."""

    stale: Callable[[Any], bool] = staticmethod(lambda request: False)

    def update_weights(self) -> None:
        super().update_weights()
        for request in self.requests.values():
            request.is_stale = self.stale(request)


class PublishesFlights(Publishes):
    stale = staticmethod(lambda request: request.computed + request.awaited > 0)


class PublishesLoads(Publishes):
    stale = staticmethod(lambda request: request.computed > 0)


class PublishesForks(Manager):
    def fork(self, source: str, target: str, tokens: Sequence[int]) -> bool:
        is_done = super().fork(source, target, tokens)
        self.requests[target].is_stale = False
        return is_done


class PublishesRewound(Manager):
    def rewind(self, name: str, to: int, tokens: Sequence[int]) -> bool:
        is_done = super().rewind(name, to, tokens)
        self.requests[name].is_stale = False
        return is_done


class KeepsHost(Manager):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.host.forget_all = lambda: None  # type: ignore[method-assign]


class PublishesLanded(Manager):
    def update_weights(self) -> None:
        ends = {name: item.end for name, item in self.transfers.items()}
        super().update_weights()
        for name, item in self.transfers.items():
            item.end = ends[name]


class Shares(Manager):
    """Gives a request the block of another that has computed the same tokens."""

    def run(self, lags: bool = False) -> None:
        super().run(lags)
        block = self.blocks.find(0, self.requests["a"].hash.keys[0])
        [table] = self.requests["a"].tables or [[None]]
        if block not in (None, table[0]):
            self.blocks.release([table[0] or 0])
            self.blocks.hold([block or 0])
            table[0] = block


class Forgets(Manager):
    """Nothing that a request computes which exists now can be hit: no mistake, but for a
    cache that promises reuse."""

    def update_weights(self) -> None:
        super().update_weights()
        for request in self.requests.values():
            request.is_stale = True


PROGRAMS = (GOES_ON, BESIDE, FORKED, REWOUND, PREEMPTED, IN_FLIGHT, LANDED, ON_HOST)


@pytest.mark.parametrize("ops", [*PROGRAMS, LOADING, FAILED])
def test_ours_are_right(ops: Sequence[Op]) -> None:
    for cache in Manager, cpu().open:
        result = run_on(cache, *ops, *compute("z", 1, 2, 3, 4, 5))
        assert (result.skipped, result.divergence) == (0, None)


@pytest.mark.parametrize(
    ("cache", "ops", "what", "step"),
    [
        (Ignores, GOES_ON, "hash", 3),
        (WhenIdle, GOES_ON, "hash", 3),
        (Publishes, GOES_ON, "hash", 6),
        (Shares, BESIDE, "table", 12),
        (PublishesForks, FORKED, "hash", 12),
        (PublishesRewound, REWOUND, "hash", 12),
        (PublishesFlights, IN_FLIGHT, "hash", 7),
        (PublishesLanded, LANDED, "hash", 5),
        (KeepsHost, ON_HOST, "hash", 5),
        (PublishesLoads, LOADING, "hash", 10),
    ],
)
def test_a_mistake_is_found(
    cache: type[Manager], ops: Sequence[Op], what: str, step: int
) -> None:
    divergence = run_on(cache, *ops).divergence
    assert divergence is not None
    assert (divergence.what, divergence.step) == (what, step)
    if what == "hash":
        assert "of other weights in place of token" in divergence.message


@pytest.mark.parametrize("cache", [Ignores, WhenIdle, Publishes])
def test_a_mistake_is_found_by_the_hit_alone(cache: type[Manager]) -> None:
    ops = *GOES_ON, *compute("b", 1, 2, 3), *compute("c", 1, 2, 3, 4, 5)
    divergence = run_on(cache, *ops, tells=frozenset()).divergence
    assert divergence is not None
    assert divergence.what == "result"


def test_content_of_other_weights_is_other_content() -> None:
    """A block of the same tokens, by the contents of the blocks alone."""
    moved = draw_up(*BESIDE, ask("free", "b"))
    assert run(moved, paging.declare(Shares, tells=frozenset())).divergence is not None


def test_other_requests_may_be_left_out_too() -> None:
    ops = (open_request("b", 1, 2, 3), *GOES_ON, ask("schedule", "b"), RUN)
    tells = PAGED_TELLS - {"reuse"}
    assert run_on(Forgets, *ops, tells=tells).divergence is None
    divergence = run_on(Forgets, *ops).divergence
    assert divergence is not None
    assert divergence.what == "reuse"


def test_what_was_saved_with_older_weights_is_not_restored() -> None:
    saved = (*compute("a", 1, 2, 3), ask("free", "a"), {"op": "save"}, UPDATE)
    [*_, restored] = trace(draw_up(*saved, {"op": "restore"}))
    assert restored == {"skipped": "nothing was saved with these weights"}
    [*_, restored] = trace(draw_up(*saved, {"op": "save"}, {"op": "restore"}))
    assert restored == {}


def test_no_request_of_the_step_may_read_what_the_step_computes() -> None:
    """Ours may be told: it hits nothing that the planned step computes."""
    both = [(open_request(name, 1, 2, 3), ask("schedule", name)) for name in "ab"]
    program = draw_up(*both[0], *both[1], UPDATE)
    reason = "a request of the step reads what another one of the step computes"
    assert list(trace(program))[-1] == {"skipped": reason}
    assert run(program, paging.declare()).skipped == 0


def test_states_tell_who_is_stale() -> None:
    ops = (*GOES_ON, ask("preempt", "a"), ask("schedule", "a"))
    states = [get_states(step.op, step.model) for step in walk(draw_up(*ops))]
    stale = [number for number, names in enumerate(states) if "stale" in names]
    assert stale == [4, 5, 6, 7, 8, 9, 10]
    assert [number for number, names in enumerate(states) if "updated" in names] == [
        *(5, 6, 8, 9, 11),
    ]


def count_programs(kind: str, declared: Kind, count: int) -> Counter[str]:
    """Counts the programs with each operation."""
    programs = draw_some(count, "paged", kind, declared)
    return Counter(name for item in programs for name in {op["op"] for op in item.ops})


@pytest.mark.parametrize("kind", ["paged-full", "paged-state"])
def test_weights_change_in_some_programs(kind: str) -> None:
    declared = cpu().contracts["paged"][kind]
    assert 5 <= count_programs(kind, declared, 60)["update_weights"] <= 30
    plain = Kind(PAGED_OPERATIONS - {"update_weights"}, PAGED_CONFIG)
    assert not count_programs(kind, plain, 10)["update_weights"]
