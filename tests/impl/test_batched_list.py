"""Lists of caches on each framework: what is done to a list is done to all parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from batches import Tags, check, go_on, make_reference, prefill, update
from frameworks import Framework

from lockstep.impl.shared.batched_list import ListBatch, ListCache
from lockstep.impl.shared.errors import MisuseError
from lockstep.reference.batched import BatchedCache

Windows = Sequence[int | None]


class Lists:
    """A list of full caches and windows, and the reference of each part."""

    def __init__(
        self, on: Framework, lengths: Sequence[int], windows: Windows = (None, 4)
    ) -> None:
        self.on, self.windows, self.tags = on, windows, Tags()
        self.put(ListBatch([on.batch(len(lengths), window) for window in windows]))
        self.rights = [make_reference(len(lengths), window) for window in windows]
        if any(lengths):
            self.each(prefill, self.tags, lengths, [max(lengths)])

    def put(self, batch: ListBatch) -> None:
        self.batch = batch

    def each(self, do: Callable[..., Any], *given: Any) -> None:
        for part, right in zip(self.batch.parts, self.rights, strict=True):
            do(self.on, part, right, *given)

    def tell(self, name: str, *given: Any) -> None:
        """Asks the references for the same."""
        for right in self.rights:
            getattr(right, name)(*given)

    def check(self) -> None:
        self.each(check)

    def go_on(self) -> None:
        self.each(go_on, self.tags)

    def stack(self, caches: Sequence[Any]) -> ListBatch:
        return ListBatch.stack(caches, [type(part) for part in self.batch.parts])


def test_rows_stay_in_all_parts(on: Framework) -> None:
    lists = Lists(on, [5, 3, 1])
    lists.batch.filter([2, 0])
    lists.tell("filter", [2, 0])
    lists.check()
    lists.batch.select([1, 0, 1])
    lists.tell("select", [1, 0, 1])
    lists.check()
    lists.batch.repeat(2)
    lists.tell("select", [0, 0, 1, 1, 2, 2])
    lists.go_on()


def test_padding_is_announced_to_all_parts(on: Framework) -> None:
    lists = Lists(on, [0, 0])
    lists.batch.pad_left([2, 0])
    for part, right in zip(lists.batch.parts, lists.rights, strict=True):
        assert part.left == (2, 0)
        part.left = None
        update(on, part, right, lists.tags, 4, [2, 0])
    lists.batch.pad_right([1, 3])
    lists.tell("pad_right", [1, 3])
    lists.each(update, lists.tags, 3)
    lists.batch.finalize()
    lists.tell("finalize")
    lists.go_on()
    lists.batch.free()
    lists.tell("free")
    lists.go_on()


def test_rows_join_all_parts(on: Framework) -> None:
    lists, others = Lists(on, [5, 3]), Lists(on, [0, 0])
    others.tags = lists.tags
    others.each(update, lists.tags, 2)
    lists.batch.extend(others.batch)
    for right, more in zip(lists.rights, others.rights, strict=True):
        right.extend(more)
    lists.go_on()


@pytest.mark.parametrize("windows", [(None, 4), (4, None)])
def test_tokens_are_taken_back_in_all_parts_or_in_none(
    on: Framework, windows: Windows
) -> None:
    lists = Lists(on, [4, 2], windows)
    assert lists.batch.trim(1) == 1
    lists.tell("trim", [1, 1])
    lists.check()
    lists.each(update, lists.tags, 2)
    assert lists.batch.trim(1) == 0
    assert not lists.batch.rollback([1, 0])
    lists.check()
    assert lists.batch.rollback([0, 1])
    lists.tell("trim", [0, 1])
    lists.go_on()


def test_a_list_with_a_state_takes_nothing_back(on: Framework) -> None:
    full, state = on.batch(1), on.batch_states(1)
    full.update(*on.feed([1, 2]))
    state.write(*on.states(2), 2)
    batch = ListBatch([full, state])
    assert (batch.trim(1), batch.trim(0), batch.rollback([1])) == (0, 0, False)
    assert full.offsets == state.offsets == (2,)
    single = batch.extract(0)
    assert (single.trim(1), single.trim(0)) == (0, 0)
    assert [part.offset for part in single.parts] == [2, 2]
    with pytest.raises(MisuseError, match="-1 is negative"):
        single.trim(-1)


@pytest.mark.parametrize("windows", [(None, 4), (4, None)])
def test_a_single_list_loses_tokens_in_all_parts_or_in_none(
    on: Framework, windows: Windows
) -> None:
    long, short = map(Lists(on, [5, 3], windows).batch.extract, (0, 1))
    assert (long.trim(1), short.trim(1), short.trim(7)) == (0, 1, 2)
    assert [part.offset for part in long.parts] == [5, 5]
    assert [part.offset for part in short.parts] == [0, 0]


def test_a_list_that_is_taken_out_shares_nothing(on: Framework) -> None:
    lists = Lists(on, [5, 3])
    single = lists.batch.extract(1)
    copy = single.clone()
    for part in single.parts:
        part.update(*on.feed([99]))
    single.free()
    assert [part.offset for part in copy.parts] == [3, 3]
    rights = [[right.extract(0), right.extract(1)] for right in lists.rights]
    stacked = lists.stack([lists.batch.extract(0), copy])
    lists.go_on()
    assert copy.held()["bytes"] == 0
    lists.put(stacked)
    lists.rights = [BatchedCache(rows) for rows in rights]
    lists.go_on()


def test_a_copy_and_what_was_saved_stay(on: Framework) -> None:
    lists = Lists(on, [5, 3])
    kept = [right.clone() for right in lists.rights]
    copy, saved = lists.batch.clone(), lists.batch.save()
    lists.go_on()
    lists.rights = [right.clone() for right in kept]
    lists.put(copy)
    lists.go_on()
    fresh = ListBatch([on.batch(1, window) for window in lists.windows])
    parts = fresh.parts
    fresh.load(saved)
    assert fresh.parts is parts
    lists.put(fresh)
    lists.rights = kept
    lists.go_on()
    bytes_held = [part.held()["bytes"] for part in fresh.parts]
    assert fresh.held() == {"bytes": sum(bytes_held)}


def test_bad_input_changes_no_part(on: Framework) -> None:
    lists = Lists(on, [3, 2])
    batch, other = lists.batch, Lists(on, [2], (None, 5)).batch
    short = ListBatch([on.batch(1)])
    first, second = (each.extract(0) for each in (batch, other))
    fresh = ListBatch([on.batch(1, window) for window in (None, 4)])
    for call, words in (
        (lambda: batch.extend(batch), "by itself"),
        (lambda: batch.extend(other), "windows of 4 and 5"),
        (lambda: batch.extend(short), "lists of 2 and 1 caches"),
        (lambda: batch.filter([0, 0]), "a row twice"),
        (lambda: batch.extract(2), "rows"),
        (lambda: batch.trim(3), "tokens"),
        (lambda: batch.rollback([1]), "tokens"),
        (lambda: batch.pad_right([1]), "for 2 rows"),
        (batch.finalize, "no padding"),
        (lambda: batch.load(batch.save()), "has tokens"),
        (lambda: fresh.load(other.save()), "a window of 5, not 4"),
        (lambda: fresh.load(short.save()), "1 caches were saved, not 2"),
        (lambda: lists.stack([first, second]), r"different windows: \[4, 5\]"),
        (lambda: lists.stack([first, short.extract(0)]), r"lists of \[2, 1\] caches"),
        (lambda: lists.stack([first, first]), "twice"),
        (lambda: lists.stack([]), "no cache"),
        (lambda: ListBatch([]), "at least one cache"),
        (lambda: ListCache([]), "at least one cache"),
    ):
        with pytest.raises(MisuseError, match=words):
            call()
        lists.check()
        assert [part.offset for part in (*first.parts, *second.parts)] == [3, 3, 2, 2]
        assert [part.offsets for part in (*fresh.parts, *other.parts)] == [
            *((0,), (0,), (2,), (2,))
        ]
    lists.go_on()
