"""A slice of the programs that a generator draws for one kind of one backend."""

from __future__ import annotations

import hashlib
import json

from lockstep.harness.execution.metamorphic.reference import derive_one
from lockstep.harness.programs.generate import GENERATORS
from lockstep.harness.programs.ledger import is_known, why_unsupported
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.messages import RandomTask
from lockstep.harness.workers.slice import Slice, make_drawer

DERIVED = 12
"""After every 12th program, one that is derived from it runs as well. The reference's
answers to both are compared elsewhere."""


class RandomSlice(Slice[RandomTask]):
    """Programs drawn from a seed."""

    def generate(self) -> None:
        task = self.task
        seed = get_seed(task.seed, task.contract, task.kind, task.number)
        draw = make_drawer(self.backend, task).draw
        GENERATORS[task.generator](task.programs, seed, draw, self.consume)

    def consume(self, program: Program) -> None:
        self.count(program)
        programs = self.counts.programs
        if programs % DERIVED == 0 and self.backend.execute is None:
            derived = derive_one(program, programs // DERIVED)
            if derived and self.is_allowed(derived):
                self.run(derived)

    def is_allowed(self, program: Program) -> bool:
        """Whether the backend declares it, and no entry of the ledger describes it."""
        if why_unsupported(program, self.backend):
            return False
        return not (self.avoid and is_known(program, self.avoid))


def get_seed(seed: int, contract: str, kind: str, number: int) -> int:
    """The seed of a slice, which does not depend on the backend or on the worker."""
    digest = hashlib.sha256(json.dumps([seed, contract, kind, number]).encode()).digest()
    return int.from_bytes(digest[:8], "big")
