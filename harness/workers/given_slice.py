"""Some programs of a set of vectors, on a backend."""

from __future__ import annotations

from dataclasses import replace

from lockstep.harness.programs.ledger import is_known, why_unsupported
from lockstep.harness.programs.program import (
    Program,
    breaks_usage,
    parse_program,
    why_too_large,
)
from lockstep.harness.workers.messages import GivenTask, tally
from lockstep.harness.workers.slice import Slice

WITHOUT_EFFECT = ("dtype", "heads", "key_dim", "value_dim", "conv_width", "step")
"""Fields of a config on which no answer depends."""


class GivenSlice(Slice[GivenTask]):
    """Programs that were drawn elsewhere, as far as the backend declares them."""

    def generate(self) -> None:
        for document in self.task.programs:
            program = self.adapt(parse_program(document, "program"))
            why = self.why_left_out(program)
            if why is not None:
                tally(self.counts.undeclared, why)
            elif self.avoid and is_known(program, self.avoid):
                self.counts.avoided += 1
            else:
                self.count(program)
            # If the backend ends the process, the job knows which programs are left.
            self.report_progress()

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
