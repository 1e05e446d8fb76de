"""Checks the lines of a file against the schema, the manifest and the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.harness.contracts.operation import Cell
from lockstep.harness.core.document import MAX_BYTES, make_validator, parse_json
from lockstep.harness.core.errors import UsageError, shorten
from lockstep.harness.programs.program import Program, parse_program, trace
from lockstep.harness.programs.vectors import Problem
from lockstep.harness.programs.vectors.manifest import MAX_FILE, read_bounded, write_json
from lockstep.harness.programs.vectors.schema import make_schema
from lockstep.harness.programs.vectors.selection import iter_cells

# Problems that are reported for one file.
MOST_REPORTED = 10


def audit(
    path: Path, holds: Mapping[str, Any], on_program: Callable[[Program], None]
) -> tuple[list[Program], list[Problem]]:
    """Reads the programs in a file and lists its problems.

    Args:
        path: the file.
        holds: its entry in the manifest.
        on_program: is called with each program before it runs.
    """
    programs: list[Program] = []
    problems: list[Problem] = []
    reached: set[Cell] = set()
    for place, line in iterate_lines(path):
        try:
            document = parse_line(line, place)
            program = parse_program(document, place)
            check_kind(program, holds, place)
            programs.append(program)
            on_program(program)
            problem = find_difference(program, document["expected"], place)
            reached |= set(iter_cells(program))
        except UsageError as error:
            problem = Problem(str(error))
        if problem is not None:
            problems.append(problem)
            if len(problems) == MOST_REPORTED:
                return programs, problems
    problems += list_wrong_claims(path, holds, len(programs), reached)
    return programs, problems


def iterate_lines(path: Path) -> list[tuple[str, bytes]]:
    """Returns (place, line) of each line.

    Raises:
        UsageError: the last line is cut off.
    """
    content = read_bounded(path, MAX_FILE)
    if not content.endswith(b"\n"):
        raise UsageError(f"{path}: its last line has no end; the file may be cut off")
    lines = content.split(b"\n")[:-1]
    return [(f"{path}:{number}", line) for number, line in enumerate(lines, 1)]


def parse_line(line: bytes, place: str) -> Any:
    """Parses a line and checks it against the schema.

    Raises:
        UsageError: the line is not a vector.
    """
    if len(line) > MAX_BYTES:
        raise UsageError(f"{place}: is too long; at most {MAX_BYTES >> 20} MiB")
    try:
        document = parse_json(line.decode(), place)
    except UnicodeDecodeError as error:
        raise UsageError(f"{place}: is not UTF-8 text: {error}") from None
    wrong = next(get_validator().iter_errors(document), None)
    if wrong is not None:
        where = "/".join(map(str, wrong.absolute_path)) or "the line"
        raise UsageError(f"{place}: {where}: {shorten(wrong.message)}")
    program, expected = document["program"], document["expected"]
    if len(program["ops"]) != len(expected):
        raise UsageError(
            f"{place}: {len(expected)} answers to {len(program['ops'])} operations"
        )
    return document


@cache
def get_validator() -> Any:
    return make_validator(make_schema())


def check_kind(program: Program, holds: Mapping[str, Any], place: str) -> None:
    own, said = (program.contract, program.kind), (holds["contract"], holds["kind"])
    if own != said:
        raise UsageError(
            f"{place}: is a program of {' '.join(own)}; by the manifest the file holds"
            f" {' '.join(said)}"
        )


def find_difference(
    program: Program, expected: Sequence[Any], place: str
) -> Problem | None:
    """Finds the first step where the answers of the set and of the reference differ."""
    pairs = zip(expected, trace(program), strict=True)
    for step, (said, here) in enumerate(pairs):
        if write_json(said) == write_json(here):
            continue
        op = program.ops[step]
        name = program.meta["name"]
        return Problem(
            f"{place} ({name}): step {step},"
            f" {program.rules.operations[op['op']].describe(op)}: the set expects"
            f" {shorten(write_json(said))}, the reference {shorten(write_json(here))}",
            differs=True,
        )
    return None


def list_wrong_claims(
    path: Path, holds: Mapping[str, Any], programs: int, reached: set[Cell]
) -> list[Problem]:
    """Lists the claims of the manifest about a file that are wrong."""
    problems = []
    if holds["programs"] != programs:
        words = f"{path}: holds {programs} programs, not {holds['programs']}"
        problems.append(Problem(f"{words} as the manifest says"))
    for state, operations in holds["covered"].items():
        missing = [name for name in operations if (state, name) not in reached]
        if missing and not problems:
            words = f"no program reaches {state} × {missing[0]}, which the manifest lists"
            problems.append(Problem(f"{path}: {words}"))
    return problems
