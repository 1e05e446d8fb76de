"""Runs the job of `lockstep bisect`: searches for the release at which behaviour changes.

Releases or commits are numbered from 0, the oldest. The result of a release is AGREES,
the signature of a divergence, or None if it cannot be tested; such a release is skipped.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from lockstep.harness.jobs.bisect.scratch import Runner, Untestable
from lockstep.harness.jobs.bisect.sources import Source
from lockstep.harness.jobs.replay import AGREEING
from lockstep.harness.programs.program import Program

# --- which release to try next ----------------------------------------------------------


AGREES = "agrees"

Shown = Mapping[int, str | None]
"""Number of a tried release → its result."""


@dataclass(frozen=True)
class Change:
    """The releases between which behaviour changes.

    Attributes:
        before: the last release with the same result as the oldest testable release.
        after: the first release with the same result as the newest testable release.
    """

    before: int
    after: int

    @property
    def is_exact(self) -> bool:
        return self.after == self.before + 1


def choose_next(size: int, shown: Shown) -> int | None:
    """Returns the release to try next; None if the search is over.

    Both ends come first. If an end cannot be tested, the search moves inwards by halves
    until two releases differ, and then halves the range between them. A release that
    cannot be tested, or has a third result, divides the range into gaps. The largest gap
    is halved next, because the neighbours of a broken release are often broken, too.
    """
    for end in (size - 1, 0):
        if end not in shown:
            return end
    low, high = get_bounds(size, shown)
    tried = [low, *(n for n in range(low + 1, high) if n in shown), high]
    begin, end = max(pairwise(tried), key=lambda gap: gap[1] - gap[0])
    return (begin + end) // 2 if end - begin > 1 else None


def get_bounds(size: int, shown: Shown) -> tuple[int, int]:
    """Returns the bounds of the search, after both ends were tried."""
    change, testable = find_change(shown), list_testable(shown)
    if change is not None:
        return change.before, change.after
    if not testable:
        return 0, size - 1
    previous = max((n for n in shown if n < testable[0]), default=testable[0])
    if testable[0] - previous > 1:
        return previous, testable[0]
    return testable[-1], min((n for n in shown if n > testable[-1]), default=size - 1)


def find_change(shown: Shown) -> Change | None:
    """Returns the bounds of the change found so far; None if the oldest and the newest
    testable release have the same result."""
    testable = list_testable(shown)
    if not testable or shown[testable[0]] == shown[testable[-1]]:
        return None
    old, new = shown[testable[0]], shown[testable[-1]]
    after = next(n for n in testable if shown[n] == new)
    previous = max(n for n in testable if n < after and shown[n] == old)
    return Change(previous, after)


def list_testable(shown: Shown) -> list[int]:
    return sorted(n for n, signature in shown.items() if signature is not None)


# --- the job ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """The result of a release.

    Attributes:
        shown: AGREES, the signature of a divergence, or None if it cannot be tested.
        words: a description of the result, or the reason why the release cannot be
            tested.
    """

    shown: str | None
    words: str
    seconds: float = 0.0


@dataclass
class Bisection:
    """A search, and its results so far.

    Attributes:
        program: the program that runs in each tried release.
        options: the options of `lockstep replay`.
        limit: the time limit of an install, a build or a replay, in seconds.
        on_verdict: called with the number of each tried release.
        verdicts: number of a release → its result.
    """

    source: Source
    program: Program
    options: list[str]
    limit: float
    on_verdict: Callable[[Bisection, int], None]
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    is_over: bool = False

    @property
    def change(self) -> Change | None:
        return find_change(self.shown)

    @property
    def shown(self) -> dict[int, str | None]:
        return {number: verdict.shown for number, verdict in self.verdicts.items()}

    def get_exit_status(self) -> int:
        """Returns 0 if the search has found a single release, else 2."""
        change = self.change
        return 0 if change is not None and change.is_exact else 2

    def run(self, folder: Path) -> None:
        """Tries releases until the search is over. folder: an empty folder for files."""
        runner = Runner(folder, self.limit)
        while (number := choose_next(len(self.source.names), self.shown)) is not None:
            began = time.monotonic()
            try:
                shown, description = self.test(number, runner)
            except Untestable as reason:
                shown, description = None, str(reason)
            self.verdicts[number] = Verdict(shown, description, time.monotonic() - began)
            self.on_verdict(self, number)
        self.is_over = True

    def test(self, number: int, runner: Runner) -> tuple[str | None, str]:
        """Returns the result of a release, with a description. Raises Untestable."""
        variables = self.source.prepare(number, runner)
        file, out = runner.folder / "program.json", runner.folder / "replayed.json"
        file.write_text(json.dumps(self.program.to_json()))
        python = str(runner.environment / "bin" / "python")
        replay = [python, "-P", "-m", "lockstep.harness", "replay", str(file), "--json"]
        replay += ["--failures", str(runner.folder / "runs"), *self.options]
        command = f"{shlex.join(replay)} > {shlex.quote(str(out))} || true"
        runner.run("replay", command, variables, self.source.workplace)
        try:
            [replayed] = json.loads(out.read_text())["replayed"]
        except ValueError:  # the process has ended before
            raise Untestable(f"replay: {runner.get_last_words()}") from None
        agrees = dict.fromkeys(AGREEING, AGREES)
        agrees |= dict.fromkeys(("FAILED", "FLAKY"), replayed.get("signature"))
        shown = agrees.get(replayed["status"])
        return shown, replayed["words"].replace(f"{runner.environment}/", "")
