"""Many conversations: what of them is stored, and what a request reuses of it, by cases
that were worked out by hand."""

from __future__ import annotations

from cases import Case, each, read_table
from prefix_book import ConversationDesk

from lockstep.reference.trie import Trie

CASES = read_table(
    """
# --- what can be cut
of a longer prompt what is new is left
    kv | ask abc > abc; ask abcde > de; points abc abcde; count > 5 5
parting at the first token leaves two paths
    kv | ask abc > abc; ask xbc > xbc; points abc xbc; count > 6 6
parting at the second token
    kv | ask abc > abc; ask axc > xc; points a abc axc; count > 5 5
what agrees again behind the parting is not shared
    kv | ask abcd > abcd; ask axcd > xcd; count > 7 7
an earlier conversation is still there
    kv | ask abc > abc; ask xyz > xyz; begin abcd > d
of an exact repeat of an earlier conversation one token is left
    kv | ask abc > abc; ask xyz > xyz; ask abc > c; points abc xyz
full attention is cut anywhere, also on an edge that is not live
    kv | ask abcd > abcd; ask xyz > xyz; ask abq > q; points ab abcd abq xyz; count > 8 8
after a shorter prompt the longer one is still there
    kv | ask abcd > abcd; ask ab > b; points ab abcd; count > 4 4; begin abcde > e
siblings with one first token: the longer match is taken
    kv | ask abc > abc; ask abd > d; ask abde > e; ask abce > e;
    points ab abc abd abde abce; count > 6 6
three siblings part at one point
    kv | ask abc > abc; ask abd > d; ask abe > e; points ab abc abd abe; count > 5 5
paths part at two places of one path
    kv | ask abcd > abcd; ask abcx > x; ask axy > xy; points a abc abcd abcx axy;
    count > 7 7
a path that is the beginning of another one
    kv | ask a > a; ask ab > b; ask abc > c; points a ab abc; count > 3 3; ask ax > x;
    begin abcd > d
what is freed is forgotten
    kv | ask ab > ab; free; points
after all was freed the store fills again
    kv state | ask abc > abc; free; ask abcd > abcd; points abcd:1; count > 4 104
# --- what is captured
a state goes on from where an earlier request ended
    state | ask abc > abc; ask xyz > xyz; ask abcd > d; points abc:0 abcd:0 xyz:0
where a request left a stored path a state is captured
    state | ask abcd > abcd; ask abx > abx; points ab:0 abcd:0 abx:0; count > 5 300;
    ask abq > q
a request that ended inside a stored edge, and one that leaves it further on
    kv state | ask abcd > abcd; begin abx > abx; feed 1 > 1 1; close > 1;
    points a:1 abcd:1; ask abx > bx; points a:1 ab:1 abcd:1 abx:1
where generated tokens left a stored path a state is captured
    state | ask abcd > abcd; ask ab said=x > ab; points ab:0 abcd:0 abx:0; begin aby > y
generated tokens may follow a stored path before they leave it
    state | ask abcde > abcde; ask ab said=cx > ab; points abc:0 abcde:0 abcx:0
generated tokens that follow a stored path to its end leave nothing
    state | ask abcd > abcd; ask ab said=cd > ab; points abcd:0
generated tokens that follow a stored path and end inside it
    state | ask abcde > abcde; ask ab said=cd > ab; points abcd:0 abcde:0
generated tokens that go on behind a stored path leave it at its end
    state | ask abc > abc; ask ab said=cd > ab; points abc:0 abcd:0
generated several at once
    state | ask abcde > abcde; begin ab > ab; feed 2 > 2; say cx; feed 2 > 4; close > 4;
    points abc:0 abcde:0 abcx:0
a request that has left a path does not leave it again
    state | ask abcd > abcd; ask abx said=yz > abx; points ab:0 abcd:0 abxyz:0
a path that was left, but never reached, is not captured
    state | ask abcd > abcd; begin abcx > abcx; feed 2 > 2; close > 2; points ab:0 abcd:0;
    count > 4 200
siblings with one first token, captured
    state | ask abc > abc; ask abd > abd; ask abde > e; points ab:0 abc:0 abd:0 abde:0
a checkpoint can be come back to
    state | ask abcd checkpoints=[2] > abcd; points ab:0 abcd:0; count > 4 200;
    begin abx > x
a checkpoint of an earlier conversation can be come back to
    state | ask abcd checkpoints=[2] > abcd; ask xyz > xyz; begin ab > ab; close > 0;
    begin abc > c
several checkpoints, in any order, also at the end
    state | ask abcd checkpoints=[3,1,4] > abcd; points a:0 abc:0 abcd:0; begin abc > bc
a checkpoint among what is generated
    state | ask ab checkpoints=[3] said=cd > ab; points abc:0 abcd:0
a checkpoint behind the end is never reached
    state | ask ab checkpoints=[3,9] > ab; points ab:0
a checkpoint behind where a request was cancelled is never reached
    state | begin abcd checkpoints=[1,3] > abcd; feed 2 > 2; close > 2; points a:0 ab:0
a checkpoint before what is reused is not passed again
    state | ask abcd > abcd; ask abcdef checkpoints=[2,5] > ef;
    points abcd:0 abcde:0 abcdef:0
checkpoints are of one request
    state | ask abcd checkpoints=[2] > abcd; ask xyz > xyz; points ab:0 abcd:0 xyz:0
captures at each token
    state interval=1 | ask abc > abc; points a:0 ab:0 abc:0; begin axy > xy
captures at multiples of the interval
    state interval=2 | ask abcde > abcde; points ab:0 abcd:0 abcde:0; count > 5 300;
    ask abcx > cx; points ab:0 abc:0 abcd:0 abcde:0 abcx:0
multiples of the interval before what is reused are not passed again
    state interval=3 | ask abc > abc; ask abcdefgh > defgh;
    points abc:0 abcdef:0 abcdefgh:0
multiples of the interval count from the beginning of the conversation
    state interval=3 | ask ab > ab; ask abcdefg > cdefg;
    points ab:0 abc:0 abcdef:0 abcdefg:0
an interval does not store full attention twice
    kv interval=2 | ask abcde > abcde; count > 5 5
# --- windows
where a window went back to leave a stored path it is captured
    rotating:4 | ask abcd > abcd; ask abx > x; points ab:0 abcd:0 abx:0; ask pq > pq;
    begin aby > y
a window that has moved on is there again where it was captured
    rotating:3 | ask abcdef > abcdef; ask xyz > xyz; begin abcdefg > g; feed 1 > 7;
    close > 7; begin abcdefgh > h
off the live path a window is there only where it was captured
    rotating:4 | ask abc > abc; ask xyz > xyz; begin abq > abq
a window that came back from a capture goes back further while it can
    rotating:4 | ask abc > abc; ask xyz > xyz; begin abcd > d; close > 3; begin aq > q
of a window only what it holds is stored, all of it at each capture
    rotating:3 | ask ab > ab; count > 2 20; ask abcde > cde; points ab:0 abcde:0;
    count > 5 50
a window just full is stored whole
    rotating:3 | ask abc > abc; ask abcd > d; count > 4 60
# --- several layers
the deepest place that all layers reach
    kv state | ask abcd checkpoints=[2] > abcd; ask xyz > xyz; begin abcq > cq
the deepest place may be nothing
    kv state | ask abcd > abcd; ask abcq > abcq
a window could go back, but the state beside it cannot
    rotating:4 state | ask abcd checkpoints=[1] > abcd; begin abc > bc
bytes of full attention, a window and a state
    kv rotating:2 state | ask abc > abc; count > 3 123; ask abd > abd;
    points ab:12 abc:12 abd:12; count > 4 364
a layer without a cache is not asked
    - kv - state | ask abc > abc; ask abcd > d; points abc:3 abcd:3; count > 4 204
# --- passes that break off
full attention that ran ahead is cut, the state behind it goes on
    kv state | begin abcd > abcd; feed 2 > 2 2; feed 2 layers=1 > 4 2; close > 2;
    points ab:1; count > 2 102; begin abcd > cd
a state that ran ahead is not captured where the others stand
    state state | begin abcd > abcd; feed 2 > 2 2; feed 2 layers=1 > 4 2; close > 2;
    points ab:1; count > 2 100; begin abcd > abcd
a state that ran ahead was captured at a checkpoint as it came by
    state state | begin abcd checkpoints=[1,2] > abcd; feed 2 > 2 2;
    feed 2 layers=1 > 4 2; close > 2; points a:01 ab:01; begin abx > x
a checkpoint that only some layers reached is none
    state kv | begin abcd checkpoints=[3] > abcd; feed 2 > 2 2; feed 2 layers=1 > 4 2;
    close > 2; points ab; begin abcd > abcd
a first pass that broke off stores nothing
    kv state | ask xyz > xyz; begin abc > abc; feed 3 layers=1 > 3 0; close > 0;
    points xyz:1; begin xyzw > w
a pass that broke off behind a reuse
    kv kv | ask abcd > abcd; begin abxy > xy; feed 2 layers=1 > 4 2; close > 2;
    points ab abcd; count > 4 8; begin abcdx > x
a window that ran ahead up to its size goes back on the live path
    rotating:3 kv | begin abc > abc; feed 2 > 2 2; feed 1 layers=1 > 3 2; close > 2;
    begin abx > x
cancelled with nothing computed, what was reused is a request that ended there
    kv | ask abcd > abcd; begin abx > x; close > 2; points ab abcd; count > 4 4;
    begin abcde > e
cancelled with nothing computed and nothing reused, all stays as it was
    kv state | ask abc > abc; begin xyz > xyz; close > 0; points abc:1; begin abcd > d
to cancel is to close: what was computed is stored
    state | begin abcd > abcd; feed 3 > 3; close > 3; points abc:0; begin abcd > d
# --- layers that refuse
a layer has to move from another conversation, though as far along
    kv | ask abc > abc; ask xyz > xyz; begin abcd refusing=[0] > abcd
what was refused is stored all the same
    kv | ask abcd > abcd; begin abx refusing=[0] > abx; close > 0; begin abx > x
"""
)


@each(CASES)
def test_case(case: Case) -> None:
    ConversationDesk(Trie, case.head).check(case.steps)


def test_tokens_that_a_request_was_never_told_are_not_stored() -> None:
    """Of [1, 2] and two more, a kv layer stores two; a state, which stands at 4, none."""
    trie = ConversationDesk(Trie, "kv state", lambda tokens: tokens).cache
    trie.begin([1, 2])
    trie.feed(2)
    trie.overrun([8, 9])
    assert trie.close() == 2
    assert (trie.count_tokens(), trie.list_layer_bytes()) == (2, [2, 0])
    assert trie.begin([1, 2, 3]) == [1, 2, 3]
