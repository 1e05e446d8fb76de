"""Several users over one cache of many sequences: who gets which slot, and what of it is
reused, by cases that were worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prefix_book import (
    EIGHT,
    SEVERAL,
    THREE,
    Case,
    case,
    check_steps,
    each,
    fail,
    holds,
    make_slots,
    none_free,
)
from prefix_book import slot_ask as ask
from prefix_book import slot_begin as begin
from prefix_book import slot_close as close
from prefix_book import slot_feed as feed
from prefix_book import slot_say as say

from lockstep.reference.causal import CausalCache
from lockstep.reference.slots import Slots

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
        ask("xyz", 1, "xyz"),
        ask("abq", 2, "q"),
        ask("mno", 0, "mno"),
        **THREE,
    ),
    case(
        "an empty slot is not wholly matched: the one used longest ago is taken",
        "causal",
        begin("abc", 0, "abc"),
        close(0, 0),
        begin("xyz", 1, "xyz"),
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


@each(ONE + SINGLE + USERS)
def test_slots(one: Case) -> None:
    check_steps(one.name, make_slots(one.layers, **one.options), one.steps)


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
    slots = make_slots("causal", 2)
    check_steps("", slots, [ask("abc", 0, "abc"), begin("abxy", 0, "xy")])
    with pytest.raises(ValueError, match=r"empty|integer|no request|cannot be computed"):
        call(slots)
    steps = [holds(0, "ab", left="xy"), feed(0, 2, 2), close(0, 4), holds(1, "")]
    check_steps("", slots, [*steps, begin("abxyz", 0, "z")])


def test_a_pass_has_at_most_what_is_not_kept() -> None:
    slots = make_slots("causal", **EIGHT)
    check_steps("", slots, [begin("abcdefgh", 0, "abcdefgh")])
    with pytest.raises(ValueError, match="7 tokens cannot be computed"):
        slots.reserve(0, 7)
    check_steps("", slots, [feed(0, 6, 0), feed(0, 2, 6), holds(0, "abcdefgh")])
