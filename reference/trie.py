"""Many conversations: what is stored of them, and how much of it a request can use.

An implementation keeps a tree whose edges are tokens. Here a conversation is a list of
tokens, from its beginning on, and there is a set of those: `points`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from .layers import GetTags, Layer, Model, Tokens, count_common

Path = tuple[int, ...]
"""The tokens of a conversation, from its beginning on."""


@dataclass
class Point:
    """A place in a conversation at which something was put aside.

    captured: the numbers of the layers that can be brought back to here; those that can
    be cut anywhere need no capture. used: when it was last used; higher is later.
    """

    captured: set[int] = field(default_factory=set)
    used: int = 0


def is_beginning(path: Path, other: Path) -> bool:
    """The other path goes on where this one ends."""
    return len(path) < len(other) and other[: len(path)] == path


def check_limit(limit: int | None) -> None:
    if limit is not None and limit < 0:
        raise ValueError(f"a limit of {limit} bytes")


class Trie(Model):
    """The conversations that are stored, and the one that the layers stand on.

    points: path → what is stored there. All tokens of a path are stored for the layers
    that can be cut; the others can be brought back only to where they were captured.
    Where two paths part there is a point.
    live: the tokens of the conversation that the layers have read, between requests.
    limit: bytes that may be stored; None for no limit. interval: captures are made at its
    multiples; None for none.
    wanted: where else captures are to be made during the open request. reused: the number
    of its tokens that were there when it began.
    """

    def __init__(
        self,
        layers: Sequence[Layer | None],
        get_tags: GetTags,
        limit: int | None = None,
        interval: int | None = None,
    ) -> None:
        super().__init__(layers, get_tags)
        check_limit(limit)
        if interval is not None and interval < 1:
            raise ValueError(f"an interval of {interval} tokens")
        self.limit, self.interval = limit, interval
        self.points: dict[Path, Point] = {}
        self.live: list[int] = []
        self.wanted: set[int] = set()
        self.reused = 0
        self.clock = 0

    # --- a request ----------------------------------------------------------------------

    def begin(
        self,
        tokens: Tokens,
        checkpoints: Collection[int] = (),
        refusing: Collection[int] = (),
    ) -> list[int]:
        """Opens a request and returns the tokens that are left to compute, at least one:
        as few as what is stored allows.

        checkpoints: numbers of tokens after which the layers are to be captured.
        refusing: the numbers of layers that refuse to move, although they should; if one
        has to, nothing is reused.
        """
        self.check_begin(tokens)
        for checkpoint in checkpoints:
            if isinstance(checkpoint, bool) or checkpoint < 1:
                raise ValueError(f"checkpoint {checkpoint} is not behind any token")
        matched = self.count_matched(tokens)
        most = min(matched, len(tokens) - 1)
        reuse = next(p for p in range(most, -1, -1) if self.can_reach(tokens, p))
        for number, layer in enumerate(self.layers):
            if number in refusing and self.has_to_move(layer, tokens, reuse):
                reuse = 0
        self.wanted = set(checkpoints)
        if 0 < matched < len(tokens):
            self.wanted.add(matched)
        self.touch(tokens[:reuse])
        self.live = list(tokens[:reuse])
        self.reused = reuse
        return self.open(tokens, reuse)

    def count_matched(self, tokens: Tokens) -> int:
        """How many tokens are the same as those of some stored conversation."""
        return max((count_common(tokens, path) for path in self.points), default=0)

    def can_reach(self, tokens: Tokens, length: int) -> bool:
        """Whether every layer can be brought to the first `length` tokens."""
        numbers = range(len(self.layers))
        return all(self.can_layer_reach(number, tokens, length) for number in numbers)

    def can_layer_reach(self, number: int, tokens: Tokens, length: int) -> bool:
        """Nothing can always be reached. Else the layer can be cut there, was captured
        there, or stands there, or can go back from where it stands."""
        layer, path = self.layers[number], tuple(tokens[:length])
        if layer is None or layer.can_be_cut or not path:
            return True
        if path in self.points and number in self.points[path].captured:
            return True
        return self.is_live(path) and layer.cache.can_restore(None, length)

    def is_live(self, path: Path) -> bool:
        return tuple(self.live[: len(path)]) == path

    def has_to_move(self, layer: Layer | None, tokens: Tokens, length: int) -> bool:
        """Whether a layer does not stand there already."""
        if layer is None or length == 0:
            return False
        return layer.offset != length or not self.is_live(tuple(tokens[:length]))

    def extend(self, tokens: Tokens) -> None:
        """Adds tokens that were generated. If it is they that leave the conversations
        that are stored, captures are made there."""
        before = len(self.get_request())
        super().extend(tokens)
        matched = self.count_matched(self.get_request())
        if before <= matched < len(self.get_request()):
            self.wanted.add(matched)

    def close(self) -> int:
        """Stores what every layer has read of the request, if that is anything; how many
        tokens that is. Cancelling it is the same."""
        request, reached = self.get_request(), self.get_reached()
        self.live = request[:reached]
        if reached > 0:
            self.store(tuple(request[:reached]))
        self.request = None
        self.keep_limit()
        return reached

    def store(self, path: Path) -> None:
        """The path, with a point where it parts from another one, where captures were
        wanted, and at its end."""
        for other in list(self.points):
            common = count_common(path, other)
            if common:
                self.points.setdefault(path[:common], Point())
        for end in range(max(1, self.reused), len(path) + 1):
            if self.is_wanted(end) or end == len(path):
                point = self.points.setdefault(path[:end], Point())
                point.captured |= self.get_captured(end, len(path))
                self.touch(path[:end])

    def is_wanted(self, end: int) -> bool:
        at_interval = self.interval is not None and end % self.interval == 0
        return end in self.wanted or at_interval

    def get_captured(self, end: int, last: int) -> set[int]:
        """The layers that can be brought back to `end`: at a place that was wanted, all
        (each was captured as it came by); at the last, those that stand there."""
        return {
            number
            for number, layer in enumerate(self.layers)
            if layer is not None
            and not layer.can_be_cut
            and (self.is_wanted(end) or layer.offset == last)
        }

    def free(self) -> None:
        """Forgets everything."""
        if self.request is not None:
            raise ValueError("a request is open; close or cancel it first")
        self.points, self.live = {}, []
        for layer in self.cached:
            layer.cache.free()

    # --- what is stored -----------------------------------------------------------------

    def touch(self, tokens: Tokens) -> None:
        """The shortest stored path that begins with these tokens was used just now. What
        lies before it was not: it is kept alive by what is used of it, not by what lies
        behind."""
        path = tuple(tokens)
        behind = [other for other in self.points if other[: len(path)] == path]
        if path and behind:
            self.clock += 1
            self.points[min(behind, key=len)].used = self.clock

    def get_parents(self) -> dict[Path, Path]:
        """Of each stored path the longest other one that it begins with."""
        parents: dict[Path, Path] = {}
        before: list[Path] = [()]
        for path in sorted(self.points):  # what one begins with comes before it
            while not is_beginning(before[-1], path):
                before.pop()
            parents[path] = before[-1]
            before.append(path)
        return parents

    def count_tokens(self) -> int:
        """Tokens that are stored; those that two paths begin with count once."""
        parents = self.get_parents()
        return sum(len(path) - len(parent) for path, parent in parents.items())

    def count_bytes(self) -> int:
        return sum(self.list_layer_bytes())

    def list_layer_bytes(self) -> list[int]:
        """What is stored of each layer."""
        parents = self.get_parents()
        return [self.count_layer_bytes(at, parents) for at in range(len(self.layers))]

    def count_layer_bytes(self, number: int, parents: Mapping[Path, Path]) -> int:
        """All that lies between two points, if the layer can be cut; else what was
        captured at each. parents: see `get_parents`."""
        layer = self.layers[number]
        if layer is None:
            return 0
        return sum(
            layer.count_bytes(len(parent), len(path))
            for path, parent in parents.items()
            if layer.can_be_cut or number in self.points[path].captured
        )

    # --- the limit ----------------------------------------------------------------------

    def set_limit(self, limit: int | None) -> None:
        """Another limit, which is kept at once."""
        check_limit(limit)
        self.limit = limit
        self.keep_limit()

    def keep_limit(self) -> None:
        """Lets go of what was not used for the longest time, while there is too much."""
        while self.limit is not None and self.count_bytes() > self.limit:
            parents = self.get_parents()
            victims = self.list_victims(parents)
            if not victims:
                return
            victim = min(victims, key=lambda path: self.points[path].used)
            children = list(parents.values()).count(victim)
            self.evict(victim, children)

    def list_victims(self, parents: Mapping[Path, Path]) -> list[Path]:
        """What can go: the end of a path, or what was captured on the way. But nothing
        that the conversation which the layers stand on runs along, not even with its
        first token."""
        live, inner = self.get_live(), set(parents.values())
        return [
            path
            for path, parent in parents.items()
            if count_common(path, live) <= len(parent)
            and (path not in inner or self.points[path].captured)
        ]

    def get_live(self) -> Path:
        """The tokens that every layer has read now."""
        tokens = self.live if self.request is None else self.request
        return tuple(tokens[: self.get_reached()])

    def evict(self, path: Path, children: int) -> None:
        """The end of a path goes, back to the point before. On the way only what was
        captured goes; the tokens stay for what lies behind, and the point too if paths
        part there."""
        self.points[path].captured.clear()
        if children <= 1:
            del self.points[path]
