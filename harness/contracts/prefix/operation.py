"""What the operations of the prefix contract share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lockstep.harness.contracts.base import Operation
from lockstep.harness.contracts.prefix.conversations import ConversationModel
from lockstep.harness.contracts.prefix.slots import SlotsModel
from lockstep.harness.contracts.prefix.slots_subject import SlotsSubject
from lockstep.harness.contracts.prefix.subject import ConversationSubject
from lockstep.harness.contracts.types import Op, Source
from lockstep.harness.core.fields import INTEGER, JOINT, MAX_LENGTH, NAME, Schema

Model = ConversationModel | SlotsModel
Subject = ConversationSubject | SlotsSubject

USERS = ("a", "b", "c", "d")
USER: Mapping[str, Schema] = {"user": {**NAME, "default": "a"}}
ITEM: Schema = {"type": ["integer", "number", "string", "boolean", "null"]}
"""A token is an integer; what is not is a usage error, not a fault of the file."""
TOKENS: Schema = {"type": "array", "maxItems": MAX_LENGTH, "items": ITEM, JOINT: True}
NUMBERS: Schema = {"type": "array", "maxItems": 64, "items": INTEGER}


def get_user(op: Op) -> str:
    return str(op.get("user", "a"))


ABSENT: Mapping[str, Collection[str]] = {
    "session": ("checkpoint", "limit", "open", "reserve", "commit"),
    "trie": ("reserve", "commit"),
    "slots": ("checkpoint", "count", "limit", "free"),
}
"""The operations that a kind does not have."""


class PrefixOperation(Operation):
    """What they share: of several users, each operation is one's."""

    def illegal(self, op: Op, model: Model) -> str | None:
        kind = model.config["kind"]
        if self.name in ABSENT[kind]:
            return f"a {kind} cache has no {self.name}"
        return self.illegal_here(op, model)

    def illegal_here(self, op: Op, model: Any) -> str | None:
        return None

    def is_open(self, op: Op, model: Model) -> bool:
        if isinstance(model, SlotsModel):
            return get_user(op) in model.users
        return model.cache.request is not None

    def get_remaining(self, op: Op, model: Model) -> int:
        if isinstance(model, SlotsModel):
            return len(model.get_remaining(get_user(op)))
        return len(model.get_remaining())

    def why_not_feed(self, op: Op, model: Model) -> str | None:
        """Why no pass can be computed now, or None."""
        if not self.is_open(op, model):
            return "no request is open"
        broken = model.broken
        if broken is True or (isinstance(broken, set) and get_user(op) in broken):
            return "the last pass of this request broke off"
        return None

    def draw_user(self, source: Source, model: Model) -> dict[str, Any]:
        """A user whose request is open."""
        if not isinstance(model, SlotsModel) or not model.users:
            return {}
        user = source.pick(sorted(model.users))
        return {} if user == "a" else {"user": user}

    def say(self, op: Op, text: str) -> str:
        user = get_user(op)
        return text if user == "a" else f"user {user}: {text}"


def say_tokens(tokens: Any) -> str:
    return "[" + " ".join(map(str, tokens)) + "]"
