"""Batches that the backends open for a config."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from batches import Tags, check, check_row, go_on, make_reference, prefill, update_single
from frameworks import DELTA, HEADS, KEY_DIM, VALUE_DIM, Framework

CONFIG = {
    "window": None,
    "step": 4,
    "heads": HEADS,
    "key_dim": KEY_DIM,
    "value_dim": VALUE_DIM,
    "conv_width": 3,
    "dtype": "float32",
    "mask_form": "any",
    "variant": 0,
    "poison": True,
    "rows": None,
    "caches": None,
}

tokens = pytest.mark.parametrize(
    ("kind", "window"), [("batch-kv", None), ("batch-rotating", 4)]
)


def open_cache(on: Framework, kind: str, **fields: Any) -> Any:
    return on.backend.open({**CONFIG, "kind": kind, **fields})


@tokens
def test_rows_leave_for_single_caches_and_come_from_them(
    on: Framework, kind: str, window: int | None
) -> None:
    fields = {"kind": kind, "window": window}
    batch, reference = open_cache(on, rows=2, **fields), make_reference(2, window)
    tags = Tags()
    prefill(on, batch, reference, tags, [5, 2], [3, 2])
    singles = [batch.extract(row) for row in (0, 1)] + [open_cache(on, **fields)]
    alone = [*reference.rows, *make_reference(1, window).rows]
    alone = [row.clone() for row in alone]
    for cache, row in zip(singles, alone, strict=True):
        update_single(on, cache, row, tags, 2)
        check_row(on, cache.state(), row)
    other = open_cache(on, caches=singles, **fields)
    right = make_reference(3, window)
    right.rows = alone
    check(on, other, right)
    copy, kept = batch.clone(), reference.clone()
    batch.extend(other)
    reference.extend(right)
    go_on(on, batch, reference, tags)
    saved, fresh = copy.save(), open_cache(on, rows=1, **fields)
    fresh.load(saved)
    go_on(on, copy, kept.clone(), tags)
    go_on(on, fresh, kept, tags)


@tokens
def test_masks_are_numbers_if_asked_for(
    on: Framework, kind: str, window: int | None
) -> None:
    fields = {"window": window, "dtype": "bfloat16", "mask_form": "additive"}
    batch = open_cache(on, kind, rows=2, **fields)
    for length in (3, 6):
        mask = batch.make_mask(length)
        assert on.dtype(mask) == "bfloat16"
        assert set(on.numpy(mask).ravel()) == {0, -np.inf}
        batch.update(*(on.array(array) for array in make_arrays(length)))


def make_arrays(length: int) -> list[Any]:
    return [np.zeros((2, HEADS, length, dim)) for dim in (KEY_DIM, VALUE_DIM)]


def test_states_are_those_of_the_config(on: Framework) -> None:
    fields = {"kind": "batch-state", "dtype": "float16"}
    batch = open_cache(on, rows=3, **fields)
    conv, delta = batch.read()
    assert tuple(conv.shape) == (3, 2, HEADS * KEY_DIM)
    assert tuple(delta.shape) == (3, *DELTA)
    assert (on.dtype(conv), on.dtype(delta)) == ("float16", "float32")
    single = open_cache(on, **fields)
    assert tuple(single.read()[0].shape) == (1, 2, HEADS * KEY_DIM)
    other = open_cache(on, caches=[single, batch.extract(1)], **fields)
    batch.extend(other)
    assert batch.offsets == (0,) * 5
    assert len(batch.state()) == 5


@pytest.mark.parametrize("kind", ["batch-kv", "batch-state"])
@pytest.mark.parametrize("fields", [{"rows": 0}, {"caches": []}])
def test_a_batch_has_a_row(on: Framework, kind: str, fields: dict[str, Any]) -> None:
    with pytest.raises(on.backend.errors["usage"], match="at least one"):
        open_cache(on, kind, **fields)
