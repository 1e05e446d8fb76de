"""Evictions of a trie that keeps a limit, by cases that were worked out by hand.

A token of full attention takes 1 byte, one of a window 10, a state 100.
"""

from __future__ import annotations

from cases import Case, each, read_table
from prefix_book import ConversationDesk

from lockstep.reference.trie import Trie

CASES = read_table(
    """
# --- ends of paths
what fits exactly stays
    kv limit=6 | ask abc > abc; ask xyz > xyz; points abc xyz
one byte too many: what was used longest ago goes
    kv limit=6 | ask abc > abc; ask xyz > xyz; ask p > p; points xyz p; count > 4 4;
    begin abcd > abcd
what was used again is not the one that goes
    kv limit=7 | ask abc > abc; ask xyz > xyz; ask abcd > d; ask p > p; points abc abcd p;
    count > 5 5
an exact repeat is a use
    kv limit=7 | ask abc > abc; ask xyz > xyz; ask abc > c; ask pq > pq; points abc pq
as many go as must
    kv limit=6 | ask ab > ab; ask cd > cd; ask ef > ef; ask ghij > ghij; points ef ghij
the end of a path goes, back to the point before
    kv limit=7 | ask abcd > abcd; ask abxy > xy; ask pq > pq; points ab abxy pq;
    count > 6 6; begin abcd > cd
a point behind which all is gone is the end of a path
    kv | ask abcd > abcd; ask abxy > xy; ask pq > pq; limit 7; points ab abxy pq; limit 5;
    points ab pq; limit 3; points pq
full attention that others need does not go, however old
    kv limit=6 | ask ab > ab; ask abcd > cd; ask xy > xy; ask p > p; points ab xy p;
    count > 5 5
what went is computed and stored again
    kv state limit=110 | ask abc > abc; ask xyz > xyz; points xyz:1; ask abc > abc;
    points abc:1
# --- captures on the way
a capture on the way goes first if it is older
    state limit=200 | ask abcd checkpoints=[2] > abcd; ask xy > xy; points abcd:0 xy:0;
    count > 6 200; begin abq > abq
a capture on the way stays if it was used later
    state limit=300 | ask abcd checkpoints=[2] > abcd; ask abx > x; ask pq > pq;
    points ab:0 abx:0 pq:0; begin aby > y
full attention of a capture that goes is kept for what lies behind
    kv state | ask abcd checkpoints=[2] > abcd; ask xy > xy; count > 6 306; limit 305;
    points abcd:1 xy:1; count > 6 206; begin abcde > e
a window of a capture that goes
    rotating:3 | ask abcde checkpoints=[2] > abcde; ask p > p; count > 6 60; limit 59;
    points abcde:0 p:0; count > 6 40
where paths part the place stays when its capture goes
    state limit=500 | ask abcd checkpoints=[2] > abcd; ask abx > x; ask abcde > e;
    ask abxy > y; ask pq > pq; points ab abcd:0 abcde:0 abx:0 abxy:0 pq:0; count > 9 500;
    begin abq > abq
of a path only the deepest place that is used becomes younger
    state limit=400 | ask ab > ab; ask abcd > cd; ask xy > xy; ask abcde > e; ask pq > pq;
    points abcd:0 abcde:0 xy:0 pq:0
what lies before the deepest place is older than another conversation
    state | ask a > a; ask ab > b; ask xy > xy; ask abc > c; ask pq > pq; limit 400;
    points ab:0 abc:0 xy:0 pq:0; limit 300; points ab:0 abc:0 pq:0; limit 200;
    points abc:0 pq:0; limit 100; points pq:0
a capture that was gone on from becomes younger, though the parting lies behind
    state | ask abcd checkpoints=[2] > abcd; ask xy > xy; ask abcq > cq; ask pr > pr;
    limit 500; points ab:0 abc:0 abcq:0 xy:0 pr:0; limit 400;
    points ab:0 abc:0 abcq:0 pr:0; limit 300; points abc:0 abcq:0 pr:0
captures at an interval go one by one, from the beginning
    state interval=2 | ask abcdef > abcdef; ask xy > xy; limit 300;
    points abcd:0 abcdef:0 xy:0; limit 200; points abcdef:0 xy:0
full attention at an interval goes piece by piece, from the end
    kv interval=2 | ask abcde > abcde; ask xyz > xyz; limit 7; count > 7 7; limit 6;
    count > 5 5; limit 4; count > 3 3
# --- what is live
the live conversation stays, whatever the limit
    kv limit=3 | ask abcdef > abcdef; points abcdef; count > 6 6; ask xy > xy; points xy
a limit smaller than one capture: the live one can be gone on with
    state limit=99 | ask abc > abc; count > 3 100; ask abcd > d; points abc:0 abcd:0
a limit of nothing keeps the live conversation alone
    kv state limit=0 | ask abc > abc; ask xy > xy; points xy:1; begin xyz > z
captures on the way to where the layers stand stay
    state limit=100 | ask abcd checkpoints=[1,2,3] > abcd; points a:0 ab:0 abc:0 abcd:0;
    begin abcx > x
what lies behind where the layers stand goes
    kv limit=2 | ask abcd > abcd; ask ab > b; points ab
with nothing live everything goes
    kv | ask abc > abc; ask xyz > xyz; begin pq > pq; limit 3; points xyz; limit 0;
    points; feed 2 > 2; close > 2; points pq
the edge that the layers stand inside stays
    kv | ask abcd > abcd; ask xy > xy; begin abq > q; limit 3; points abcd; count > 4 4;
    feed 1 > 3; close > 3; points ab abq; count > 3 3
the edge that the layers have left stays, for its first tokens are theirs
    kv | ask abcd > abcd; ask xy > xy; begin abqr > qr; feed 1 > 3; limit 3; points abcd;
    feed 1 > 4; close > 4; points ab abqr
the edge that the layers stand inside stays, not the one behind it
    kv | ask abcd > abcd; ask abcdef > ef; begin abq > q; limit 0; points abcd; close > 2;
    points ab
the edge that the layers stand inside stays, not another one
    kv | ask abcd > abcd; ask abxy > xy; begin abcz > z; limit 5; points ab abcd;
    count > 4 4; limit 0; points ab abcd
where paths part the layers stand inside no edge
    kv | ask abcd > abcd; ask abxy > xy; begin abz > z; limit 5; points ab abxy; limit 0;
    points ab
live is what every layer has read
    kv kv limit=4 | ask xy > xy; begin abcd > abcd; feed 2 > 2 2; feed 2 layers=1 > 4 2;
    close > 2; points ab; count > 2 4
while a request is open, what it computes again of a stored path stays
    state | ask abcd > abcd; ask xy > xy; begin abcdx refusing=[0] > abcdx; feed 4 > 4;
    limit 0; points abcd:0
while a request is open the conversation that it goes on with stays
    state | ask ab > ab; ask xy > xy; begin abc > c; limit 100; points ab:0; feed 1 > 3;
    limit 0; points ab:0; close > 3; points ab:0 abc:0; count > 3 200
# --- other limits
another limit is kept at once
    kv | ask abc > abc; ask xyz > xyz; limit 5; points xyz
a limit that is no longer there limits nothing
    kv limit=3 | ask abc > abc; limit None; ask xyz > xyz; points abc xyz
a higher limit brings nothing back
    kv limit=3 | ask abc > abc; ask xyz > xyz; limit 9; points xyz; begin abc > abc
no limit is kept before the request is closed
    kv limit=4 | ask abc > abc; begin xyz > xyz; feed 3 > 3; points abc; close > 3;
    points xyz
what goes during a request does not change where it had left a stored path
    state | ask abcd > abcd; ask axy > axy; begin abcx refusing=[0] > abcx; limit 100;
    points axy:0; limit None; feed 4 > 4; say y; feed 1 > 5; close > 5;
    points a abc:0 abcxy:0 axy:0
layers without a cache take nothing
    - kv - limit=6 | ask abc > abc; ask xyz > xyz; count > 6 6
"""
)


@each(CASES)
def test_case(case: Case) -> None:
    ConversationDesk(Trie, case.head).check(case.steps)
