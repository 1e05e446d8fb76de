"""The layers of a model; all layers read the same conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .kv import KVCache
from .rotating import RotatingCache
from .state import StateCache

Tokens = Sequence[int]
"""Token numbers of a tokenizer."""

GetTags = Callable[[Tokens], Sequence[int]]
"""Returns one tag for each token of a conversation, from its first token on.

K and V of a token depend only on the token and on all tokens before it. Equal prefixes
therefore have equal tags, whichever request computed them.
"""


@dataclass(frozen=True)
class Layer:
    """One layer with a cache.

    Attributes:
        cache: the cache.
        token_bytes: size in bytes of K and V of one token.
        state_bytes: size in bytes of a recurrent state.
    """

    cache: KVCache | RotatingCache | StateCache
    token_bytes: int = 0
    state_bytes: int = 0

    @property
    def offset(self) -> int:
        return self.cache.offset

    @property
    def can_be_cut(self) -> bool:
        """Whether the layer can be restored to any prefix of a conversation from the
        content that is stored for the whole conversation."""
        return isinstance(self.cache, KVCache)

    def hold(self, tags: Sequence[int]) -> None:
        """Empties the cache, then adds the tokens with these tags."""
        self.cache.free()
        self.cache.update(tags)

    def count_bytes(self, begin: int, end: int) -> int:
        """Returns the bytes to store for the tokens [begin, end) of a conversation.

        For a window or a state, these are the bytes of the whole window or state at
        `end`, whatever `begin` is.
        """
        if isinstance(self.cache, StateCache):
            return self.state_bytes
        if isinstance(self.cache, RotatingCache):
            return min(end, self.cache.window) * self.token_bytes
        return (end - begin) * self.token_bytes


def count_common(first: Sequence[object], second: Sequence[object]) -> int:
    """Returns the length of the common prefix of two lists of tokens."""
    common = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        common += 1
    return common


class Model:
    """The layers of a model, and the request that they compute.

    Args:
        layers: the layers; None for a layer without a cache.
        get_tags: see `GetTags`.

    Attributes:
        request: the tokens of the open request, including generated tokens; None if no
            request is open.
        computed: number of request tokens that were passed to the layers.
    """

    def __init__(self, layers: Sequence[Layer | None], get_tags: GetTags) -> None:
        self.layers = layers
        self.get_tags = get_tags
        self.request: list[int] | None = None
        self.computed = 0

    @property
    def cached(self) -> list[Layer]:
        """The layers that have a cache."""
        return [layer for layer in self.layers if layer is not None]

    def get_request(self) -> list[int]:
        if self.request is None:
            raise ValueError("no request is open; begin opens one")
        return self.request

    def check_begin(self, tokens: Tokens) -> None:
        """Raises ValueError if a request cannot begin with these tokens now."""
        if self.request is not None:
            raise ValueError("a request is open; close or cancel it first")
        check_tokens(tokens)
        if not tokens:
            raise ValueError("the request is empty; there is nothing to compute")

    def open(self, tokens: Tokens, reuse: int) -> list[int]:
        """Opens a request whose first `reuse` tokens are stored.

        Returns:
            The tokens after the first `reuse` tokens.
        """
        for layer in self.cached:
            layer.hold(self.get_tags(tokens[:reuse]))
        self.request, self.computed = list(tokens), reuse
        return list(tokens[reuse:])

    def extend(self, tokens: Tokens) -> None:
        """Adds generated tokens to the request."""
        check_tokens(tokens)
        self.get_request().extend(tokens)

    def feed(self, count: int, layers: int | None = None) -> None:
        """Computes the next tokens of the request.

        Args:
            count: number of tokens.
            layers: number of layers that compute the tokens, beginning with the first
                layer; None for all layers.
        """
        end = self.computed + count
        assert self.computed <= end <= len(self.get_request()), f"{count} are not left"
        tags = self.get_tags(self.get_request()[:end])[self.computed :]
        for layer in self.layers[:layers]:
            if layer is not None:
                layer.cache.update(tags)
        self.computed = end

    def overrun(self, tags: Sequence[int]) -> None:
        """Computes tokens that are never added to the request.

        An engine does so if the request is cancelled during a pass. After this call, the
        request must be closed.
        """
        for layer in self.cached:
            layer.cache.update(tags)

    def get_reached(self) -> int:
        """Returns the number of conversation tokens that every layer has read.

        The number is 0 if no layer has a cache. It is at most the length of the open
        request; see `overrun`.
        """
        reached = min((layer.offset for layer in self.cached), default=0)
        return reached if self.request is None else min(reached, len(self.request))


def check_tokens(tokens: Tokens) -> None:
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool):
            raise ValueError(f"token {token!r} is not an integer")
