"""Sends messages between a pool and a worker over a socket.

A message consists of MAGIC, its length and its bytes. The code of a backend runs in the
worker and may write any bytes to any file descriptor, so the pool never blocks on an
incomplete message, and rejects bytes without MAGIC.
"""

from __future__ import annotations

import select
import socket
import struct
import time

from lockstep.harness.core.errors import clean

MAGIC = b"\x00lockstep"
LENGTH = struct.Struct("!I")
HEAD = len(MAGIC) + LENGTH.size

MAX_BYTES = 128 << 20
"""The maximum size of a message. A file of a set of vectors may have 64 MiB."""

CHUNK = 1 << 20

MESSAGE_SECONDS = 20.0
"""The time limit between two parts of a message, for receiving and for sending."""


class Stray(Exception):
    """The received bytes are not a message; the text describes them."""


class Channel:
    """One end of a connection.

    Args:
        seconds: the time limit for the other end to read sent bytes; None for no limit.
    """

    def __init__(self, end: socket.socket, seconds: float | None = None) -> None:
        self.end, self.seconds = end, seconds
        self.end.setblocking(False)
        self.buffer = bytearray()
        self.heard = 0.0

    def fileno(self) -> int:
        return self.end.fileno()

    def close(self) -> None:
        self.end.close()

    def send(self, message: bytes) -> None:
        """Sends a message. Raises OSError if the other end is closed or does not read."""
        unsent = memoryview(MAGIC + LENGTH.pack(len(message)) + message)
        while unsent:
            try:
                unsent = unsent[self.end.send(unsent) :]
            except BlockingIOError:
                self.await_event(select.POLLOUT, self.seconds)

    def wait(self) -> bytes:
        """Waits for the next message, without a time limit. Raises EOFError and Stray
        like `receive`."""
        while (message := self.receive()) is None:
            self.await_event(select.POLLIN, None)
        return message

    def await_event(self, event: int, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self.end, event)
        if not poll.poll(seconds and seconds * 1000):
            raise TimeoutError(f"nothing was read for {seconds:g} s")

    def receive(self) -> bytes | None:
        """Returns the next message; None until it has arrived completely.

        Raises:
            EOFError: the other end is closed.
            Stray: the received bytes are not a message, or are incomplete for too long.
        """
        while (message := self.cut()) is None:
            try:
                received = self.end.recv(CHUNK)
            except BlockingIOError:
                self.check_time()
                return None
            except OSError as error:
                raise EOFError from error
            if not received:
                raise EOFError
            self.heard = time.monotonic()
            self.buffer += received
        return message

    def cut(self) -> bytes | None:
        """Removes the first complete message from the buffer and returns it."""
        buffer = self.buffer
        if not MAGIC.startswith(buffer[: len(MAGIC)]):
            raise Stray(clean(buffer[:200].decode(errors="replace"), 60))
        if len(buffer) < HEAD:
            return None
        (length,) = LENGTH.unpack_from(buffer, len(MAGIC))
        if length > MAX_BYTES:
            raise Stray(
                f"a message has {length:,} bytes; at most {MAX_BYTES:,} are allowed"
            )
        if len(buffer) < HEAD + length:
            return None
        message = bytes(buffer[HEAD : HEAD + length])
        del buffer[: HEAD + length]
        return message

    def check_time(self) -> None:
        if self.buffer and time.monotonic() - self.heard > MESSAGE_SECONDS:
            raise Stray(
                f"half a message was read, and nothing more for {MESSAGE_SECONDS:g} s"
            )


def make_channel() -> tuple[Channel, socket.socket]:
    """Creates a connection. Returns this process's channel and the other end's socket."""
    ours, theirs = socket.socketpair()
    return Channel(ours, MESSAGE_SECONDS), theirs
