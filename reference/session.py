"""A prefix cache that keeps one conversation between requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .layers import GetTags, Layer, Model, Tokens, count_common


class Session(Model):
    """The tokens of the last request, and the layers that have read them.

    Attributes:
        stored: the tokens that every layer has read.
    """

    def __init__(self, layers: Sequence[Layer | None], get_tags: GetTags) -> None:
        super().__init__(layers, get_tags)
        self.stored: list[int] = []

    def begin(self, tokens: Tokens, refusing: Collection[int] = ()) -> list[int]:
        """Opens a request.

        The request reuses the common prefix with the stored tokens if every layer can go
        back to the end of this prefix; otherwise it reuses no tokens.

        Args:
            tokens: the request.
            refusing: numbers of layers that refuse to go back although they could.

        Returns:
            The tokens that remain to be computed, at least one.
        """
        self.check_begin(tokens)
        reuse = min(count_common(tokens, self.stored), len(tokens) - 1)
        for number, layer in enumerate(self.layers):
            if layer is not None and layer.offset != reuse:
                able = layer.cache.can_restore(None, reuse) and number not in refusing
                reuse = reuse if able else 0
        self.stored = list(tokens[:reuse])
        return self.open(tokens, reuse)

    def close(self) -> int:
        """Closes the request and stores the tokens of it that every layer has read.

        If there are no such tokens, the stored tokens stay. Also cancels a request.

        Returns:
            The number of stored tokens.
        """
        request, reached = self.get_request(), self.get_reached()
        if reached > 0:
            self.stored = request[:reached]
        self.request = None
        return len(self.stored)

    def free(self) -> None:
        """Forgets the stored tokens and empties all layers."""
        if self.request is not None:
            raise ValueError("a request is open; close or cancel it first")
        self.stored = []
        for layer in self.cached:
            layer.cache.free()
