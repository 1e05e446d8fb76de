"""Which sequence holds which tokens in a unified program, as a list of cells.

A pass with the rows (position 0, sequence 0), (1, 0), (0, 1) writes the cells of tokens
0, 1 and 2. A window is no concern of the book: what a cache lets go of by itself stays in
it, and relations mask and cut say which of these tokens are still seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from lockstep.harness.contracts.types import Op
from lockstep.harness.contracts.unified.model import MAX_SEQUENCES
from lockstep.harness.execution.metamorphic.answers import DETOUR
from lockstep.harness.execution.metamorphic.history import Book, History, Step

PURE = ("causal", "chunked")
"""Kinds that keep a token until it is removed, and read it into no state."""

SLIDING = ("swa", "swa-memory")
"""Kinds that let go of tokens by themselves."""


def list_kinds(config: Mapping[str, Any]) -> list[str]:
    """The kind of each cache of a wrapper; the one kind of any other."""
    return [part["kind"] for part in config["caches"]] or [config["kind"]]


def slides(config: Mapping[str, Any]) -> bool:
    """Whether some cache of it may let go of tokens by itself."""
    return any(kind in SLIDING for kind in list_kinds(config))


def has_kind(config: Mapping[str, Any], kind: str) -> bool:
    return kind in list_kinds(config)


def is_pure(config: Mapping[str, Any]) -> bool:
    """Whether every cache of it keeps what it got, and nothing else."""
    return {*list_kinds(config)} <= {*PURE}


def get_first_seen(config: Mapping[str, Any], position: int) -> int:
    """The first position in the window, or the chunk, of a query at a position."""
    if config["chunk"]:
        return position - position % int(config["chunk"])
    return position - int(config["window"]) if config["window"] else 0


def list_seen(config: Mapping[str, Any], position: int) -> list[Any]:
    """What a query at a position sees where all others are detours, up to itself."""
    first = max(0, get_first_seen(config, position))
    return [(at, DETOUR) for at in range(first, position + 1)]


def get_memory(config: Mapping[str, Any]) -> int:
    return int(config["window" if config["kind"] == "swa" else "memory"])


def forgets(config: Mapping[str, Any]) -> bool:
    """Whether less is remembered than there is room for, whatever is rounded up."""
    memory = get_memory(config)
    return bool(config["window"]) and 0 < memory < config["capacity"] - 1


@dataclass(frozen=True)
class Cell:
    """A token at a position. owners: the sequences that hold it, several after a copy."""

    tag: int
    position: int
    owners: frozenset[int]


@dataclass
class UnifiedBook(Book):
    """cells: in the order in which they were written. saved: name → the cells that were
    saved under it. has_copied: some prefix was copied.

    peaks: sequence → the position behind all that it ever held; highest: the highest of
    these. A sequence that got the positions 0, 1, 2 and lost 2 has the peak 3.

    unsteady: sequences whose tokens may stand elsewhere than at 0, 1, 2, …, in the order
    in which they came. is_muddled: a wrapper refused something when some of its caches
    may have changed already; from there on the book says nothing.
    """

    is_wrapper: bool = False
    cells: list[Cell] = field(default_factory=list)
    peaks: dict[int, int] = field(default_factory=dict)
    unsteady: set[int] = field(default_factory=set)
    saved: dict[str, list[Cell]] = field(default_factory=dict)
    has_copied: bool = False
    is_muddled: bool = False
    highest: int = 0

    @classmethod
    def open(cls, history: History) -> Self:
        return cls(history.program.kind == "wrapper")

    def get_cells(self, sequence: int) -> list[Cell]:
        return [cell for cell in self.cells if sequence in cell.owners]

    def get_owners(self) -> list[int]:
        return sorted({owner for cell in self.cells for owner in cell.owners})

    def list_known(self) -> set[int]:
        """The sequences that may hold something, be it a state without tokens."""
        return {*self.get_owners(), *self.peaks}

    def is_shared(self) -> bool:
        return any(len(cell.owners) > 1 for cell in self.cells)

    def write(self, step: Step) -> None:
        error = step.answer.get("error")
        if error == "usage":
            return
        if error:
            self.is_muddled |= self.is_wrapper and step.name != "forward"
        elif step.name in ENTER:
            ENTER[step.name](self, step.op, step)

    def forward(self, op: Op, step: Step) -> None:
        if op["reserve"]:
            return
        rows = zip(step.tags, op["positions"], op["sequences"], strict=False)
        for tag, position, owner in rows:
            if position != len(self.get_cells(owner)):
                self.unsteady.add(owner)
            self.cells.append(Cell(tag, position, frozenset({owner})))
            self.peaks[owner] = max(self.peaks.get(owner, 0), position + 1)
            self.highest = max(self.highest, position + 1)

    def copy_prefix(self, op: Op, step: Step) -> None:
        source, target, length = op["source"], op["target"], op["length"]
        self.drop(target, 0, None)
        self.has_copied = True
        self.cells = [
            replace(cell, owners=cell.owners | {target})
            if source in cell.owners and cell.position < length
            else cell
            for cell in self.cells
        ]
        both = self.peaks.get(source, 0), self.peaks.get(target, 0)
        self.peaks[target] = max(both)
        if source in self.unsteady or self.peaks.get(source, 0) > length:
            self.unsteady.add(target)

    def remove(self, op: Op, step: Step) -> None:
        sequence, begin, end = op["sequence"], op["begin"], op["end"]
        self.drop(sequence, begin, end)
        if end is not None:
            self.lose_shared(sequence, end)
            self.cells = [
                replace(cell, position=cell.position + begin - end)
                if sequence in cell.owners and cell.position >= end
                else cell
                for cell in self.cells
            ]
        if begin == 0 and end is None:
            self.unsteady.discard(sequence)
            self.peaks.pop(sequence, None)
        elif end is not None:
            self.unsteady.add(sequence)

    def lose_shared(self, sequence: int, end: int) -> None:
        """Of what moves, strikes out what the sequence shares. A shared token cannot
        move, and that is a reason to refuse; so if the removal was not refused, the
        sequence had let go of its share by itself."""
        self.cells = [
            replace(cell, owners=cell.owners - {sequence})
            if cell.position >= end and len(cell.owners) > 1
            else cell
            for cell in self.cells
        ]

    def drop(self, sequence: int, begin: int, end: int | None) -> None:
        """Takes a range of positions from a sequence; what no sequence holds is gone."""
        left = [
            replace(cell, owners=cell.owners - {sequence})
            if cell.position >= begin and (end is None or cell.position < end)
            else cell
            for cell in self.cells
        ]
        self.cells = [cell for cell in left if cell.owners]

    def save(self, op: Op, step: Step) -> None:
        self.saved[op["into"]] = list(self.cells)

    def load(self, op: Op, step: Step) -> None:
        self.cells = list(self.saved[op["from"]])
        self.unsteady |= set(range(MAX_SEQUENCES))
        self.peaks = dict.fromkeys(range(MAX_SEQUENCES), self.highest)


ENTER: Mapping[str, Any] = {
    name: getattr(UnifiedBook, name)
    for name in ("forward", "copy_prefix", "remove", "save", "load")
}
