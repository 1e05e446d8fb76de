"""The caches of one sequence, by cases that were worked out by hand."""

from __future__ import annotations

from cases import Case, each, read_table
from layer_book import LayerDesk

CASES = read_table(
    """
# --- full caches
a query sees all up to itself
    kv | see 0 > -; fill 3; see 0 > 10; see 1 > 10 11; see 2 > 10 11 12; older > -
a query sees its own chunk, of any size
    kv chunk=1 | fill 10; see 5 > 15;
    new chunk=2; fill 10; see 4 > 14; see 5 > 14 15;
    new chunk=3; fill 10; see 2 > 10 11 12; see 3 > 13; see 8 > 16 17 18;
    new chunk=4; fill 10; see 9 > 18 19;
    new chunk=10; fill 10; see 9 > 10 11 12 13 14 15 16 17 18 19;
    new chunk=11; fill 10; see 3 > 10 11 12 13
trim takes back what there is
    kv | trim 3 > 0; holds > 0: -; fill 5; trim 0 > 0; trim 2 > 2; holds > 3: 10 11 12;
    trim 3 > 3; holds > 0: -; fill 5; trim 9 > 5; holds > 0: -
what follows a trim takes the positions that became free
    kv | fill 5; trim 2 > 2; add 30 31 32; holds > 6: 10 11 12 30 31 32;
    see 4 > 10 11 12 30 31; see 2 > 10 11 12
chunks count from the start of the sequence after a trim
    kv chunk=4 | fill 6; trim 3 > 3; add 30 31; see 3 > 10 11 12 30; see 4 > 31
a snapshot has what lies from a position on
    kv | keep s 0 > none; keep s -1 > none; fill 5; keep s 0 > 0 5: 10 11 12 13 14;
    keep s 3 > 3 5: 13 14; keep s 4 > 4 5: 14; keep s 5 > none; keep s 7 > none;
    keep s -2 > 0 5: 10 11 12 13 14
without a snapshot a cache goes back
    kv | fill 3; restore none 4 > no; restore none -1 > no; restore none 3 > yes;
    holds > 3: 10 11 12; restore none 2 > yes; holds > 2: 10 11; restore none 0 > yes;
    holds > 0: -
a restore keeps what is live below the snapshot
    kv | add 7 8 9 12 13; keep s 3 > 3 5: 12 13; new; fill 2; add 30 31;
    restore s 6 > no; restore s -1 > no; holds > 4: 10 11 30 31;
    restore s 5 > yes; holds > 5: 10 11 30 12 13
    # position 2 is live, 3 and 4 are not
up to the snapshot's begin nothing of it is needed
    kv | add 7 8 9 12 13; keep s 3 > 3 5: 12 13; new; fill 2; add 30 31;
    restore s 4 > yes; holds > 4: 10 11 30 12; restore s 3 > yes; holds > 3: 10 11 30;
    restore s 1 > yes; holds > 1: 10; restore s 0 > no
a restore to nothing
    kv | add 7 8 9 12 13; keep s 3 > 3 5: 12 13; new; fill 2; add 30 31;
    restore s 0 > yes; holds > 0: -
a restore replaces what lies behind the snapshot
    kv | fill 4; keep s 2 > 2 4: 12 13; new; fill 2; add 30 31 32 33; restore s 4 > yes;
    holds > 4: 10 11 12 13
a restore needs the tokens below the snapshot
    kv | fill 5; keep s 3 > 3 5: 13 14; new; fill 2; restore s 5 > no; restore s 1 > no;
    add 12; restore s 5 > yes
a snapshot outlives what happens to its cache
    kv | fill 4; keep s 1 > 1 4: 11 12 13; trim 3 > 3; add 30 31 32 33;
    says s > 1 4: 11 12 13; free; holds > 0: -; says s > 1 4: 11 12 13; restore s 4 > no;
    add 40; restore s 4 > yes; add 41; see 4 > 40 11 12 13 41
a split cuts, and what is outside is nothing
    kv | fill 4; keep s 1 > 1 4: 11 12 13; split s 0 p c > none / 1 4: 11 12 13;
    split s 1 p c > none / 1 4: 11 12 13; split s 2 p c > 1 2: 11 / 2 4: 12 13;
    split s 3 p c > 1 3: 11 12 / 3 4: 13; split s 4 p c > 1 4: 11 12 13 / none;
    split s 9 p c > 1 4: 11 12 13 / none
a merge joins neighbours
    kv | fill 5; keep s 1 > 1 5: 11 12 13 14; split s 3 p c > 1 3: 11 12 / 3 5: 13 14;
    merge p c m > 1 5: 11 12 13 14
also of different histories
    kv | fill 2; keep p 0 > 0 2: 10 11; new; add 30 31 32 33; keep c 2 > 2 4: 32 33;
    merge p c m > 0 4: 10 11 32 33
a merge with nothing is nothing
    kv | fill 2; keep s 0 > 0 2: 10 11; merge none none m > none; merge s none m > none;
    merge none s m > none
a merge refuses ranges with a gap or an overlap
    kv | fill 2; keep a 0 > 0 2: 10 11; add 12; keep b 0 > 0 3: 10 11 12; add 13;
    keep c 0 > 0 4: 10 11 12 13; keep x 1 > 1 4: 11 12 13; keep y 3 > 3 4: 13;
    merge b x m > error: merge: [0, 3) and [1, 4) are not adjacent;
    merge a y m > error: merge: [0, 2) and [3, 4) are not adjacent;
    merge c c m > error: merge: [0, 4) and [0, 4) are not adjacent
a clone has the same tokens and the same chunk
    kv chunk=2 | fill 5; clone; add 30; see 5 > 14 30
freed is fresh
    kv | fill 3; free; holds > 0: -; add 30; holds > 1: 30; see 0 > 30
# --- windows
a query sees as many tokens as the window has
    rotating window=1 | fill 5; see 0 > 10; see 4 > 14;
    new window=2; fill 5; see 0 > 10; see 1 > 10 11; see 2 > 11 12;
    new window=3; fill 5; see 2 > 10 11 12; see 3 > 11 12 13; see 4 > 12 13 14;
    new window=4; fill 5; see 4 > 11 12 13 14;
    new window=5; fill 5; see 4 > 10 11 12 13 14;
    new window=6; fill 5; see 4 > 10 11 12 13 14
the first tokens never slide out
    rotating window=3 keep=1 | fill 6; see 2 > 10 11 12; see 3 > 10 12 13;
    see 5 > 10 14 15;
    new window=3 keep=2; fill 6; see 0 > 10; see 1 > 10 11; see 2 > 10 11 12;
    see 5 > 10 11 15;
    new window=4 keep=2; fill 6; see 5 > 10 11 14 15;
    new window=2 keep=1; fill 6; see 1 > 10 11; see 2 > 10 12
the state is the window that ends now
    rotating window=3 | holds > 0: -; older > -; fill 2; holds > 2: 10 11; older > -;
    free; fill 3; holds > 3: 10 11 12; older > -; add 13; holds > 4: 11 12 13; older > 10
with the first token
    rotating window=3 keep=1 | fill 5; holds > 5: 10 13 14; older > 11 12
trim, while nothing has slid out
    rotating window=3 | trim 2 > 0; fill 2; trim 1 > 1; holds > 1: 10; free; fill 3;
    trim 1 > 1; holds > 2: 10 11; free; fill 3; trim 7 > 3; holds > 0: -
no trim once a token has
    rotating window=3 | fill 4; trim 1 > 0; trim 0 > 0; holds > 4: 11 12 13; free; fill 9;
    trim 9 > 0; holds > 9: 16 17 18
unless the cache records what slides out
    rotating window=3 record=1 | fill 6; trim 2 > 2; holds > 4: 11 12 13; add 30;
    see 4 > 12 13 30; trim 4 > 4; holds > 1: 10; fill 4; clone; trim 9 > 5; holds > 0: -
without a snapshot a cache goes back while nothing has slid out
    rotating window=3 | fill 3; restore none 4 > no; restore none -1 > no;
    restore none 3 > yes; holds > 3: 10 11 12; restore none 0 > yes; holds > 0: -;
    fill 4; restore none 4 > yes; restore none 3 > no; restore none 0 > no;
    holds > 4: 11 12 13
what follows a rewind
    rotating window=3 | fill 3; trim 2 > 2; add 30 31 32; see 1 > 10 30; see 2 > 10 30 31;
    see 3 > 30 31 32
a snapshot is the whole window, whatever its label
    rotating window=3 | keep s 0 > none; fill 2; keep s 0 > 0 2: 10 11; free; fill 5;
    keep s 0 > 0 5: 12 13 14; keep s 4 > 4 5: 12 13 14; keep s -3 > 0 5: 12 13 14;
    keep s 5 > none
a restore from a window that had slid
    rotating window=3 | fill 5; keep s 0 > 0 5: 12 13 14; new; add 30 31;
    restore s 4 > no; restore s 0 > no; restore s 6 > no; restore s -1 > no;
    holds > 2: 30 31; restore s 5 > yes; holds > 5: 12 13 14; add 30 31;
    see 5 > 13 14 30; see 6 > 14 30 31
a restore from a window that had not
    rotating window=3 | fill 3; keep s 0 > 0 3: 10 11 12; new; fill 9; restore s -1 > no;
    restore s 3 > yes; holds > 3: 10 11 12; restore s 2 > yes; holds > 2: 10 11;
    restore s 0 > yes; holds > 0: -
what came along with the state may come along after a restore
    rotating window=3 | fill 5; older > 10 11; keep s 0 > 0 5: 12 13 14; new; add 30 31;
    restore s 5 > yes; holds > 5: 12 13 14; older > 10 11; add 32; see 5 > 13 14 32;
    holds > 6: 13 14 32; older > 10 11 12
so it may from a capture inside a chunk, but nothing behind it
    rotating window=2 | prepare 4; fill 6; take > 0 4: 12 13; new; restore t0 4 > yes;
    holds > 4: 12 13; older > 10 11
the first tokens come along in a snapshot
    rotating window=3 keep=1 | fill 6; keep s 0 > 0 6: 10 14 15; new; restore s 6 > yes;
    add 30; see 6 > 10 15 30
split and merge leave the later window whole
    rotating window=3 | fill 2; keep p 0 > 0 2: 10 11; new; fill 5;
    keep s 2 > 2 5: 12 13 14; split s 3 x c > none / 2 5: 12 13 14;
    split s 99 x c > none / 2 5: 12 13 14; merge p s m > 2 5: 12 13 14;
    merge none s m > 2 5: 12 13 14; merge p none m > none
a clone of a window, and a freed one
    rotating window=2 | fill 5; clone; add 30; see 5 > 14 30; free; holds > 0: -
# --- states
the state has read every token up to the query
    state | fill 4; see 2 > 10 11 12; holds > 4: 10 11 12 13; older > -
trim never takes anything back
    state | fill 4; trim 0 > 0; trim 1 > 0; trim 4 > 0; trim 9 > 0; holds > 4: 10 11 12 13
only the live offset can be reached without a snapshot
    state | fill 4; restore none 3 > no; restore none 0 > no; restore none 5 > no;
    restore none -1 > no; restore none 4 > yes; holds > 4: 10 11 12 13
only the end of a snapshot can be reached
    state | fill 3; keep s 1 > 1 3: 10 11 12; new; add 30 31 32 33; restore s 2 > no;
    restore s 4 > no; restore s 0 > no; holds > 4: 30 31 32 33; restore s 3 > yes;
    holds > 3: 10 11 12
a snapshot begins at 0 at the earliest
    state | fill 2; keep s -1 > 0 2: 10 11; keep s 2 > none
split and merge leave the later state whole
    state | fill 2; keep p 0 > 0 2: 10 11; new; fill 3; keep c 2 > 2 3: 10 11 12;
    split c 2 x y > none / 2 3: 10 11 12; merge p c m > 2 3: 10 11 12;
    merge p none m > none; clone; add 30; holds > 4: 10 11 12 30; free; holds > 0: -;
    keep s 0 > none
# --- compressed entries
an entry, named by its last token, is seen from that token on
    pooled pool=3 | see 0 > -; fill 7; see 0 > -; see 1 > -; see 2 > 12; see 4 > 12;
    see 5 > 12 15; see 6 > 12 15; holds > 7: 12 15; size > 2; older > -;
    new pool=1; fill 3; see 0 > 10; see 2 > 10 11 12; size > 3
it is the mean of its window
    pooled pool=3 | fill 7; pools 2 > 10 11 12; pools 5 > 13 14 15;
    new pool=1; fill 2; pools 0 > 10; pools 1 > 11
and of the tokens before it
    pooled pool=3 overlap=2 | fill 9; pools 2 > 10 11 12; pools 5 > 11 12 13 14 15;
    pools 8 > 14 15 16 17 18;
    new pool=2 overlap=2; fill 6; pools 1 > 10 11; pools 3 > 10 11 12 13;
    pools 5 > 12 13 14 15; new pool=1 overlap=1; fill 2; pools 0 > 10; pools 1 > 10 11
a trim takes back open tokens, and no entry
    pooled pool=4 | fill 7; trim 0 > 0; trim 4 > 0; trim 9 > 0; holds > 7: 13;
    trim 3 > 3; holds > 4: 13; trim 1 > 0; add 30 31 32 33; holds > 8: 13 33;
    pools 7 > 30 31 32 33; trim 1 > 0
of the first window all of them
    pooled pool=4 overlap=2 | trim 2 > 0; fill 3; trim 9 > 3; holds > 0: -; fill 3;
    trim 1 > 1; add 30 31; holds > 4: 31; pools 3 > 10 11 30 31
a trim of drafts opens a window again
    pooled pool=4 overlap=1 lookahead=2 | fill 9; trim 2 > 2; holds > 7: 13;
    add 30; holds > 8: 13 30; pools 7 > 13 14 15 16 30
also the rest of that window, but no window before it
    pooled pool=4 lookahead=2 | fill 9; trim 5 > 5; holds > 4: 13; trim 1 > 0;
    new lookahead=1 pool=4; fill 9; trim 2 > 0; trim 1 > 1; trim 1 > 0; holds > 8: 13 17
as counted from the largest offset
    pooled pool=2 lookahead=3 | fill 9; trim 3 > 3; trim 1 > 0; add 30; trim 2 > 0;
    trim 1 > 1; holds > 6: 11 13 15; add 31 32 33 34; trim 3 > 3; holds > 7: 11 13 15;
    pools 5 > 14 15
a lookahead of several windows
    pooled pool=2 lookahead=4 | fill 8; trim 4 > 4; holds > 4: 11 13; trim 1 > 0;
    fill 8; trim 3 > 3; holds > 9: 11 13 11 13; free; fill 4; trim 9 > 4
without a snapshot a cache goes back as far as by a trim
    pooled pool=4 lookahead=2 | fill 9; restore none 10 > no; restore none -1 > no;
    restore none 3 > no; restore none 9 > yes; restore none 6 > yes; holds > 6: 13;
    restore none 4 > yes; restore none 3 > no; add 30; restore none 7 > no
a snapshot has the whole content, whatever its label
    pooled pool=2 overlap=1 | keep s 0 > none; fill 5; keep s 3 > 3 5: 10 11 12 13 14;
    keep x 5 > none; split s 4 p c > none / 3 5: 10 11 12 13 14;
    merge none s m > 3 5: 10 11 12 13 14; merge s none m > none; new; add 30 31 32;
    restore s 6 > no; restore s 3 > no; restore s 5 > yes; holds > 5: 11 13; add 31;
    holds > 6: 11 13 31; pools 5 > 13 14 31; restore s 4 > yes; holds > 4: 11 13
behind a restore only the open window is left to go back in
    pooled pool=2 lookahead=4 | fill 7; keep s 0 > 0 7: 10 11 12 13 14 15 16;
    restore s 7 > yes; trim 2 > 0; trim 1 > 1; trim 1 > 0; restore s 5 > no;
    add 30 31 32 33 34; trim 5 > 5; holds > 6: 11 13 15; trim 1 > 0
a capture of open tokens
    pooled pool=3 | prepare 4; add 0 1; add 2 3 4 5 6; take > 0 4: 0 1 2 3; trim 1 > 1;
    restore t0 4 > yes; holds > 4: 2; add 30 31; holds > 6: 2 31; pools 5 > 3 30 31
a clone goes back as far, and a freed cache is fresh
    pooled pool=2 lookahead=1 | fill 6; clone; trim 1 > 1; trim 1 > 1; trim 1 > 0; free;
    holds > 0: -; fill 1; trim 1 > 1
# --- scheduled captures
a capture in the middle of an update
    kv | prepare 2; add 0 1 2 3 4; take > 0 2: 0 1; take > -
two of them
    kv | prepare 2 4; add 0 1 2 3 4; take > 0 2: 0 1 / 2 4: 2 3
captures as single tokens come by
    kv | add 0; prepare 2 4; add 1; add 2; add 3; add 4; take > 1 2: 1 / 2 4: 2 3
one where the cache stands is nothing of a full cache: no token lies between
    kv | add 0; prepare 1 3; add 1 2 3 4; take > none / 1 3: 1 2
of a window it is the window from which the next write goes on
    rotating window=2 | add 0 1 2; prepare 3 4; add 3 4 5; take > 3 3: 1 2 / 3 4: 2 3
and of a state the state
    state | add 0 1; prepare 2 3; add 2 3; take > 2 2: 0 1 / 2 3: 0 1 2
it is made by the next write, not before
    rotating window=2 | add 0 1 2; prepare 3; take > none; prepare 3; add 3;
    take > 3 3: 1 2
and not by one that goes on from elsewhere
    rotating window=3 | add 0 1 2; prepare 3; trim 2 > 2; add 3; take > none
where a write passes by, it is what stands there then
    rotating window=3 | add 0 1 2; prepare 3; trim 2 > 2; add 3 4 5; take > 3 3: 0 3 4
an empty cache has nothing to capture, nor a state that has read nothing
    rotating window=2 | prepare 0 1; add 0 1; take > none / 0 1: 0;
    new state; prepare 0; add 0; take > none
one that is not reached is nothing
    kv | prepare 3 9; add 0 1 2 3; take > 0 3: 0 1 2 / none
nothing scheduled, nothing taken
    kv | add 0 1; prepare; add 2 3 4; take > -
captures of a window and of a state
    rotating window=2 | prepare 1 3; add 0 1 2 3 4; take > 0 1: 0 / 1 3: 1 2;
    new state; prepare 2 3; add 0 1 2 3 4; take > 0 2: 0 1 / 2 3: 0 1 2
a capture outlives a rewind
    kv | prepare 2; add 0 1 2; trim 3 > 3; add 3 4 5; take > 0 2: 0 1
free leaves the schedule behind, whatever the kind
    kv | prepare 2; free; take > -;
    new rotating window=2; prepare 2; free; take > -;
    new state; prepare 2; free; take > -
and so does a clone
    kv | prepare 2; clone; take > -
# --- refusals
nothing trims less than nothing
    kv | fill 2; trim -1 > error: trim: count -1 is negative; holds > 2: 10 11;
    new rotating window=3; fill 2; trim -1 > error: trim: count -1 is negative;
    holds > 2: 10 11;
    new state; fill 2; trim -1 > error: trim: count -1 is negative; holds > 2: 10 11
prepare refuses offsets that do not ascend
    kv | fill 3; prepare 4 3 > error: prepare([4, 3]): the offsets do not ascend;
    prepare 4 4 > error: prepare([4, 4]): the offsets do not ascend; take > -
or that lie behind the cache
    kv | fill 3;
    prepare 2 5 > error: prepare([2, 5]): offset 2 is behind the cache, which stands at 3;
    take > -
or before the earlier captures were taken
    state | fill 1; prepare 2; prepare 3 > error: prepare([3]): the captures of an
    earlier prepare were not taken yet; add 11 12; take > 1 2: 10 11; prepare 3
"""
)


@each(CASES)
def test_case(case: Case) -> None:
    LayerDesk(case.head).check(case.steps)
