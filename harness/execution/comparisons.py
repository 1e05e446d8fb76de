"""Counts the comparisons of programs, and measures the programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.harness.contracts.operation import Answer
from lockstep.harness.execution.compare import (
    COLUMNS,
    GENERATED,
    PARTS,
    ROWS,
    SLOTS,
    STATE,
    STATES,
    STORED,
    TAGS,
)
from lockstep.harness.programs.program import Program

CONTENTS, MASKS = "contents", "masks"
HELD = frozenset({TAGS, SLOTS, STATE, STATES, STORED, GENERATED})
CONFIG_SIZES = ("heads", "key_dim", "value_dim")
CACHE, OFFSET, UPDATE, UPDATES = "cache", "offset", "update", "updates"

Sizes = Mapping[str, int]
"""The largest `CONFIG_SIZES`; the largest number of tokens that an answer shows together
("cache"), the largest offset or position, the largest number of tokens of an update, and
the largest number of updates in a program. An update is any operation that brings new
tokens."""


@dataclass
class Comparisons:
    """The comparisons of a run.

    Attributes:
        compared: name → number of steps: "contents" (tokens were read), "masks" (several
            rows see tokens through a mask), and the names in `System.compared`.
        operations: operation → the number of its steps.
        cache, offset: see `Sizes`.
    """

    operations: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    cache: int = 0
    offset: int = 0

    def note(self, operation: str, answer: Answer) -> None:
        """Counts a step, whose answer is as expected."""
        self.operations[operation] += 1
        has_contents = has_mask = False
        for shown in list_parts(answer) if PARTS in answer else (answer,):
            length = position = 0
            if rows := shown.get(ROWS):
                length = max(map(len, rows))
                token = rows[-1][-1] if rows[-1] else None
                position = token[0] if isinstance(token, tuple) else 0
                has_mask |= len(rows) > 1 and COLUMNS in shown
            else:
                for name in HELD.intersection(shown):
                    if isinstance(shown[name], list):
                        length = max(length, len(shown[name]))
            has_contents |= length > 0
            end = length + shown.get("first", 0)
            self.cache = max(self.cache, length)
            self.offset = max(self.offset, position, end, int(shown.get("offset") or 0))
        if has_contents:
            self.compared[CONTENTS] += 1
        if has_mask:
            self.compared[MASKS] += 1


def list_parts(answer: Answer) -> Iterator[Answer]:
    """Yields an answer, and the answers of all parts in it."""
    yield answer
    for member in answer.get(PARTS) or ():
        yield from list_parts(member)


def measure(program: Program, comparisons: Comparisons) -> Sizes:
    """Returns the `Sizes` of a program and of its comparisons."""
    operations = program.rules.operations
    lengths: list[int] = [operations[op["op"]].count_tags(op) for op in program.ops]
    sizes: dict[str, Any] = {name: program.config.get(name, 0) for name in CONFIG_SIZES}
    updates = len(lengths) - lengths.count(0)
    read = {CACHE: comparisons.cache, OFFSET: comparisons.offset}
    extra = {**read, UPDATE: max(lengths, default=0), UPDATES: updates}
    return {name: size for name, size in {**sizes, **extra}.items() if size}
