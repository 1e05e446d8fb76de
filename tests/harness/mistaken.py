"""The reference with one mistake each, to see that it is caught by a relation alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lockstep.impl.faults.fault import rewrite
from lockstep.reference.batched import BatchedCache
from lockstep.reference.causal import CausalCache
from lockstep.reference.encoder import EncoderCache, Removal
from lockstep.reference.kv import KVCache
from lockstep.reference.layers import Layer, Model
from lockstep.reference.list import ListCache
from lockstep.reference.paged import Group, PagedCache
from lockstep.reference.pooled import PooledCache
from lockstep.reference.recurrent import RecurrentCache
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.session import Session
from lockstep.reference.slots import Slots
from lockstep.reference.snapshot import Captures
from lockstep.reference.state import StateCache
from lockstep.reference.trie import Trie
from lockstep.reference.wrapper import WrapperCache


class Mistake(NamedTuple):
    """A method of a class that is wrong.

    Attributes:
        kind: what it is a mistake of.
        relation: the one that finds it, before any other does.
        now, wrong: a piece of the source of the method, and what stands in its place.
    """

    kind: str
    relation: str
    owner: type
    method: str
    now: str
    wrong: str

    def plant(self, replace: Callable[[Any, str, Any], None]) -> None:
        right = self.owner.__dict__[self.method]
        function = right.fget if isinstance(right, property) else right
        replace(self.owner, self.method, rewrite(function, self.now, self.wrong))


LAYERS: dict[str, tuple[str, str, type, str, str, str]] = {
    # of two tokens and more, one comes back with the next update
    "trim-resurrects": ("kv", "return", KVCache, "trim",
        "self.offset - trimmed)", "self.offset - trimmed + (trimmed > 1))"),
    "clone-is-the-cache": ("kv", "recompute", KVCache, "clone",
        "list(self.tokens)", "self.tokens"),
    # the first token of a chunk is never seen, but by itself: the same in any cut
    "chunk-begins-late": ("kv", "mask", KVCache, "visible",
        "query - query % self.chunk", "min(query, query - query % self.chunk + 1)"),
    # the live tokens at the positions of the snapshot stay beside it
    "restore-goes-on-top": ("kv", "mask", KVCache, "restore",
        "snapshot.begin)", "snapshot.begin"
        " if self.offset <= snapshot.end else self.offset)"),
    "split-loses-one": ("kv", "mask", KVCache, "split",
        "snapshot.end, last)", "snapshot.end, (*last[:1], *last[2:]))"),
    # a write that goes past several scheduled offsets captures only the last
    "captures-come-at-the-end": ("kv", "mask", KVCache, "update",
        "        self.captures.reach", "    self.captures.reach"),
    # a capture is made again when a write comes by a second time
    "captures-move-on": ("kv", "mask", Captures, "reach",
        " and offset not in self.captured", ""),
    # consistently: in every cut, after every restore
    "window-is-one-less": ("rotating", "mask", RotatingCache, "first",
        "(self.window - self.keep)", "max(1, self.window - self.keep - 1)"),
    # several tokens at once, after the window is full, push out one too many
    "chunk-after-the-wrap-drops": ("rotating", "mask", RotatingCache, "update",
        "for tag", "if len(tags) > 1 and self.offset > self.window > 2:\n"
        "        self.tokens = self.tokens[-(self.window - 2) :]\n    for tag"),
    # of a window that has slid, the oldest token is not put aside
    "snapshot-is-short": ("rotating", "return", RotatingCache, "capture",
        "tuple(self.tokens)", "tuple(self.tokens[self.offset > self.window > 1 :])"),
    # one token after the window began to slide: nothing shows it but a rewind after a
    # restore, for only a snapshot has let go of what slid out
    "rewind-is-allowed-too-late": ("rotating", "mask", RotatingCache, "may_rewind",
        "<= self.window", "<= self.window + 1"),
    "rewind-is-refused-too-early": ("rotating", "mask", RotatingCache, "may_rewind",
        "<= self.window", "< self.window"),
    # to read the state takes away what older positions would have seen
    "reading-forgets": ("rotating", "recompute", RotatingCache, "state",
        "return", "seen = self.visible(self.offset - 1)\n"
        "    if self.offset > self.window > 1:\n"
        "        self.tokens = self.tokens[-(self.window - 1) :]\n"
        "    return seen or"),
    # a restore brings the latest tokens, not the first ones
    "sinks-are-forgotten": ("rotating", "return", RotatingCache, "restore",
        "return True", "if snapshot is not None and self.offset > self.window:\n"
        "        self.tokens = self.tokens[self.keep :]\n    return True"),
    "state-restores-before-its-end": ("state", "recompute", StateCache, "can_restore",
        "target == (self.offset if snapshot is None else snapshot.end)",
        "target == self.offset if snapshot is None else snapshot.end - target in (0, 1)"),
    "long-updates-lose-their-middle": ("state", "cut", StateCache, "update",
        "for tag", "if len(tags) == 4:\n"
        "        tags = [tags[0], tags[1], tags[1], tags[3]]\n    for tag"),
    "state-clone-is-the-cache": ("state", "recompute", StateCache, "clone",
        "list(self.tokens)", "self.tokens"),
    "entry-is-seen-before-its-end": ("pooled", "mask", PooledCache, "visible",
        "query + 1", "query + 2"),
    # a trim opens a window that was closed
    "trim-closes-no-entry": ("pooled", "mask", PooledCache, "can_restore",
        "target // self.pool >= oldest", "target // self.pool >= oldest - 1"),
}  # fmt: skip

BATCHES: dict[str, tuple[str, str, type, str, str, str]] = {
    "rows-stay-in-order": ("batch-kv", "mask", BatchedCache, "select",
        "].clone() for number in numbers", "].clone() for number in sorted(numbers)"),
    # what was announced for the rows that left comes for the others
    "announcements-stay-in-place": ("batch-kv", "mask", BatchedCache, "select",
        "[self.coming[number] for number in numbers]", "self.coming[: len(numbers)]"),
    # a short row goes on to get tokens until the longest row has all
    "announcements-are-not-counted-down": ("batch-kv", "cut", BatchedCache, "update",
        "coming - len(row_tags) for coming, row_tags",
        "min(max(self.coming) - length, coming) for coming, _"),
    "the-others-come-first": ("batch-rotating", "mask", BatchedCache, "extend",
        "self.rows += joined.rows", "self.rows = [*joined.rows, *self.rows]"),
    # the single cache is the row itself
    "a-row-is-taken-out-for-good": ("batch-rotating", "recompute", BatchedCache,
        "extract", "self.rows[number].clone()", "self.rows[number]"),
    "the-first-row-is-taken-out": ("batch-state", "mask", BatchedCache, "extract",
        "self.rows[number]", "self.rows[0]"),
    "batch-clone-shares-its-rows": ("batch-state", "recompute", BatchedCache, "clone",
        "row.clone()", "row"),
    "a-list-is-trimmed-where-it-can-be": ("batch-list", "mask", ListCache, "trim",
        "min(", "max("),
    "list-clone-shares-its-parts": ("batch-list", "recompute", ListCache, "clone",
        "cache.clone()", "cache"),
}  # fmt: skip

UNIFIED: dict[str, tuple[str, str, type, str, str, str]] = {
    # one token too far ahead of what is stored: only a step back shows it
    "sees-the-next": ("causal", "mask", CausalCache, "visible",
        "= query, self", "= query + 1, self"),
    # a query does not see itself: the same in every cut, after every removal
    "strictly-before": ("causal", "mask", CausalCache, "visible",
        "= query, self", "= query - 1, self"),
    "window-counts-itself": ("swa", "mask", CausalCache, "visible",
        "query - self.window", "query - self.window + 1"),
    # chunks begin at 1, 1 + chunk, …: nothing but the mask shows it
    "chunks-are-shifted": ("chunked", "mask", CausalCache, "visible",
        "query % self.chunk",
        "((query - 1) % self.chunk if self.chunk < inf else query)"),
    # a batch that crosses into the next chunk sees on from where it began
    "chunk-ends-at-the-batch": ("chunked", "mask", CausalCache, "visible",
        "if row in", "first = min(first, *self.current.positions)\n    if row in"),
    # two tokens taken out of the middle: what follows moves up by three
    "middle-moves-too-far": ("causal", "mask", CausalCache, "remove",
        "begin - end)", "begin - end - (end - begin == 2 and token.position > end))"),
    # to remove the end of one sequence takes shared tokens from all
    "end-of-another-goes": ("causal", "return", CausalCache, "drop",
        "token.sequences - {sequence}", "frozenset()"),
    "copies-count-twice": ("causal", "mask", CausalCache, "list_refusals",
        "len(self.get_kept(batch))",
        "sum(len(token.sequences) for token in self.get_kept(batch))"),
    # always, however the tokens came
    "full-one-too-early": ("causal", "mask", CausalCache, "list_refusals",
        "<= free", "< free"),
    # the saved list is the cache's own, and goes on with it
    "load-shares": ("causal", "return", CausalCache, "save",
        "list(self.tokens)", "self.tokens"),
    "last-of-the-batch-counts": ("swa", "mask", CausalCache, "get_kept",
        "min(batch", "max(batch"),
    "evicts-early": ("swa", "mask", CausalCache, "get_kept",
        "- self.memory", "- self.memory + 1"),
    "evicts-late": ("swa-memory", "mask", CausalCache, "get_kept",
        "- self.memory", "- self.memory - 1"),
    # only the sequences of the batch let go: the others fill the cache
    "the-idle-forget-nothing": ("swa", "mask", CausalCache, "get_kept",
        "[self.get_end(sequence)]", "[0]"),
    "resumes-too-often": ("swa-memory", "mask", CausalCache, "can_resume",
        "window_begin >= min(stored) and ", ""),
    "resumes-too-seldom": ("swa", "mask", CausalCache, "can_resume",
        "<= self.get_end", "< self.get_end"),
    "states-stay-shared": ("recurrent", "return", RecurrentCache, "is_shared",
        "return slot is not None", "return False"),
    # a checkpoint that goes on with its state, once there is a second one
    "checkpoint-is-the-state": ("recurrent", "mask", RecurrentCache, "put_checkpoint",
        "if get_place(slot.read) - last >= self.interval:\n"
        "        slot.checkpoints.append(list(slot.read))",
        "if True:\n        slot.checkpoints.append(slot.read)"),
    # the cells go, what was read of them stays read
    "cut-state-keeps-its-end": ("recurrent", "mask", RecurrentCache, "remove",
        "elif cut:", "elif False:"),
    "image-of-the-first-row": ("encoder", "mask", EncoderCache, "image",
        "images[-1]", "images[0]"),
    "image-survives-its-own-place": ("encoder", "mask", Removal, "spares",
        "self.begin <= image", "self.begin < image"),
    # only sequence 0 can remove it
    "image-belongs-to-a-sequence": ("encoder", "rename", EncoderCache, "remove",
        "self.history", "if sequence == 0:\n        self.history"),
    # only the first cache is asked whether there is room
    "one-refuses-the-others-keep": ("wrapper", "mask", WrapperCache, "forward",
        "self.each(lambda cache: refuse(", "for one in self.caches:\n"
        "        one.forward(batch, tags, reserve)\n    return\n"
        "    self.each(lambda cache: refuse("),
    "the-last-cache-is-not-cut": ("wrapper", "return", WrapperCache, "remove",
        "self.each(lambda cache:", "WrapperCache(self.caches[:-1]).each(lambda cache:"),
    "the-last-cache-decides": ("wrapper", "mask", WrapperCache, "can_resume",
        "in self.caches", "in self.caches[-1:]"),
}  # fmt: skip

PREFIX: dict[str, tuple[str, str, type, str, str, str]] = {
    # one token fewer is copied than the slot then says that it holds
    "forks-are-short": ("slots", "mask", Slots, "copy",
        "target, length)", "target, length - 1)"),
    # the cache loses one token later than the slot says
    "the-wrong-middle-goes": ("slots", "mask", Slots, "remove",
        "try:", "if end is not None and begin > 0:\n"
        "        begin, end = begin + 1, end + 1\n    try:"),
    "newest-slot-is-taken": ("slots", "mask", Slots, "rank",
        "self.history.index", "-self.history.index"),
    "the-first-free-slot-is-taken": ("slots", "mask", Slots, "rank", "-common", "0"),
    # never reuses more than the first three tokens: always the same
    "compares-three-tokens": ("session", "mask", Session, "begin", "min(", "min(3, "),
    # an exact repeat reuses all but two tokens
    "nothing-is-left": ("session", "mask", Session, "begin",
        "len(tokens) - 1)", "len(tokens) - 1)\n"
        "    reuse -= reuse > 0 and list(tokens) == self.stored[: len(tokens)]"),
    "windows-come-back-short": ("session", "mask", Layer, "hold",
        "self.cache.update(tags)", "self.cache.update(tags)\n"
        "    if isinstance(self.cache, RotatingCache) and len(tags) > 1:\n"
        "        self.cache.tokens = self.cache.tokens[-self.cache.window :][1:]"),
    # a pass of three tokens and more hands the second layer its first token twice
    "later-layers-miss-one": ("session", "cut", Model, "feed",
        "layer.cache.update(tags)", "layer.cache.update(tags)\n"
        "            if len(tags) > 2:\n"
        "                tags = [tags[0], tags[0], *tags[2:]]"),
    "newest-goes-first": ("trie", "keep", Trie, "keep_limit",
        "self.points[path].used", "-self.points[path].used"),
    # a conversation that is told again is as old as before
    "use-is-not-noted": ("trie", "keep", Trie, "touch",
        "if path and following:", "following = [one for one in following"
        " if one == path and not self.points[one].used]\n    if following:"),
    "the-live-path-goes": ("trie", "mask", Trie, "list_victims",
        "count_common(path, live) <= len(parent)", "True"),
    "checkpoints-are-one-late": ("trie", "mask", Trie, "is_wanted",
        "at_interval =", "end -= 1\n    at_interval ="),
    "parting-captures-nothing": ("trie", "mask", Trie, "begin",
        "self.wanted.add(matched)", "pass"),
    "shared-tokens-count-twice": ("trie", "mask", Trie, "count_tokens",
        "len(path) - len(parent)", "len(path) * (path not in parents.values())"),
}  # fmt: skip

PAGED: dict[str, tuple[str, str, type, str, str, str]] = {
    "rejected-drafts-stay": ("paged-full", "mask", PagedCache, "accept",
        "request.list_path(kept)", "request.drafts"),
    # where nobody may hit what a request has computed, all that ended is forgotten
    "one-who-goes-takes-all": ("paged-full paged-state", "return", PagedCache, "let_go",
        "if reuse:", "self.past = self.past if reuse else []\n    if reuse:"),
    "late-output-returns": ("paged-full", "mask", PagedCache, "let_go",
        "step[:] = [item for item in step if item[0] is not request]", "pass"),
    "window-is-too-wide": ("paged-sliding", "mask", Group, "first",
        "query - self.width + 1", "query - self.width"),
    # token 1 stands for padding
    "a-token-is-never-hit": ("paged-sliding paged-state paged-hybrid", "rename",
        PagedCache, "can_hit", "hit == 0 or (",
        "hit == 0 or 1 not in request.tokens[:hit] and ("),
    "chunk-begins-early": ("paged-chunked", "mask", Group, "first",
        "query - query % self.width", "max(0, query - query % self.width - 1)"),
    "chunk-is-a-window": ("paged-chunked", "mask", Group, "first",
        "query - query % self.width", "max(0, query - self.width + 1)"),
    "windows-are-too-narrow": ("paged-hybrid", "mask", Group, "first",
        "max(0, query - self.width + 1)", "min(query, max(1, query - self.width + 2))"),
}  # fmt: skip

MISTAKES = {
    name + f"-{kind}" * (number > 0): Mistake(kind, *fields)
    for table in (LAYERS, BATCHES, UNIFIED, PREFIX, PAGED)
    for name, (kinds, *fields) in table.items()
    for number, kind in enumerate(kinds.split())
}
