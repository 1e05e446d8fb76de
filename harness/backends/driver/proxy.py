"""Proxies: objects that represent a cache, a snapshot or saved content in a driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

from msgspec import UNSET
from msgspec.structs import asdict, astuple

from lockstep.harness.backends.driver import messages
from lockstep.harness.backends.driver.client import Driver
from lockstep.harness.backends.driver.decoding import (
    Malformed,
    PromisedMask,
    Tensor,
    make_mask,
    make_tensor,
    say,
)
from lockstep.harness.backends.interface import Mask
from lockstep.harness.backends.paged import Entry, Pool
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
        """Passes on the ownership of the object; the new owner drops it."""
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
    """All content of a unified or a paged cache, or of a batch."""

    sort = "saved"


ARRAYS = ("keys", "values", "mask", "conv", "delta", "attended")
NOT_RETURNED = ("id", "offset", "offsets")
CONSUMING = ("split", "merge", "close", "extend")
"""Messages that consume the snapshots or the batch that they name."""


class Cache(Proxy):
    """A cache in a driver.

    The proxy has a method for each message of its contract. The arguments of the method
    are the fields of the message, in order. Subclasses define all other methods.

    Attributes:
        contract: the contract of the cache's messages.
        variant: the variant of messages: "NAME.VARIANT" is sent instead of NAME.
        place: fields that are added to every message.
        offset: the offset in the last answer that has one.
    """

    contract: ClassVar[str]
    variant = ""
    place: Mapping[str, int] = {}
    offset: Any = 0

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
        """Sends a message with the arguments as its fields; the last fields may be
        optional, without arguments.

        Returns None for an empty answer, the value of its only field, or a tuple of its
        fields.
        """
        requested, _ = self.table[self.get_message(name)]
        fields = [field for field in requested if field not in messages.PLACE]
        sent = map(to_wire, arguments)  # optional fields may have no argument
        answer = self.ask(name, **dict(zip(fields, sent, strict=False)))
        for argument in arguments if name in CONSUMING else ():
            if isinstance(argument, Proxy) and argument is not self:
                argument.release()
        named = [
            name
            for name in answer.__struct_fields__
            if name not in NOT_RETURNED and getattr(answer, name) is not UNSET
        ]
        if named == ["keys", "values"] and answer.keys is None and answer.values is None:
            return None
        values = [self.from_wire(field, getattr(answer, field)) for field in named]
        return tuple(values) if len(values) > 1 else values[0] if values else None

    def ask(self, name: str, **fields: Any) -> Any:
        """Sends a message about this cache, and returns the answer, a struct."""
        if self.driver_run != self.driver.run or self.driver.process is None:
            raise Broken("crash", "the driver was ended before")
        for field, value in fields.items():
            if isinstance(value, Tensor):
                value.names_dtype = value.dtype != self.get_dtype(field)
        about = {"cache": self.number, **self.place}
        message = self.get_message(name)
        answer = self.driver.ask(self.contract, message, **about, **fields)
        if name != "extract":
            self.set_offset(answer)
        return answer

    def set_offset(self, answer: Any) -> None:
        """Sets the offset from an answer that has one."""
        self.offset = getattr(answer, "offset", self.offset)

    def clone(self) -> Self:
        copy = type(self)(self.driver, self.ask("clone").cache, self.config)
        copy.offset = self.offset
        return copy

    def from_wire(self, name: str, value: Any) -> Any:
        """Converts a field of an answer to the form that the harness uses."""
        match value:
            case list():
                return [self.from_wire(name, item) for item in value]
            case messages.Snapshot():
                return Snapshot(self.driver, value)
            case messages.Entry():
                fields = asdict(value).items()
                return Entry(**{name: item for name, item in fields if item is not UNSET})
            case messages.Event():
                return value.event, self.from_wire("entry", value.entry)
            case messages.Pair() | messages.State():
                pair = zip(value.__struct_fields__, astuple(value), strict=True)
                return tuple([self.make_tensor(*item) for item in pair])
            case int() if name == "saved":
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


Open = Callable[[Driver, int, Mapping[str, Any]], Any]


def open_parts(
    whole: Cache, configs: Iterable[Mapping[str, Any]], field: str, open_part: Open
) -> list[Any]:
    """Opens a proxy for each part of a cache.

    The messages of a proxy have the number of its part in the field `field`.
    """
    parts = [open_part(whole.driver, whole.number, config) for config in configs]
    for number, cache in enumerate(parts):
        cache.place = {field: number}
        cache.release()  # the drop of the whole drops each part
    return parts


# --- the layer contract, and single caches of the batched contract ----------------------


class LayerCache(Cache):
    """A proxy of a single cache of any kind."""

    contract = "layer"


class TokenCache(LayerCache):
    """A proxy of a cache of kind kv, rotating or pooled."""

    promised = PromisedMask(0, 0)

    def make_mask(self, length: int, rows: int) -> PromisedMask:
        """Returns a promise of the mask; the message of the update requests the mask
        itself."""
        self.promised = PromisedMask(length, rows)
        return self.promised

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        promised = self.promised
        answer = self.ask("update", rows=promised.rows, keys=keys, values=values)
        keys = self.make_tensor("keys", answer.keys)
        shape = keys.content.shape
        columns = shape[2] if len(shape) == 4 else 0
        dtype, causal = self.get_mask_dtype(), self.driver.causal
        try:
            promised.tensor = make_mask(answer.mask, promised, columns, dtype, causal)
        except Malformed as malformed:
            self.driver.reject(malformed)
        return keys, self.make_tensor("values", answer.values)


class StateCache(LayerCache):
    """A proxy of a cache with the state of a recurrent layer."""

    variant = "states"


class ListCache(LayerCache):
    """A proxy of a single cache of batch-list, which consists of several caches."""

    variant = "list"

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number, config)
        self.parts = open_parts(self, config["parts"], "part", open_single)

    def set_offset(self, answer: Any) -> None:
        if not hasattr(answer, "offsets"):
            return
        offsets = answer.offsets
        if len(offsets) != len(self.parts):
            text = f"offsets is {say(offsets)}; expected {len(self.parts)} integers"
            self.driver.reject(Malformed(f"{text}, one for each cache of the list"))
        for cache, offset in zip(self.parts, offsets, strict=True):
            cache.offset = offset

    def clone(self) -> Self:
        copy = super().clone()
        for part, original in zip(copy.parts, self.parts, strict=True):
            part.offset = original.offset
        return copy


SINGLE: Mapping[str, type[LayerCache]] = {
    "kv": TokenCache,
    "rotating": TokenCache,
    "pooled": TokenCache,
    "state": StateCache,
    "list": ListCache,
}


def open_single(driver: Driver, number: int, config: Mapping[str, Any]) -> LayerCache:
    """Opens a proxy of a single cache. The kind in the config may be the kind of a single
    cache, or the kind of a batch."""
    return SINGLE[config["kind"].removeprefix("batch-")](driver, number, config)


# --- the batched contract ---------------------------------------------------------------


class BatchCache(Cache):
    """A proxy of a batch of kind batch-kv or batch-rotating."""

    contract = "batched"

    @property
    def offsets(self) -> list[int]:
        offsets: list[int] = self.ask("offsets").offsets
        return offsets

    def make_mask(self, length: int) -> Mask:
        mask = self.ask("make_mask", length=length).mask
        is_array = mask is not None and not isinstance(mask, str)
        return self.make_tensor("mask", mask) if is_array else mask

    def extract(self, row: int) -> LayerCache:
        answer = self.ask("extract", row=row)
        single = open_single(self.driver, answer.cache, self.config)
        single.set_offset(answer)
        return single


class BatchStateCache(BatchCache):
    """A proxy of a batch of kind batch-state."""

    variant = "states"


class BatchListCache(BatchCache):
    """A proxy of a batch of kind batch-list, which consists of several batches."""

    variant = "list"

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number, config)
        self.parts = open_parts(self, config["parts"], "part", open_batch)


BATCHES: Mapping[str, type[BatchCache]] = {
    "batch-kv": BatchCache,
    "batch-rotating": BatchCache,
    "batch-state": BatchStateCache,
    "batch-list": BatchListCache,
}


def open_batch(driver: Driver, number: int, config: Mapping[str, Any]) -> BatchCache:
    return BATCHES[config["kind"]](driver, number, config)


def open_batched(driver: Driver, number: int, config: Mapping[str, Any]) -> Cache:
    """Opens a single cache, or makes a batch, which consumes its single caches."""
    if config["rows"] is None and config["caches"] is None:
        return open_single(driver, number, config)
    for cache in config["caches"] or ():
        cache.release()
    return open_batch(driver, number, config)


# --- the unified contract ---------------------------------------------------------------


class UnifiedCache(Cache):
    """A proxy of a unified cache, or of a cache in a wrapper, whose number is "type"."""

    contract = "unified"

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number, config)
        self.variant = "image" if config["kind"] == "encoder" else ""

    @property
    def cached(self) -> bool:
        return bool(self.call("cached"))


class WrapperCache(UnifiedCache):
    """A proxy of a wrapper, which consists of several caches."""

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number, config)
        parts = [{**config, **sizes} for sizes in config["caches"]]
        self.parts = open_parts(self, parts, "type", UnifiedCache)

    def of(self, layer_type: int) -> UnifiedCache:
        return self.parts[layer_type]  # type: ignore[no-any-return]


def open_unified(driver: Driver, number: int, config: Mapping[str, Any]) -> UnifiedCache:
    kind = WrapperCache if config["kind"] == "wrapper" else UnifiedCache
    return kind(driver, number, config)


# --- the prefix contract; its caches bring those below them -----------------------------


CHANGES = ("begin", "close", "cancel", "free", "set_limit")
"""Messages that may change the offsets of the layers' caches, or replace these caches."""


class PrefixCache(Cache):
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
        layer = open_single(self.driver, answer.cache, config)
        layer.offset = answer.offset
        layer.release()
        return layer

    def get_statistics(self) -> Any:
        """Returns the statistics: an answer whose fields are numbers."""
        return self.ask("get_statistics")


class SlotsCache(PrefixCache):
    """A proxy of slots: several users share a cache of many sequences."""

    variant = "slot"
    below: UnifiedCache | None = None

    @property
    def cache(self) -> UnifiedCache:
        if self.below is None:
            (config,) = self.config["below"]
            self.below = open_unified(self.driver, self.ask("below").cache, config)
            self.below.release()
        return self.below


# --- the paged contract -----------------------------------------------------------------


class PagedCache(Cache):
    """A proxy with all methods of `harness.backends.paged.PagedCache`.

    A driver need not answer the messages of methods that its kind does not declare.
    """

    contract = "paged"

    def open(self, *arguments: Any) -> None:
        """Opens a request by the message `open_request`, since the message `open` opens a
        cache."""
        self.call("open_request", *arguments)

    def load(self, request: str, transfer: str) -> tuple[int, list[Any]] | None:
        end, copies = self.call("load", request, transfer)
        return None if end is None else (end, copies)

    def receive(self, *arguments: Any) -> tuple[int, list[int]] | None:
        start, blocks = self.call("receive", *arguments)
        return None if start is None else (start, blocks)

    def pool(self) -> Pool:
        answer = self.ask("pool")
        counted = Counter(block for block, _ in answer.references)
        for block, times in counted.items():
            if times > 1:
                problem = f"references has block {block} {times} times"
                self.driver.reject(Malformed(problem))
        optional = [
            () if blocks is UNSET else blocks for blocks in (answer.pinned, answer.idle)
        ]
        return Pool(dict(answer.references), answer.free, answer.cached, *optional)


# --- all of them ------------------------------------------------------------------------


PROXIES: Mapping[str, Open] = {
    **SINGLE,
    **dict.fromkeys(BATCHES, open_batched),
    "session": PrefixCache,
    "trie": PrefixCache,
    "slots": SlotsCache,
}
"""Kind → its proxy; kinds of the paged and the unified contract are not listed."""


def open_cache(driver: Driver, config: Mapping[str, Any]) -> Cache:
    """Opens an empty cache in a driver, which is started if it does not run."""
    driver.start()
    driver.tell_dropped()
    kind = config["kind"]
    sent = {name: to_wire(value) for name, value in config.items() if name != "below"}
    number = driver.ask("session", "open", config=sent).cache
    usual: Open = PagedCache if kind.startswith("paged-") else open_unified
    cache: Cache = PROXIES.get(kind, usual)(driver, number, config)
    return cache


def to_wire(value: Any) -> Any:
    """Converts an argument to its form in a message."""
    if isinstance(value, Proxy):
        return value.number
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(map(to_wire, value))
    return sorted(value) if isinstance(value, frozenset) else value
