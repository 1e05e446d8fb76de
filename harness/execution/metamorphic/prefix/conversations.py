"""What the relations of prefix caches share: how a program of requests is put
together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.contracts.types import Answer
from lockstep.harness.execution.metamorphic.derived import Builder, Match
from lockstep.harness.execution.metamorphic.history import History, make_history
from lockstep.harness.execution.metamorphic.prefix.book import ConversationBook
from lockstep.harness.execution.metamorphic.relation import Relation
from lockstep.harness.execution.metamorphic.unified.book import PURE
from lockstep.harness.programs.program import Program

CONVERSATIONS = ("session", "trie")
"""The kinds that hold whole conversations, one or many."""


class PrefixRelation(Relation):
    """One that is about some kinds of prefix caches, and has nothing to say of others."""

    kinds: ClassVar[Collection[str]] = CONVERSATIONS

    def is_about(self, kind: str) -> bool:
        return kind in self.kinds

    def list_choices(self, history: History) -> Sequence[Any]:
        return self.list_own(history) if self.is_about(history.program.kind) else []

    @abstractmethod
    def list_own(self, history: History) -> Sequence[Any]:
        """The choices, if the program is of one of these kinds."""


class SlotRelation(PrefixRelation):
    """One that is about slots."""

    kinds = ("slots",)


class Conversations(Builder):
    """Puts together a derived program of requests.

    How many tokens each pass computes, and so the tags, may differ between two programs:
    what is reused has its tag already. So tags are matched by what they stand for, a
    token behind certain tokens: that of 7 in the conversation 5, 7 in one is that in the
    other.
    """

    def __init__(self, history: History, **changes: Any) -> None:
        super().__init__(history, None, **changes)
        self.known = ConversationBook.before(history).tags

    def get_match(self) -> Match:
        return self.match

    def match(self, program: Program, answers: Sequence[Answer]) -> Mapping[int, int]:
        own = ConversationBook.before(make_history(program, answers)).tags
        return {own[path]: self.known[path] for path in own if path in self.known}

    def tell(self, path: Sequence[int], closes: bool = True) -> int:
        """A whole request; the number of the operation that began it."""
        number = self.add({"op": "begin", "tokens": list(path)})
        self.add({"op": "feed", "count": len(path)})
        if closes:
            self.add({"op": "close"})
        return number


def open_session(history: History) -> Conversations:
    """A fresh session of the same model."""
    return Conversations(history, kind="session", limit=None, interval=None)


def has_cache(config: Mapping[str, Any]) -> bool:
    """Whether some layer has a cache at all."""
    return any(config["layers"])


def is_cuttable(config: Mapping[str, Any]) -> bool:
    """Whether every layer can be cut anywhere: it has full attention, or no cache."""
    return {*config["layers"]} <= {"kv", None} and has_cache(config)


def is_limited(history: History) -> bool:
    """Whether there was ever a limit of what may be stored."""
    limits = any(step.name == "limit" for step in history.steps)
    return limits or history.program.config["limit"] is not None


def is_pure(history: History) -> bool:
    """Of slots: whether the cache below keeps what it got, and nothing else."""
    layers = history.program.config["layers"]
    return {layer.partition(":")[0] for layer in layers} <= {*PURE}


def rename_tokens(tokens: Sequence[Any]) -> list[Any]:
    """The tokens 0 to 9 become 9 to 0."""
    return [9 - t if type(t) is int and 0 <= t <= 9 else t for t in tokens]


def rename_told(op: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an operation that say tokens, with other tokens."""
    fields = [name for name in ("tokens", "generate") if name in op]
    return {name: rename_tokens(op[name]) for name in fields}


def rename_answered(answer: Answer) -> Answer:
    """An answer with other tokens, in the fields where tokens are listed."""
    fields = [name for name in ("tokens", "remaining") if name in answer]
    lists = [name for name in fields if isinstance(answer[name], list)]
    return {**answer, **{name: rename_tokens(answer[name]) for name in lists}}
