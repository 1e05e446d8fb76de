"""One conversation kept between requests, by cases that were worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prefix_book import (
    Case,
    ask,
    begin,
    case,
    check_steps,
    close,
    each,
    feed,
    free,
    get_tags,
    make_layers,
    read,
    say,
    spell,
)

from lockstep.reference.session import Session

COMMON = [
    case("an empty store reuses nothing", "kv", begin("abc", "abc")),
    case(
        "of an exact repeat one token is left", "kv", ask("abc", "abc"), ask("abc", "c")
    ),
    case(
        "a request of one token is all that is left", "kv", ask("a", "a"), ask("a", "a")
    ),
    case(
        "of a shorter prompt one token is left", "kv", ask("abcd", "abcd"), ask("ab", "b")
    ),
    case(
        "after a shorter prompt the longer one is not there any more",
        "kv",
        ask("abcd", "abcd"),
        ask("ab", "b"),
        begin("abcd", "cd"),
    ),
    case(
        "of a longer prompt what is new is left",
        "kv",
        ask("abc", "abc"),
        ask("abcde", "de"),
        ask("abcdef", "f"),
    ),
    case("parting at the first token", "kv", ask("abcd", "abcd"), ask("xbcd", "xbcd")),
    case("parting at the second token", "kv", ask("abcd", "abcd"), ask("axcd", "xcd")),
    case(
        "parting at the token before the last", "kv", ask("abcd", "abcd"), ask("abx", "x")
    ),
    case("parting at the last token", "kv", ask("abcd", "abcd"), ask("abcxy", "xy")),
    case(
        "what agrees again behind the parting counts for nothing",
        "kv",
        ask("aaaa", "aaaa"),
        ask("aabaa", "baa"),
        begin("aaaa", "aa"),
    ),
    case(
        "only the last conversation is kept",
        "kv",
        ask("abc", "abc"),
        ask("xyz", "xyz"),
        begin("abc", "abc"),
    ),
    case(
        "what was generated is kept as well",
        "kv state",
        ask("ab", "ab", said="cd"),
        ask("abcde", "e"),
    ),
    case(
        "what was generated and not computed is not kept",
        "kv",
        begin("ab", "ab"),
        feed(2, [2]),
        say("c"),
        close(2),
        begin("abcd", "cd"),
    ),
    case(
        "a request closed before its end keeps what was computed",
        "kv state",
        begin("abcd", "abcd"),
        feed(1, [1, 1]),
        feed(1, [2, 2]),
        close(2),
        begin("abcd", "cd"),
    ),
    case(
        "what is freed is forgotten", "kv", ask("abc", "abc"), free(), ask("abc", "abc")
    ),
]

KINDS = [
    case(
        "a window below its size goes back",
        "rotating:4",
        ask("abc", "abc"),
        begin("abx", "x"),
    ),
    case(
        "a window just full goes back: nothing has slid out",
        "rotating:4",
        ask("abcd", "abcd"),
        begin("ax", "x"),
    ),
    case(
        "a window one past its size does not go back",
        "rotating:4",
        ask("abcde", "abcde"),
        begin("abcdx", "abcdx"),
    ),
    case(
        "of an exact repeat all is left if the window has moved on",
        "rotating:4",
        ask("abcde", "abcde"),
        ask("abcde", "abcde"),
    ),
    case(
        "of an exact repeat of a full window one token is left",
        "rotating:4",
        ask("abcd", "abcd"),
        ask("abcd", "d"),
    ),
    case(
        "a window that has moved on goes forward, however far",
        "rotating:4",
        ask("abcdefghi", "abcdefghi"),
        ask("abcdefghij", "j"),
        begin("abcdefghijkl", "kl"),
    ),
    case(
        "a window that went back and moved on again does not go back",
        "rotating:3",
        ask("abc", "abc"),
        ask("abxy", "xy"),
        begin("abq", "abq"),
    ),
    case(
        "a window of one token goes back only to nothing",
        "rotating:1",
        ask("a", "a"),
        ask("ab", "b"),
        begin("ac", "ac"),
    ),
    case("a state goes forward", "state", ask("abc", "abc"), begin("abcd", "d")),
    case(
        "a state does not go back by one", "state", ask("abc", "abc"), ask("abc", "abc")
    ),
    case("a state does not go back", "state", ask("abc", "abc"), ask("ab", "ab")),
    case(
        "a state that leaves starts anew", "state", ask("abc", "abc"), ask("abx", "abx")
    ),
    case(
        "a layer without a cache is not asked",
        "- kv -",
        ask("abc", "abc"),
        ask("ab", "b"),
    ),
    case(
        "without any cache nothing is kept",
        "- -",
        begin("abc", "abc"),
        feed(3, []),
        close(0),
        begin("abcd", "abcd"),
    ),
    case(
        "one layer that cannot go back takes all with it",
        "kv state",
        ask("abc", "abc"),
        begin("abx", "abx"),
        feed(3, [3, 3]),
        close(3),
        begin("abxy", "y"),
    ),
    case(
        "the last layer that cannot go back takes all with it, too",
        "kv rotating:4 rotating:3",
        ask("abcd", "abcd"),
        begin("abx", "abx"),
    ),
    case(
        "all layers go back together while no window has moved on",
        "kv rotating:4 - rotating:3",
        ask("abc", "abc"),
        begin("abx", "x"),
    ),
]

BROKEN = [
    case(
        "a pass that broke off: what every layer has read is kept",
        "kv kv",
        begin("abcd", "abcd"),
        feed(2, [2, 2]),
        feed(2, [4, 2], layers=1),
        close(2),
        begin("abcd", "cd"),
    ),
    case(
        "a pass that broke off counts by its slowest layer, wherever it stands",
        "kv - kv kv",
        begin("abcd", "abcd"),
        feed(1, [1, 1, 1]),
        feed(3, [4, 4, 1], layers=3),
        close(1),
        begin("abcd", "bcd"),
    ),
    case(
        "a layer without a cache counts as one that a pass went through",
        "kv - kv",
        begin("ab", "ab"),
        feed(2, [2, 0], layers=2),
        close(0),
        begin("ab", "ab"),
    ),
    case(
        "a layer that ran ahead goes back, though the request goes forward",
        "kv state",
        begin("abcd", "abcd"),
        feed(2, [2, 2]),
        feed(2, [4, 2], layers=1),
        close(2),
        begin("abxy", "xy"),
    ),
    case(
        "a state that ran ahead takes all with it",
        "state kv",
        begin("abcd", "abcd"),
        feed(2, [2, 2]),
        feed(2, [4, 2], layers=1),
        close(2),
        begin("abcd", "abcd"),
    ),
    case(
        "a window that ran ahead up to its size goes back",
        "rotating:3 state",
        begin("abc", "abc"),
        feed(2, [2, 2]),
        feed(1, [3, 2], layers=1),
        close(2),
        begin("abc", "c"),
    ),
    case(
        "a window that ran ahead past its size takes all with it",
        "rotating:3 state",
        begin("abcd", "abcd"),
        feed(2, [2, 2]),
        feed(2, [4, 2], layers=1),
        close(2),
        begin("abcd", "abcd"),
    ),
    case(
        "a first pass that broke off leaves nothing",
        "kv state",
        begin("abc", "abc"),
        feed(3, [3, 0], layers=1),
        close(0),
        begin("abc", "abc"),
        feed(3, [3, 3]),
        close(3),
    ),
    case(
        "a pass that broke off before any layer changes nothing",
        "kv state",
        ask("ab", "ab"),
        begin("abcd", "cd"),
        feed(2, [2, 2], layers=0),
        close(2),
        begin("abx", "x"),
    ),
    case(
        "a pass that broke off after a reuse",
        "kv kv",
        ask("abcd", "abcd"),
        begin("abxy", "xy"),
        feed(2, [4, 2], layers=1),
        close(2),
        begin("abxy", "xy"),
    ),
    case(
        "cancelled with nothing computed, what was reused stays",
        "kv",
        ask("abcd", "abcd"),
        begin("abx", "x"),
        close(2),
        begin("abcd", "cd"),
    ),
    case(
        "cancelled with nothing computed and nothing reused, nothing stays",
        "kv",
        ask("abcd", "abcd"),
        begin("xy", "xy"),
        close(0),
        begin("abcd", "abcd"),
    ),
    case(
        "cancelled with nothing computed, a state that stood still stays",
        "state",
        ask("abc", "abc"),
        begin("abcd", "d"),
        close(3),
        begin("abcx", "x"),
    ),
]

REFUSING = [
    case(
        "a layer that refuses to go back takes all with it",
        "kv kv",
        ask("abcd", "abcd"),
        begin("abx", "abx", refusing=[1]),
    ),
    case(
        "a layer that refuses and need not move does no harm",
        "kv kv",
        ask("abc", "abc"),
        begin("abcd", "d", refusing=[0, 1]),
    ),
    case(
        "only the layers that ran ahead have to move",
        "kv kv",
        begin("abcd", "abcd"),
        feed(2, [2, 2]),
        feed(2, [4, 2], layers=1),
        close(2),
        begin("abcd", "cd", refusing=[1]),
        feed(2, [4, 2], layers=1),
        close(2),
        begin("abcd", "abcd", refusing=[0]),
    ),
    case(
        "a layer refuses once",
        "kv",
        ask("abcd", "abcd"),
        begin("abx", "abx", refusing=[0]),
        feed(3, [3]),
        close(3),
        begin("abq", "q"),
    ),
    case(
        "a layer without a cache has nothing to refuse",
        "- kv",
        ask("abcd", "abcd"),
        begin("abx", "x", refusing=[0]),
    ),
    case(
        "to nothing every layer goes back",
        "kv state",
        ask("abc", "abc"),
        begin("xyz", "xyz", refusing=[0, 1]),
    ),
]


@each(COMMON + KINDS + BROKEN + REFUSING)
def test_session(one: Case) -> None:
    check_steps(one.name, Session(make_layers(one.layers), get_tags), one.steps)


def make_open() -> Session:
    """It has read abc, and ab of the open request abxy."""
    session = Session(make_layers("kv"), get_tags)
    check_steps("", session, [ask("abc", "abc"), begin("abxy", "xy")])
    return session


WRONG_TOKENS = {
    "no token": [],
    "a word": ["a"],
    "a number that is not whole": [97, 98.0],
    "none": [97, None],
    "true": [97, True],
    "false": [False],
}


@pytest.mark.parametrize("tokens", WRONG_TOKENS.values(), ids=WRONG_TOKENS.keys())
def test_a_request_that_cannot_begin_changes_nothing(tokens: list[int]) -> None:
    session = Session(make_layers("kv"), get_tags)
    check_steps("", session, [ask("abc", "abc")])
    with pytest.raises(ValueError, match=r"empty|not an integer"):
        session.begin(tokens)
    check_steps("", session, [begin("abcd", "d")])


WRONG_WHILE_OPEN: dict[str, Callable[[Session], object]] = {
    "begin": lambda session: session.begin(spell("abc")),
    "begin with nothing": lambda session: session.begin([]),
    "free": lambda session: session.free(),
    "say a word": lambda session: session.extend([97, "b"]),  # type: ignore[list-item]
    "say true": lambda session: session.extend([True]),
}


@pytest.mark.parametrize("call", WRONG_WHILE_OPEN.values(), ids=WRONG_WHILE_OPEN.keys())
def test_what_is_wrong_while_a_request_is_open_changes_nothing(
    call: Callable[[Session], object],
) -> None:
    session = make_open()
    with pytest.raises(ValueError, match=r"open|not an integer"):
        call(session)
    assert read(session.get_request()) == "abxy"
    check_steps("", session, [feed(2, [4]), close(4), begin("abxyz", "z")])


WRONG_WHILE_CLOSED: dict[str, Callable[[Session], object]] = {
    "close": lambda session: session.close(),
    "feed": lambda session: session.feed(1),
    "say": lambda session: session.extend([97]),
}


@pytest.mark.parametrize(
    "call", WRONG_WHILE_CLOSED.values(), ids=WRONG_WHILE_CLOSED.keys()
)
def test_what_is_wrong_without_a_request_changes_nothing(
    call: Callable[[Session], object],
) -> None:
    session = make_open()
    session.close()
    with pytest.raises(ValueError, match="no request is open"):
        call(session)
    check_steps("", session, [begin("abz", "z")])
