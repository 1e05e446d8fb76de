"""Many conversations: what of them is stored, and what a request reuses of it, by cases
that were worked out by hand."""

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
    count,
    each,
    feed,
    free,
    get_tags,
    make_layers,
    points,
    read,
    say,
    spell,
)

from lockstep.reference.trie import Trie

CUT = [
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
        "of a longer prompt what is new is left",
        "kv",
        ask("abc", "abc"),
        ask("abcde", "de"),
        points("abc abcde"),
        count(5, 5),
    ),
    case(
        "parting at the first token leaves two paths",
        "kv",
        ask("abc", "abc"),
        ask("xbc", "xbc"),
        points("abc xbc"),
        count(6, 6),
    ),
    case(
        "parting at the second token",
        "kv",
        ask("abc", "abc"),
        ask("axc", "xc"),
        points("a abc axc"),
        count(5, 5),
    ),
    case(
        "parting at the last token",
        "kv",
        ask("abc", "abc"),
        ask("abx", "x"),
        points("ab abc abx"),
        count(4, 4),
    ),
    case(
        "what agrees again behind the parting is not shared",
        "kv",
        ask("abcd", "abcd"),
        ask("axcd", "xcd"),
        count(7, 7),
    ),
    case(
        "an earlier conversation is still there",
        "kv",
        ask("abc", "abc"),
        ask("xyz", "xyz"),
        begin("abcd", "d"),
    ),
    case(
        "of an exact repeat of an earlier conversation one token is left",
        "kv",
        ask("abc", "abc"),
        ask("xyz", "xyz"),
        ask("abc", "c"),
        points("abc xyz"),
    ),
    case(
        "full attention is cut anywhere, also on an edge that is not live",
        "kv",
        ask("abcd", "abcd"),
        ask("xyz", "xyz"),
        ask("abq", "q"),
        points("ab abcd abq xyz"),
        count(8, 8),
    ),
    case(
        "after a shorter prompt the longer one is still there",
        "kv",
        ask("abcd", "abcd"),
        ask("ab", "b"),
        points("ab abcd"),
        count(4, 4),
        begin("abcde", "e"),
    ),
    case(
        "siblings with one first token: the longer match is taken",
        "kv",
        ask("abc", "abc"),
        ask("abd", "d"),
        ask("abde", "e"),
        ask("abce", "e"),
        points("ab abc abd abde abce"),
        count(6, 6),
    ),
    case(
        "three siblings part at one point",
        "kv",
        ask("abc", "abc"),
        ask("abd", "d"),
        ask("abe", "e"),
        points("ab abc abd abe"),
        count(5, 5),
    ),
    case(
        "paths part at two places of one path",
        "kv",
        ask("abcd", "abcd"),
        ask("abcx", "x"),
        ask("axy", "xy"),
        points("a abc abcd abcx axy"),
        count(7, 7),
    ),
    case(
        "a path that is the beginning of another one",
        "kv",
        ask("a", "a"),
        ask("ab", "b"),
        ask("abc", "c"),
        points("a ab abc"),
        count(3, 3),
        ask("ax", "x"),
        begin("abcd", "d"),
    ),
    case("what is freed is forgotten", "kv", ask("ab", "ab"), free(), points("")),
    case(
        "after all was freed the store fills again",
        "kv state",
        ask("abc", "abc"),
        free(),
        ask("abcd", "abcd"),
        points("abcd:1"),
        count(4, 104),
    ),
]

CAPTURED = [
    case(
        "a state goes on from where a request ended",
        "state",
        ask("abc", "abc"),
        ask("abcd", "d"),
        points("abc:0 abcd:0"),
        count(4, 200),
    ),
    case(
        "a state goes on from where an earlier request ended",
        "state",
        ask("abc", "abc"),
        ask("xyz", "xyz"),
        ask("abcd", "d"),
        points("abc:0 abcd:0 xyz:0"),
    ),
    case(
        "of an exact repeat all is left: a state has no place one token before",
        "state",
        ask("abc", "abc"),
        ask("abc", "abc"),
        points("abc:0"),
        count(3, 100),
    ),
    case(
        "a state is not cut inside an edge", "state", ask("abcd", "abcd"), ask("ab", "ab")
    ),
    case(
        "where a request left a stored path a state is captured",
        "state",
        ask("abcd", "abcd"),
        ask("abx", "abx"),
        points("ab:0 abcd:0 abx:0"),
        count(5, 300),
        ask("abq", "q"),
    ),
    case(
        "a request that ended inside a stored edge, and one that leaves it further on",
        "kv state",
        ask("abcd", "abcd"),
        begin("abx", "abx"),
        feed(1, [1, 1]),
        close(1),
        points("a:1 abcd:1"),
        ask("abx", "bx"),
        points("a:1 ab:1 abcd:1 abx:1"),
    ),
    case(
        "where generated tokens left a stored path a state is captured",
        "state",
        ask("abcd", "abcd"),
        ask("ab", "ab", said="x"),
        points("ab:0 abcd:0 abx:0"),
        begin("aby", "y"),
    ),
    case(
        "generated tokens may follow a stored path before they leave it",
        "state",
        ask("abcde", "abcde"),
        ask("ab", "ab", said="cx"),
        points("abc:0 abcde:0 abcx:0"),
    ),
    case(
        "generated tokens that follow a stored path to its end leave nothing",
        "state",
        ask("abcd", "abcd"),
        ask("ab", "ab", said="cd"),
        points("abcd:0"),
    ),
    case(
        "generated tokens that follow a stored path and end inside it",
        "state",
        ask("abcde", "abcde"),
        ask("ab", "ab", said="cd"),
        points("abcd:0 abcde:0"),
    ),
    case(
        "generated tokens that go on behind a stored path leave it at its end",
        "state",
        ask("abc", "abc"),
        ask("ab", "ab", said="cd"),
        points("abc:0 abcd:0"),
    ),
    case(
        "generated several at once",
        "state",
        ask("abcde", "abcde"),
        begin("ab", "ab"),
        feed(2, [2]),
        say("cx"),
        feed(2, [4]),
        close(4),
        points("abc:0 abcde:0 abcx:0"),
    ),
    case(
        "a request that has left a path does not leave it again",
        "state",
        ask("abcd", "abcd"),
        ask("abx", "abx", said="yz"),
        points("ab:0 abcd:0 abxyz:0"),
    ),
    case(
        "a path that was left, but never reached, is not captured",
        "state",
        ask("abcd", "abcd"),
        begin("abcx", "abcx"),
        feed(2, [2]),
        close(2),
        points("ab:0 abcd:0"),
        count(4, 200),
    ),
    case(
        "siblings with one first token, captured",
        "state",
        ask("abc", "abc"),
        ask("abd", "abd"),
        ask("abde", "e"),
        points("ab:0 abc:0 abd:0 abde:0"),
    ),
    case(
        "a checkpoint can be come back to",
        "state",
        ask("abcd", "abcd", checkpoints=[2]),
        points("ab:0 abcd:0"),
        count(4, 200),
        begin("abx", "x"),
    ),
    case(
        "a checkpoint of an earlier conversation can be come back to",
        "state",
        ask("abcd", "abcd", checkpoints=[2]),
        ask("xyz", "xyz"),
        begin("ab", "ab"),
        close(0),
        begin("abc", "c"),
    ),
    case(
        "several checkpoints, in any order, also at the end",
        "state",
        ask("abcd", "abcd", checkpoints=[3, 1, 4]),
        points("a:0 abc:0 abcd:0"),
        begin("abc", "bc"),
    ),
    case(
        "a checkpoint among what is generated",
        "state",
        ask("ab", "ab", said="cd", checkpoints=[3]),
        points("abc:0 abcd:0"),
    ),
    case(
        "a checkpoint behind the end is never reached",
        "state",
        ask("ab", "ab", checkpoints=[3, 9]),
        points("ab:0"),
    ),
    case(
        "a checkpoint behind where a request was cancelled is never reached",
        "state",
        begin("abcd", "abcd", checkpoints=[1, 3]),
        feed(2, [2]),
        close(2),
        points("a:0 ab:0"),
    ),
    case(
        "a checkpoint before what is reused is not passed again",
        "state",
        ask("abcd", "abcd"),
        ask("abcdef", "ef", checkpoints=[2, 5]),
        points("abcd:0 abcde:0 abcdef:0"),
    ),
    case(
        "checkpoints are of one request",
        "state",
        ask("abcd", "abcd", checkpoints=[2]),
        ask("xyz", "xyz"),
        points("ab:0 abcd:0 xyz:0"),
    ),
    case(
        "captures at multiples of the interval",
        "state",
        ask("abcde", "abcde"),
        points("ab:0 abcd:0 abcde:0"),
        count(5, 300),
        ask("abcx", "cx"),
        points("ab:0 abc:0 abcd:0 abcde:0 abcx:0"),
        interval=2,
    ),
    case(
        "multiples of the interval before what is reused are not passed again",
        "state",
        ask("abc", "abc"),
        ask("abcdefgh", "defgh"),
        points("abc:0 abcdef:0 abcdefgh:0"),
        interval=3,
    ),
    case(
        "multiples of the interval count from the beginning of the conversation",
        "state",
        ask("ab", "ab"),
        ask("abcdefg", "cdefg"),
        points("ab:0 abc:0 abcdef:0 abcdefg:0"),
        interval=3,
    ),
    case(
        "an interval does not store full attention twice",
        "kv",
        ask("abcde", "abcde"),
        count(5, 5),
        interval=2,
    ),
]

WINDOWS = [
    case(
        "a window that has not moved on goes back on the live path",
        "rotating:4",
        ask("abcd", "abcd"),
        begin("abx", "x"),
    ),
    case(
        "where a window went back to leave a stored path it is captured",
        "rotating:4",
        ask("abcd", "abcd"),
        ask("abx", "x"),
        points("ab:0 abcd:0 abx:0"),
        ask("pq", "pq"),
        begin("aby", "y"),
    ),
    case(
        "a window that has moved on does not",
        "rotating:4",
        ask("abcde", "abcde"),
        begin("abx", "abx"),
    ),
    case(
        "of an exact repeat of a full window one token is left",
        "rotating:4",
        ask("abcd", "abcd"),
        ask("abcd", "d"),
        points("abcd:0"),
    ),
    case(
        "of an exact repeat all is left if the window has moved on",
        "rotating:4",
        ask("abcde", "abcde"),
        ask("abcde", "abcde"),
    ),
    case(
        "a window that has moved on is there again where it was captured",
        "rotating:3",
        ask("abcdef", "abcdef"),
        ask("xyz", "xyz"),
        begin("abcdefg", "g"),
        feed(1, [7]),
        close(7),
        begin("abcdefgh", "h"),
    ),
    case(
        "off the live path a window is there only where it was captured",
        "rotating:4",
        ask("abc", "abc"),
        ask("xyz", "xyz"),
        begin("abq", "abq"),
    ),
    case(
        "a window that came back from a capture goes back further while it can",
        "rotating:4",
        ask("abc", "abc"),
        ask("xyz", "xyz"),
        begin("abcd", "d"),
        close(3),
        begin("aq", "q"),
    ),
    case(
        "of a window only what it holds is stored, all of it at each capture",
        "rotating:3",
        ask("ab", "ab"),
        count(2, 20),
        ask("abcde", "cde"),
        points("ab:0 abcde:0"),
        count(5, 50),
    ),
    case(
        "a window just full is stored whole",
        "rotating:3",
        ask("abc", "abc"),
        ask("abcd", "d"),
        count(4, 60),
    ),
]

MIXED = [
    case(
        "the deepest place that all layers reach",
        "kv state",
        ask("abcd", "abcd", checkpoints=[2]),
        ask("xyz", "xyz"),
        begin("abcq", "cq"),
    ),
    case(
        "the deepest place may be nothing",
        "kv state",
        ask("abcd", "abcd"),
        ask("abcq", "abcq"),
    ),
    case(
        "a window could go back, but the state beside it cannot",
        "rotating:4 state",
        ask("abcd", "abcd", checkpoints=[1]),
        begin("abc", "bc"),
    ),
    case(
        "bytes of full attention, a window and a state",
        "kv rotating:2 state",
        ask("abc", "abc"),
        count(3, 3 + 20 + 100),
        ask("abd", "abd"),
        points("ab:12 abc:12 abd:12"),
        count(4, (2 + 20 + 100) + (1 + 20 + 100) + (1 + 20 + 100)),
    ),
    case(
        "a layer without a cache is not asked",
        "- kv - state",
        ask("abc", "abc"),
        ask("abcd", "d"),
        points("abc:3 abcd:3"),
        count(4, 204),
    ),
    case(
        "without any cache nothing is stored",
        "-",
        begin("abc", "abc"),
        feed(3, []),
        close(0),
        points(""),
        count(0, 0),
        begin("abcd", "abcd"),
    ),
]

BROKEN = [
    case(
        "a pass that broke off: what every layer has read is stored",
        "kv kv",
        begin("abcd", "abcd"),
        feed(2, [2, 2]),
        feed(2, [4, 2], layers=1),
        close(2),
        points("ab"),
        count(2, 4),
        begin("abcd", "cd"),
    ),
    case(
        "full attention that ran ahead is cut, the state behind it goes on",
        "kv state",
        begin("abcd", "abcd"),
        feed(2, [2, 2]),
        feed(2, [4, 2], layers=1),
        close(2),
        points("ab:1"),
        count(2, 102),
        begin("abcd", "cd"),
    ),
    case(
        "a state that ran ahead is not captured where the others stand",
        "state state",
        begin("abcd", "abcd"),
        feed(2, [2, 2]),
        feed(2, [4, 2], layers=1),
        close(2),
        points("ab:1"),
        count(2, 100),
        begin("abcd", "abcd"),
    ),
    case(
        "a state that ran ahead was captured at a checkpoint as it came by",
        "state state",
        begin("abcd", "abcd", checkpoints=[1, 2]),
        feed(2, [2, 2]),
        feed(2, [4, 2], layers=1),
        close(2),
        points("a:01 ab:01"),
        begin("abx", "x"),
    ),
    case(
        "a checkpoint that only some layers reached is none",
        "state kv",
        begin("abcd", "abcd", checkpoints=[3]),
        feed(2, [2, 2]),
        feed(2, [4, 2], layers=1),
        close(2),
        points("ab"),
        begin("abcd", "abcd"),
    ),
    case(
        "a first pass that broke off stores nothing",
        "kv state",
        ask("xyz", "xyz"),
        begin("abc", "abc"),
        feed(3, [3, 0], layers=1),
        close(0),
        points("xyz:1"),
        begin("xyzw", "w"),
    ),
    case(
        "a pass that broke off behind a reuse",
        "kv kv",
        ask("abcd", "abcd"),
        begin("abxy", "xy"),
        feed(2, [4, 2], layers=1),
        close(2),
        points("ab abcd"),
        count(4, 8),
        begin("abcdx", "x"),
    ),
    case(
        "a window that ran ahead up to its size goes back on the live path",
        "rotating:3 kv",
        begin("abc", "abc"),
        feed(2, [2, 2]),
        feed(1, [3, 2], layers=1),
        close(2),
        begin("abx", "x"),
    ),
    case(
        "a window that ran ahead past its size is lost",
        "rotating:3 kv",
        begin("abcd", "abcd"),
        feed(2, [2, 2]),
        feed(2, [4, 2], layers=1),
        close(2),
        begin("abx", "abx"),
    ),
    case(
        "cancelled with nothing computed, what was reused is a request that ended there",
        "kv",
        ask("abcd", "abcd"),
        begin("abx", "x"),
        close(2),
        points("ab abcd"),
        count(4, 4),
        begin("abcde", "e"),
    ),
    case(
        "cancelled with nothing computed and nothing reused, all stays as it was",
        "kv state",
        ask("abc", "abc"),
        begin("xyz", "xyz"),
        close(0),
        points("abc:1"),
        begin("abcd", "d"),
    ),
    case(
        "to cancel is to close: what was computed is stored",
        "state",
        begin("abcd", "abcd"),
        feed(3, [3]),
        close(3),
        points("abc:0"),
        begin("abcd", "d"),
    ),
]

REFUSING = [
    case(
        "a layer that refuses to go back: nothing is reused",
        "kv kv",
        ask("abcd", "abcd"),
        begin("abx", "abx", refusing=[1]),
    ),
    case(
        "a layer that refuses and need not move does no harm",
        "kv state",
        ask("abc", "abc"),
        begin("abcd", "d", refusing=[0, 1]),
    ),
    case(
        "a layer has to move from another conversation, though as far along",
        "kv",
        ask("abc", "abc"),
        ask("xyz", "xyz"),
        begin("abcd", "abcd", refusing=[0]),
    ),
    case(
        "what was refused is stored all the same",
        "kv",
        ask("abcd", "abcd"),
        begin("abx", "abx", refusing=[0]),
        close(0),
        begin("abx", "x"),
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


@each(CUT + CAPTURED + WINDOWS + MIXED + BROKEN + REFUSING)
def test_trie(one: Case) -> None:
    trie = Trie(make_layers(one.layers), get_tags, **one.options)
    check_steps(one.name, trie, one.steps)


def make_open() -> Trie:
    """It has stored abc, and reused ab of the open request abxy."""
    trie = Trie(make_layers("kv"), get_tags)
    check_steps("", trie, [ask("abc", "abc"), begin("abxy", "xy")])
    return trie


Call = Callable[[Trie], object]

WRONG: dict[str, Call] = {
    "no token": lambda trie: trie.begin([]),
    "a word": lambda trie: trie.begin(["a"]),  # type: ignore[list-item]
    "a number that is not whole": lambda trie: trie.begin([1.0]),  # type: ignore[list-item]
    "true": lambda trie: trie.begin([97, True]),
    "a checkpoint before the first token": lambda trie: trie.begin([97], [0]),
    "a negative checkpoint": lambda trie: trie.begin([97], [1, -1]),
    "a negative limit": lambda trie: trie.set_limit(-1),
    "close": lambda trie: trie.close(),
    "feed": lambda trie: trie.feed(1),
    "say": lambda trie: trie.extend([97]),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_between_requests_changes_nothing(call: Call) -> None:
    trie = make_open()
    trie.close()
    with pytest.raises(ValueError, match=r"empty|integer|checkpoint|limit|no request"):
        call(trie)
    assert trie.limit is None
    steps = [points("ab abc"), begin("abxy", "xy"), feed(2, [4]), close(4)]
    check_steps("", trie, [*steps, points("ab abc abxy")])


WRONG_WHILE_OPEN: dict[str, Call] = {
    "begin": lambda trie: trie.begin(spell("abc")),
    "begin with nothing": lambda trie: trie.begin([]),
    "free": lambda trie: trie.free(),
    "say a word": lambda trie: trie.extend([97, "b"]),  # type: ignore[list-item]
    "say false": lambda trie: trie.extend([False]),
    "a negative limit": lambda trie: trie.set_limit(-5),
}


@pytest.mark.parametrize("call", WRONG_WHILE_OPEN.values(), ids=WRONG_WHILE_OPEN.keys())
def test_what_is_wrong_while_a_request_is_open_changes_nothing(call: Call) -> None:
    trie = make_open()
    with pytest.raises(ValueError, match=r"open|integer|limit"):
        call(trie)
    assert read(trie.get_request()) == "abxy"
    assert trie.limit is None
    check_steps("", trie, [feed(2, [4]), close(4), points("ab abc abxy")])
