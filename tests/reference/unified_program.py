"""The notation for cases of the unified caches: programs with their answers.

Operations: `forward 0 1@1 except=[0]` is a pass with a row at position 0 and one at
position 1 of sequence 1; `copy 0 1 2` is source, target, length; `remove 0 2 end` is
sequence, begin, end. Answers: `0 1:4 / 2` are the tokens that each row sees, by position
and, where it is another number, tag; `[0 1] [2]` behind them the tags that the state of
each sequence has read; `image 4 5`; ` + ` stands between the caches of a wrapper, and
before the only one. Where several answers are right, ` or ` stands between them, and
` = ` before the one after which the case goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import read_table, read_words
from click.testing import CliRunner

from lockstep.harness.cli.main import main
from lockstep.harness.programs.program import parse_program, walk

Op = dict[str, Any]
Answer = dict[str, Any]

ANSWERS: Mapping[str, Answer] = {
    "": {},
    "yes": {"result": True},
    "no": {"result": False},
    "no image": {"cached": False, "stored": None},
    "nothing saved": {"skipped": "nothing was saved as y"},
    **{e: {"error": e} for e in ("cache-full", "not-supported", "shared", "usage")},
}


@dataclass(frozen=True)
class Case:
    """A program that says in one line what it shows, and what must come out of each of
    its operations."""

    name: str
    config: Mapping[str, Any]
    steps: Sequence[tuple[Op, Answer, Answer | None]]

    def get_program(self) -> dict[str, Any]:
        return {
            "format": "lockstep/1",
            "contract": "unified",
            "config": self.config,
            "ops": [op for op, *_ in self.steps],
        }


def read_cases(text: str) -> list[Case]:
    return [
        Case(name, read_config(head), [read_step(step) for step in steps if step])
        for name, head, steps in read_table(text)
    ]


def read_config(text: str) -> dict[str, Any]:
    parts = re.findall(r"\((.*?)\)", text)
    [kind], config = read_words(re.sub(r"\(.*?\)", "", text))
    caches = {"caches": [read_config(part) for part in parts]} if parts else {}
    return {"kind": kind, **caches, **config}


def read_step(step: str) -> tuple[Op, Answer, Answer | None]:
    """Returns an operation, the right answers, and the one that it gets."""
    op, _, answers = step.partition(" > ")
    answers, _, chosen = answers.partition(" = ")
    right = [read_answer(answer) for answer in re.split(" or ", answers)]
    expected = right[0] if len(right) == 1 else {"one_of": right}
    return read_op(op), expected, read_answer(chosen) if chosen else None


def read_op(text: str) -> Op:
    (word, *words), fields = read_words(text)
    if word == "forward":
        rows = [[int(number) for number in (row + "@0").split("@")[:2]] for row in words]
        positions, sequences = [[row[part] for row in rows] for part in (0, 1)]
        return {"op": word, "positions": positions, "sequences": sequences, **fields}
    names = {
        "copy": ("copy_prefix", "source", "target", "length"),
        "remove": ("remove", "sequence", "begin", "end"),
        "resume": ("can_resume", "sequence", "position"),
        "save": ("save", "into"),
        "load": ("load", "from"),
    }
    name, *keys = names.get(word, (word,))
    given = [int(w) if w.strip("-").isdigit() else w for w in words]
    given = [None if value == "end" else value for value in given]
    return {"op": name, **dict(zip(keys, given, strict=True)), **fields}


def read_answer(text: str) -> Answer:
    if "+" in text.split():
        parts = re.split(r"(?:^| )\+ ", text)
        return {"caches": [read_answer(part) for part in parts if part]}
    if text in ANSWERS:
        return ANSWERS[text]
    if text.startswith("image "):
        return {"cached": True, "stored": [int(tag) for tag in text.split()[1:]]}
    rows, *states = re.split(r" \[", text.replace("]", ""))
    visible = [
        [[int(number) for number in (token.split(":") * 2)[:2]] for token in row.split()]
        for row in rows.split(" / ")
    ]
    read = [[int(tag) for tag in state.split()] for state in states]
    return {"visible": visible, "states": read} if read else {"visible": visible}


def check_case(one: Case) -> None:
    """Step by step, so that a failure names its step."""
    steps = zip(walk(parse_program(one.get_program(), one.name)), one.steps, strict=True)
    for number, (step, (op, expected, chosen)) in enumerate(steps):
        answer = {"skipped": step.skipped} if step.skipped else step.run_reference()
        assert write(answer) == write(expected), f"step {number}, {op}"
        if chosen is not None:
            step.resolve(chosen)


def write(answer: Answer) -> Any:
    """Returns an answer as it comes out of a file: with lists for tuples."""
    return json.loads(json.dumps(answer))


def check_command(cases: Sequence[Case], folder: Path) -> None:
    """All at once, by `lockstep trace`, as JSON. It goes on after the first answer."""
    cases = [one for one in cases if all(chosen is None for *_, chosen in one.steps)]
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(one.get_program()) + "\n" for one in cases))
    result = CliRunner().invoke(main, ["trace", str(path)])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.output.splitlines()]
    for one, line in zip(cases, lines, strict=True):
        assert line["format"] == "lockstep-trace/1"
        assert line["expected"] == [expected for _, expected, _ in one.steps], one.name
        printed, own = (
            parse_program(document, one.name)
            for document in (line["program"], one.get_program())
        )
        assert printed == own
