"""Stores the layer contents of many conversations for reuse by later requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lockstep.impl.prefix.captures import Captures
from lockstep.impl.prefix.eviction import Eviction
from lockstep.impl.prefix.layers import Layers, LayerSnapshot
from lockstep.impl.prefix.node import Node
from lockstep.impl.prefix.reach import Reach
from lockstep.impl.prefix.request import Requests
from lockstep.impl.prefix.statistics import Statistics, explain
from lockstep.impl.prefix.tokens import Path, count_common
from lockstep.impl.prefix.tree import Match, Tree
from lockstep.impl.shared.errors import MisuseError


class Trie(Requests):
    """A prefix cache that stores many conversations.

    Args:
        layers: one empty cache for each layer; None for a layer without a cache.
        limit: maximum number of stored bytes; None for no limit. The least recently used
            node is evicted first, except on the path of the conversation that the layers
            hold.
        interval: layers are also captured at every multiple of this number of tokens;
            None for no regular captures.

    Attributes:
        live: the tokens that all layers hold, between requests.
        wanted: additional offsets at which the open request makes captures.
        reused: number of tokens that the open request reused.
        follows: whether all tokens of the open request so far are stored.
    """

    def __init__(
        self, layers: Layers, limit: int | None = None, interval: int | None = None
    ) -> None:
        super().__init__(layers)
        check_limit(limit)
        if interval is not None and interval < 1:
            raise MisuseError(f"interval must be at least 1 token, not {interval}")
        self.limit, self.interval = limit, interval
        self.tree = Tree(layers)
        self.eviction = Eviction(self.tree)
        self.captures = [
            Captures(n, layer) for n, layer in self.cached if not layer.can_split
        ]
        self.live: Path = ()
        self.wanted: set[int] = set()
        self.reused = 0
        self.follows = False

    # --- a request ----------------------------------------------------------------------

    def begin(
        self, tokens: Iterable[int], checkpoints: Collection[int] = ()
    ) -> list[int]:
        """Opens a request that reuses as many stored tokens as possible.

        Args:
            tokens: the request.
            checkpoints: numbers of tokens after which the layers are captured.

        Returns:
            The tokens that remain to be computed, at least one.
        """
        request = self.check_begin(tokens)
        check_checkpoints(checkpoints)
        path = tuple(request)
        match = self.tree.match(path)
        reuse, reason = self.go(path, match)
        self.request, self.reused = request, reuse
        self.wanted, self.follows = set(checkpoints), match.length == len(request)
        if match.length and not self.follows:
            self.wanted.add(match.length)
        self.schedule(reuse)
        self.log.add(len(request), reuse, reason)
        return request[reuse:]

    def extend(self, tokens: Iterable[int]) -> None:
        """Adds generated tokens to the request.

        If a token leaves the stored conversations, captures are made at its offset.
        """
        length = len(self.get_request("extend"))
        super().extend(tokens)
        request = self.get_request("extend")
        if self.follows:
            matched = self.tree.match(tuple(request)).length
            self.follows = matched == len(request)
            if length <= matched < len(request):
                self.wanted.add(matched)
        if self.list_wanted(length, len(request)):
            self.schedule(self.get_reached())

    def close(self) -> int:
        """Ends the request and stores the tokens that every layer has read, if any.

        Returns:
            Number of these tokens.
        """
        request, reached = self.get_request("close"), self.get_reached()
        self.request, self.live = None, tuple(request[:reached])
        try:
            if reached > 0:
                self.store(self.live)
        finally:
            self.tree.tighten()
            for captures in self.captures:
                captures.close()
        self.keep_limit(self.live)
        return reached

    def cancel(self) -> int:
        """Does the same as `close`, for a request that was interrupted."""
        return self.close()

    def free(self) -> None:
        """Removes everything and closes all snapshots."""
        self.check_closed("free")
        self.live = ()
        self.tree.clear()
        self.eviction.clear()
        self.free_layers()

    # --- moving the layers --------------------------------------------------------------

    def go(self, request: Path, match: Match) -> tuple[int, str]:
        """Brings the layers to the largest offset that all of them can reach; empties
        them if there is none.

        Returns:
            The offset, and the reason why it is not larger.
        """
        reason = explain(self.tree.tokens, match.length, len(request))
        common = count_common(self.live, request)
        most = min(match.length, len(request) - 1)
        reach = Reach(match, common)
        target = reach.find_deepest(self.cached, most)
        if target < most:
            reason = reach.find_obstacle(self.cached, most)
        # If a layer fails during the move, its old offset is no longer valid.
        self.live = ()
        if target > 0:
            failure = self.move(target, common, lambda n, o: reach.restore(n, o, target))
            if failure is None:
                self.live = request[:target]
                node = next(node for node in match.path if node.end >= target)
                self.eviction.touch(node)
                self.tree.loosen(node, target)
                return target, reason
            reason = failure
        self.free_layers()
        return 0, reason

    # --- captures and storage -----------------------------------------------------------

    def list_wanted(self, first: int, last: int) -> list[int]:
        """Returns the offsets in [first, last] to capture, ascending; never 0."""
        first = max(1, first)
        wanted = {offset for offset in self.wanted if first <= offset <= last}
        if self.interval is not None:
            multiple = -(-first // self.interval) * self.interval
            wanted.update(range(multiple, last + 1, self.interval))
        return sorted(wanted)

    def schedule(self, first: int) -> None:
        """Schedules the wanted captures between `first` and the last known token."""
        offsets = self.list_wanted(first, len(self.get_request("schedule")))
        for captures in self.captures:
            captures.schedule(offsets)

    def store(self, path: Path) -> None:
        """Stores the path, with a node at each wanted capture and at its end."""
        end = len(path)
        ends = [*self.list_wanted(self.reused, end - 1), end]
        for captures in self.captures:
            captures.collect()
            captures.capture(end)
        for node in self.tree.insert(path, ends):
            self.tree.put(node, self.take_captures(node))
            self.eviction.touch(node)

    def take_captures(self, node: Node) -> dict[int, LayerSnapshot]:
        """Takes the captures at a node, except for layers already captured there."""
        return {
            captures.number: captures.held.pop(node.end)
            for captures in self.captures
            if node.end in captures.held and node.snapshots[captures.number] is None
        }

    # --- the limit ----------------------------------------------------------------------

    def set_limit(self, limit: int | None) -> None:
        """Changes the limit, and applies it immediately."""
        check_limit(limit)
        self.limit = limit
        request = self.live if self.request is None else self.request
        self.keep_limit(tuple(request[: self.get_reached()]))

    def keep_limit(self, live: Path) -> None:
        """Evicts the least recently used nodes until the stored bytes are within the
        limit.

        Nodes on the path of `live` stay, even if only the first token of a node matches.
        """
        if self.limit is None or self.tree.size <= self.limit:
            return
        self.eviction.shrink(self.limit, set(self.tree.match(live).path))

    def count_tokens(self) -> int:
        """Returns the number of stored tokens; a common prefix counts once."""
        return self.tree.tokens

    def count_bytes(self) -> int:
        """Returns the bytes of all snapshots, even of those that have not been copied."""
        return self.tree.size

    def get_statistics(self) -> Statistics:
        return self.log.get(self.count_tokens(), self.count_bytes())


def check_limit(limit: int | None) -> None:
    if limit is not None and limit < 0:
        raise MisuseError(
            f"limit must be 0 bytes or more, or None for no limit, not {limit}"
        )


def check_checkpoints(checkpoints: Collection[int]) -> None:
    for checkpoint in checkpoints:
        if type(checkpoint) is not int or checkpoint < 1:
            raise MisuseError(
                "begin: a checkpoint must be an integer of at least 1 (a number of"
                f" tokens), not {checkpoint!r}"
            )
