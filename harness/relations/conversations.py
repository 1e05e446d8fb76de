"""The relations of sessions and tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.contracts.base import Answer
from harness.contracts.fields import MAX_LENGTH
from harness.program import Program
from harness.relations.derived import Builder, Derived, History, Match, Step, make_history
from harness.relations.relation import Relation
from harness.run import trace

Path = tuple[int, ...]
"""The tokens of a conversation, from its beginning on."""

KINDS = ("session", "trie")


@dataclass
class Book:
    """What a program was told.

    request: the tokens of the open request; computed: how many of them. tags: of every
    conversation that was ever computed, by all its tokens. closed: the conversations that
    were stored, the last one last; live: that on which all layers stand. is_apart: a pass
    broke off, and the layers stand at different tokens. is_armed: the next request is to
    meet a refusal or a checkpoint.
    """

    request: list[int] | None = None
    computed: int = 0
    tags: dict[Path, int] = field(default_factory=dict)
    closed: list[Path] = field(default_factory=list)
    live: Path = ()
    is_apart: bool = False
    is_armed: bool = False

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


def read_until(history: History, number: int | None = None) -> Book:
    book = Book()
    for step in history.steps:
        if step.number == number:
            break
        book.write(step)
    return book


class Conversations(Builder):
    """Tags are matched by what they stand for: a token behind certain tokens."""

    def __init__(self, history: History, **changes: Any) -> None:
        super().__init__(history, None, **changes)
        self.known = read_until(history).tags

    def get_match(self) -> Match:
        return self.match

    def match(self, program: Program, answers: Sequence[Answer]) -> Mapping[int, int]:
        own = read_until(make_history(program, answers)).tags
        return {own[path]: self.known[path] for path in own if path in self.known}

    def tell(self, path: Sequence[int], closes: bool = True) -> int:
        """A whole request; the number of the operation that began it."""
        number = self.add({"op": "begin", "tokens": list(path)})
        self.add({"op": "feed", "count": len(path)})
        if closes:
            self.add({"op": "close"})
        return number


def has_cache(config: Mapping[str, Any]) -> bool:
    return any(config["layers"])


def is_cuttable(config: Mapping[str, Any]) -> bool:
    """Every layer can be cut anywhere."""
    return {*config["layers"]} <= {"kv", None} and has_cache(config)


def is_limited(history: History) -> bool:
    limits = any(step.name == "limit" for step in history.steps)
    return limits or history.program.config["limit"] is not None


class OfConversations(Relation):
    """One that is about sessions and tries."""

    kinds: Sequence[str] = KINDS

    def is_about(self, kind: str) -> bool:
        return kind in self.kinds

    def list_choices(self, history: History) -> Sequence[Any]:
        is_meant = history.program.kind in self.kinds
        return self.list_own(history) if is_meant else []

    def list_own(self, history: History) -> Sequence[Any]:
        raise NotImplementedError


class Recompute(OfConversations):
    """Whatever was reused, the layers hold, and the rows of a pass see, what a session
    that never heard of anything gives."""

    name = "recompute"

    def list_own(self, history: History) -> Sequence[int]:
        if not has_cache(history.program.config):
            return []
        return [
            step.number
            for step in history.steps
            if step.name in ("begin", "feed") and any(step.answer.get("caches", ()))
        ]

    def derive(self, history: History, choice: int) -> Derived | None:
        book = Book()
        for step in history.steps:
            before = book.computed
            book.write(step)
            if step.number == choice:
                break
        tokens = (book.request or [])[: book.computed]
        if not tokens or len(tokens) > MAX_LENGTH or book.is_apart:
            return None
        session = {"kind": "session", "limit": None, "interval": None}
        builder = Conversations(history, **session)
        builder.tell(tokens, closes=False)
        rows = book.computed - before if step.name == "feed" else 1

        def view(answer: Answer) -> Answer:
            caches = [
                {"visible": part["visible"][-rows:], "tags": part["visible"][-1]}
                if part
                else {}
                for part in answer["caches"]
            ]
            return {"caches": caches}

        builder.claim(step, 1, {"caches": step.answer["caches"]}, view)
        return builder.build("of a fresh session that computes these tokens")


class Cut(OfConversations):
    """It is all the same in how many passes a request is computed."""

    name = "cut"

    def list_own(self, history: History) -> Sequence[Any]:
        choices = []
        book = Book()
        for step in history.steps:
            before = book.computed
            book.write(step)
            if step.name == "feed" and book.computed - before > 1:
                choices.append((step.number, book.computed - before))
        return choices

    def derive(self, history: History, choice: tuple[int, int]) -> Derived | None:
        number, count = choice
        builder = Conversations(history)
        for step in history.steps:
            if step.number != number:
                builder.take(step)
                continue
            at = (count + 1) // 2
            first = builder.add({"op": "feed", "count": at})
            second = builder.add({**step.op, "count": step.op["count"] - at})
            parts = step.answer["caches"]
            rows = [{k: v[:at] for k, v in part.items()} for part in parts]
            builder.claim(step, first, {"caches": rows})
            rows = [{k: v[at:] for k, v in part.items()} for part in parts]
            builder.claim(step, second, {**step.answer, "caches": rows})
        return builder.build("with one pass cut in two")


class Rename(OfConversations):
    """Tokens are numbers, and could be others."""

    name = "rename"

    def list_own(self, history: History) -> Sequence[int]:
        return [0]

    def derive(self, history: History, choice: int) -> Derived | None:
        others: dict[Any, Any] = {number: 9 - number for number in range(10)}

        def swap(tokens: Sequence[Any]) -> list[Any]:
            return [others.get(t, t) if type(t) is int else t for t in tokens]

        def view(answer: Answer) -> Answer:
            left = answer.get("remaining")
            return {**answer, "remaining": swap(left)} if left else answer

        builder = Conversations(history)
        builder.known = {tuple(swap(path)): tag for path, tag in builder.known.items()}
        for step in history.steps:
            fields = [name for name in ("tokens", "generate") if name in step.op]
            op = {**step.op, **{name: swap(step.op[name]) for name in fields}}
            builder.claim(step, builder.add(op), view=view)
        return builder.build("with other tokens")


def is_winning(history: History) -> bool:
    """Whether nothing that was ever told is lost."""
    config = history.program.config
    is_whole = is_cuttable(config) and not is_limited(history)
    return config["kind"] == "trie" and is_whole


class Best(OfConversations):
    """A session goes on as one that only ever heard the last conversation. A trie reuses
    at least what such a session does; and if its layers can be cut and nothing was let go
    of, just what a session does that heard the best of all conversations."""

    name = "best"

    def list_own(self, history: History) -> Sequence[int]:
        choices = []
        book = Book()
        for step in history.steps:
            begins = step.name == "begin" and "error" not in step.answer
            known = book.closed if is_winning(history) else book.live
            if begins and known and not book.is_armed:
                choices.append(step.number)
            book.write(step)
        return choices if has_cache(history.program.config) else []

    def derive(self, history: History, choice: int) -> Derived | None:
        book = read_until(history, choice)
        config = history.program.config
        step = next(step for step in history.steps if step.number == choice)
        session = {"kind": "session", "limit": None, "interval": None}
        builder = Conversations(history, **session)
        tokens, told, wins = step.op["tokens"], book.live, is_winning(history)
        if wins:
            told = max(book.closed, key=lambda path: count_same(path, tokens))
        if len(told) > MAX_LENGTH:
            return None
        builder.tell(told)
        if config["kind"] == "session":
            for later in history.steps:
                if later.number >= choice:
                    builder.take(later)
            return builder.build("of a session that only heard the last conversation")
        other = builder.add(step.op)
        left = step.answer["remaining"]

        def view(answer: Answer) -> Answer:
            if not wins and len(answer["remaining"]) >= len(left):
                return {"remaining": left}  # the trie may know better
            return answer

        builder.claim(step, other, {"remaining": left}, view)
        return builder.build("of a session that heard the best conversation")


def count_same(left: Sequence[int], right: Sequence[int]) -> int:
    common = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        common += 1
    return common


class Store(OfConversations):
    """What a trie counts does not depend on the order in which it was told; of layers
    that are captured only the tokens, for where they are captured does."""

    name = "store"
    kinds = ("trie",)

    def list_own(self, history: History) -> Sequence[int]:
        if not has_cache(history.program.config):
            return []
        choices = []
        book = Book()
        for step in history.steps:
            book.write(step)
            if step.name in ("close", "cancel") and book.closed:
                choices.append(step.number)
        return choices

    def derive(self, history: History, choice: int) -> Derived | None:
        book = read_until(history, choice + 1)
        step = next(step for step in history.steps if step.number == choice)
        paths = sorted({*book.closed})
        there, back = (Conversations(history, limit=None) for _ in range(2))
        for path in paths:
            there.tell(path)
        for path in reversed(paths):
            back.tell(path)
        there.add({"op": "count"})
        counted = trace(Program("prefix", there.config, there.ops))[-1]
        if not is_cuttable(there.config):
            counted = {"tokens": counted["tokens"]}
        beginnings = {path[:end] for path in paths for end in range(1, len(path) + 1)}
        counted["tokens"] = len(beginnings)
        back.promise(step, back.add({"op": "count"}), counted)
        return back.build("of a trie that heard the conversations from the last on")


class Keep(OfConversations):
    """What must be kept, told in requests made from one of the program's: what was just
    computed, but for one token; of a trie also captures at checkpoints, where
    conversations part and end, and at intervals; under a limit what was used last, and
    always the conversation that its layers stand on."""

    name = "keep"

    def list_own(self, history: History) -> Sequence[Any]:
        config = history.program.config
        if not has_cache(config):
            return []
        ways = ["longer"] + (["again"] if is_cuttable(config) else [])
        if config["kind"] == "trie":
            ways += ["checkpoint", "parted", "end", "interval", "recent", "live"]
        return [
            (step.number, way)
            for step in history.steps
            if step.name == "begin"
            and "error" not in step.answer
            and 2 <= len(step.op["tokens"]) <= 40
            for way in ways
        ]

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, way = choice
        step = next(step for step in history.steps if step.number == number)
        tokens = list(step.op["tokens"])
        at = 1 + number % (len(tokens) - 1)
        interval = at if way == "interval" else None
        builder = Conversations(history, limit=None, interval=interval)
        if way in ("recent", "live"):
            self.press(builder, step, tokens, way)
        elif way in ("longer", "again"):
            builder.tell(tokens)
            last = builder.add(
                {"op": "begin", "tokens": [*tokens, 72] if way == "longer" else tokens}
            )
            left = [72] if way == "longer" else tokens[-1:]
            builder.promise(step, last, {"remaining": left})
        else:
            if way == "checkpoint":
                builder.add({"op": "checkpoint", "offsets": [at]})
            builder.tell(tokens)
            if way == "parted":
                builder.tell([*tokens[:at], 71])
            builder.tell([81, 82, 83])
            kept = tokens if way == "end" else tokens[:at]
            last = builder.add({"op": "begin", "tokens": [*kept, 72]})
            builder.promise(step, last, {"remaining": [72]})
        return builder.build(f"of a {builder.config['kind']} {WAYS[way]}")

    def press(
        self, builder: Conversations, step: Step, tokens: Sequence[int], way: str
    ) -> None:
        """A limit of two conversations, or of none."""
        others = [[81 + other] * len(tokens) for other in range(2)]
        builder.tell(tokens)
        if way == "live":
            builder.add({"op": "limit", "bytes": 0})
        else:
            ops = [*builder.ops, {"op": "count"}]
            size = trace(Program("prefix", builder.config, ops))[-1]["bytes"]
            builder.add({"op": "limit", "bytes": 2 * size})
            builder.tell(others[0])
            builder.tell(tokens)
            builder.tell(others[1])
            builder.promise(step, builder.add({"op": "count"}), {"bytes": 2 * size})
            gone = [*others[0], 71]
            last = builder.add({"op": "begin", "tokens": gone})
            builder.promise(step, last, {"remaining": gone})
            builder.add({"op": "cancel"})
        last = builder.add({"op": "begin", "tokens": [*tokens, 72]})
        builder.promise(step, last, {"remaining": [72]})


WAYS = {
    "longer": "that just heard the beginning",
    "again": "that just heard the same",
    "checkpoint": "that was to capture a checkpoint",
    "parted": "where two conversations parted",
    "end": "that heard another conversation since",
    "interval": "that captures at intervals",
    "recent": "that has to let go of what was not used for the longest time",
    "live": "that may store nothing but what its layers stand on",
}

RELATIONS: Sequence[Relation] = (
    Recompute(),
    Cut(),
    Rename(),
    Best(),
    Store(),
    Keep(),
)
