"""An operation that is added to a contract from outside: one class is all it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts import answer_schemas, operation
from lockstep.harness.contracts.answer_schemas import NUMBER, record
from lockstep.harness.contracts.layer import model as sides
from lockstep.harness.contracts.layer import operations
from lockstep.harness.contracts.layer.model import LayerModel
from lockstep.harness.contracts.layer.operations import (
    CACHE,
    OPERATIONS,
    Fields,
    LayerOperation,
)
from lockstep.harness.contracts.layer.system import LayerSystem
from lockstep.harness.contracts.operation import Answer, Effect, Op, Source
from lockstep.harness.core import document
from lockstep.harness.core.document import LENGTH, Schema
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import run
from lockstep.harness.execution.shrink import Shrinker
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import RandomSource
from lockstep.harness.programs.program import Program, parse_program, trace
from tests.harness.misbehaving import OPERATIONS as PLAIN
from tests.harness.misbehaving import Cache, declare

README = Path(sides.__file__).parents[1] / "README.md"


class Rolling(Cache):
    """The correct cache with the method of the README's operation."""

    def rollback(self, count: int) -> bool:
        return count <= self.offset and self.trim(count) == count


class Greedy(Rolling):
    """Takes back all it has where more is asked for."""

    def rollback(self, count: int) -> bool:
        return bool(self.trim(count) == count)


def declare_with(name: str, open_cache: Callable[[], Cache]) -> Backend:
    contracts = {"layer": {"kv": Kind(PLAIN | {name})}}
    return replace(declare(open_cache, {}), contracts=contracts)


def draw(backend: Backend, count: int = 40) -> list[Program]:
    declared = backend.contracts["layer"]["kv"]
    drawer, source = Drawer("layer", "kv", declared, ("float32",)), RandomSource(1)
    return [drawer.draw(source) for _ in range(count)]


def parse(*ops: Op) -> Program:
    document = {"format": "lockstep/1", "contract": "layer", "config": {"kind": "kv"}}
    return parse_program({**document, "ops": list(ops)}, "here")


@pytest.fixture
def rollback(monkeypatch: pytest.MonkeyPatch) -> LayerOperation:
    """The operation of the README, added for one test."""
    code = README.read_text().split("```python\n")[1].split("```")[0]
    modules = answer_schemas, document, operation, operations, sides
    names = [vars(module) for module in modules]
    scope: dict[str, Any] = {"ClassVar": ClassVar, "Mapping": Mapping, "Source": Source}
    scope |= {name: value for known in names for name, value in known.items()}
    exec(compile(code, str(README), "exec"), scope)
    added: LayerOperation = scope["Rollback"]()
    monkeypatch.setitem(OPERATIONS, added.name, added)
    return added


def test_it_is_read_drawn_and_compared(rollback: LayerOperation) -> None:
    backend = declare_with("rollback", Rolling)
    programs = draw(backend)
    drawn = [op for program in programs for op in program.ops if op["op"] == "rollback"]
    assert len(drawn) > len(programs)
    answers = [answer for program in programs for answer in trace(program)]
    assert {answer["ok"] for answer in answers if "ok" in answer} == {True, False}
    for program in programs:
        assert parse_program(program.to_json(), "here") == program
        result = run(program, backend, every=True)
        assert (result.divergence, result.skipped) == (None, 0)
    with pytest.raises(UsageError, match=r"rollback.*count: 0 is less than the minimum"):
        parse({"op": "rollback", "count": 0})


def test_a_mistake_in_it_is_found_shrunk_and_described(rollback: LayerOperation) -> None:
    backend = declare_with("rollback", Greedy)

    def fails(program: Program) -> bool:
        found = run(program, backend).divergence
        return found is not None and found.operation == "rollback"

    failing = next(program for program in draw(backend) if fails(program))
    small = Shrinker(failing, fails, 20).shrink()
    assert [op["op"] for op in small.ops] == ["update", "rollback"]
    assert small.to_json()["ops"] == [
        {"op": "update", "length": 1},
        {"op": "rollback", "count": 2},
    ]
    assert rollback.describe(small.ops[1]) == "roll back 2 tokens"
    divergence = run(small, backend).divergence
    assert divergence is not None
    assert divergence.message == "offset is 0, not 1"


@pytest.mark.parametrize("missing", ["answer", "effect"])
def test_a_class_without_a_declaration_is_refused(missing: str) -> None:
    declared = {"name": "shed", "answer": {}, "effect": Effect.READS}
    del declared[missing]
    with pytest.raises(TypeError, match=f"Shed declares no {missing}"):
        type("Shed", (LayerOperation,), declared)


def test_without_it_such_a_program_is_refused() -> None:
    with pytest.raises(UsageError, match='unknown "rollback"'):
        parse({"op": "rollback", "count": 1})


# --- an operation that leaves the backend a choice --------------------------------------


class Shed(LayerOperation):
    """Drops some of the last tokens: how many, up to `count`, the backend says."""

    name = "shed"
    writes = True
    fields: ClassVar[Mapping[str, Schema]] = {"count": LENGTH, **CACHE}
    answer = record(dropped=NUMBER)
    effect = Effect.REMOVES

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        return {"count": source.between(1, 4)}

    def run_reference(self, op: Op, model: LayerModel) -> Answer:
        most = min(op["count"], model.get(op["cache"]).offset)
        return {"dropped": {"between": [0, most]}}

    def resolve(self, op: Op, model: LayerModel, observed: Answer) -> None:
        model.get(op["cache"]).trim(observed["dropped"])

    def run_backend(self, op: Op, system: LayerSystem, model: LayerModel) -> Answer:
        return {"dropped": system.get(op["cache"]).shed(op["count"])}


def shedding(says: int, keeps: int) -> Callable[[], Cache]:
    """A cache that keeps `keeps` of the tokens that it might shed; by its own account,
    `says`."""

    def shed(cache: Cache, count: int) -> int:
        dropped = cache.trim(max(0, min(count, cache.offset) - keeps))
        return int(dropped + keeps - says)

    return type("Shedding", (Cache,), {"shed": shed})


PROGRAM = (
    {"op": "update", "length": 6},
    {"op": "shed", "count": 3},
    {"op": "update", "length": 2},
    {"op": "state"},
)


@pytest.mark.parametrize(
    ("says", "keeps", "message"),
    [
        (0, 0, None),
        (2, 2, None),
        (3, 3, None),
        (-1, -1, "dropped is 4, allowed: 0 to 3"),
        (1, 0, "offset is 5, not 6"),
    ],
)
def test_the_reference_follows_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, says: int, keeps: int, message: str | None
) -> None:
    monkeypatch.setitem(OPERATIONS, "shed", Shed())
    backend = declare_with("shed", shedding(says, keeps))
    divergence = run(parse(*PROGRAM), backend, every=True).divergence
    assert (divergence and divergence.message) == message
    assert trace(parse(*PROGRAM))[3] == {"tags": list(range(8))}, "where nobody answers"


def test_programs_with_choices_are_drawn_and_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(OPERATIONS, "shed", Shed())
    backend = declare_with("shed", shedding(0, 0))
    programs = draw(backend)
    assert sum(op["op"] == "shed" for program in programs for op in program.ops) > 30
    for program in programs:
        assert run(program, backend, every=True).divergence is None
