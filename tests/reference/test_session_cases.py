"""One conversation kept between requests, by cases that were worked out by hand; most of
them hold where many are kept, too."""

from __future__ import annotations

from typing import Any

import pytest
from cases import Case, each, read_table
from prefix_book import ConversationDesk

from lockstep.reference.session import Session
from lockstep.reference.trie import Trie

BOTH = read_table(
    """
# --- what a session keeps
of an exact repeat, and of a shorter prompt, one token is left
    kv | ask abcd > abcd; ask abcd > d; ask ab > b; ask a > a; ask a > a
of a longer prompt what is new is left
    kv | ask abc > abc; ask abcde > de; ask abcdef > f
requests may part at any token
    kv | ask abcd > abcd; ask abcxy > xy; ask abx > x; ask ax > x; ask x > x
what was generated is kept as well
    kv state | ask ab said=cd > ab; ask abcde > e
what was generated and not computed is not kept
    kv | begin ab > ab; feed 2 > 2; say c; close > 2; begin abcd > cd
a request closed before its end keeps what was computed
    kv state | begin abcd > abcd; feed 1 > 1 1; feed 1 > 2 2; close > 2; begin abcd > cd
what is freed is forgotten
    kv | ask abc > abc; free; ask abc > abc
# --- windows and states
a window goes back while nothing has slid out, also when it is just full
    rotating:4 | ask abc > abc; ask abxy > xy; begin az > z
a window one past its size does not go back
    rotating:4 | ask abcde > abcde; begin abcdx > abcdx
of an exact repeat all is left if the window has moved on
    rotating:4 | ask abcde > abcde; ask abcde > abcde
of an exact repeat of a full window one token is left
    rotating:4 | ask abcd > abcd; ask abcd > d
a window that has moved on goes forward, however far
    rotating:4 | ask abcdefghi > abcdefghi; ask abcdefghij > j; begin abcdefghijkl > kl
a state goes forward, but not back, not even by one
    state | ask abc > abc; ask abc > abc; ask ab > ab; ask xb > xb; ask xbc > c
a state that leaves starts anew
    state | ask abc > abc; ask abx > abx
a layer without a cache is not asked
    - kv - | ask abc > abc; ask ab > b
without any cache nothing is kept
    - - | begin abc > abc; feed 3; close > 0; begin abcd > abcd
one layer that cannot go back takes all with it
    kv state | ask abc > abc; begin abx > abx; feed 3 > 3 3; close > 3; begin abxy > y
the last layer that cannot go back takes all with it, too
    kv rotating:4 rotating:3 | ask abcd > abcd; begin abx > abx
all layers go back together while no window has moved on
    kv rotating:4 - rotating:3 | ask abc > abc; begin abx > x
# --- passes that break off
a pass that broke off: what every layer has read is kept
    kv kv | begin abcd > abcd; feed 2 > 2 2; feed 2 layers=1 > 4 2; close > 2;
    begin abcd > cd
a pass that broke off counts by its slowest layer, wherever it stands
    kv - kv kv | begin abcd > abcd; feed 1 > 1 1 1; feed 3 layers=3 > 4 4 1; close > 1;
    begin abcd > bcd
a layer without a cache counts as one that a pass went through
    kv - kv | begin ab > ab; feed 2 layers=2 > 2 0; close > 0; begin ab > ab
a layer that ran ahead goes back, though the request goes forward
    kv state | begin abcd > abcd; feed 2 > 2 2; feed 2 layers=1 > 4 2; close > 2;
    begin abxy > xy
a state that ran ahead takes all with it
    state kv | begin abcd > abcd; feed 2 > 2 2; feed 2 layers=1 > 4 2; close > 2;
    begin abcd > abcd
a window that ran ahead up to its size goes back
    rotating:3 state | begin abc > abc; feed 2 > 2 2; feed 1 layers=1 > 3 2; close > 2;
    begin abc > c
a window that ran ahead past its size takes all with it
    rotating:3 state | begin abcd > abcd; feed 2 > 2 2; feed 2 layers=1 > 4 2; close > 2;
    begin abcd > abcd
a first pass that broke off leaves nothing
    kv state | begin abc > abc; feed 3 layers=1 > 3 0; close > 0; begin abc > abc;
    feed 3 > 3 3; close > 3
a pass that broke off before any layer changes nothing
    kv state | ask ab > ab; begin abcd > cd; feed 2 layers=0 > 2 2; close > 2;
    begin abx > x
a pass that broke off after a reuse
    kv kv | ask abcd > abcd; begin abxy > xy; feed 2 layers=1 > 4 2; close > 2;
    begin abxy > xy
cancelled with nothing computed, a state that stood still stays
    state | ask abc > abc; begin abcd > d; close > 3; begin abcx > x
# --- layers that refuse
a layer that refuses to go back takes all with it
    kv kv | ask abcd > abcd; begin abx refusing=[1] > abx
a layer that refuses and need not move does no harm
    kv kv | ask abc > abc; begin abcd refusing=[0,1] > d
only the layers that ran ahead have to move
    kv kv | begin abcd > abcd; feed 2 > 2 2; feed 2 layers=1 > 4 2; close > 2;
    begin abcd refusing=[1] > cd; feed 2 layers=1 > 4 2; close > 2;
    begin abcd refusing=[0] > abcd
a layer refuses once
    kv | ask abcd > abcd; begin abx refusing=[0] > abx; feed 3 > 3; close > 3;
    begin abq > q
a layer without a cache has nothing to refuse
    - kv | ask abcd > abcd; begin abx refusing=[0] > x
to nothing every layer goes back
    kv state | ask abc > abc; begin xyz refusing=[0,1] > xyz
"""
)

SESSION = read_table(
    """
after a shorter prompt the longer one is not there any more
    kv | ask abcd > abcd; ask ab > b; begin abcd > cd
what agrees again behind the parting counts for nothing
    kv | ask aaaa > aaaa; ask aabaa > baa; begin aaaa > aa
only the last conversation is kept
    kv | ask abc > abc; ask xyz > xyz; begin abc > abc
a window that went back and moved on again does not go back
    rotating:3 | ask abc > abc; ask abxy > xy; begin abq > abq
a window of one token goes back only to nothing
    rotating:1 | ask a > a; ask ab > b; begin ac > ac
cancelled with nothing computed, what was reused stays
    kv | ask abcd > abcd; begin abx > x; close > 2; begin abcd > cd
cancelled with nothing computed and nothing reused, nothing stays
    kv | ask abcd > abcd; begin xy > xy; close > 0; begin abcd > abcd
"""
)


@each(BOTH)
@pytest.mark.parametrize("make", [Session, Trie])
def test_case(make: Any, case: Case) -> None:
    ConversationDesk(make, case.head).check(case.steps)


@each(SESSION)
def test_case_of_a_session(case: Case) -> None:
    ConversationDesk(Session, case.head).check(case.steps)


def test_tokens_that_a_request_was_never_told_do_not_count() -> None:
    """[1, 2] computed, two more never told: two are stored, and all layers go back."""
    session = ConversationDesk(Session, "kv rotating:4", lambda tokens: tokens).cache
    session.begin([1, 2])
    session.feed(2)
    session.overrun([8, 9])
    assert [layer.offset for layer in session.cached] == [4, 4]
    assert session.close() == 2
    assert session.begin([1, 2, 3]) == [3]
    assert [layer.offset for layer in session.cached] == [2, 2]


def test_a_window_that_moved_on_with_them_does_not_go_back() -> None:
    session = ConversationDesk(Session, "kv rotating:4", lambda tokens: tokens).cache
    session.begin([1, 2, 3])
    session.feed(3)
    session.overrun([8, 9])  # token 1 has left the window
    assert session.close() == 3
    assert session.begin([1, 2, 3, 4]) == [1, 2, 3, 4]
