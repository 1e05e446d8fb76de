"""Who checks the reference? Relations between its own answers.

A relation takes a program and what the reference answered to it, derives other programs,
ordinary ones, and says which of their answers must be the same. It needs no model of a
cache: it believes what was answered (how many tokens were trimmed, what was refused, what
remains to be computed), keeps books of the tokens that are left, and never looks into the
reference. One that does not hold is a divergence of the backend `reference`, with the
relation as what differs: layer-kv-update-recompute.

`derived`: what is derived, and how answers are compared across two programs. `relation`:
what a relation is. `layer_book`, `layer`; `unified_book`, `unified_rows`,
`unified_sight`, `unified_ends`, `unified`; `conversations`, `slots`: the books and the
relations of each contract. `check`: all of them on one program. `reference`: the backend.

By name:

* recompute: a cache goes on as a fresh one that was given the tokens that are left.
* cut, order, swap: in how many updates or passes tokens come, in which order the rows of
  a batch stand, and which of two independent operations comes first, changes nothing.
* alone: what an operation does not concern answers the same without it; so forks do not
  see each other, and reading changes nothing.
* return: after a detour (snapshot and restore, clone, save and load, the same tokens
  again) all is as if nothing had been.
* rename: caches, snapshots, sequences, users and tokens could have other names.
* mask: a window or a chunk is a mask over full attention; what a state has read, and what
  one sequence of many sees, is what full attention sees.
* part: a cache in a wrapper answers as it does alone. pool: slots are calls of the cache
  below.
* room, resume, pieces, image, best, keep, oldest, store: how much fits, where a sequence
  can go on, a removal in two pieces, the last image of several, how much is reused, what
  must be kept and what goes first, and what is counted.

What they cannot see. A mistake that is the same in both programs is consistent with
itself: a window of one less in every cut, after every restore. Against those stand mask,
room, keep and oldest, which say what comes out in plain cases, whatever the program did;
what none of these is about stays unseen:

* how many bytes a token or a state takes; only their sums are compared;
* which of several refusals is answered where there is reason for more than one;
* what exactly a sliding window has let go of after a sequence stepped back: there a row
  may see less than its window, and only that it sees nothing else is checked;
* when a recurrent cache puts a checkpoint aside, unless a sequence goes on from there;
* whether a trie under a limit lets go of the right thing, beyond plain cases;
* whether anything is refused that need not be, where no case says that it must be
  granted.

For these there are the cases computed by hand and the books in tests/reference.
"""
