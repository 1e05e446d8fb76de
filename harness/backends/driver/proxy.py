"""Proxies: objects that stand for a cache, a snapshot or saved content in a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Something in a driver that has a number. what: caches, snapshots or saved."""

    what = "caches"
    owned = True

    def __init__(self, driver: Driver, number: int) -> None:
        self.driver, self.number, self.driver_run = driver, number, driver.run

    def release(self) -> None:
        """It is not ours, or not any more: whoever has it drops it."""
        self.owned = False

    def __del__(self) -> None:
        if self.owned:
            self.driver.drop(self.driver_run, self.what, self.number)


class Snapshot(Proxy):
    """The positions [begin, end) of a cache."""

    what = "snapshots"

    def __init__(self, driver: Driver, told: messages.Snapshot) -> None:
        super().__init__(driver, told.number)
        self.begin, self.end = told.begin, told.end


class Saved(Proxy):
    """All content of a unified cache, or of a batch."""

    what = "saved"


class Cache(Proxy):
    """A cache in a driver.

    Its methods send messages of the tables in `messages`, in the order of their fields. A
    subclass lists those that need nothing more as `sends`.
    """

    contract = ""
    place: Mapping[str, int] = {}

    def __init_subclass__(cls, sends: str = "") -> None:
        for message in sends.split():
            setattr(cls, messages.get_operation(message), make_method(message))

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number)
        self.config = config

    def call(self, message: str, *arguments: Any) -> Any:
        """Sends the arguments as the fields of a message, and returns the fields of its
        answer: None, one or several."""
        asked, _ = messages.CONTRACTS[self.contract][message]
        names = [name for name in asked if name not in messages.PLACE]
        sent = map(to_wire, arguments)
        answer = self.ask(message, **dict(zip(names, sent, strict=True)))
        fields = [name for name in answer.__struct_fields__ if name not in UNSAID]
        if fields == ["keys", "values"] and answer.keys is None and answer.values is None:
            return None
        got = [self.from_wire(name, getattr(answer, name)) for name in fields]
        return tuple(got) if len(got) > 1 else got[0] if got else None

    def ask(self, message: str, **fields: Any) -> Any:
        """The answer to a message about this cache, a struct."""
        self.check()
        about = {"cache": self.number, **self.place}
        return self.driver.ask(self.contract, message, **about, **fields)

    def check(self) -> None:
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
            return tuple([self.make_tensor(*each) for each in pair])
        if name == "saved" and value is not None:
            return Saved(self.driver, value)
        return self.make_tensor(name, value) if name in ARRAYS else value

    def make_tensor(self, name: str, array: messages.Array | None) -> Tensor:
        """An array of an answer, in the dtype of the config unless it says another."""
        dtype = "float32" if name == "delta" else str(self.config["dtype"])
        if name == "mask":
            dtype = self.get_mask_dtype()
        try:
            return make_tensor(array, name, dtype)
        except Malformed as malformed:
            self.driver.reject(malformed)

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
    for number, part in enumerate(parts):
        part.place = {field: number}
        part.release()  # each is dropped with the whole
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


def make_method(message: str) -> Callable[..., Any]:
    """A method that sends this message; its arguments are the fields, in their order."""

    def call(cache: Cache, *arguments: Any) -> Any:
        return cache.call(message, *arguments)

    return call


# --- the layer contract -----------------------------------------------------------------


class LayerCache(
    Cache, sends="size trim free snapshot restore split merge close prepare take"
):
    """The part that kv, rotating and state share."""

    contract = "layer"
    offset = 0

    def ask(self, message: str, **fields: Any) -> Any:
        answer = super().ask(message, **fields)
        if "offset" in answer.__struct_fields__:
            self.offset = answer.offset
        return answer

    def call(self, message: str, *arguments: Any) -> Any:
        """Some messages use up the snapshots that they name."""
        got = super().call(message, *arguments)
        for argument in arguments:
            if isinstance(argument, Snapshot) and message in ("split", "merge", "close"):
                argument.release()
        return got

    def clone(self) -> LayerCache:
        copy = type(self)(self.driver, self.ask("clone").cache, self.config)
        copy.offset = self.offset
        return copy


class TokenCache(LayerCache, sends="state view"):
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


class StateCache(LayerCache, sends="read state.states view.states boundaries write"):
    """The state of a recurrent layer."""


KINDS = {"kv": TokenCache, "rotating": TokenCache, "state": StateCache}


# --- the unified contract ---------------------------------------------------------------


class UnifiedCache(
    Cache,
    sends="forward write_states read_states copy_prefix remove can_resume save load",
):
    """Any kind but a wrapper; or one of the caches that a wrapper is made of.

    place: {"type": its number} in a wrapper. unput: the layers that were not yet put in
    the open pass.
    """

    contract = "unified"
    unput: frozenset[int] = frozenset()

    def call(self, message: str, *arguments: Any) -> Any:
        """Some messages end the pass, `forward` begins one."""
        if message in ("forward", "copy_prefix", "remove", "load"):
            self.expect_layers(0)
        got = super().call(message, *arguments)
        if message == "forward":
            self.expect_layers(self.config["layers"])
        return got

    def expect_layers(self, count: int) -> None:
        """A pass with so many layers is open. An image may not be put where there is one:
        that is never expected."""
        is_image = self.config["kind"] == "encoder"
        self.unput = frozenset(() if is_image else range(count))

    def put(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """The first of a layer in a pass goes with the message that comes next: all there
        is to answer is that it is done. Any other is one that may be refused."""
        if layer not in self.unput:
            self.call("put", layer, keys, values)
            return
        self.unput -= {layer}
        self.check()
        fields = {"layer": layer, "keys": keys, "values": values}
        self.driver.post(self.contract, "put", cache=self.number, **self.place, **fields)

    def get(self, layer: int) -> Any:
        is_image = self.config["kind"] == "encoder"
        return self.call("get.image" if is_image else "get", layer)

    @property
    def cached(self) -> bool:
        return bool(self.call("cached"))


class WrapperCache(UnifiedCache):
    """Several caches as one: what is told to it goes to each; a pass is put and got by
    their types."""

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number, config)
        parts = [{**config, **part} for part in config["caches"]]
        self.parts = open_parts(self, parts, "type", UnifiedCache)

    def of(self, layer_type: int) -> UnifiedCache:
        return self.parts[layer_type]

    def expect_layers(self, count: int) -> None:
        for part in self.parts:
            part.expect_layers(count and part.config["layers"])


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


class PrefixCache(
    Counting, sends="begin extend close cancel free set_limit count_tokens count_bytes"
):
    """A session or a trie."""

    contract = "prefix"
    known: list[LayerCache | None] | None = None

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


class SlotsCache(
    Counting,
    sends="begin.slot get_tokens get_remaining extend.slot"
    " reserve commit close.slot cancel.slot",
):
    """Several users over one cache of many sequences."""

    contract = "prefix"
    below: UnifiedCache | None = None

    @property
    def cache(self) -> UnifiedCache:
        if self.below is None:
            (config,) = self.config["below"]
            self.below = open_unified(self.driver, self.ask("below").cache, config)
            self.below.release()
        return self.below
