"""Reads programs from files and folders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from os.path import isdir, lexists
from pathlib import Path

from lockstep.harness.core.document import (
    MAX_BYTES,
    decode,
    read_bytes,
    walk_files,
    write_whole,
)
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import LINES, Program, parse_programs

OUTCOME = "outcome.json"
"""The file with the outcome of a check, next to the folders of signatures."""

RUNNING = "running"
"""The folder of the write-ahead records, next to the folders of signatures."""

SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz")


def iterate_saved(paths: Sequence[Path]) -> Iterator[tuple[Path, Program | UsageError]]:
    """Yields (location, program) for files, and for the files in folders.

    For a broken file, the function yields an error instead of programs. The location of a
    program in a file with several programs has its line number, as in ``found.jsonl:3``.
    The caller may also pass such locations.

    Raises:
        UsageError: a folder has no program file.
    """
    for path in paths:
        whole = find_whole(path)
        for file in list_files(whole or path):
            try:
                programs = parse_programs(read_file(file), str(file))
            except UsageError as error:
                yield file, error
                continue
            if whole:
                program = programs.get(str(path))
                yield path, program or UsageError(f"{path}: no program in this line")
            elif len(programs) == 1:
                yield file, next(iter(programs.values()))
            else:
                yield from ((Path(name), program) for name, program in programs.items())


def find_whole(path: Path) -> Path | None:
    """Returns the file of a path that ends in a line number; None for other paths."""
    text, colon, line = str(path).rpartition(":")
    is_line = colon and line.isdecimal() and text.endswith(LINES) and not lexists(path)
    return Path(text) if is_line else None


def load_saved(paths: Sequence[Path]) -> list[tuple[Path, Program]]:
    """Lists the locations and programs that `iterate_saved` yields.

    Raises:
        UsageError: `iterate_saved` yields an error, or raises it.
    """
    programs = []
    for path, program in iterate_saved(paths):
        if isinstance(program, UsageError):
            raise program
        programs.append((path, program))
    return programs


def list_files(path: Path) -> list[Path]:
    """Lists the program files at a path, sorted by name.

    Write-ahead records without a running program are skipped.
    """
    if not isdir(path):
        return [path]
    files = [file for file in list_documents(path) if is_program(file)]
    if not files:
        raise UsageError(f"{path}: no program file (.json, .jsonl) in this folder")
    return files


def list_outcomes(path: Path) -> list[Path]:
    """Lists the outcome files of checks in a folder, sorted by name."""
    return [file for file in list_documents(path) if file.name == OUTCOME]


def list_documents(folder: Path) -> list[Path]:
    """Lists the files below a folder that have ".json" in their names."""
    return sorted(file for file in walk_files(folder) if ".json" in file.name)


def read_file(path: Path) -> str:
    """Returns the text of a file; raises UsageError if it cannot be read."""
    return decode(read_bytes(path, MAX_BYTES), str(path))


def is_program(file: Path) -> bool:
    """Returns whether a file of a folder is read as a program file."""
    if not file.name.endswith(SUFFIXES) or file.name == OUTCOME:
        return False
    try:
        return not is_record(file) or read_bytes(file, MAX_BYTES).strip() != b"{}"
    except UsageError:  # it is raised again where the file is read
        return True


def is_record(file: Path) -> bool:
    """Returns whether a file is a write-ahead record."""
    return file.parent.name == RUNNING


def write_program(path: Path, program: Program) -> None:
    """Writes a program to a file, atomically."""
    write_whole(path, format_program(program))


def format_program(program: Program) -> str:
    """Returns the text of a program's file: one line for each field."""
    document = program.to_json()
    lines = [f' "{name}": {json.dumps(document[name])}' for name in document]
    return "{" + ",\n".join(lines).removeprefix(" ") + "}\n"
