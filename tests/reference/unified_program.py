"""The notation for cases of the unified caches: programs with their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep.harness.cli.main import main
from lockstep.harness.programs.program import parse_program, trace

Op = dict[str, Any]
Answer = dict[str, Any]
Step = tuple[Op, Answer]

DONE: Answer = {}
FULL: Answer = {"error": "cache-full"}
REFUSED: Answer = {"error": "not-supported"}
SHARED: Answer = {"error": "shared"}
USAGE: Answer = {"error": "usage"}
YES: Answer = {"result": True}
NO: Answer = {"result": False}
ABSENT: Answer = {"cached": False, "stored": None}


@dataclass(frozen=True)
class Case:
    """A program that says in one line what it shows, and what must come out of each of
    its operations."""

    name: str
    config: Mapping[str, Any]
    steps: Sequence[Step]

    def get_program(self) -> dict[str, Any]:
        return {
            "format": "lockstep/1",
            "contract": "unified",
            "config": self.config,
            "ops": [op for op, _ in self.steps],
        }


def case(name: str, config: Mapping[str, Any], *steps: Step) -> Case:
    return Case(name, config, steps)


def each(cases: Sequence[Case]) -> pytest.MarkDecorator:
    names = [one.name for one in cases]
    assert len(set(names)) == len(names)
    return pytest.mark.parametrize("one", cases, ids=names)


# --- operations -------------------------------------------------------------------------


def forward(
    positions: Sequence[int], sequences: int | Sequence[int] = 0, **more: Any
) -> Op:
    """sequences: one number if it is the same for every row. more: the other fields, an
    "_" behind `except`."""
    if isinstance(sequences, int):
        sequences = [sequences] * len(positions)
    fields = {name.rstrip("_"): value for name, value in more.items()}
    return {"op": "forward", "positions": positions, "sequences": sequences, **fields}


def copy(source: int, target: int, length: int) -> Op:
    return {"op": "copy_prefix", "source": source, "target": target, "length": length}


def remove(sequence: int, begin: int, end: int | None) -> Op:
    return {"op": "remove", "sequence": sequence, "begin": begin, "end": end}


def resume(sequence: int, position: int) -> Op:
    return {"op": "can_resume", "sequence": sequence, "position": position}


def get(**fields: int) -> Op:
    return {"op": "get", **fields}


def put(**fields: int) -> Op:
    return {"op": "put", **fields}


# --- answers ----------------------------------------------------------------------------


def sees(*rows: str) -> Answer:
    """The tokens that each row sees, as "position:tag position:tag …"."""
    split = [[pair.split(":") for pair in row.split()] for row in rows]
    return {"visible": [[[int(at), int(tag)] for at, tag in row] for row in split]}


def reads(answer: Answer, *states: Sequence[int]) -> Answer:
    """The same, and the tags that the state of each sequence has read."""
    return {**answer, "states": [list(state) for state in states]}


def has(*tags: int) -> Answer:
    """The image that is stored."""
    return {"cached": True, "stored": list(tags)}


def caches(*answers: Answer) -> Answer:
    return {"caches": list(answers)}


# --- checks -----------------------------------------------------------------------------


def check_case(one: Case) -> None:
    """Step by step, so that a failure names its step."""
    answers = json.loads(json.dumps(trace(parse_program(one.get_program(), one.name))))
    for step, ((op, expected), answer) in enumerate(zip(one.steps, answers, strict=True)):
        assert answer == expected, f"step {step}, {op}"


def check_command(cases: Sequence[Case], folder: Path) -> None:
    """All at once, by `lockstep trace`, as JSON."""
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(one.get_program()) + "\n" for one in cases))
    result = CliRunner().invoke(main, ["trace", str(path)])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.output.splitlines()]
    for one, line in zip(cases, lines, strict=True):
        assert line["format"] == "lockstep-trace/1"
        assert line["expected"] == [expected for _, expected in one.steps], one.name
        printed, own = (
            parse_program(document, one.name)
            for document in (line["program"], one.get_program())
        )
        assert printed == own
