"""Batches of caches, by cases that were worked out by hand."""

from __future__ import annotations

from batch_book import BatchDesk
from cases import Case, each, read_table

CASES = read_table(
    """
# --- columns that are padding
each row has its own tokens
    kv rows=2 | add 2; holds > 2: 0 1 / 2: 2 3; see 0 1 > 0 1; see 1 1 > 2 3; add 1;
    holds > 3: 0 1 4 / 3: 2 3 5
padding on the left takes no position
    kv rows=3 | add 3 left=[0,2,1]; holds > 3: 0 1 2 / 1: 3 / 2: 4 5; add 1;
    see 1 1 > 3 7; holds > 4: 0 1 2 6 / 2: 3 7 / 3: 4 5 8
padding on the left does not fill a window
    rotating rows=2 window=2 | add 4 left=[0,3]; holds > 4: 2 3 / 1: 4; add 1;
    see 0 4 > 3 5; see 1 1 > 4 6; add 1; see 1 2 > 6 8
padding on the left does not move the border of a chunk
    kv rows=2 chunk=2 | add 3 left=[0,1]; add 1; see 0 3 > 2 5; see 1 2 > 6
only an empty batch is padded on the left
    kv rows=2 | add 1; add 2 left=[0,1] > error: update: only an empty batch is padded on
    the left; free; add 2 left=[0,1]; holds > 2: 2 3 / 1: 4
one row is not padded on the left, and no row only
    kv rows=2 |
    add 2 left=[1,1] > error: update: 2 columns cannot have the padding [1, 1];
    add 2 left=[0,2] > error: update: 2 columns cannot have the padding [0, 2];
    add 2 left=[0] > error: update: only an empty batch is padded on the left
padding on the right takes no position
    kv rows=2 | pad 1 3; add 3; finalize; holds > 1: 0 / 3: 1 2 3; add 1;
    see 0 1 > 0 4; see 1 3 > 1 2 3 5
a long prompt comes in chunks, and the short row gets padding only
    kv rows=2 | add 1; pad 1 5; add 2; see 0 1 > 0 2; add 2; add 1; finalize;
    holds > 2: 0 2 / 6: 1 3 4 5 6 7
padding on the right does not fill a window
    rotating rows=2 window=3 | pad 2 6; add 4; add 2; finalize; add 1;
    see 0 2 > 0 1 8; see 1 6 > 6 7 9
a state does not read padding
    state rows=2 | add 3 left=[1,0]; pad 1 2; add 2; finalize;
    holds > 3: 0 1 5 / 5: 2 3 4 6 7
what was announced has to come
    kv rows=2 | pad 1 3; finalize > error: finalize: announced columns are missing;
    add 2; add 2 > error: update: 1 columns are still announced; add 1; finalize
between the announcement and the end no tokens leave, and no rows come
    kv rows=2 | pad 1 2; pad 1 2 > error: the padding on the right is not complete;
    trim 0 0 > error: the padding on the right is not complete;
    batch c 1; extend b > error: the padding on the right is not complete; use b;
    extend c > error: the padding on the right is not complete;
    clone c > error: the padding on the right is not complete;
    free > error: the padding on the right is not complete;
    add 2 left=[0,1] > error: update: 2 columns are still announced
a row leaves before its padding comes, and the others go on
    kv rows=3 | add 1; pad 3 1 2; add 1; filter 2 0; finalize > error: finalize:
    announced columns are missing; add 2; finalize; holds > 3: 2 5 6 / 4: 0 3 7 8; add
    1;
    see 0 3 > 2 5 6 9
the columns of the longest row come although it has left
    kv rows=2 | pad 1 3; add 2; filter 0; finalize > error: finalize: announced columns
    are missing; add 2 > error: update: 1 columns are still announced; add 1; finalize;
    holds > 1: 0; add 1; see 0 1 > 0 3
a row leaves before the first column
    kv rows=2 | pad 1 3; filter 0; add 3; finalize; holds > 1: 0
padding that the row that leaves would have got fills no window of the others
    rotating rows=3 window=2 | add 2; pad 1 2 4; add 2; filter 1 0; add 2; finalize;
    holds > 4: 7 8 / 3: 1 6; add 1; see 0 4 > 8 11
a state is not padded by the columns of a row that has left
    state rows=2 | pad 1 3; add 2; filter 0; add 1; finalize; holds > 1: 0
a row that is copied gets what was announced for it
    kv rows=2 | pad 1 2; add 1; select 1 1 0; add 1; finalize;
    holds > 2: 1 2 / 2: 1 3 / 1: 0
a row is taken out without padding, and with what has come
    kv rows=2 | pad 1 4; add 3; extract 0 x; extract 1 y; says x > 1: 0;
    says y > 3: 1 2 3; add 1; finalize; holds > 1: 0 / 4: 1 2 3 4; put x 1;
    says x > 2: 0 5
nothing is announced for nobody
    kv rows=2 | pad 1 > error: pad_right: lengths [1] of 2 rows;
    pad 0 1 > error: pad_right: lengths [0, 1] of 2 rows;
    finalize > error: finalize: announced columns are missing
# --- the end of rows
each row loses its own last tokens
    kv rows=2 | add 3 left=[0,1]; trim 1 1 > yes; holds > 2: 0 1 / 1: 3; trim 2 0 > yes;
    holds > 0: - / 1: 3; add 1; holds > 1: 5 / 2: 3 6
a row whose window has slid keeps all rows from it
    rotating rows=2 window=3 | add 4 left=[0,2]; trim 1 1 > no; trim 0 0 > yes;
    holds > 4: 1 2 3 / 2: 4 5; filter 1; trim 1 > yes; holds > 1: 4
# --- rows that leave and come
the rows that are named stay, in that order
    kv rows=3 | add 2; filter 2 0; holds > 2: 4 5 / 2: 0 1; add 1;
    holds > 3: 4 5 6 / 3: 0 1 7
a filter names each row once
    kv rows=2 | filter 1 1 > error: filter: a row twice in [1, 1];
    filter > error: rows [] of 2; filter 2 > error: rows [2] of 2
a row that is selected twice becomes two
    kv rows=2 | add 1; select 1 1 0; add 1; holds > 2: 1 2 / 2: 1 3 / 2: 0 4;
    see 1 1 > 1 3
the rows of another batch come behind
    kv rows=1 | add 2; batch c 2; add 1; use b; extend c; holds > 2: 0 1 / 1: 2 / 1: 3;
    add 1; see 1 1 > 2 5
an empty batch takes a full one, and the reverse
    state rows=2 | batch c 1; add 2; use b; extend c; holds > 0: - / 0: - / 2: 0 1; add 1;
    holds > 1: 2 / 1: 3 / 3: 0 1 4; batch d 1; use b; extend d;
    holds > 1: 2 / 1: 3 / 3: 0 1 4 / 0: -
a batch is not extended by itself
    kv rows=1 | extend b > error: extend: a batch cannot be extended by itself
# --- single caches
a row that is taken out lives on alone
    rotating rows=2 window=2 | add 3; extract 1 x; put x 1; says x > 4: 5 6;
    holds > 3: 1 2 / 3: 4 5; add 1; says x > 4: 5 6; holds > 4: 2 7 / 4: 5 8
single caches become rows
    kv rows=1 | single x; put x 3; single y; single z; put z 1; stack x y z;
    holds > 3: 0 1 2 / 0: - / 1: 3; add 1; holds > 4: 0 1 2 4 / 1: 5 / 2: 3 6
rows that were taken out become rows again
    rotating rows=2 window=3 | add 5 left=[0,4]; extract 0 x; extract 1 y; put y 1;
    stack y x; add 1; see 0 2 > 5 6 7; see 1 5 > 3 4 8
a batch has a row
    kv rows=1 | batch c 0 > error: a batch has at least one row;
    stack > error: a batch has at least one row
a copy goes its own way
    kv rows=2 | add 1; clone c; add 1; use c; holds > 1: 0 / 1: 1; add 2;
    holds > 3: 0 4 5 / 3: 1 6 7; use b; holds > 2: 0 2 / 2: 1 3; free; holds > 0: - / 0: -
# --- several caches of one layer
each part of a list gets the tokens of its row, and sees them its own way
    kv+rotating:2 rows=2 | add 3 left=[0,1]; holds > 3: 0 1 2 & 1 2 / 2: 3 4 & 3 4; add 1;
    see 0 3 > 0 1 2 5 & 2 5; see 1 2 > 3 4 6 & 4 6;
    holds > 4: 0 1 2 5 & 2 5 / 3: 3 4 6 & 4 6
no part reads padding
    state+rotating:2+kv rows=2 | pad 1 3; add 2; add 1; finalize;
    holds > 1: 0 & 0 & 0 / 3: 1 2 3 & 2 3 & 1 2 3
a list is trimmed in all parts
    kv+rotating:3 rows=2 | add 3; trim 1 2 > yes; holds > 2: 0 1 & 0 1 / 1: 3 & 3; add 1;
    see 0 2 > 0 1 6 & 0 1 6
or in none, if one part refuses, whichever it is
    kv+rotating:2 rows=2 | add 3 left=[0,1]; trim 0 1 > yes; trim 1 0 > no;
    holds > 3: 0 1 2 & 1 2 / 1: 3 & 3;
    filter 1; trim 1 > yes; holds > 0: - & -
a list with a state takes nothing back
    kv+state rows=1 | add 2; trim 1 > no; trim 0 > yes; holds > 2: 0 1 & 0 1;
    extract 0 x; cut x 1 > 0; says x > 2: 0 1 & 0 1
a single list loses tokens in all parts or in none
    kv+rotating:2 rows=1 | single x; put x 2; cut x 1 > 1; says x > 1: 0 & 0; put x 2;
    cut x 1 > 0; says x > 3: 0 2 3 & 2 3; single y; put y 1; cut y 5 > 1;
    says y > 0: - & -
all parts of a row move with it
    kv+rotating:1 rows=3 | add 2; filter 2 0; holds > 2: 4 5 & 5 / 2: 0 1 & 1; select 1 1;
    add 1; holds > 3: 0 1 6 & 6 / 3: 0 1 7 & 7; batch c 1; add 1; use b; extend c; add 1;
    see 2 1 > 8 11 & 11
a list that is taken out lives on alone
    state+kv rows=2 | add 2; extract 1 x; put x 1; says x > 3: 2 3 4 & 2 3 4;
    holds > 2: 0 1 & 0 1 / 2: 2 3 & 2 3; single y; stack x y; add 1;
    holds > 4: 2 3 4 5 & 2 3 4 5 / 1: 6 & 6
a copy of a list goes its own way
    kv+rotating:2 rows=1 | add 1; clone c; add 2; use c; holds > 1: 0 & 0; add 1;
    holds > 2: 0 3 & 0 3; use b; holds > 3: 0 1 2 & 1 2; free; holds > 0: - & -
"""
)


@each(CASES)
def test_case(case: Case) -> None:
    BatchDesk(case.head).check(case.steps)
