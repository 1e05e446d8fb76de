"""Several users over one cache of many sequences: who gets which slot, and what of it is
reused, by cases that were worked out by hand."""

from __future__ import annotations

from cases import Case, each, read_table
from prefix_book import SlotsDesk

CASES = read_table(
    """
# --- one slot
of an exact repeat one token is left
    causal | ask abc > 0 abc; begin abc > 0 c; holds 0 > ab left=c
a request of one token is all that is left
    causal | ask a > 0 a; begin a > 0 a; holds 0 > - left=a
of a shorter prompt one token is left, and the rest is gone
    causal | ask abcd > 0 abcd; ask ab > 0 b; holds 0 > ab
of a longer prompt what is new is left
    causal | ask abc > 0 abc; ask abcde > 0 de; holds 0 > abcde
what lies behind the parting is gone
    causal | ask abcd > 0 abcd; begin abx > 0 x; holds 0 > ab left=x; feed 0 1 > 2;
    holds 0 > abx
parting at the first token
    causal | ask abcd > 0 abcd; ask xbcd > 0 xbcd; holds 0 > xbcd
what was generated and computed is kept
    causal | begin ab > 0 ab; feed 0 2 > 0; say 0 cd; feed 0 1 > 2; close 0 > 3;
    holds 0 > abc; begin abcd > 0 d
cancelled with nothing computed, what was reused stays
    causal | ask abcd > 0 abcd; begin abx > 0 x; close 0 > 2; holds 0 > ab;
    begin abcd > 0 cd
a pass that broke off counts for nothing, and is taken out of the cache
    causal | begin abcd > 0 abcd; feed 0 2 > 0; fail 0 2 > 2;
    holds 0 > ab cached=abcd left=cd; close 0 > 2; holds 0 > ab; begin abcx > 0 cx;
    feed 0 2 > 2; holds 0 > abcx
a first pass that broke off leaves nothing
    causal | begin ab > 0 ab; fail 0 2 > 0; close 0 > 0; holds 0 > -
# --- a single user
a single user gets the slot with the longest prefix
    causal count=2 | begin ab > 0 ab; begin abcd > 1 abcd; feed 0 2 > 0; feed 1 4 > 0;
    close 0 > 2; close 1 > 4; ask abce > 1 e; holds 0 > ab; holds 1 > abce
a single user goes on in a slot that parts, without a copy
    causal count=2 | ask abcd > 0 abcd; ask abx > 0 x; holds 1 > -
a slot in use is not given, and not copied from
    causal count=2 | begin abc > 0 abc; feed 0 3 > 0; begin abcd > 1 abcd; holds 0 > abc
none is free: no slot, until one is closed
    causal count=2 | begin abc > 0 abc; begin xyz > 1 xyz; begin abc > busy; feed 1 3 > 0;
    close 1 > 3; begin xyzw > 1 w; begin x > busy; holds 0 > - left=abc
# --- several users
a slot that is wholly matched goes on
    causal several | ask abc > 0 abc; begin abcd > 0 d; holds 1 > -
of an exact repeat one token is left, in the same slot
    causal several | ask abc > 0 abc; begin abc > 0 c
who parts gets a slot of his own, and a copy of what is shared
    causal several | ask abcd > 0 abcd; begin abxy > 1 xy; holds 1 > ab left=xy;
    feed 1 2 > 2; holds 1 > abxy; holds 0 > abcd
a shorter prompt is a parting too
    causal several | ask abcd > 0 abcd; begin ab > 1 b; holds 1 > a left=b; holds 0 > abcd
a copy is taken from a slot in use as well
    causal several | begin abc > 0 abc; feed 0 3 > 0; begin abq > 1 q; feed 1 1 > 2;
    say 0 d; feed 0 1 > 3; holds 0 > abcd; holds 1 > abq
a slot in use that is wholly matched is copied
    causal several | begin abc > 0 abc; feed 0 3 > 0; begin abcd > 1 d
what is only to be computed is not there to be copied
    causal several | begin abc > 0 abc; feed 0 1 > 0; begin abcd > 1 bcd
who shares nothing gets the slot that was used longest ago
    causal three | ask abc > 0 abc; ask def > 1 def; ask ghi > 2 ghi; ask jkl > 0 jkl;
    ask mno > 1 mno; holds 0 > jkl; holds 1 > mno; holds 2 > ghi
a slot that goes on is not the one used longest ago
    causal several | ask abc > 0 abc; ask def > 1 def; ask abcd > 0 d; ask xyz > 1 xyz;
    holds 0 > abcd
a slot is as old as its last request, not as the end of that
    causal several | begin abc > 0 abc; begin def > 1 def; feed 1 3 > 0; close 1 > 3;
    feed 0 3 > 0; close 0 > 3; begin xyz > 0 xyz
to be copied from is no use of a slot
    causal three | ask abcd > 0 abcd; ask xyz > 1 xyz; ask abq > 2 q; ask mno > 0 mno
an empty slot is not wholly matched: the one used longest ago is taken
    causal several | begin abc > 0 abc; close 0 > 0; begin xyz > 1 xyz
the slot that is copied into forgets what it held
    causal several | ask abcd > 0 abcd; ask uvwxyz > 1 uvwxyz; ask uvq > 0 q;
    holds 0 > uvq; holds 1 > uvwxyz
the slot used longest ago, among those not in use
    causal three | begin abc > 0 abc; ask def > 1 def; ask ghi > 2 ghi; begin xyz > 1 xyz
if it is the only one, it parts where it stands
    causal count=1 several_users=True | ask abcd > 0 abcd; ask abx > 0 x; holds 0 > abx
a longer prefix elsewhere is better than a slot that is wholly matched
    causal several | begin ab > 0 ab; begin abcd > 1 abcd; feed 0 2 > 0; feed 1 4 > 0;
    close 0 > 2; close 1 > 4; begin abcq > 0 q; holds 0 > abc left=q; holds 1 > abcd
none is free: no slot, though one would match
    causal several | begin abc > 0 abc; feed 0 3 > 0; begin xyz > 1 xyz;
    begin abcd > busy; close 0 > 3; begin abcd > 0 d
both go on after a copy, and what they share stays shared
    causal several | ask abcd > 0 abcd; ask abxy > 1 xy; ask abcde > 0 e; ask abxyz > 1 z;
    holds 0 > abcde; holds 1 > abxyz
a pass that broke off does not touch what others share
    causal several | ask abcd > 0 abcd; begin abxy > 1 xy; fail 1 2 > 2; close 1 > 2;
    holds 1 > ab; holds 0 > abcd
"""
)


@each(CASES)
def test_case(case: Case) -> None:
    SlotsDesk(case.head).check(case.steps)
