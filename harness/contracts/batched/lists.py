"""Defines the reference and the backend system of lists, which have several caches
(parts) in one layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lockstep.harness.contracts.answers import read_list, read_object
from lockstep.harness.contracts.batched.model import (
    BatchedModel,
    CountedBatch,
    get_single_config,
    list_part_configs,
)
from lockstep.harness.contracts.batched.system import BatchedSystem, Batches, PartCall
from lockstep.harness.contracts.layer.model import Cache, LayerModel, open_cache
from lockstep.harness.contracts.layer.system import LayerSystem
from lockstep.harness.contracts.memory import Need, ask_held
from lockstep.harness.contracts.operation import Answer, Config, Op
from lockstep.harness.contracts.system import Setup, System
from lockstep.harness.core.errors import Broken
from lockstep.harness.core.payload import Margins, merge_margins
from lockstep.reference.batched import BatchedCache
from lockstep.reference.list import ListCache

T = TypeVar("T")
R = TypeVar("R")

LISTS: Sequence[list[Mapping[str, Any]]] = (
    [{"kind": "batch-kv"}, {"kind": "batch-kv", "heads": 2, "key_dim": 6}],
    [{"kind": "batch-kv"}, {"kind": "batch-rotating", "window": 3}],
    [{"kind": "batch-state"}, {"kind": "batch-kv"}],
    [{"kind": "batch-rotating", "window": 4}, {"kind": "batch-kv", "value_dim": 6}],
    [{"kind": "batch-kv", "value_dim": 8}, {"kind": "batch-kv"}],
    [{"kind": "batch-rotating", "window": 2}, {"kind": "batch-state"}],
    [{"kind": "batch-rotating", "window": 2}, {"kind": "batch-rotating", "window": 5}],
    [{"kind": "batch-state", "heads": 2}, {"kind": "batch-kv"}, {"kind": "batch-kv"}],
    [
        {"kind": "batch-kv"},
        {"kind": "batch-rotating", "window": 1},
        {"kind": "batch-kv", "key_dim": 8},
    ],
)
"""The caches of a list, in combinations that real models use, with small windows."""

SPECIAL: list[Mapping[str, Any]] = [
    {"kind": "batch-kv", "chunk": 2},
    {"kind": "batch-rotating", "window": 3, "keep": 1},
]
"""A list of caches with fields that only some kinds have."""


# --- the reference ----------------------------------------------------------------------


class ListSingles(LayerModel):
    """The reference of single caches; each cache is a list of caches."""

    def open(self) -> Any:
        return ListCache([open_cache(member) for member in self.config["parts"]])

    def tell(self, cache: Any, make: Callable[[Any], Answer]) -> Answer:
        return {"caches": [make(member) for member in cache.parts]}


class ListModel(BatchedModel):
    """The reference of batches whose rows are lists; an answer contains the answer of
    each part."""

    def open_singles(self) -> LayerModel:
        config = get_single_config(self.config)
        members = map(get_single_config, list_part_configs(self.config))
        return ListSingles({**config, "parts": list(members)}, self.rows)

    def split(self) -> Sequence[BatchedModel]:
        """Returns a read-only model of each part. Rows that leave a batch later stay in
        these models.
        """
        configs = list_part_configs(self.config)
        return [self.get_part(number, config) for number, config in enumerate(configs)]

    def get_part(self, number: int, config: Config) -> BatchedModel:
        member = BatchedModel(config, self.rows)
        member.tag, member.reach, member.written = self.tag, self.reach, self.written
        for name, batch in self.batches.items():
            view = CountedBatch([get_part(row, number) for row in batch.rows])
            view.coming, view.announced = batch.coming, batch.announced
            view.width = batch.width
            member.put_batch(name, view)
        for name, cache in self.singles.caches.items():
            member.put_single(name, get_part(cache, number))
        return member

    def tell(self, make: Callable[[BatchedModel], Answer]) -> Answer:
        return {"caches": [make(member) for member in self.split()]}

    def answer_offsets(self, batch: BatchedCache) -> Answer:
        return {"caches": [super().answer_offsets(batch)] * len(self.config["caches"])}

    def list_rows(self) -> list[tuple[str, Cache]]:
        members = enumerate(self.split())
        return [
            (f"part {number} of {name}", row)
            for number, member in members
            for name, row in member.list_rows()
        ]


def get_part(cache: Any, number: int) -> Cache:
    member: Cache = cache.parts[number]
    return member


# --- a backend --------------------------------------------------------------------------


class PartOf(Mapping[str, Any]):
    """Maps the name of a list to its part with a fixed index.

    Looks up the part at each access, because a list may replace its parts.
    """

    def __init__(self, lists: Mapping[str, Any], number: int, count: int) -> None:
        self.lists, self.number, self.count = lists, number, count

    def __getitem__(self, name: str) -> Any:
        return read_list(self.lists[name].parts, "parts", self.count)[self.number]

    def __iter__(self) -> Iterator[str]:
        return iter(self.lists)

    def __len__(self) -> int:
        return len(self.lists)


def visit(members: Iterable[T], call: Callable[[T, int], R]) -> list[R]:
    """Calls a function with each part and its index, and returns the results.

    Errors name the broken part.
    """
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
    """Runs batches on a backend whose layers have a list of caches each."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.needed = ["parts"] + ["pad_left"] * self.config["pads_left"]
        configs = list_part_configs(self.config)
        self.count = len(configs)
        self.parts = [
            self.open_part(setup, number, member) for number, member in enumerate(configs)
        ]
        self.singles = ListSinglesSystem(setup, self)

    def open_part(self, setup: Setup, number: int, config: Config) -> BatchedSystem:
        """Opens the system for part `number`: the cache with this index in every list.

        Padding on the left is announced to the list and not to its parts.
        """

        def open_batch(config_asked: Config) -> Any:
            return self.open(config_asked["rows"]).parts[number]

        backend = replace(self.backend, open=open_batch)
        config = {**config, "pads_left": False}
        member = BatchedSystem(
            replace(setup, backend=backend, config=config, layer=number)
        )
        member.watch = member.singles.watch = self.watch
        batches = PartOf(self.batches, number, self.count)
        member.batches = member.memory.batches = batches  # type: ignore[assignment]  # read only
        return member

    def put_batch(self, name: str, batch: Any) -> None:
        super().put_batch(name, batch)
        visit(
            self.parts,
            lambda member, _: read_object(
                member.batches[name], member.needed, "open", "a batch"
            ),
        )

    def visit_parts(self, call: PartCall[Any], rows: Sequence[Any]) -> None:
        visit(self.parts, lambda part, at: call(part, choose(rows, at)))

    def ask_parts(self, call: PartCall[Answer], rows: Sequence[Any] = ()) -> Answer:
        return ask(self.parts, lambda part, at: call(part, choose(rows, at)))

    # --- checks beside the answer -------------------------------------------------------

    def verify_memory(self, op: Op, model: BatchedModel) -> None:
        if self.declared.held is not None:
            if op["cache"] in model.singles.caches:
                self.singles.get(op["cache"])
            rights = model.split()
            visit(self.parts, lambda member, at: member.verify_memory(op, rights[at]))
            if self.every:
                self.check_memory()

    def check_memory(self) -> None:
        """Compares the memory of the lists with the memory that their parts need."""
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
    """Returns the part with a given index of each row of the reference."""
    return [row.parts[number] for row in rows]


class ListSinglesSystem(System):
    """Runs operations on single caches of a backend; each is a list of caches."""

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
            member.memory.rooms.pop(id(member.caches.get(name)), None)
        self.caches.pop(name, None)

    def tell(self, cache: Any, make: Callable[[Any], Answer]) -> Answer:
        members = read_list(cache.parts, "parts", len(self.parts))
        return ask(members, lambda member, _: make(member))

    def update(self, name: str, tags: Sequence[int], reference: Any) -> Answer:
        self.get(name)
        return ask(
            self.parts,
            lambda member, at: member.update(name, tags, reference.parts[at]),
        )

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
