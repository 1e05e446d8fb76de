"""Stored conversations as a sorted list, without a tree: what they take, and which goes
first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from ci.bench.prefixes.day import Tokens


@dataclass(frozen=True)
class Kind:
    """One layer, as far as its bytes go: a kv layer, one with a window, or a state.

    token_bytes: K and V of one token; 0 for a state. state_bytes: all of a state.
    """

    token_bytes: int = 0
    window: int | None = None
    state_bytes: int = 0

    @property
    def can_be_cut(self) -> bool:
        return self.window is None and not self.state_bytes

    def count_captured(self, end: int) -> int:
        """What a capture after `end` tokens takes."""
        return self.state_bytes or min(end, self.window or 0) * self.token_bytes


@dataclass(eq=False)
class Mark:
    """A stored conversation: when it was last used and, to break ties, when it was made;
    the layers that were captured at its end; how many others go on from it, without
    another in between."""

    order: int
    used: int = 0
    children: int = 0
    captured: set[int] = field(default_factory=set)


Path = bytes
"""The tokens of a conversation, four bytes each, the highest first: bytes are ordered as
the lists of tokens are."""


def encode(tokens: Sequence[int] | Tokens) -> Path:
    return np.asarray(tokens, ">u4").tobytes()


def count_common(left: Path, right: Path) -> int:
    """Tokens that two conversations have in common, from their beginning on."""
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size // 4
    a, b = (np.frombuffer(path, np.uint32, size // 4) for path in (left, right))
    return int((a != b).argmax())


class Conversations:
    """What is stored.

    paths: sorted. Those that begin with one stand right behind it, and the one that has
    most in common with a request is its neighbour. Where two of them part is a stored one
    too, so that what the left neighbour has in common is the longest one before.
    tokens, captured_bytes: of all of them; what several begin with counts once.
    """

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.kinds = kinds
        self.token_bytes = sum(kind.token_bytes for kind in kinds if kind.can_be_cut)
        self.paths: list[Path] = []
        self.marks: dict[Path, Mark] = {}
        self.queue: list[tuple[int, int, Path]] = []
        self.tokens = self.captured_bytes = 0
        self.clock = self.made = 0

    def count_matched(self, request: Path) -> int:
        """What the request has in common with a stored conversation, at most."""
        at = bisect_left(self.paths, request)
        near = self.paths[max(0, at - 1) : at + 1]
        return max((count_common(request, path) for path in near), default=0)

    def get_parent(self, path: Path) -> Path:
        """The longest other stored one that it begins with; it is stored itself, or some
        stored one goes on from it."""
        at = bisect_left(self.paths, path)
        if at == 0:
            return b""
        parent = path[: 4 * count_common(path, self.paths[at - 1])]
        assert not parent or parent in self.marks
        return parent

    def get_first(self, tokens: Path) -> Path | None:
        """The shortest stored one that begins with these tokens."""
        at = bisect_left(self.paths, tokens)
        inside = at < len(self.paths) and self.paths[at].startswith(tokens)
        return self.paths[at] if inside else None

    def add(self, path: Path) -> Mark:
        if path in self.marks:
            return self.marks[path]
        parent, inside = self.get_parent(path), self.get_first(path) is not None
        self.made += 1
        mark = self.marks[path] = Mark(self.made, children=int(inside))
        insort(self.paths, path)
        if not inside:
            self.tokens += (len(path) - len(parent)) // 4
            if parent:
                self.marks[parent].children += 1
        self.queue_up(path)
        return mark

    def capture(self, path: Path, number: int) -> None:
        """A layer, at the end of a stored one where it was not captured yet."""
        self.marks[path].captured.add(number)
        self.captured_bytes += self.kinds[number].count_captured(len(path) // 4)

    def touch(self, tokens: Path) -> None:
        """The shortest stored one that begins with these tokens was used."""
        path = self.get_first(tokens)
        if tokens and path is not None:
            self.clock += 1
            self.marks[path].used = self.clock
            self.queue_up(path)

    def count_bytes(self) -> int:
        return self.tokens * self.token_bytes + self.captured_bytes

    def count_captured(self, path: Path) -> int:
        """The bytes of what was captured at the end of a stored one."""
        captured, end = self.marks[path].captured, len(path) // 4
        return sum(self.kinds[number].count_captured(end) for number in captured)

    # --- what goes first ----------------------------------------------------------------

    def queue_up(self, path: Path) -> None:
        mark = self.marks[path]
        heappush(self.queue, (mark.used, mark.order, path))

    def pop(self) -> Path | None:
        """Takes the one that was not used for the longest time, of those that can be
        evicted, out of the queue."""
        while self.queue:
            used, order, path = heappop(self.queue)
            if self.is_current(used, order, path):
                return path
        return None

    def is_current(self, used: int, order: int, path: Path) -> bool:
        """Whether it can be evicted, and was not used since."""
        mark = self.marks.get(path)
        if mark is None or (mark.used, mark.order) != (used, order):
            return False
        return not mark.children or bool(mark.captured)

    def evict(self, path: Path) -> None:
        mark, parent = self.marks[path], self.get_parent(path)
        self.captured_bytes -= self.count_captured(path)
        mark.captured.clear()
        if mark.children > 1:
            return
        del self.marks[path]
        del self.paths[bisect_left(self.paths, path)]
        if mark.children == 0:
            self.tokens -= (len(path) - len(parent)) // 4
            if parent:
                self.marks[parent].children -= 1
                self.queue_up(parent)
