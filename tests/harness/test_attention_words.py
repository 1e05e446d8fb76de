"""Attention beside memory that holds NaN: the memory is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Divergence, Program
from lockstep.impl.torch.backend import cpu
from tests.harness import misbehaving
from tests.harness.building import SMALL, make, update
from tests.harness.changing import change_caches
from tests.harness.paging import FULL, RUN, ask, open_request
from tests.harness.paging import make as make_paged


def find(program: Program, backend: Backend) -> Divergence:
    divergence = run(program, backend, every=True).divergence
    assert divergence is not None
    return divergence


class Padded(misbehaving.Cache):
    """A cache with two more columns than tokens, which the mask hides: NaN."""

    def make_mask(self, length: int, rows: int) -> Any:
        return np.pad(super().make_mask(length, rows), ((0, 0), (0, 2)))

    def update(self, keys: Any, values: Any) -> Any:
        wide = (0, 0), (0, 0), (0, 2), (0, 0)
        return [
            np.pad(array, wide, constant_values=np.nan)
            for array in super().update(keys, values)
        ]


def test_a_hidden_column_that_is_nan_is_named() -> None:
    seen = find(make(update(3), **SMALL), misbehaving.declare(Padded))
    assert seen.what == "attention"
    assert "K, V and the mask are as expected, but columns 3, 4 hold NaN" in seen.message


def test_the_largest_error_of_attention_is_kept() -> None:
    """Attention in float32 is never exact over 9 tokens; the cache itself is."""
    result = run(make(update(9), **SMALL), misbehaving.correct(), every=True)
    assert result.divergence is None
    assert 0 < result.margins["attention"] < 1


LAYERS = {"groups": [{**FULL, "block": 2, "layers": 2}], "data": "backend", "host": 8}

LOADED = (
    *(open_request("a", 1, 1, 1), ask("schedule", "a"), RUN),
    *({"op": "offload", "request": "a", "transfer": "t"}, {"op": "landed"}),
    *({"op": "free", "request": "a"}, {"op": "evict", "count": 256}),
    *(open_request("c", 2, 2, 2, 1), ask("schedule", "c"), RUN),
    {"op": "free", "request": "c"},
    *(open_request("b", 1, 1, 2), ask("load", "b", transfer="u")),
    *({"op": "landed", "transfer": "u"}, ask("schedule", "b"), RUN),
)


def copy_first_layer(cache: Any) -> None:
    put = cache.memory.put
    cache.memory.put = lambda blocks, pairs: put(blocks, list(pairs)[:1])


def lose(cache: Any) -> None:
    """Attention reads what lies behind the last token."""
    attend = cache.attend
    cache.attend = lambda layer, queries: attend(layer, queries) * float("nan")


def test_contents_are_judged_before_attention() -> None:
    ops = [{"transfer": "t", **op} if op == {"op": "landed"} else op for op in LOADED]
    seen = find(make_paged(*ops, **LAYERS), change_caches(cpu(), copy_first_layer))
    assert (seen.what, seen.operation) == ("contents", "run")
    where = "request b, group 0 (full), layer 1"
    assert seen.message.startswith(f"{where}: position 0 holds NaN (block ")
    assert seen.message.endswith("), not token 0")


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (4, "K, V and the mask are as expected"),
        (3, "as expected, but block 1 of request a has slots without a token:"
         " attention must not read them"),
    ],
)  # fmt: skip
def test_a_block_with_unwritten_slots_is_named(tokens: int, words: str) -> None:
    ops = (open_request("a", *range(tokens)), ask("schedule", "a"), RUN)
    seen = find(make_paged(*ops, **LAYERS), change_caches(cpu(), lose))
    assert seen.what == "attention"
    assert seen.message.endswith(words)
