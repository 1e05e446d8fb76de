"""The reference agrees with what a real cache was recorded to answer."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.programs.program import parse_program, trace

TRACES = Path(__file__).parents[1] / "data" / "traces"
COUNTS = {"layer": 150, "unified": 200}
PARTS = 10


@cache
def read_traces(family: str) -> list[dict[str, Any]]:
    with gzip.open(TRACES / f"{family}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def sort_rows(answer: dict[str, Any]) -> dict[str, Any]:
    if "visible" not in answer:
        return answer
    rows = [sorted(map(make_hashable, row)) for row in answer["visible"]]
    return {**answer, "visible": rows}


def make_hashable(token: Any) -> Any:
    """A tag, or (position, tag)."""
    return tuple(token) if isinstance(token, list) else token


def agrees(recorded: dict[str, Any], answer: dict[str, Any]) -> bool:
    """`{}` was recorded where a rotating cache took a snapshot."""
    if recorded == {} and "range" in answer:
        return answer["range"] is not None
    return sort_rows(recorded) == sort_rows(answer)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("family", COUNTS)
def test_agrees_with_the_recording(family: str, part: int) -> None:
    lines = list(enumerate(read_traces(family), 1))
    assert len(lines) == COUNTS[family]
    for number, line in lines[part::PARTS]:
        program = parse_program(line, f"line {number}")
        answers = trace(program)
        assert len(answers) == len(line["expected"])
        steps = zip(program.ops, line["expected"], answers, strict=True)
        for step, (op, recorded, answer) in enumerate(steps):
            assert agrees(recorded, answer), (
                f"line {number} ({program.config}), step {step}, {op}:"
                f" recorded {recorded}, the reference says {answer}"
            )


OPERATIONS = {
    "layer": {"update", "free", "snapshot", "restore", "split", "merge"},
    "unified": {"forward", "remove", "copy_prefix", "can_resume"},
}


@pytest.mark.parametrize("family", COUNTS)
def test_the_recording_is_whole(family: str) -> None:
    lines = read_traces(family)
    operations = Counter(op["op"] for line in lines for op in line["program"]["ops"])
    kinds = Counter(line["program"]["config"]["kind"] for line in lines)
    assert len(lines) == COUNTS[family]
    assert operations.total() > 4000
    assert min(kinds.values()) > 40
    assert set(operations) == OPERATIONS[family]
