"""Some programs of a set on a backend, as a worker runs them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockstep.harness.programs.program import Program, parse_program, why_too_large
from lockstep.harness.programs.supported import is_known, why_unsupported
from lockstep.harness.programs.walk import breaks_usage
from lockstep.harness.workers.random_slice import Shard

WITHOUT_EFFECT = ("dtype", "heads", "key_dim", "value_dim", "conv_width", "step")
"""Fields of a config on which no answer depends."""


class Batch(Shard):
    """Programs that were drawn elsewhere.

    undeclared: why → programs that the backend does not declare. avoided: those that lead
    to what its ledger describes. Neither run. place: how many programs are over.
    """

    def check(self) -> dict[str, Any]:
        self.undeclared: dict[str, int] = {}
        self.avoided = self.place = 0
        for document in self.task["programs"]:
            program = self.adapt(parse_program(document, "program"))
            why = self.why_left_out(program)
            if why is not None:
                self.undeclared[why] = self.undeclared.get(why, 0) + 1
            elif self.avoid and is_known(program, self.avoid):
                self.avoided += 1
            else:
                self.count(program)
            self.place += 1
            # If the backend ends the process, it is known how far it came.
            self.worker.emit({"event": "progress", **self.get_counts()})
        return self.get_result()

    def adapt(self, program: Program) -> Program:
        """The same with sizes that the backend declares, where they change no answer."""
        own = self.backend.contracts.get(program.contract, {}).get(program.kind)
        if own is None or program.contract == "prefix":  # bytes, and limits of bytes
            return program
        declared = {**own.config, "dtype": self.backend.dtypes}
        config = dict(program.config)
        for name in WITHOUT_EFFECT:
            values = declared.get(name)
            if values and name in config and config[name] not in values:
                config[name] = values[0]
        adapted = replace(program, config=config)
        return program if why_too_large(adapted) else adapted

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
        more["place"] = self.place
        return super().get_counts() | more
