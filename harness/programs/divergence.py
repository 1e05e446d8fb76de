"""The first step where a backend and the reference differ."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lockstep.harness.contracts.types import Answer
from lockstep.harness.programs.program import Program

ERRORS = frozenset({"malformed", "crash", "hang", "missing"})
"""Values of `what` for a backend that is not wrong about a cache, but does not answer."""


@dataclass(frozen=True)
class Divergence:
    """The first step where a backend and the reference differ.

    Attributes:
        what: contents, mask, offset, size, result, error, attention, alias, malformed,
            crash, hang, or missing (a part of the backend that is not written yet).
        message: how they differ, in a sentence.
        tokens: the tags that the sentence is about.
    """

    what: str
    step: int
    operation: str
    message: str
    expected: Answer | None = None
    got: Answer | None = None
    tokens: tuple[int, ...] = ()

    @property
    def is_error(self) -> bool:
        return self.what in ERRORS

    def get_signature(self, program: Program) -> str:
        """The same for all divergences that are counted as one bug of a backend."""
        return f"{program.contract}-{program.kind}-{self.operation}-{self.what}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
