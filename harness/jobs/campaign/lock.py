"""One coordinator at a time: the file `lock` in the folder of a campaign."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex

from msgspec import Struct, ValidationError
from msgspec import json as msgspec_json

from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import Folder

LOCK = "lock"
BEAT_SECONDS = 5.0
DEAD_SECONDS = 60.0
"""A coordinator that has not been heard of for so long is dead."""


class Holder(Struct, frozen=True, forbid_unknown_fields=True):
    """The coordinator that holds the lock. heard: when it last said so, in seconds."""

    host: str
    pid: int
    token: str
    heard: float

    @property
    def is_dead(self) -> bool:
        """Whether it has ended: at once on the same machine, else after a while."""
        if self.host == platform.node() and self.pid > 0 and not exists(self.pid):
            return True
        return time.time() - self.heard > DEAD_SECONDS


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


class Lock:
    """Held by this process; `beat` must be called now and then."""

    def __init__(self, folder: Folder) -> None:
        self.folder, self.token, self.beaten = folder, token_hex(8), 0.0

    def encode(self) -> bytes:
        own = Holder(platform.node(), os.getpid(), self.token, time.time())
        return msgspec_json.encode(own)

    def acquire(self) -> None:
        """Raises UsageError if another coordinator holds it; OSError."""
        holder = read_holder(self.folder)
        if holder is not None and holder.is_dead:
            self.folder.take(LOCK)
        if not self.folder.put(LOCK, self.encode()):
            raise UsageError(describe(self.folder, read_holder(self.folder)))
        self.beaten = time.monotonic()

    def beat(self) -> None:
        """Says that this coordinator is alive.

        Raises:
            UsageError: another one has taken over.
            OSError: the file cannot be written.
        """
        if time.monotonic() - self.beaten < BEAT_SECONDS:
            return
        if not self.is_held():
            raise UsageError(
                f"{self.folder.place}: another coordinator has taken over, since this one"
                f" was not heard of for {DEAD_SECONDS:g} s; this one ends"
            )
        self.folder.replace(LOCK, self.encode())
        self.beaten = time.monotonic()

    def is_held(self) -> bool:
        """Says whether no other coordinator has taken over."""
        holder = read_holder(self.folder)
        return holder is not None and holder.token == self.token

    def release(self) -> None:
        if self.is_held():
            self.folder.take(LOCK)


def read_holder(folder: Folder) -> Holder | None:
    """The coordinator of a campaign; None if it has none.

    A lock that cannot be read belongs to nobody who is still alive: it is written whole.
    """
    content = folder.read(LOCK)
    if content is None:
        return None
    try:
        return msgspec_json.decode(content, type=Holder)
    except (ValidationError, ValueError):
        return Holder("unknown", 0, "", 0.0)


def describe(folder: Folder, holder: Holder | None) -> str:
    if holder is None:
        return f"{folder.place}: another coordinator was faster; see `campaign status`"
    seconds = max(0.0, time.time() - holder.heard)
    return (
        f"{folder.place}: process {holder.pid} on {holder.host} coordinates this"
        f" campaign, last heard of {seconds:.0f} s ago; wait until it is done, or end it"
    )


@contextmanager
def held(folder: Folder) -> Iterator[Lock]:
    """Holds the lock of a folder.

    Raises:
        UsageError: another coordinator does, or the folder cannot be written.
    """
    lock = Lock(folder)
    try:
        lock.acquire()
    except OSError as error:
        raise UsageError(describe_unwritable(folder, error)) from None
    try:
        yield lock
    finally:
        with suppress(OSError, UsageError):
            lock.release()


def describe_unwritable(folder: Folder, error: OSError) -> str:
    why = error.strerror or error
    return f"{folder.place}: cannot be written: {why}; nothing that was done is lost"
