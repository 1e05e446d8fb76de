"""Runs the process of a driver, and exchanges lines with it within limits."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import termios
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from lockstep.harness.core.errors import Broken, clean, format_exit

CHUNK = 1 << 16
# The number of bytes that are kept of the beginning of the driver's standard error, and
# as many of its end.
KEPT = 2048

# The number of letters of these that are shown.
SHOWN = 300

# The time limit (in seconds) for a driver to end after it has closed its output.
GRACE = 0.5


class Process:
    """A running process of the program `command`.

    The process stays in the process group of the worker, so that it ends with the group.

    Attributes:
        current: a description of the message that the process is answering.
        answered: a description of the message before it.
        stderr: the output on standard error since the last answer, without its middle.
        earlier: the output on standard error before.

    Raises:
        OSError: the program cannot be started.
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
        self.stderr = self.earlier = b""
        self.buffer = bytearray()
        self.current = self.answered = ""
        self.sent = 0

    def exchange(self, request: bytes, name: str, seconds: float) -> bytes:
        """Writes a line, and returns the answer without its line end.

        Args:
            request: the line.
            name: a description of the line.
            seconds: the time limit for the answer.

        Raises:
            Broken: the driver violates the protocol, crashes or hangs. `is_late` is True
                if the driver failed before it read this request.
        """
        self.current, self.seconds = name, seconds
        self.sent = 0
        self.check_silent()
        deadline = time.monotonic() + seconds
        self.write(request, deadline)
        line = self.read_line(deadline)
        if self.buffer:
            raise Broken(
                "malformed",
                f"wrote more than one line as its answer to {name}: {self.show()}",
            )
        self.answered = name
        self.earlier, self.stderr = self.stderr or self.earlier, b""
        return line

    def check_silent(self) -> None:
        """Raises Broken if the process wrote without a request, or has ended."""
        for number, _ in self.poll.poll(0):
            if number == self.errors:
                self.hear()
            else:
                self.receive()
        if self.buffer:
            message = f"wrote more after its answer to {self.answered}: {self.show()}"
            raise Broken("malformed", message, is_late=True)

    def read_line(self, deadline: float) -> bytes:
        searched = 0
        while (end := self.buffer.find(b"\n", searched)) < 0:
            searched = len(self.buffer)
            self.wait(deadline, "answer")
        line = bytes(self.buffer[:end])
        del self.buffer[: end + 1]
        return line

    def write(self, request: bytes, deadline: float) -> None:
        unsent = memoryview(request)
        while unsent:
            try:
                written = os.write(self.input, unsent)
                self.sent += written
                unsent = unsent[written:]
            except BlockingIOError:
                self.poll.register(self.input, select.POLLOUT)
                try:
                    self.wait(deadline, "read")
                finally:
                    self.poll.unregister(self.input)
            except BrokenPipeError:
                raise self.describe_end("closed its input") from None

    def wait(self, deadline: float, action: str) -> None:
        """Waits until the process has written, or can read.

        Raises:
            Broken: the time limit is exceeded, or the process has ended or has
                written too much.
        """
        remaining = deadline - time.monotonic()
        ready = self.poll.poll(remaining * 1000) if remaining > 0 else ()
        if not ready and self.popen.poll() is not None:
            raise self.describe_end("ended")  # a child process still has the output
        if not ready:
            message = f"did not {action} {self.current} within {self.seconds:g} s"
            if self.buffer:
                message += f"; it has written half a line: {self.show()}"
            is_late = self.has_read_nothing()
            if is_late:
                message += f", and has read nothing since its answer to {self.answered}"
            raise Broken("hang", message, is_late=is_late)
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
            raise Broken(
                "malformed",
                f"answered {self.current} with more than {self.line_bytes:,} bytes:"
                f" {self.show()} …",
            )

    def hear(self) -> bool:
        """Reads standard error; returns False if no output is available."""
        try:
            heard = os.read(self.errors, CHUNK)
        except BlockingIOError:
            return False
        if not heard:
            with suppress(KeyError):
                self.poll.unregister(self.errors)
            return False
        self.stderr += heard
        if len(self.stderr) > 2 * KEPT:
            self.stderr = self.stderr[:KEPT] + self.stderr[-KEPT:]
        return True

    def describe_end(self, otherwise: str) -> Broken:
        """Describes the end of the process, if it has ended."""
        try:
            code = self.popen.wait(GRACE)
            message = format_exit(code).removeprefix("the process ")
        except subprocess.TimeoutExpired:
            message = otherwise
        if self.has_read_nothing():
            after = f"{message} after its answer to {self.answered}"
            return Broken("crash", after, is_late=True)
        half = f", after half a line: {self.show()}" if self.buffer else ""
        return Broken("crash", f"{message} at {self.current}{half}")

    def has_read_nothing(self) -> bool:
        """Returns whether the driver has read nothing since its previous answer.

        Returns False if the system does not report the number of bytes in the pipe.
        """
        if self.buffer or not self.answered:
            return False
        unread = array("i", [0])
        with suppress(OSError):
            fcntl.ioctl(self.input, termios.FIONREAD, unread)
        return unread[0] == self.sent

    def show(self) -> str:
        """Formats the beginning of the received output."""
        return clean(self.buffer[:200].decode(errors="replace"), 60)

    def get_last_words(self) -> str:
        """Returns the beginning and the end of the output on standard error since the
        last answer; if there is none, of earlier output.

        Some runtimes, such as Go's, write the cause first and then the stack.
        """
        for _ in range(64):  # the driver may never stop writing
            if not self.hear():
                break
        return clean((self.stderr or self.earlier).decode(errors="replace"), SHOWN)

    def stop(self) -> None:
        """Kills the process."""
        self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream is not None:
                stream.close()


def get_number(stream: IO[bytes] | None) -> int:
    """Returns the file descriptor of a stream, and makes the stream non-blocking."""
    assert stream is not None
    os.set_blocking(stream.fileno(), False)
    return stream.fileno()
