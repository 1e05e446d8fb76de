"""Proxies of the batched contract: batches, and the single caches of one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.harness.backends.driver.client import Driver
from lockstep.harness.backends.driver.decoding import Tensor
from lockstep.harness.backends.driver.proxy import KINDS as LAYER
from lockstep.harness.backends.driver.proxy import Cache, LayerCache
from lockstep.harness.backends.interface import Mask

PREFIX = "batch-"


class BatchCache(
    Cache,
    sends="pad_left pad_right finalize update state size trim rollback filter select"
    " repeat free save load",
):
    """The rows of batch-kv and batch-rotating."""

    contract = "batched"

    @property
    def offsets(self) -> list[int]:
        offsets: list[int] = self.call("offsets")
        return offsets

    def make_mask(self, length: int) -> Mask:
        return self.ask_mask("make_mask", length)

    def ask_mask(self, message: str, length: int) -> Mask:
        mask = self.ask(message, length=length).mask
        is_array = mask is not None and not isinstance(mask, str)
        return self.make_tensor("mask", mask) if is_array else mask

    def extend(self, other: BatchCache) -> None:
        self.call("extend", other)
        if other is not self:
            other.release()

    def extract(self, row: int) -> LayerCache:
        told = self.ask("extract", row=row)
        single = open_single(self.driver, told.cache, self.config)
        single.offset = told.offset
        return single

    def clone(self) -> BatchCache:
        return type(self)(self.driver, self.ask("clone").cache, self.config)


class BatchStateCache(BatchCache, sends="read state.states write"):
    """The rows of batch-state."""

    def make_mask(self, length: int) -> Tensor | None:
        mask: Tensor | None = self.ask_mask("make_mask.states", length)
        return mask


BATCHES: Mapping[str, type[BatchCache]] = {
    "batch-kv": BatchCache,
    "batch-rotating": BatchCache,
    "batch-state": BatchStateCache,
}


def open_batched(
    driver: Driver, number: int, config: Mapping[str, Any]
) -> BatchCache | LayerCache:
    """A batch, which uses up the caches that it was made of; or a single cache."""
    if config["rows"] is None and config["caches"] is None:
        return open_single(driver, number, config)
    for cache in config["caches"] or ():
        cache.release()
    return BATCHES[config["kind"]](driver, number, config)


def open_single(driver: Driver, number: int, config: Mapping[str, Any]) -> LayerCache:
    kind = LAYER[config["kind"].removeprefix(PREFIX)]
    single: LayerCache = kind(driver, number, config)
    return single
