"""A batch on numpy that keeps padding on the left, as released ones do, and one that
shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batching import Batch, make, open_batch

from lockstep.harness.backends.backend import Backend


class KeepsPadding(Batch):
    """Columns before the tokens of a row hold what its padding held."""

    filling = 0.0

    def update(self, keys: Any, values: Any) -> Any:
        for row, place in enumerate(self.place(keys.shape[2])):
            if place.start:
                self.filling = keys[row, 0, 0, 0]
        return super().update(keys, values)

    def align(self, name: str, like: Any) -> Any:
        array = super().align(name, like)
        for number, row in enumerate(self.rows):
            array[number, :, : array.shape[2] - row.offset] = self.filling
        return array


class ShowsPadding(KeepsPadding):
    def make_mask(self, length: int) -> Any:
        mask = super().make_mask(length)
        return mask | mask.any(0, keepdims=True)


def declare(kind: type[Batch]) -> Backend:
    def open_padded(config: Mapping[str, Any]) -> Any:
        opened = open_batch(config)
        return kind(opened.rows) if isinstance(opened, Batch) else opened

    backend = make()
    declared = {"batch-kv": backend.contracts["batched"]["batch-kv"]}
    return replace(backend, open=open_padded, contracts={"batched": declared})


def keeps_padding() -> Backend:
    return declare(KeepsPadding)


def shows_padding() -> Backend:
    return declare(ShowsPadding)
