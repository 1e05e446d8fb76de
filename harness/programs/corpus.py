"""Short programs that reach what is rarely reached, for later programs to start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.harness.contracts.operation import Cell
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.files import (
    is_program,
    iterate_saved,
    list_all_files,
    write_program,
)
from lockstep.harness.programs.program import Program, walk

MOST_FILES = 10_000
"""Files that a folder may have: each contract and kind has some hundred cells."""

LONGEST = 500
"""Operations of a program of the corpus. Those that are drawn have at most half of it."""

MOST_GIVEN = 64
"""Programs that one slice starts from."""


class Corpus:
    """For each cell of a kind, the shortest program that reaches it on the reference.

    So it has no more programs than there are cells, and what it keeps does not depend on
    the order in which programs come: of two that are equally short, the one with the
    smaller digest is kept.

    Attributes:
        programs: cell → program.
    """

    def __init__(self) -> None:
        self.programs: dict[Cell, Program] = {}

    def add(self, program: Program, cells: Iterable[Cell]) -> None:
        """Adds a program that reaches some cells."""
        own = [cell for cell in cells if is_simpler(program, self.programs.get(cell))]
        self.programs.update(dict.fromkeys(own, program))

    def add_beginnings(self, program: Program, cells: Mapping[Cell, int]) -> None:
        """Adds the beginnings of a program that are the shortest to reach some cells.

        Args:
            program: reaches the cells.
            cells: cell → number of operations of the beginning that reaches it.
        """
        by_length: dict[int, list[Cell]] = {}
        for cell, length in cells.items():
            kept = self.programs.get(cell)
            if kept is None or length < len(kept.ops):
                by_length.setdefault(length, []).append(cell)
        for length, own in by_length.items():
            beginning = replace(program, ops=program.ops[:length], meta={})
            self.programs.update(dict.fromkeys(own, beginning))

    def list_programs(self) -> list[Program]:
        """Lists each program once, in the order of their digests."""
        programs = {one.digest(): one for one in self.programs.values()}
        return [programs[digest] for digest in sorted(programs)]


def is_simpler(program: Program, kept: Program | None) -> bool:
    """Says whether a program takes the place of the one that is kept."""
    if kept is None or len(program.ops) != len(kept.ops):
        return kept is None or len(program.ops) < len(kept.ops)
    return program.digest() < kept.digest()


def find_cells(program: Program) -> dict[Cell, int]:
    """Finds the cells that a program reaches on the reference.

    Returns:
        Cell → number of operations of the beginning that reaches it.
    """
    found: dict[Cell, int] = {}
    for step in walk(program, rows=False):
        if step.skipped is None:
            for state in program.rules.get_states(step.op, step.model):
                found.setdefault((state, step.operation.name), step.number + 1)
    return found


# --- as files ---------------------------------------------------------------------------


class CorpusFolder:
    """The corpora of all kinds, each program in the file KIND/DIGEST.json of a folder.

    Args:
        path: the folder; one that is not there yet is empty.

    Raises:
        UsageError: it cannot be read, or a file in it is not a program.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kinds: dict[str, Corpus] = {}
        self.written: set[Path] = set()
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path}: is not a folder; --corpus takes a folder")
        if path.exists():
            self.read()

    def read(self) -> None:
        """Adds the programs of all files, in any folder below this one."""
        files = [own for own in list_all_files(self.path) if is_program(*own)]
        if len(files) > MOST_FILES:
            raise UsageError(
                f"{self.path}: has {len(files):,} program files; a corpus has at most"
                f" {MOST_FILES:,}. Is it the folder of something else?"
            )
        for file, program in iterate_saved([file for file, _ in files]):
            if isinstance(program, UsageError):
                raise program
            self.add(program)
            if file == self.get_path(program):
                self.written.add(file)

    def get(self, kind: str) -> Corpus:
        return self.kinds.setdefault(kind, Corpus())

    def choose(self, kind: str, number: int) -> list[dict[str, Any]]:
        """Chooses the programs that one slice of a kind starts from, as documents.

        Args:
            kind: of caches.
            number: of the slice; the next one gets the next programs.
        """
        programs = self.get(kind).list_programs()
        begin = number * MOST_GIVEN % max(1, len(programs))
        turned = [*programs[begin:], *programs[:begin]]
        return [program.to_json() for program in turned[:MOST_GIVEN]]

    def get_path(self, program: Program) -> Path:
        return self.path / program.kind / f"{program.digest()}.json"

    def add(self, program: Program) -> None:
        """Adds a program under all cells that it reaches, unless it is too long."""
        if len(program.ops) <= LONGEST:
            plain = replace(program, meta={})
            self.get(program.kind).add(plain, find_cells(plain))

    def save(self) -> int:
        """Writes the programs that are new, and removes the files of those that others
        have replaced.

        Returns:
            The number of programs.

        Raises:
            OSError: a file cannot be written.
        """
        kept = {
            self.get_path(program): program
            for corpus in self.kinds.values()
            for program in corpus.list_programs()
        }
        for path in kept.keys() - self.written:
            write_program(path, kept[path])
        for path in self.written - kept.keys():
            path.unlink(missing_ok=True)
        self.written = set(kept)
        return len(kept)
