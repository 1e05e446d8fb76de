"""Proxies: objects that represent a cache, a snapshot or saved content in a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import astuple

from lockstep.harness.backends.driver import messages
from lockstep.harness.backends.driver.client import Driver
from lockstep.harness.backends.driver.decoding import (
    Malformed,
    PromisedMask,
    Tensor,
    make_mask,
    make_tensor,
)
from lockstep.harness.core.errors import Broken


class Proxy:
    """A proxy of a numbered object in a driver.

    Its sort is "caches", "snapshots" or "saved".
    """

    sort = "caches"
    owned = True

    def __init__(self, driver: Driver, number: int) -> None:
        self.driver, self.number, self.driver_run = driver, number, driver.run

    def release(self) -> None:
        """Gives up the ownership of the object, which its new owner drops."""
        self.owned = False

    def __del__(self) -> None:
        if self.owned:
            self.driver.drop(self.driver_run, self.sort, self.number)


class Snapshot(Proxy):
    """The positions [begin, end) of a cache."""

    sort = "snapshots"

    def __init__(self, driver: Driver, answer: messages.Snapshot) -> None:
        super().__init__(driver, answer.number)
        self.begin, self.end = answer.begin, answer.end


class Saved(Proxy):
    """All content of a unified cache, or of a batch."""

    sort = "saved"


class Cache(Proxy):
    """A cache in a driver.

    The proxy has a method for each message of its contract. The arguments of the method
    are the fields of the message, in order. Subclasses define all other methods.

    Attributes:
        contract: the contract of the cache's messages.
        variant: the variant of messages: "NAME.VARIANT" is sent instead of NAME.
        place: fields that are added to every message.
    """

    contract = ""
    variant = ""
    place: Mapping[str, int] = {}

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number)
        self.config = config

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or self.get_message(name) not in self.table:
            raise AttributeError(f"no message of a driver is called {name}")
        return partial(self.call, name)

    @property
    def table(self) -> messages.Messages:
        return self.driver.protocol.messages[self.contract]

    def get_message(self, name: str) -> str:
        """Returns the name of a message with the variant of this cache, if it has one."""
        variant = f"{name}.{self.variant}"
        return variant if variant in self.table else name

    def call(self, name: str, *arguments: Any) -> Any:
        """Sends a message whose fields are the arguments.

        Returns None, the only field of the answer, or a tuple of its fields.
        """
        message = self.get_message(name)
        requested, _ = self.table[message]
        fields = [field for field in requested if field not in messages.PLACE]
        sent = map(to_wire, arguments)
        answer = self.ask(name, **dict(zip(fields, sent, strict=True)))
        named = [field for field in answer.__struct_fields__ if field not in UNSAID]
        if named == ["keys", "values"] and answer.keys is None and answer.values is None:
            return None
        values = [self.from_wire(field, getattr(answer, field)) for field in named]
        return tuple(values) if len(values) > 1 else values[0] if values else None

    def ask(self, name: str, **fields: Any) -> Any:
        """Sends a message about this cache, and returns the answer, a struct."""
        self.require_run()
        for field, value in fields.items():
            if isinstance(value, Tensor):
                value.names_dtype = value.dtype != self.get_dtype(field)
        about = {"cache": self.number, **self.place}
        return self.driver.ask(self.contract, self.get_message(name), **about, **fields)

    def require_run(self) -> None:
        """Raises Broken if the driver process that has this cache has ended."""
        if self.driver_run != self.driver.run or self.driver.process is None:
            raise Broken("crash", "the driver was ended before")

    def from_wire(self, name: str, value: Any) -> Any:
        """Converts a field of an answer to the form that the harness uses."""
        if isinstance(value, list):
            return [self.from_wire(name, item) for item in value]
        if isinstance(value, messages.Snapshot):
            return Snapshot(self.driver, value)
        if isinstance(value, messages.Pair | messages.State):
            pair = zip(value.__struct_fields__, astuple(value), strict=True)
            return tuple([self.make_tensor(*item) for item in pair])
        if name == "saved" and value is not None:
            return Saved(self.driver, value)
        return self.make_tensor(name, value) if name in ARRAYS else value

    def make_tensor(self, name: str, array: messages.Array | None) -> Tensor:
        """Converts an array of an answer; its default dtype comes from the config."""
        dtype = self.get_mask_dtype() if name == "mask" else self.get_dtype(name)
        try:
            return make_tensor(array, name, dtype)
        except Malformed as malformed:
            self.driver.reject(malformed)

    def get_dtype(self, name: str) -> str:
        """Returns the dtype of an array that does not state its dtype."""
        return "float32" if name == "delta" else str(self.config["dtype"])

    def get_mask_dtype(self) -> str:
        """Returns the dtype of a mask that does not state its dtype.

        The dtype is bool, unless the config names a dtype or the mask is additive.
        """
        config, dtype = self.config, str(self.config["dtype"])
        if "mask_dtype" in config:
            return config["mask_dtype"] or dtype
        return dtype if config["mask_form"] == "additive" else "bool"


Part = TypeVar("Part", bound=Cache)
Open = Callable[[Driver, int, Mapping[str, Any]], Part]


def open_parts(
    whole: Cache, configs: Iterable[Mapping[str, Any]], field: str, open_part: Open[Part]
) -> list[Part]:
    """Opens a proxy for each part of a cache.

    The messages of a proxy have the number of its part in the field `field`.
    """
    parts = [open_part(whole.driver, whole.number, config) for config in configs]
    for number, cache in enumerate(parts):
        cache.place = {field: number}
        cache.release()  # each is dropped with the whole
    return parts


ARRAYS = ("keys", "values", "mask", "conv", "delta", "attended")
UNSAID = ("id", "offset")


def to_wire(value: Any) -> Any:
    """Converts an argument to its form in a message."""
    if isinstance(value, Proxy):
        return value.number
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(map(to_wire, value))
    return sorted(value) if isinstance(value, frozenset) else value


# --- the layer contract -----------------------------------------------------------------


class LayerCache(Cache):
    """The common base class of kv, rotating and state caches."""

    contract = "layer"
    offset = 0

    def ask(self, name: str, **fields: Any) -> Any:
        answer = super().ask(name, **fields)
        if "offset" in answer.__struct_fields__:
            self.offset = answer.offset
        return answer

    def call(self, name: str, *arguments: Any) -> Any:
        """Sends a message; some messages consume the snapshots that they name."""
        answer = super().call(name, *arguments)
        for argument in arguments:
            if isinstance(argument, Snapshot) and name in ("split", "merge", "close"):
                argument.release()
        return answer

    def clone(self) -> LayerCache:
        copy = type(self)(self.driver, self.ask("clone").cache, self.config)
        copy.offset = self.offset
        return copy


class TokenCache(LayerCache):
    """A proxy of a cache of kind kv or rotating."""

    promised = PromisedMask(0, 0)

    def make_mask(self, length: int, rows: int) -> PromisedMask:
        """Returns a promised mask, which is requested in the update's message."""
        self.promised = PromisedMask(length, rows)
        return self.promised

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        promised = self.promised
        answer = self.ask("update", rows=promised.rows, keys=keys, values=values)
        pair = [self.make_tensor(name, getattr(answer, name)) for name in KV]
        shape = pair[0].content.shape
        columns = shape[2] if len(shape) == 4 else 0
        dtype, causal = self.get_mask_dtype(), self.driver.causal
        try:
            promised.tensor = make_mask(answer.mask, promised, columns, dtype, causal)
        except Malformed as malformed:
            self.driver.reject(malformed)
        return pair[0], pair[1]


KV = ("keys", "values")


class StateCache(LayerCache):
    """A proxy of a cache with the state of a recurrent layer."""

    variant = "states"


KINDS = {"kv": TokenCache, "rotating": TokenCache, "state": StateCache}


# --- the unified contract ---------------------------------------------------------------


class UnifiedCache(Cache):
    """A proxy of a unified cache that is not a wrapper, or of a cache in a wrapper.

    Attributes:
        place: {"type": its number} for a cache in a wrapper.
        unput: the layers that were not yet written in the open pass.
    """

    contract = "unified"
    unput: frozenset[int] = frozenset()

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number, config)
        self.is_image = config["kind"] == "encoder"
        self.variant = "image" if self.is_image else ""

    def call(self, name: str, *arguments: Any) -> Any:
        """Sends a message, and tracks the open pass.

        `forward` begins a pass. Any message except reading or writing a layer ends it.
        """
        if name not in DURING_PASS:
            self.expect_layers(0)
        answer = super().call(name, *arguments)
        if name == "forward":
            self.expect_layers(self.config["layers"])
        return answer

    def expect_layers(self, count: int) -> None:
        """Opens a pass with `count` layers, or with no layer if the cache has images."""
        self.unput = frozenset(() if self.is_image else range(count))

    def put(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Writes a layer.

        The first write to a layer in a pass cannot be refused, so it is sent together
        with the next message. Any other write may be refused, so it is sent immediately.
        """
        if layer not in self.unput:
            self.call("put", layer, keys, values)
            return
        self.unput -= {layer}
        self.require_run()
        fields = {"layer": layer, "keys": keys, "values": values}
        self.driver.post(self.contract, "put", cache=self.number, **self.place, **fields)

    @property
    def cached(self) -> bool:
        return bool(self.call("cached"))


DURING_PASS = ("put", "get", "cached", "read_states", "write_states")
"""Messages that leave a pass open."""


class WrapperCache(UnifiedCache):
    """A proxy of a wrapper, which consists of several caches.

    Each call applies to all caches. The layers of a pass are written and read separately
    for each type of cache.
    """

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number, config)
        parts = [{**config, **sizes} for sizes in config["caches"]]
        self.parts = open_parts(self, parts, "type", UnifiedCache)

    def of(self, layer_type: int) -> UnifiedCache:
        return self.parts[layer_type]

    def expect_layers(self, count: int) -> None:
        for cache in self.parts:
            cache.expect_layers(count and cache.config["layers"])


def open_unified(driver: Driver, number: int, config: Mapping[str, Any]) -> UnifiedCache:
    kind = WrapperCache if config["kind"] == "wrapper" else UnifiedCache
    return kind(driver, number, config)


# --- the prefix contract; its caches bring those below them -----------------------------


CHANGES = ("begin", "close", "cancel", "free", "set_limit")
"""What may move the layers, or put others in their places."""


class Counting(Cache):
    """A prefix cache that counts its requests."""

    def get_statistics(self) -> Any:
        """Returns the statistics: an answer whose fields are numbers."""
        return self.ask("get_statistics")


class PrefixCache(Counting):
    """A proxy of a session or a trie."""

    contract = "prefix"
    opened: list[LayerCache | None] | None = None

    def call(self, name: str, *arguments: Any) -> Any:
        if name in CHANGES:
            self.opened = None
        return super().call(name, *arguments)

    @property
    def layers(self) -> list[LayerCache | None]:
        if self.opened is None:
            specs, answer = self.config["below"], self.ask("layers").layers
            if [spec is None for spec in specs] != [layer is None for layer in answer]:
                wrong = f"{len(answer)} layers, {answer.count(None)} of them null"
                wanted = f"{len(specs)}, {list(specs).count(None)} of them null"
                self.driver.reject(Malformed(f"{wrong}; the config has {wanted}"))
            self.opened = [
                layer and self.make_layer(spec, layer)
                for spec, layer in zip(specs, answer, strict=True)
            ]
        return self.opened

    def make_layer(self, config: Any, answer: Any) -> LayerCache:
        layer = KINDS[config["kind"]](self.driver, answer.cache, config)
        layer.offset = answer.offset
        layer.release()
        return layer


class SlotsCache(Counting):
    """A proxy of slots: several users share a cache of many sequences."""

    contract = "prefix"
    variant = "slot"
    below: UnifiedCache | None = None

    @property
    def cache(self) -> UnifiedCache:
        if self.below is None:
            (config,) = self.config["below"]
            self.below = open_unified(self.driver, self.ask("below").cache, config)
            self.below.release()
        return self.below
