"""Some programs of a set on a backend, as a worker runs them."""

from __future__ import annotations

from typing import Any

from harness.program import Program, parse_program
from harness.run import breaks_usage
from harness.shard import Shard
from harness.supported import is_known, why_unsupported


class Batch(Shard):
    """Programs that were drawn elsewhere.

    undeclared: why → programs that the backend does not declare. avoided: those that lead
    to what its ledger describes. Neither run.
    """

    progress_seconds = 0.0  # if the backend dies, it is known how far it came

    def check(self) -> dict[str, Any]:
        self.undeclared: dict[str, int] = {}
        self.avoided = 0
        for document in self.task["programs"]:
            program = parse_program(document, "program")
            why = self.why_left_out(program)
            if why is not None:
                self.undeclared[why] = self.undeclared.get(why, 0) + 1
            elif self.avoid and is_known(program, self.avoid):
                self.avoided += 1
            else:
                self.count(program)
        return self.get_result()

    def why_left_out(self, program: Program) -> str | None:
        """Why the backend cannot be asked to run a program, if it cannot."""
        why = why_unsupported(program, self.backend)
        if why is None:
            own = self.backend.contracts[program.contract][program.kind]
            if not own.refuses and breaks_usage(program):
                return f"{self.backend.name} does not declare to refuse wrong calls"
        return why

    def get_counts(self) -> dict[str, Any]:
        more = {"undeclared": self.undeclared, "avoided": self.avoided}
        return super().get_counts() | more
