"""Calls that break a rule of sessions, tries and slots: they raise and change nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from cases import Desk
from prefix_book import ConversationDesk, SlotsDesk, spell

from lockstep.reference.session import Session
from lockstep.reference.trie import Trie

Call = Callable[[Any], object]


def begin(*request: Any) -> Call:
    return lambda cache: cache.begin(*request)


def extend(*request: Any) -> Call:
    return lambda cache: cache.extend(*request)


CLOSED: Sequence[Call] = [
    *map(begin, ([], ["a"], [97, 98.0], [97, None], [97, True], [False])),
    lambda cache: cache.close(),
    lambda cache: cache.feed(1),
    extend([97]),
]
"""Wrong while no request is open."""

OPEN: Sequence[Call] = [
    *map(begin, (spell("abc"), [])),
    lambda cache: cache.free(),
    *map(extend, (["b"], [97, True], [False])),
]
"""Wrong while a request is open."""

TRIE: Sequence[Call] = [
    begin([97], [0]),
    begin([97], [1, -1]),
    lambda trie: trie.set_limit(-1),
]
SLOTS: Sequence[Call] = [
    *CLOSED[:6],
    extend(0, ["b"]),
    extend(0, [97, False]),
    extend(1, [97]),
    lambda slots: slots.reserve(1, 1),
    lambda slots: slots.commit(1, 1),
    lambda slots: slots.close(1),
    lambda slots: slots.close(2),
    lambda slots: slots.close(-2),
    *(lambda slots, count=count: slots.reserve(0, count) for count in (0, -1, 3)),
]
"""Wrong while a request is open in slot 0, of which two tokens are left to compute."""


@pytest.mark.parametrize(
    ("desk", "is_open", "why", "calls"),
    [
        (ConversationDesk(Session, "kv"), False, "empty|integer|no request", CLOSED),
        (ConversationDesk(Session, "kv"), True, "request|empty|integer", OPEN),
        (
            *(ConversationDesk(Trie, "kv limit=5"), False),
            *("empty|integer|no request|checkpoint|limit", [*CLOSED, *TRIE]),
        ),
        (
            *(ConversationDesk(Trie, "kv limit=5"), True),
            *("request|empty|integer|limit", [*OPEN, TRIE[-1]]),
        ),
        (
            *(SlotsDesk("causal count=2"), True),
            *("empty|integer|no request|cannot be computed", SLOTS),
        ),
    ],
    ids=["session", "open session", "trie", "open trie", "slots"],
)
def test_what_is_wrong_changes_nothing(
    desk: Desk, is_open: bool, why: str, calls: Sequence[Call]
) -> None:
    slot = "0 " * isinstance(desk, SlotsDesk)
    desk.check([f"ask abc > {slot}abc", *[f"begin abxy > {slot}xy"] * is_open])
    before = pickle.dumps(desk.cache)
    for call in calls:
        with pytest.raises(ValueError, match=why):
            call(desk.cache)
        assert pickle.dumps(desk.cache) == before


@pytest.mark.parametrize("options", ["limit=-1", "interval=0", "interval=-1"])
def test_a_trie_is_not_opened_with_less_than_nothing(options: str) -> None:
    with pytest.raises(ValueError, match=r"limit|interval"):
        ConversationDesk(Trie, f"kv {options}")


@pytest.mark.parametrize(("keep", "context"), [(-1, 8), (8, 8), (9, 8), (0, 0)])
def test_what_is_kept_leaves_room(keep: int, context: int) -> None:
    with pytest.raises(ValueError, match="keep"):
        SlotsDesk(f"causal keep={keep} context={context}")


def test_a_pass_has_at_most_what_is_not_kept() -> None:
    desk = SlotsDesk("causal context=8 keep=2")
    desk.check(["begin abcdefgh > 0 abcdefgh"])
    with pytest.raises(ValueError, match="7 tokens cannot be computed"):
        desk.cache.reserve(0, 7)
    desk.check(["feed 0 6 > 0", "feed 0 2 > 6", "holds 0 > abcdefgh"])
