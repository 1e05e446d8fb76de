"""An operation that is added to a contract from outside: one class is all it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts.answer_schemas import NUMBER, record
from lockstep.harness.contracts.layer import model as sides
from lockstep.harness.contracts.layer.model import LayerModel
from lockstep.harness.contracts.layer.operations import CACHE, OPERATIONS, LayerOperation
from lockstep.harness.contracts.layer.system import LayerSystem
from lockstep.harness.contracts.operation import Answer, Effect, Fields, Op, Source
from lockstep.harness.contracts.tables import replace_block
from lockstep.harness.core.document import LENGTH, Schema
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Program, trace
from tests.harness.building import draw_some, make
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
    return draw_some(count, "layer", "kv", backend.contracts["layer"]["kv"], 1)


def test_the_generated_files_are_up_to_date() -> None:
    text = README.read_text()
    assert text == replace_block(text), "run python -m lockstep.harness.contracts.tables"


@pytest.mark.parametrize("missing", ["answer", "effect"])
def test_a_class_without_a_declaration_is_refused(missing: str) -> None:
    declared = {"name": "shed", "answer": {}, "effect": Effect.READS}
    del declared[missing]
    with pytest.raises(TypeError, match=f"Shed declares no {missing}"):
        type("Shed", (LayerOperation,), declared)


def test_without_it_such_a_program_is_refused() -> None:
    with pytest.raises(UsageError, match='unknown "rollback"'):
        make({"op": "rollback", "count": 1})


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
    divergence = run(make(*PROGRAM), backend, every=True).divergence
    assert (divergence and divergence.message) == message
    assert trace(make(*PROGRAM))[3] == {"tags": list(range(8))}, "where nobody answers"


def test_programs_with_choices_are_drawn_and_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(OPERATIONS, "shed", Shed())
    backend = declare_with("shed", shedding(0, 0))
    programs = draw(backend)
    assert sum(op["op"] == "shed" for program in programs for op in program.ops) > 30
    for program in programs:
        assert run(program, backend, every=True).divergence is None
