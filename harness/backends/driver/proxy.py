"""Proxies: objects that stand for a cache, a snapshot or saved content in a driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.harness.backends.driver import messages
from lockstep.harness.backends.driver.arrays import Tensor, make_tensor
from lockstep.harness.backends.driver.client import Driver
from lockstep.harness.backends.driver.decoding import Malformed
from lockstep.harness.core.errors import Broken


class Proxy:
    """Something in a driver that has a number. what: caches, snapshots or saved."""

    what = "caches"
    owned = True

    def __init__(self, driver: Driver, number: int) -> None:
        self.driver, self.number, self.run = driver, number, driver.run

    def release(self) -> None:
        """It is not ours, or not any more: whoever has it drops it."""
        self.owned = False

    def __del__(self) -> None:
        if self.owned:
            self.driver.drop(self.run, self.what, self.number)


class Snapshot(Proxy):
    """The positions [begin, end) of a cache."""

    what = "snapshots"

    def __init__(self, driver: Driver, told: messages.Snapshot) -> None:
        super().__init__(driver, told.number)
        self.begin, self.end = told.begin, told.end


class Saved(Proxy):
    """All content of a unified cache."""

    what = "saved"


class Cache(Proxy):
    """A cache in a driver.

    Its methods are messages: `method` makes them of the tables in `messages`.
    """

    contract = ""
    place: Mapping[str, int] = {}

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number)
        self.config = config

    def call(self, message: str, *arguments: Any) -> Any:
        """Sends the arguments as the fields of a message, and returns the fields of its
        answer: None, one or several."""
        asked, _ = messages.CONTRACTS[self.contract][message]
        names = [name for name in asked if name != "type"]
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
        if self.run != self.driver.run or self.driver.process is None:
            raise Broken("crash", "the driver was ended before")

    def from_wire(self, name: str, value: Any) -> Any:
        """A field of an answer as the harness knows it."""
        if isinstance(value, list):
            return [self.from_wire(name, item) for item in value]
        if isinstance(value, messages.Snapshot):
            return Snapshot(self.driver, value)
        if name == "saved":
            return Saved(self.driver, value)
        return self.make_tensor(name, value) if name in ARRAYS else value

    def make_tensor(self, name: str, array: messages.Array | None) -> Tensor:
        """An array of an answer, in the dtype of the config unless it says another."""
        dtypes = {"delta": "float32", "mask": self.config.get("mask_dtype")}
        try:
            return make_tensor(array, name, dtypes.get(name) or self.config["dtype"])
        except Malformed as malformed:
            self.driver.reject(malformed)


ARRAYS = ("keys", "values", "mask", "conv", "delta")
UNSAID = ("id", "offset")


def to_wire(value: Any) -> Any:
    """An argument as a message has it."""
    if isinstance(value, Proxy):
        return value.number
    return list(value) if isinstance(value, Sequence) else value


def method(message: str) -> Callable[..., Any]:
    """A method that sends this message; its arguments are the fields, in their order."""

    def call(cache: Cache, *arguments: Any) -> Any:
        return cache.call(message, *arguments)

    return call
