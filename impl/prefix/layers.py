"""The interface of a model's layer caches; `impl.shared.layer` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class LayerSnapshot(Protocol):
    """A snapshot of a layer's content at the positions [begin, end)."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def memory(self) -> object | None:
        """The memory of the layer that the snapshot refers to; None after the copy."""

    def get_size(self) -> int:
        """Returns the size of the content in bytes, even if it has not been copied."""


class Layer(Protocol):
    """The cache of one layer, to which other code writes.

    `offset` is the number of its tokens.
    """

    @property
    def offset(self) -> int: ...
    @property
    def can_split(self) -> bool:
        """Whether a snapshot can restore every offset inside it, not only its end."""

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
"""The layers of a model; None for a layer without a cache."""
