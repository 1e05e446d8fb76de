"""Relation best of sessions and tries: how much of a request is reused."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.harness.contracts.types import Answer
from lockstep.harness.core.fields import MAX_LENGTH
from lockstep.harness.execution.metamorphic.derived import Derived
from lockstep.harness.execution.metamorphic.history import History
from lockstep.harness.execution.metamorphic.prefix.book import (
    ConversationBook,
    count_same,
)
from lockstep.harness.execution.metamorphic.prefix.conversations import (
    PrefixRelation,
    has_cache,
    is_cuttable,
    is_limited,
    open_session,
)


def loses_nothing(history: History) -> bool:
    """Whether a trie has lost nothing that it was ever told."""
    config = history.program.config
    is_whole = is_cuttable(config) and not is_limited(history)
    return config["kind"] == "trie" and is_whole


class Best(PrefixRelation):
    """How much is reused, held against a session that heard one conversation.

    A session goes on as one that only ever heard the last conversation. A trie reuses at
    least as much as that. If its layers can be cut anywhere and it has lost nothing, it
    reuses just as much as a session that heard the best of all conversations: of 1, 2, 3
    and 1, 5, for a request 1, 2, 4, that is the first one, and 4 remains.
    """

    name = "best"

    def list_own(self, history: History) -> Sequence[int]:
        choices = []
        for step, book in ConversationBook.along(history):
            begins = step.name == "begin" and "error" not in step.answer
            known = book.closed if loses_nothing(history) else book.live
            if begins and known and not book.is_armed:
                choices.append(step.number)
        return choices if has_cache(history.program.config) else []

    def derive(self, history: History, choice: int) -> Derived | None:
        book = ConversationBook.before(history, choice)
        config = history.program.config
        step = history.get_step(choice)
        builder = open_session(history)
        tokens, told, wins = step.op["tokens"], book.live, loses_nothing(history)
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
