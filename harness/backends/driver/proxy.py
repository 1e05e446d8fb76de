"""Proxies: objects that stand for a cache, a snapshot or saved content in a driver."""

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
    """Something in a driver that has a number. sort: caches, snapshots or saved."""

    sort = "caches"
    owned = True

    def __init__(self, driver: Driver, number: int) -> None:
        self.driver, self.number, self.driver_run = driver, number, driver.run

    def release(self) -> None:
        """It is not ours, or not any more: whoever has it drops it."""
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

    It has a method for each message of its contract, whose arguments are the fields in
    their order. Subclasses define methods that need more.

    Attributes:
        contract: of its messages.
        variant: sends messages "NAME.VARIANT" instead of NAME.
        place: fields that all messages have.
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
        """Sends the arguments as the fields of a message, and returns the fields of its
        answer: None, one or several."""
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
        """The answer to a message about this cache, a struct."""
        self.require_run()
        for field, value in fields.items():
            if isinstance(value, Tensor):
                value.names_dtype = value.dtype != self.get_dtype(field)
        about = {"cache": self.number, **self.place}
        return self.driver.ask(self.contract, self.get_message(name), **about, **fields)

    def require_run(self) -> None:
        """The driver that has this cache must still run."""
        if self.driver_run != self.driver.run or self.driver.process is None:
            raise Broken("crash", "the driver was ended before")

    def from_wire(self, name: str, value: Any) -> Any:
        """A field of an answer as the harness knows it."""
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
        """An array of an answer, in the dtype of the config unless it says another."""
        dtype = self.get_mask_dtype() if name == "mask" else self.get_dtype(name)
        try:
            return make_tensor(array, name, dtype)
        except Malformed as malformed:
            self.driver.reject(malformed)

    def get_dtype(self, name: str) -> str:
        """Returns the dtype of an array that does not say it."""
        return "float32" if name == "delta" else str(self.config["dtype"])

    def get_mask_dtype(self) -> str:
        """Returns the dtype of a mask that does not say it: bool unless it is added."""
        config, dtype = self.config, str(self.config["dtype"])
        if "mask_dtype" in config:
            return config["mask_dtype"] or dtype
        return dtype if config["mask_form"] == "additive" else "bool"


Part = TypeVar("Part", bound=Cache)
Open = Callable[[Driver, int, Mapping[str, Any]], Part]


def open_parts(
    whole: Cache, configs: Iterable[Mapping[str, Any]], field: str, open_part: Open[Part]
) -> list[Part]:
    """Opens a proxy for each part of a cache, whose messages name the part in `field`."""
    parts = [open_part(whole.driver, whole.number, config) for config in configs]
    for number, cache in enumerate(parts):
        cache.place = {field: number}
        cache.release()  # each is dropped with the whole
    return parts


ARRAYS = ("keys", "values", "mask", "conv", "delta", "attended")
UNSAID = ("id", "offset")


def to_wire(value: Any) -> Any:
    """An argument as a message has it."""
    if isinstance(value, Proxy):
        return value.number
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(map(to_wire, value))
    return sorted(value) if isinstance(value, frozenset) else value


# --- the layer contract -----------------------------------------------------------------


class LayerCache(Cache):
    """The part that kv, rotating and state share."""

    contract = "layer"
    offset = 0

    def ask(self, name: str, **fields: Any) -> Any:
        answer = super().ask(name, **fields)
        if "offset" in answer.__struct_fields__:
            self.offset = answer.offset
        return answer

    def call(self, name: str, *arguments: Any) -> Any:
        """Some messages use up the snapshots that they name."""
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
    """kv and rotating."""

    promised = PromisedMask(0, 0)

    def make_mask(self, length: int, rows: int) -> PromisedMask:
        """It comes with the update, in one message."""
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
    """The state of a recurrent layer."""

    variant = "states"


KINDS = {"kv": TokenCache, "rotating": TokenCache, "state": StateCache}


# --- the unified contract ---------------------------------------------------------------


class UnifiedCache(Cache):
    """Any kind but a wrapper; or one of the caches that a wrapper is made of.

    place: {"type": its number} in a wrapper. unput: the layers that were not yet put in
    the open pass.
    """

    contract = "unified"
    unput: frozenset[int] = frozenset()

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number, config)
        self.is_image = config["kind"] == "encoder"
        self.variant = "image" if self.is_image else ""

    def call(self, name: str, *arguments: Any) -> Any:
        """All but reading and writing a layer ends the pass, `forward` begins one."""
        if name not in DURING_PASS:
            self.expect_layers(0)
        answer = super().call(name, *arguments)
        if name == "forward":
            self.expect_layers(self.config["layers"])
        return answer

    def expect_layers(self, count: int) -> None:
        """Opens a pass with so many layers. Putting an image where there is one is never
        expected."""
        self.unput = frozenset(() if self.is_image else range(count))

    def put(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """The first of a layer in a pass goes with the message that comes next: all there
        is to answer is that it is done. Any other is one that may be refused."""
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
    """Several caches as one: each call goes to all; a pass is put and got by type of
    cache."""

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
        """Returns the answer, whose fields are the numbers."""
        return self.ask("get_statistics")


class PrefixCache(Counting):
    """A session or a trie."""

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
    """Several users over one cache of many sequences."""

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
