"""What the user chose, and what a check has come to so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.types import Cell
from lockstep.harness.jobs.failures import Failure
from lockstep.harness.workers.pool import Event

SHARD = 125
"""Programs in a shard. Many small shares keep all workers busy until the end."""


@dataclass(frozen=True)
class Profile:
    """How much is run. programs: for each backend and kind."""

    programs: int
    front: str = "hypothesis"


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(100),
    "ci": Profile(2000),
    "nightly": Profile(25_000),
}


@dataclass
class Pair:
    """One backend and one kind, and what came of it.

    missing: what of the backend is not written yet → the operation that asked for it.
    unfinished: programs that came upon it.
    surroundings: what its backend runs under, for `meta` of failures.
    share: see `Backend`.
    covered, avoided: where every program over a domain is run; see
    `harness.workers.exhaustive_slice.Part`.
    undeclared: of given programs, why → those that the backend cannot be asked to run.
    seconds: of one core. reached: cells, by shards that are not done, too.
    """

    backend: str
    contract: str
    kind: str
    declared: Kind
    surroundings: Mapping[str, Any] = field(default_factory=dict)
    share: int = 1
    wanted: int = 0
    programs: int = 0
    steps: int = 0
    skipped: int = 0
    margin: float = 0.0
    seconds: float = 0.0
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)
    reached: set[tuple[str, str]] = field(default_factory=set)
    signatures: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)
    running: dict[int, Event] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    unfinished: int = 0
    crashes: int = 0
    known: int = 0
    covered: int = 0
    avoided: int = 0
    undeclared: Counter[str] = field(default_factory=Counter)
    outdated: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.backend} × {self.kind}"

    @property
    def is_diverging(self) -> bool:
        found = any(not failure.divergence.is_error for failure in self.failures)
        return found or bool(self.outdated)

    @property
    def is_error(self) -> bool:
        broken = any(failure.divergence.is_error for failure in self.failures)
        return bool(self.errors or self.missing) or self.crashes > 0 or broken

    @property
    def is_unwritten(self) -> bool:
        """Whether so little of the backend is written that no step can be run."""
        return bool(self.missing) and not self.steps

    def get_progress(self) -> tuple[int, int]:
        """Programs and steps so far, those of unfinished shards included."""
        shards = self.running.values()
        return (
            self.programs + sum(shard["programs"] for shard in shards),
            self.steps + sum(shard["steps"] for shard in shards),
        )

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells that a complete run must reach."""
        return CONTRACTS[self.contract].list_cells(self.kind, self.declared)

    def count_reached(self) -> int:
        """How many of the cells were reached, by unfinished shards too."""
        return sum(map(self.has_reached, self.cells))

    def has_reached(self, cell: Cell) -> bool:
        return cell in self.coverage or cell in self.reached

    def get_seconds(self) -> float:
        """Of one core, those of unfinished shards included."""
        running: float = sum(shard["seconds"] for shard in self.running.values())
        return self.seconds + running

    def stop(self) -> None:
        """What unfinished shards have done is all that they do."""
        for counts in self.running.values():
            self.add({**counts, "coverage": []})
        self.running.clear()

    def list_undeclared(self) -> list[str]:
        """The operations of the contract that the backend does not declare."""
        every = CONTRACTS[self.contract].list_operations(self.kind)
        return [name for name in every if name not in self.declared.operations]

    def group_empty_cells(self) -> dict[str, list[str]]:
        """The cells that were not reached: state → the operations that never found it,
        or all of them."""
        empty: dict[str, list[str]] = {}
        for state, operation in self.cells:
            if not self.has_reached((state, operation)):
                empty.setdefault(state, []).append(operation)
        return empty

    def add(self, counts: Mapping[str, Any]) -> None:
        """A shard is done."""
        self.programs += counts["programs"]
        self.steps += counts["steps"]
        self.skipped += counts["skipped"]
        self.seconds += counts.get("seconds", 0.0)
        self.covered += counts.get("covered", 0)
        self.avoided += counts.get("avoided", 0)
        self.undeclared.update(counts.get("undeclared", {}))
        self.margin = max(self.margin, counts["margin"])
        self.signatures.update(counts["signatures"])
        self.missing.update(counts.get("missing", {}))
        self.unfinished += counts.get("unfinished", 0)
        for state, operation, times in counts["coverage"]:
            self.coverage[state, operation] += times


@dataclass(frozen=True)
class Settings:
    """What the user chose.

    backends: empty for all that are available here.
    strict: the messages of drivers are held against their schemas.
    part: (i, n) for every n-th shard from the i-th on, where processes share the work.
    """

    backends: Sequence[str] = ()
    kinds: Sequence[str] = ()
    programs: int = PROFILES["ci"].programs
    front: str = "hypothesis"
    seed: int = 0
    seconds: float | None = None
    jobs: int = 1
    failures: Path = Path("failures")
    step_seconds: float = 20.0
    strict: bool = False
    shard: int = SHARD
    part: tuple[int, int] = (0, 1)

    def list_shards(self) -> list[tuple[int, int]]:
        """(number, programs) of the shards of this part."""
        begins = enumerate(range(0, self.programs, self.shard))
        shards = [(n, min(self.shard, self.programs - begin)) for n, begin in begins]
        first, of = self.part
        return shards[first::of]


@dataclass
class Outcome:
    """What a campaign knows so far.

    unavailable: backend → why; dead: the same for those that ended or stood still when
    they were asked what they are. versions: package → version, of all backends.
    """

    settings: Settings
    pairs: list[Pair] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    is_cut: bool = False
    is_interrupted: bool = False

    @property
    def failures(self) -> list[Failure]:
        return [failure for pair in self.pairs for failure in pair.failures]

    def get_exit_status(self) -> int:
        """0 all agree, 1 a divergence, 2 something could not run, 130 Ctrl-C."""
        if any(pair.is_diverging for pair in self.pairs):
            return 1
        asked = set(self.settings.backends) & set(self.unavailable)
        if asked or self.dead or any(pair.is_error for pair in self.pairs):
            return 2
        if self.is_interrupted:
            return 130
        return 0 if any(pair.programs for pair in self.pairs) else 2
