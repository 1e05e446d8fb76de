"""The causal family, by cases that were worked out by hand from the rule of visibility.

Tags count from 0 in each program, whether or not what they belong to was refused.
"""

from __future__ import annotations

import pytest
from cases import Case, each, read_table
from unified_program import check_case, get_program

from lockstep.harness.core.errors import UsageError

CASES = read_table(
    """
# --- windows and chunks
a row sees all before it and itself
    causal | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3
a row sees itself and as many before as the window says
    swa window=2 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 1 2 3; forward 4 > 2 3 4;
    forward 5 6 > 3 4 5 / 4 5 6
a window of 1 is two tokens
    swa window=1 | forward 0 1 2 > 0 / 0 1 / 1 2; forward 3 > 2 3
a window of 0 is none
    swa window=0 capacity=5 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3;
    forward 4 > 0 1 2 3 4; forward 5 > cache-full
a chunk begins at a multiple of its size
    chunked chunk=3 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 3;
    forward 4 5 6 7 > 3 4 / 3 4 5 / 6 / 6 7
in a chunk of 1 a row sees what stands where it stands
    chunked chunk=1 | forward 0 1 1 2 > 0 / 1 1:2 / 1 1:2 / 2:3
chunks hold nothing back: what lies before one is seen from there again
    chunked chunk=2 capacity=5 | forward 0 1 2 3 > 0 / 0 1 / 2 / 2 3; forward 1 > 0 1 1:4;
    resume 0 9 > yes; forward 4 > cache-full
# --- exceptions
an exception frees its row, for its own sequence, and for this pass only
    causal sequences=2 | forward 0 1 0@1 1@1 except=[0] > 0 1 / 0 1 / 0:2 / 0:2 1:3;
    forward 2 2@1 > 0 1 2:4 / 0:2 1:3 2:5; forward 0 > 0 0:6
of two rows at one position only the one that is named looks ahead
    causal | forward 0 1 2 > 0 / 0 1 / 0 1 2;
    forward 1 1 except=[1] > 0 1 1:3 1:4 / 0 1 1:3 1:4 2
an exception does not widen the window behind a row
    swa window=1 | forward 0 1 2 3 except=[0,2] > 0 1 2 3 / 0 1 / 1 2 3 / 2 3
an exception sees on past the end of its chunk, but not before its begin
    chunked chunk=2 | forward 0 1 2 3 except=[1,2] > 0 / 0 1 2 3 / 2 3 / 2 3
# --- eviction
what lies exactly the memory before the lowest row stays, one before it goes
    swa-memory window=1 memory=3 | forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3;
    resume 0 1 > yes; forward 4 > 3 4; resume 0 1 > no; resume 0 2 > yes;
    forward 2 > 1 2 2:5; forward 1 > 1 1:6
the lowest row of a batch counts, wherever it stands in it
    swa window=1 | forward 0 1 2 > 0 / 0 1 / 1 2; forward 4 2 > 4:3 / 1 2 2:4;
    resume 0 2 > yes; resume 0 1 > no
the rows of another sequence do not count
    swa window=1 sequences=2 | forward 0 1 2 > 0 / 0 1 / 1 2; forward 3 0@1 > 2 3 / 0:4;
    resume 0 2 > yes; resume 0 1 > no
    # memory 2, for there are two sequences
an idle sequence is evicted up to the memory before its end
    swa window=2 sequences=2 | forward 0@1 1@1 2@1 3@1 > 0 / 0 1 / 0 1 2 / 1 2 3;
    resume 1 2 > yes; forward 0 > 0:4; resume 1 2 > no; resume 1 3 > yes;
    resume 1 4 > yes; resume 1 5 > no
    # memory 3
what an idle sequence lets go of makes room for another
    swa window=1 sequences=2 | forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3;
    forward 0@1 1@1 2@1 3@1 > 0:4 / 0:4 1:5 / 1:5 2:6 / 2:6 3:7;
    forward 4 5 6 7 > 3 4:8 / 4:8 5:9 / 5:9 6:10 / 6:10 7:11
    # memory 2, room for 2 × 2 + 4
one sequence may have a memory as small as the window
    swa-memory window=2 memory=2 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 1 2 3;
    forward 4 > 2 3 4; resume 0 3 > no; resume 0 4 > yes
several need one more, for a token to stop at
    swa-memory window=2 memory=2 sequences=2 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 1 2 3;
    forward 4 > 2 3 4; resume 0 3 > yes; resume 0 2 > no
a memory of the capacity evicts nothing, and the window still hides
    swa-memory window=1 memory=4 capacity=4 | forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3;
    forward 4 > cache-full; resume 0 1 > yes; resume 0 99 > yes; remove 0 3 end;
    forward 1 > 0 1 1:5
a memory that only several sequences bring up to the capacity does so too
    swa window=3 capacity=4 sequences=2 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3;
    forward 4 5 6 7 > 1 2 3 4 / 2 3 4 5 / 3 4 5 6 / 4 5 6 7; forward 0@1 > cache-full;
    resume 1 5 > yes
the same memory below the capacity evicts
    swa window=3 capacity=4 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3;
    forward 4 > 1 2 3 4; resume 0 3 > no
after a shift a window may hold fewer tokens than it could
    swa window=2 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 1 2 3; forward 4 > 2 3 4;
    remove 0 2 4; forward 3 > 2:4 3:5
# --- room
full is: fewer places than rows, not fewer or as many
    causal capacity=5 | forward 0 1 2 > 0 / 0 1 / 0 1 2; forward 3 4 5 > cache-full;
    get > usage; forward 3 4 > 0 1 2 3:6 / 0 1 2 3:6 4:7; get > 0 1 2 3:6 / 0 1 2 3:6 4:7;
    forward 5 > cache-full
one sequence may take the room of all
    causal capacity=2 sequences=2 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3;
    forward 0@1 > cache-full
with a memory there is room for it and a batch
    swa-memory window=1 memory=2 batch=3 | forward 0 1 2 > 0 / 0 1 / 1 2;
    forward 0 1 > 0 0:3 / 0 0:3 1 1:4; forward 0 > cache-full
rounded up by the padding there is room for one more
    swa-memory window=1 memory=2 batch=3 cache_padding=2 | forward 0 1 2 > 0 / 0 1 / 1 2;
    forward 0 1 > 0 0:3 / 0 0:3 1 1:4; forward 0 > 0 0:3 0:5; forward 0 > cache-full
the padding rounds a capacity up too
    causal capacity=3 cache_padding=4 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3;
    forward 4 > cache-full
each sequence has a memory, and all have one batch
    swa window=1 sequences=2 batch=2 | forward 0 0@1 > 0 / 0:1;
    forward 0 0@1 > 0 0:2 / 0:1 0:3; forward 0 0@1 > 0 0:2 0:4 / 0:1 0:3 0:5;
    forward 0 > cache-full
    # memory 2, room for 2 × 2 + 2
what was evicted for a batch that then did not fit stays gone
    swa-memory window=1 memory=2 | forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3;
    forward 3 3 > 2 3 3:4 3:5 / 2 3 3:4 3:5; resume 0 2 > yes;
    forward 4 4 4 4 > cache-full; resume 0 2 > no; get > usage; forward 1 > 1:10
    # room for 6
holes among the tokens are room like any other
    causal capacity=3 sequences=2 | forward 0 0@1 1 1@1 > 0 / 0:1 / 0 1:2 / 0:1 1:3;
    forward 2 2@1 > 0 1:2 2:4 / 0:1 1:3 2:5; remove 0 0 end;
    forward 3@1 4@1 5@1 > 0:1 1:3 2:5 3:6 / 0:1 1:3 2:5 3:6 4:7 / 0:1 1:3 2:5 3:6 4:7 5:8;
    forward 6@1 > cache-full
to reserve changes nothing and needs no room
    causal capacity=2 | forward 0 1 > 0 / 0 1; forward 2 3 4 5 reserve=True;
    forward 2 > cache-full; remove 0 1 end; forward 1 > 0 1:7
to reserve evicts nothing
    swa window=1 | forward 0 1 2 > 0 / 0 1 / 1 2; forward 9 reserve=True;
    resume 0 1 > yes; forward 1 > 0 1 1:4
# --- positions
a position that is taken twice is seen twice
    causal | forward 0 0 > 0 0:1 / 0 0:1; forward 0 1 > 0 0:1 0:2 / 0 0:1 0:2 1:3
gaps and steps back are the caller's
    causal | forward 0 5 > 0 / 0 5:1; forward 3 > 0 3:2; forward 9 > 0 3:2 5:1 9:3
the order of the rows does not count
    causal | forward 2 0 1 > 0:1 1:2 2:0 / 0:1 / 0:1 1:2
behind a gap a window is empty but for the row itself
    swa window=2 | forward 0 1 > 0 / 0 1; forward 10 > 10:2; forward 1 > 1:3;
    forward 11 > 10:2 11:4
# --- copies
a copied prefix is seen by both, what follows by one
    causal sequences=2 | forward 0 1 2 > 0 / 0 1 / 0 1 2; copy 0 1 2;
    forward 2@1 3 > 0 1 2:3 / 0 1 2 3:4
what is shared takes no room of its own
    causal capacity=2 sequences=2 | forward 0 1 > 0 / 0 1; copy 0 1 2;
    forward 2 2@1 > 0 1 2 / 0 1 2:3; forward 3 > cache-full
the target lets go of what it had
    causal capacity=1 sequences=2 | forward 0 0@1 > 0 / 0:1; copy 0 1 1;
    forward 1@1 > 0 1:2; forward 1 > cache-full
a prefix of nothing leaves the target with nothing
    causal sequences=2 | forward 0 0@1 > 0 / 0:1; copy 0 1 0; forward 1 1@1 > 0 1:2 / 1:3
a prefix longer than the source is all of it
    causal sequences=2 | forward 0 1 > 0 / 0 1; copy 0 1 9; forward 2@1 > 0 1 2
from an empty source comes nothing, and the target still lets go
    causal sequences=2 | forward 0@1 > 0; copy 0 1 5; forward 1@1 > 1
a shorter copy of the same leaves what it shared before
    causal sequences=2 | forward 0 1 2 > 0 / 0 1 / 0 1 2; copy 0 1 3; copy 0 1 1;
    forward 1@1 3 > 0 1:3 / 0 1 2 3:4
length counts positions, not tokens
    causal sequences=2 | forward 0 4 2 > 0 / 0 2 4:1 / 0 2; copy 0 1 3;
    forward 5@1 > 0 2 5:3
one sequence may evict what another still has
    swa window=1 sequences=2 | forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3; copy 0 1 2;
    forward 4 > 3 4; resume 0 2 > no; resume 0 3 > yes; resume 1 1 > yes;
    forward 2@1 > 1 2:5
    # memory 2: the target has 0 and 1, sequence 0 keeps 2 and later
# --- removals
to the end
    causal | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3; remove 0 2 end;
    forward 2 > 0 1 2:4
what is not there may be removed
    causal sequences=2 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3; remove 0 9 end;
    remove 0 9 12; remove 1 0 end; remove 1 0 3; forward 4 > 0 1 2 3 4
what follows moves up, once and again
    causal | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3; remove 0 1 3;
    forward 2 > 0 1:3 2:4; remove 0 0 1; forward 2 > 0:3 1:4 2:5
a finite end behind all of it moves nothing
    causal shift=False | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3; remove 0 2 4;
    forward 2 > 0 1 2:4
a gap closes by the length of the range, whatever stood there
    causal | forward 0 5 > 0 / 0 5:1; remove 0 1 4; forward 3 > 0 2:1 3:2
an empty range leaves all where it is
    causal | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3; remove 0 1 1;
    forward 4 > 0 1 2 3 4
what is shared cannot move, and then nothing changes
    causal sequences=2 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3; copy 0 1 4;
    remove 0 1 2 > shared; forward 4 4@1 > 0 1 2 3 4 / 0 1 2 3 4:5; remove 1 0 3 > shared;
    get > 0 1 2 3 4 / 0 1 2 3 4:5; remove 0 0 end; remove 1 0 3; forward 2@1 > 0:3 1:5 2:6
nor over an empty range
    causal sequences=2 | forward 0 1 > 0 / 0 1; copy 0 1 2; remove 0 1 1 > shared;
    remove 0 2 2; forward 2 > 0 1 2
one shared token among those behind is enough
    causal sequences=2 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3; copy 0 1 3;
    remove 0 0 2 > shared; forward 4 > 0 1 2 3 4
a prefix shared below the range is fine
    causal sequences=2 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3; copy 0 1 2;
    remove 0 2 3; forward 3 2@1 > 0 1 2:3 3:4 / 0 1 2:5
so is one that the range itself cuts
    causal sequences=2 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3; copy 0 1 2;
    remove 0 1 2; forward 3 2@1 > 0 1:2 2:3 3:4 / 0 1 2:5
without a shift the middle stays, and the end may go
    causal shift=False | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 0 1 2 3;
    remove 0 1 2 > not-supported; get > 0 / 0 1 / 0 1 2 / 0 1 2 3;
    remove 0 1 1 > not-supported; forward 4 > 0 1 2 3 4; remove 0 1 end; forward 1 > 0 1:5
a sequence of which nothing is left starts anew
    swa window=2 capacity=8 | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 1 2 3; remove 0 0 end;
    resume 0 0 > no; forward 0 > 0:4; resume 0 0 > yes
a step back leaves what lies ahead unseen, and its removal is real
    causal | forward 0 1 2 > 0 / 0 1 / 0 1 2; forward 1 > 0 1 1:3; remove 0 1 2;
    forward 2 > 0 1:2 2:4
# --- resuming
without a limit always, whatever is stored
    causal sequences=2 | resume 1 0 > yes; resume 0 100 > yes; forward 0 1 > 0 / 0 1;
    resume 0 100 > yes
with one, if the window before it is stored and it is at most the next
    swa window=2 batch=5 | resume 0 0 > no;
    forward 0 1 2 3 4 > 0 / 0 1 / 0 1 2 / 1 2 3 / 2 3 4; resume 0 0 > yes;
    resume 0 5 > yes; resume 0 6 > no; forward 5 > 3 4 5; resume 0 0 > no;
    resume 0 4 > no; resume 0 5 > yes; resume 0 6 > yes; resume 0 7 > no
holes are not looked at
    swa-memory window=2 memory=8 | forward 0 3 > 0 / 3:1; resume 0 3 > yes;
    resume 0 4 > yes; resume 0 5 > no
what begins later cannot resume before
    swa-memory window=2 memory=8 | forward 4 5 > 4:0 / 4:0 5:1; resume 0 5 > no;
    resume 0 6 > yes
# --- saving
what was saved comes back, as often as it is loaded
    causal sequences=2 | forward 0 1 > 0 / 0 1; copy 0 1 1; save x; forward 2 > 0 1 2;
    remove 0 1 2; remove 1 0 end; load x; forward 2 1@1 > 0 1 2:3 / 0 1:4; load x;
    remove 1 0 0 > shared; forward 2 > 0 1 2:5; load y > nothing saved;
    forward 3 > 0 1 2:5 3:6
# --- other sizes
the memory must hold the window, unless it holds the capacity
    swa-memory window=1 memory=2 capacity=8 | open window=4 memory=2 > usage;
    open window=4 memory=3 > usage; open window=4 memory=4; open window=4 memory=0;
    open window=0 memory=3 > usage; open window=0 memory=8;
    open window=9 memory=7 > usage; open window=9 memory=8
for several sequences it grows to hold the window
    swa-memory window=1 memory=2 capacity=8 sequences=2 | open window=4 memory=2;
    open window=0 memory=3; open window=9 memory=1
"""
)


@each(CASES)
def test_case(case: Case) -> None:
    check_case(case)


def test_a_program_cannot_have_a_memory_smaller_than_its_window() -> None:
    with pytest.raises(UsageError, match="window"):
        get_program(Case("too small", "swa-memory window=4 memory=3", ["forward 0"]))
