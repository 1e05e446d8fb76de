"""What stands for something in a driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lockstep.harness.backends.broken import Broken
from lockstep.harness.backends.driver.arrays import Tensor, parse_array
from lockstep.harness.backends.driver.client import Driver
from lockstep.harness.backends.driver.fields import (
    Answer,
    Malformed,
    find,
    find_number,
    say,
)

T = TypeVar("T")
Pair = tuple[Tensor, Tensor]


class Proxy:
    """Something in a driver that has a number. what: caches, snapshots or saved."""

    what = "caches"

    def __init__(self, driver: Driver, number: int) -> None:
        self.driver, self.number, self.run = driver, number, driver.run

    owned = True

    def release(self) -> None:
        """It is not ours, or not any more: whoever has it drops it."""
        self.owned = False

    def __del__(self) -> None:
        if self.owned:
            self.driver.drop(self.run, self.what, self.number)


class Snapshot(Proxy):
    """Of the positions [begin, end)."""

    what = "snapshots"

    def __init__(self, driver: Driver, number: int, begin: int, end: int) -> None:
        super().__init__(driver, number)
        self.begin, self.end = begin, end


class Saved(Proxy):
    """What a unified cache has saved."""

    what = "saved"


class Cache(Proxy):
    """A cache in a driver. contract: whose messages it understands."""

    contract = ""

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number)
        self.config = config

    def ask(self, operation: str, **fields: Any) -> Answer:
        """The answer to a message about this cache."""
        self.check()
        return self.driver.ask(self.contract, operation, cache=self.number, **fields)

    def check(self) -> None:
        """The driver that has this cache must still run."""
        if self.run != self.driver.run or self.driver.process is None:
            raise Broken("crash", "the driver was ended before")

    def ask_for(self, operation: str, look: Callable[[Answer], T], **fields: Any) -> T:
        """What `look` finds in the answer."""
        answer = self.ask(operation, **fields)
        return self.look(operation, lambda: look(answer))

    def look(self, operation: str, look: Callable[[], T]) -> T:
        """Ends the driver if the answer turns out to have the wrong form."""
        try:
            return look()
        except Malformed as malformed:
            self.driver.answer_is_wrong(operation, malformed)

    # --- what is in an answer -----------------------------------------------------------

    def find_array(self, answer: Answer, name: str, dtype: str | None = None) -> Tensor:
        return parse_array(find(answer, name), name, dtype or self.config["dtype"])

    def find_pair(self, answer: Answer) -> Pair | None:
        """K and V, or None where both are null."""
        if find(answer, "keys") is None and find(answer, "values") is None:
            return None
        return self.find_array(answer, "keys"), self.find_array(answer, "values")

    def find_states(self, answer: Answer) -> Pair:
        conv = self.find_array(answer, "conv")
        return conv, self.find_array(answer, "delta", "float32")

    def find_snapshot(self, answer: Answer, name: str = "snapshot") -> Snapshot | None:
        return self.make_snapshot(find(answer, name), name)

    def make_snapshot(self, value: Any, name: str) -> Snapshot | None:
        """{"number": …, "begin": …, "end": …} or null."""
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise Malformed(f"{name} is {say(value)}, neither a snapshot nor null")
        number, begin, end = (find_number(value, field) for field in SNAPSHOT)
        return Snapshot(self.driver, number, begin, end)


SNAPSHOT = ("number", "begin", "end")


def get_number(proxy: Proxy | None) -> int | None:
    """The number by which a message names something."""
    return None if proxy is None else proxy.number
