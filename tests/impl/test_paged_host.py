"""Transfers of our block manager to other memory and back, and what it saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.paged_facts import Telling
from lockstep.impl.shared.paged_host import TieredManager

RULES, KIND, DTYPES = CONTRACTS["paged"], "paged-full", ("float32",)
FULL = {"type": "full", "block": 2}
SLIDING = {"type": "sliding", "block": 2, "width": 4}
STATE = {"type": "state", "block": 2}
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


def test_a_prefix_goes_to_the_host_and_comes_back() -> None:
    manager = make()
    pairs = store(manager, *TOKENS)
    assert len(pairs) == 2  # whole blocks only
    loaded = load(manager, "a", *TOKENS)
    assert loaded is not None
    end, back = loaded
    assert end == 4
    assert [source for source, _ in back] == [target for _, target in pairs]
    assert [target for _, target in back] == manager.tables("a")[0]
    manager.landed("in")
    assert manager.schedule("a", 9) == 4
    assert len(manager.blocks.entries[0]) == 2


def test_what_the_device_has_is_not_copied() -> None:
    manager = make()
    store(manager, *TOKENS)
    compute(manager, "b", 1, 2, 9)
    end, back = load(manager, "a", *TOKENS)
    assert (end, len(back)) == (4, 1)
    [[first, _]], [[same, _]] = manager.tables("a"), manager.tables("b")
    assert first == same
    manager.landed("in")
    compute(manager, "c", *TOKENS)
    manager.open("d", TOKENS, None)
    assert manager.load("d", "more") is None
    assert manager.tables("d") == []


def test_what_the_host_has_is_not_copied_again() -> None:
    manager = make()
    compute(manager, "a", *TOKENS)
    assert len(manager.offload("a", "s")) == 2
    manager.landed("s")
    assert manager.offload("a", "t") == []
    manager.landed("t")


def test_nothing_is_hit_before_it_has_landed() -> None:
    manager = make()
    store(manager, *TOKENS)
    load(manager, "a", *TOKENS)
    manager.open("b", TOKENS, None)
    assert manager.match("b") == 0
    manager.landed("in")
    assert manager.match("b") == 4


@pytest.mark.parametrize("let_go", ["preempt", "free"])
def test_a_transfer_holds_its_blocks_until_it_is_over(let_go: str) -> None:
    manager = make(blocks=4)
    store(manager, *TOKENS)
    _, back = load(manager, "a", *TOKENS)
    targets = {target for _, target in back}
    if let_go == "preempt":
        manager.preempt("a")
    else:
        manager.free("a", True)
    compute(manager, "b", 7, 7, 7)
    assert not targets & {*manager.tables("b")[0]}
    manager.open("c", [8, 8, 8], None)
    assert manager.schedule("c", 9) is None
    manager.landed("in")
    assert manager.schedule("c", 9) == 0
    assert not manager.pinned.total()


def test_an_offload_holds_what_it_reads() -> None:
    manager = make(blocks=2)
    compute(manager, "a", 1, 2, 3, 4)
    manager.offload("a", "out")
    manager.free("a", True)
    assert manager.evict(9) == 0
    manager.landed("out")
    assert manager.evict(9) == 2


def test_a_load_holds_what_it_reads() -> None:
    manager = make(host=2)
    pairs = store(manager, *TOKENS)
    load(manager, "a", *TOKENS)
    compute(manager, "b", 7, 7, 7, 7)
    assert manager.offload("b", "more") == []  # no room
    manager.landed("more")
    manager.landed("in")
    more = manager.offload("b", "more")
    assert {target for _, target in more} == {target for _, target in pairs}


def test_the_host_evicts_what_was_used_longest_ago() -> None:
    manager = make(host=2)
    store(manager, 1, 2, 9)
    store(manager, 3, 4, 9)
    store(manager, 5, 6, 9)
    assert load(manager, "a", 1, 2, 9) is None
    assert load(manager, "b", 3, 4, 9) is not None


# --- transfers that fail ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "arrived", "kept"),
    [
        (FULL, 0, 0),
        (FULL, 1, 2),
        (SLIDING, 1, 2),
        (STATE, 0, 0),
    ],
)
def test_what_has_arrived_is_kept(
    group: Mapping[str, Any], arrived: int, kept: int
) -> None:
    manager = make(group)
    store(manager, *TOKENS)
    load(manager, "a", *TOKENS)
    assert manager.failed("in", arrived) == kept
    assert bool(manager.tables("a")) == (kept > 0)
    manager.open("b", TOKENS, None)
    assert manager.match("b") == kept
    assert manager.schedule("a", 9) == kept
    assert not manager.pinned.total()


def test_a_window_without_its_first_block_is_given_back() -> None:
    manager = make({"type": "sliding", "block": 1, "width": 3})
    store(manager, *TOKENS)
    assert load(manager, "a", *TOKENS)[0] == 4
    assert manager.failed("in", 1) == 0
    assert manager.blocks.count_available() == 8


def test_an_offload_that_fails_leaves_what_has_arrived() -> None:
    manager = make()
    compute(manager, "a", *TOKENS)
    manager.offload("a", "out")
    assert manager.failed("out", 1) == 0
    assert [len(entries) for entries in manager.host.entries] == [1]
    manager.free("a", True)
    manager.evict(9)
    assert load(manager, "b", *TOKENS)[0] == 2


# --- what nobody may reuse --------------------------------------------------------------


@pytest.mark.parametrize("has_landed", [True, False])
def test_what_nobody_may_reuse_is_not_on_the_host(has_landed: bool) -> None:
    manager = make()
    compute(manager, "a", *TOKENS)
    manager.offload("a", "out")
    if has_landed:
        manager.landed("out")
    manager.free("a", False)
    if not has_landed:
        manager.landed("out")
    assert load(manager, "b", *TOKENS) is None
    assert manager.match("b") == 0
    assert manager.host.count_available() == 8


def test_a_reset_forgets_the_host() -> None:
    manager = make()
    compute(manager, "a", *TOKENS)
    manager.offload("a", "out")
    manager.free("a", True)
    assert not manager.reset()
    manager.landed("out")
    assert manager.reset()
    assert load(manager, "b", *TOKENS) is None


# --- saving -----------------------------------------------------------------------------


def test_what_is_saved_is_on_both_sides_again() -> None:
    manager, other = Telling([FULL], 8, 24, host=8), Telling([FULL], 8, 24, host=8)
    store(manager, *TOKENS)
    compute(manager, "a", 6, 7, 8)
    assert manager.save() is None
    manager.free("a", True)
    saved = manager.save()
    other.restore(saved)
    assert sorted(other.entries()) == sorted(manager.entries())
    assert sorted(other.host_entries()) == sorted(manager.host_entries())
    assert [name for name, _ in other.events()] == ["stored"]
    assert compute(other, "b", 6, 7, 9) == 2
    end, _ = load(other, "c", *TOKENS)
    assert end == 4
    assert other.save() is None


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


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_blocks_are_copied_in_all_layers(framework: str) -> None:
    backend = pytest.importorskip(f"lockstep.impl.{framework}.backend").cpu()
    config = RULES.get_plain_config(
        "paged-full", backend.contracts["paged"][KIND], DTYPES
    )
    config |= {"groups": [{"type": "full", "block": 2, "layers": 2}], "data": "backend"}
    arrays, cache = backend.arrays, backend.open({**config, "host": 4, "poison": True})
    written = [np.full((1, 1, 5, 4), layer, np.float32) for layer in (1, 2)]

    def run() -> list[float]:
        """Runs a step of five tokens, or what is left of it; what its first one sees."""
        seen = []
        start = cache.schedule("a", 9)
        for layer, content in enumerate(written):
            array = arrays.from_numpy(content[:, :, start:], "float32")
            [pair] = cache.update(layer, array, array)
            seen += [float(arrays.to_numpy(each)[0, 0, 0, 0]) for each in pair]
        cache.run()
        return seen

    cache.open("a", TOKENS, None)
    assert run() == [1, 1, 2, 2]
    cache.offload("a", "out")
    cache.landed("out")
    cache.preempt("a")
    cache.evict(99)
    cache.open("b", [9] * 24, None)  # overwrites all blocks of the device
    cache.schedule("b", 24)
    for layer in range(2):
        array = arrays.from_numpy(np.full((1, 1, 24, 4), 7, np.float32), "float32")
        cache.update(layer, array, array)
    cache.run()
    cache.free("b", False)
    assert cache.load("a", "in")[0] == 4
    cache.landed("in")
    assert run() == [1, 1, 2, 2]
    cache.free("a", True)
    other = backend.open({**config, "host": 4, "poison": True})
    other.restore(cache.save())
    cache = other
    cache.open("a", TOKENS, None)
    assert cache.match("a") == 4
    assert run() == [1, 1, 2, 2]
