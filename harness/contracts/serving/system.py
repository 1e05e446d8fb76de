"""Runs serving programs on an engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.harness.backends.engine import Completion, Engine, Generation, Stream
from lockstep.harness.backends.probe import get_probe
from lockstep.harness.contracts.answers import read_index, read_list, read_object
from lockstep.harness.contracts.naming import format_tag
from lockstep.harness.contracts.operation import Answer, Op
from lockstep.harness.contracts.serving.model import ServingModel, show
from lockstep.harness.contracts.system import Setup, System
from lockstep.harness.core.errors import Broken, format_plain
from lockstep.reference.serving import Ask, Token

BLURRED = -0.05
"""The smallest allowed log-probability of a generated token. The probe is sure of its
answer, unless a cache holds a token twice or a mixture of tokens."""


class ServingSystem(System):
    """The engine of one program.

    Attributes:
        engine: the engine.
        first: the id of the first tag of this program.
        queued: name for messages → the request that waits for `run`, in order.
        streams: name → the stream of an open request.
        left: name → the number of tokens that are left of this stream.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.margins = {}
        self.probe = get_probe(self.config)
        engine = self.backend.open(self.config)
        self.engine: Engine = read_object(
            engine, ("complete", "close", "first_tag"), "open", "an engine"
        )
        self.first = engine.first_tag
        self.close = weakref.finalize(self, engine.close)
        self.queued: dict[str, Generation] = {}
        self.streams: dict[str, Stream] = {}
        self.left: dict[str, int] = {}

    def make_generation(self, op: Op, model: ServingModel) -> Generation:
        """Returns the engine request of an operation that the reference has just run."""
        return Generation(self.get_ids(model.current.prompt), op["count"], op["slot"])

    def get_ids(self, tokens: Sequence[Token]) -> list[int]:
        return [self.probe.get_id(self.turn(token, self.first)) for token in tokens]

    def turn(self, token: Token, count: int) -> Token:
        """Returns a token with its tag raised by `count`, modulo the number of tags."""
        if isinstance(token, int):
            return (token + count) % self.probe.content
        if self.probe.heads[token.head].finds == "distance":
            return token
        return Ask(token.head, (token.argument + count) % self.probe.content)

    # --- operations ---------------------------------------------------------------------

    def complete(self, op: Op, model: ServingModel) -> Answer:
        generation = self.make_generation(op, model)
        return self.complete_one(generation, f"request {op['request']}")

    def complete_one(self, generation: Generation, name: str) -> Answer:
        answer = self.submit({name: generation})
        return answer if "error" in answer else answer["caches"][0]

    def submit(self, named: Mapping[str, Generation]) -> Answer:
        """Submits requests at the same time, and waits for all of them.

        Args:
            named: the name for messages → the request.
        """
        return self.collect(lambda: self.engine.complete(list(named.values())), named)

    def fork(self, op: Op, model: ServingModel) -> Answer:
        generation, count = self.make_generation(op, model), op["answers"]
        named = {
            f"request {op['request']}, answer {number}": generation
            for number in range(count)
        }
        return self.collect(lambda: self.engine.fork(generation, count), named)

    def collect(self, call: Callable[[], Any], named: Mapping[str, Generation]) -> Answer:
        """Calls the engine, and reads a result for each of the requests `named`."""
        answer = self.ask(call)
        if "error" in answer:
            return answer
        completions = read_list(answer.get("result"), "complete", len(named))
        pairs = zip(completions, named.items(), strict=True)
        return {
            "caches": [
                self.read_completion(completion, generation.count, name)
                for completion, (name, generation) in pairs
            ]
        }

    def interrogate(self, op: Op, model: ServingModel) -> Answer:
        answers = []
        for prompt, _ in model.list_asked(op):
            ask = prompt[-1]
            assert isinstance(ask, Ask)
            name = f"request {op['request']}, distance {ask.argument}"
            answers.append(self.complete_one(Generation(self.get_ids(prompt), 1), name))
        return {"caches": answers}

    def queue(self, op: Op, model: ServingModel) -> Answer:
        self.queued[f"request {op['request']}"] = self.make_generation(op, model)
        return {}

    def run(self) -> Answer:
        queued, self.queued = self.queued, {}
        return self.submit(queued)

    def begin(self, op: Op, model: ServingModel) -> Answer:
        generation = self.make_generation(op, model)
        answer = self.ask(lambda: self.engine.begin(generation))
        if "error" in answer:
            return answer
        stream = read_object(answer.get("result"), ("read", "abort"), "begin", "a stream")
        self.streams[op["request"]] = stream
        self.left[op["request"]] = generation.count
        return {}

    def read(self, name: str, count: int) -> Answer:
        """Reads the next tokens of an open request, at most `count`."""
        count = min(count, self.left[name])
        self.left[name] -= count
        answer = self.ask(lambda: self.streams[name].read(count))
        if not self.left[name]:
            del self.streams[name]
        if "error" in answer:
            return answer
        return self.read_completion(answer.get("result"), count, f"request {name}")

    def abort(self, op: Op) -> Answer:
        return self.ask(self.streams.pop(op["request"]).abort)

    def control(self, op: Op) -> Answer:
        """Calls the method of the engine that has the name of the operation."""
        fields = {name: value for name, value in op.items() if name != "op"}
        return self.ask(lambda: getattr(self.engine, op["op"])(**fields))

    # --- answers ------------------------------------------------------------------------

    def read_completion(self, completion: Any, count: int, name: str) -> Answer:
        """Returns the answer of a request.

        Raises:
            Broken: the engine returned another number of tokens, or was not sure.
        """
        if not isinstance(completion, Completion):
            text = format_plain(completion)
            raise Broken("malformed", f"the engine returned {text}, not a Completion")
        ids = read_list(completion.ids, "the engine", count)
        shown = [self.name_token(number) for number in ids]
        logprobs = completion.logprobs
        if logprobs is not None:
            self.check_logprobs(read_list(logprobs, "logprobs", count), shown, name)
            self.compared["logprobs"] += 1
        return {"generated": shown, "where": name}

    def name_token(self, number: Any) -> int | str:
        """Returns a generated token as in an answer."""
        index = read_index(number)
        if index is None:
            return f"{format_plain(number)} ({type(number).__name__}), not an id"
        token = self.probe.get_token(index)
        token = None if token is None else self.turn(token, -self.first)
        if token is None or (isinstance(token, int) and token >= self.limit):
            return f"id {index}, which no request has"
        (shown,) = show([token])
        return shown

    def check_logprobs(
        self, logprobs: Sequence[Any], shown: Sequence[int | str], name: str
    ) -> None:
        for index, (logprob, token) in enumerate(zip(logprobs, shown, strict=True)):
            if not logprob >= BLURRED:
                raise Broken(
                    "blurred",
                    f"{name}: generated token {index} is {format_tag(token)}"
                    f" with log-probability {float(logprob):.3g}; at least {BLURRED} is"
                    " expected, as one head finds exactly one token",
                )

    # --- the end ------------------------------------------------------------------------

    def verify_memory(self, op: Op, model: ServingModel) -> None:
        """An engine does not tell its memory."""

    def finish(self) -> None:
        for stream in self.streams.values():
            stream.abort()
        self.close()
