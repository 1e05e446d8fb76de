"""The job: tries releases one after the other until the change is found."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.harness.jobs.bisect.scratch import Runner
from lockstep.harness.jobs.bisect.search import (
    AGREES,
    Change,
    Untestable,
    choose_next,
    find_change,
)
from lockstep.harness.jobs.bisect.sources import Source
from lockstep.harness.jobs.replay import AGREEING
from lockstep.harness.programs.program import Program


@dataclass(frozen=True)
class Verdict:
    """The result of a release.

    Attributes:
        shown: AGREES, the signature of a divergence, or None if it cannot be tested.
        words: a description, or why the release cannot be tested.
    """

    shown: str | None
    words: str
    seconds: float = 0.0


@dataclass
class Bisection:
    """A search, and what it has learned so far.

    Attributes:
        program: runs in each release that is tried.
        options: of `lockstep replay`.
        limit: seconds that an install, a build or a replay may take.
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
        """0 if one release is named, else 2."""
        change = self.change
        return 0 if change is not None and change.is_exact else 2

    def run(self, folder: Path) -> None:
        """Tries releases until the search is over. folder: of files for it alone."""
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
        shown = {**agrees, "FAILED": replayed.get("signature")}.get(replayed["status"])
        return shown, replayed["words"].replace(f"{runner.environment}/", "")
