"""Our block manager, by cases that were worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.paged import BlockManager
from lockstep.impl.shared.paged_host import TieredManager
from lockstep.impl.shared.prefix_hash import PrefixHash

FULL = {"type": "full", "block": 2}


def make(
    *groups: Mapping[str, Any], blocks: int = 8, unit: int | None = None
) -> BlockManager:
    return BlockManager(groups or (FULL,), blocks, 24, unit)


def compute(manager: BlockManager, name: str, *tokens: int) -> int | None:
    """Opens a request and computes all of it; returns where it began."""
    manager.open(name, tokens, None)
    return take(manager, name)


def take(manager: BlockManager, name: str, count: int = 24) -> int | None:
    start = manager.schedule(name, count)
    manager.run()
    return start


# --- keys -------------------------------------------------------------------------------


def get_keys(tokens: Sequence[int], *names: str | None, extras: Any = ()) -> list[bytes]:
    return PrefixHash(2, names or (None, None), extras).extend(tokens)


def test_a_key_stands_for_the_whole_prefix_and_its_namespace() -> None:
    assert len(get_keys([1, 2, 3, 4, 5])) == 2
    assert get_keys([1, 2, 3, 4])[0] == get_keys([1, 2, 9, 9])[0]
    assert get_keys([1, 2, 3, 4])[1] != get_keys([9, 9, 3, 4])[1]
    pairs = [(None, None), ("x", None), ("y", None), (None, "x"), ("x", "x")]
    letters = [("ab", "c"), ("a", "bc"), ("abc", None), (None, "abc"), ("a', 'b", "c")]
    keys = {get_keys([1, 2], *names)[0] for names in [*pairs, *letters]}
    assert len(keys) == 10


def test_a_key_stands_for_the_extras_that_cover_its_prefix() -> None:
    """The number of first keys that are those of [1, 4) with the key "k"."""
    wanted = get_keys([1, 2, 3, 4, 5, 6], extras=[(1, 4, "k")])
    assert wanted[0] != get_keys([1, 2])[0]
    shared = {
        (1, 4, "l"): 0,
        (0, 4, "k"): 0,
        (2, 4, "k"): 0,
        (1, 2, "k"): 1,
        (1, 3, "k"): 1,
        (1, 5, "k"): 2,
        (1, 6, "k"): 2,
    }
    for extra, count in shared.items():
        keys = get_keys([1, 2, 3, 4, 5, 6], extras=[extra])
        same = [key == other for key, other in zip(keys, wanted, strict=True)]
        assert same == [number < count for number in range(3)], extra
    both = get_keys([1, 2, 3, 4, 5, 6], extras=[(1, 2, "k"), (2, 4, "k")])
    assert [both[0] == wanted[0], both[1] == wanted[1]] == [True, False]


def test_extras_are_cut_with_the_keys() -> None:
    """Behind the cut, other tokens come without extras."""
    extras = [(0, 1, "k"), (1, 4, "l")]
    first = PrefixHash(2, extras=extras)
    assert first.extend([1, 2, 3, 4]) == get_keys([1, 2, 3, 4], extras=extras)
    branch = first.branch(3)
    assert branch.keys == first.keys[:1]
    cut_extras = [(0, 1, "k"), (1, 3, "l")]
    assert branch.extend([1, 2, 3, 4]) == get_keys([1, 2, 3, 4], extras=cut_extras)
    assert first.extend([1, 2, 3, 4]) == get_keys([1, 2, 3, 4], extras=extras)


@pytest.mark.parametrize(
    "more",
    [
        {"namespace": ""},
        {"adapter": ""},
        {"extras": [(1, 1, "k")]},
        {"extras": [(-1, 1, "k")]},
        {"extras": [(1, 4, "k")]},
        {"extras": [(0, 2, "")]},
        {"extras": [(0, 2, "k"), (1, 3, "l")]},
    ],
)
def test_wrong_names_and_extras_open_nothing(more: Any) -> None:
    manager = make()
    with pytest.raises(MisuseError, match=r"^open: the "):
        manager.open("a", [1, 2, 3], **more)
    assert not manager.requests


def test_keys_grow_with_the_tokens_and_are_cut() -> None:
    growing = PrefixHash(2)
    assert growing.extend([1]) == []
    assert growing.extend([1, 2, 3]) == get_keys([1, 2])
    growing.cut(1)
    assert growing.keys == []
    assert growing.extend([1, 3, 1 << 40, 5]) == get_keys([1, 3, 1 << 40, 5])


# --- blocks -----------------------------------------------------------------------------


def test_a_rejected_draft_that_a_fork_has_published_is_copied_first() -> None:
    """Generated programs come here once in tens of thousands."""
    manager = make({"type": "full", "block": 1})
    compute(manager, "a", 1)
    manager.accept("a", 0, 2, [3])
    take(manager, "a")
    assert manager.fork("a", "b", [4])
    take(manager, "b")
    [[_, _, drafted, _]] = manager.tables("b")
    manager.free("b", True)
    manager.accept("a", 0, 5, [])
    assert take(manager, "a") == 2
    [[_, _, own]] = manager.tables("a")
    assert manager.copies() == [(drafted, own)]
    assert compute(manager, "c", 1, 2, 3, 9) == 3  # what b computed can still be hit


def test_a_fork_does_not_keep_what_its_source_adds_to_their_block() -> None:
    """Generated programs come here once in thousands."""
    manager = make()
    compute(manager, "a", 1, 2)
    manager.accept("a", 0, 3, [4, 5], [0, 0])
    take(manager, "a")
    assert manager.fork("a", "b", [6])
    [[_, shared, last]] = manager.tables("b")
    assert manager.accept("a", 2, 7, []) == [(last, 0, shared, 1)]
    manager.open("c", [1, 2, 3, 5, 8])
    assert manager.match("c") == 4
    manager.free("a", False)
    assert manager.match("c") == 2


def test_a_request_does_not_keep_what_its_steps_left_out() -> None:
    """Only a computes the second token in the group that may lag."""
    full = {"type": "full", "block": 1}
    manager = BlockManager([full, {**full, "lags": True}], 8, 24, drop_last=True)
    compute(manager, "a", 1, 2)
    manager.open("b", [1, 2, 3])
    assert manager.schedule("b", 2) == 1
    manager.run(lags=True)
    manager.free("a", False)
    manager.preempt("b")
    assert manager.match("b") == 0


def test_drafts_that_are_no_tree_change_nothing() -> None:
    manager = make()
    compute(manager, "a", 1)
    for parents in ([0], [0, 2], [1, 0], [-1, 0], [0, 1, 2]):
        with pytest.raises(MisuseError, match="parents must have the number of an ear"):
            manager.accept("a", 0, 2, [3, 4], parents)
    with pytest.raises(MisuseError, match=r"kept must be 0 … 0"):
        manager.accept("a", 1, 2, [3])
    assert manager.requests["a"].tokens == [1]
    assert manager.accept("a", 0, 2, [3, 4]) == []
    assert manager.requests["a"].parents == [0, 1]


@pytest.mark.parametrize("kind", ["sliding", "chunked"])
def test_a_hit_may_end_inside_of_a_block_whose_end_is_gone(kind: str) -> None:
    """Of positions 0 and 1 only the first is left: not the whole block, but one token."""
    cache = make({"type": kind, "block": 2, "width": 4}, unit=1)
    compute(cache, "a", 1, 1, 2, 3)
    key = cache.requests["a"].hash.keys[1]
    block = cache.blocks.entries[0].pop(key)
    cache.blocks.keys[block].remove(key)
    cache.open("b", [1, 1, 2, 3], None)
    assert cache.match("b") == 1


def test_a_preempted_request_has_nothing_to_offload() -> None:
    manager = TieredManager((FULL,), 8, 24, host=8)
    compute(manager, "a", 1, 2, 3)
    manager.preempt("a")
    with pytest.raises(MisuseError, match="request a has no computed tokens"):
        manager.offload("a", "out")


def test_a_loaded_block_is_let_go_when_the_window_has_left_it() -> None:
    manager = TieredManager(({"type": "sliding", "block": 2, "width": 2},), 8, 24, host=8)
    compute(manager, "a", 1, 2, 3)
    manager.offload("a", "out")
    manager.landed("out")
    manager.free("a", reuse=True)
    manager.evict(8)
    manager.open("b", (1, 2, 3, 4, 5, 6), None)
    assert manager.load("b", "in") is not None
    manager.landed("in")
    take(manager, "b")
    [table] = manager.get("b").tables or ()
    assert table[:2] == [None, None]


@pytest.mark.parametrize("move", ["offload", "load"])
def test_a_transfer_needs_a_new_name(move: str) -> None:
    """Programs draw such a call once in some hundred programs."""
    manager = TieredManager((FULL,), 8, 24, host=8)
    compute(manager, "a", 1, 2, 3)
    manager.open("b", (1, 2, 3), None)
    manager.offload("a", "out")
    with pytest.raises(MisuseError, match="there is a transfer out already"):
        getattr(manager, move)({"offload": "a", "load": "b"}[move], "out")
    assert list(manager.transfers) == ["out"]
