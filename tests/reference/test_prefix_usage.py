"""Calls that break a rule of sessions, tries and slots: they raise and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from prefix_book import get_tags, make_layers, make_slots, spell, tell

from lockstep.reference.causal import CausalCache
from lockstep.reference.session import Session
from lockstep.reference.slots import Slots
from lockstep.reference.trie import Trie

Call = Callable[[Any], object]


def make_session() -> Session:
    return Session(make_layers("kv"), get_tags)


def make_trie() -> Trie:
    return Trie(make_layers("kv"), get_tags)


def make_two_slots() -> Slots:
    return make_slots("causal", 2)


@dataclass(frozen=True)
class Place:
    """A cache after some steps, the calls that are wrong there, and the steps that must
    go on as if nothing had been asked."""

    make: Callable[[], Session | Trie | Slots]
    before: str
    after: str
    why: str
    calls: Mapping[str, Call]


WRONG_TOKENS: Mapping[str, list[Any]] = {
    "no token": [],
    "a word": ["a"],
    "a number that is not whole": [97, 98.0],
    "none": [97, None],
    "true": [97, True],
    "false": [False],
}
BEGINS: Mapping[str, Call] = {
    name: lambda cache, tokens=tokens: cache.begin(tokens)
    for name, tokens in WRONG_TOKENS.items()
}
WITHOUT_REQUEST: Mapping[str, Call] = {
    "close": lambda cache: cache.close(),
    "feed": lambda cache: cache.feed(1),
    "say": lambda cache: cache.extend([97]),
}
WITH_REQUEST: Mapping[str, Call] = {
    "begin": lambda cache: cache.begin(spell("abc")),
    "begin with nothing": lambda cache: cache.begin([]),
    "free": lambda cache: cache.free(),
    "say a word": lambda cache: cache.extend([97, "b"]),
    "say true": lambda cache: cache.extend([True]),
    "say false": lambda cache: cache.extend([False]),
}
ONLY_TRIE: Mapping[str, Call] = {
    "a checkpoint before the first token": lambda trie: trie.begin([97], [0]),
    "a negative checkpoint": lambda trie: trie.begin([97], [1, -1]),
    "a negative limit": lambda trie: trie.set_limit(-1),
}
ONLY_SLOTS: Mapping[str, Call] = {
    "to say a word": lambda slots: slots.extend(0, ["b"]),
    "to say false": lambda slots: slots.extend(0, [97, False]),
    "to say in a slot that is free": lambda slots: slots.extend(1, [97]),
    "to reserve in a slot that is free": lambda slots: slots.reserve(1, 1),
    "to commit in a slot that is free": lambda slots: slots.commit(1, 1),
    "to close a slot that is free": lambda slots: slots.close(1),
    "to close a slot too many": lambda slots: slots.close(2),
    "to close a negative slot": lambda slots: slots.close(-2),
    "to reserve nothing": lambda slots: slots.reserve(0, 0),
    "to reserve less than nothing": lambda slots: slots.reserve(0, -1),
    "to reserve more than is left": lambda slots: slots.reserve(0, 3),
}

OPEN = "ask abc > abc; begin abxy > xy"
PLACES: Mapping[str, Place] = {
    "session": Place(
        make_session, "ask abc > abc", "begin abcd > d", "empty|not an integer", BEGINS
    ),
    "closed session": Place(
        make_session, f"{OPEN}; close > 2", "begin abz > z", "no request", WITHOUT_REQUEST
    ),
    "open session": Place(
        make_session,
        OPEN,
        "feed 2 > 4; close > 4; begin abxyz > z",
        "open|not an integer",
        WITH_REQUEST,
    ),
    "trie": Place(
        make_trie,
        f"{OPEN}; close > 2",
        "points ab abc; begin abxy > xy; feed 2 > 4; close > 4; points ab abc abxy",
        "empty|integer|checkpoint|limit|no request",
        {**BEGINS, **WITHOUT_REQUEST, **ONLY_TRIE},
    ),
    "open trie": Place(
        make_trie,
        OPEN,
        "feed 2 > 4; close > 4; points ab abc abxy",
        "open|integer|limit",
        {**WITH_REQUEST, "a negative limit": lambda trie: trie.set_limit(-5)},
    ),
    "slots": Place(
        make_two_slots,
        "ask abc > 0 abc; begin abxy > 0 xy",
        "holds 0 > ab left=xy; feed 0 2 > 2; close 0 > 4; holds 1 > -; begin abxyz > 0 z",
        "empty|integer|no request|cannot be computed",
        {**BEGINS, **ONLY_SLOTS},
    ),
}
CALLS = [(place, name) for place in PLACES for name in PLACES[place].calls]


@pytest.mark.parametrize(("where", "name"), CALLS)
def test_what_is_wrong_changes_nothing(where: str, name: str) -> None:
    place = PLACES[where]
    cache = place.make()
    tell(cache, place.before)
    request, limit = list(getattr(cache, "request", None) or ()), get_limit(cache)
    with pytest.raises(ValueError, match=place.why):
        place.calls[name](cache)
    assert list(getattr(cache, "request", None) or ()) == request
    assert get_limit(cache) == limit
    tell(cache, place.after)


def get_limit(cache: object) -> int | None:
    return cache.limit if isinstance(cache, Trie) else None


def test_a_limit_that_is_refused_lets_nothing_go() -> None:
    trie = Trie(make_layers("kv"), get_tags, limit=5)
    tell(trie, "ask ab > ab; ask xyz > xyz")
    for refused in (-1, -100):
        with pytest.raises(ValueError, match="limit"):
            trie.set_limit(refused)
        assert trie.limit == 5
        tell(trie, "points ab xyz")


@pytest.mark.parametrize("settings", [{"limit": -1}, {"interval": 0}, {"interval": -1}])
def test_a_trie_is_not_opened_with_less_than_nothing(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"limit|interval"):
        Trie(make_layers("kv"), get_tags, **settings)


@pytest.mark.parametrize(("keep", "context"), [(-1, 8), (8, 8), (9, 8), (0, 0)])
def test_what_is_kept_leaves_room(keep: int, context: int) -> None:
    with pytest.raises(ValueError, match="keep"):
        Slots(CausalCache(1, 8, 8), 1, context, keep)


def test_a_pass_has_at_most_what_is_not_kept() -> None:
    slots = make_slots("causal", context=8, keep=2)
    tell(slots, "begin abcdefgh > 0 abcdefgh")
    with pytest.raises(ValueError, match="7 tokens cannot be computed"):
        slots.reserve(0, 7)
    tell(slots, "feed 0 6 > 0; feed 0 2 > 6; holds 0 > abcdefgh")
