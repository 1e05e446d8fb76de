"""The open request and its layers, for `Session` and `Trie`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lockstep.impl.prefix.layers import Layer, Layers
from lockstep.impl.prefix.statistics import Log
from lockstep.impl.prefix.tokens import check_request, check_tokens
from lockstep.impl.shared.errors import MisuseError


class Requests:
    """Handles one request at a time. Other code writes the tokens to the layers.

    Attributes:
        cached: the layers that have a cache, with their numbers.
        request: the tokens of the open request, including generated tokens; None if no
            request is open.
        log: counts of requests and reused tokens.
    """

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self.cached = [(n, layer) for n, layer in enumerate(layers) if layer is not None]
        self.request: list[int] | None = None
        self.log = Log()

    @property
    def layers(self) -> Layers:
        """The layers that were given."""
        return self._layers

    def check_begin(self, tokens: Iterable[int]) -> list[int]:
        """Returns the tokens; raises MisuseError if no request can begin with them."""
        self.check_closed("begin")
        return check_request(tokens)

    def check_closed(self, operation: str) -> None:
        if self.request is not None:
            raise MisuseError(f"{operation}: a request is open; close or cancel it first")

    def get_request(self, operation: str) -> list[int]:
        if self.request is None:
            raise MisuseError(f"{operation}: no request is open; begin opens one")
        return self.request

    def extend(self, tokens: Iterable[int]) -> None:
        """Adds generated tokens to the request."""
        request = self.get_request("extend")
        request.extend(check_tokens(tokens))

    def get_reached(self) -> int:
        """Returns the number of tokens of the request that every layer has read.

        It is 0 if no layer has a cache.
        """
        reached = min((layer.offset for _, layer in self.cached), default=0)
        return reached if self.request is None else min(reached, len(self.request))

    def move(
        self, target: int, common: int, restore: Callable[[int, Layer], bool]
    ) -> str | None:
        """Brings every layer to `target`.

        Args:
            target: the offset.
            common: number of leading tokens of the request that the layers hold.
            restore: restore(number, layer), called for each layer that is not at
                `target`.

        Returns:
            None, or a description of the refusal or failure of a layer. After a refusal
            or failure, the offsets of the layers are unknown.
        """
        for number, layer in self.cached:
            if layer.offset == target <= common:
                continue
            try:
                moved = restore(number, layer)
            except Exception as error:  # after any error, computing again is right
                return f"layer {number} failed to go to offset {target}: {error!r}"
            if not moved or layer.offset != target:
                return f"layer {number} refused to go to offset {target}"
        return None

    def free_layers(self) -> None:
        for _, layer in self.cached:
            layer.free()
