"""The view of failures: the same for the page, the summary and the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.harness.core.errors import clean
from lockstep.harness.execution.recording.picture import Bounds
from lockstep.harness.jobs.outcome import get_replay_line
from lockstep.harness.programs.program import describe_config, describe_failure
from lockstep.harness.reports.model import (
    OutcomeSummary,
    PairSummary,
    list_notes,
    say_amount,
    say_verdict,
)
from lockstep.harness.reports.pages.saved import Material, Play, Played, Saved

MOST_PLAYED = 40
"""Failures that are shown step by step; of others, there is the sentence."""

MOST_LISTED = 400

MOST_PROGRAM = 16_000
"""Characters of a program that is shown."""

MOST_SENTENCE = 600


@dataclass(frozen=True)
class FailureView:
    """One failure: what its file says, and what was seen when it ran again.

    number: from 1.
    """

    number: int
    saved: Saved
    played: Played

    @property
    def what(self) -> str:
        seen = self.played.divergence
        return seen.what if seen else self.saved.what or "program"

    @property
    def message(self) -> str:
        """The sentence that says what differs."""
        seen = self.played.divergence
        said = self.saved.message or "its file does not say how it failed"
        return clean(seen.message if seen else said, MOST_SENTENCE)

    @property
    def step(self) -> int | None:
        """The step that diverges."""
        seen = self.played.divergence
        return seen.step if seen else self.saved.step

    def tell(self, most: int) -> list[str]:
        """The failure in words, with at most so many steps."""
        return [
            *describe_failure(
                self.saved.program, self.step, self.what, self.message, most
            )
        ]

    @property
    def name(self) -> str:
        """The backend that the failure is about."""
        return self.saved.backend or self.played.backend or "no backend"

    @property
    def replay(self) -> str:
        """The line that runs it again; of a file in a zip, all of that."""
        zipped, is_in_zip, _ = self.saved.path.partition(".zip!")
        path = Path(f"{zipped}.zip" if is_in_zip else self.saved.path)
        return get_replay_line(path, self.played.backend or self.saved.backend or "NAME")

    @property
    def operation(self) -> str:
        ops = self.saved.program.ops
        return str(ops[-1 if self.step is None else self.step]["op"]) if ops else "open"

    @property
    def signature(self) -> str:
        program = self.saved.program
        own = f"{program.contract}-{program.kind}-{self.operation}-{self.what}"
        return self.saved.signature or own

    @property
    def config(self) -> str:
        return clean(describe_config(self.saved.program))

    @property
    def operations(self) -> int:
        return len(self.saved.program.ops)

    @property
    def program_text(self) -> str | None:
        """The program as it stands in a file, an operation a line; None if it is long."""
        document = replace(self.saved.program, meta={}).to_json()
        ops = ",\n  ".join(json.dumps(op) for op in document.pop("ops"))
        head = json.dumps(document)[:-1]
        text = f'{head},\n "ops": [\n  {ops}]}}'
        return text if len(text) <= MOST_PROGRAM else None


@dataclass(frozen=True)
class ReportView:
    """All that a report shows. more: failures that are not even listed."""

    outcomes: Sequence[OutcomeSummary]
    failures: Sequence[FailureView]
    broken: Sequence[str]
    more: int = 0

    @property
    def pairs(self) -> list[PairSummary]:
        return [pair for outcome in self.outcomes for pair in outcome.pairs]

    @property
    def notes(self) -> list[str]:
        """The notes below the matrix, each line once."""
        notes = (note for outcome in self.outcomes for note in list_notes(outcome))
        return list(dict.fromkeys(note.say() for note in notes))

    @property
    def missed(self) -> int:
        """The number of cells that were never reached."""
        return sum(pair.missed for pair in self.pairs)

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        return say_verdict(self.outcomes, len(self.failures) + self.more)

    @property
    def summary(self) -> str:
        """Words for the amount that was run."""
        if not self.pairs:
            return "no outcome of a check: programs from files"
        return say_amount(self.outcomes)


def make_report(
    material: Material, stage: Play | None, bounds: Bounds | None = None
) -> ReportView:
    """stage: where programs are played again; None to show what was recorded."""
    listed = material.saved[:MOST_LISTED]
    failures = [
        make_failure(
            number, saved, stage if number <= MOST_PLAYED else None, bounds or Bounds()
        )
        for number, saved in enumerate(listed, 1)
    ]
    more = len(material.saved) - len(listed)
    return ReportView(material.outcomes, failures, material.broken, more)


def make_failure(
    number: int, saved: Saved, stage: Play | None, bounds: Bounds
) -> FailureView:
    played = stage.play(saved, bounds) if stage else Played("recorded", ())
    return FailureView(number, saved, played)
