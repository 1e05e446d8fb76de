"""Runs lists on a backend: each part is read as a batch of the part's kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lockstep.harness.contracts.answers import read_list, read_object
from lockstep.harness.contracts.batched.model import BatchedModel, list_part_configs
from lockstep.harness.contracts.batched.system import BatchedSystem, Batches, Written
from lockstep.harness.contracts.layer.system import LayerSystem
from lockstep.harness.contracts.memory import Need, ask_held
from lockstep.harness.contracts.operation import Answer, Config, Op
from lockstep.harness.contracts.system import Setup, System
from lockstep.harness.core.errors import Broken
from lockstep.harness.core.payload import Margins, merge_margins
from lockstep.reference.token import Token

T = TypeVar("T")
R = TypeVar("R")


class PartOf(Mapping[str, Any]):
    """Maps the name of a list to one of its parts; a list may replace its parts."""

    def __init__(self, lists: Mapping[str, Any], number: int, count: int) -> None:
        self.lists, self.number, self.count = lists, number, count

    def __getitem__(self, name: str) -> Any:
        return read_list(self.lists[name].parts, "parts", self.count)[self.number]

    def __iter__(self) -> Iterator[str]:
        return iter(self.lists)

    def __len__(self) -> int:
        return len(self.lists)


def visit(members: Iterable[T], call: Callable[[T, int], R]) -> list[R]:
    """Calls a function with each part and its index; errors name the broken part."""
    results = []
    for number, member in enumerate(members):
        try:
            results.append(call(member, number))
        except Broken as broken:
            broken.args = (f"part {number}: {broken}",)
            raise
    return results


def ask(members: Iterable[T], call: Callable[[T, int], Answer]) -> Answer:
    """Returns the answers of all parts, or the first refusal."""
    answers = visit(members, call)
    refusals = (answer for answer in answers if "error" in answer)
    named = [{"where": f"part {at}", **answer} for at, answer in enumerate(answers)]
    return next(refusals, {"caches": named})


class ListSystem(Batches):
    """Batches of several caches for each layer."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.needed = ["parts"] + ["pad_left"] * self.config["pads_left"]
        self.configs = list_part_configs(self.config)
        self.parts = [
            self.open_part(setup, number, member)
            for number, member in enumerate(self.configs)
        ]
        self.singles = ListSinglesSystem(setup, self)

    def open_part(self, setup: Setup, number: int, config: Config) -> BatchedSystem:
        """Opens the system of a part; padding is announced only to the list."""

        def open_batch(config_asked: Config) -> Any:
            return self.open(config_asked["rows"]).parts[number]

        backend = replace(self.backend, open=open_batch)
        config = {**config, "pads_left": False}
        member = BatchedSystem(
            replace(setup, backend=backend, config=config, layer=number)
        )
        member.watch = member.singles.watch = self.watch
        batches = PartOf(self.batches, number, len(self.configs))
        member.batches = member.memory.batches = batches  # type: ignore[assignment]  # read only
        return member

    def open(self, rows: int | None = None, caches: Sequence[Any] | None = None) -> Any:
        return self.backend.open(get_open_config(self.config, rows, caches))

    def put_batch(self, name: str, batch: Any) -> None:
        super().put_batch(name, batch)
        visit(
            self.parts,
            lambda member, _: read_object(
                member.batches[name], member.needed, "open", "a batch"
            ),
        )

    def say_offsets(self, name: str) -> Answer:
        return ask(self.parts, lambda member, _: member.say_offsets(name))

    def read_sizes(self, name: str) -> Answer:
        return ask(self.parts, lambda member, _: member.read_sizes(name))

    def read_state(self, name: str, rows: Sequence[Any]) -> Answer:
        return ask(
            self.parts, lambda member, at: member.read_state(name, choose(rows, at))
        )

    def write(self, name: str, written: Written, rows: Sequence[Any]) -> Answer:
        """Appends columns to each part."""
        return ask(
            self.parts, lambda member, at: member.write(name, written, choose(rows, at))
        )

    def update_wrongly(
        self, name: str, rows: int, length: int, padding: Sequence[int] | None
    ) -> None:
        if padding is not None:
            self.batches[name].pad_left(list(padding))
        self.parts[0].write_wrongly(name, rows, length)

    # --- checks beside the answer -------------------------------------------------------

    def verify_attention(self, written: Written, rows: Sequence[Any]) -> None:
        visit(
            self.parts,
            lambda member, at: member.verify_attention(written, choose(rows, at)),
        )

    def verify_memory(self, op: Op, model: BatchedModel) -> None:
        if self.declared.held is not None:
            if op["cache"] in model.singles.caches:
                self.singles.get(op["cache"])
            rights = model.split()
            visit(self.parts, lambda member, at: member.verify_memory(op, rights[at]))
            if self.every:
                self.check_memory()

    def check_memory(self) -> None:
        """Compares the memory of the lists with the need of all their parts."""
        if self.declared.held is not None:
            needs = [member.memory.weigh() for member in self.parts]
            need = Need(
                sum(need.contents for need in needs), sum(need.growth for need in needs)
            )
            need.check(ask_held(self.batches.values()), self.declared.held)

    def finish(self) -> None:
        super().finish()
        self.check_memory()
        self.watch.kept.clear()  # a freed part may change the arrays that it returned
        visit(self.parts, lambda member, _: member.finish())


def choose(rows: Sequence[Any], number: int) -> list[Any]:
    """Returns one part of each row of the reference."""
    return [row.parts[number] for row in rows]


def get_open_config(
    config: Config, rows: int | None, caches: Sequence[Any] | None
) -> dict[str, Any]:
    """Returns the config that a list is opened with; see `BatchListCache`."""
    members = list_part_configs(config)
    return {**config, "rows": rows, "caches": caches, "parts": members}


class ListSinglesSystem(System):
    """Single caches, each a list."""

    def __init__(self, setup: Setup, system: ListSystem) -> None:
        super().__init__(setup)
        self.open, self.watch = system.open, system.watch
        self.caches: dict[str, Any] = {}
        self.parts: list[LayerSystem] = [member.singles for member in system.parts]
        for number, member in enumerate(self.parts):
            caches = PartOf(self.caches, number, len(self.parts))
            member.caches = caches  # type: ignore[assignment]  # read only

    @property
    def margins(self) -> Margins:  # type: ignore[override]  # read only
        return merge_margins(*(member.margins for member in self.parts))

    def get(self, name: str) -> Any:
        if name not in self.caches:
            self.put_cache(name, self.open())
        return self.caches[name]

    def put_cache(self, name: str, cache: Any) -> None:
        if self.backend.lifetime == "until-write":
            self.watch.drop(name)
        self.caches[name] = read_object(cache, ["parts"], "the cache", "a list")
        visit(
            self.parts,
            lambda member, _: read_object(
                member.caches[name], ["offset"], "the cache", "a cache"
            ),
        )

    def drop(self, name: str) -> None:
        for member in self.parts:
            member.memory.opened.pop(id(member.caches.get(name)), None)
        self.caches.pop(name, None)

    def tell(self, cache: Any, make: Callable[[Any], Answer]) -> Answer:
        members = read_list(cache.parts, "parts", len(self.parts))
        return ask(members, lambda member, _: make(member))

    def update(self, name: str, tags: Sequence[int], tokens: Sequence[Token]) -> Answer:
        self.get(name)
        return ask(self.parts, lambda member, _: member.update(name, tags, tokens))

    def read_all(self, operation: str, name: str, reference: Any) -> Answer:
        self.get(name)
        return ask(
            self.parts,
            lambda member, at: member.read_all(operation, name, reference.parts[at]),
        )

    # --- checks beside the answer -------------------------------------------------------

    def verify_update(self, reference: Any, tags: Sequence[int]) -> None:
        visit(
            self.parts, lambda member, at: member.verify_update(reference.parts[at], tags)
        )
