"""The caches of the prefix contract, in a driver. They bring the caches below them."""

from __future__ import annotations

from typing import Any

from lockstep.harness.backends.driver.decoding import Malformed
from lockstep.harness.backends.driver.layer import KINDS, LayerCache
from lockstep.harness.backends.driver.proxy import Cache, method
from lockstep.harness.backends.driver.unified import UnifiedCache, open_unified

CHANGES = ("begin", "close", "cancel", "free", "set_limit")
"""What may move the layers, or put others in their places."""


class PrefixCache(Cache):
    """A session or a trie."""

    contract = "prefix"
    known: list[LayerCache | None] | None = None

    begin = method("begin")
    extend = method("extend")
    close = method("close")
    cancel = method("cancel")
    free = method("free")
    set_limit = method("set_limit")
    count_tokens = method("count_tokens")
    count_bytes = method("count_bytes")

    def call(self, message: str, *arguments: Any) -> Any:
        if message in CHANGES:
            self.known = None
        return super().call(message, *arguments)

    @property
    def layers(self) -> list[LayerCache | None]:
        if self.known is None:
            specs, told = self.config["below"], self.ask("layers").layers
            if [spec is None for spec in specs] != [layer is None for layer in told]:
                words = f"{len(told)} layers, {told.count(None)} of them null; the config"
                words += f" has {len(specs)}, {list(specs).count(None)} of them null"
                self.driver.reject(Malformed(words))
            self.known = [
                layer and self.make_layer(spec, layer)
                for spec, layer in zip(specs, told, strict=True)
            ]
        return self.known

    def make_layer(self, config: Any, told: Any) -> LayerCache:
        layer = KINDS[config["kind"]](self.driver, told.cache, config)
        layer.offset = told.offset
        layer.release()
        return layer


class SlotsCache(Cache):
    """Several users over one cache of many sequences."""

    contract = "prefix"
    below: UnifiedCache | None = None

    begin = method("begin.slot")
    get_tokens = method("get_tokens")
    get_remaining = method("get_remaining")
    extend = method("extend.slot")
    reserve = method("reserve")
    commit = method("commit")
    close = method("close.slot")
    cancel = method("cancel.slot")

    @property
    def cache(self) -> UnifiedCache:
        if self.below is None:
            (config,) = self.config["below"]
            self.below = open_unified(self.driver, self.ask("below").cache, config)
            self.below.release()
        return self.below
