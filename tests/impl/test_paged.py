"""Our block manager, by cases that were worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.paged import BlockManager
from lockstep.impl.shared.paged_facts import Telling
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


def get_keys(tokens: Sequence[int], namespace: str | None = None) -> list[bytes]:
    return PrefixHash(2, namespace).extend(tokens)


def test_a_key_stands_for_the_whole_prefix_and_its_namespace() -> None:
    assert len(get_keys([1, 2, 3, 4, 5])) == 2
    assert get_keys([1, 2, 3, 4])[0] == get_keys([1, 2, 9, 9])[0]
    assert get_keys([1, 2, 3, 4])[1] != get_keys([9, 9, 3, 4])[1]
    keys = [get_keys([1, 2], space)[0] for space in (None, "x", "y", "=x")]
    assert len(set(keys)) == 4


def test_keys_grow_with_the_tokens_and_are_cut() -> None:
    growing = PrefixHash(2, None)
    assert growing.extend([1]) == []
    assert growing.extend([1, 2, 3]) == get_keys([1, 2])
    growing.cut(1)
    assert growing.keys == []
    assert growing.extend([1, 3, 1 << 40, 5]) == get_keys([1, 3, 1 << 40, 5])


# --- blocks -----------------------------------------------------------------------------


def test_requests_share_the_blocks_of_a_prefix() -> None:
    manager = make()
    compute(manager, "a", 1, 2, 3, 4)
    assert compute(manager, "b", 1, 2, 3, 9, 9) == 2
    [a], [b] = manager.tables("a"), manager.tables("b")
    assert a[0] == b[0]
    assert a[1] != b[1]
    assert manager.blocks.references[b[0] or 0] == 2


def test_a_hit_inside_of_a_block_is_copied_before_it_is_written() -> None:
    manager = make({"type": "full", "block": 4}, unit=1)
    compute(manager, "a", 1, 2, 3)
    assert compute(manager, "b", 1, 2, 9) == 2
    [[a]], [[b]] = manager.tables("a"), manager.tables("b")
    assert manager.copies() == [(a, b)]
    assert manager.copies() == []


def test_whoever_writes_first_after_a_fork_copies() -> None:
    manager = make()
    compute(manager, "a", 1, 2, 3)
    assert manager.fork("a", "b", [7])
    assert manager.tables("a") == manager.tables("b")
    last = manager.tables("a")[0][1]
    take(manager, "b")
    assert manager.copies() == [(last, manager.tables("b")[0][1])]
    manager.accept("a", 0, 8, [])
    take(manager, "a")
    assert manager.copies() == []
    assert manager.tables("a")[0][1] == last


def test_the_blocks_of_rejected_drafts_are_written_again_as_they_are() -> None:
    manager = make({"type": "full", "block": 1})
    compute(manager, "a", 1)
    manager.accept("a", 0, 2, [3, 4])
    take(manager, "a")
    tables = manager.tables("a")
    manager.accept("a", 0, 5, [6, 7])
    assert take(manager, "a") == 2
    assert manager.tables("a")[0][: len(tables[0])] == tables[0]
    assert manager.copies() == []


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


def test_what_is_freed_last_is_evicted_last_and_the_end_of_a_request_first() -> None:
    manager = make(blocks=4)
    compute(manager, "a", 1, 2, 3, 4)
    compute(manager, "b", 5, 6, 7, 8)
    [first, second], [third, fourth] = manager.tables("a")[0], manager.tables("b")[0]
    manager.free("a", True)
    manager.free("b", True)
    assert list(manager.blocks.cached) == [second, first, fourth, third]
    assert manager.evict(3) == 3
    assert list(manager.blocks.cached) == [third]
    assert compute(manager, "c", 5, 6, 7) == 2


def test_without_room_nothing_changes() -> None:
    manager = make(blocks=3)
    compute(manager, "a", 1, 2, 3)
    manager.open("b", [1, 2, 4, 4, 4], None)
    before = list(manager.blocks.references), list(manager.blocks.free)
    assert manager.match("b") == 2
    assert manager.schedule("b", 24) is None
    assert (list(manager.blocks.references), list(manager.blocks.free)) == before
    assert take(manager, "b", 1) == 2


def test_a_window_lets_its_blocks_go_and_keeps_what_a_draft_may_need() -> None:
    manager = make({"type": "sliding", "block": 1, "width": 2})
    compute(manager, "a", 1, 2, 3)
    [table] = manager.tables("a")
    assert [block is None for block in table] == [True, True, False]
    manager.accept("a", 0, 4, [5, 6])
    take(manager, "a")
    [table] = manager.tables("a")
    assert [block is None for block in table] == [True, True, True, False, False, False]
    manager.accept("a", 0, 7, [])  # the next token, at 4, sees the one at 3
    assert manager.tables("a")[0][3] is not None


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


def test_a_state_is_kept_at_the_end_of_a_block() -> None:
    manager = make({"type": "state", "block": 2}, blocks=4)
    compute(manager, "a", 1, 2, 3, 4, 5)
    assert [block is None for block in manager.tables("a")[0]] == [True, True, False]
    assert compute(manager, "b", 1, 2, 3, 4, 9) == 4
    assert compute(manager, "c", 1, 2, 3, 9) == 0  # the state after 2 was not kept


@pytest.mark.parametrize(
    ("group", "tokens", "hit"),
    [
        ({"type": "full", "block": 2}, (1, 2, 3, 4, 9), 2),
        ({"type": "full", "block": 2}, (1, 2, 9), 0),
        ({"type": "sliding", "block": 2, "width": 2}, (1, 2, 3, 4, 9), 2),
        ({"type": "state", "block": 2}, (1, 2, 3, 4, 9), 2),
    ],
)
def test_the_last_unit_of_a_hit_is_computed_again(
    group: Mapping[str, Any], tokens: Sequence[int], hit: int
) -> None:
    manager = BlockManager([group], 8, 24, drop_last=True)
    compute(manager, "a", 1, 2, 3, 4)
    assert compute(manager, "b", *tokens) == hit


def test_a_rejected_draft_is_no_prefix() -> None:
    manager = make({"type": "full", "block": 1})
    compute(manager, "a", 1)
    manager.accept("a", 0, 2, [3, 4])
    take(manager, "a")
    manager.accept("a", 1, 9, [])
    manager.open("b", [1, 2, 3, 4, 5], None)
    assert manager.match("b") == 3


def test_a_rewind_leaves_what_others_can_hit() -> None:
    manager = make()
    compute(manager, "a", 1, 2, 3, 4)
    assert manager.rewind("a", 1, [9, 9])
    take(manager, "a")
    assert len(manager.copies()) == 1
    assert compute(manager, "b", 1, 2, 3, 4, 5) == 4


def test_what_nobody_wants_reused_goes_with_the_last_who_holds_it() -> None:
    manager = make()
    compute(manager, "a", 1, 2)
    manager.fork("a", "b", [3])
    manager.free("a", False)
    assert len(manager.blocks.entries[0]) == 1
    manager.free("b", False)
    assert manager.blocks.entries == [{}]


def test_events_replay_to_the_entries() -> None:
    manager = Telling([FULL], 2, 24)
    compute(manager, "a", 1, 2)
    manager.free("a", True)
    compute(manager, "b", 3, 4, 5)
    [(first, one), (second, other), (third, last)] = manager.events()
    assert (first, one.tokens, second, other) == ("stored", (1, 2), "removed", one)
    assert (third, last.tokens) == ("stored", (3, 4))
    assert manager.entries() == [last]
    pool = manager.pool()
    assert (len(pool.references), pool.free, pool.cached) == (2, [], [])


# --- mistakes of callers ----------------------------------------------------------------


MISTAKES = {
    "there is a request a already": lambda one: one.open("a", [1], None),
    "0 tokens; there may be 24": lambda one: one.open("b", [], None),
    "25 tokens; there may be 24": lambda one: one.open("b", [1] * 25, None),
    "9 blocks are needed; there are 8": lambda one: one.open("b", [1] * 17, None),
    "a namespace has at least one character": lambda one: one.open("b", [1], ""),
    "there is no request b": lambda one: one.schedule("b", 1),
    "a has no token to compute": lambda one: one.schedule("a", 1),
    "1 of the 0 drafts of a": lambda one: one.accept("a", 1, 5, []),
    "the new request has no token": lambda one: one.fork("a", "b", []),
    "rewind: a to 4": lambda one: one.rewind("a", 4, [1]),
    "rewind: the request has no token": lambda one: one.rewind("a", 1, []),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_refused_in_words_and_changes_nothing(words: str) -> None:
    manager = make()
    compute(manager, "a", 1, 2, 3)
    before = manager.tables("a"), list(manager.blocks.references), list(manager.requests)
    with pytest.raises(MisuseError, match=words):
        MISTAKES[words](manager)
    after = manager.tables("a"), list(manager.blocks.references), list(manager.requests)
    assert after == before


def test_before_the_step_has_run_nothing_is_sampled_forked_or_taken_twice() -> None:
    manager = make()
    manager.open("a", [1, 2, 3], None)
    manager.schedule("a", 2)
    for wrong in (
        lambda: manager.schedule("a", 1),
        lambda: manager.accept("a", 0, 1, []),
        lambda: manager.fork("a", "b", [1]),
        lambda: manager.rewind("a", 1, [1]),
    ):
        with pytest.raises(MisuseError):
            wrong()
    assert not manager.reset()
    manager.free("a", True)
    assert manager.reset()
