"""The process of a driver: lines go in, lines come out, within limits."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from lockstep.harness.core.errors import clean, say_exit


@dataclass(frozen=True)
class Limits:
    """The time and size of a driver's answers, and how strictly they are checked.

    message_seconds: for the answer to a message; start_seconds: for that to the first.
    line_bytes: of an answer; parsed, it takes some twenty times as much. strict: both
    sides' messages are held against the schemas.
    """

    message_seconds: float = 10.0
    start_seconds: float = 60.0
    line_bytes: int = 1 << 24
    strict: bool = False


def limit_by(step_seconds: float, strict: bool) -> Limits:
    """The limits in a pool whose workers may take `step_seconds` for a step: a message
    gets less, so that its operation can be named."""
    return Limits(message_seconds=step_seconds / 2, strict=strict)


# --- the process ------------------------------------------------------------------------


CHUNK = 1 << 16
# Bytes of its standard error that are kept.
LAST_WORDS = 4096

# Bytes of them that are shown.
SHOWN = 300

# Seconds for a driver that has closed its output to end, too.
GRACE = 0.5


class Misbehaved(Exception):
    """A driver did what it must not. what: malformed, crash or hang."""

    def __init__(self, what: str, words: str) -> None:
        super().__init__(words)
        self.what = what


class Process:
    """One run of the program `command`.

    It stays in the process group of the worker: whoever ends that ends it, too. asked:
    what it is at, in words. Raises OSError if the program cannot be started.
    """

    def __init__(self, command: Sequence[str], line_bytes: int) -> None:
        self.line_bytes = line_bytes
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.input, self.output, self.errors = map(
            get_number, (self.popen.stdin, self.popen.stdout, self.popen.stderr)
        )
        self.poll = select.poll()
        for number in (self.output, self.errors):
            self.poll.register(number, select.POLLIN)
        self.words = b""
        self.buffer = bytearray()
        self.asked = ""

    def exchange(
        self, request: bytes, count: int, seconds: float, asked: str
    ) -> list[bytes]:
        """Writes whole lines, and returns the `count` lines that are answered, without
        their ends. Raises Misbehaved."""
        self.asked, self.seconds = asked, seconds
        deadline = time.monotonic() + seconds
        self.write(request, deadline)
        lines: list[bytes] = []
        searched = 0
        while len(lines) < count:
            end = self.buffer.find(b"\n", searched)
            if end < 0:
                searched = len(self.buffer)
                self.wait(deadline, "answer")
                continue
            lines.append(bytes(self.buffer[:end]))
            del self.buffer[: end + 1]
            searched = 0
        if self.buffer:
            raise Misbehaved(
                "malformed",
                f"wrote more than one line as its answer to {asked}: {self.show()}",
            )
        return lines

    def write(self, request: bytes, deadline: float) -> None:
        rest = memoryview(request)
        while rest:
            try:
                rest = rest[os.write(self.input, rest) :]
            except BlockingIOError:
                self.poll.register(self.input, select.POLLOUT)
                try:
                    self.wait(deadline, "read")
                finally:
                    self.poll.unregister(self.input)
            except BrokenPipeError:
                raise self.describe_end("closed its input") from None

    def wait(self, deadline: float, what: str) -> None:
        """Until something has come, or can go. Raises Misbehaved when time is up, when
        the driver is gone, or when it says too much."""
        left = deadline - time.monotonic()
        ready = self.poll.poll(left * 1000) if left > 0 else ()
        if not ready and self.popen.poll() is not None:
            raise self.describe_end("ended")  # a child of its own still has its output
        if not ready:
            half = f"; it has written half a line: {self.show()}" if self.buffer else ""
            limit = f"within {self.seconds:g} s"
            raise Misbehaved("hang", f"did not {what} {self.asked} {limit}{half}")
        for number, _ in ready:
            if number == self.errors:
                self.hear()
            elif number == self.output:
                self.receive()

    def receive(self) -> None:
        received = os.read(self.output, CHUNK)
        if not received:
            raise self.describe_end("closed its output")
        self.buffer += received
        if len(self.buffer) > self.line_bytes:
            raise Misbehaved(
                "malformed",
                f"answered {self.asked} with more than {self.line_bytes:,} bytes:"
                f" {self.show()} …",
            )

    def hear(self) -> bool:
        """Reads standard error; False if nothing comes now."""
        try:
            heard = os.read(self.errors, CHUNK)
        except BlockingIOError:
            return False
        if not heard:
            with suppress(KeyError):
                self.poll.unregister(self.errors)
            return False
        self.words = (self.words + heard)[-LAST_WORDS:]
        return True

    def describe_end(self, otherwise: str) -> Misbehaved:
        """Words for the end of the process, if it has ended."""
        try:
            code = self.popen.wait(GRACE)
            words = say_exit(code).removeprefix("the process ")
        except subprocess.TimeoutExpired:
            words = otherwise
        half = f", after half a line: {self.show()}" if self.buffer else ""
        return Misbehaved("crash", f"{words} at {self.asked}{half}")

    def show(self) -> str:
        """The beginning of what has come."""
        return clean(self.buffer[:200].decode(errors="replace"), 60)

    def get_last_words(self) -> str:
        """The end of what it wrote on its standard error."""
        for _ in range(64):  # a driver that writes on and on is not heard to the end
            if not self.hear():
                break
        return clean(self.words[-SHOWN:].decode(errors="replace"), SHOWN)

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream is not None:
                stream.close()


def get_number(stream: IO[bytes] | None) -> int:
    """The descriptor of a stream; reading and writing does not wait."""
    assert stream is not None
    os.set_blocking(stream.fileno(), False)
    return stream.fileno()
