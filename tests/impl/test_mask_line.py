"""The mask that a line and patches make, or that is painted, is the one that a comparison
of every row with every column says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.impl.shared.batch import Batch, Ints
from lockstep.impl.shared.causal import FAR
from lockstep.impl.shared.cells import BITS, Cells
from lockstep.impl.shared.mask_line import MaskLine, Sight

Seen = npt.NDArray[np.bool_]
Rows = Sequence[tuple[int, int]]
"""Position and sequence of each."""

SEQUENCES = 64
UNSEEN = np.float32(-np.inf)


class Pool:
    """Cells and the rows of a pass over them."""

    def __init__(self, cells: int = 200) -> None:
        self.cells = Cells(cells, SEQUENCES)

    def add(self, rows: Rows) -> Batch:
        positions, sequences = zip(*rows, strict=True)
        batch = Batch(positions, sequences, (), (), SEQUENCES, len(rows))
        self.cells.add(batch)
        return batch

    def look(
        self,
        rows: Rows,
        window: int | None = None,
        ahead: Sequence[int] = (),
        padding: int = 0,
        margin: tuple[int, int] = (0, 0),
    ) -> MaskLine | None:
        """Compares the mask of a pass of more rows with that of all pairs.

        ahead: rows that see the tokens behind them. padding: number of rows behind those
        of the pass. margin: columns before and behind those that are needed.

        Returns:
            The line, if the mask is made of one.
        """
        batch = self.add(rows)
        ends = batch.positions + 1
        ends[list(ahead)] = FAR
        low = np.zeros_like(ends)
        if window is not None:
            low = np.maximum(0, batch.positions - window)
        limits = np.stack((low, ends))
        sight = Sight.find(batch, limits, self.cells.indexes)
        right = compare_all(batch.sequences, limits, *self.cells.table)
        (columns,) = right.any(axis=0).nonzero()
        lowest, highest = sight.get_cells()
        assert lowest <= columns[0] and columns[-1] <= highest
        if batch.is_step:  # no token lies between what two rows see
            assert (lowest, highest) == (columns[0], columns[-1])
        first, end = max(0, lowest - margin[0]), highest + 1 + margin[1]
        right = np.pad(right[:, first:end], ((0, padding), (0, 0)))
        assert right.shape == (len(rows) + padding, end - first)
        line = None
        if batch.is_step:
            mask = np.full(right.shape, UNSEEN)
            sight.paint(mask, first)
        else:
            line = sight.compute_line(first, end - first, len(right), UNSEEN)
            mask = put_together(line, end - first)
        assert np.array_equal(mask, np.where(right, 0, UNSEEN))
        return line


def compare_all(sequences: Ints, limits: Ints, positions: Ints, bits: Ints) -> Seen:
    owner, (low, end) = BITS[sequences][:, None], limits[:, :, None]
    seen: Seen = ((bits & owner) != 0) & (positions >= low) & (positions < end)
    return seen


def put_together(mask_line: MaskLine, width: int) -> npt.NDArray[np.float32]:
    rows = np.stack([mask_line.line[begin : begin + width] for begin in mask_line.begins])
    for patch in mask_line.patches:
        rows[patch.get_place()] = np.where(patch.seen, 0, UNSEEN)
    return rows


def list_rows(begin: int, end: int, sequence: int = 0) -> list[tuple[int, int]]:
    return [(position, sequence) for position in range(begin, end)]


@pytest.mark.parametrize("before", [0, 1, 7, 100])
@pytest.mark.parametrize("rows", [1, 2, 50])
@pytest.mark.parametrize("window", [None, 0, 1, 30])
@pytest.mark.parametrize("padding", [0, 3])
def test_a_prompt(before: int, rows: int, window: int | None, padding: int) -> None:
    pool = Pool()
    if before:
        pool.add(list_rows(0, before))
    pool.look(list_rows(before, before + rows), window, padding=padding, margin=(2, 3))


def test_a_prompt_is_one_line_without_patches() -> None:
    for window in (None, 30):
        pool = Pool()
        pool.add(list_rows(0, 100))
        line = pool.look(list_rows(100, 150), window)
        assert line is not None and line.is_band and line.patches == ()


def test_cells_of_another_sequence_before_a_prompt_are_not_seen() -> None:
    pool = Pool()
    pool.add(list_rows(0, 5, sequence=1))
    line = pool.look(list_rows(0, 4), margin=(3, 0))
    assert line is not None and not line.is_band


def test_rows_that_look_ahead_break_the_line() -> None:
    pool = Pool()
    pool.add(list_rows(0, 10))
    line = pool.look(list_rows(10, 15), ahead=[3])
    assert line is not None and line.patches


@pytest.mark.parametrize("window", [None, 3])
def test_a_hole_breaks_the_line(window: int | None) -> None:
    pool = Pool()
    pool.add([*list_rows(0, 4), (0, 1), *list_rows(5, 10)])
    pool.cells.drop(1, 0, None)
    pool.look(list_rows(10, 15), window)
    pool.look(list_rows(17, 19), window)


def test_a_position_that_is_there_twice() -> None:
    pool = Pool()
    pool.add([*list_rows(0, 4), (3, 0), (5, 0)])
    pool.look([(5, 0), (6, 0), (6, 0)], window=2)
    pool.look([(6, 0)], window=1)


def test_the_last_sequence_has_the_sign() -> None:
    pool = Pool()
    pool.add([(0, 63), (1, 63), (0, 0)])
    pool.cells.copy_prefix(63, 62, 2)
    pool.look([(2, 63), (1, 0), (2, 62)])
    pool.look([(3, 63), (2, 0), (3, 62), (4, 63)])


def test_a_step_of_many_sequences() -> None:
    """In the order of positions or not, after a removal and with more tokens than there
    was room for."""
    pool = Pool(cells=7000)
    for position in range(70):
        step = [(position, sequence) for sequence in range(63, -1, -1)]
        pool.look(step, window=5)
    pool.cells.drop(5, 10, 12)
    pool.cells.drop(6, 0, None)
    pool.look([(70, sequence) for sequence in (5, 6, 7, 8)], window=65)
    pool.look([(30, 5), (69, 9), (1, 6)])
    pool.look([(70, 5), (70, 9), (70, 6), (71, 7)], window=60)


def test_positions_are_consecutive_again_once_a_gap_is_closed() -> None:
    pool = Pool()
    pool.add(list_rows(0, 10))
    index = pool.cells.indexes[0]
    pool.cells.close_gap(0, 3, 5)
    assert index.dense and index.positions.tolist() == list(range(8))
    pool.cells.drop(0, 3, 5)
    assert not index.dense
    pool.cells.close_gap(0, 6, 6)
    assert not index.dense
    pool.cells.drop(0, 0, None)
    assert index.dense


def test_cells_that_were_left_are_free() -> None:
    """Whoever asks first: how many are free, for free ones, or for the table."""
    for ask in ("free", "bits", "table"):
        pool = Pool(cells=10)
        pool.add([*list_rows(0, 6), *list_rows(0, 4, sequence=1)])
        pool.cells.copy_prefix(0, 2, 2)
        pool.cells.drop(0, 0, None)
        getattr(pool.cells, ask)
        assert pool.cells.free == 4
        assert pool.cells.list_used().tolist() == [0, 1, 6, 7, 8, 9]
        pool.add(list_rows(0, 4))


Change = tuple[str, int, int]

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(("add", "copy", "drop", "cut", "gap")),
        st.integers(0, 3),
        st.integers(0, 8),
    ),
    max_size=8,
)


def change(cells: Cells, change: Change) -> None:
    kind, owner, number = change
    if kind == "copy":
        cells.copy_prefix(owner, (owner + 1) % 4, number)
    elif kind == "drop":
        cells.drop(owner, number, None)
    elif kind == "cut":
        cells.drop(owner, number, number + 2)
    elif kind == "gap" and not cells.is_shared(owner, cells.indexes[owner].cells):
        cells.close_gap(owner, number, number + 1)


@given(st.data())
def test_any_life(data: st.DataObject) -> None:
    """Whatever was stored and removed before, with any rows and limits."""
    pool = Pool()
    rows = st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=1, max_size=6
    )
    for step in data.draw(CHANGES):
        if step[0] == "add":
            pool.add(data.draw(rows))
        else:
            change(pool.cells, step)
    asked = data.draw(rows)
    pool.look(
        asked,
        data.draw(st.sampled_from((None, 0, 1, 3))),
        data.draw(st.lists(st.integers(0, len(asked) - 1), max_size=2)),
        data.draw(st.integers(0, 2)),
        (data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))),
    )
