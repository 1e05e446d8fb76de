"""Who holds which tokens in a unified program, as a list of cells.

It believes what was answered (whether something was refused) and knows nothing of
windows: what a cache lets go of by itself stays in the book.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.contracts.base import Op
from harness.contracts.unified.model import CAUSAL, MAX_SEQUENCES
from harness.relations.derived import Builder, History, Step

PARTS_SLIDE = ("swa", "swa-memory")


def list_kinds(config: Mapping[str, Any]) -> list[str]:
    """The kind of each part."""
    return [part["kind"] for part in config["caches"]] or [config["kind"]]


def slides(config: Mapping[str, Any]) -> bool:
    """Whether some part may let go of tokens by itself."""
    return any(kind in PARTS_SLIDE for kind in list_kinds(config))


def has_kind(config: Mapping[str, Any], kind: str) -> bool:
    return kind in list_kinds(config)


@dataclass(frozen=True)
class Cell:
    tag: int
    position: int
    owners: frozenset[int]


@dataclass
class UnifiedBook:
    """cells: in the order in which they were written. peaks: sequence → the position
    behind all that it ever held; highest: that of all. unsteady: sequences whose tokens
    may not stand at 0, 1, …, as they came. saved: name → cells. is_muddled: a wrapper
    refused something when some of its caches may have changed."""

    is_wrapper: bool = False
    cells: list[Cell] = field(default_factory=list)
    peaks: dict[int, int] = field(default_factory=dict)
    unsteady: set[int] = field(default_factory=set)
    saved: dict[str, list[Cell]] = field(default_factory=dict)
    has_copied: bool = False
    is_muddled: bool = False
    highest: int = 0

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
        """Enters what a step has done."""
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
        """What is shared cannot move; if that was no reason to refuse, the sequence had
        let go of its share by itself."""
        self.cells = [
            replace(cell, owners=cell.owners - {sequence})
            if cell.position >= end and len(cell.owners) > 1
            else cell
            for cell in self.cells
        ]

    def drop(self, sequence: int, begin: int, end: int | None) -> None:
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


def open_book(history: History) -> UnifiedBook:
    return UnifiedBook(history.program.kind == "wrapper")


def read_until(history: History, number: int) -> UnifiedBook:
    """What was held before the step with this number."""
    book = open_book(history)
    for step in history.steps:
        if step.number == number:
            break
        book.write(step)
    return book


def find_step(history: History, number: int) -> Step:
    return next(step for step in history.steps if step.number == number)


def add_rows(builder: Builder, rows: Sequence[tuple[int, int, int]]) -> list[int]:
    """Passes of as many of (tag, position, sequence) as the batch allows; their
    numbers."""
    most, numbers = builder.config["batch"], []
    for begin in range(0, len(rows), most):
        some = rows[begin : begin + most]
        op = {
            "op": "forward",
            "positions": [position for _, position, _ in some],
            "sequences": [sequence for _, _, sequence in some],
        }
        numbers.append(builder.add(op, [tag for tag, _, _ in some]))
    return numbers


def is_pass(step: Step) -> bool:
    """A pass that was not refused, and shows something."""
    return (
        step.name == "forward" and "error" not in step.answer and not step.op["reserve"]
    )


def opens(step: Step) -> bool:
    """Whether what comes after is about this pass, and about none before it."""
    return step.name == "forward" and step.answer.get("error") != "usage"


# --- what an operation needs, and what it changes ---------------------------------------


class Reach:
    """What the operations of one program need and change: sequences by number, "image",
    "pass", ("saved", name)."""

    def __init__(self, history: History) -> None:
        config = history.program.config
        self.all: set[Any] = {*range(config["sequences"]), "image"}
        self.shares = any(step.name == "copy_prefix" for step in history.steps)
        self.slides = slides(config)
        self.is_wrapper = config["kind"] == "wrapper"
        self.has_image = has_kind(config, "encoder")
        self.watches = any(step.name in ("get", "put") for step in history.steps)

    def get_needs(self, step: Step) -> set[Any]:
        op, error = step.op, step.answer.get("error")
        if step.name in ("get", "put"):
            return {"pass"} | ({"image"} if self.has_image else set())
        if step.name == "load":
            return {("saved", op["from"])}
        if error == "usage" or step.name == "open":
            return set()
        if error or step.name == "save":
            return set(self.all)
        if step.name == "forward":
            image = {"image"} if self.has_image else set()
            return set(self.all) if self.slides else {*op["sequences"]} | image
        if step.name == "copy_prefix":
            return {op["source"], op["target"]}
        if step.name == "remove" and self.shares and op["end"] is not None:
            return set(self.all)
        return {op["sequence"]}

    def get_changes(self, step: Step) -> set[Any]:
        op, error = step.op, step.answer.get("error")
        if error == "usage" or step.name in ("get", "put", "can_resume", "open"):
            return set()
        if step.name == "save":
            return {("saved", op["into"])}
        watched = {"pass"} if self.watches else set()
        if error and step.name != "forward" and not self.is_wrapper:
            return set()
        if error or step.name == "load":
            return self.all | watched
        if step.name == "forward":
            if op["reserve"]:
                return watched
            image = {"image"} if op["multimodal"] and self.has_image else set()
            own = set(self.all) if self.slides else {*op["sequences"]} | image
            return own | watched
        if step.name == "copy_prefix":
            return {op["target"]} | watched
        image = {"image"} if self.has_image else set()
        return {op["sequence"]} | image | watched


def can_save(config: Mapping[str, Any]) -> bool:
    return config["kind"] in CAUSAL
