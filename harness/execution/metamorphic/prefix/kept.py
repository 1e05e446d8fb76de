"""Relations keep and store of sessions and tries: what must be kept, and what is
counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.execution.metamorphic.derived import Derived
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.execution.metamorphic.prefix.book import ConversationBook
from lockstep.harness.execution.metamorphic.prefix.conversations import (
    Conversations,
    PrefixRelation,
    has_cache,
    is_cuttable,
)
from lockstep.harness.programs.program import Program
from lockstep.harness.programs.walk import trace

KEPT = {
    "longer": "that just heard the beginning",
    "again": "that just heard the same",
    "checkpoint": "that was to capture a checkpoint",
    "parted": "where two conversations parted",
    "end": "that heard another conversation since",
    "interval": "that captures at intervals",
    "recent": "that has to let go of what was not used for the longest time",
    "live": "that may store nothing but what its layers stand on",
}


class Keep(PrefixRelation):
    """What must be kept, whatever the program did: in plain programs that are made from
    the tokens of one of its requests.

    Just after a request 1, 2, 3 one with 1, 2, 3, 72 has only 72 left to compute; the
    same again, where layers can be cut, only its last token. A trie also goes on, after
    it heard something else: from a checkpoint, from where two conversations parted, from
    the end of one, and from an interval. Under a limit it keeps what was used last, and
    always the conversation that its layers stand on. `KEPT` has a name for each of these.
    """

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
        step = history.get_step(number)
        tokens = list(step.op["tokens"])
        at = 1 + number % (len(tokens) - 1)
        interval = at if way == "interval" else None
        builder = Conversations(history, limit=None, interval=interval)
        if way == "recent":
            self.press(builder, step, tokens)
        elif way == "live":
            builder.tell(tokens)
            builder.add({"op": "limit", "bytes": 0})
        elif way in ("longer", "again"):
            builder.tell(tokens)
        else:
            if way == "checkpoint":
                builder.add({"op": "checkpoint", "offsets": [at]})
            builder.tell(tokens)
            if way == "parted":
                builder.tell([*tokens[:at], 71])
            builder.tell([81, 82, 83])
        is_cut = way in ("checkpoint", "parted", "interval")
        kept = tokens[:at] if is_cut else tokens
        asked, left = ([*kept, 72], [72]) if way != "again" else (tokens, tokens[-1:])
        last = builder.add({"op": "begin", "tokens": asked})
        builder.promise(step, last, {"remaining": left})
        return builder.build(f"of a {builder.config['kind']} {KEPT[way]}")

    def press(self, builder: Conversations, step: Step, tokens: Sequence[int]) -> None:
        """Under a limit of two conversations as long as this one: it, another, it again,
        and a third, for which the other one must go."""
        one, two = ([81 + other] * len(tokens) for other in range(2))
        builder.tell(tokens)
        ops = [*builder.ops, {"op": "count"}]
        size = trace(Program("prefix", builder.config, ops))[-1]["bytes"]
        builder.add({"op": "limit", "bytes": 2 * size})
        for told in (one, tokens, two):
            builder.tell(told)
        builder.promise(step, builder.add({"op": "count"}), {"bytes": 2 * size})
        last = builder.add({"op": "begin", "tokens": [*one, 71]})
        builder.promise(step, last, {"remaining": [*one, 71]})
        builder.add({"op": "cancel"})


class Store(PrefixRelation):
    """What a trie counts does not depend on the order in which it heard the
    conversations.

    It is told all that the program stored, once in order and once from the last on, and
    must count the same bytes. Each beginning counts once: of 1, 2, 3 and 1, 2, 5 that is
    4 tokens. Where layers must be captured, only the tokens are compared: where a capture
    is made depends on the order.
    """

    name = "store"
    kinds = ("trie",)

    def list_own(self, history: History) -> Sequence[int]:
        if not has_cache(history.program.config):
            return []
        choices, book = [], ConversationBook()
        for step in history.steps:
            book.write(step)
            if step.name in ("close", "cancel") and book.closed:
                choices.append(step.number)
        return choices

    def derive(self, history: History, choice: int) -> Derived | None:
        book = ConversationBook.before(history, choice + 1)
        step = history.get_step(choice)
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
