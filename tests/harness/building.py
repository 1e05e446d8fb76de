"""Programs for the tests: made of operations, or drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Cell
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import RandomSource
from lockstep.harness.programs.program import Program, parse_program, walk

ALL_KINDS = [(rules.name, kind) for rules in CONTRACTS.values() for kind in rules.kinds]

KINDS = [(name, kind) for name, kind in ALL_KINDS if CONTRACTS[name].has_arrays]
"""The kinds of caches; the others are kinds of engines."""

FRAMEWORKS = ("torch", "mlx")
"""Those of our caches."""

ALIKE = ("prefix", "paged")
"""Contracts whose caches are the same code on each framework, but for the arrays."""


def choose_frameworks(contract: str, number: int) -> Sequence[str]:
    """All of them; for a contract of `ALIKE` one of them, in turns."""
    turn = FRAMEWORKS[number % len(FRAMEWORKS)]
    return (turn,) if contract in ALIKE else FRAMEWORKS


def list_pairs() -> Iterator[tuple[str, str, str]]:
    """(backend, contract, kind) of our backends on the CPU, as `choose_frameworks`."""
    for number, (contract, kind) in enumerate(KINDS):
        for framework in choose_frameworks(contract, number):
            yield f"{framework}-cpu", contract, kind


SMALL: Mapping[str, Any] = {"step": 1, "conv_width": 2}
"""What the backends that misbehave declare."""


def make(
    *ops: Mapping[str, Any], contract: str = "layer", kind: str = "kv", **config: Any
) -> Program:
    document = {"format": "lockstep/1", "contract": contract, "ops": list(ops)}
    return parse_program({**document, "config": {"kind": kind, **config}}, "here")


def update(length: int, **more: Any) -> dict[str, Any]:
    return {"op": "update", "length": length, **more}


def trim(count: int, **more: Any) -> dict[str, Any]:
    return {"op": "trim", "count": count, **more}


def forward(
    positions: Sequence[int], sequences: Sequence[int], **more: Any
) -> dict[str, Any]:
    return {"op": "forward", "positions": positions, "sequences": sequences, **more}


def declare_all(contract: str, kind: str, **more: Any) -> Kind:
    """A kind with all operations that its contract has for it."""
    return Kind(frozenset(CONTRACTS[contract].list_operations(kind)), **more)


def draw(
    contract: str,
    kind: str,
    declared: Kind,
    seed: int = 5,
    dtypes: Sequence[str] = ("float32",),
    **more: Any,
) -> Iterator[Program]:
    """Programs without end."""
    drawer, source = Drawer(contract, kind, declared, dtypes, **more), RandomSource(seed)
    while True:
        yield drawer.draw(source)


def draw_some(count: int, *given: Any, **more: Any) -> list[Program]:
    return list(islice(draw(*given, **more), count))


def count_cells(
    programs: Iterable[Program], counted: Counter[Cell] | None = None
) -> Counter[Cell]:
    """Counts (abstract state, operation) for every step that is not skipped."""
    counted = Counter[Cell]() if counted is None else counted
    for program in programs:
        for step in walk(program, rows=False):
            if step.skipped is None:
                states = program.rules.get_states(step.op, step.model)
                counted.update((state, step.op["op"]) for state in states)
    return counted


def iter_changed(
    value: Any, wrongs: Sequence[Any], free: Sequence[str] = ()
) -> Iterator[tuple[str, Any]]:
    """A document with a field too few, one too many, or a value in the place of another,
    at every place that is not within a field of `free`; and which of these."""
    is_object = isinstance(value, dict)
    if is_object:
        yield "more", {**value, "surplus": 1}
    for key in value if is_object else range(len(value)):

        def put(new: Any, key: Any = key) -> Any:
            if is_object:
                return {**value, key: new}
            return [*value[:key], new, *value[key + 1 :]]

        if is_object:
            yield "less", {name: value[name] for name in value if name != key}
        yield from (("other", put(wrong)) for wrong in wrongs)
        if isinstance(value[key], dict | list) and key not in free:
            for how, changed in iter_changed(value[key], wrongs, free):
                yield how, put(changed)
