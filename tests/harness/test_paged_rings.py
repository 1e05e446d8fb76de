"""Programs of the paged contract follow a backend's answers: what no caller could ask
after them is skipped. And what is checked of a ring, which no table describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend, Duty, Kind
from lockstep.harness.backends.paged import Pool, Ring
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.paged.checks import check_pool
from lockstep.harness.core.errors import Broken
from lockstep.harness.execution.executor import Result, run
from lockstep.impl.shared.paged_facts import Telling, open_paged
from tests.harness.building import make
from tests.harness.misbehaving import correct

OPERATIONS = frozenset({"open", "schedule", "run", "free", "fork", "reset"})


class Full(Telling):
    """Has no room for a fork, and knows what it was asked."""

    asked: list[str]

    def fork(self, source: str, target: str, tokens: Sequence[int]) -> bool:
        self.asked = []
        return False

    def schedule(self, request: str, count: int) -> int | None:
        if hasattr(self, "asked"):
            self.asked.append(request)
        return super().schedule(request, count)


def make_full(config: Mapping[str, Any]) -> Any:
    names = "groups", "blocks", "max_length", "hash_block", "prefix_cache"
    return Full(*(config[name] for name in names))


def run_on(kind: Kind, opening: Any, *ops: Op, type: str = "full") -> Result:
    backend: Backend = replace(
        correct(), open=opening, contracts={"paged": {f"paged-{type}": kind}}
    )
    width = {} if type == "full" else {"width": 3}
    groups = [{"type": type, "block": 2, **width, "layers": 1}]
    program = make(*ops, contract="paged", kind=f"paged-{type}", groups=groups)
    return run(program, backend)


BEGUN: Sequence[Op] = (
    {"op": "open", "request": "a", "tokens": [1, 2, 3]},
    {"op": "schedule", "request": "a", "count": 3},
    {"op": "run"},
)
TIGHT: Sequence[Op] = (
    *BEGUN,
    {"op": "open", "request": "c", "tokens": [*range(20)]},
    {"op": "schedule", "request": "c", "count": 20},
    {"op": "run"},
    {"op": "fork", "source": "a", "target": "b", "tokens": [1]},
    {"op": "schedule", "request": "b", "count": 1},
)
"""A copy of all blocks of a has no room, so that a backend may answer as it likes."""


def test_a_misuse_after_the_answers_is_asked_only_of_what_refuses_it() -> None:
    """After this answer there is no request b."""
    opened: list[Full] = []

    def open_full(config: Mapping[str, Any]) -> Any:
        opened.append(make_full(config))
        return opened[-1]

    skipped = []
    for refuses in (False, True):
        kind = Kind(OPERATIONS, {}, refuses=refuses)
        result = run_on(kind, open_full, *TIGHT)
        assert result.divergence is None
        skipped.append((result.skipped, opened[-1].asked))
    assert skipped == [(1, []), (0, ["b"])]


def test_a_duty_holds_after_the_answers() -> None:
    duty = Duty({"op": "reset", "held": [1, None]}, "reset under requests")
    kind = Kind(OPERATIONS, {}, duties=(duty,))

    def forgetful(config: Mapping[str, Any]) -> Any:
        cache = open_paged(config, None)
        cache.reset = lambda: True  # type: ignore[method-assign]
        return cache

    reset = {"op": "reset"}
    result = run_on(kind, forgetful, *BEGUN, reset)
    assert result.divergence is None
    assert result.why_skipped == "callers must not: reset under requests"
    assert run_on(replace(kind, duties=()), forgetful, *BEGUN, reset).divergence


def test_a_ring_needs_a_backend_that_stores() -> None:
    def open_ring(config: Mapping[str, Any]) -> Any:
        cache = open_paged(config, None)
        cache.tables = lambda request: [Ring([1])]  # type: ignore[assignment]
        return cache

    kind = Kind(OPERATIONS, {})
    divergence = run_on(kind, open_ring, *BEGUN, type="sliding").divergence
    assert divergence is not None
    assert divergence.message == 'tables(a) has a ring; that needs data "backend"'


def test_the_blocks_of_a_ring_are_counted() -> None:
    tables = {"a": [Ring([1, 2])]}
    check_pool(tables, Pool({1: 1, 2: 1}, [3], []), 3)
    with pytest.raises(Broken, match="block 2 has 0 references, and 1 tables hold it"):
        check_pool(tables, Pool({1: 1}, [2, 3], []), 3)
