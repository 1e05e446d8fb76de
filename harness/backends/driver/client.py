"""The client of a driver: sends messages and receives answers.

The driver is started at its first use, and restarted after it has misbehaved.
"""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from msgspec import Struct

from lockstep.harness.backends.backend import Alignment
from lockstep.harness.backends.driver.decoding import (
    Malformed,
    Tensor,
    decode,
    parse,
    say,
)
from lockstep.harness.backends.driver.messages import (
    ERRORS,
    PROTOCOL,
    Hello,
    Protocol,
    Refusal,
    get_operation,
)
from lockstep.harness.backends.driver.process import Process
from lockstep.harness.core.errors import Broken, UsageError, clean

# --- limits -----------------------------------------------------------------------------


STEP_SECONDS = 20.0
"""The time limit of a step, after which a worker counts as hung."""

START_SECONDS = 60.0
"""The time limit for loading a backend."""


@dataclass(frozen=True)
class Limits:
    """The time and size of a driver's answers, and how strictly they are checked.

    Attributes:
        message_seconds: the time limit for the answer to a message.
        start_seconds: the time limit for the answer to the first message.
        line_bytes: the maximal size of an answer; a parsed answer takes about twenty
            times as much memory.
        strict: whether the messages of both sides are checked against the schemas.
        unsupported: whether a registered backend also runs with untested versions of its
            packages.
        probe: the folder of the probe that a server serves.
        allow_host: the host of a server on another machine; None for this machine only.
        rate: the maximum number of requests to a server a second; None for no limit.
    """

    message_seconds: float = STEP_SECONDS / 2
    start_seconds: float = START_SECONDS
    line_bytes: int = 1 << 24
    strict: bool = False
    unsupported: bool = False
    probe: str | None = None
    allow_host: str | None = None
    rate: float | None = None

    @property
    def step_seconds(self) -> float:
        """The time limit of a step: longer than the limit of a message, so that the
        worker can report the late operation.
        """
        return 2 * self.message_seconds


LIMITS = Limits()

# --- messages ---------------------------------------------------------------------------


# The maximal length of a message about a driver's misbehavior.
MOST_WORDS = 700

# The time limit (in seconds) for an answer after a driver has hung, since it will hang
# again while its program is shrunk.
AFTER_HANG = 1.0


class Driver:
    """The client of the program `command`, with which it communicates through pipes.

    All caches of a backend are in a single process.

    Attributes:
        run: the number of the current process; objects of earlier processes are lost.
        is_fresh: whether no message was sent in this step.
        on_send: a function that gets each message as a line before it is sent, or None.
    """

    def __init__(
        self, command: Sequence[str], limits: Limits, protocol: Protocol
    ) -> None:
        self.command, self.limits, self.protocol = command, limits, protocol
        self.seconds = limits.message_seconds
        self.slowest = 0.0
        self.process: Process | None = None
        self.stop: weakref.finalize[..., Any] | None = None
        self.hello: Hello | None = None
        self.causal: Alignment = "lower-right"
        self.run = 0
        self.message = 0
        self.current = ""
        self.is_fresh = True
        self.dropped: dict[str, list[int]] = {}
        self.on_send: Callable[[bytes], None] | None = None

    # --- starting -----------------------------------------------------------------------

    def start(self) -> Hello:
        """Starts the process if it does not run, and returns the driver's declaration."""
        if self.process is not None and self.hello is not None:
            return self.hello
        self.run += 1
        self.message = 0
        self.dropped = {}
        try:
            self.process = Process(self.command, self.limits.line_bytes)
        except OSError as error:
            problem = f"{self.command[0]} cannot be started: {error.strerror}"
            raise Broken("crash", problem) from None
        self.stop = weakref.finalize(self, self.process.stop)
        declared = self.hello
        request = {"protocol": PROTOCOL}
        hello: Hello = self.exchange(
            "session", "hello", request, self.limits.start_seconds
        )
        if declared is not None and hello != declared:
            self.misbehave("malformed", "declared something else than before")
        self.hello, self.causal = hello, hello.causal
        return hello

    # --- messages -----------------------------------------------------------------------

    def ask(self, contract: str, message: str, **fields: Any) -> Any:
        """Sends a message, and returns its answer, a struct.

        Args:
            contract: the contract of the message.
            message: the name of the message in the protocol.
            fields: the fields of the request.

        Raises:
            Exception: the driver refuses the message; see `messages.ERRORS`.
            Broken: the driver misbehaves.
        """
        return self.exchange(contract, message, fields, self.seconds)

    def drop(self, run: int, sort: str, number: int) -> None:
        """Records that the harness no longer needs this cache or snapshot."""
        if run == self.run:
            self.dropped.setdefault(sort, []).append(number)

    def tell_dropped(self) -> None:
        """Tells the driver which objects the harness no longer needs."""
        if self.process is not None and self.dropped:
            dropped, self.dropped = self.dropped, {}
            self.ask("session", "drop", **dropped)

    def exchange(
        self, contract: str, message: str, fields: Mapping[str, Any], seconds: float
    ) -> Any:
        assert self.process is not None
        self.message += 1
        operation = get_operation(message)
        request = encode(self.message, operation, fields)
        if self.limits.strict:
            kind = self.protocol.get_request(contract, message)
            check_request(kind, json.loads(request))
        self.current = f"'{operation}' (message {self.message})"
        if self.on_send is not None:
            self.on_send(request)
        begun = time.monotonic()
        try:
            line = self.process.exchange(request, self.current, seconds)
        except Broken as broken:
            is_late = broken.is_late and self.is_fresh
            self.misbehave(broken.what, str(broken), is_late)
        except BaseException:
            self.end()  # the answer is not read
            raise
        self.is_fresh = False
        if message != "hello":
            self.slowest = max(self.slowest, time.monotonic() - begun)
        return self.parse(contract, message, line)

    def follow(self, is_over: bool) -> None:
        """Handles the end of a step or, if `is_over`, of a program.

        At the end of a program, the driver is told to drop its caches. If it does not
        answer, the failure is attributed to the last step, and not to the next program.

        Raises:
            Broken: the driver misbehaves.
        """
        self.is_fresh = True
        if is_over:
            self.tell_dropped()
            self.is_fresh = True

    def parse(self, contract: str, message: str, line: bytes) -> Any:
        """Parses the answer to a message; raises an exception if it is a refusal."""
        try:
            answer = decode(line)
            if answer.get("id") != self.message:
                raise Malformed(
                    f"its id must be {self.message}, the id of the request, not"
                    f" {say(answer.get('id'))}"
                )
            refusal = get_refusal(answer, strict=self.limits.strict)
            if refusal is None:
                strict = self.limits.strict or message == "hello"
                kind = self.protocol.get_answer(contract, message)
                return parse(answer, kind, strict=strict)
        except Malformed as malformed:
            self.reject(malformed)
        missing = get_operation(message) if refusal.error == "missing" else None
        raise ERRORS[refusal.error](missing or clean(refusal.message))

    # --- misbehaviour -------------------------------------------------------------------

    def reject(self, malformed: Malformed) -> NoReturn:
        """Ends the process, and raises Broken, because its last answer is malformed."""
        self.misbehave("malformed", f"answered {self.current} wrongly: {malformed}")

    def misbehave(self, sort: str, problem: str, is_late: bool = False) -> NoReturn:
        """Ends the process, and raises Broken with a description of the problem."""
        assert self.process is not None
        said = self.process.get_last_words()
        self.end()
        if sort == "hang" and self.hello is not None:
            longer = 4 * self.limits.message_seconds
            problem += f"; --step-time {longer:g} gives it twice the time"
            self.seconds = min(self.seconds, max(AFTER_HANG, 20 * self.slowest))
        if sort == "malformed":
            problem += (
                "; harness/backends/driver/README.md says what each answer looks like"
            )
        if said:
            problem += f"; its last words: {said}"
        raise Broken(sort, clean(f"the driver {problem}", MOST_WORDS), is_late=is_late)

    def end(self) -> None:
        """Ends the process, if there is one."""
        if self.stop is not None:
            self.stop()
        self.process = self.stop = None


def encode(number: int, operation: str, fields: Mapping[str, Any]) -> bytes:
    """Formats a message as a line."""
    plain: dict[str, Any] = {"id": number, "op": operation}
    arrays = ""
    for name, value in fields.items():
        if isinstance(value, Tensor):
            arrays += f',"{name}":{value.to_json()}'
        else:
            plain[name] = value
    return f"{ENCODER.encode(plain)[:-1]}{arrays}}}\n".encode()


ENCODER = json.JSONEncoder(separators=(",", ":"))


def check_request(kind: type[Struct], request: Any) -> None:
    """Raises UsageError for a request that its schema does not allow."""
    try:
        parse(request, kind, "the request", strict=True)
    except Malformed as malformed:
        raise UsageError(
            f"the harness wrote a message that its own schema does not allow: {malformed}"
        ) from None


def get_refusal(answer: Mapping[str, Any], *, strict: bool) -> Refusal | None:
    """Returns the error in an answer, or None. If strict, the error must have a text."""
    if answer.get("error") is None:
        return None
    if not strict and answer.get("message") in ("", None):
        answer = {**answer, "message": "it does not say why"}
    return parse(answer, Refusal, strict=strict)
