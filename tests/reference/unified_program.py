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
from pathlib import Path
from typing import Any

from cases import Case, read_words
from click.testing import CliRunner

from lockstep.harness.cli.main import main
from lockstep.harness.programs.program import Program, parse_program, walk

Op = dict[str, Any]
Answer = dict[str, Any]

ANSWERS: Mapping[str, Answer] = {
    "": {},
    "yes": {"result": True},
    "no": {"result": False},
    "no image": {"cached": False, "stored": None},
    "nothing saved": {"skipped": "nothing was saved as y"},
    "not known": {"skipped": "after a refusal, its content is not known"},
    **{e: {"error": e} for e in ("cache-full", "not-supported", "shared", "usage")},
}


def get_program(case: Case) -> Program:
    """A case as a program."""
    ops = [read_op(step.partition(" > ")[0]) for step in case.steps]
    document = {"contract": "unified", "config": read_config(case.head), "ops": ops}
    return parse_program({"format": "lockstep/1", **document}, case.name)


def read_config(text: str) -> dict[str, Any]:
    parts = re.findall(r"\((.*?)\)", text)
    [kind], config = read_words(re.sub(r"\(.*?\)", "", text))
    caches = {"caches": [read_config(part) for part in parts]} if parts else {}
    return {"kind": kind, **caches, **config}


def read_expected(step: str) -> tuple[Answer, Answer | None]:
    """Returns the right answers to an operation, and the one that it gets."""
    answers, _, chosen = step.partition(" > ")[2].partition(" = ")
    right = [read_answer(answer) for answer in re.split(" or ", answers)]
    expected = right[0] if len(right) == 1 else {"one_of": right}
    return expected, read_answer(chosen) if chosen else None


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


def check_case(case: Case) -> None:
    """Step by step, so that a failure names its step."""
    for step, text in zip(walk(get_program(case)), case.steps, strict=True):
        expected, chosen = read_expected(text)
        answer = {"skipped": step.skipped} if step.skipped else step.run_reference()
        assert write(answer) == write(expected), text
        if chosen is not None:
            step.resolve(chosen)


def write(answer: Answer) -> Any:
    """Returns an answer as it comes out of a file: with lists for tuples."""
    return json.loads(json.dumps(answer))


def check_command(cases: Sequence[Case], folder: Path) -> None:
    """All at once, by `lockstep trace`, as JSON. It goes on after the first answer."""
    cases = [case for case in cases if not any(" = " in step for step in case.steps)]
    path = folder / "cases.jsonl"
    programs = list(map(get_program, cases))
    path.write_text("".join(json.dumps(each.to_json()) + "\n" for each in programs))
    result = CliRunner().invoke(main, ["trace", str(path)])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.output.splitlines()]
    for case, program, line in zip(cases, programs, lines, strict=True):
        assert line["format"] == "lockstep-trace/1"
        expected = [read_expected(step)[0] for step in case.steps]
        assert line["expected"] == expected, case.name
        assert parse_program(line["program"], case.name) == program
