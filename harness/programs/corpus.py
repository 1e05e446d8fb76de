"""Short programs that reach what is rarely reached, for later programs to start from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from lockstep.harness.contracts.operation import Cell
from lockstep.harness.core.document import decode
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import Folder, open_folder
from lockstep.harness.programs.files import SUFFIXES, format_program, is_program
from lockstep.harness.programs.program import Program, parse_programs, walk

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

    def add(self, program: Program, cells: Iterable[Cell]) -> bool:
        """Adds a program that reaches some cells; says whether it is kept for one."""
        own = [cell for cell in cells if is_simpler(program, self.programs.get(cell))]
        self.programs.update(dict.fromkeys(own, program))
        return bool(own)

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


# --- of all kinds -----------------------------------------------------------------------


class Corpora:
    """The corpora of all kinds.

    Attributes:
        kinds: kind → its corpus.
    """

    def __init__(self) -> None:
        self.kinds: dict[str, Corpus] = {}

    def get(self, kind: str) -> Corpus:
        return self.kinds.setdefault(kind, Corpus())

    def add(self, program: Program, cells: Iterable[Cell] | None = None) -> bool:
        """Adds a program, unless it is too long; says whether it is kept.

        Args:
            program: of any kind.
            cells: all that it reaches; None where that is not known.
        """
        if len(program.ops) > LONGEST:
            return False
        plain = replace(program, meta={})
        reached = find_cells(plain) if cells is None else cells
        return self.get(program.kind).add(plain, reached)

    def take_over(self, other: Corpora) -> None:
        """Starts with the programs of another one."""
        for kind, corpus in other.kinds.items():
            self.get(kind).programs.update(corpus.programs)

    def list_programs(self) -> list[Program]:
        """Lists the programs of all kinds."""
        return [one for kind in sorted(self.kinds) for one in self.list_kind(kind)]

    def list_kind(self, kind: str) -> list[Program]:
        return self.get(kind).list_programs()

    def choose(self, kind: str, number: int) -> list[dict[str, Any]]:
        """Chooses the programs that one slice of a kind starts from, as documents.

        Args:
            kind: of caches.
            number: of the slice; the next one gets the next programs.
        """
        programs = self.list_kind(kind)
        begin = number * MOST_GIVEN % max(1, len(programs))
        turned = [*programs[begin:], *programs[:begin]]
        return [program.to_json() for program in turned[:MOST_GIVEN]]

    def compute_digest(self) -> str:
        """Computes what is the same for the same programs."""
        digests = " ".join(program.digest() for program in self.list_programs())
        return hashlib.sha256(digests.encode()).hexdigest()[:12]


# --- as files ---------------------------------------------------------------------------


class CorpusFolder(Corpora):
    """The same, each program in the file KIND/DIGEST.json of a folder.

    Attributes:
        folder: one that is not there yet is empty.
        written: the names of the files that it has for programs.
    """

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self.folder = folder
        self.written: set[str] = set()

    def read(self) -> None:
        """Adds the programs of all files, in any folder below this one.

        Raises:
            UsageError: it cannot be read, or a file in it is not a program.
        """
        names = [name for name in self.folder.list() if name.endswith(SUFFIXES)]
        if len(names) > MOST_FILES:
            raise UsageError(
                f"{self.folder.place}: has {len(names):,} program files; a corpus has at"
                f" most {MOST_FILES:,}. Is it the folder of something else?"
            )
        for name, content in self.folder.read_all(names):
            for program in parse_file(self.folder, name, content):
                self.add(program)
                if name == get_name(program):
                    self.written.add(name)

    def adopt_files(self) -> None:
        """Lets `save` remove the files of programs that are there and are not kept,
        without reading them."""
        self.written.update(filter(NAME.fullmatch, self.folder.list()))

    def save(self) -> int:
        """Writes the programs that are new, and removes the files of those that others
        have replaced.

        Returns:
            The number of programs.

        Raises:
            OSError: a file cannot be written.
        """
        kept = {get_name(program): program for program in self.list_programs()}
        new = sorted(kept.keys() - self.written)
        self.folder.replace_all(
            {name: format_program(kept[name]).encode() for name in new}
        )
        for name in sorted(self.written - kept.keys()):
            self.folder.take(name)
        self.written = set(kept)
        return len(kept)


NAME = re.compile(r"[^/]+/[0-9a-f]{12}\.json")


def get_name(program: Program) -> str:
    return f"{program.kind}/{program.digest()}.json"


def parse_file(folder: Folder, name: str, content: bytes | UsageError) -> list[Program]:
    """Parses the programs of a file; raises UsageError if it has none, or is broken."""
    if isinstance(content, UsageError):
        raise content
    if not is_program(PurePath(name), lambda: content):
        return []
    where = f"{folder.place}/{name}"
    return [*parse_programs(decode(content, where), where).values()]


def open_corpus(place: str) -> CorpusFolder:
    """Opens the corpus in a folder or a store.

    Raises:
        UsageError: it cannot be read, or a file in it is not a program.
    """
    corpus = CorpusFolder(open_folder(place))
    corpus.read()
    return corpus
