"""The job: tries releases one after the other until the change is found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from msgspec import ValidationError, convert

from lockstep.harness.core.document import parse_json, read_text
from lockstep.harness.core.errors import UsageError, format_exit
from lockstep.harness.jobs.bisect.scratch import Runner, Scratch
from lockstep.harness.jobs.bisect.search import (
    AGREES,
    Change,
    Untestable,
    Verdict,
    choose_next,
    estimate_left,
    find_change,
)
from lockstep.harness.jobs.replay import AGREEING, Replayed, ReplayedDocument
from lockstep.harness.jobs.settings import (
    Settings,
)
from lockstep.harness.programs.program import Program


class Source(Protocol):
    """Releases or commits, which can be made ready one at a time."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def is_alone(self) -> bool: ...

    @property
    def workplace(self) -> Path | None: ...

    def prepare(self, number: int, runner: Runner) -> Scratch: ...

    def get_variables(self, scratch: Scratch) -> dict[str, str]: ...

    def describe(self, number: int) -> list[str]: ...


Sort = Literal["broke", "mended", "changed"]


@dataclass
class Bisection:
    """A search, and what it has learned so far.

    Attributes:
        program: runs in each release that is tried.
        backend: by the name that the user gave.
        verdicts: number of a release → what it came to.
        trying: the number of the release that is tried now.
        left_out: releases that the backend is not tested with.
        watch: is called several times a second.
    """

    source: Source
    program: Program
    backend: str
    settings: Settings
    logs: Path
    limit: float
    left_out: int = 0
    watch: Callable[[Bisection], None] = lambda work: None
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    trying: int | None = None
    is_over: bool = False
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    @property
    def names(self) -> Sequence[str]:
        return self.source.names

    @property
    def wanted(self) -> str | None:
        """The signature that the file names."""
        said = self.program.meta.get("signature")
        return said if isinstance(said, str) else None

    @property
    def shown(self) -> dict[int, str | None]:
        return {number: verdict.shown for number, verdict in self.verdicts.items()}

    @property
    def change(self) -> Change | None:
        return find_change(self.shown)

    @property
    def sort(self) -> Sort | None:
        """Whether the change broke or mended something; None if there is none."""
        change = self.change
        if change is None:
            return None
        if self.verdicts[change.before].shown == AGREES:
            return "broke"
        return "mended" if self.verdicts[change.after].shown == AGREES else "changed"

    @property
    def lacks_packages(self) -> bool:
        """Whether a release could perhaps be tested with what it requires."""
        return self.source.is_alone and None in self.shown.values()

    def count_left(self) -> int:
        return estimate_left(len(self.names), self.shown)

    def get_exit_status(self) -> int:
        """0 if one release is named, else 2."""
        change = self.change
        return 0 if change is not None and change.is_exact else 2

    def run(self, folder: Path) -> None:
        """Tries releases until the search is over. folder: of files for it alone."""
        runner = Runner(self.logs, self.limit, lambda: self.watch(self))
        try:
            while (number := choose_next(len(self.names), self.shown)) is not None:
                self.trying = number
                self.watch(self)
                began = time.monotonic()
                shown, words = self.test(number, runner, folder)
                seconds = time.monotonic() - began
                self.verdicts[number] = Verdict(shown, words, seconds)
            self.is_over = True
        finally:
            self.trying = None
            self.seconds = time.monotonic() - self.started

    def test(self, number: int, runner: Runner, folder: Path) -> tuple[str | None, str]:
        """What a release shows, and why."""
        try:
            scratch = self.source.prepare(number, runner)
            replayed = self.replay(scratch, runner, folder)
        except Untestable as why:
            return None, str(why)
        agrees = dict.fromkeys(AGREEING, AGREES)
        shown = {**agrees, "FAILED": replayed.signature}.get(replayed.status)
        return shown, replayed.words.replace(f"{scratch.packages}/", "")

    def replay(self, scratch: Scratch, runner: Runner, folder: Path) -> Replayed:
        """Runs the program in a scratch environment.

        Raises:
            Untestable: it did not come to a result.
        """
        file, out = folder / "program.json", folder / "replayed.json"
        file.write_text(json.dumps(self.program.to_json()))
        name = "replay"
        own = [scratch.python, "-P", "-m", "lockstep.harness"]
        options = self.list_options(folder)
        status = runner.run(
            name,
            [*own, "replay", str(file), *options],
            self.source.get_variables(scratch),
            self.source.workplace,
            out,
        )
        try:
            document = convert(parse_json(read_text(out), name), type=ReplayedDocument)
            (replayed,) = document.replayed
        except (UsageError, ValidationError, ValueError):
            words = runner.get_last_words(name)
            raise Untestable(f"{name}: {format_exit(status)}: {words}") from None
        return replayed

    def list_options(self, folder: Path) -> list[str]:
        """Those of `lockstep replay`."""
        settings = self.settings
        options = ["--backend", self.backend, "--json"]
        options += ["--failures", str(folder / "runs")]
        options += ["--step-time", f"{settings.step_seconds:g}"]
        options += ["--start-time", f"{settings.start_seconds:g}"]
        options += ["--strict"] * settings.strict
        return [*options, *["--unsupported"] * settings.unsupported]
