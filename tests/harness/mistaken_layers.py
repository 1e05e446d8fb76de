"""Mistakes in the reference of layer caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockstep.reference.kv import KVCache
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.snapshot import Captures, Snapshot
from lockstep.reference.state import StateCache
from lockstep.reference.token import Token

Replace = Callable[[Any, str, Any], None]


def trim_resurrects(replace: Replace) -> None:
    """Of two tokens and more, one comes back with the next update."""

    def trim(self: KVCache, count: int) -> int:
        trimmed = min(count, self.offset)
        self.keep_below(self.offset - trimmed + (trimmed > 1))
        return trimmed

    replace(KVCache, "trim", trim)


def snapshot_is_the_cache(replace: Replace) -> None:
    def snapshot(self: KVCache, begin: int) -> Snapshot | None:
        begin = max(0, begin)
        tokens: Any = [token for token in self.tokens if token.position >= begin]
        if begin == 0:
            tokens = self.tokens
        return Snapshot(begin, self.offset, tokens) if self.offset > begin else None

    def merge(self: KVCache, parent: Any, child: Any) -> Snapshot | None:
        if parent is None or child is None:
            return None
        if parent.end != child.begin:
            raise ValueError("not adjacent")
        tokens = (*parent.tokens, *child.tokens)
        return Snapshot(parent.begin, child.end, tokens)

    replace(KVCache, "snapshot", snapshot)
    replace(KVCache, "merge", merge)


def clone_is_the_cache(replace: Replace) -> None:
    def clone(self: KVCache) -> KVCache:
        copy = KVCache(self.chunk)
        copy.tokens = self.tokens
        return copy

    replace(KVCache, "clone", clone)


def chunk_begins_late(replace: Replace) -> None:
    """The first token of a chunk is never seen, but by itself: the same in any cut."""

    def visible(self: KVCache, query: int) -> list[Token]:
        first = 0 if self.chunk is None else min(query, query - query % self.chunk + 1)
        return [token for token in self.tokens if first <= token.position <= query]

    replace(KVCache, "visible", visible)


def restore_goes_on_top(replace: Replace) -> None:
    """What is live at the places of the snapshot stays beside it."""

    def restore(self: KVCache, snapshot: Snapshot | None, target: int) -> bool:
        if not self.can_restore(snapshot, target):
            return False
        if snapshot is not None and self.offset <= snapshot.end:
            self.keep_below(snapshot.begin)
        self.tokens += snapshot.tokens if snapshot is not None else ()
        self.keep_below(target)
        return True

    replace(KVCache, "restore", restore)


def captures_come_at_the_end(replace: Replace) -> None:
    """A write that goes past several scheduled offsets captures only the last."""

    def update(self: KVCache, tags: Sequence[int]) -> None:
        for tag in tags:
            self.tokens.append(Token(tag, position=self.offset))
        self.captures.reach(self.offset, self.snapshot)

    replace(KVCache, "update", update)


def split_loses_one(replace: Replace) -> None:
    def split(self: KVCache, snapshot: Snapshot, at: int) -> Any:
        if at <= snapshot.begin:
            return None, snapshot
        if at >= snapshot.end:
            return snapshot, None
        left = tuple(token for token in snapshot.tokens if token.position < at)
        right = tuple(token for token in snapshot.tokens if token.position >= at)
        right = (*right[:1], *right[2:])
        return Snapshot(snapshot.begin, at, left), Snapshot(at, snapshot.end, right)

    replace(KVCache, "split", split)


def window_is_one_less(replace: Replace) -> None:
    """Consistently: in every cut, after every restore."""

    def visible(self: RotatingCache, query: int) -> list[Token]:
        latest = max(1, self.window - self.keep - 1)
        return [
            token
            for token in self.tokens
            if token.position <= query
            and (token.position > query - latest or token.position < self.keep)
        ]

    replace(RotatingCache, "visible", visible)


def chunk_after_the_wrap_drops(replace: Replace) -> None:
    """Several tokens at once, after the window is full, push out one too many."""
    update = RotatingCache.update

    def wrong(self: RotatingCache, tags: Sequence[int]) -> None:
        if len(tags) > 1 and self.offset > self.window > 2:
            self.tokens = self.tokens[-(self.window - 2) :]
        update(self, tags)

    replace(RotatingCache, "update", wrong)


def snapshot_is_short(replace: Replace) -> None:
    """Of a window that has slid, the oldest token is not put aside."""
    snapshot = RotatingCache.snapshot

    def wrong(self: RotatingCache, begin: int) -> Snapshot | None:
        taken = snapshot(self, begin)
        if taken is not None and self.offset > self.window > 1:
            return Snapshot(taken.begin, taken.end, taken.tokens[1:])
        return taken

    replace(RotatingCache, "snapshot", wrong)


def rewind_is_allowed_too_late(replace: Replace) -> None:
    """One token after the window began to slide. Nothing shows it but a rewind after a
    restore, for only a snapshot has let go of what slid out."""

    def may_rewind(self: RotatingCache) -> bool:
        return self.offset <= self.window + 1

    replace(RotatingCache, "may_rewind", may_rewind)


def rewind_is_refused_too_early(replace: Replace) -> None:
    def may_rewind(self: RotatingCache) -> bool:
        return self.offset < self.window

    replace(RotatingCache, "may_rewind", may_rewind)


def sinks_are_forgotten(replace: Replace) -> None:
    """A restore brings the latest tokens, not the first ones."""
    restore = RotatingCache.restore

    def wrong(self: RotatingCache, snapshot: Snapshot | None, target: int) -> bool:
        done = restore(self, snapshot, target)
        if done and snapshot is not None and self.offset > self.window:
            self.tokens = self.tokens[self.keep :]
        return done

    replace(RotatingCache, "restore", wrong)


def state_restores_before_its_end(replace: Replace) -> None:
    def can_restore(self: StateCache, snapshot: Snapshot | None, target: int) -> bool:
        if snapshot is None:
            return target == self.offset
        return target in (snapshot.end, snapshot.end - 1)

    replace(StateCache, "can_restore", can_restore)


def long_updates_lose_their_middle(replace: Replace) -> None:
    update = StateCache.update

    def wrong(self: StateCache, tags: Sequence[int]) -> None:
        update(self, tags)
        if len(tags) == 4:
            at = len(self.tokens) - 2
            self.tokens[at] = self.tokens[at]._replace(tag=tags[1])

    replace(StateCache, "update", wrong)


def state_clone_is_the_cache(replace: Replace) -> None:
    def clone(self: StateCache) -> StateCache:
        copy = StateCache()
        copy.tokens = self.tokens
        return copy

    replace(StateCache, "clone", clone)


def captures_move_on(replace: Replace) -> None:
    """A capture is made again when a write comes by a second time."""

    def reach(self: Captures, offset: int, snapshot: Any) -> None:
        if offset in self.scheduled:
            capture = snapshot(self.boundary[offset])
            if capture is not None:
                self.captured[offset] = capture

    replace(Captures, "reach", reach)


def reading_forgets(replace: Replace) -> None:
    """To read the state takes away what older positions would have seen."""
    state = RotatingCache.state

    def wrong(self: RotatingCache) -> list[Token]:
        seen = state(self)
        if self.offset > self.window > 1:
            self.tokens = self.tokens[-(self.window - 1) :]
        return seen

    replace(RotatingCache, "state", wrong)


MISTAKES = {
    "trim-resurrects": ("kv", trim_resurrects),
    "snapshot-is-the-cache": ("kv", snapshot_is_the_cache),
    "clone-is-the-cache": ("kv", clone_is_the_cache),
    "chunk-begins-late": ("kv", chunk_begins_late),
    "restore-goes-on-top": ("kv", restore_goes_on_top),
    "captures-come-at-the-end": ("kv", captures_come_at_the_end),
    "split-loses-one": ("kv", split_loses_one),
    "captures-move-on": ("kv", captures_move_on),
    "window-is-one-less": ("rotating", window_is_one_less),
    "chunk-after-the-wrap-drops": ("rotating", chunk_after_the_wrap_drops),
    "snapshot-is-short": ("rotating", snapshot_is_short),
    "rewind-is-allowed-too-late": ("rotating", rewind_is_allowed_too_late),
    "rewind-is-refused-too-early": ("rotating", rewind_is_refused_too_early),
    "sinks-are-forgotten": ("rotating", sinks_are_forgotten),
    "reading-forgets": ("rotating", reading_forgets),
    "state-restores-before-its-end": ("state", state_restores_before_its_end),
    "long-updates-lose-their-middle": ("state", long_updates_lose_their_middle),
    "state-clone-is-the-cache": ("state", state_clone_is_the_cache),
}
