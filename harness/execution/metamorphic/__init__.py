"""Who checks the reference? Relations between its own answers.

A relation takes a program and what the reference answered to it. From these it derives
other programs, and says which answers of those must be which of the first. For example:
update with 3 tokens, trim by 1, update with 1 token. The last row must see tokens 0, 1
and 3. In the derived program a fresh cache gets tokens 0 and 1 in one update, and then 3.
If the last row sees anything else there, one of the two answers is wrong.

A relation has no model of a cache. It believes what was answered (how many tokens were
trimmed, what was refused, what remains to be computed), keeps books of the tokens that
are left, and never looks into the reference. One that does not hold is a divergence of
the backend `reference`, with the relation as what differs: layer-kv-update-recompute.

How it is done: `history` (a program with its answers; books), `derived` (a derived
program and its claims), `answers` (tags of one program in those of another), `relation`
(what a relation is, and when it is broken), `independent` (what contracts share), `check`
(all relations on one program), `reference` (the backend). What is said: `layer/`,
`unified/` and `prefix/`, the relations of each contract, each beside its `book`.

Nothing that has to do with the way changes what comes out:

* recompute: a cache goes on as a fresh one that was given the tokens that are left.
* cut: 3 tokens come in one update or pass, or 2 and 1. order: the rows of a pass stand in
  another order. swap: two operations on different things come in the other order.
* alone: an operation is left out, and what it does not concern stays the same. So forks
  do not see each other, and reading changes nothing.
* return: a detour (snapshot and restore, clone, save and load, the same tokens again)
  ends where it began.
* rename: caches, snapshots, sequences, users and tokens have other names.
* pieces: a removal is made in two pieces.

Two descriptions of one thing agree:

* mask: a window or a chunk is a mask over full attention. What a state has read, and what
  one sequence of many sees, is what full attention sees.
* part: a cache in a wrapper answers as it does alone. pool: slots are calls of the cache
  below. image: of several images the last one counts.
* best: as much is reused as by a session that heard the best conversation.
* store: what a trie counts does not depend on the order in which it was told.

What must come out in plain cases, whatever the program did:

* room: how many tokens fit. resume: where a sequence can go on. edge: when a window can
  no longer be trimmed, and which captures one update makes.
* keep: what must be kept. oldest: which slot is taken.

What they cannot see. A mistake that is the same in both programs is consistent with
itself: a window of one less in every cut, after every restore. Against those stand mask,
and the plain cases. What none of these is about stays unseen:

* how many bytes a token or a state takes; only their sums are compared;
* which of several refusals is answered where there is reason for more than one;
* what exactly a sliding window has let go of after a sequence stepped back: there a row
  may see less than its window, and only that it sees nothing else is checked;
* when a recurrent cache puts a checkpoint aside, but for the first one, unless a sequence
  goes on from there;
* whether a trie under a limit lets go of the right thing, beyond plain cases;
* whether anything is refused that need not be, where no case says that it must be
  granted.

For these there are the cases computed by hand and the books in tests/reference.
"""
