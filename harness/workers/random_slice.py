"""One share of the programs for one kind of one backend, as a worker runs it."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.types import Cell
from lockstep.harness.core.errors import Unavailable
from lockstep.harness.execution.executor import Coverage, Result, run
from lockstep.harness.execution.metamorphic.check import derive_one
from lockstep.harness.execution.shrink import make_busy_clock
from lockstep.harness.programs.divergence import Divergence
from lockstep.harness.programs.generate import FRONTS
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.ledger import load_ledger
from lockstep.harness.programs.program import Program
from lockstep.harness.programs.supported import is_known, why_unsupported
from lockstep.harness.workers.runner import Runner

PROGRESS_SECONDS = 0.2
SHRINK_SECONDS = 10.0

HANGS = 2
"""After so many programs at which a driver hangs, the rest of a shard is left out."""

DERIVED = 12
"""After one program in so many, one that is derived from it runs too: what the reference
answers to both is held against each other elsewhere."""


class Shard:
    """One share of the programs for one kind of one backend."""

    def __init__(self, worker: Runner, backend: Backend, task: Mapping[str, Any]) -> None:
        self.worker, self.backend, self.task = worker, backend, task
        self.coverage: Coverage = Counter()
        self.told: set[Cell] = set()
        self.signatures: Counter[str] = Counter()
        self.known = set(task["known"])
        self.avoid = load_ledger(backend.ledger, backend.name)
        self.digest = hashlib.sha256()
        self.programs = self.steps = self.skipped = 0
        self.margin = 0.0
        self.missing: dict[str, str] = {}
        self.unfinished = 0
        self.hangs = 0
        self.reported = 0.0
        self.started = time.monotonic()

    def check(self) -> dict[str, Any]:
        """All of its programs; what there is to count."""
        self.generate(self.make_drawer())
        return self.get_result()

    def get_result(self) -> dict[str, Any]:
        """What there is to count, when all have run."""
        return self.get_counts() | {
            "coverage": [[*cell, times] for cell, times in sorted(self.coverage.items())],
            "digest": self.digest.hexdigest(),
        }

    def make_drawer(self) -> Drawer:
        task = self.task
        kinds = self.backend.contracts[task["contract"]]
        return Drawer(
            task["contract"],
            task["kind"],
            kinds[task["kind"]],
            self.backend.dtypes,
            self.avoid,
        )

    def generate(self, drawer: Drawer) -> None:
        """Hands its programs to `consume`."""
        task = self.task
        FRONTS[task["front"]](task["programs"], get_seed(task), drawer.draw, self.consume)

    def consume(self, program: Program) -> None:
        """Runs one program, and now and then one that is derived from it."""
        self.count(program)
        if self.programs % DERIVED == 0 and self.backend.execute is None:
            derived = derive_one(program, self.programs // DERIVED)
            if derived and self.is_allowed(derived):
                self.run(derived)

    def count(self, program: Program) -> None:
        """Runs one program, and counts it."""
        self.programs += 1
        result = self.run(program)
        divergence = result.divergence
        self.unfinished += divergence is not None and divergence.what == "missing"
        self.steps += result.steps
        self.skipped += result.skipped
        if time.monotonic() - self.reported > PROGRESS_SECONDS:
            self.reported = time.monotonic()
            fresh = [cell for cell in self.coverage if cell not in self.told]
            self.told.update(fresh)
            progress = {"event": "progress", "reached": fresh, **self.get_counts()}
            self.worker.emit(progress)

    def run(self, program: Program) -> Result:
        """Runs a program; shrinks and reports what is new in it. Raises Unavailable when
        a driver hangs time and again, each time for a second at least."""
        record = self.worker.record
        self.digest.update(record.begin(program, self.worker.asked))
        result = run(program, self.backend, coverage=self.coverage, on_step=record.step)
        self.margin = max(self.margin, result.margin)
        if result.divergence is not None:
            self.report(program, result.divergence)
            self.hangs += result.divergence.what == "hang"
            if self.hangs >= HANGS:
                raise Unavailable(
                    f"{result.divergence.message}; that was the second program, and the"
                    " rest is left out"
                )
        return result

    def is_allowed(self, program: Program) -> bool:
        """Whether the backend declares it, and no entry of the ledger describes it."""
        if why_unsupported(program, self.backend):
            return False
        return not (self.avoid and is_known(program, self.avoid))

    def report(self, program: Program, divergence: Divergence) -> None:
        """What is new in a program that diverges, and in those that diverge in another
        way while it is made shorter."""
        if divergence.what == "missing":  # there is nothing to shrink
            self.missing.setdefault(divergence.message, divergence.operation)
            return
        self.signatures[divergence.get_signature(program)] += 1
        waiting = [(program, divergence)]
        while waiting:
            program, divergence = waiting.pop(0)
            signature = divergence.get_signature(program)
            if signature in self.known or divergence.what == "missing":
                continue
            self.known.add(signature)
            self.emit_found(program, divergence)
            limits = SHRINK_SECONDS, self.avoid, make_busy_clock()
            small = self.worker.shrink(program, divergence, self.backend, *limits)
            self.emit_found(small.program, small.divergence)
            waiting += small.others.values()

    def emit_found(self, program: Program, divergence: Divergence) -> None:
        """First as it was found, for whoever stops the run now, then shrunk."""
        self.worker.emit(
            {
                "event": "found",
                "program": program.to_json(),
                "divergence": divergence.to_json(),
                "found": {"programs": self.programs, "seconds": self.get_seconds()},
            }
        )

    def get_seconds(self) -> float:
        return round(time.monotonic() - self.started, 3)

    def get_counts(self) -> dict[str, Any]:
        return {
            "programs": self.programs,
            "steps": self.steps,
            "seconds": self.get_seconds(),
            "skipped": self.skipped,
            "margin": self.margin,
            "signatures": dict(self.signatures),
            "missing": self.missing,
            "unfinished": self.unfinished,
        }


def get_seed(task: Mapping[str, Any]) -> int:
    """A seed for the shard that does not depend on the backend or on the worker."""
    parts = [task[name] for name in ("seed", "contract", "kind", "shard")]
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big")
