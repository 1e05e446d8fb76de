"""Relations recompute, cut and rename of sessions and tries: what a request computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.contracts.types import Answer
from lockstep.harness.core.fields import MAX_LENGTH
from lockstep.harness.execution.metamorphic.derived import Derived
from lockstep.harness.execution.metamorphic.history import History
from lockstep.harness.execution.metamorphic.prefix.book import ConversationBook
from lockstep.harness.execution.metamorphic.prefix.conversations import (
    Conversations,
    PrefixRelation,
    has_cache,
    open_session,
    rename_answered,
    rename_tokens,
    rename_told,
)


class Recompute(PrefixRelation):
    """Whatever was reused: what the layers hold after a begin, and what the rows of a
    feed see, is what a fresh session computes from the same tokens."""

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
        step = history.get_step(choice)
        book = ConversationBook.before(history, choice)
        before = book.computed
        book.write(step)
        tokens = (book.request or [])[: book.computed]
        if not tokens or len(tokens) > MAX_LENGTH or book.is_apart:
            return None
        builder = open_session(history)
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


class Cut(PrefixRelation):
    """In how many passes a request is computed changes nothing: a feed of 3 tokens
    answers what one of 2 and one of 1 answer together. A choice is (step, how many it
    computes).
    """

    name = "cut"

    def list_own(self, history: History) -> Sequence[Any]:
        choices = []
        for step, book in ConversationBook.along(history):
            left = len(book.request or ()) - book.computed
            count = min(step.op.get("count", 0), left)
            if step.name == "feed" and count > 1:
                choices.append((step.number, count))
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


class Rename(PrefixRelation):
    """With other numbers for the tokens all answers are the same."""

    name = "rename"

    def list_own(self, history: History) -> Sequence[int]:
        return [0]

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Conversations(history)
        known = builder.known.items()
        builder.known = {tuple(rename_tokens(path)): tag for path, tag in known}
        for step in history.steps:
            op = {**step.op, **rename_told(step.op)}
            builder.claim(step, builder.add(op), view=rename_answered)
        return builder.build("with other tokens")
