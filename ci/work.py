"""Runs the programs of `lockstep check` in this process, so that they can be measured.

Import this module after the measurement has begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.hypothesis import generate
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load
from lockstep.harness.workers.slices import get_seed, is_watched


class Work(NamedTuple):
    """A kind of cache on a backend."""

    backend: Backend
    contract: str
    kind: str
    declared: Kind

    def check(self, number: int, programs: int, most: int) -> None:
        """Draws a slice of programs, like a worker, and runs at most `most` of them.

        Raises:
            AssertionError: a program diverges.
        """
        numbers = count()

        def consume(program: Program) -> None:
            number = next(numbers)
            if number < most:
                result = run(program, self.backend, is_watched(number))
                assert result.divergence is None, result.divergence

        drawer = Drawer(self.contract, self.kind, self.declared, self.backend.dtypes)
        seed = get_seed(0, self.contract, self.kind, number)
        generate(programs, seed, drawer.draw, consume)


def list_work(names: Sequence[str], kinds: Sequence[str] = ()) -> Iterator[Work]:
    """Yields the kinds of each backend; if `kinds` is not empty, only these kinds."""
    for name in names:
        backend = load(name)
        for contract, declared in backend.contracts.items():
            for kind, own in declared.items():
                if not kinds or kind in kinds:
                    yield Work(backend, contract, kind, own)


def list_different(works: Sequence[Work]) -> list[Work]:
    """Returns the first work of each combination of kind, declaration and dtypes, and
    skips the others."""

    def get_key(one: Work) -> object:
        return one.kind, one.declared, one.backend.dtypes

    keys = [get_key(one) for one in works]
    return [one for place, one in enumerate(works) if keys.index(keys[place]) == place]
