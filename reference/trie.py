"""Stores many conversations, and determines how many stored tokens a request can reuse.

An implementation keeps a tree whose edges are tokens. In this file a conversation is a
tuple of all its tokens, and the keys of `points` are such tuples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from .layers import GetTags, Layer, Model, Tokens, count_common

Path = tuple[int, ...]
"""The tokens of a conversation, from its first token on."""


@dataclass
class Point:
    """The end of a stored path.

    Attributes:
        captured: numbers of the layers with a capture at this point. A layer that can be
            cut anywhere needs no capture.
        used: time of the last use; a higher number is later.
    """

    captured: set[int] = field(default_factory=set)
    used: int = 0


def is_beginning(path: Path, longer: Path) -> bool:
    """Returns whether `longer` continues `path`."""
    return len(path) < len(longer) and longer[: len(path)] == path


def check_limit(limit: int | None) -> None:
    if limit is not None and limit < 0:
        raise ValueError(f"a limit of {limit} bytes")


class Trie(Model):
    """The stored conversations, and the conversation that the layers have read.

    Args:
        layers, get_tags: as in `Model`.
        limit: maximum number of stored bytes; None for no limit.
        interval: captures are made at every multiple of this number of tokens; None for
            no regular captures.

    Attributes:
        points: path → point. Layers that can be cut store all tokens of each path; other
            layers can be restored at a capture and nowhere else. If two paths diverge,
            there is also a point at the end of their common prefix.
        live: the tokens that the layers have read, between requests.
        wanted: additional lengths at which the open request makes captures.
        reused: number of tokens that the open request reused.
        refused: whether a layer refused to move when the last request began.
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
        self.reused, self.refused = 0, False
        self.clock = 0

    # --- a request ----------------------------------------------------------------------

    def begin(
        self,
        tokens: Tokens,
        checkpoints: Collection[int] = (),
        refusing: Collection[int] = (),
    ) -> list[int]:
        """Opens a request that reuses as many stored tokens as possible.

        Args:
            tokens: the request.
            checkpoints: lengths of the conversation at which the layers are captured.
            refusing: numbers of layers that refuse to move although they could. If one of
                these layers has to move, no tokens are reused.

        Returns:
            The tokens that remain to be computed, at least one.
        """
        self.check_begin(tokens)
        for checkpoint in checkpoints:
            if isinstance(checkpoint, bool) or checkpoint < 1:
                raise ValueError(f"checkpoint must be at least 1, not {checkpoint}")
        matched = self.count_matched(tokens)
        most = min(matched, len(tokens) - 1)
        reuse = next(p for p in range(most, -1, -1) if self.can_reach(tokens, p))
        self.refused = any(
            number in refusing and self.has_to_move(layer, tokens, reuse)
            for number, layer in enumerate(self.layers)
        )
        reuse = 0 if self.refused else reuse
        self.wanted = set(checkpoints)
        if 0 < matched < len(tokens):
            self.wanted.add(matched)
        self.touch(tokens[:reuse])
        self.live = list(tokens[:reuse])
        self.reused = reuse
        return self.open(tokens, reuse)

    def count_matched(self, tokens: Tokens) -> int:
        """Returns the length of the longest common prefix with a stored conversation."""
        return max((count_common(tokens, path) for path in self.points), default=0)

    def can_reach(self, tokens: Tokens, length: int) -> bool:
        """Returns whether every layer can go to the end of the first `length` tokens."""
        numbers = range(len(self.layers))
        return all(self.can_layer_reach(number, tokens, length) for number in numbers)

    def can_layer_reach(self, number: int, tokens: Tokens, length: int) -> bool:
        """Returns whether one layer can go to the end of the first `length` tokens.

        It can if `length` is 0, if the layer can be cut, if a capture was made there, or
        if the layer has read these tokens and can go back to their end.
        """
        layer, path = self.layers[number], tuple(tokens[:length])
        if layer is None or layer.can_be_cut or not path:
            return True
        if path in self.points and number in self.points[path].captured:
            return True
        return self.is_live(path) and layer.cache.can_restore(None, length)

    def is_live(self, path: Path) -> bool:
        return tuple(self.live[: len(path)]) == path

    def has_to_move(self, layer: Layer | None, tokens: Tokens, length: int) -> bool:
        """Returns whether a layer holds tokens other than the first `length` tokens.

        False for a layer without a cache, and if `length` is 0.
        """
        if layer is None or length == 0:
            return False
        return layer.offset != length or not self.is_live(tuple(tokens[:length]))

    def extend(self, tokens: Tokens) -> None:
        """Adds generated tokens to the request.

        If the request diverges from the stored conversations at one of these tokens, the
        layers are captured before that token.
        """
        length = len(self.get_request())
        super().extend(tokens)
        matched = self.count_matched(self.get_request())
        if length <= matched < len(self.get_request()):
            self.wanted.add(matched)

    def close(self) -> int:
        """Closes the request and stores the tokens of it that every layer has read.

        Also cancels a request.

        Returns:
            The number of these tokens.
        """
        request, reached = self.get_request(), self.get_reached()
        self.live = request[:reached]
        if reached > 0:
            self.store(tuple(request[:reached]))
        self.request = None
        self.keep_limit()
        return reached

    def store(self, path: Path) -> None:
        """Adds a path.

        Points are added where it diverges from another path, where captures are wanted,
        and at the end of the path.
        """
        for longer in list(self.points):
            common = count_common(path, longer)
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
        """Returns the numbers of the layers that have a capture at `end`.

        Layers that can be cut have no captures. If a capture is wanted at `end`, all
        other layers were captured when they reached it. Otherwise, the layers whose
        offset is `last` have a capture, and no others.
        """
        return {
            number
            for number, layer in enumerate(self.layers)
            if layer is not None
            and not layer.can_be_cut
            and (self.is_wanted(end) or layer.offset == last)
        }

    def free(self) -> None:
        """Forgets all conversations."""
        if self.request is not None:
            raise ValueError("a request is open; close or cancel it first")
        self.points, self.live = {}, []
        for layer in self.cached:
            layer.cache.free()

    # --- what is stored -----------------------------------------------------------------

    def touch(self, tokens: Tokens) -> None:
        """Marks the shortest stored path that begins with these tokens as just used.

        Shorter stored prefixes are not marked: a request uses the point that it reuses,
        not the points before it.
        """
        path = tuple(tokens)
        following = [longer for longer in self.points if longer[: len(path)] == path]
        if path and following:
            self.clock += 1
            self.points[min(following, key=len)].used = self.clock

    def get_parents(self) -> dict[Path, Path]:
        """Returns, for each stored path, its longest stored proper prefix, or () if there
        is none."""
        parents: dict[Path, Path] = {}
        prefixes: list[Path] = [()]
        for path in sorted(self.points):  # what one begins with comes before it
            while not is_beginning(prefixes[-1], path):
                prefixes.pop()
            parents[path] = prefixes[-1]
            prefixes.append(path)
        return parents

    def count_tokens(self) -> int:
        """Returns the number of stored tokens; common prefixes are counted once."""
        parents = self.get_parents()
        return sum(len(path) - len(parent) for path, parent in parents.items())

    def count_bytes(self) -> int:
        return sum(self.list_layer_bytes())

    def list_layer_bytes(self) -> list[int]:
        """Returns the stored bytes of each layer."""
        parents = self.get_parents()
        return [self.count_layer_bytes(at, parents) for at in range(len(self.layers))]

    def count_layer_bytes(self, number: int, parents: Mapping[Path, Path]) -> int:
        """Returns the number of stored bytes of a layer.

        A layer that can be cut stores the tokens of all paths; another layer stores its
        captures.

        Args:
            number: the number of the layer.
            parents: the result of `get_parents`.
        """
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
        """Sets the limit, and evicts points while the limit is exceeded."""
        check_limit(limit)
        self.limit = limit
        self.keep_limit()

    def keep_limit(self) -> None:
        """Evicts the least recently used points while the limit is exceeded.

        Protected points are never evicted; see `list_victims`.
        """
        while self.limit is not None and self.count_bytes() > self.limit:
            parents = self.get_parents()
            victims = self.list_victims(parents)
            if not victims:
                return
            victim = min(victims, key=lambda path: self.points[path].used)
            children = list(parents.values()).count(victim)
            self.evict(victim, children)

    def list_victims(self, parents: Mapping[Path, Path]) -> list[Path]:
        """Returns the paths of the points that can be evicted.

        These are the points without children, and the points with captures. A point is
        protected if the live conversation contains at least one of the tokens between the
        parent of the point and the point itself.
        """
        live, inner = self.get_live(), set(parents.values())
        return [
            path
            for path, parent in parents.items()
            if count_common(path, live) <= len(parent)
            and (path not in inner or self.points[path].captured)
        ]

    def get_live(self) -> Path:
        """Returns the tokens that every layer has read so far."""
        tokens = self.live if self.request is None else self.request
        return tuple(tokens[: self.get_reached()])

    def evict(self, path: Path, children: int) -> None:
        """Evicts a point.

        A point without children is removed, with the tokens between its parent and the
        point. A point with children loses its captures and keeps its tokens, because the
        longer paths need them. With one child the point itself is removed too; with
        several children it stays.
        """
        self.points[path].captured.clear()
        if children <= 1:
            del self.points[path]
