"""Our batch on torch as released ones are: it keeps padding on the left; and one that
shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.impl.shared.batched_tokens import TokenBatch
from lockstep.impl.torch.backend import cpu


def keep_padding(batch: Any) -> None:
    """Returns the first update with its padding."""
    update = batch.update

    def update_and_keep(keys: Any, values: Any) -> Any:
        update(keys, values)
        return keys.clone(), values.clone()

    batch.update = update_and_keep


def show_padding(batch: Any) -> None:
    keep_padding(batch)
    batch.make_mask = lambda length: "causal"


def declare(change: Callable[[Any], None]) -> Backend:
    backend = cpu()

    def open_changed(config: Mapping[str, Any]) -> Any:
        opened = backend.open(config)
        if isinstance(opened, TokenBatch):
            change(opened)
        return opened

    return replace(backend, open=open_changed)


def keeps_padding() -> Backend:
    return declare(keep_padding)


def shows_padding() -> Backend:
    return declare(show_padding)
