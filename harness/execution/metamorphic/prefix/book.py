"""What a prefix cache was told, and what it says that it holds: conversations, as lists
of tokens. These are the numbers in the program; the tag of a token is found by all the
tokens up to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from lockstep.harness.execution.metamorphic.history import Book, History, Step

Path = tuple[int, ...]
"""The tokens of a conversation, from its beginning on."""


def count_same(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two conversations have in common at the beginning."""
    common = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        common += 1
    return common


@dataclass
class ConversationBook(Book):
    """What a session or a trie was told.

    request: the tokens of the open request. computed: how many of them are computed, or
    were reused. tags: of the last token of every beginning that was ever computed: after
    a request 5, 7 those of (5,) and (5, 7). closed: the conversations that were stored,
    the last one last. live: the one on which all layers stand. is_apart: a pass broke
    off, and the layers stand at different tokens. is_armed: the next request is to meet a
    refusal or a checkpoint.
    """

    request: list[int] | None = None
    computed: int = 0
    tags: dict[Path, int] = field(default_factory=dict)
    closed: list[Path] = field(default_factory=list)
    live: Path = ()
    is_apart: bool = False
    is_armed: bool = False

    @classmethod
    def open(cls, history: History) -> Self:
        return cls()

    def write(self, step: Step) -> None:
        error = "error" in step.answer
        if step.name == "begin":
            self.is_armed = False
            if not error:
                self.request = list(step.op["tokens"])
                self.computed = len(self.request) - len(step.answer["remaining"])
                self.is_apart = False
        elif step.name in ("feed", "break") and self.request is not None:
            self.feed(step, error)
        elif step.name in ("close", "cancel") and not error:
            stored = step.answer["stored"]
            path = tuple(self.request[:stored]) if self.request else ()
            self.closed += [path] if path else []
            self.live = () if self.is_apart else path
            self.request = None
        elif step.name == "free" and not error:
            self.closed, self.live = [], ()
        elif step.name in ("refuse", "checkpoint"):
            self.is_armed = True

    def feed(self, step: Step, error: bool) -> None:
        assert self.request is not None
        begin = self.computed
        self.computed = min(begin + step.op["count"], len(self.request))
        fresh = iter(step.tags)
        for end in range(begin + 1, self.computed + 1):
            path = tuple(self.request[:end])
            if path not in self.tags:
                self.tags[path] = next(fresh)
        self.is_apart = self.is_apart or step.name == "break"
        if not error:
            self.request += step.op.get("generate", [])


def get_user(step: Step) -> str:
    """Of slots: whose request an operation is about."""
    return str(step.op.get("user", "a"))


@dataclass
class SlotBook(Book):
    """What slots were told.

    slots: number → the tokens that it says it holds. users: user → the slot of the open
    request. is_armed: the cache below was told to refuse something.
    """

    slots: dict[int, list[int]] = field(default_factory=dict)
    users: dict[str, int] = field(default_factory=dict)
    is_armed: bool = False

    @classmethod
    def open(cls, history: History) -> Self:
        return cls()

    def write(self, step: Step) -> None:
        answer, user = step.answer, get_user(step)
        if step.name == "refuse":
            self.is_armed = True
        if step.name == "begin" and "slot" in answer:
            self.users[user] = answer["slot"]
        if user in self.users and "tokens" in answer:
            self.slots[self.users[user]] = list(answer["tokens"])
        if step.name in ("close", "cancel"):
            self.users.pop(user, None)
