"""One share of the programs for one kind of one backend, as a worker runs it."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.backend import Backend
from harness.fronts import FRONTS
from harness.fronts.draw import Drawer
from harness.ledger import load_ledger
from harness.program import Program
from harness.run import Coverage, Divergence, run

if TYPE_CHECKING:
    from harness.worker import Worker

PROGRESS_SECONDS = 0.2
SHRINK_SECONDS = 10.0


class Shard:
    """One share of the programs for one kind of one backend."""

    def __init__(self, worker: Worker, backend: Backend, task: Mapping[str, Any]) -> None:
        self.worker, self.backend, self.task = worker, backend, task
        self.coverage: Coverage = Counter()
        self.signatures: Counter[str] = Counter()
        self.known = set(task["known"])
        self.digest = hashlib.sha256()
        self.programs = self.steps = self.skipped = 0
        self.margin = 0.0
        self.reported = 0.0
        self.started = time.monotonic()

    def check(self) -> dict[str, Any]:
        """All of its programs; what there is to count."""
        self.generate(self.make_drawer())
        return self.get_counts() | {
            "coverage": [[*cell, times] for cell, times in sorted(self.coverage.items())],
            "digest": self.digest.hexdigest(),
            "seconds": self.get_seconds(),
        }

    def make_drawer(self) -> Drawer:
        task = self.task
        kinds = self.backend.contracts[task["contract"]]
        avoid = load_ledger(self.backend.ledger, self.backend.name)
        return Drawer(
            task["contract"],
            task["kind"],
            kinds[task["kind"]],
            self.backend.dtypes,
            avoid,
        )

    def generate(self, drawer: Drawer) -> None:
        """Hands its programs to `consume`."""
        task = self.task
        FRONTS[task["front"]](task["programs"], get_seed(task), drawer.draw, self.consume)

    def consume(self, program: Program) -> None:
        """Runs one program; shrinks and reports what is new in it."""
        worker, backend = self.worker, self.backend
        self.digest.update(worker.record.begin(program, worker.asked))
        result = run(program, backend, coverage=self.coverage, on_step=worker.record.step)
        self.programs += 1
        self.steps += result.steps
        self.skipped += result.skipped
        self.margin = max(self.margin, result.margin)
        if result.divergence is not None:
            self.report(program, result.divergence)
        if time.monotonic() - self.reported > PROGRESS_SECONDS:
            self.reported = time.monotonic()
            worker.emit({"event": "progress", **self.get_counts()})

    def report(self, program: Program, divergence: Divergence) -> None:
        signature = divergence.get_signature(program)
        self.signatures[signature] += 1
        if signature in self.known:
            return
        self.known.add(signature)
        self.emit_found(program, divergence)
        small = self.worker.shrink(program, divergence, self.backend, SHRINK_SECONDS)
        self.emit_found(*small)

    def emit_found(self, program: Program, divergence: Divergence) -> None:
        """First as it was found, for whoever stops the run now, then shrunk."""
        self.worker.emit(
            {
                "event": "found",
                "program": program.to_json(),
                "divergence": divergence.to_json(),
                "versions": dict(self.backend.versions),
                "found": {"programs": self.programs, "seconds": self.get_seconds()},
            }
        )

    def get_seconds(self) -> float:
        return round(time.monotonic() - self.started, 3)

    def get_counts(self) -> dict[str, Any]:
        return {
            "programs": self.programs,
            "steps": self.steps,
            "skipped": self.skipped,
            "margin": self.margin,
            "signatures": dict(self.signatures),
        }


def get_seed(task: Mapping[str, Any]) -> int:
    """A seed for the shard that does not depend on the backend or on the worker."""
    parts = [task[name] for name in ("seed", "contract", "kind", "shard")]
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big")
