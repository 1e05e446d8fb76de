"""Defines the config of serving programs, and the reference model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from lockstep.harness.backends.probe import CONFIG as PROBE
from lockstep.harness.backends.probe import WINDOWED, get_probe
from lockstep.harness.contracts.layer.model import CONFIG as LAYER_CONFIG
from lockstep.harness.contracts.operation import Answer, Config, Held, HeldToken, Op
from lockstep.harness.core.document import Schema, integer, optional
from lockstep.reference.layers import count_common
from lockstep.reference.serving import Ask, Shift, Token, generate

CONFIG: Mapping[str, Schema] = {
    **PROBE,
    "alphabet": optional(integer(2, 64)),
    "slots": optional(integer(1, 64)),
    "keep": optional(integer(0, 64)),
    **{name: LAYER_CONFIG[name] for name in ("dtype", "scope")},
}
"""The fields of the probe, and others. `alphabet` is the number of different tags, so
that a model that drafts tokens is wrong at times; null if all tags differ. `slots` is the
number of slots that a request can name; null if it names none. `keep` is the number of
first tokens that the engine keeps when a request fills the context; null if it refuses a
request that exceeds the context. See `reference.serving.Shift`."""

CHOICES: Mapping[str, Sequence[Any]] = {
    "layers": (1, 2),
    "heads": (1, 2),
    "window": (8, 3, 16),
    "content": (512,),
    "context": (128, 64),
    "distance": (3, 2, 5),
    "alphabet": (None, None, None, 5),
    "dtype": ("float32",),
}
"""Field → the values that are drawn for it, the simplest first."""


def why_illegal_config(config: Config) -> str | None:
    """Returns the broken rule if the fields of a config do not fit together, else
    None."""
    if (config["kind"] in WINDOWED) != (config["window"] is not None):
        return f"window is a field of {' and '.join(WINDOWED)} only, which need it"
    if config["keep"] is not None and 2 * config["keep"] > config["context"]:
        return "keep must be at most half of the context"
    if config["distance"] >= config["context"]:
        return "distance must be less than the context"
    return None


@dataclass(eq=False)
class Request:
    """A request of the program.

    Attributes:
        prompt: the tokens of the prompt, with the ask.
        generated: the tokens that the model generates.
        state: "done", "queued" (it waits for `run`), "open" (a stream) or "aborted".
        read: the number of generated tokens that the program has read.
        shift: the rule for dropped tokens; None if no request exceeds the context.
    """

    prompt: Sequence[Token]
    generated: Sequence[Token]
    state: str = "done"
    read: int = 0
    shift: Shift | None = None

    @property
    def tokens(self) -> list[Token]:
        """The prompt and the generated tokens that were read, without dropped tokens."""
        tokens = list(self.prompt)
        for token in self.generated[: self.read]:
            tokens = [*tokens, token]
            tokens = self.shift.drop(tokens) if self.shift else tokens
        return tokens


@dataclass(eq=False)
class ServingModel:
    """The requests of one program, and the expected answers of the engine.

    Attributes:
        requests: the latest request of each name, in the order in which they began.
        current: the request of the operation that has just run.
        past: the events since the engine was opened: "aborted", "flushed", "restored".
        saved: the names under which slots were saved.
    """

    config: Config
    rows: bool = True
    tag: int = 0
    last: str = ""
    reach: int = 0
    requests: dict[str, Request] = field(default_factory=dict)
    past: set[str] = field(default_factory=set)
    saved: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.probe = get_probe(self.config)
        self.current = Request((), ())
        context, keep = self.config["context"], self.config["keep"]
        self.shift = None if keep is None else Shift(context, keep)

    # --- prompts ------------------------------------------------------------------------

    def make_prompt(self, op: Op) -> list[Token]:
        """Returns the prompt of an operation, without the ask."""
        fresh = (self.get_symbol(tag) for tag in count(self.tag))
        source = self.requests[op["of"]].tokens if op["of"] is not None else []
        prompt: list[Token] = [*islice(fresh, op["before"])]
        for number, (begin, end) in enumerate(op["pieces"]):
            prompt += islice(fresh, op["gap"] if number else 0)
            prompt += source[begin:end]
        return [*prompt, *islice(fresh, op["new"])]

    def get_symbol(self, tag: int) -> int:
        """Returns the number that a tag has in requests."""
        alphabet = self.config["alphabet"]
        return tag if alphabet is None else tag % alphabet

    def get_ids(self, tokens: Sequence[Token]) -> list[int]:
        return [self.probe.get_id(token) for token in tokens]

    def get_ask(self, op: Op, prompt: Sequence[Token]) -> Ask | str | None:
        """Returns the ask of an operation: None for the usual ask; a description of the
        reason if the operation has no such ask."""
        if op["head"] is None:
            return None
        if op["head"] >= len(self.probe.heads):
            return "the probe has no such head"
        if self.probe.heads[op["head"]].finds == "distance":
            if op["back"] is None or op["back"] >= self.probe.context:
                return "the probe has no ask for this distance"
            return Ask(op["head"], op["back"])
        about = prompt if op["about"] is None else self.requests[op["about"]].tokens
        if op["at"] is None or op["at"] >= len(about):
            return "there is no token to ask about"
        token = about[op["at"]]
        return Ask(op["head"], token) if isinstance(token, int) else "asks about an ask"

    def get_shift(self, op: Op) -> Shift | None:
        """Returns the rule for dropped tokens of a request; None if the request has
        several answers."""
        return None if "answers" in op else self.shift

    def make_request(self, op: Op) -> Request | str:
        """Returns the request of an operation, or the reason why it is illegal.

        The request has no tokens to generate if the engine must refuse it.
        """
        for name in filter(None, (op["of"], op["about"])):
            if name not in self.requests:
                return f"there is no request {name}"
        if op["request"] in self.list_states("queued", "open"):
            return f"request {op['request']} has not ended"
        slots = self.config["slots"]
        if op["slot"] is not None and (slots is None or op["slot"] >= slots):
            return "there is no such slot"
        most = None if self.config["alphabet"] else self.config["content"]
        if most is not None and self.tag + count_new(op) > most:
            return "the probe has no more tags"
        prompt = self.make_prompt(op)
        ask = self.get_ask(op, prompt)
        if isinstance(ask, str):
            return ask
        tokens = [*prompt, ask] if ask else prompt
        shift = self.get_shift(op)
        added = 1 if shift else op["count"]
        if not tokens or len(tokens) + added > self.config["context"]:
            return Request(tokens, [])
        heads, usual = self.probe.heads, self.probe.usual
        generated = generate(heads, usual, tokens, op["count"], shift)
        if generated is None:
            return "the answer depends on the weights of the probe"
        return Request(tokens, generated, shift=shift)

    def start(self, op: Op, state: str) -> Request:
        """Stores the request of a legal operation; a refused request is stored only as
        `current`."""
        request = self.make_request(op)
        assert isinstance(request, Request)
        self.current = request
        if request.generated:
            self.requests.pop(op["request"], None)
            self.requests[op["request"]] = request
            request.state = state
        return request

    def list_asked(self, op: Op) -> list[tuple[list[Token], Token]]:
        """Lists the prompts that ask a head for each visible token of a request, with
        the token that the head finds."""
        tokens, head = self.requests[op["request"]].tokens, self.probe.heads[op["head"]]
        last = len(tokens)
        if head.finds != "distance" or last + 2 > self.config["context"]:
            return []
        return [
            ([*tokens, Ask(op["head"], back)], tokens[last - back])
            for back in range(1, last + 1)
            if head.sees(last, last - back)
        ]

    def list_states(self, *states: str) -> list[str]:
        """Lists the names of the requests in one of these states."""
        return [
            name for name, request in self.requests.items() if request.state in states
        ]

    def count_shared(self, tokens: Sequence[Token]) -> Mapping[str, int]:
        """Counts the common first tokens of a prompt and of each earlier request."""
        return {
            name: count_common(tokens, request.tokens)
            for name, request in self.requests.items()
        }

    # --- what other modules use ---------------------------------------------------------

    def list_held(self, op: Op) -> Sequence[Held]:
        named = sorted(self.requests, key=lambda name: name != op.get("request"))
        return [(f"request {name}", self.list_tokens(name)) for name in named]

    def list_tokens(self, name: str) -> list[HeldToken]:
        tokens = enumerate(self.requests[name].tokens)
        return [HeldToken(tag, at) for at, tag in tokens if isinstance(tag, int)]

    def list_live(self) -> Mapping[int, int]:
        positions: dict[int, int] = {}
        for name in self.requests:
            for token in self.list_tokens(name):
                positions.setdefault(token.tag, token.position)
        return positions

    def get_facts(self, op: Op) -> Mapping[str, Any]:
        if "pieces" in op:
            request = self.make_request(op)
            tokens = request.prompt if isinstance(request, Request) else ()
        elif "head" in op and op["request"] in self.requests:
            tokens = [*self.requests[op["request"]].tokens, Ask(op["head"], 1)]
        else:
            return {}
        common = self.count_shared(tokens)
        return {"shared": max(common.values(), default=0), "length": len(tokens)}


def count_new(op: Op) -> int:
    """Counts the new tags of an operation with a prompt."""
    gaps = max(0, len(op["pieces"]) - 1)
    return int(op["before"] + gaps * op["gap"] + op["new"])


def show(tokens: Sequence[Token]) -> list[int | str]:
    """Returns tokens as in an answer: a tag as a number, an ask as text."""
    return [
        token if isinstance(token, int) else f"ask {token.head}:{token.argument}"
        for token in tokens
    ]


def answer(tokens: Sequence[Token]) -> Answer:
    return {"generated": show(tokens)}
