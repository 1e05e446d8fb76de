"""The first step at which a backend and the reference differ."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lockstep.harness.contracts.types import Answer
from lockstep.harness.programs.program import Program

ERRORS = frozenset({"malformed", "crash", "hang", "missing"})
"""What differs if the backend is not wrong about a cache, but no longer answers."""


@dataclass(frozen=True)
class Divergence:
    """The first step at which a backend and the reference part.

    what: contents, mask, offset, size, result, error, attention, alias, malformed, crash,
    hang or missing (a part of the backend that nobody has written yet). message: how, in
    a sentence. tokens: the tags that the sentence is about.
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
        """Two divergences with one signature are taken for one bug of a backend."""
        return f"{program.contract}-{program.kind}-{self.operation}-{self.what}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Divergence:
        return cls(**{**document, "tokens": tuple(document["tokens"])})
