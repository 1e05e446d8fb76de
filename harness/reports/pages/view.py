"""What is shown of failures: the same for the page, the summary and the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.harness.core.printable import clean
from lockstep.harness.execution.recording.picture import Bounds, Step
from lockstep.harness.jobs.failures import get_replay_line
from lockstep.harness.programs.explain import describe_config
from lockstep.harness.reports.pages.gather import Material, Saved
from lockstep.harness.reports.pages.outcomes import OutcomeSummary, PairSummary
from lockstep.harness.reports.pages.play import Played, Stage

MOST_PLAYED = 40
"""Failures that are shown step by step; of others, there is the sentence."""

MOST_LISTED = 400

MOST_PROGRAM = 16_000
"""Characters of a program that is shown."""

MOST_SENTENCE = 600


@dataclass(frozen=True)
class FailureView:
    """One failure.

    number: from 1. status: "diverges", "agrees" (now), "crash", "hang", or "recorded" if
    no backend took part. note: why, or what else there is to know. message: the sentence
    that says what is wrong. step: the one that diverges.
    """

    number: int
    saved: Saved
    status: str
    what: str
    message: str
    step: int | None
    notes: Sequence[str] = ()
    stories: Sequence[str] = ()
    steps: Sequence[Step] = ()
    backend: str | None = None
    snippet: str | None = None

    @property
    def name(self) -> str:
        """The backend that the failure is about."""
        return self.saved.backend or self.backend or "no backend"

    @property
    def replay(self) -> str:
        """The line that runs it again; of a file in a zip, all of that."""
        zipped, is_in_zip, _ = self.saved.path.partition(".zip!")
        path = Path(f"{zipped}.zip" if is_in_zip else self.saved.path)
        return get_replay_line(path, self.backend or self.saved.backend or "NAME")

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
    def missed(self) -> int:
        """Cells that were never reached."""
        return sum(pair.missed for pair in self.pairs)

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        found = len(self.failures) + self.more
        if found:
            return f"{found} failure" + ("" if found == 1 else "s")
        pairs = self.pairs
        if any(pair.verdict == "unfinished" for pair in pairs):
            return "unfinished"
        failed = any(outcome.exit_status or outcome.dead for outcome in self.outcomes)
        if pairs and (failed or any(pair.verdict != "agrees" for pair in pairs)):
            return "no failure, but not all agree"
        return "all agree" if any(pair.programs for pair in pairs) else "nothing checked"

    @property
    def summary(self) -> str:
        """How much was run."""
        pairs = self.pairs
        if not pairs:
            return "no outcome of a check: programs from files"
        programs, steps = (
            sum(getattr(pair, name) for pair in pairs) for name in ("programs", "steps")
        )
        seconds = sum(outcome.seconds for outcome in self.outcomes)
        seeds = list(dict.fromkeys(outcome.seed for outcome in self.outcomes))[:8]
        word = "seed" if len(seeds) == 1 else "seeds"
        text = f"{programs:,} programs, {steps:,} steps in {seconds:,.0f} s"
        text += f", {word} {', '.join(map(str, seeds))}"
        if not all(outcome.complete for outcome in self.outcomes):
            text += "; stopped before the end"
        return text


def make_report(
    material: Material, stage: Stage | None, bounds: Bounds | None = None
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
    number: int, saved: Saved, stage: Stage | None, bounds: Bounds
) -> FailureView:
    """The view of one failure."""
    recorded = FailureView(
        number,
        saved,
        "recorded",
        saved.what or "program",
        clean(saved.message or "its file does not say how it failed", MOST_SENTENCE),
        saved.step,
    )
    if stage is None:
        return recorded
    return add_played(recorded, stage.play(saved, bounds))


def add_played(view: FailureView, played: Played) -> FailureView:
    """The view with what was seen when the program ran again."""
    view = replace(
        view,
        status=played.status,
        notes=played.notes,
        steps=played.steps,
        backend=played.backend,
        snippet=played.snippet,
    )
    divergence = played.divergence
    if divergence is None:
        return view
    return replace(
        view,
        what=divergence.what,
        message=clean(divergence.message, MOST_SENTENCE),
        step=divergence.step,
        stories=played.stories,
    )
