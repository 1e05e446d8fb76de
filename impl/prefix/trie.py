"""Many conversations: what their layers computed is stored, and used by the next ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lockstep.impl.prefix.captures import Captures
from lockstep.impl.prefix.eviction import Eviction
from lockstep.impl.prefix.layers import Layers, Snapshot
from lockstep.impl.prefix.node import Node
from lockstep.impl.prefix.reach import Reach
from lockstep.impl.prefix.request import Requests
from lockstep.impl.prefix.statistics import Statistics, explain
from lockstep.impl.prefix.tokens import Path, count_common
from lockstep.impl.prefix.tree import Match, Tree


class Trie(Requests):
    """The conversations that are stored, and the one that the layers stand on.

    limit: bytes that may be stored; None for no limit. What was not used for the longest
    time goes first, and nothing of the conversation that the layers stand on.
    interval: layers are captured at its multiples too; None for none.
    The layers are given open and empty.

    live: the tokens that all layers hold, between requests. wanted: where captures are to
    be made during the open request, beside the multiples of `interval`. reused: how many
    of its tokens were there when it began. follows: all of its tokens so far are those of
    something stored.
    """

    def __init__(
        self, layers: Layers, limit: int | None = None, interval: int | None = None
    ) -> None:
        super().__init__(layers)
        check_limit(limit)
        if interval is not None and interval < 1:
            raise ValueError(f"interval {interval} has no multiples; give 1 or more")
        self.limit, self.interval = limit, interval
        self.tree = Tree(layers)
        self.eviction = Eviction(self.tree)
        self.captures = [Captures(n, one) for n, one in self.cached if not one.can_split]
        self.live: Path = ()
        self.wanted: set[int] = set()
        self.reused = 0
        self.follows = False

    # --- a request ----------------------------------------------------------------------

    def begin(
        self, tokens: Iterable[int], checkpoints: Collection[int] = ()
    ) -> list[int]:
        """Opens a request, brings every layer to the same offset, as far on as what is
        stored allows, and returns the tokens behind it: what is left to compute, at least
        one.

        checkpoints: numbers of tokens after which the layers are to be captured.
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
        """Adds tokens that were generated to the request. If it is they that leave the
        conversations that are stored, captures are made there."""
        before = len(self.get_request("extend"))
        super().extend(tokens)
        request = self.get_request("extend")
        if self.follows:
            matched = self.tree.match(tuple(request)).length
            self.follows = matched == len(request)
            if before <= matched < len(request):
                self.wanted.add(matched)
        if self.list_wanted(before, len(request)):
            self.schedule(self.get_reached())

    def close(self) -> int:
        """Ends the request, and stores what every layer has read of it, if that is
        anything; how many tokens that is."""
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
        """The same for a request that was broken off."""
        return self.close()

    def free(self) -> None:
        """Forgets everything, and closes all snapshots."""
        self.check_closed("free")
        self.live = ()
        self.tree.clear()
        self.eviction.clear()
        self.free_layers()

    # --- where the layers can go --------------------------------------------------------

    def go(self, request: Path, match: Match) -> tuple[int, str]:
        """Brings the layers as far on as they can go together, or empties them all; to
        where, and why not further."""
        reason = explain(self.tree.tokens, match.length, len(request))
        common = count_common(self.live, request)
        most = min(match.length, len(request) - 1)
        reach = Reach(match, common)
        target = reach.find_deepest(self.cached, most)
        if target < most:
            reason = reach.find_obstacle(self.cached, most)
        # Whatever happens while they move, nobody may rely on where they stood before.
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

    # --- what is captured and stored ----------------------------------------------------

    def list_wanted(self, first: int, last: int) -> list[int]:
        """The offsets in [first, last] where captures are wanted, ascending; never before
        the first token."""
        first = max(1, first)
        wanted = {offset for offset in self.wanted if first <= offset <= last}
        if self.interval is not None:
            multiple = -(-first // self.interval) * self.interval
            wanted.update(range(multiple, last + 1, self.interval))
        return sorted(wanted)

    def schedule(self, first: int) -> None:
        """Schedules what is wanted between `first` and the last token that is known."""
        offsets = self.list_wanted(first, len(self.get_request("schedule")))
        for captures in self.captures:
            captures.schedule(offsets)

    def store(self, path: Path) -> None:
        """The path, with a node where captures were wanted, and at its end."""
        end = len(path)
        ends = [*self.list_wanted(self.reused, end - 1), end]
        for captures in self.captures:
            captures.collect()
            captures.capture(end)
        for node in self.tree.insert(path, ends):
            self.tree.put(node, self.take_captures(node))
            self.eviction.touch(node)

    def take_captures(self, node: Node) -> dict[int, Snapshot]:
        """Takes the captures at a node, of the layers that the node has none of."""
        return {
            captures.number: captures.held.pop(node.end)
            for captures in self.captures
            if node.end in captures.held and node.snapshots[captures.number] is None
        }

    # --- the limit ----------------------------------------------------------------------

    def set_limit(self, limit: int | None) -> None:
        """Another limit, which is kept at once."""
        check_limit(limit)
        self.limit = limit
        request = self.live if self.request is None else self.request
        self.keep_limit(tuple(request[: self.get_reached()]))

    def keep_limit(self, live: Path) -> None:
        """Lets go of what was not used for the longest time, while there is too much; but
        of nothing that `live` runs along, not even with its first token."""
        if self.limit is None or self.tree.size <= self.limit:
            return
        self.eviction.shrink(self.limit, set(self.tree.match(live).path))

    def count_tokens(self) -> int:
        """The tokens that are stored; what conversations share counts once."""
        return self.tree.tokens

    def count_bytes(self) -> int:
        """The bytes of all snapshots, whether or not they were copied yet."""
        return self.tree.size

    def get_statistics(self) -> Statistics:
        return self.log.get(self.count_tokens(), self.count_bytes())


def check_limit(limit: int | None) -> None:
    if limit is not None and limit < 0:
        raise ValueError(f"a limit of {limit} bytes; give 0 or more, or None for none")


def check_checkpoints(checkpoints: Collection[int]) -> None:
    for checkpoint in checkpoints:
        if type(checkpoint) is not int or checkpoint < 1:
            raise ValueError(
                f"begin: checkpoint {checkpoint!r} is not behind any token; give numbers"
                " of tokens from 1 on"
            )
