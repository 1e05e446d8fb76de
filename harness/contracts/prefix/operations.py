"""The operations of the prefix contract, one class each. What they do is done by the
models and the subjects: conversations (session, trie) and slots have their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from harness.contracts.base import Answer, Op, Operation, Schema, Source
from harness.contracts.fields import INTEGER, JOINT, MAX_LENGTH, NAME, integer, optional
from harness.contracts.prefix.conversations import ConversationModel
from harness.contracts.prefix.drawing import draw_count, draw_generated, draw_request
from harness.contracts.prefix.slots_subject import SlotsSubject
from harness.contracts.prefix.subject import ConversationSubject
from harness.contracts.prefix.users import SlotsModel

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
    "session": ("checkpoint", "limit"),
    "trie": (),
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
        count = draw_count(source, remaining)
        if isinstance(model, SlotsModel):
            slot = model.get_slot(get_user(user))
            request = [*slot.tokens, *slot.remaining]
        else:
            request = model.cache.get_request()
        generated = draw_generated(source, model, request)
        if not count and not generated:
            return None
        more = {"generate": generated} if generated else {}
        return {"op": self.name, "count": count, **more, **user}

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
        parts = [f"feed {op['count']} tokens"] if op["count"] else []
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
        text = f"a pass of {op['count']} tokens breaks off after {op['layers']} layers"
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


class Refuse(PrefixOperation):
    """The caches below refuse what they could do: layers to go back, the cache under
    slots to be cut."""

    name = "refuse"
    fields: ClassVar[Mapping[str, Schema]] = {
        "layers": {**NUMBERS, "default": []},
        "raising": {"type": "boolean", "default": False},
    }

    def draw(self, source: Source, model: Model) -> Op | None:
        if isinstance(model, SlotsModel):
            return {"op": self.name}
        if self.is_open({}, model):
            return None
        layers = len(model.config["layers"])
        chosen = sorted({source.below(layers), source.below(layers)})
        raising = {"raising": True} if source.below(2) else {}
        return {"op": self.name, "layers": chosen, **raising}

    def expect(self, op: Op, model: Model) -> Answer:
        if isinstance(model, SlotsModel):
            model.pool.refusing = True
        else:
            model.refusing = op["layers"]
        return {}

    def observe(self, op: Op, subject: Subject, model: Model) -> Answer:
        if isinstance(subject, ConversationSubject):
            subject.refusing, subject.raising = op["layers"], op["raising"]
        return {}

    def describe(self, op: Op) -> str:
        layers = ", ".join(map(str, op["layers"]))
        how = "raise an error" if op["raising"] else "refuse"
        whose = f"layers {layers} should go back, they" if layers else "it is cut, it"
        return f"the next time {whose} {how}" + ("" if layers else "s")


class Checkpoint(PrefixOperation):
    name = "checkpoint"
    fields: ClassVar[Mapping[str, Schema]] = {"offsets": NUMBERS}

    def draw(self, source: Source, model: Model) -> Op | None:
        if self.is_open({}, model):
            return None
        near = [len(path) - less for path in model.list_stored() for less in (0, 1)]
        near = [offset for offset in near if offset > 0] or [1]
        count = 1 + source.below(2)
        offsets = {
            source.pick(near) if source.below(2) else source.between(1, model.reach)
            for _ in range(count)
        }
        return {"op": self.name, "offsets": sorted(offsets)}

    def expect(self, op: Op, model: ConversationModel) -> Answer:
        model.checkpoints = op["offsets"]
        return {}

    def observe(self, op: Op, subject: ConversationSubject, model: Model) -> Answer:
        subject.checkpoints = op["offsets"]
        return {}

    def describe(self, op: Op) -> str:
        offsets = ", ".join(map(str, op["offsets"]))
        return f"the next request is to be captured after {offsets} tokens"


class Count(PrefixOperation):
    name = "count"
    fields: ClassVar[Mapping[str, Schema]] = {}

    def draw(self, source: Source, model: Model) -> Op | None:
        return {"op": self.name}

    def expect(self, op: Op, model: ConversationModel) -> Answer:
        return model.describe_store()

    def observe(self, op: Op, subject: ConversationSubject, model: Model) -> Answer:
        return subject.count()

    def describe(self, op: Op) -> str:
        return "count what is stored"


class Free(PrefixOperation):
    name = "free"
    fields: ClassVar[Mapping[str, Schema]] = {}

    def draw(self, source: Source, model: Model) -> Op | None:
        if self.is_open({}, model) or source.below(3):
            return None
        return {"op": self.name}

    def expect(self, op: Op, model: ConversationModel) -> Answer:
        return model.free()

    def observe(
        self, op: Op, subject: ConversationSubject, model: ConversationModel
    ) -> Answer:
        return subject.free(model)

    def describe(self, op: Op) -> str:
        return "free everything"


class Limit(PrefixOperation):
    name = "limit"
    fields: ClassVar[Mapping[str, Schema]] = {"bytes": optional(integer(-1, 1 << 40))}

    def draw(self, source: Source, model: Model) -> Op | None:
        if not isinstance(model, ConversationModel):
            return None
        few = len(model.list_stored()) < 4
        if few and source.below(3):
            return None
        held = model.describe_store().get("bytes", 0)
        limits = [held - 1, held // 2, None, held - 1, held * 5 // 6, held, 0, None]
        limit = source.pick(limits)
        return {"op": self.name, "bytes": limit if limit is None else max(0, limit)}

    def expect(self, op: Op, model: ConversationModel) -> Answer:
        return model.set_limit(op["bytes"])

    def observe(
        self, op: Op, subject: ConversationSubject, model: ConversationModel
    ) -> Answer:
        return subject.change(lambda: subject.cache.set_limit(op["bytes"]), model)

    def describe(self, op: Op) -> str:
        held = "anything" if op["bytes"] is None else f"{op['bytes']} bytes"
        return f"store at most {held} from now on"


def say_tokens(tokens: Any) -> str:
    return "[" + " ".join(map(str, tokens)) + "]"


OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Begin(),
        Feed(),
        Close(),
        Cancel(),
        Break(),
        Refuse(),
        Checkpoint(),
        Count(),
        Limit(),
        Free(),
    )
}
