"""Our batch on torch as released ones are: it keeps padding on the left; and one that
shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.impl.shared.batched_tokens import TokenBatch
from lockstep.impl.torch.backend import cpu
from tests.harness.changing import change_caches


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
    def change_batch(opened: Any) -> None:
        if isinstance(opened, TokenBatch):
            change(opened)

    return change_caches(cpu(), change_batch)


def keeps_padding() -> Backend:
    return declare(keep_padding)


def shows_padding() -> Backend:
    return declare(show_padding)
