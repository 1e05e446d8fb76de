"""Paged caches, by cases that were worked out by hand.

`full+sliding:3 | …` is a model with these groups; `full!` may lag. `open a 1 2 3` adds
a request with these tokens, `in=x` in a namespace, `by=x` with an adapter,
`extras=[[0,2,'k']]` with extras; `take a 2` schedules two of its tokens, `hit=2` behind
a hit; `run` computes the step, as do `launch` and `finish`. `hits a` lists the hits that
a waiting request can have. `accept a 5 kept=1 drafts=[7]` samples 5, and `parents=[0]`
makes a tree of its drafts. `is a` answers with its tokens, its drafts, and how many are
computed; `-` for none. `content a 4` answers with the inputs up to the token in the slot
of position 4, `slots a` with the number of tokens for which it has slots, `losers a` with
the requests that may lose theirs to it, also if it is `refused=True`. With
`overlap=True`, `accept` may come before the step that samples the token has finished;
`told a` answers with the number of tokens that the cache knows. `update` changes
the weights; `weights a 3` answers with the changes before K and V of position 3 were
computed, each as the number of tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from cases import Case, Desk, each, read_table, read_words, say

from lockstep.reference.paged import Group, PagedCache, list_places

TEXT = """
# --- hits
nothing is there at first
    full | open a 1 2 3; hits a > 0; take a 9; run; is a > 1 2 3, -, 3
one token is always left to compute
    full | open a 1 2 3; take a 9; run; open b 1 2 3; hits b > 0 1 2; open c 1 2 3 4;
    hits c > 0 1 2 3
a hit is of the beginning
    full | open a 1 2 3; take a 9; run; open b 2 3 4; hits b > 0; open c 1 3 3;
    hits c > 0 1
only what is computed is hit
    full | open a 1 2 3 4; take a 2; run; open b 1 2 3 4; hits b > 0 1 2
a request of the same step comes first
    full | open a 1 2 3; open b 1 2 4; hits b > 0; take a 9; hits b > 0 1 2
a state of the same step is not there yet
    state | open a 1 2 3; open b 1 2 4; take a 9; hits b > 0; run; hits b > 0 1 2
    # whether it was kept after 1 and 2 tokens is the engine's business
what a hit goes on from is computed
    full | open a 1 2 3; take a 9; run; open b 1 2 9 9; take b 1 hit=2; run;
    is b > 1 2 9 9, -, 3
a namespace has hits of its own
    full | open a 1 2 3; take a 9; run; open b 1 2 3 in=x; hits b > 0; take b 9; run;
    open c 1 2 3 in=x; hits c > 0 1 2; open d 1 2 3 in=y; hits d > 0
an adapter has hits of its own, also beside a namespace of that name
    full | open a 1 2 3 by=x; take a 9; run; open b 1 2 3; hits b > 0;
    open c 1 2 3 by=x; hits c > 0 1 2; open d 1 2 3 in=x; hits d > 0;
    open e 1 2 3 in=x by=x; hits e > 0
a namespace and an adapter are a pair, not a text
    full | open a 1 2 in=ab by=c; take a 9; run; open b 1 2 in=a by=bc; hits b > 0;
    open c 1 2 in=abc; hits c > 0; open d 1 2 by=abc; hits d > 0; open e 1 2 in=c by=ab;
    hits e > 0; open f 1 2 in=ab by=c; hits f > 0 1
without a prefix cache nothing is hit
    full prefix_cache=False | open a 1 2 3; take a 9; run; open b 1 2 3; hits b > 0
where a chunk begins nothing before it is read
    chunked:2 | open a 1 2 3 4 5; hits a > 0 2 4
in a hybrid all groups must agree
    full+chunked:2 | open a 1 2 3 4 5; hits a > 0; take a 3; run; open b 1 2 3 4 5;
    hits b > 0 1 2 3
the end of the longest hit is computed again
    full dropped=1 | open a 1 2 3 4; take a 2; run; open b 1 2 3 4; hits b > 0 1;
    take a 9; run; hits b > 0 1 2; open c 1 2 3 4 5; hits c > 0 1 2 3
a unit of two tokens is dropped
    full dropped=2 | open a 1 2 3 4 5 6; take a 4; run; open b 1 2 3 4 5; hits b > 0 1 2
a later chunk that begins is a longer hit
    chunked:2 dropped=1 | open a 1 2 3 4 5; hits a > 0 2
without a longer hit there is none
    chunked:4 dropped=2 | open a 1 2 3 4 5 6 7; hits a > 0; take a 6; run;
    open b 1 2 3 4 5 6 7; hits b > 0 1 2 3 4
a window of one reads nothing before its token
    sliding:1 | open a 1 2 3; hits a > 0 1 2
# --- extras
an extra belongs to its positions, and to what comes after them
    full | open a 1 9 9 2 3 extras=[[1,3,'cat']]; take a 9; run; open b 1 9 9 2 3;
    hits b > 0 1; open c 1 9 9 2 3 extras=[[1,3,'cut']]; hits c > 0 1;
    open d 1 9 9 2 3 extras=[[1,3,'cat']]; hits d > 0 1 2 3 4
before the first extra that differs there are hits
    full | open a 9 9 2 9 3 extras=[[0,2,'cat'],[3,4,'dog']]; take a 9; run;
    open b 9 9 2 9 3 extras=[[0,2,'cat'],[3,4,'dig']]; hits b > 0 1 2 3;
    open c 9 9 2 9 3 extras=[[0,2,'cat']]; hits c > 0 1 2 3;
    open d 9 9 2 9 3 extras=[[0,2,'dog'],[3,4,'cat']]; hits d > 0
an extra that begins at another position is another
    full | open a 9 9 9 9 extras=[[1,3,'k']]; take a 9; run;
    open b 9 9 9 9 extras=[[2,4,'k']]; hits b > 0 1; open c 9 9 9 9 extras=[[0,2,'k']];
    hits c > 0; open d 9 9 9 9 extras=[[2,3,'k']]; hits d > 0 1
one that ends elsewhere is the same up to the nearer end
    full | open a 9 9 9 9 9 extras=[[1,3,'k']]; take a 9; run;
    open b 9 9 9 9 9 extras=[[1,4,'k']]; hits b > 0 1 2 3;
    open c 9 9 9 9 9 extras=[[1,2,'k']]; hits c > 0 1 2
two side by side are not a long one
    full | open a 9 9 9 9 9 extras=[[0,4,'k']]; take a 9; run;
    open b 9 9 9 9 9 extras=[[0,2,'k'],[2,4,'k']]; hits b > 0 1 2
what lies before a window counts too
    sliding:1+sliding:2 | open a 9 1 2 3 extras=[[0,1,'k']]; take a 9; run;
    open b 9 1 2 3; hits b > 0; open c 9 1 2 3 extras=[[0,1,'k']]; hits c > 0 1 2 3
an extra is cut where a request goes back or is forked
    full | open a 9 9 9 9 extras=[[0,4,'k']]; take a 3; run; fork a b 9 9;
    rewind a 2 9 9; take b 9; take a 9; run; open c 9 9 9 9 9 extras=[[0,4,'k']];
    hits c > 0 1 2 3; open d 9 9 9 9 9 9 extras=[[0,3,'k']]; hits d > 0 1 2 3 4 5;
    open e 9 9 9 9 9 extras=[[0,2,'k']]; hits e > 0 1 2 3 4; open f 9 9 9 9 9; hits f > 0
it stays while a request waits, and after it
    full | open a 9 9 3 extras=[[0,2,'k']]; take a 9; run; preempt a; hits a > 0 1 2;
    free a; save > yes; restore; open b 9 9 3; hits b > 0;
    open c 9 9 3 extras=[[0,2,'k']]; hits c > 0 1 2
a wrong extra opens nothing
    full | open a 1 2 3 extras=[[2,4,'k']] > error: the extra 'k' covers [2, 4), but needs
    a key and at least one of the positions [0, 3);
    open a 1 2 3 extras=[[-1,2,'k']] > error: the extra 'k' covers [-1, 2), but needs
    a key and at least one of the positions [0, 3);
    open a 1 2 3 extras=[[1,1,'k']] > error: the extra 'k' covers [1, 1), but needs a key
    and at least one of the positions [0, 3);
    open a 1 2 3 extras=[[0,2,'k'],[1,3,'l']] > error: the extra 'l' covers [1, 3), but
    needs a key and at least one of the positions [2, 3);
    open a 1 2 3 extras=[[0,2,'']] > error: the extra '' covers [0, 2), but needs a key
    and at least one of the positions [0, 3);
    open a 1 extras=[[0,1,'k']]; is a > 1, -, 0
# --- drafts
drafts come behind the token that was sampled
    full | open a 1 2; take a 9; run; accept a 3 drafts=[4,5]; is a > 1 2 3, 4 5, 2;
    take a 9; run; is a > 1 2 3, 4 5, 5
a draft that is right stays
    full | open a 1 2; take a 9; run; accept a 3 drafts=[4,5]; take a 9; run;
    accept a 6 kept=1; is a > 1 2 3 4 6, -, 4
a draft that is wrong can never be hit
    full | open a 1 2; take a 9; run; accept a 3 drafts=[4]; take a 9; run;
    open b 1 2 3 4 5; hits b > 0 1 2 3; accept a 6; hits b > 0 1 2 3
a draft that was kept can be hit
    full | open a 1 2; take a 9; run; accept a 3 drafts=[4]; take a 9; run;
    accept a 6 kept=1; open b 1 2 3 4 5; hits b > 0 1 2 3 4
drafts that do not fit into the step are dropped
    full | open a 1 2; take a 9; run; accept a 3 drafts=[4,5]; take a 2;
    is a > 1 2 3, 4, 2
a state after drafts that are wrong can never be hit
    full+state | open a 1 2; take a 9; run; accept a 3 drafts=[4,5]; take a 9; run;
    open b 1 2 3 4 5 6; hits b > 0 1 2 3; accept a 6 kept=1; hits b > 0 1 2 3 4
more cannot be kept than was drafted
    full | open a 1 2; take a 9; run; accept a 3 drafts=[4]; take a 9; run;
    accept a 6 kept=2 > error: accept: 2 of the 1 drafts of a
nothing is sampled before all is computed
    full | open a 1 2; accept a 3 > error: accept: a has tokens that are not computed;
    take a 1; run; accept a 3 > error: accept: a has tokens that are not computed;
    take a 1; accept a 3 > error: accept: a has tokens that are not computed; run;
    accept a 3; is a > 1 2 3, -, 2
# --- trees of drafts
a draft follows its parent, beside its siblings
    full | open a 1; take a 9; run; accept a 2 drafts=[3,4,5,6] parents=[0,0,1,1];
    take a 9; run; content a 1 > 1 2; content a 2 > 1 2 3; content a 3 > 1 2 4;
    content a 4 > 1 2 3 5; content a 5 > 1 2 3 6
what is kept is the path to the last draft, not the drafts before it
    full | open a 1; take a 9; run; accept a 2 drafts=[3,4,5,6] parents=[0,0,1,2];
    take a 9; run; accept a 7 kept=4; is a > 1 2 4 6 7, -, 4; open b 1 2 4 6 7;
    hits b > 0 1 2 3 4; open c 1 2 3 5; hits c > 0 1 2
a path may end inside of the tree, or begin late in it
    full | open a 1; take a 9; run; accept a 2 drafts=[3,4,5] parents=[0,1,0]; take a 9;
    run; accept a 6 kept=1 drafts=[7,8] parents=[0,0]; is a > 1 2 3 6, 7 8, 3; take a 9;
    run; accept a 9 kept=2; is a > 1 2 3 6 8 9, -, 5
nothing of a tree is kept
    full | open a 1; take a 9; run; accept a 2 drafts=[3,4] parents=[0,0]; take a 9;
    run; open b 1 2 3 4; hits b > 0 1 2; accept a 5; is a > 1 2 5, -, 2; hits b > 0 1 2
two equal drafts are two
    full | open a 1; take a 9; run; accept a 2 drafts=[3,3,4] parents=[0,0,2]; take a 9;
    run; content a 2 > 1 2 3; content a 3 > 1 2 3; accept a 5 kept=3;
    is a > 1 2 3 4 5, -, 4
a step that is too short drops the last drafts, which have no children in it
    full | open a 1; take a 9; run; accept a 2 drafts=[3,4,5] parents=[0,0,2];
    take a 3; is a > 1 2, 3 4, 1; run; accept a 6 kept=3 > error: accept: 3 of the 2
    drafts of a; accept a 6 kept=2; is a > 1 2 4 6, -, 3
a fork of a tree takes no drafts
    full | open a 1; take a 9; run; accept a 2 drafts=[3,4] parents=[0,0]; take a 9;
    run; fork a b 5; is b > 1 2 5, -, 2; accept a 6 kept=2; is a > 1 2 4 6, -, 3;
    accept a 7 > error: accept: a has tokens that are not computed
unless the drafts that were computed form a chain
    full | open a 1; take a 9; run; accept a 2 drafts=[3,4] parents=[0,0]; take a 2;
    run; fork a b 5; is b > 1 2 3 5, -, 3; rewind a 3 5; is a > 1 2 3 5, -, 3
nor does a request go back to a draft of a tree
    full | open a 1; take a 9; run; accept a 2 drafts=[3,4] parents=[0,0]; take a 9;
    run; rewind a 3 5 > error: rewind: a to 3; rewind a 2 5; is a > 1 2 5, -, 2; take a 9;
    run; accept a 6; is a > 1 2 5 6, -, 3
a request without slots has no tree
    full | open a 1; take a 9; run; accept a 2 drafts=[3,4] parents=[0,0]; preempt a;
    is a > 1 2, -, 0; take a 9; run; accept a 5 kept=1 > error: accept: 1 of the 0 drafts
    of a; accept a 5 drafts=[6,7]; is a > 1 2 5, 6 7, 2; content a 4 > 1 2 5 6 7
a draft follows one before it
    full | open a 1; take a 9; run; accept a 2 drafts=[3,4] parents=[0,2] > error:
    accept: the parents of 2 drafts are [0, 2], but each draft needs 0 or an earlier
    draft;
    accept a 2 drafts=[3,4] parents=[2,1] > error: accept: the parents of 2 drafts are
    [2, 1], but each draft needs 0 or an earlier draft;
    accept a 2 drafts=[3,4] parents=[-1,0] > error: accept: the parents of 2 drafts are
    [-1, 0], but each draft needs 0 or an earlier draft;
    accept a 2 drafts=[3,4] parents=[0] > error: accept: the parents of 2 drafts are [0],
    but each draft needs 0 or an earlier draft;
    accept a 2 parents=[0] > error: accept: the parents of 0 drafts are [0], but each
    draft needs 0 or an earlier draft; is a > 1, -, 1
# --- groups that lag
what a group left out is hit nowhere, nor what comes after it
    full+full! | open a 1 2 3 4 5; take a 2; run; take a 1; run lags=True;
    open b 1 2 3 4 5; hits b > 0 1 2; take a 9; run; hits b > 0 1 2; free a;
    hits b > 0 1 2
another request may compute all of it
    full+full! | open a 1 2 3 4; take a 9; run lags=True; open b 1 2 3 4; hits b > 0;
    take b 3; run; open c 1 2 3 4; hits c > 0 1 2 3; free b; hits c > 0 1 2 3
whether a step leaves groups out is known when it runs
    full+full! | open a 1 2 3; take a 9; open b 1 2 3; hits b > 0; run; hits b > 0 1 2
without slots nothing is left out
    full+full! | open a 1 2 3 4; take a 2; run; take a 1; run lags=True; preempt a;
    hits a > 0 1 2; take a 9 hit=2; run; open b 1 2 3 4 5; hits b > 0 1 2 3 4
drafts are left out with the token before them
    full+full! | open a 1 2; take a 9; run; accept a 3 drafts=[4]; take a 9;
    run lags=True; accept a 5 kept=1; open b 1 2 3 4 5; hits b > 0 1 2
a fork lacks it too, a request that goes back before it computes it
    full+full! | open a 1 2 3 4; take a 2; run; take a 1; run lags=True; fork a b 7;
    take b 9; run; open c 1 2 3 7 8; hits c > 0 1 2; rewind a 2 3 7; take a 9; run;
    hits c > 0 1 2 3 4
one that goes back behind it still lacks it
    full+full! | open a 1 2 3 4; take a 1; run lags=True; take a 2; run; rewind a 2 3 7;
    take a 9; run; open c 1 2 3 7 8; hits c > 0; rewind a 1 2; take a 9; run;
    hits c > 0
only complete content is saved
    full+full! | open a 1 2 3 4; take a 1; run; take a 9; run lags=True; free a;
    save > yes; restore; open b 1 2 3 4; hits b > 0 1
# --- steps in flight
tokens are computed when their step has finished
    full | open a 1 2 3; take a 2; launch; is a > 1 2 3, -, 0; finish; is a > 1 2 3, -, 2
the next tokens come while the step before is unfinished
    full | open a 1 2 3 4; take a 2; launch; take a 9; is a > 1 2 3 4, -, 0; launch;
    take a 1 > error: schedule: a has no token to compute; finish; is a > 1 2 3 4, -, 2;
    finish; is a > 1 2 3 4, -, 4; accept a 5; is a > 1 2 3 4 5, -, 4
the sampled token is scheduled before its step has finished, and told when it has
    full overlap=True | open a 1 2 3; take a 9; launch; accept a 4; told a > 3; take a 9;
    launch; open b 1 2 3 4 5; hits b > 0 1 2 3; finish; told a > 4; is a > 1 2 3 4, -, 3;
    hits b > 0 1 2 3 4; finish; is a > 1 2 3 4, -, 4; accept a 5; is a > 1 2 3 4 5, -, 4
a request is two sampled tokens ahead
    full overlap=True | open a 1 2; take a 9; launch; accept a 3; take a 9; launch;
    accept a 4; told a > 2; take a 9; open b 1 2 3 4 5; hits b > 0 1 2; finish;
    told a > 3; hits b > 0 1 2 3; launch; finish; told a > 4; hits b > 0 1 2 3 4;
    is a > 1 2 3 4, -, 3; accept a 5; told a > 4; finish; told a > 5;
    is a > 1 2 3 4 5, -, 4
the step before the last chunk of a prompt samples nothing
    full overlap=True | open a 1 2 3; take a 2; launch; told a > 3;
    accept a 4 > error: accept: a has tokens that are not computed; take a 9;
    accept a 4 > error: accept: a has tokens that are not computed; launch; accept a 4;
    finish; told a > 3; finish; told a > 4; is a > 1 2 3 4, -, 3
a sampled token that is planned is not hit in its step
    full overlap=True | open a 1 2; take a 9; launch; accept a 3; take a 9;
    open b 1 2 3 4; hits b > 0 1 2
one that is preempted or ends before it is told loses the token
    full overlap=True | open a 1 2; take a 9; launch; accept a 3; take a 9; launch;
    preempt a; is a > 1 2, -, 0; open b 1 2 3 4; hits b > 0 1 2; finish; finish;
    is a > 1 2, -, 0; hits b > 0 1 2; take a 9 hit=1; launch; accept a 5; free a; finish;
    open c 1 2 5 6; hits c > 0 1 2
only the token after drafts that are judged is known
    full overlap=True | open a 1 2; take a 9; run; accept a 3 drafts=[4]; take a 9;
    launch; accept a 5 > error: accept: a has tokens that are not computed; finish;
    accept a 5; told a > 4
none is sampled ahead unless the engine does
    full | open a 1; take a 9; launch;
    accept a 2 > error: accept: a has tokens that are not computed
a later step reuses what a launched step computes
    full | open a 1 2 3; open b 1 2 3 4; take a 9; launch; hits b > 0 1 2 3;
    take b 1 hit=3; launch; finish; is a > 1 2 3, -, 3; is b > 1 2 3 4, -, 3; finish;
    is b > 1 2 3 4, -, 4
also a state, but none of its own step
    state | open a 1 2 3 4; open b 1 2 3 4 5; take a 2; launch; take a 9; hits b > 0 1 2;
    launch; hits b > 0 1 2 3 4; finish; finish; hits b > 0 1 2 3 4
what comes back for a request that is gone is dropped
    full | open a 1 2 3; take a 2; launch; preempt a; is a > 1 2 3, -, 0; finish;
    is a > 1 2 3, -, 0; take a 1; launch; free a; open a 7 8; finish; is a > 7 8, -, 0
also if it is in a later step again
    full | open a 1 2 3 4; take a 2; launch; preempt a; take a 3; launch; finish;
    is a > 1 2 3 4, -, 0; finish; is a > 1 2 3 4, -, 3
but other requests come back
    full | open a 1 2; open b 3 4; take a 9; take b 9; launch; free a; finish;
    is b > 3 4, -, 2
the step executes without its request, and can be hit
    full | open a 1 2 3; take a 9; launch; preempt a; hits a > 0 1 2; take a 1 hit=2;
    launch; free a; finish; finish; open b 1 2 3 4; hits b > 0 1 2 3
unless the request did not want that
    full | open a 1 2 3; take a 9; launch; free a reuse=False; open b 1 2 3; hits b > 0;
    finish; hits b > 0
a request in flight is not changed
    full | open a 1 2 3; take a 1; run; take a 2; launch;
    accept a 4 > error: accept: a has tokens that are not computed;
    fork a b 4 > error: fork: a has not computed its step;
    rewind a 1 4 > error: rewind: a to 1; finish; rewind a 1 4; is a > 1 4, -, 1
it is offloaded as far as it is computed
    full | open a 1 2 3; take a 1; launch; offload a t > error: a has
    computed nothing; finish; take a 1; launch; offload a t; landed t; is a > 1 2 3, -, 1
it may lose its slots
    full | open a 1 2 3; open b 4; take a 2; losers b > -; launch; losers b > a
no reset and no saving in flight
    full | open a 1 2 3; take a 9; launch; free a; reset > no; save > no; finish;
    reset > yes; save > yes
a cache in flight may forget all, unless a request needs a slot
    full | open a 1 2 3; take a 2; launch; may_forget > no; finish; may_forget > no;
    take a 1; launch; free a; reset > no; may_forget > yes; forget; open b 1 2 3;
    hits b > 0
also where a chunk begins
    chunked:2 | open a 1 2 3 4 5; take a 1; run; may_forget > no; take a 1;
    may_forget > no; run; may_forget > yes; take a 1; may_forget > no
a new cache has nothing in flight
    full | open a 1 2 3; save > yes; take a 9; launch; restore; open a 1; take a 1;
    launch; finish; is a > 1, -, 1
# --- letting go
a request that is preempted waits, and can hit what it had
    full | open a 1 2 3; take a 9; run; accept a 4 drafts=[5]; preempt a;
    is a > 1 2 3 4, -, 0; hits a > 0 1 2 3
what a request had not computed is not hit
    full | open a 1 2 3; take a 2; free a; open b 1 2 3; hits b > 0
what a request had computed is hit after it
    full | open a 1 2 3; take a 2; run; free a; open b 1 2 3; hits b > 0 1 2
unless it does not want that
    full | open a 1 2 3; take a 2; run; free a reuse=False; open b 1 2 3; hits b > 0
one who shares it still holds it
    full | open a 1 2 3; take a 2; run; open b 1 2 4; take b 9 hit=2; free a reuse=False;
    run; open c 1 2 3; hits c > 0 1 2
a reset forgets what was computed
    full | open a 1 2 3; take a 9; run; free a; reset > yes; open b 1 2 3; hits b > 0
no reset while a request holds slots
    full | open a 1 2 3; take a 9; reset > no; run; reset > no; free a; reset > yes
a request that waits holds none
    full | open a 1 2 3; reset > yes; take a 9; run; preempt a; reset > yes; hits a > 0
# --- branches
a fork goes on from what is computed
    full | open a 1 2 3; take a 2; run; fork a b 7 8; is b > 1 2 7 8, -, 2;
    is a > 1 2 3, -, 2; take b 9; take a 9; run; is b > 1 2 7 8, -, 4
a fork of drafts takes them as tokens
    full | open a 1 2; take a 9; run; accept a 3 drafts=[4]; take a 9; run; fork a b 5;
    is b > 1 2 3 4 5, -, 4
a fork needs a token and a source that is computed
    full | open a 1 2; fork a b 3 > error: fork: a has not computed its step; take a 9;
    fork a b 3 > error: fork: a has not computed its step; run;
    fork a b > error: fork: the new request has no token to compute;
    fork a a 3 > error: open: there is a request a already
a request goes back and on with others
    full | open a 1 2 3; take a 9; run; rewind a 1 8 9; is a > 1 8 9, -, 1; open b 1 2 4;
    hits b > 0 1 2
it goes back to what is computed
    full | open a 1 2 3; take a 2; run; rewind a 3 8 > error: rewind: a to 3;
    rewind a 0 8 > error: rewind: a to 0; rewind a 2 > error: rewind: a to 2
# --- transfers
an offload changes nothing
    full | open a 1 2 3; take a 2; run; offload a t; is a > 1 2 3, -, 2; take a 9; run;
    landed t; free a; open b 1 2 3 4; hits b > 0 1 2 3
what is loaded is computed when it has landed
    full | open a 1 2 3; take a 9; run; free a; open b 1 2 3 4; load b t 2;
    is b > 1 2 3 4, -, 0; landed t; is b > 1 2 3 4, -, 2; take b 9; run;
    is b > 1 2 3 4, -, 4
a request that waits for a transfer does nothing else
    full | open a 1 2 3; take a 9; run; open b 1 2 3; load b t 2;
    take b 1 > error: schedule: b waits for t; load b u 2 > error: load: b holds slots;
    offload b u > error: b has computed nothing;
    accept b 4 > error: accept: b has tokens that are not computed;
    fork b c 4 > error: fork: b has not computed its step;
    rewind b 1 4 > error: rewind: b to 1; landed t; take b 1; run; accept b 4;
    is b > 1 2 3 4, -, 3
without its transfer a request waits again
    full | open a 1 2 3; take a 9; run; open b 1 2 3 4; load b t 3; failed t;
    is b > 1 2 3 4, -, 0; hits b > 0 1 2 3; take b 1 hit=2; run; is b > 1 2 3 4, -, 3
or it goes on with what had arrived
    full | open a 1 2 3; take a 9; run; open b 1 2 3 4; load b t 3; failed t kept=1;
    is b > 1 2 3 4, -, 1; take b 1; run; is b > 1 2 3 4, -, 2
a transfer goes on without its request
    full | open a 1 2 3; take a 9; run; open b 1 2 3 4; load b t 2; preempt b;
    load b u 3; landed t; is b > 1 2 3 4, -, 0; landed u; is b > 1 2 3 4, -, 3;
    offload a t; free a; landed t
also without one that had its name
    full | open a 1 2 3; take a 9; run; open b 1 2 3 4; load b t 2; free b;
    open b 1 2 3 4; landed t; is b > 1 2 3 4, -, 0; hits b > 0 1 2 3
what one who loads has is there, whoever had it before
    full | open a 1 2 3; take a 9; run; open b 1 2 3 4; load b t 2; free a reuse=False;
    open c 1 2 3 4; hits c > 0 1 2; failed t; hits c > 0 1 2
a transfer is over once
    full | open a 1 2 3; landed t > error: there is no transfer t;
    failed t > error: there is no transfer t; take a 9; run; offload a t;
    offload a t > error: there is a transfer t already; failed t;
    landed t > error: there is no transfer t; offload a t; landed t;
    failed t > error: there is no transfer t; load b t 1 > error: there is no request b;
    offload b t > error: there is no request b
nothing is offloaded before it is computed
    full | open a 1 2 3; offload a t > error: a has computed nothing; take a 9;
    offload a t > error: a has computed nothing
what another cache sends is computed when it has landed, and is not hit before
    full | open a 1 2 3 4; receive a t 3; is a > 1 2 3 4, -, 0; open b 1 2 3 4;
    hits b > 0; landed t; is a > 1 2 3 4, -, 3; hits b > 0 1 2 3; take a 9; run;
    is a > 1 2 3 4, -, 4
it comes behind what a request can hit
    full | open a 1 2; take a 9; run; open b 1 2 3 4; receive b t 3 hit=2; open c 1 2 3 5;
    hits c > 0 1 2; free a reuse=False; hits c > 0 1 2; landed t; hits c > 0 1 2 3
what came only in part is hit as far as the request keeps it
    full | open a 1 2 3 4; receive a t 3; failed t kept=2; is a > 1 2 3 4, -, 2;
    open b 1 2 3 4; hits b > 0 1 2; receive b u 3; failed u; is b > 1 2 3 4, -, 0
what comes for a request that has gone is not hit
    full | open a 1 2 3 4; receive a t 3; preempt a; landed t; is a > 1 2 3 4, -, 0;
    hits a > 0; take a 1; run; is a > 1 2 3 4, -, 1
who receives waits for it
    full | open a 1 2 3; receive a t 2; receive a u 2 > error: receive: a holds slots;
    take a 1 > error: schedule: a waits for t; landed t; take a 1; run; accept a 4;
    is a > 1 2 3 4, -, 3
what is sent stays
    full | open a 1 2; send a t > error: a has computed nothing; take a 9; run; send a t;
    free a; reset > no; landed t; reset > yes
no reset while a transfer is under way
    full | open a 1 2 3; take a 9; run; offload a t; free a; reset > no; landed t;
    reset > yes
# --- saving
what was saved is there again, and no request
    full | open a 1 2 3; take a 9; run; free a; open b 5; save > yes; restore;
    open b 1 2 3 4; hits b > 0 1 2 3
what came later is gone
    full | open a 1 2 3; take a 9; run; free a; save > yes; open b 1 2 3 4 5; take b 9;
    run; free b; restore; open c 1 2 3 4 5 6; hits c > 0 1 2 3
nothing is saved while a request holds slots or a transfer is under way
    full | open a 1 2 3; take a 9; save > no; run; offload a t; free a; save > no;
    landed t; save > yes
# --- admission
a step has slots up to its end
    full | open a 1 2 3 4; slots a > 0; take a 2; slots a > 2; run; take a 1; slots a > 3;
    preempt a; slots a > 0; take a 4; run; rewind a 3 5 6; slots a > 3
a whole prompt has slots from its first step on
    full admits=prompt | open a 1 2 3 4; take a 1; slots a > 4; run; take a 9; run;
    accept a 5; slots a > 4; take a 1; slots a > 5; run; preempt a; take a 2; slots a > 5
so has the output
    full admits=output most=8 | open a 1 2; take a 1; slots a > 8; run; take a 1; run;
    accept a 3; slots a > 8; rewind a 1 4; slots a > 1; take a 1; slots a > 8
so have further tokens
    full ahead=2 | open a 1 2 3; take a 2; slots a > 4; run; take a 1; slots a > 5; run;
    accept a 4; take a 1; slots a > 6
so have further tokens after a whole prompt
    full admits=prompt ahead=1 | open a 1 2 3; take a 1; slots a > 4
a load has slots for what it brings
    full admits=prompt | open a 1 2 3; take a 9; run; free a; open b 1 2 3 4; load b t 2;
    slots b > 2; landed t; take b 1; slots b > 4
# --- slots that a request may lose to another
a request that waits for its next step
    full | open a 1 2 3; losers a > -; open b 4; losers b > -; take a 2; losers b > -;
    run; losers b > a; losers a > -; preempt a; losers b > -; take b 1; losers a > -; run;
    losers a > b; accept b 5; losers a > b; take b 1; losers a > -
a request that is refused
    full | open a 1 2; losers a refused=True > -; take a 1; losers a refused=True > -;
    run; open b 3; take b 1; run; losers a refused=True > a b; losers a > b
also if it waits for a transfer or shares its slots
    full | open a 1 2 3; take a 9; run; free a; open b 1 2 3 4; load b t 2; open c 1;
    losers c > b; landed t; losers c > b; fork b d 9; losers c > b d
# --- weights
older weights are never hit
    full | open a 1 2 3; take a 9; run; free a; open b 1 2 3; hits b > 0 1 2; update;
    hits b > 0; take b 9; run; open c 1 2 3; hits c > 0 1 2
a request goes on, and what it computes later is not hit either
    full | open a 1 2 3; take a 9; run; update; accept a 4; take a 9; run;
    is a > 1 2 3 4, -, 4; open b 1 2 3 4 5; hits b > 0; free a; hits b > 0
two requests with one prefix: what is computed anew may be hit
    full | open a 1 2 3 4; take a 2; run; update; open b 1 2 3 4; take b 9; run; take a 9;
    run; free b; open c 1 2 3 4; hits c > 0 1 2 3; free a; hits c > 0 1 2 3
one that has let go of its slots computes everything anew
    full | open a 1 2 3; take a 9; run; update; preempt a; hits a > 0; take a 2; run;
    open b 1 2 3; hits b > 0 1 2
a launched step has the older weights, the planned step the new ones
    full | open a 1 2 3; open b 4 5 6; take a 9; launch; take b 9; update; open c 1 2 3;
    open d 4 5 6; hits c > 0; hits d > 0 1 2; launch; finish; finish; hits c > 0;
    hits d > 0 1 2
a launched step of one that has ended
    full | open a 1 2 3; take a 9; launch; free a; open b 1 2 3; hits b > 0 1 2; update;
    hits b > 0; finish; hits b > 0
a hit in the planned step is older
    full | open a 1 2 3; take a 9; run; open b 1 2 3; take b 9 hit=2; update; run;
    open c 1 2 3; hits c > 0
a fork and a rewind go on with what is older
    full | open a 1 2 3; take a 9; run; update; fork a b 9; take b 9; run;
    open c 1 2 3 9 9; hits c > 0; rewind a 1 7; take a 9; run; open d 1 7 7; hits d > 0;
    weights b 3 > 3; weights a 1 > 1
a load
    full | open a 1 2 3; take a 9; run; free a; open b 1 2 3; load b t 2; update;
    landed t; take b 9; run; is b > 1 2 3, -, 3; open c 1 2 3; hits c > 0
a load that fails
    full | open a 1 2 3; take a 9; run; free a; open b 1 2 3; load b t 2; update;
    failed t 1; open c 1 2 3; hits c > 0; take b 9; run; hits c > 0; preempt b; take b 9;
    run; hits c > 0 1 2
a load that fails, and nothing is kept
    full | open a 1 2 3; take a 9; run; free a; open b 1 2 3; load b t 2; update;
    failed t; open c 1 2 3; hits c > 0; take b 9; run; hits c > 0 1 2
each position has the weights that its K and V depend on
    full | update; open a 1 2 3 4 5; take a 2; run; update; take a 1; run; update; update;
    take a 9; run; weights a 1 > 0; weights a 2 > 0 2; weights a 3 > 0 2 3 3; preempt a;
    weights a 3 > 0 0 0 0
rejected drafts are older than what comes in their place
    full | open a 1 2; take a 9; run; accept a 3 drafts=[4,5,6]; take a 9; run; update;
    weights a 5 > -; accept a 7 kept=1; weights a 3 > -; weights a 4 > 4
a reset forgets nothing that is held
    full | open a 1 2 3; take a 9; run; update; reset > no; free a; reset > yes
# --- mistakes
names and tokens
    full | open a > error: open: a request has at least one token; open a 1;
    open a 2 > error: open: there is a request a already;
    open b 1 in= > error: open: a namespace or an adapter is an empty text;
    open b 1 by= > error: open: a namespace or an adapter is an empty text;
    take b 1 > error: there is no request b;
    take a 0 > error: schedule: a has no token to compute; take a 1;
    take a 1 > error: schedule: a is in this step already; run;
    take a 1 > error: schedule: a has no token to compute
"""


class PagedDesk(Desk):
    """The requests of one case."""

    def __init__(self, head: str) -> None:
        [groups], options = read_words(head)
        pairs = [group.partition(":") for group in groups.split("+")]
        made = [
            Group(name.rstrip("!"), int(width or 0), name.endswith("!"))
            for name, _, width in pairs
        ]
        self.cache = PagedCache(made, **options)

    def do_open(self, name: str, *tokens: int, **named: Any) -> None:
        names = named.get("in"), named.get("by")
        self.cache.open(name, tokens, *names, named.get("extras", ()))

    def do_hits(self, name: str) -> Any:
        most = len(self.cache.requests[name].tokens)
        return [hit for hit in range(most + 1) if self.cache.can_hit(name, hit)]

    def do_take(self, name: str, count: int, hit: int = 0) -> None:
        self.cache.schedule(name, count, hit)

    def do_accept(
        self,
        name: str,
        token: int,
        kept: int = 0,
        drafts: Sequence[int] = (),
        parents: Sequence[int] = (),
    ) -> None:
        self.cache.accept(name, kept, token, drafts, parents)

    def do_content(self, name: str, position: int) -> Any:
        _, inputs = self.cache.requests[name].get_content(position)
        return inputs

    def do_is(self, name: str) -> str:
        request = self.cache.requests[name]
        tokens = [getattr(item, "token", item) for item in request.tokens]
        return f"{say(tokens)}, {say(request.drafts)}, {request.computed}"

    def do_told(self, name: str) -> int:
        return self.cache.requests[name].told

    def do_losers(self, name: str, refused: bool = False) -> list[str]:
        requests = self.cache.requests
        return [x for x in requests if self.cache.can_lose(name, x, refused)]

    def do_slots(self, name: str) -> int:
        return self.cache.requests[name].admitted

    def do_failed(self, transfer: str, kept: int = 0) -> None:
        self.cache.failed(transfer, kept)

    def do_run(self, lags: bool = False) -> None:
        self.cache.launch(lags)
        self.cache.finish()

    def do_save(self) -> bool:
        self.saved = self.cache.save()
        return self.saved is not None

    def do_restore(self) -> None:
        self.cache.restore(self.saved)

    def do_fork(self, source: str, target: str, *tokens: int) -> None:
        self.cache.fork(source, target, tokens)

    def do_update(self) -> None:
        self.cache.update_weights()

    def do_weights(self, name: str, position: int) -> Any:
        return self.cache.requests[name].get_weights(position)

    def do_rewind(self, name: str, to: int, *tokens: int) -> None:
        self.cache.rewind(name, to, tokens)


@each(read_table(TEXT))
def test_case(case: Case) -> None:
    PagedDesk(case.head).check(case.steps)


@pytest.mark.parametrize(
    ("group", "firsts"),
    [
        (Group("full"), [0, 0, 0, 0, 0, 0]),
        (Group("sliding", 1), [0, 1, 2, 3, 4, 5]),
        (Group("sliding", 3), [0, 0, 0, 1, 2, 3]),
        (Group("chunked", 2), [0, 0, 2, 2, 4, 4]),
        (Group("chunked", 4), [0, 0, 0, 0, 4, 4]),
    ],
)
def test_the_oldest_position_that_a_token_attends_to(
    group: Group, firsts: Sequence[int]
) -> None:
    assert [group.first(query) for query in range(6)] == firsts


@pytest.mark.parametrize(
    ("type", "ranks", "interleave", "places"),
    [
        # of each position of a block of four: rank:index on it
        ("full", 1, 1, "0:0 0:1 0:2 0:3"),
        ("full", 2, 1, "0:0 1:0 0:1 1:1"),
        ("full", 2, 2, "0:0 0:1 1:0 1:1"),
        ("full", 4, 1, "0:0 1:0 2:0 3:0"),
        ("sliding", 2, 2, "0:0,1:0 0:1,1:1 0:2,1:2 0:3,1:3"),
        ("chunked", 1, 1, "0:0 0:1 0:2 0:3"),
        # of eight
        ("full", 2, 2, "0:0 0:1 1:0 1:1 0:2 0:3 1:2 1:3"),
    ],
)
def test_where_the_ranks_store_the_positions_of_a_block(
    type: str, ranks: int, interleave: int, places: str
) -> None:
    stored = [
        ",".join(
            f"{rank}:{at}" for rank, at in list_places(type, index, ranks, interleave)
        )
        for index in range(len(places.split()))
    ]
    assert " ".join(stored) == places
