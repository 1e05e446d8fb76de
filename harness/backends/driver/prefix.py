"""The caches of the prefix contract, in a driver. They bring the caches below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.backends.backend import Alignment
from lockstep.harness.backends.driver.client import Driver
from lockstep.harness.backends.driver.fields import (
    Answer,
    Malformed,
    find_list,
    find_number,
    find_numbers,
    say,
)
from lockstep.harness.backends.driver.layer import KINDS, LayerCache
from lockstep.harness.backends.driver.proxy import Cache
from lockstep.harness.backends.driver.unified import UnifiedCache, open_unified

Layers = list[LayerCache | None]


class PrefixCache(Cache):
    """A session or a trie. causal: see `LayerCache`."""

    contract = "prefix"

    def __init__(
        self,
        driver: Driver,
        number: int,
        config: Mapping[str, Any],
        causal: Alignment = "lower-right",
    ) -> None:
        super().__init__(driver, number, config)
        self.causal = causal
        self.known: Layers | None = None

    @property
    def layers(self) -> Layers:
        if self.known is None:
            self.known = self.ask_for("layers", self.find_layers)
        return self.known

    def find_layers(self, answer: Answer) -> Layers:
        specs, found = self.config["below"], find_list(answer, "layers")
        if len(found) != len(specs):
            raise Malformed(f"{len(found)} layers, and the config has {len(specs)}")
        pairs = zip(specs, found, strict=True)
        return [self.make_layer(spec, value) for spec, value in pairs]

    def make_layer(
        self, config: Mapping[str, Any] | None, value: Any
    ) -> LayerCache | None:
        if config is None:
            return None
        if not isinstance(value, Mapping):
            raise Malformed(f"a layer is {say(value)}, not an object")
        number = find_number(value, "cache")
        layer = KINDS[config["kind"]](self.driver, number, config, self.causal)
        layer.offset = find_number(value, "offset")
        layer.release()
        return layer

    def change(self, operation: str, **fields: Any) -> Answer:
        """What may move the layers, or put others in their places."""
        self.known = None
        return self.ask(operation, **fields)

    def begin(self, tokens: Sequence[int], checkpoints: Sequence[int]) -> list[int]:
        fields = {"tokens": list(tokens), "checkpoints": list(checkpoints)}
        answer = self.change("begin", **fields)
        return self.look("begin", lambda: find_numbers(answer, "remaining"))

    def extend(self, tokens: Sequence[int]) -> None:
        self.ask("extend", tokens=list(tokens))

    def close(self) -> int:
        return self.end("close")

    def cancel(self) -> int:
        return self.end("cancel")

    def end(self, operation: str) -> int:
        answer = self.change(operation)
        return self.look(operation, lambda: find_number(answer, "stored"))

    def free(self) -> None:
        self.change("free")

    def set_limit(self, limit: int | None) -> None:
        self.change("set_limit", limit=limit)

    def count_tokens(self) -> int:
        return self.ask_for("count_tokens", find_count)

    def count_bytes(self) -> int:
        return self.ask_for("count_bytes", find_count)


def find_count(answer: Answer) -> int:
    return find_number(answer, "count")


class SlotsCache(Cache):
    """Several users over one cache of many sequences."""

    contract = "prefix"
    below: UnifiedCache | None = None

    @property
    def cache(self) -> UnifiedCache:
        if self.below is None:
            number = self.ask_for("below", lambda answer: find_number(answer, "cache"))
            (config,) = self.config["below"]
            self.below = open_unified(self.driver, number, config)
            self.below.release()
        return self.below

    def begin(self, tokens: Sequence[int]) -> int:
        answer = self.ask("begin", tokens=list(tokens))
        return self.look("begin", lambda: find_number(answer, "slot"))

    def get_tokens(self, slot: int) -> list[int]:
        return self.ask_for("get_tokens", find_tokens, slot=slot)

    def get_remaining(self, slot: int) -> list[int]:
        return self.ask_for("get_remaining", find_tokens, slot=slot)

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        self.ask("extend", slot=slot, tokens=list(tokens))

    def reserve(self, slot: int, count: int) -> list[int]:
        answer = self.ask("reserve", slot=slot, count=count)
        return self.look("reserve", lambda: find_numbers(answer, "positions"))

    def commit(self, slot: int, count: int) -> None:
        self.ask("commit", slot=slot, count=count)

    def close(self, slot: int) -> int:
        return self.end("close", slot)

    def cancel(self, slot: int) -> int:
        return self.end("cancel", slot)

    def end(self, operation: str, slot: int) -> int:
        answer = self.ask(operation, slot=slot)
        return self.look(operation, lambda: find_number(answer, "stored"))


def find_tokens(answer: Answer) -> list[int]:
    return find_numbers(answer, "tokens")
