"""The reference agrees with what a real cache was recorded to answer."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.program import parse_program
from harness.run import trace

TRACES = Path(__file__).parents[1] / "data" / "traces" / "layer.jsonl.gz"
COUNT, SHARE = 150, 15


@cache
def read_traces() -> list[dict[str, Any]]:
    with gzip.open(TRACES, "rt") as file:
        return [json.loads(line) for line in file]


def sort_rows(answer: dict[str, Any]) -> dict[str, Any]:
    if "visible" not in answer:
        return answer
    return {**answer, "visible": [sorted(row) for row in answer["visible"]]}


def agrees(recorded: dict[str, Any], answer: dict[str, Any]) -> bool:
    """`{}` was recorded where a rotating cache took a snapshot."""
    if recorded == {}:
        return answer["range"] is not None
    return sort_rows(recorded) == sort_rows(answer)


@pytest.mark.parametrize("first", range(0, COUNT, SHARE))
def test_agrees_with_the_recording(first: int) -> None:
    for number, line in enumerate(read_traces()[first : first + SHARE], first + 1):
        program = parse_program(line, f"line {number}")
        answers = trace(program)
        assert len(answers) == len(line["expected"])
        steps = zip(program.ops, line["expected"], answers, strict=True)
        for step, (op, recorded, answer) in enumerate(steps):
            assert agrees(recorded, answer), (
                f"line {number} ({program.config}), step {step}, {op}:"
                f" recorded {recorded}, the reference says {answer}"
            )


def test_the_recording_is_whole() -> None:
    lines = read_traces()
    operations = Counter(op["op"] for line in lines for op in line["program"]["ops"])
    kinds = Counter(line["program"]["config"]["kind"] for line in lines)
    assert len(lines) == COUNT
    assert operations.total() > 4000
    assert min(kinds["kv"], kinds["rotating"]) > 40
    assert set(operations) == {"update", "free", "snapshot", "restore", "split", "merge"}
