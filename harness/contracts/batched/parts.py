"""Supports lists: the reference of a layer with several caches, and the drawn configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.batched.columns import CountedBatch
from lockstep.harness.contracts.batched.model import (
    BatchedModel,
    get_single_config,
    list_part_configs,
)
from lockstep.harness.contracts.layer.model import Cache, LayerModel, open_cache
from lockstep.harness.contracts.operation import Answer, Config
from lockstep.reference.batched import BatchedCache
from lockstep.reference.list import ListCache

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
"""A list of caches with what only some have."""


class ListSingles(LayerModel):
    """Single caches, each a list."""

    def open(self) -> Any:
        return ListCache([open_cache(member) for member in self.config["parts"]])

    def tell(self, cache: Any, make: Callable[[Any], Answer]) -> Answer:
        return {"caches": [make(member) for member in cache.parts]}


class ListModel(BatchedModel):
    """The batches whose rows are lists; each part gives its own answer."""

    def open_singles(self) -> LayerModel:
        config = get_single_config(self.config)
        members = map(get_single_config, list_part_configs(self.config))
        return ListSingles({**config, "parts": list(members)}, self.rows)

    def split(self) -> Sequence[BatchedModel]:
        """Returns a model of each part: to look at, since rows that leave a batch stay
        in it."""
        configs = list_part_configs(self.config)
        return [self.get_part(number, config) for number, config in enumerate(configs)]

    def get_part(self, number: int, config: Config) -> BatchedModel:
        member = BatchedModel(config, self.rows)
        member.tag, member.reach, member.written = self.tag, self.reach, self.written
        for name, batch in self.batches.items():
            view = CountedBatch([get_part(row, number) for row in batch.rows])
            view.coming, view.width = batch.coming, batch.width
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
