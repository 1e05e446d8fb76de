"""The interface of the caches of a model's layers; `impl.shared.layer` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Snapshot(Protocol):
    """A layer's content for the positions [begin, end), put aside."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def memory(self) -> object | None:
        """The layer's memory that it refers to; None once it has a copy of its own."""

    def get_size(self) -> int:
        """The bytes that it takes, whether or not it was copied yet."""


class Layer(Protocol):
    """The cache of one layer. Other code writes to it; `offset` tells how far it is."""

    @property
    def offset(self) -> int: ...
    @property
    def can_split(self) -> bool:
        """A snapshot serves any offset in it, not only its end."""

    def free(self) -> None: ...
    def snapshot(self, begin: int) -> Any: ...
    def can_restore(self, snapshot: Any, target: int) -> bool: ...
    def restore(self, snapshot: Any, target: int) -> bool: ...
    def split(self, snapshot: Any, at: int) -> tuple[Any, Any]: ...
    def merge(self, parent: Any, child: Any) -> Any: ...
    def close(self, snapshot: Any) -> None: ...
    def prepare(self, offsets: Sequence[int]) -> None: ...
    def take(self) -> Sequence[Any]: ...


Layers = Sequence[Layer | None]
"""None stands for a layer without a cache."""
