"""Defines the settings of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.harness.backends.driver.client import START_SECONDS, STEP_SECONDS

GENERATOR = "hypothesis"
"""The field `front` of outcomes and failures: Hypothesis draws the programs."""

SLICE = 63
"""Programs in a slice. Many small slices keep all workers busy until the end."""


@dataclass(frozen=True)
class Profile:
    """The number of programs for each backend and kind.

    Attributes:
        programs: the maximum number of programs.
        least: a pair may end after this number of programs times the `depth` of its
            contract, see `Pair.is_explored`; None to run all programs.
    """

    programs: int
    least: int | None = None

    def __str__(self) -> str:
        most = f"{self.programs:,}"
        return most if self.least is None else f"{self.least:,} to {most}"


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(50),
    "ci": Profile(600, least=125),
    "nightly": Profile(14_000),
}
"""ci: with five seeds, the last of 131 planted mistakes was found after 104 programs of
its kind; in contracts of depth 3, after 149 programs (`ci/bench/find.py`, 27 November
2026, before programs had special numbers)."""


@dataclass(frozen=True)
class Settings:
    """The user's settings.

    Attributes:
        backends: the chosen backends; empty for all available backends.
        programs, least: see `Profile`.
        step_seconds, start_seconds: see `harness.backends.driver.client`.
        strict: validate the messages of drivers against their schemas.
        unsupported: also run registered backends with untested package versions.
        require_complete: set the exit status 2 if programs did not run or cells were not
            reached.
        slice: the number of programs in a slice.
        probe, allow_host, rate: see `Limits` of `harness.backends.driver.client`.
        trusted: the backends in the project's settings, which a program file may name.
    """

    backends: Sequence[str] = ()
    kinds: Sequence[str] = ()
    programs: int = PROFILES["ci"].programs
    least: int | None = None
    seed: int = 0
    seconds: float | None = None
    jobs: int = 1
    failures: Path = Path("failures")
    step_seconds: float = STEP_SECONDS
    start_seconds: float = START_SECONDS
    strict: bool = False
    unsupported: bool = False
    require_complete: bool = False
    slice: int = SLICE
    probe: Path | None = None
    allow_host: str | None = None
    rate: float | None = None
    trusted: Sequence[str] = ()

    def get_options(self) -> dict[str, Any]:
        """Returns the options of `failures.OPTIONS` that differ from their defaults."""
        options = {
            "strict": (self.strict, False),
            "step_time": (self.step_seconds, STEP_SECONDS),
            "start_time": (self.start_seconds, START_SECONDS),
            "probe": (str(self.probe) if self.probe else None, None),
            "allow_host": (self.allow_host, None),
            "rate": (self.rate, None),
        }
        return {name: value for name, (value, usual) in options.items() if value != usual}

    def list_slices(self) -> list[tuple[int, int]]:
        """Lists the slices: (number of the slice, number of its programs)."""
        begins = enumerate(range(0, self.programs, self.slice))
        return [(n, min(self.slice, self.programs - begin)) for n, begin in begins]
