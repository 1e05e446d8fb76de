"""Tracks a backend's open snapshots, each with the cache that made the snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lockstep.harness.core.errors import Broken, format_raised


class Made(NamedTuple):
    """A snapshot, and the cache that returned it."""

    snapshot: Any
    maker: Any


class OpenSnapshots:
    """The open snapshots of one program, by name.

    A snapshot is closed through the cache that made it, even if that cache was freed or
    its name now belongs to another cache.

    Args:
        closes: whether the backend declares `close`.
    """

    def __init__(self, closes: bool) -> None:
        self.closes = closes
        self.owned: dict[str, Made] = {}

    def find(self, name: str | None) -> Any:
        return None if name is None else self.owned[name].snapshot

    def consume(self, name: str | None) -> Any:
        """Removes the name of a snapshot and returns the snapshot."""
        opened = self.owned.pop(name, None) if name is not None else None
        return opened and opened.snapshot

    def bind(self, name: str | None, snapshot: Any, maker: Any) -> None:
        """Gives a snapshot a name, and closes the snapshot that had this name before.

        A snapshot without a name is closed immediately.
        """
        opened = None if snapshot is None else Made(snapshot, maker)
        if name is None:
            self.discard(opened, "a capture that gets no name")
            return
        old = self.owned.pop(name, None)
        self.discard(old, f"{name}, whose name this step gives to another snapshot")
        if opened is not None:
            self.owned[name] = opened

    def close(self, name: str) -> None:
        opened = self.owned.pop(name)
        opened.maker.close(opened.snapshot)

    def discard(self, opened: Made | None, description: str) -> None:
        """Closes a snapshot that no operation of the program closes.

        Args:
            opened: the snapshot, or None.
            description: the name of the snapshot and the reason, for the message.

        Raises:
            Broken: the backend raised.
        """
        if opened is None or not self.closes:
            return
        call_aside(
            lambda: opened.maker.close(opened.snapshot),
            "close",
            f"closing snapshot {description}",
        )

    def close_all(self) -> None:
        for name in list(self.owned):
            self.discard(self.owned.pop(name), f"{name}, at the end")


def call_aside(call: Callable[[], Any], operation: str, description: str) -> None:
    """Calls the backend for an operation that the program does not have.

    Args:
        call: calls the backend.
        operation: the name of the operation.
        description: the object of the call and the reason, for the message.

    Raises:
        Broken: the backend raised.
    """
    try:
        call()
    except (Broken, NotImplementedError):
        raise
    except Exception as error:
        message = f"{description}: {format_raised(error)}"
        raise Broken("error", message, operation) from error
