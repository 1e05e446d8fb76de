"""The operations of a request, one class each. What they do is done by the models and the
subjects: conversations (session, trie) and slots have their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lockstep.harness.contracts.layer.operation import count
from lockstep.harness.contracts.prefix.drawing import (
    draw_count,
    draw_generated,
    draw_request,
)
from lockstep.harness.contracts.prefix.operation import (
    TOKENS,
    USER,
    USERS,
    Model,
    PrefixOperation,
    Subject,
    get_user,
    say_tokens,
)
from lockstep.harness.contracts.prefix.slots import SlotsModel
from lockstep.harness.contracts.prefix.slots_subject import SlotsSubject
from lockstep.harness.contracts.types import Answer, Op, Source
from lockstep.harness.core.fields import MAX_LENGTH, Schema, integer


class Begin(PrefixOperation):
    name = "begin"
    fields: ClassVar[Mapping[str, Schema]] = {"tokens": TOKENS, **USER}

    def illegal_here(self, op: Op, model: Any) -> str | None:
        if isinstance(model, SlotsModel) and get_user(op) in model.users:
            return f"user {op['user']} has an open request"
        return None

    def draw(self, source: Source, model: Model) -> Op | None:
        user = {}
        if isinstance(model, SlotsModel):
            users = [user for user in USERS if user not in model.users]
            if not users or len(model.users) > model.config["slots"]:
                return None
            user = {"user": users[0]} if users[0] != "a" else {}
            if len(model.users) == model.config["slots"] and source.below(4):
                return None
        elif self.is_open({}, model):
            return None
        return {"op": self.name, "tokens": draw_request(source, model), **user}

    def expect(self, op: Op, model: Model) -> Answer:
        return model.begin(op)

    def observe(self, op: Op, subject: Any, model: Any) -> Answer:
        answer: Answer = subject.begin(op, model)
        return answer

    def describe(self, op: Op) -> str:
        return self.say(op, f"begin {say_tokens(op['tokens'])}")


class Feed(PrefixOperation):
    """Computes so many of the remaining tokens, or all if there are fewer; then some were
    generated."""

    name = "feed"
    fields: ClassVar[Mapping[str, Schema]] = {
        "count": integer(0, MAX_LENGTH),
        "generate": {**TOKENS, "default": []},
        **USER,
    }

    def tokens(self, op: Op) -> int:
        return int(op["count"])

    def illegal_here(self, op: Op, model: Any) -> str | None:
        return self.why_not_feed(op, model)

    def draw(self, source: Source, model: Model) -> Op | None:
        user = self.draw_user(source, model)
        if not self.is_open(user, model):
            return None
        remaining = self.get_remaining(user, model)
        computed = draw_count(source, remaining)
        if isinstance(model, SlotsModel):
            slot = model.get_slot(get_user(user))
            request = [*slot.tokens, *slot.remaining]
        else:
            request = model.cache.get_request()
        generated = draw_generated(source, model, request)
        if not computed and not generated:
            return None
        more = {"generate": generated} if generated else {}
        return {"op": self.name, "count": computed, **more, **user}

    def expect(self, op: Op, model: Model) -> Answer:
        if isinstance(model, SlotsModel):
            return model.feed(op)
        return model.feed(op["count"], op["generate"], None)

    def observe(self, op: Op, subject: Any, model: Any) -> Answer:
        if isinstance(subject, SlotsSubject):
            return subject.feed(op, model)
        answer: Answer = subject.feed(op["generate"], None, model)
        return answer

    def verify(self, op: Op, subject: Subject, model: Any) -> None:
        if model.fed:
            subject.verify_attention(model)

    def describe(self, op: Op) -> str:
        parts = [f"feed {count(op['count'], 'token')}"] if op["count"] else []
        if op["generate"]:
            parts.append(f"generate {say_tokens(op['generate'])}")
        return self.say(op, ", ".join(parts) or "feed nothing")

    def describe_row(self, op: Op, row: int) -> str:
        return f"row {row} of the pass"


class Break(PrefixOperation):
    """A pass that breaks off: the backend fails, or the user goes, between two layers."""

    name = "break"
    fields: ClassVar[Mapping[str, Schema]] = {
        "count": integer(1, MAX_LENGTH),
        "layers": integer(0, 8),
        **USER,
    }

    def tokens(self, op: Op) -> int:
        return int(op["count"])

    def illegal_here(self, op: Op, model: Any) -> str | None:
        if op["layers"] >= len(model.config["layers"]):
            return "all layers would have seen the tokens"
        why = self.why_not_feed(op, model)
        if why is None and not self.get_remaining(op, model):
            return "no token remains"
        return why

    def draw(self, source: Source, model: Model) -> Op | None:
        user = self.draw_user(source, model)
        if not self.is_open(user, model) or not self.get_remaining(user, model):
            return None
        count = source.between(1, min(3, self.get_remaining(user, model)))
        layers = source.below(len(model.config["layers"]))
        return {"op": self.name, "count": count, "layers": layers, **user}

    def expect(self, op: Op, model: Model) -> Answer:
        if isinstance(model, SlotsModel):
            return model.break_off(op)
        return model.feed(op["count"], (), op["layers"])

    def observe(self, op: Op, subject: Any, model: Any) -> Answer:
        if isinstance(subject, SlotsSubject):
            return subject.break_off(op, model)
        answer: Answer = subject.feed((), op["layers"], model)
        return answer

    def describe(self, op: Op) -> str:
        tokens, layers = count(op["count"], "token"), count(op["layers"], "layer")
        text = f"a pass of {tokens} breaks off after {layers}"
        return self.say(op, text)


class Close(PrefixOperation):
    """early: one request in so many is closed before all of it is computed."""

    name = "close"
    early = 8
    fields: ClassVar[Mapping[str, Schema]] = USER

    def illegal_here(self, op: Op, model: Any) -> str | None:
        if isinstance(model, SlotsModel) and get_user(op) not in model.users:
            return "no request is open"
        return None

    def draw(self, source: Source, model: Model) -> Op | None:
        user = self.draw_user(source, model)
        if not self.is_open(user, model):
            return None
        if self.get_remaining(user, model) and source.below(self.early):
            return None
        return {"op": self.name, **user}

    def expect(self, op: Op, model: Model) -> Answer:
        if isinstance(model, SlotsModel):
            return model.close(get_user(op))
        return model.close()

    def observe(self, op: Op, subject: Any, model: Any) -> Answer:
        if isinstance(subject, SlotsSubject):
            return subject.close(op["user"], self.name, model)
        answer: Answer = subject.close(self.name, model)
        return answer

    def describe(self, op: Op) -> str:
        return self.say(op, self.name)


class Cancel(Close):
    """Close, before the request is done."""

    name = "cancel"
    early = 2
