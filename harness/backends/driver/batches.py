"""Proxies of the batched contract: batches, and single caches, which have one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from lockstep.harness.backends.driver.client import Driver
from lockstep.harness.backends.driver.decoding import Malformed, say
from lockstep.harness.backends.driver.proxy import KINDS as LAYER
from lockstep.harness.backends.driver.proxy import Cache, LayerCache, open_parts
from lockstep.harness.backends.interface import Mask

PREFIX = "batch-"

Config = Mapping[str, Any]


class Batch(Cache):
    """The proxy of a batch of any kind."""

    contract = "batched"

    def extend(self, batch: Batch) -> None:
        self.call("extend", batch)
        if batch is not self:
            batch.release()

    def clone(self) -> Self:
        return type(self)(self.driver, self.ask("clone").cache, self.config)


class BatchCache(Batch):
    """The proxy of a batch of kind batch-kv or batch-rotating."""

    @property
    def offsets(self) -> list[int]:
        offsets: list[int] = self.call("offsets")
        return offsets

    def make_mask(self, length: int) -> Mask:
        mask = self.ask("make_mask", length=length).mask
        is_array = mask is not None and not isinstance(mask, str)
        return self.make_tensor("mask", mask) if is_array else mask

    def extract(self, row: int) -> LayerCache:
        answer = self.ask("extract", row=row)
        single = open_layer(self.driver, answer.cache, self.config)
        single.offset = answer.offset
        return single


class BatchStateCache(BatchCache):
    """The proxy of a batch of kind batch-state."""

    variant = "states"


class BatchListCache(Batch):
    """The proxy of a batch of kind batch-list, which consists of several batches."""

    variant = "list"

    def __init__(self, driver: Driver, number: int, config: Config) -> None:
        super().__init__(driver, number, config)
        self.parts = open_parts(self, config["parts"], "part", open_rows)

    def extract(self, row: int) -> ListCache:
        answer = self.ask("extract", row=row)
        single = ListCache(self.driver, answer.cache, self.config)
        single.set_offsets(answer.offsets)
        return single


class ListCache(Cache):
    """The proxy of a single cache of batch-list, which consists of several caches."""

    contract = "layer"
    variant = "list"

    def __init__(self, driver: Driver, number: int, config: Config) -> None:
        super().__init__(driver, number, config)
        self.parts = open_parts(self, config["parts"], "part", open_layer)

    def trim(self, count: int) -> int:
        answer = self.ask("trim", count=count)
        self.set_offsets(answer.offsets)
        trimmed: int = answer.trimmed
        return trimmed

    def free(self) -> None:
        self.set_offsets(self.ask("free").offsets)

    def clone(self) -> ListCache:
        copy = ListCache(self.driver, self.ask("clone").cache, self.config)
        copy.set_offsets([cache.offset for cache in self.parts])
        return copy

    def set_offsets(self, offsets: Sequence[int]) -> None:
        """Sets the offset of each part from the offsets in an answer."""
        if len(offsets) != len(self.parts):
            text = f"offsets is {say(offsets)}; expected {len(self.parts)} integers"
            self.driver.reject(Malformed(f"{text}, one for each cache of the list"))
        for cache, offset in zip(self.parts, offsets, strict=True):
            cache.offset = offset


# --- by kind ----------------------------------------------------------------------------


ROWS: Mapping[str, type[BatchCache]] = {
    "batch-kv": BatchCache,
    "batch-rotating": BatchCache,
    "batch-state": BatchStateCache,
}


def open_rows(driver: Driver, number: int, config: Config) -> BatchCache:
    return ROWS[config["kind"]](driver, number, config)


def open_layer(driver: Driver, number: int, config: Config) -> LayerCache:
    """Opens a single cache, which has a single row."""
    kind = LAYER[config["kind"].removeprefix(PREFIX)]
    single: LayerCache = kind(driver, number, config)
    return single


Open = Callable[[Driver, int, Config], Cache]

BATCHES: Mapping[str, tuple[Open, Open]] = {
    **dict.fromkeys(ROWS, (open_rows, open_layer)),
    "batch-list": (BatchListCache, ListCache),
}
"""Kind → the proxies of a batch and of a single cache."""


def open_batched(driver: Driver, number: int, config: Config) -> Cache:
    """Opens a single cache, or makes a batch, which consumes its single caches."""
    open_batch, open_single = BATCHES[config["kind"]]
    if config["rows"] is None and config["caches"] is None:
        return open_single(driver, number, config)
    for cache in config["caches"] or ():
        cache.release()
    return open_batch(driver, number, config)
