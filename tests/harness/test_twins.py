"""Twins: two paged caches that may differ in their blocks, and in nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lockstep.harness.backends import Backend
from lockstep.harness.backends.twins import Twins
from lockstep.harness.execution.executor import run
from tests.harness.building import draw_some
from tests.harness.paging import GROUPS, Manager, declare, make


def make_twins(other: type[Manager]) -> Backend:
    """A backend whose caches are a `Manager` and its twin."""
    backend = declare(Manager, config={"groups": GROUPS})
    return replace(backend, open=lambda config: Twins(Manager(config), other(config)))


def find(backend: Backend) -> tuple[str, str] | None:
    """The signature and the message of the first divergence."""
    declared = backend.contracts["paged"]["paged-full"]
    for program in draw_some(100, "paged", "paged-full", declared, 3):
        divergence = run(program, backend).divergence
        if divergence is not None:
            return divergence.get_signature(program), divergence.message
    return None


class Port(Manager):
    """Takes other blocks, which is its own choice."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.blocks.free.reverse()


class Shorter(Port):
    """Hits a block less, which is allowed to a cache that is alone."""

    def match(self, request: str) -> int:
        return max(0, super().match(request) - self.unit)


class Idle(Port):
    """Evicts nothing."""

    def evict(self, count: int) -> int:
        return 0


class Lenient(Port):
    """Ends a request that there is not, without a word."""

    def free(self, request: str, reuse: bool) -> None:
        if request in self.requests:
            super().free(request, reuse)


class Strict(Port):
    """Refuses to evict."""

    def evict(self, count: int) -> int:
        raise ValueError("not now")


class Forgetful(Port):
    """Keeps nothing of a request that ends."""

    def free(self, request: str, reuse: bool) -> None:
        super().free(request, False)


class Miscounting(Port):
    """Tells of a reference too many."""

    def pool(self) -> Any:
        told = super().pool()
        return told._replace(references={**told.references, 99: 1})


def test_twins_that_choose_alike_agree() -> None:
    assert find(make_twins(Port)) is None


@pytest.mark.parametrize(
    ("other", "signature", "words"),
    [
        (Shorter, "-twins", " differ: "),
        (Idle, "-twins", " of the first twin, "),
        (Lenient, "free-twins", "ValueError: there is no request"),
        (Strict, "-twins", "ValueError: not now of the second"),
        (Forgetful, "free-twins", "counts of"),
        (Miscounting, "-twins", "counts of held blocks of"),
    ],
)
def test_a_difference_is_found(other: type[Manager], signature: str, words: str) -> None:
    found = find(make_twins(other))
    assert found is not None
    assert signature in found[0]
    assert words in found[1]


def test_the_difference_is_allowed_to_one_that_is_alone() -> None:
    assert find(declare(Shorter, config={"groups": GROUPS})) is None


def test_other_counts_can_be_compared() -> None:
    caches = [Manager(make().config) for _ in range(2)]
    twins = Twins(*caches, counts=lambda cache: {"known": len(cache.requests)})
    twins.open("a", [1, 2], None)
    assert twins.schedule("a", 2) == 0
