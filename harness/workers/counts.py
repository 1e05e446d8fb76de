"""Defines the sums over programs that workers send and jobs add."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from lockstep.harness.core.payload import merge_margins

Natural = Annotated[int, Meta(ge=0, le=1 << 53)]
NonNegative = Annotated[float, Meta(ge=0, le=1e15)]


@dataclass(kw_only=True)
class Counts:
    """Sums over the programs of one or more shards.

    Attributes:
        unfinished: programs that called an unwritten method of the backend.
        covered: (exhaustive runs) programs of all lengths that have run, alone or as a
            prefix of a longer program.
        avoided: programs that were skipped because they lead to a known divergence.
        seconds: the run time, in seconds of one core.
        margins: the used fraction of each tolerance; see `core.payload.Margins`.
        signatures: signature → number of programs.
        entered: id of a ledger entry → number of programs that ran an operation that the
            entry describes, and showed its signature.
        missing: unimplemented method of the backend → operation that needs the method.
        undeclared: reason for skipping programs → number of programs.
    """

    programs: Natural = 0
    steps: Natural = 0
    skipped: Natural = 0
    unfinished: Natural = 0
    covered: Natural = 0
    avoided: Natural = 0
    seconds: NonNegative = 0.0
    margins: dict[str, NonNegative] = field(default_factory=dict)
    signatures: dict[str, Natural] = field(default_factory=dict)
    entered: dict[str, Natural] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    undeclared: dict[str, Natural] = field(default_factory=dict)

    def include(self, counts: Counts) -> None:
        """Adds the counts of another slice."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(counts, name))
        self.margins = merge_margins(self.margins, counts.margins)
        self.missing.update(counts.missing)
        for name in TALLIES:
            for key, count in getattr(counts, name).items():
                tally(getattr(self, name), key, count)


SUMS = ("programs", "steps", "skipped", "unfinished", "covered", "avoided", "seconds")
TALLIES = ("signatures", "entered", "undeclared")


def tally(counts: dict[str, int], key: str, count: int = 1) -> None:
    counts[key] = counts.get(key, 0) + count


@dataclass
class Shown:
    """The programs that have shown a signature.

    Attributes:
        programs: the number of programs.
        states: digest of a shrunk program → the states at the failing step that all of
            its original programs share.
    """

    programs: int = 0
    states: dict[str, list[str]] = field(default_factory=dict)
