"""Batches of caches on each framework: a row behaves as the cache of its tokens alone."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest
from batches import (
    BOTH,
    Tags,
    check,
    check_row,
    decode,
    fill,
    go_on,
    make,
    make_reference,
    make_row,
    prefill,
    update,
    update_single,
)
from frameworks import Framework
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.reference.batched import BatchedCache

WINDOWS = (None, 1, 2, 3, 4, 6)


class Program:
    """Batches and single caches of one program, drawn step by step."""

    def __init__(self, on: Framework, data: st.DataObject) -> None:
        self.on, self.data, self.tags = on, data, Tags()
        self.window = self.draw(st.sampled_from(WINDOWS))
        form = self.draw(st.sampled_from(["bool", "float32"]))
        self.options = {
            "step": self.draw(st.sampled_from([1, 2, 4])),
            **({"fill": nan} if self.draw(st.booleans()) else {}),
            **on.mask_option(form),
        }
        self.batches: list[tuple[Any, BatchedCache]] = []
        self.singles: list[tuple[Any, Any]] = []
        self.open()

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def count(self, least: int, most: int) -> int:
        return int(self.draw(st.integers(least, most)))

    def count_each(self, reference: BatchedCache, least: int, most: int) -> list[int]:
        rows = len(reference.rows)
        return list(
            self.draw(st.lists(st.integers(least, most), min_size=rows, max_size=rows))
        )

    def choose(self) -> tuple[Any, BatchedCache]:
        return self.batches[self.count(0, len(self.batches) - 1)]

    def choose_rows(self, reference: BatchedCache, unique: bool) -> list[int]:
        rows = st.integers(0, len(reference.rows) - 1)
        return list(self.draw(st.lists(rows, min_size=1, max_size=5, unique=unique)))

    # --- operations ---------------------------------------------------------------------

    def open(self) -> None:
        rows = self.count(1, 3)
        batch = self.on.batch(rows, self.window, **self.options)
        self.batches.append((batch, make_reference(rows, self.window)))

    def update(self) -> None:
        batch, reference = self.choose()
        length = self.count(1, 6)
        left = None
        if not reference.width and self.draw(st.booleans()):
            left = [0, *self.count_each(reference, 0, length - 1)[1:]]
            left = list(self.draw(st.permutations(left)))
        update(self.on, batch, reference, self.tags, length, left)

    def decode(self) -> None:
        batch, reference = self.choose()
        for _ in range(self.count(1, 4)):
            update(self.on, batch, reference, self.tags, 1)

    def prefill(self) -> None:
        batch, reference = self.choose()
        lengths = self.count_each(reference, 1, 7)
        left, chunks = max(lengths), []
        while left:
            chunks.append(self.count(1, left))
            left -= chunks[-1]
        prefill(self.on, batch, reference, self.tags, lengths, chunks)

    def trim(self) -> None:
        batch, reference = self.choose()
        count = self.count(0, min(reference.offsets))
        done = reference.trim([count] * len(reference.rows))
        assert batch.trim(count) == (count if done else 0)
        check(self.on, batch, reference)

    def rollback(self) -> None:
        batch, reference = self.choose()
        counts = [self.count(0, offset) for offset in reference.offsets]
        assert batch.rollback(counts) == reference.trim(counts)
        check(self.on, batch, reference)

    def filter(self) -> None:
        batch, reference = self.choose()
        rows = self.choose_rows(reference, unique=True)
        if self.draw(st.booleans()):
            rows.sort()
        batch.filter(rows)
        reference.filter(rows)
        check(self.on, batch, reference)

    def select(self) -> None:
        batch, reference = self.choose()
        rows = self.choose_rows(reference, unique=False)
        batch.select(rows)
        reference.select(rows)
        check(self.on, batch, reference)

    def repeat(self) -> None:
        batch, reference = self.choose()
        times, rows = self.count(1, 2), len(reference.rows)
        batch.repeat(times)
        reference.select([row for row in range(rows) for _ in range(times)])
        check(self.on, batch, reference)

    def extend(self) -> None:
        if len(self.batches) > 1:
            self.batches = list(self.draw(st.permutations(self.batches)))
            other, right = self.batches.pop()
            batch, reference = self.choose()
            batch.extend(other)
            reference.extend(right)
            check(self.on, batch, reference)

    def extract(self) -> None:
        batch, reference = self.choose()
        row = self.count(0, len(reference.rows) - 1)
        single = batch.extract(row), reference.extract(row)
        check_row(self.on, single[0].state(), single[1])
        self.singles.append(single)

    def append(self) -> None:
        if not self.singles:
            single = self.batches[0][0].make_single(), make_row(self.window)
            self.singles.append(single)
        single = self.singles[self.count(0, len(self.singles) - 1)]
        update_single(self.on, *single, self.tags, self.count(1, 6))

    def stack(self) -> None:
        if self.singles:
            ours, right = zip(*self.draw(st.permutations(self.singles)), strict=True)
            batch, self.singles = self.on.stack(ours), []
            self.batches.append((batch, BatchedCache(right)))
            check(self.on, *self.batches[-1])

    def save(self) -> None:
        """And loads, after the batch has gone on."""
        batch, reference = self.choose()
        saved, right = batch.save(), reference.clone()
        update(self.on, batch, reference, self.tags, 1)
        loaded = self.on.batch(self.count(1, 3), self.window, **self.options)
        loaded.load(saved)
        check(self.on, loaded, right)
        self.batches.append((loaded, right))

    def clone(self) -> None:
        batch, reference = self.choose()
        self.batches.append((batch.clone(), reference.clone()))

    def free(self) -> None:
        batch, reference = self.choose()
        batch.free()
        reference.free()
        check(self.on, batch, reference)

    def finish(self) -> None:
        """Goes on with all that is there."""
        for batch, reference in self.batches:
            check(self.on, batch, reference)
            update(self.on, batch, reference, self.tags, 2)
            update(self.on, batch, reference, self.tags, 1)
        for cache, row in self.singles:
            check_row(self.on, cache.state(), row)
            update_single(self.on, cache, row, self.tags, 1)


OFTEN = ["update", "decode", "decode", "prefill"]
SELDOM = ["open", "trim", "rollback", "filter", "select", "repeat", "extend", "extract"]
OTHERS = ["append", "stack", "save", "clone", "free"]


@settings(
    max_examples=200,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_every_row_is_the_cache_of_its_own_tokens(
    on: Framework, data: st.DataObject
) -> None:
    program = Program(on, data)
    names = st.sampled_from([*OFTEN, *SELDOM, *OTHERS])
    for name in data.draw(st.lists(names, min_size=4, max_size=14)):
        getattr(program, name)()
    program.finish()


# --- cases ------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("longest", [3, 4, 5])
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_longest_row_stands_around_the_window(
    on: Framework, window: int | None, longest: int, side: str
) -> None:
    batch, reference, tags = make(on, 3, window)
    if side == "left":
        update(on, batch, reference, tags, longest, [0, longest - 1, 1])
    else:
        prefill(on, batch, reference, tags, [longest, 1, longest - 1], [longest])
    go_on(on, batch, reference, tags)


@pytest.mark.parametrize("left", [[0, 3], [2, 0], [0, 0]])
def test_a_ring_turns_while_padding_would_be_in_its_window(
    on: Framework, left: list[int]
) -> None:
    batch, reference, tags = make(on, 2, 6)
    update(on, batch, reference, tags, 4, left)
    decode(on, batch, reference, tags, 10)


@BOTH
@pytest.mark.parametrize("chunks", [[2, 1, 3], [1, 1, 1, 1, 1, 1], [5, 1], [6]])
def test_a_short_row_gets_chunks_of_padding_only(
    on: Framework, window: int | None, chunks: list[int]
) -> None:
    batch, reference, tags = fill(on, [2, 3, 1], window)
    prefill(on, batch, reference, tags, [1, 6, 4], chunks)
    go_on(on, batch, reference, tags)


@BOTH
@pytest.mark.parametrize(
    ("lengths", "more"),
    [([0, 0], [5, 2]), ([5, 2], [0]), ([0], [0, 0]), ([6, 1], [3, 9]), ([1], [9, 9])],
)
def test_rows_join(
    on: Framework, window: int | None, lengths: list[int], more: list[int]
) -> None:
    batch, reference, tags = fill(on, lengths, window)
    other, right = make(on, len(more), window)[:2]
    if any(more):
        prefill(on, other, right, tags, more, [max(more)])
    batch.extend(other)
    reference.extend(right)
    check(on, batch, reference)
    assert list(other.offsets) == [0] * len(more)
    go_on(on, batch, reference, tags)
    go_on(on, other, make_reference(len(more), window), tags)  # it is empty, not broken


@BOTH
def test_a_row_leaves_goes_on_alone_and_comes_back(
    on: Framework, window: int | None
) -> None:
    batch, reference, tags = fill(on, [7, 2, 4], window)
    for row in (0, 1, 2):
        cache, alone = batch.extract(row), reference.extract(row)
        check_row(on, cache.state(), alone)
        for length in (1, 3, 1):
            update_single(on, cache, alone, tags, length)
        empty = batch.make_single(), make_row(window)
        stacked = on.stack([empty[0], cache]), BatchedCache([empty[1], alone])
        check(on, *stacked)
        go_on(on, *stacked, tags)
    go_on(on, batch, reference, tags)


@BOTH
def test_the_longest_row_leaves_and_others_are_trimmed(
    on: Framework, window: int | None
) -> None:
    batch, reference, tags = fill(on, [3, 9, 2], window)
    batch.filter([0, 2])
    reference.filter([0, 2])
    pair = update(on, batch, reference, tags, 1)
    assert pair[0].shape[2] == 4
    assert batch.trim(2) == 2
    assert reference.trim([2, 2])
    check(on, batch, reference)
    go_on(on, batch, reference, tags)


def test_a_row_that_has_dropped_tokens_is_not_trimmed_but_others_are(
    on: Framework,
) -> None:
    batch, reference, tags = fill(on, [7, 3], 4)
    for counts, done in (([1, 1], False), ([1, 0], False), ([0, 2], True)):
        assert batch.rollback(counts) == reference.trim(counts) == done
        check(on, batch, reference)
    assert batch.trim(1) == 0
    go_on(on, batch, reference, tags)


@BOTH
@pytest.mark.parametrize("steps", range(7))
def test_what_was_saved_at_any_time_goes_on(
    on: Framework, window: int | None, steps: int
) -> None:
    batch, reference, tags = make(on, 2, window)
    if steps:
        update(on, batch, reference, tags, 2, [1, 0])
    decode(on, batch, reference, tags, max(0, steps - 1))
    saved, kept = batch.save(), reference.clone()
    go_on(on, batch, reference, tags)
    for _ in range(2):
        loaded, right = on.batch(5, window, step=4), kept.clone()
        loaded.load(saved)
        check(on, loaded, right)
        go_on(on, loaded, right, tags)


def test_there_is_nothing_to_hide_in_rows_of_one_length(on: Framework) -> None:
    for rows in (1, 4):
        for window in (None, 4):
            batch, reference, tags = make(on, rows, window)
            for _ in range(9):
                assert batch.make_mask(1) is None
                update(on, batch, reference, tags, 1)
    batch, reference, tags = fill(on, [9, 4, 5], 4)
    assert batch.make_mask(1) is None  # every ring is full
    assert fill(on, [9, 2, 5], 4)[0].make_mask(1) is not None


@BOTH
@pytest.mark.parametrize("form", ["bool", "float32", "float16"])
def test_a_mask_is_of_the_form_that_was_asked_for(
    on: Framework, window: int | None, form: str
) -> None:
    batch, *_ = fill(on, [2, 3], window, **on.mask_option(form))
    for length in (1, 3):
        assert on.dtype(batch.make_mask(length)).removesuffix("_") == form


@BOTH
def test_positions_are_those_of_columns(on: Framework, window: int | None) -> None:
    batch = make(on, 2, window)[0]
    batch.pad_left([0, 2])
    assert on.numpy(batch.get_positions(3)).tolist() == [[0, 1, 2], [-2, -1, 0]]
    batch.update(*on.feed_rows([[1, 2, 3], [nan, nan, 4]]))
    assert on.numpy(batch.get_positions(2)).tolist() == [[3, 4], [1, 2]]


def test_values_may_have_no_numbers(on: Framework) -> None:
    """As in latent attention."""
    batch = on.batch(2, step=2)
    for lengths in ([2, 1], [1, 2], [3, 2]):
        batch.pad_right(lengths)
        batch.update(*on.feed_wide(max(lengths), rows=2, value_dim=0))
        batch.finalize()
    batch.update(*on.feed_wide(1, rows=2, value_dim=0))
    batch.select([1, 0])
    keys, values = batch.update(*on.feed_wide(2, rows=2, value_dim=0))
    assert keys.shape[2] == values.shape[2] == 9
    assert on.numpy(values).size == 0
