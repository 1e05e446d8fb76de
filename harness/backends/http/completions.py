"""Runs requests with OpenAI's interface of completions.

A `Transport` carries requests to a server and its answers back. An answer is
untrusted: it is decoded only into the classes of this module.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from lockstep.harness.backends.engine import Completion, Generation
from lockstep.harness.core.errors import Broken, clean, format_error

COMPLETIONS = "/v1/completions"

FORK_TEMPERATURE = 0.01
"""The temperature of a request with several answers, which vLLM refuses at 0. Tokens of a
probe are far apart: at this temperature, only the best token is sampled."""

# --- transport --------------------------------------------------------------------------


class Call(Protocol):
    """A request whose answer is streamed."""

    def run(self, emit: Callable[[bytes], None]) -> None:
        """Sends the request, and calls `emit` with each event of the answer, as JSON."""

    def cut(self) -> None:
        """Ends the request; another thread may be in `run`, which then ends or raises an
        exception."""


class Transport(Protocol):
    """Carries requests to a server.

    Every method raises `ValueError` if the server refuses the request as invalid, and
    `Broken` if it gives no valid answer.
    """

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Sends a request, and returns its whole answer."""

    def start(self, path: str, body: Mapping[str, Any]) -> Call:
        """Returns the call for a request whose answer is streamed."""


# --- answers ----------------------------------------------------------------------------


class Logprob(Struct):
    """One token in the newer form of log-probabilities."""

    id: int | None = None
    logprob: float | None = None


class Logprobs(Struct):
    """Log-probabilities, in the newer form (`content`) or the older form."""

    content: list[Logprob] | None = None
    tokens: list[int | str] | None = None
    token_logprobs: list[float | None] | None = None


class Choice(Struct):
    """The generated tokens; servers tell their ids in different fields, or only text."""

    text: str = ""
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None


class Details(Struct):
    cached_tokens: int | None = None


class Usage(Struct):
    prompt_tokens_details: Details | None = None


class Error(Struct):
    message: str = ""
    code: int | None = None


class Answer(Struct):
    """An answer, or one event of a streamed answer."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Error | None = None


WORD = re.compile("t([0-9]{1,7})")
"""The text of a token of a probe; `write_words` is the inverse."""


def write_words(ids: Sequence[int]) -> str:
    return " ".join(f"t{number}" for number in ids)


Decoded = TypeVar("Decoded")


def decode(data: bytes, type: type[Decoded]) -> Decoded:
    """Decodes JSON of a server. Raises Broken if it has another type."""
    try:
        return msgspec.json.decode(data, type=type)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        text = clean(data[:400].decode(errors="replace"), 120)
        message = f"the server answered {text!r}: {format_error(error)}"
        raise Broken("malformed", message) from None


def read_answer(data: bytes) -> Completion:
    """Reads the tokens of an answer, or of an event of a streamed answer."""
    return read_answers(data)[0]


def read_answers(data: bytes) -> list[Completion]:
    """Reads the tokens of each choice of an answer; without choices, no tokens."""
    answer = decode(data, Answer)
    if answer.error is not None:
        message = f"the server answered: {clean(answer.error.message)}"
        if answer.error.code == 400:
            raise ValueError(message)
        raise Broken("malformed", message)
    details = answer.usage and answer.usage.prompt_tokens_details
    cached = details.cached_tokens if details else None
    return [
        Completion(list_ids(choice), list_logprobs(choice.logprobs), cached)
        for choice in answer.choices or [Choice()]
    ]


def list_ids(choice: Choice) -> Sequence[int]:
    if choice.token_ids is not None:
        return choice.token_ids
    reported = choice.logprobs or Logprobs()
    tokens = [*(reported.tokens or ()), *(token.id for token in reported.content or ())]
    ids = [token for token in tokens if isinstance(token, int)]
    if ids and len(ids) == len(tokens):
        return ids
    return [int(number) for number in WORD.findall(choice.text)]


def list_logprobs(told: Logprobs | None) -> Sequence[float] | None:
    if told is None:
        return None
    numbers = told.token_logprobs or [token.logprob for token in told.content or ()]
    return [float("nan") if number is None else number for number in numbers]


# --- the engine -------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """The form of the requests that a server takes.

    Attributes:
        fields: the fields that every request has.
        words: a prompt is the text of its tokens, not a list of their ids.
        slots: the number of slots that a request can name; 0 for none.
        flush: the path of the request that drops all cached prefixes; None to erase the
            slots.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    words: bool = False
    slots: int = 0
    flush: str | None = None


class CompletionEngine:
    """An engine behind a transport; see `harness.backends.engine.Engine`.

    Args:
        transport: the connection to the server.
        form: the form of the requests.
        seconds: the time limit for the next token of a stream.
        first_tag: see `Engine`.
    """

    def __init__(
        self, transport: Transport, form: Form, seconds: float, first_tag: int = 0
    ) -> None:
        self.transport, self.form, self.seconds = transport, form, seconds
        self.first_tag = first_tag
        self.streams: list[CompletionStream] = []

    def make_body(self, request: Generation, **more: Any) -> dict[str, Any]:
        prompt = write_words(request.prompt) if self.form.words else list(request.prompt)
        slot = {} if request.slot is None else {"id_slot": request.slot}
        size = {"max_tokens": request.count, "temperature": 0}
        return {"prompt": prompt, **size, **self.form.fields, **slot, **more}

    def complete(self, requests: Sequence[Generation]) -> Sequence[Completion]:
        if len(requests) == 1:
            return [self.run(requests[0])]
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(self.run, requests))

    def run(self, request: Generation) -> Completion:
        return read_answer(self.transport.post(COMPLETIONS, self.make_body(request)))

    def fork(self, request: Generation, answers: int) -> Sequence[Completion]:
        body = self.make_body(request, n=answers, temperature=FORK_TEMPERATURE)
        return read_answers(self.transport.post(COMPLETIONS, body))

    def begin(self, request: Generation) -> CompletionStream:
        call = self.transport.start(COMPLETIONS, self.make_body(request, stream=True))
        stream = CompletionStream(call, request.count, self.seconds)
        self.streams.append(stream)
        return stream

    def flush(self) -> None:
        if self.form.flush is not None:
            self.insist(self.form.flush)
        else:
            for slot in range(self.form.slots):
                self.transport.post(f"/slots/{slot}?action=erase", {})

    def insist(self, path: str) -> None:
        """Repeats a request that a server refuses until it has ended the aborted
        requests, as SGLang does."""
        end = time.monotonic() + self.seconds
        while True:
            try:
                self.transport.post(path, {})
                return
            except ValueError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def save(self, slot: int, name: str) -> None:
        self.transport.post(f"/slots/{slot}?action=save", {"filename": name})

    def restore(self, slot: int, name: str) -> None:
        self.transport.post(f"/slots/{slot}?action=restore", {"filename": name})

    def close(self) -> None:
        for stream in self.streams:
            stream.abort()


class CompletionStream:
    """A request whose events a thread collects."""

    def __init__(self, call: Call, count: int, seconds: float) -> None:
        self.call, self.left, self.seconds = call, count, seconds
        self.events: SimpleQueue[bytes | Exception | None] = SimpleQueue()
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.cached: int | None = None
        self.is_over = False
        self.thread = Thread(target=self.collect, daemon=True)
        self.thread.start()

    def collect(self) -> None:
        try:
            self.call.run(self.events.put)
        except Exception as error:
            self.events.put(error)
        self.events.put(None)

    def read(self, count: int) -> Completion:
        """See `harness.backends.engine.Stream`. With the last token, waits for the end of
        the request."""
        self.left -= count
        while not self.is_over and (len(self.ids) < count or not self.left):
            self.take()
        ids, self.ids = self.ids[:count], self.ids[count:]
        logprobs, self.logprobs = self.logprobs[:count], self.logprobs[count:]
        return Completion(ids, logprobs or None, self.cached)

    def take(self) -> None:
        """Waits for the next event."""
        try:
            event = self.events.get(timeout=self.seconds)
        except Empty:
            message = f"no token came for {self.seconds:g} s on a stream"
            raise Broken("hang", message) from None
        if isinstance(event, Exception):
            raise event
        if event is None:
            self.is_over = True
            return
        piece = read_answer(event)
        self.ids += piece.ids
        self.logprobs += piece.logprobs or ()
        self.cached = piece.cached

    def abort(self) -> None:
        self.call.cut()
        self.thread.join(self.seconds)


def encode(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
