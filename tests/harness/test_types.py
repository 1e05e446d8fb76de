"""A number that a cache answers must be an integer, whatever it equals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load
from tests.harness.building import FRAMEWORKS, KINDS, draw_some

Lie = Callable[[int], Any]


PAIRS = [
    (f"{FRAMEWORKS[number % 2]}-cpu", contract, kind)
    for number, (contract, kind) in enumerate(KINDS)
    if kind != "batch-list"  # its parts are caches of other kinds
]


class Equal:
    """Equals everything, and is no number."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


LIES: Mapping[str, Lie] = {
    "float": float,
    "float16": np.float16,
    "array": lambda number: np.array(number, np.float32),
    "bool": bool,
    "equal": lambda number: Equal(),
}


class Liar:
    """A cache, a snapshot or a list of the backend, whose member `name` lies.

    Attributes:
        numbers: the members that have returned integers.
    """

    def __init__(self, inner: Any, name: str, lie: Lie, numbers: set[str]) -> None:
        vars(self).update(inner=inner, name=name, lie=lie, numbers=numbers)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if not callable(value):
            return self.change(name, value)
        return lambda *given: self.change(name, value(*map(unwrap, given)))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)

    def change(self, name: str, value: Any) -> Any:
        if type(value) is int:
            self.numbers.add(name)
            return self.lie(value) if name == self.name else value
        if isinstance(value, list | tuple):
            items = [self.change(name, item) for item in value]
            is_named = hasattr(value, "_fields")
            return type(value)(*items) if is_named else type(value)(items)
        if isinstance(value, dict):
            return {key: self.change(name, item) for key, item in value.items()}
        if type(value).__module__.startswith("lockstep.impl"):
            return Liar(value, self.name, self.lie, self.numbers)
        return value


def unwrap(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(unwrap, value))
    return value.inner if isinstance(value, Liar) else value


def lie_in(backend: Backend, name: str, lie: Lie, numbers: set[str]) -> Backend:
    def open_liar(config: Mapping[str, Any]) -> Any:
        config = {field: unwrap(value) for field, value in config.items()}
        return Liar(backend.open(config), name, lie, numbers)

    return replace(backend, open=open_liar)


def find(backend: Backend, programs: list[Program]) -> str | None:
    """The message of the first divergence."""
    for program in programs:
        if seen := run(program, backend).divergence:
            return seen.message
    return None


@pytest.mark.parametrize(("name", "contract", "kind"), PAIRS)
def test_a_number_of_another_type_diverges(name: str, contract: str, kind: str) -> None:
    backend = load(name)
    declared = backend.contracts[contract][kind]
    programs = draw_some(4, contract, kind, declared, dtypes=backend.dtypes)
    numbers = set[str]()
    assert find(lie_in(backend, "", int, numbers), programs) is None
    assert numbers
    missed = []
    for member in sorted(numbers - {"save"}):  # what it returns is the cache's own
        for what, lie in LIES.items():
            message = find(lie_in(backend, member, lie, set()), programs)
            missed += [] if message else [(member, what)]
    assert not missed
