"""A driver: messages out, answers in. It is started when it is needed, and again when it
has misbehaved."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from lockstep.harness.backends.broken import Broken
from lockstep.harness.backends.driver.arrays import Tensor
from lockstep.harness.backends.driver.fields import Answer, Malformed, say
from lockstep.harness.backends.driver.limits import Limits
from lockstep.harness.backends.driver.process import Misbehaved, Process
from lockstep.harness.backends.driver.refusals import ERRORS
from lockstep.harness.backends.driver.schema import check_answer, check_request
from lockstep.harness.core.printable import clean

PROTOCOL = 1

MOST_WORDS = 700
"""Letters that are said about one thing that a driver did."""

AFTER_HANG = 1.0
"""Seconds for an answer once a driver has hung: it will again while its program is made
shorter."""


class Driver:
    """The program `command` at the other end of two pipes.

    All caches of a backend are in one process. `run` is the number of that process: what
    belongs to an earlier one is gone.
    """

    def __init__(self, command: Sequence[str], limits: Limits) -> None:
        self.command, self.limits = command, limits
        self.seconds = limits.message_seconds
        self.slowest = 0.0
        self.process: Process | None = None
        self.stop: weakref.finalize[..., Any] | None = None
        self.hello: Answer | None = None
        self.run = 0
        self.message = 0
        self.waiting: list[tuple[str, str, bytes]] = []
        self.dropped: dict[str, list[int]] = {}

    # --- starting -----------------------------------------------------------------------

    def start(self) -> Answer:
        """Starts the process unless it runs; what it has declared."""
        if self.process is not None and self.hello is not None:
            return self.hello
        self.run += 1
        self.message = 0
        self.waiting, self.dropped = [], {}
        try:
            self.process = Process(self.command, self.limits.line_bytes)
        except OSError as error:
            words = f"{self.command[0]} cannot be started: {error.strerror}"
            raise Broken("crash", words) from None
        self.stop = weakref.finalize(self, self.process.stop)
        before = self.hello
        request = {"protocol": PROTOCOL}
        hello = self.exchange("session", "hello", request, self.limits.start_seconds)
        if before is not None and hello != before:
            self.misbehave("malformed", "declared something else than before")
        self.hello = hello
        return hello

    # --- messages -----------------------------------------------------------------------

    def ask(self, contract: str, operation: str, **fields: Any) -> Answer:
        """One message, after those that wait; the answer to it. Raises what it refuses,
        and Broken if it misbehaves."""
        return self.exchange(contract, operation, fields, self.seconds)

    def post(self, contract: str, operation: str, **fields: Any) -> None:
        """A message that goes with the next one, which saves time: nothing is known of
        its answer before."""
        self.message += 1
        request = encode(self.message, operation, fields)
        self.waiting.append((contract, operation, request))

    def drop(self, run: int, what: str, number: int) -> None:
        """Nobody will name this cache or snapshot again."""
        if run == self.run:
            self.dropped.setdefault(what, []).append(number)

    def post_dropped(self) -> None:
        if self.dropped:
            dropped, self.dropped = self.dropped, {}
            self.post("session", "drop", **dropped)

    def exchange(
        self, contract: str, operation: str, fields: Mapping[str, Any], seconds: float
    ) -> Answer:
        assert self.process is not None
        self.post(contract, operation, **fields)
        posted, self.waiting = self.waiting, []
        if self.limits.strict:
            for each, name, request in posted:
                check_request(each, name, json.loads(request))
        requests = b"".join(request for _, _, request in posted)
        asked = f"'{operation}' (message {self.message})"
        begun = time.monotonic()
        try:
            lines = self.process.exchange(requests, len(posted), seconds, asked)
        except Misbehaved as misbehaved:
            self.misbehave(misbehaved.what, str(misbehaved))
        except BaseException:
            self.end()  # nobody reads the answer any more
            raise
        if operation != "hello":
            self.slowest = max(self.slowest, time.monotonic() - begun)
        first = self.message - len(posted) + 1
        answer: Answer = {}
        for number, ((each, name, _), line) in enumerate(
            zip(posted, lines, strict=True), first
        ):
            answer = self.parse(each, name, number, line)
        return answer

    def parse(self, contract: str, operation: str, number: int, line: bytes) -> Answer:
        """The answer to one message. Raises what it refuses."""
        try:
            answer = decode(line)
            if answer.get("id") != number:
                raise Malformed(f"its id is {say(answer.get('id'))}, not {number}")
            if self.limits.strict:
                check_answer(contract, operation, answer)
            error = answer.get("error")
            if error is None:
                return answer
            message = answer.get("message", "")
            if not isinstance(error, str) or error not in ERRORS:
                known = ", ".join(ERRORS)
                raise Malformed(f"its error is {say(error)}, not one of {known}")
            if not isinstance(message, str):
                raise Malformed(f"its message is {say(message)}, not text")
        except Malformed as malformed:
            self.answer_is_wrong(operation, malformed, number)
        if error == "missing":
            message = operation
        raise ERRORS[error](clean(message))

    # --- misbehaviour -------------------------------------------------------------------

    def answer_is_wrong(
        self, operation: str, malformed: Malformed, number: int | None = None
    ) -> NoReturn:
        """An answer has the wrong form."""
        asked = f"'{operation}' (message {number or self.message})"
        self.misbehave("malformed", f"answered {asked} wrongly: {malformed}")

    def misbehave(self, what: str, words: str) -> NoReturn:
        """Ends the process, and raises Broken with what it did."""
        assert self.process is not None
        said = self.process.get_last_words()
        self.end()
        if what == "hang" and self.hello is not None:
            longer = 4 * self.limits.message_seconds
            words += f"; --step-time {longer:g} gives it twice the time"
            self.seconds = min(self.seconds, max(AFTER_HANG, 20 * self.slowest))
        if what == "malformed":
            words += (
                "; harness/backends/driver/README.md says what each answer looks like"
            )
        if said:
            words += f"; its last words: {said}"
        raise Broken(what, clean(f"the driver {words}", MOST_WORDS))

    def end(self) -> None:
        """Ends the process, if there is one."""
        if self.stop is not None:
            self.stop()
        self.process = self.stop = None


def encode(number: int, operation: str, fields: Mapping[str, Any]) -> bytes:
    """One message, as a line."""
    plain: dict[str, Any] = {"id": number, "op": operation}
    arrays = ""
    for name, value in fields.items():
        if isinstance(value, Tensor):
            arrays += f',"{name}":{value.to_json()}'
        else:
            plain[name] = value
    return f"{ENCODER.encode(plain)[:-1]}{arrays}}}\n".encode()


ENCODER = json.JSONEncoder(separators=(",", ":"))


def refuse(constant: str) -> NoReturn:
    raise Malformed(
        f"it holds {constant}, which JSON has not: null stands for NaN, 1e999 and -1e999"
        " for infinity"
    )


DECODER = json.JSONDecoder(parse_constant=refuse)


def decode(line: bytes) -> dict[str, Any]:
    """A line as an object of JSON. Raises Malformed."""
    try:
        answer = DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise Malformed(f"byte {error.start} of the line is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        shown = clean(line[:400].decode(errors="replace"), 60)
        raise Malformed(f"the line is no JSON ({clean(str(error))}): {shown}") from None
    if not isinstance(answer, dict):
        raise Malformed(f"the line is {say(answer)}, not an object")
    return answer
