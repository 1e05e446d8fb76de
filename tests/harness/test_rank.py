"""What is simpler: the order of a rank, and that shrinking never makes it worse."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.execution.shrink import Shrinker
from lockstep.harness.programs.complexity import get_rank
from lockstep.harness.programs.program import Program
from lockstep.impl.shared.operations import CONFIG, OPERATIONS
from tests.harness.building import draw, make, trim, update

make_trie = partial(make, contract="prefix", kind="trie")


def limit(number: int) -> dict[str, Any]:
    return {"op": "limit", "bytes": number}


def talk(*tokens: int) -> Program:
    return make_trie({"op": "begin", "tokens": [*tokens]}, {"op": "feed", "count": 2})


ORDER = [
    (make(update(9)), make(update(1), trim(1))),  # operations first
    (make(update(1), trim(2), heads=4), make(update(2), trim(1))),  # then tokens
    (make(update(1), trim(1), heads=4), make(update(1), trim(2))),  # then numbers
    (make(update(1), heads=4), make(update(1, cache="b"))),  # then caches
    (make(update(1), dtype="float16"), make(update(1), heads=2)),
    (make(update(1), step=3), make(update(1), dtype="float16")),
    (make(update(1), step=300), make(update(1), step=3, key_dim=6)),
    (make(update(1), step=3), make(update(1), step=300)),
    (talk(5, 5), talk(7, 9)),  # not which tokens, but how many different ones
    # bytes come last: they double with the dtype, which must not hold it where it is
    (make_trie(limit(64)), make_trie(limit(32), dtype="float16")),
    (make_trie(limit(32)), make_trie(limit(64))),
]


@pytest.mark.parametrize(("better", "worse"), ORDER)
def test_what_counts_first(better: Program, worse: Program) -> None:
    assert get_rank(better) < get_rank(worse)


def test_names_do_not_count() -> None:
    assert get_rank(talk(7, 9)) == get_rank(talk(1, 2))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["kv", "rotating", "state"])
def test_a_result_never_ranks_worse(kind: str, seed: int) -> None:
    declared = Kind(OPERATIONS[kind], CONFIG[kind])
    program = next(draw("layer", kind, declared, seed, ("float32", "bfloat16")))
    seen = [get_rank(program)]

    def fails(candidate: Program) -> bool:
        """Whatever: about one in three."""
        chosen = int(candidate.digest(), 16) % 3 == 0
        if chosen:
            seen.append(get_rank(candidate))
        return chosen

    small = Shrinker(program, fails, 5).shrink()
    assert seen == sorted(seen, reverse=True)
    assert get_rank(small) == seen[-1]
