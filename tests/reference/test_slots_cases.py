"""Several users over one cache of many sequences, by cases that were worked out by hand.

A letter is a token, a word a conversation. The tag of a token is the token itself, so the
cache under the slots can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from prefix_book import Case, Step, case, check_steps, each, read, spell

from reference.batch import Batch
from reference.causal import CausalCache
from reference.recurrent import RecurrentCache
from reference.slots import NoSlot, Slots

CACHES: Mapping[str, Callable[[int, int], CausalCache]] = {
    "causal": lambda count, context: CausalCache(count, context, context),
    "no-shift": lambda count, context: CausalCache(count, context, context, shift=False),
    "swa:2": lambda count, context: CausalCache(count, context, context, 2, 2),
    "swa-memory:2:4": lambda count, context: CausalCache(count, context, context, 2, 4),
    "recurrent": lambda count, context: RecurrentCache(count, context, context),
    "recurrent:2": lambda count, context: RecurrentCache(
        count, context, context, interval=2, checkpoints=9
    ),
}


def make(cache: str, count: int = 1, context: int = 16, **options: Any) -> Slots:
    return Slots(CACHES[cache](count, context), count, context, **options)


def see(slots: Slots, number: int) -> str:
    """What the cache holds for a slot, "." at a position that holds nothing."""
    assert isinstance(slots.cache, CausalCache)
    held = {at: chr(tag) for tag, at, _ in slots.cache.get_tokens(number)}
    assert len(held) == len(slots.cache.get_tokens(number)), "two at one position"
    return "".join(held.get(at, ".") for at in range(max(held, default=-1) + 1))


def compute(slots: Slots, number: int, count: int) -> range:
    """A pass, of which the slot is not told."""
    assert isinstance(slots.cache, CausalCache)
    positions = slots.reserve(number, count)
    tags = slots.slots[number].remaining[:count]
    slots.cache.forward(Batch(positions, [number] * count), tags)
    return positions


# --- steps ------------------------------------------------------------------------------


def begin(request: str, slot: int, left: str) -> Step:
    """A request, the slot that it must get, and what of it must be left."""

    def step(slots: Slots) -> tuple[str, object, object]:
        number = slots.begin(spell(request))
        opened = slots.slots[number]
        got = number, read(opened.remaining), read(opened.tokens)
        reused = request[: len(request) - len(left)]
        return f"begin {request}", got, (slot, left, reused)

    return step


def none_free(request: str) -> Step:
    def step(slots: Slots) -> tuple[str, object, object]:
        with pytest.raises(NoSlot):
            slots.begin(spell(request))
        return f"begin {request}", None, None

    return step


def feed(slot: int, count: int, first: int) -> Step:
    """A pass, and the first position that it must be given."""

    def step(slots: Slots) -> tuple[str, object, object]:
        positions = compute(slots, slot, count)
        slots.commit(slot, count)
        return f"feed {count}", positions, range(first, first + count)

    return step


def fail(slot: int, count: int, first: int) -> Step:
    """A pass that breaks off when the cache has already stored its tokens."""

    def step(slots: Slots) -> tuple[str, object, object]:
        positions = compute(slots, slot, count)
        return f"fail {count}", positions, range(first, first + count)

    return step


def say(slot: int, word: str) -> Step:
    def step(slots: Slots) -> tuple[str, object, object]:
        slots.extend(slot, spell(word))
        return f"say {word}", None, None

    return step


def close(slot: int, stored: int) -> Step:
    def step(slots: Slots) -> tuple[str, object, object]:
        return f"close {slot}", slots.close(slot), stored

    return step


def holds(slot: int, tokens: str, cached: str | None = None, left: str = "") -> Step:
    """What a slot says that it holds, what the cache holds of it (the same), and what is
    left of the open request."""

    def step(slots: Slots) -> tuple[str, object, object]:
        held = slots.slots[slot]
        got = read(held.tokens), see(slots, slot), read(held.remaining)
        return f"slot {slot}", got, (tokens, tokens if cached is None else cached, left)

    return step


def ask(request: str, slot: int, left: str) -> Step:
    """A whole request, computed token by token."""

    def step(slots: Slots) -> tuple[str, object, object]:
        what, got, expected = begin(request, slot, left)(slots)
        for _ in left:
            compute(slots, slot, 1)
            slots.commit(slot, 1)
        number = len(request)
        return what, (got, slots.close(slot)), (expected, number)

    return step


ONE = [
    case("an empty slot reuses nothing", "causal", begin("abc", 0, "abc")),
    case(
        "of an exact repeat one token is left",
        "causal",
        ask("abc", 0, "abc"),
        begin("abc", 0, "c"),
        holds(0, "ab", left="c"),
    ),
    case(
        "a request of one token is all that is left",
        "causal",
        ask("a", 0, "a"),
        begin("a", 0, "a"),
        holds(0, "", left="a"),
    ),
    case(
        "of a shorter prompt one token is left, and the rest is gone",
        "causal",
        ask("abcd", 0, "abcd"),
        ask("ab", 0, "b"),
        holds(0, "ab"),
    ),
    case(
        "of a longer prompt what is new is left",
        "causal",
        ask("abc", 0, "abc"),
        ask("abcde", 0, "de"),
        holds(0, "abcde"),
    ),
    case(
        "what lies behind the parting is gone",
        "causal",
        ask("abcd", 0, "abcd"),
        begin("abx", 0, "x"),
        holds(0, "ab", left="x"),
        feed(0, 1, 2),
        holds(0, "abx"),
    ),
    case(
        "parting at the first token",
        "causal",
        ask("abcd", 0, "abcd"),
        ask("xbcd", 0, "xbcd"),
        holds(0, "xbcd"),
    ),
    case(
        "what was generated and computed is kept",
        "causal",
        begin("ab", 0, "ab"),
        feed(0, 2, 0),
        say(0, "cd"),
        feed(0, 1, 2),
        close(0, 3),
        holds(0, "abc"),
        begin("abcd", 0, "d"),
    ),
    case(
        "cancelled with nothing computed, what was reused stays",
        "causal",
        ask("abcd", 0, "abcd"),
        begin("abx", 0, "x"),
        close(0, 2),
        holds(0, "ab"),
        begin("abcd", 0, "cd"),
    ),
    case(
        "a pass that broke off counts for nothing, and is taken out of the cache",
        "causal",
        begin("abcd", 0, "abcd"),
        feed(0, 2, 0),
        fail(0, 2, 2),
        holds(0, "ab", "abcd", left="cd"),
        close(0, 2),
        holds(0, "ab"),
        begin("abcx", 0, "cx"),
        feed(0, 2, 2),
        holds(0, "abcx"),
    ),
    case(
        "a first pass that broke off leaves nothing",
        "causal",
        begin("ab", 0, "ab"),
        fail(0, 2, 0),
        close(0, 0),
        holds(0, ""),
    ),
]

SINGLE = [
    case(
        "a single user gets the slot with the longest prefix",
        "causal",
        begin("ab", 0, "ab"),
        begin("abcd", 1, "abcd"),
        feed(0, 2, 0),
        feed(1, 4, 0),
        close(0, 2),
        close(1, 4),
        ask("abce", 1, "e"),
        holds(0, "ab"),
        holds(1, "abce"),
        count=2,
    ),
    case(
        "a single user goes on in a slot that parts, without a copy",
        "causal",
        ask("abcd", 0, "abcd"),
        ask("abx", 0, "x"),
        holds(1, ""),
        count=2,
    ),
    case(
        "a slot in use is not given, and not copied from",
        "causal",
        begin("abc", 0, "abc"),
        feed(0, 3, 0),
        begin("abcd", 1, "abcd"),
        holds(0, "abc"),
        count=2,
    ),
    case(
        "none is free: no slot, until one is closed",
        "causal",
        begin("abc", 0, "abc"),
        begin("xyz", 1, "xyz"),
        none_free("abc"),
        feed(1, 3, 0),
        close(1, 3),
        begin("xyzw", 1, "w"),
        none_free("x"),
        holds(0, "", left="abc"),
        count=2,
    ),
]

SEVERAL: dict[str, Any] = {"count": 2, "several_users": True}
THREE: dict[str, Any] = {"count": 3, "several_users": True}

USERS = [
    case(
        "a slot that is wholly matched goes on",
        "causal",
        ask("abc", 0, "abc"),
        begin("abcd", 0, "d"),
        holds(1, ""),
        **SEVERAL,
    ),
    case(
        "of an exact repeat one token is left, in the same slot",
        "causal",
        ask("abc", 0, "abc"),
        begin("abc", 0, "c"),
        **SEVERAL,
    ),
    case(
        "who parts gets a slot of his own, and a copy of what is shared",
        "causal",
        ask("abcd", 0, "abcd"),
        begin("abxy", 1, "xy"),
        holds(1, "ab", left="xy"),
        feed(1, 2, 2),
        holds(1, "abxy"),
        holds(0, "abcd"),
        **SEVERAL,
    ),
    case(
        "a shorter prompt is a parting too",
        "causal",
        ask("abcd", 0, "abcd"),
        begin("ab", 1, "b"),
        holds(1, "a", left="b"),
        holds(0, "abcd"),
        **SEVERAL,
    ),
    case(
        "a copy is taken from a slot in use as well",
        "causal",
        begin("abc", 0, "abc"),
        feed(0, 3, 0),
        begin("abq", 1, "q"),
        feed(1, 1, 2),
        say(0, "d"),
        feed(0, 1, 3),
        holds(0, "abcd"),
        holds(1, "abq"),
        **SEVERAL,
    ),
    case(
        "a slot in use that is wholly matched is copied",
        "causal",
        begin("abc", 0, "abc"),
        feed(0, 3, 0),
        begin("abcd", 1, "d"),
        **SEVERAL,
    ),
    case(
        "what is only to be computed is not there to be copied",
        "causal",
        begin("abc", 0, "abc"),
        feed(0, 1, 0),
        begin("abcd", 1, "bcd"),
        **SEVERAL,
    ),
    case(
        "who shares nothing gets the slot that was used longest ago",
        "causal",
        ask("abc", 0, "abc"),
        ask("def", 1, "def"),
        ask("ghi", 2, "ghi"),
        ask("jkl", 0, "jkl"),
        ask("mno", 1, "mno"),
        holds(0, "jkl"),
        holds(1, "mno"),
        holds(2, "ghi"),
        **THREE,
    ),
    case(
        "a slot that goes on is not the one used longest ago",
        "causal",
        ask("abc", 0, "abc"),
        ask("def", 1, "def"),
        ask("abcd", 0, "d"),
        ask("xyz", 1, "xyz"),
        holds(0, "abcd"),
        **SEVERAL,
    ),
    case(
        "a slot is as old as its last request, not as the end of that",
        "causal",
        begin("abc", 0, "abc"),
        begin("def", 1, "def"),
        feed(1, 3, 0),
        close(1, 3),
        feed(0, 3, 0),
        close(0, 3),
        begin("xyz", 0, "xyz"),
        **SEVERAL,
    ),
    case(
        "to be copied from is no use of a slot",
        "causal",
        ask("abcd", 0, "abcd"),
        ask("abxy", 1, "xy"),
        ask("abpq", 0, "pq"),
        ask("abrs", 1, "rs"),
        **SEVERAL,
    ),
    case(
        "the slot that is copied into forgets what it held",
        "causal",
        ask("abcd", 0, "abcd"),
        ask("uvwxyz", 1, "uvwxyz"),
        ask("uvq", 0, "q"),
        holds(0, "uvq"),
        holds(1, "uvwxyz"),
        **SEVERAL,
    ),
    case(
        "the slot used longest ago, among those not in use",
        "causal",
        begin("abc", 0, "abc"),
        ask("def", 1, "def"),
        ask("ghi", 2, "ghi"),
        begin("xyz", 1, "xyz"),
        **THREE,
    ),
    case(
        "if it is the only one, it parts where it stands",
        "causal",
        ask("abcd", 0, "abcd"),
        ask("abx", 0, "x"),
        holds(0, "abx"),
        count=1,
        several_users=True,
    ),
    case(
        "a longer prefix elsewhere is better than a slot that is wholly matched",
        "causal",
        begin("ab", 0, "ab"),
        begin("abcd", 1, "abcd"),
        feed(0, 2, 0),
        feed(1, 4, 0),
        close(0, 2),
        close(1, 4),
        begin("abcq", 0, "q"),
        holds(0, "abc", left="q"),
        holds(1, "abcd"),
        **SEVERAL,
    ),
    case(
        "none is free: no slot, though one would match",
        "causal",
        begin("abc", 0, "abc"),
        feed(0, 3, 0),
        begin("xyz", 1, "xyz"),
        none_free("abcd"),
        close(0, 3),
        begin("abcd", 0, "d"),
        **SEVERAL,
    ),
    case(
        "both go on after a copy, and what they share stays shared",
        "causal",
        ask("abcd", 0, "abcd"),
        ask("abxy", 1, "xy"),
        ask("abcde", 0, "e"),
        ask("abxyz", 1, "z"),
        holds(0, "abcde"),
        holds(1, "abxyz"),
        **SEVERAL,
    ),
    case(
        "a pass that broke off does not touch what others share",
        "causal",
        ask("abcd", 0, "abcd"),
        begin("abxy", 1, "xy"),
        fail(1, 2, 2),
        close(1, 2),
        holds(1, "ab"),
        holds(0, "abcd"),
        **SEVERAL,
    ),
]

RESUMED = [
    case(
        "a window that has moved on past the parting: nothing is reused",
        "swa:2",  # before h the cache lets go of what lies before 7 - 2
        ask("abcdefgh", 0, "abcdefgh"),
        holds(0, "abcdefgh", ".....fgh"),
        begin("abcx", 0, "abcx"),
        holds(0, "", left="abcx"),
    ),
    case(
        "of an exact repeat one token is left: the window before it is there",
        "swa:2",
        ask("abcdefgh", 0, "abcdefgh"),
        begin("abcdefgh", 0, "h"),
    ),
    case(
        "two tokens back the window is not whole",
        "swa:2",
        ask("abcdefgh", 0, "abcdefgh"),
        begin("abcdefx", 0, "abcdefx"),
    ),
    case(
        "with more memory than the window it is",
        "swa-memory:2:4",  # before h goes what lies before 7 - 4
        ask("abcdefgh", 0, "abcdefgh"),
        holds(0, "abcdefgh", "...defgh"),
        begin("abcdex", 0, "x"),
        feed(0, 1, 5),
        close(0, 6),
        begin("abcdx", 0, "abcdx"),
    ),
    case(
        "a window that goes on needs nothing back",
        "swa:2",
        ask("abcdefgh", 0, "abcdefgh"),
        ask("abcdefghij", 0, "ij"),
    ),
    case(
        "a copy of a window that has moved on is worth nothing",
        "swa:2",
        ask("abcdefgh", 0, "abcdefgh"),
        begin("abcx", 1, "abcx"),
        holds(1, "", left="abcx"),
        holds(0, "abcdefgh", "....efgh"),  # two slots remember one token more
        **SEVERAL,
    ),
    case(
        "a copy of a window that is still there",
        "swa:2",
        ask("abcdefgh", 0, "abcdefgh"),
        begin("abcdefx", 1, "x"),
        holds(1, "abcdef", "....ef", left="x"),
        **SEVERAL,
    ),
    case(
        "a state goes on",
        "recurrent",
        ask("abc", 0, "abc"),
        begin("abcd", 0, "d"),
        holds(0, "abc", left="d"),
    ),
    case(
        "a state cannot be cut: nothing is reused",
        "recurrent",
        ask("abc", 0, "abc"),
        begin("abx", 0, "abx"),
        holds(0, "", left="abx"),
    ),
    case(
        "of an exact repeat all is left: a state does not go back by one",
        "recurrent",
        ask("abc", 0, "abc"),
        ask("abc", 0, "abc"),
    ),
    case(
        "a state goes back to a checkpoint",
        "recurrent:2",  # put aside after a, c and e
        ask("abcde", 0, "abcde"),
        begin("abcx", 0, "x"),
        holds(0, "abc", left="x"),
    ),
    case(
        "a state does not go back to between two checkpoints",
        "recurrent:2",
        ask("abcde", 0, "abcde"),
        begin("abx", 0, "abx"),
    ),
    case(
        "a copy of a whole state goes on",
        "recurrent",
        begin("abc", 0, "abc"),
        feed(0, 3, 0),
        begin("abcd", 1, "d"),
        feed(1, 1, 3),
        say(0, "x"),
        feed(0, 1, 3),
        holds(0, "abcx"),
        holds(1, "abcd"),
        **SEVERAL,
    ),
    case(
        "a copy of a part of a state is worth nothing",
        "recurrent",
        ask("abcd", 0, "abcd"),
        begin("abx", 1, "abx"),
        holds(1, "", left="abx"),
        holds(0, "abcd"),
        **SEVERAL,
    ),
    case(
        "a state that has read a pass that broke off is lost",
        "recurrent",
        begin("abcd", 0, "abcd"),
        feed(0, 2, 0),
        fail(0, 2, 2),
        close(0, 0),
        holds(0, ""),
        begin("abcd", 0, "abcd"),
    ),
    case(
        "a state that goes back to a checkpoint forgets a pass that broke off",
        "recurrent:2",
        begin("abcd", 0, "abcd"),
        feed(0, 2, 0),
        fail(0, 2, 2),
        close(0, 2),
        holds(0, "ab"),
    ),
]

FULL = (
    begin("abcdefgh", 0, "abcdefgh"),
    *[feed(0, 4, first) for first in (0, 4)],
)
EIGHT: dict[str, Any] = {"context": 8, "keep": 2}

LONG = [
    case(
        "the middle goes: half of what is not kept, and the rest moves up",
        "causal",  # 6 can go, 3 go: c, d, e
        *FULL,
        say(0, "i"),
        feed(0, 1, 5),
        holds(0, "abfghi"),
        **EIGHT,
    ),
    case(
        "nothing kept: the first half goes",
        "causal",
        *FULL,
        say(0, "i"),
        feed(0, 1, 4),
        holds(0, "efghi"),
        context=8,
    ),
    case(
        "half of an odd number is rounded down",
        "causal",  # 7 can go, 3 go: b, c, d
        *FULL,
        say(0, "i"),
        feed(0, 1, 5),
        holds(0, "aefghi"),
        context=8,
        keep=1,
    ),
    case(
        "what is free already need not go",
        "causal",  # 3 are to be free, 1 is: c, d go
        begin("abcdefg", 0, "abcdefg"),
        feed(0, 4, 0),
        feed(0, 3, 4),
        say(0, "hi"),
        feed(0, 2, 5),
        holds(0, "abefghi"),
        **EIGHT,
    ),
    case(
        "what just fits moves nothing",
        "causal",
        begin("abcdef", 0, "abcdef"),
        feed(0, 6, 0),
        say(0, "gh"),
        feed(0, 2, 6),
        holds(0, "abcdefgh"),
        **EIGHT,
    ),
    case(
        "a pass larger than the half: as many go as must",
        "causal",  # 5 are to be free: c, d, e, f, g go
        *FULL,
        say(0, "ijklm"),
        feed(0, 5, 3),
        holds(0, "abhijklm"),
        **EIGHT,
    ),
    case(
        "a pass as large as it may be: all goes but what is kept",
        "causal",
        *FULL,
        say(0, "ijklmn"),
        feed(0, 6, 2),
        holds(0, "abijklmn"),
        **EIGHT,
    ),
    case(
        "with room for one the one goes",
        "causal",
        begin("abcd", 0, "abcd"),
        feed(0, 1, 0),
        feed(0, 1, 1),
        feed(0, 1, 2),
        feed(0, 1, 2),
        holds(0, "abd"),
        context=3,
        keep=2,
    ),
    case(
        "a prompt longer than the context",
        "causal",
        begin("abcdefghij", 0, "abcdefghij"),
        feed(0, 6, 0),
        feed(0, 4, 4),  # 4 are to be free, 2 are: c, d go
        holds(0, "abefghij"),
        **EIGHT,
    ),
    case(
        "the middle goes again and again",
        "causal",
        *FULL,
        say(0, "ijkl"),
        feed(0, 3, 5),  # c, d, e
        holds(0, "abfghijk", left="l"),
        feed(0, 1, 5),  # f, g, h
        holds(0, "abijkl"),
        **EIGHT,
    ),
    case(
        "what is left without its middle is what the next request shares",
        "causal",
        *FULL,
        say(0, "i"),
        feed(0, 1, 5),
        close(0, 6),
        begin("abcdefghi", 0, "cdefghi"),
        close(0, 2),
        **EIGHT,
    ),
    case(
        "a request that has it without its middle shares it",
        "causal",
        *FULL,
        say(0, "i"),
        feed(0, 1, 5),
        close(0, 6),
        begin("abfgx", 0, "x"),
        **EIGHT,
    ),
    case(
        "what moves is shared: all that is left is computed again",
        "causal",
        ask("abcdefgh", 0, "abcdefgh"),
        begin("abcdefgx", 1, "x"),
        feed(1, 1, 7),
        say(1, "y"),
        feed(1, 1, 0),
        holds(1, "a", left="bfgxy"),
        feed(1, 5, 1),
        holds(1, "abfgxy"),
        holds(0, "abcdefgh"),
        **SEVERAL,
        **EIGHT,
    ),
    case(
        "what is shared and goes, or is kept, hinders nothing",
        "causal",
        ask("abcd", 0, "abcd"),
        begin("abcxyzuv", 1, "xyzuv"),
        feed(1, 5, 3),
        say(1, "w"),
        feed(1, 1, 5),  # c, x, y go
        holds(1, "abzuvw"),
        holds(0, "abcd"),
        **SEVERAL,
        **EIGHT,
    ),
    case(
        "keys that cannot be turned: all that is left is computed again",
        "no-shift",
        *FULL,
        say(0, "ij"),
        feed(0, 2, 0),
        holds(0, "ab", left="fghij"),
        feed(0, 5, 2),
        holds(0, "abfghij"),
        **EIGHT,
    ),
    case(
        "keys that cannot be turned do not have to be if nothing follows",
        "no-shift",
        *FULL,
        say(0, "ijklmn"),
        feed(0, 6, 2),
        holds(0, "abijklmn"),
        **EIGHT,
    ),
    case(
        "a state has no middle: all that is left is computed again",
        "recurrent",
        *FULL,
        say(0, "i"),
        feed(0, 1, 0),
        holds(0, "a", left="bfghi"),
        feed(0, 5, 1),
        holds(0, "abfghi"),
        **EIGHT,
    ),
    case(
        "over-long in one slot does not touch another",
        "causal",
        *FULL,
        begin("stuvwxyz", 1, "stuvwxyz"),
        feed(1, 6, 0),
        feed(1, 2, 6),
        say(0, "i"),
        feed(0, 1, 5),
        holds(0, "abfghi"),
        holds(1, "stuvwxyz"),
        **SEVERAL,
        **EIGHT,
    ),
    case(
        "the middle is gone though the pass broke off",
        "causal",
        *FULL,
        say(0, "i"),
        fail(0, 1, 5),
        close(0, 5),
        holds(0, "abfgh"),
        **EIGHT,
    ),
]


@each(ONE + SINGLE + USERS + RESUMED + LONG)
def test_slots(one: Case) -> None:
    check_steps(one.name, make(one.layers, **one.options), one.steps)


@pytest.mark.parametrize(("keep", "context"), [(-1, 8), (8, 8), (9, 8), (0, 0)])
def test_what_is_kept_leaves_room(keep: int, context: int) -> None:
    with pytest.raises(ValueError, match="keep"):
        Slots(CausalCache(1, 8, 8), 1, context, keep)


Call = Callable[[Slots], object]

WRONG: dict[str, Call] = {
    "no token": lambda slots: slots.begin([]),
    "a word": lambda slots: slots.begin(["a"]),  # type: ignore[list-item]
    "a number that is not whole": lambda slots: slots.begin([1.0]),  # type: ignore[list-item]
    "true": lambda slots: slots.begin([97, True]),
    "to say a word": lambda slots: slots.extend(0, ["b"]),  # type: ignore[list-item]
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


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_changes_nothing(call: Call) -> None:
    slots = make("causal", 2)
    check_steps("", slots, [ask("abc", 0, "abc"), begin("abxy", 0, "xy")])
    with pytest.raises(ValueError, match=r"empty|integer|no request|cannot be computed"):
        call(slots)
    steps = [holds(0, "ab", left="xy"), feed(0, 2, 2), close(0, 4), holds(1, "")]
    check_steps("", slots, [*steps, begin("abxyz", 0, "z")])


def test_a_pass_has_at_most_what_is_not_kept() -> None:
    slots = make("causal", **EIGHT)
    check_steps("", slots, [begin("abcdefgh", 0, "abcdefgh")])
    with pytest.raises(ValueError, match="7 tokens cannot be computed"):
        slots.reserve(0, 7)
    check_steps("", slots, [feed(0, 6, 0), feed(0, 2, 6), holds(0, "abcdefgh")])
