"""The abstract states of the serving contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lockstep.harness.backends.backend import Kind
from lockstep.harness.backends.probe import Probe
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.serving.model import Request, ServingModel
from lockstep.harness.contracts.states import State, StateTable, never, only
from lockstep.reference.serving import Ask, Head, Token, generate

MANY = 8
"""Caches of few requests have evicted some after so many requests."""


class Situation(NamedTuple):
    """A request that is about to begin.

    Attributes:
        model: the reference before the request.
        request: the request.
        name: the name of the earlier request that shares the most first tokens.
        shared: the number of these tokens.
    """

    model: ServingModel
    request: Request
    name: str | None
    shared: int

    @property
    def earlier(self) -> Request | None:
        return None if self.name is None else self.model.requests[self.name]

    @property
    def ask(self) -> Ask:
        last = self.request.prompt[-1]
        return last if isinstance(last, Ask) else self.model.probe.usual

    @property
    def head(self) -> Head:
        return self.model.probe.heads[self.ask.head]

    def is_moved(self) -> bool:
        """Tells whether the prompt has tokens of an earlier request elsewhere."""
        positions: dict[Token, int] = {
            token: at
            for request in self.model.requests.values()
            for at, token in enumerate(request.tokens)
            if isinstance(token, int)
        }
        prompt = enumerate(self.request.prompt)
        return any(positions.get(token, at) != at for at, token in prompt)

    def is_full(self) -> bool:
        """Tells whether the request needs all tokens of the context, or all but one."""
        tokens = len(self.request.prompt) + len(self.request.generated)
        return bool(self.model.config["context"] - tokens < 2)

    def shows_shift(self) -> bool:
        """Tells whether the answer shows which tokens the engine has dropped."""
        request, probe = self.request, self.model.probe
        if request.shift is None or self.fits():
            return False
        same = generate(probe.heads, probe.usual, request.prompt, len(request.generated))
        return same != request.generated

    def fits(self) -> bool:
        tokens = len(self.request.prompt) + len(self.request.generated)
        return bool(tokens <= self.model.config["context"])

    def is_long(self) -> bool:
        """Tells whether the prompt is longer than the window of the asked head."""
        window = self.head.window
        return window is not None and len(self.request.prompt) > window

    def asks_beyond(self) -> bool:
        """Tells whether the head cannot see the requested token."""
        at = len(self.request.prompt) - 1
        is_distance = self.head.finds == "distance"
        return is_distance and not self.head.sees(at, at - self.ask.argument)

    def asks_stranger(self) -> bool:
        """Tells whether only other requests have the requested token."""
        is_token = self.head.finds != "distance"
        return is_token and self.ask.argument not in self.request.prompt


REQUEST_STATES = (
    "first-request nothing-shared longer same-prompt branch moved one-token full-context"
    " many-requests after-aborted beside-streams after-flush after-restore named-slot"
    " beyond-window shifted asks-beyond asks-content asks-follower asks-stranger"
)

TABLE = StateTable(
    [
        State("first-request", lambda s: not s.model.requests),
        State("nothing-shared", lambda s: s.model.requests and not s.shared),
        State("longer", lambda s: s.shared and s.shared == len(s.earlier.tokens)),
        State("same-prompt", lambda s: s.shared >= len(s.request.prompt) - 1 > 0),
        State("branch", lambda s: 0 < s.shared < len(s.earlier.tokens)),
        State("moved", Situation.is_moved),
        State("one-token", lambda s: len(s.request.prompt) == 1),
        State("full-context", Situation.is_full),
        State("many-requests", lambda s: len(s.model.requests) >= MANY),
        State(
            "after-aborted", lambda s: s.shared and s.earlier.state == "aborted", "abort"
        ),
        State("beside-streams", lambda s: s.model.list_states("open"), "begin"),
        State("after-flush", lambda s: "flushed" in s.model.past, "flush"),
        State("after-restore", lambda s: "restored" in s.model.past, "restore"),
        State("named-slot", needs="slots"),
        State("beyond-window", Situation.is_long, "window"),
        State("shifted", Situation.shows_shift, "shift"),
        State("asks-beyond", Situation.asks_beyond),
        State("asks-content", lambda s: s.head.finds == "content", "content"),
        State("asks-follower", lambda s: s.head.finds == "follower", "follower"),
        State("asks-stranger", Situation.asks_stranger, "strangers"),
        State("several-queued", needs="queue"),
        State("several-streams", needs="begin"),
        State("idle"),
    ],
    [
        only(
            "only a prompt has these states", REQUEST_STATES, "complete queue fork begin"
        ),
        only(
            "a prompt has other states",
            "idle",
            "run read abort interrogate flush save restore",
        ),
        never("the engine drops nothing for several answers", "shifted", "fork"),
        never("no request is open", "several-streams", "flush save restore"),
    ],
)


def get_states(op: Op, model: ServingModel) -> Sequence[str]:
    """Returns the names of the abstract states before `op` runs."""
    states = ["several-queued"] if len(model.list_states("queued")) > 1 else []
    states += ["several-streams"] if len(model.list_states("open")) > 1 else []
    request = model.make_request(op) if "pieces" in op else None
    if not isinstance(request, Request) or not request.prompt:
        return states or ["idle"]
    shared = model.count_shared(request.prompt)
    name = max(shared, key=lambda name: shared[name], default=None)
    situation = Situation(model, request, name, shared[name] if name else 0)
    states += ["named-slot"] if op["slot"] is not None else []
    return states + TABLE.find(situation)


def list_features(probe: Probe, declared: Kind) -> set[str]:
    """Lists the features of a kind of the serving contract."""
    features: set[Any] = {head.finds for head in probe.heads}
    echoing = {head.finds for head in probe.heads if head.echoes}
    features |= {"strangers"} if echoing - {"distance"} else set()
    features |= {"window"} if any(head.window for head in probe.heads) else set()
    slots = declared.config.get("slots", (None,))
    features |= {"shift"} if set(declared.config.get("keep", ())) - {None} else set()
    return features | ({"slots"} if any(slots) else set())
