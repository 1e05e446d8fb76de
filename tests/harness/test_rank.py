"""What is simpler: the order of a rank, and that shrinking never makes it worse."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.execution.shrink import Shrinker, get_rank
from lockstep.harness.programs.generate.drawer import Drawer, RandomSource
from lockstep.harness.programs.program import Program, parse_program
from lockstep.impl.shared.operations import CONFIG, OPERATIONS


def make(
    *ops: dict[str, Any], contract: str = "layer", kind: str = "kv", **config: Any
) -> Program:
    fields = {"kind": kind, **config}
    document = {"format": "lockstep/1", "contract": contract, "config": fields}
    return parse_program({**document, "ops": list(ops)}, "here")


def update(length: int, cache: str = "a") -> dict[str, Any]:
    return {"op": "update", "length": length, "cache": cache}


TRIM_TWO, TRIM_ONE = {"op": "trim", "count": 2}, {"op": "trim", "count": 1}

ORDER = [
    (make(update(9)), make(update(1), TRIM_ONE)),  # operations first
    (
        make(update(1), TRIM_TWO, heads=4),
        make(update(2), TRIM_ONE),
    ),  # tokens before the rest
    (
        make(update(1), TRIM_ONE, heads=4),
        make(update(1), TRIM_TWO),
    ),  # numbers before the config
    (make(update(1), heads=4), make(update(1, "b"))),  # then caches
    (make(update(1), dtype="float16"), make(update(1), heads=2)),
    (make(update(1), step=3), make(update(1), dtype="float16")),
    (make(update(1), step=300), make(update(1), step=3, key_dim=6)),
    (make(update(1), step=3), make(update(1), step=300)),
]


@pytest.mark.parametrize(("better", "worse"), ORDER)
def test_what_counts_first(better: Program, worse: Program) -> None:
    assert get_rank(better) < get_rank(worse)


def test_names_do_not_count_only_how_many_there_are() -> None:
    ops = [{"op": "begin", "tokens": [7, 9]}, {"op": "feed", "count": 2}]
    again = [{"op": "begin", "tokens": [1, 2]}, {"op": "feed", "count": 2}]
    one, other = (make(*each, contract="prefix", kind="trie") for each in (ops, again))
    assert get_rank(one) == get_rank(other)
    same = [{"op": "begin", "tokens": [5, 5]}, {"op": "feed", "count": 2}]
    assert get_rank(make(*same, contract="prefix", kind="trie")) < get_rank(one)


def test_bytes_come_last() -> None:
    """They double with the dtype, which must not hold it where it is."""

    def limit(number: int) -> dict[str, Any]:
        return {"op": "limit", "bytes": number}

    plain = make(limit(64), contract="prefix", kind="trie")
    narrow = make(limit(32), contract="prefix", kind="trie", dtype="float16")
    assert get_rank(plain) < get_rank(narrow)
    assert get_rank(make(limit(32), contract="prefix", kind="trie")) < get_rank(plain)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["kv", "rotating", "state"])
def test_a_result_never_ranks_worse(kind: str, seed: int) -> None:
    source = RandomSource(seed)
    declared = Kind(OPERATIONS[kind], CONFIG[kind])
    program = Drawer("layer", kind, declared, ("float32", "bfloat16")).draw(source)
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


def test_what_shows_in_any_config_ends_in_the_plain_one() -> None:
    op = {"op": "forward", "positions": [41, 900], "sequences": [3, 5]}
    config = {"sequences": 7, "dtype": "float16", "heads": 3, "cache_padding": 4}
    program = make(op, contract="unified", kind="causal", **config)
    small = Shrinker(program, lambda candidate: bool(candidate.ops), 10).shrink()
    assert small.to_json()["config"] == {"kind": "causal"}
    assert small.to_json()["ops"] == [
        {"op": "forward", "positions": [0], "sequences": [0]}
    ]
