"""Special numbers in K and V: NaN, infinities, -0 and subnormal numbers. A cache keeps
them, or a check of some hundred programs finds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.harness.backends.driver.decoding import DECODER, Tensor
from lockstep.harness.core.payload import (
    BITS,
    LEAST_SPECIAL,
    are_same,
    get_table,
    list_special,
)
from lockstep.harness.execution.executor import run
from lockstep.harness.execution.scripts.plain import is_near
from lockstep.harness.execution.shrink import Shrinker
from lockstep.harness.programs.program import Program
from lockstep.impl.torch.arrays import DTYPES, TorchArrays
from lockstep.impl.torch.backend import cpu
from tests.harness.building import draw, forward, make, update
from tests.harness.changing import change_caches

PROGRAMS = 300

# --- vectors ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("dim", [4, 6, 8, 64])
@pytest.mark.parametrize("role", ["key", "value"])
def test_tags_are_read_back(dtype: str, dim: int, role: Any) -> None:
    table = get_table(2, role, 3, dim, 4096, dtype, special=True)
    arrays = TorchArrays()
    stored = arrays.to_numpy(arrays.from_numpy(table.vectors, dtype))
    tags = range(len(table.vectors[0, 0]))
    assert table.read_tags(stored).tolist() == list(tags)
    assert len(tags) == 4096
    assert table.match(stored, tags).all()
    for number in list_special(dtype):
        found = are_same(stored, np.full_like(stored, number))
        assert found.any(axis=(0, 2, 3)).all(), number


@pytest.mark.parametrize("dtype", BITS)
def test_special_numbers_of_a_dtype(dtype: str) -> None:
    """torch knows the limits of each dtype."""
    limits, numbers = torch.finfo(DTYPES[dtype]), list_special(dtype)
    _, _, smallest, _, subnormal, _, _, largest = numbers
    assert (largest, smallest - subnormal) == (limits.max, limits.smallest_normal)
    exact = torch.tensor(numbers, dtype=torch.float64)
    stored = exact.to(DTYPES[dtype]).double()
    assert are_same(stored.numpy(), exact.numpy()).all()
    assert not torch.tensor(smallest / 2, dtype=DTYPES[dtype])


def test_short_vectors_have_no_special_numbers() -> None:
    tables = [
        get_table(0, "value", 1, LEAST_SPECIAL - 1, 64, "float32", special)
        for special in (False, True)
    ]
    assert np.array_equal(tables[0].vectors, tables[1].vectors)


def test_same_numbers() -> None:
    left = np.array([np.nan, 0.0, -0.0, np.inf, np.inf, 1.0], np.float32)
    right = np.array([-np.nan, -0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    assert are_same(left, right).tolist() == [True, False, True, True, False, False]


# --- caches with a mistake --------------------------------------------------------------


def get_tiny(array: torch.Tensor) -> float:
    return torch.finfo(array.dtype).smallest_normal


def add_zero(array: torch.Tensor) -> torch.Tensor:
    return array + 0.0


def flush(array: torch.Tensor) -> torch.Tensor:
    return torch.where(array.abs() < get_tiny(array), array * 0, array)


def drop_nan(array: torch.Tensor) -> torch.Tensor:
    return array.nan_to_num(0.0, torch.inf, -torch.inf)


def clamp(array: torch.Tensor) -> torch.Tensor:
    limits = torch.finfo(array.dtype)
    return array.clamp(limits.min, limits.max)


MISTAKES = (add_zero, flush, drop_nan, clamp)
Change = Callable[[torch.Tensor], torch.Tensor]

WRITES = {
    ("layer", "kv"): "update",
    ("layer", "rotating"): "update",
    ("layer", "state"): "write",
    ("batched", "batch-kv"): "update",
    ("batched", "batch-state"): "write",
    ("unified", "causal"): "put",
    ("unified", "encoder"): "put",
    ("paged", "paged-full"): "update",
}
"""Contract and kind → the method that writes K and V."""


def plant(change: Change, method: str) -> Any:
    """Our caches, which change what is written."""

    def change_writes(cache: Any) -> None:
        right = getattr(cache, method, None)

        def write(*given: Any) -> Any:
            is_tensor = [isinstance(item, torch.Tensor) for item in given]
            pairs = zip(given, is_tensor, strict=True)
            return right(*[change(item) if found else item for item, found in pairs])  # type: ignore[misc]

        if right is not None:
            setattr(cache, method, write)

    return change_caches(cpu(), change_writes)


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize(("contract", "kind"), WRITES)
def test_a_changed_special_number_is_found(
    contract: str, kind: str, mistake: Change
) -> None:
    wrong = plant(mistake, WRITES[contract, kind])
    declared = wrong.contracts[contract][kind]
    programs = draw(contract, kind, declared, dtypes=wrong.dtypes)
    for program in islice(programs, PROGRAMS):
        if not program.config["special_numbers"]:
            continue
        assert run(program, cpu()).divergence is None
        divergence = run(program, wrong).divergence
        if divergence is not None:
            break
    else:
        pytest.fail(f"not found in {PROGRAMS} programs")
    assert divergence.what in ("contents", "result"), divergence


MESSAGES = [
    (add_zero, "differs (got 0, expected -0 in head"),
    (flush, "is off by 1.2e-38 (got -0, expected -1.17549e-38 in head"),
    (drop_nan, "differs (got 0, expected nan"),
    (clamp, "differs (got 3.40282e+38, expected inf"),
]


@pytest.mark.parametrize(("mistake", "message"), MESSAGES)
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    ("program", "method"),
    [
        (make(update(24), special_numbers=True), "update"),
        (
            make(
                {"op": "open", "rows": 2},
                update(24),
                contract="batched",
                kind="batch-kv",
                special_numbers=True,
            ),
            "update",
        ),
        (
            make(
                forward([*range(24)], [0] * 24),
                contract="unified",
                kind="causal",
                special_numbers=True,
                capacity=24,
                batch=24,
            ),
            "put",
        ),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_the_message_has_the_number(
    program: Program, method: str, mistake: Change, message: str, every: bool
) -> None:
    """Without special numbers, the same program agrees."""
    wrong = plant(mistake, method)
    divergence = run(program, wrong, every).divergence
    assert divergence is not None
    assert message in json.dumps(divergence.got)
    plain = {**program.config, "special_numbers": False}
    assert run(replace(program, config=plain), wrong, every).divergence is None


# --- what is not compared ---------------------------------------------------------------


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    ("contract", "kind", "ops"),
    [
        ("layer", "kv", [update(3)]),
        ("batched", "batch-kv", [{"op": "open", "rows": 2}, update(3)]),
        ("unified", "causal", [forward([0, 1], [0, 0])]),
    ],
)
def test_attention_over_special_numbers_is_not_compared(
    contract: str, kind: str, ops: Any, special: bool
) -> None:
    program = make(*ops, contract=contract, kind=kind, special_numbers=special)
    compared = run(program, cpu(), every=True).comparisons.compared
    assert compared["contents"] >= 1
    assert bool(compared["attention"]) is not special
    assert compared["special numbers"] == special


def test_storage_that_rounds_gets_ordinary_numbers() -> None:
    program = make(update(3), special_numbers=True)
    result = run(program, replace(cpu(), tolerance=0.01), every=True)
    assert result.divergence is None
    compared = result.comparisons.compared
    assert (compared["special numbers"], compared["attention"]) == (0, 1)


# --- shrinking, scripts and drivers -----------------------------------------------------


def test_shrinking_leaves_special_numbers_out() -> None:
    program = make(update(1), special_numbers=True)
    assert not Shrinker(program, lambda _: True, 60).shrink().config["special_numbers"]
    kept = Shrinker(program, lambda tried: tried.config["special_numbers"], 60).shrink()
    assert kept.config["special_numbers"]


def test_scripts_compare_special_numbers() -> None:
    numbers = np.array(list_special("float32"), np.float32)
    assert is_near(numbers.copy(), numbers.tolist())
    for number in range(len(numbers)):
        for change in (-numbers[number], np.float32(7)):
            changed = numbers.copy()
            changed[number] = change
            is_nan = np.isnan(changed[number])
            assert is_near(changed, numbers.tolist()) == is_nan, (number, change)


def test_messages_to_drivers_keep_the_sign_of_zero() -> None:
    """Some libraries print -0.0 as "-0", others read "-0" as the integer 0."""
    assert '"data":[-0.0,0]' in Tensor(np.array([-0.0, 0.0], np.float32), "").to_json()
    numbers = DECODER.decode("[-0, -0.0, 0, -1, 10]")
    assert str(numbers) == "[-0.0, -0.0, 0, -1, 10]"
