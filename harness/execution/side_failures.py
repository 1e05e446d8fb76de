"""The result of shrinking: the shortest program, and other failures met on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lockstep.harness.programs.program import Divergence, Program


@dataclass(frozen=True)
class Shrunk:
    """The result of shrinking a program.

    Attributes:
        program: the shortest one that fails in the way that was looked for.
        divergence: of that program.
        others: signature → a program that was tried and failed in that other way.
    """

    program: Program
    divergence: Divergence
    others: Mapping[str, tuple[Program, Divergence]] = field(default_factory=dict)


class SideFailures:
    """The shortest program for each other way to fail."""

    def __init__(self) -> None:
        self.shortest: dict[str, tuple[Program, Divergence]] = {}

    def add(self, program: Program, divergence: Divergence) -> None:
        signature = divergence.get_signature(program)
        program = replace(program, ops=program.ops[: divergence.step + 1])
        before = self.shortest.get(signature)
        if before is None or len(program.ops) < len(before[0].ops):
            self.shortest[signature] = program, divergence
