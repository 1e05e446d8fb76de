"""Slots over caches that cannot be cut anywhere, and conversations that grow too long, by
cases that were worked out by hand."""

from __future__ import annotations

from cases import Case, each, read_table
from prefix_book import SlotsDesk

RESUMED = read_table(
    """
a window that has moved on past the parting: nothing is reused
    swa:2 | ask abcdefgh > 0 abcdefgh; holds 0 > abcdefgh cached=.....fgh;
    begin abcx > 0 abcx; holds 0 > - left=abcx
    # before h the cache lets go of what lies before 7 - 2
of an exact repeat one token is left: the window before it is there
    swa:2 | ask abcdefgh > 0 abcdefgh; begin abcdefgh > 0 h
two tokens back the window is not whole
    swa:2 | ask abcdefgh > 0 abcdefgh; begin abcdefx > 0 abcdefx
with more memory than the window it is
    swa-memory:2:4 | ask abcdefgh > 0 abcdefgh; holds 0 > abcdefgh cached=...defgh;
    begin abcdex > 0 x; feed 0 1 > 5; close 0 > 6; begin abcdx > 0 abcdx
    # before h goes what lies before 7 - 4
a window that goes on needs nothing back
    swa:2 | ask abcdefgh > 0 abcdefgh; ask abcdefghij > 0 ij
a copy of a window that has moved on is worth nothing
    swa:2 several | ask abcdefgh > 0 abcdefgh; begin abcx > 1 abcx; holds 1 > - left=abcx;
    holds 0 > abcdefgh cached=....efgh  # two slots remember one token more
a copy of a window that is still there
    swa:2 several | ask abcdefgh > 0 abcdefgh; begin abcdefx > 1 x;
    holds 1 > abcdef cached=....ef left=x
a state goes on
    recurrent | ask abc > 0 abc; begin abcd > 0 d; holds 0 > abc left=d
a state cannot be cut: nothing is reused
    recurrent | ask abc > 0 abc; begin abx > 0 abx; holds 0 > - left=abx
of an exact repeat all is left: a state does not go back by one
    recurrent | ask abc > 0 abc; ask abc > 0 abc
a state goes back to a checkpoint
    recurrent:2 | ask abcde > 0 abcde; begin abcx > 0 x; holds 0 > abc left=x
    # put aside after a, c and e
a state does not go back to between two checkpoints
    recurrent:2 | ask abcde > 0 abcde; begin abx > 0 abx
a copy of a whole state goes on
    recurrent several | begin abc > 0 abc; feed 0 3 > 0; begin abcd > 1 d; feed 1 1 > 3;
    say 0 x; feed 0 1 > 3; holds 0 > abcx; holds 1 > abcd
a copy of a part of a state is worth nothing
    recurrent several | ask abcd > 0 abcd; begin abx > 1 abx; holds 1 > - left=abx;
    holds 0 > abcd
a shared state that has no room to part from the other: nothing is reused
    recurrent:2:one several | ask abcde > 0 abcde; begin abcx > 1 abcx;
    holds 1 > - left=abcx; holds 0 > abcde
a state that has read a pass that broke off is lost
    recurrent | begin abcd > 0 abcd; feed 0 2 > 0; fail 0 2 > 2; close 0 > 0; holds 0 > -;
    begin abcd > 0 abcd
a state that goes back to a checkpoint forgets a pass that broke off
    recurrent:2 | begin abcd > 0 abcd; feed 0 2 > 0; fail 0 2 > 2; close 0 > 2;
    holds 0 > ab
"""
)

FULL = "begin abcdefgh > 0 abcdefgh; feed 0 4 > 0; feed 0 4 > 4"

LONG = read_table(
    """
the middle goes: half of what is not kept, and the rest moves up
    causal eight | full; say 0 i; feed 0 1 > 5; holds 0 > abfghi
    # 6 can go, 3 go: c, d, e
nothing kept: the first half goes
    causal context=8 | full; say 0 i; feed 0 1 > 4; holds 0 > efghi
half of an odd number is rounded down
    causal context=8 keep=1 | full; say 0 i; feed 0 1 > 5; holds 0 > aefghi
    # 7 can go, 3 go: b, c, d
what is free already need not go
    causal eight | begin abcdefg > 0 abcdefg; feed 0 4 > 0; feed 0 3 > 4; say 0 hi;
    feed 0 2 > 5; holds 0 > abefghi  # 3 are to be free, 1 is: c, d go
what just fits moves nothing
    causal eight | begin abcdef > 0 abcdef; feed 0 6 > 0; say 0 gh; feed 0 2 > 6;
    holds 0 > abcdefgh
a pass larger than the half: as many go as must
    causal eight | full; say 0 ijklm; feed 0 5 > 3; holds 0 > abhijklm
    # 5 are to be free: c, d, e, f, g go
a pass as large as it may be: all goes but what is kept
    causal eight | full; say 0 ijklmn; feed 0 6 > 2; holds 0 > abijklmn
with room for one the one goes
    causal context=3 keep=2 | begin abcd > 0 abcd; feed 0 1 > 0; feed 0 1 > 1;
    feed 0 1 > 2; feed 0 1 > 2; holds 0 > abd
a prompt longer than the context
    causal eight | begin abcdefghij > 0 abcdefghij; feed 0 6 > 0; feed 0 4 > 4;
    holds 0 > abefghij  # c, d go: 4 are to be free, 2 are
the middle goes again and again
    causal eight | full; say 0 ijkl; feed 0 3 > 5; holds 0 > abfghijk left=l;
    feed 0 1 > 5; holds 0 > abijkl  # c, d, e, then f, g, h go
what is left without its middle is what the next request shares
    causal eight | full; say 0 i; feed 0 1 > 5; close 0 > 6; begin abcdefghi > 0 cdefghi;
    close 0 > 2
a request that has it without its middle shares it
    causal eight | full; say 0 i; feed 0 1 > 5; close 0 > 6; begin abfgx > 0 x
what moves is shared: all that is left is computed again
    causal several eight | ask abcdefgh > 0 abcdefgh; begin abcdefgx > 1 x; feed 1 1 > 7;
    say 1 y; feed 1 1 > 0; holds 1 > a left=bfgxy; feed 1 5 > 1; holds 1 > abfgxy;
    holds 0 > abcdefgh
what is shared and goes, or is kept, hinders nothing
    causal several eight | ask abcd > 0 abcd; begin abcxyzuv > 1 xyzuv; feed 1 5 > 3;
    say 1 w; feed 1 1 > 5; holds 1 > abzuvw; holds 0 > abcd  # c, x, y go
keys that cannot be turned: all that is left is computed again
    no-shift eight | full; say 0 ij; feed 0 2 > 0; holds 0 > ab left=fghij; feed 0 5 > 2;
    holds 0 > abfghij
keys that cannot be turned do not have to be if nothing follows
    no-shift eight | full; say 0 ijklmn; feed 0 6 > 2; holds 0 > abijklmn
a state has no middle: all that is left is computed again
    recurrent eight | full; say 0 i; feed 0 1 > 0; holds 0 > a left=bfghi; feed 0 5 > 1;
    holds 0 > abfghi
over-long in one slot does not touch another
    causal several eight | full; begin stuvwxyz > 1 stuvwxyz; feed 1 6 > 0; feed 1 2 > 6;
    say 0 i; feed 0 1 > 5; holds 0 > abfghi; holds 1 > stuvwxyz
the middle is gone though the pass broke off
    causal eight | full; say 0 i; fail 0 1 > 5; close 0 > 5; holds 0 > abfgh
""".replace("| full;", f"| {FULL};")
)


@each(RESUMED + LONG)
def test_case(case: Case) -> None:
    SlotsDesk(case.head).check(case.steps)
