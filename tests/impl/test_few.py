"""Drawn programs, most of which have few numbers, also go the ways of many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import islice
from typing import Any

import numpy as np
import pytest

from lockstep.harness.execution.executor import run
from lockstep.impl.shared.cells import Cells
from lockstep.impl.shared.mask_line import Sight
from lockstep.impl.shared.sequence_index import Indexes
from tests.harness.building import draw
from tests.impl.frameworks import INSTALLED

PROGRAMS = 200

Plant = Callable[[pytest.MonkeyPatch, list[int]], None]
"""Plants a mistake that is made each time, and noted in the list."""


def plant_in_bands(patch: pytest.MonkeyPatch, made: list[int]) -> None:
    right = Sight.compute_band

    def compute_band(*arguments: Any) -> Any:
        band = right(*arguments)
        if band is None:
            return None
        made.append(1)
        return replace(band, line=band.line[::-1].copy())

    patch.setattr(Sight, "compute_band", compute_band)


def plant_in_counts(patch: pytest.MonkeyPatch, made: list[int]) -> None:
    """Positions are taken to be consecutive."""
    right = Indexes.count_from_first

    def count_from_first(*arguments: Any) -> Any:
        found, sparse = right(*arguments)
        made.extend(sparse)
        return found, ()

    patch.setattr(Indexes, "count_from_first", count_from_first)


def plant_in_steps(patch: pytest.MonkeyPatch, made: list[int]) -> None:
    """A token that belongs elsewhere is taken for the next one."""
    right = Indexes.append_next

    def append_next(self: Indexes, owners: Any, positions: Any, cells: Any) -> bool:
        if right(self, owners, positions, cells):
            return True
        lasts = self.positions[self.end[owners] - 1]
        if not (self.begin[owners] < self.end[owners]).all():
            return False
        made.append(1)
        return right(self, owners, lasts + 1, cells)

    patch.setattr(Indexes, "append_next", append_next)


def plant_in_search(patch: pytest.MonkeyPatch, made: list[int]) -> None:
    right = Cells.find_free

    def find_free(self: Cells, count: int) -> Any:
        cells = right(self, count)
        if int(cells[-1]) >= self.lowest + max(self.few, 4 * count):
            made.append(1)
            return cells - 1
        return cells

    patch.setattr(Cells, "find_free", find_free)


@pytest.mark.parametrize(
    "plant", [plant_in_bands, plant_in_counts, plant_in_steps, plant_in_search]
)
@pytest.mark.parametrize("name", INSTALLED)
def test_a_mistake_in_the_way_of_many_is_found(
    name: str, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    plant(monkeypatch, made)
    backend = import_module(f"lockstep.impl.{name}.backend").cpu()
    declared = backend.contracts["unified"]["causal"]
    programs = islice(draw("unified", "causal", declared), PROGRAMS)
    found = any(run(program, backend).divergence for program in programs)
    assert made, "no program goes that way"
    assert found


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_step_may_leave_out_positions(ahead: int) -> None:
    """Of all its sequences, as many of each."""
    indexes, owners = Indexes(2), np.arange(2)
    for position in (0, ahead):
        indexes.append(owners, np.full(2, position), owners + 2 * position)
    for index in indexes:
        begin, _ = index.get_span()
        found = [index.find(position) - begin for position in range(ahead + 2)]
        assert found == [0, *[1] * ahead, 2]
        assert index.dense == (ahead == 1)
