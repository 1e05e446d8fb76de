"""A prefix cache that keeps one conversation between requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lockstep.impl.prefix.layers import Layers
from lockstep.impl.prefix.request import Requests
from lockstep.impl.prefix.statistics import Statistics, explain
from lockstep.impl.prefix.tokens import count_common
from lockstep.impl.shared.errors import MisuseError


class Session(Requests):
    """A prefix cache that stores the tokens of the last request; the layers have read
    these tokens.

    No content of a layer is copied: the layers go back to the offset where the next
    request differs from the stored tokens. If this is not possible, the whole request is
    computed again.

    Args:
        layers: one empty cache for each layer; None for a layer without a cache.

    Attributes:
        stored: the tokens that every layer has read.
    """

    def __init__(self, layers: Layers) -> None:
        super().__init__(layers)
        self.stored: list[int] = []

    def begin(self, tokens: Iterable[int], checkpoints: Sequence[int] = ()) -> list[int]:
        """Opens a request and brings every layer to the same offset.

        Args:
            tokens: the request.
            checkpoints: empty; only a trie supports captures.

        Returns:
            The tokens that remain to be computed, at least one.

        Raises:
            MisuseError: there are checkpoints, or the tokens are not a valid request.
        """
        request = self.check_begin(tokens)
        if len(checkpoints):
            raise MisuseError(
                f"begin: checkpoints {list(checkpoints)} were given, but a session"
                " captures nothing inside a request; give no checkpoints"
            )
        matched = count_common(request, self.stored)
        reuse, reason = self.go(min(matched, len(request) - 1))
        if reason is None:
            reason = explain(len(self.stored), matched, len(request))
        self.stored = request[:reuse]
        self.request = request
        self.log.add(len(request), reuse, reason)
        return request[reuse:]

    def go(self, target: int) -> tuple[int, str | None]:
        """Brings all layers back to `target`; empties all of them if this is not
        possible.

        Returns:
            The offset of the layers, and the reason if it is not `target`.
        """
        reason = self.find_obstacle(target)
        if reason is None and target > 0:
            reason = self.move(
                target, target, lambda _, layer: layer.restore(None, target)
            )
        if reason is None and target > 0:
            return target, None
        self.free_layers()
        return 0, reason

    def find_obstacle(self, target: int) -> str | None:
        """Returns the reason why a layer cannot go back to `target`; None if all layers
        can.

        Called before any layer moves, because trimmed tokens are lost.
        """
        moving = [
            numbered
            for numbered in self.cached
            if target > 0 and numbered[1].offset != target
        ]
        for number, layer in moving:
            if not layer.can_restore(None, target):
                return f"layer {number} cannot go back to offset {target}"
        return None

    def close(self) -> int:
        """Ends the request and stores the tokens that every layer has read, if any.

        Returns:
            Number of stored tokens.
        """
        request, reached = self.get_request("close"), self.get_reached()
        if reached > 0:
            self.stored = request[:reached]
        self.request = None
        return len(self.stored)

    def cancel(self) -> int:
        """Does the same as `close`, for a request that was interrupted."""
        return self.close()

    def free(self) -> None:
        """Removes everything."""
        self.check_closed("free")
        self.stored = []
        self.free_layers()

    def count_tokens(self) -> int:
        return len(self.stored)

    def count_bytes(self) -> int:
        """Returns 0, because a session stores nothing except the layers."""
        return 0

    def get_statistics(self) -> Statistics:
        return self.log.get(self.count_tokens(), self.count_bytes())
