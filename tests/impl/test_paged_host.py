"""Transfers of our block manager to other memory and back, and what it saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.paged_host import TieredManager

RULES, KIND, DTYPES = CONTRACTS["paged"], "paged-full", ("float32",)
FULL = {"type": "full", "block": 2}
TOKENS = (1, 2, 3, 4, 5)


def make(*groups: Mapping[str, Any], blocks: int = 8, host: int = 8) -> TieredManager:
    return TieredManager(groups or (FULL,), blocks, 24, host=host)


def compute(manager: TieredManager, name: str, *tokens: int) -> int | None:
    manager.open(name, tokens, None)
    start = manager.schedule(name, 24)
    manager.run()
    return start


def store(manager: TieredManager, *tokens: int) -> Sequence[tuple[int, int]]:
    """Copies the whole blocks of some tokens to the host, and evicts the device."""
    compute(manager, "first", *tokens)
    pairs = manager.offload("first", "out")
    manager.landed("out")
    manager.free("first", True)
    manager.evict(99)
    return pairs


def load(manager: TieredManager, name: str, *tokens: int) -> Any:
    manager.open(name, tokens, None)
    return manager.load(name, "in")


# --- transfers that fail ----------------------------------------------------------------


# --- what nobody may reuse --------------------------------------------------------------


# --- saving -----------------------------------------------------------------------------


# --- mistakes of callers ----------------------------------------------------------------

MISTAKES: Mapping[str, Callable[[TieredManager], Any]] = {
    "offload: w has computed nothing": lambda one: one.offload("w", "t"),
    "there is a transfer in already": lambda one: one.offload("b", "in"),
    "load: b holds slots": lambda one: one.load("b", "t"),
    "load: a holds slots": lambda one: one.load("a", "t"),
    "a waits for transfer in": lambda one: one.schedule("a", 1),
    "there is no request z": lambda one: one.load("z", "t"),
    "there is no transfer t": lambda one: one.landed("t"),
    "there is no transfer out": lambda one: one.failed("out", 0),
    "a has tokens that are not computed": lambda one: one.accept("a", 0, 1, []),
    "fork: the step of a is not computed": lambda one: one.fork("a", "c", [1]),
    "rewind: a to 1": lambda one: one.rewind("a", 1, [1]),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_refused_in_words_and_changes_nothing(words: str) -> None:
    manager = make()
    store(manager, *TOKENS)
    compute(manager, "b", 7, 7, 7)
    manager.open("w", [1], None)
    load(manager, "a", *TOKENS)

    def look() -> Any:
        pools = [
            (list(pool.references), list(pool.free), list(pool.cached))
            for pool in (manager.blocks, manager.host)
        ]
        return manager.tables("a"), pools, list(manager.transfers)

    before = look()
    with pytest.raises(MisuseError, match=words):
        MISTAKES[words](manager)
    assert look() == before


# --- K and V ----------------------------------------------------------------------------
