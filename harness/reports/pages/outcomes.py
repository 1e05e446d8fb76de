"""Outcomes of checks as files have them: read with suspicion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema

from lockstep.harness.core.document import shorten
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.divergence import ERRORS

FORMAT = "lockstep-outcome/1"

MOST_PAIRS = 500

COUNT = {"type": "integer", "minimum": 0, "maximum": 1 << 53}
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
NAMED = {"type": "object", "additionalProperties": TEXT}
PAIR = {
    "type": "object",
    "required": ["backend", "contract", "kind", "programs", "steps", "failures"],
    "properties": {
        "backend": TEXT,
        "contract": TEXT,
        "kind": TEXT,
        "wanted": COUNT,
        "programs": COUNT,
        "steps": COUNT,
        "margin": {"type": "number", "minimum": 0},
        "known_divergences": COUNT,
        "outdated": TEXTS,
        "errors": TEXTS,
        "missing": NAMED,
        "cells": {
            "type": "object",
            "required": ["reachable", "empty"],
            "properties": {
                "reachable": COUNT,
                "empty": {"type": "object", "additionalProperties": TEXTS},
            },
        },
        "failures": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["signature", "path", "divergence", "program"],
                "properties": {
                    "signature": TEXT,
                    "path": TEXT,
                    "why_likely": {"type": ["string", "null"]},
                    "divergence": {
                        "type": "object",
                        "required": ["what", "step", "operation", "message"],
                        "properties": {
                            "what": TEXT,
                            "step": COUNT,
                            "operation": TEXT,
                            "message": TEXT,
                        },
                    },
                    "program": {"type": "object"},
                },
            },
        },
    },
}
SCHEMA = {
    "type": "object",
    "required": ["format", "seed", "seconds", "complete", "pairs"],
    "properties": {
        "seed": {"type": "integer"},
        "front": TEXT,
        "seconds": {"type": "number", "minimum": 0},
        "exit_status": COUNT,
        "complete": {"type": "boolean"},
        "versions": NAMED,
        "unavailable": NAMED,
        "dead": NAMED,
        "pairs": {"type": "array", "maxItems": MOST_PAIRS, "items": PAIR},
    },
}


@dataclass(frozen=True)
class PairSummary:
    """One backend and one kind, as an outcome has it.

    empty: state → the operations that never found it. missing: what of the backend is not
    written yet → the operation that asked for it.
    """

    backend: str
    contract: str
    kind: str
    programs: int
    steps: int
    failures: Sequence[Mapping[str, Any]]
    wanted: int = 0
    margin: float = 0.0
    known: int = 0
    reachable: int = 0
    empty: Mapping[str, Sequence[str]] | None = None
    errors: Sequence[str] = ()
    outdated: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.backend} × {self.kind}"

    @property
    def missed(self) -> int:
        """Cells that were never reached."""
        return sum(map(len, (self.empty or {}).values()))

    @property
    def reached(self) -> int:
        return max(0, self.reachable - self.missed)

    @property
    def verdict(self) -> str:
        """ "diverges", "unfinished", "error", "cut" or "agrees"."""
        whats = [failure["divergence"]["what"] for failure in self.failures]
        if self.outdated or any(what not in ERRORS for what in whats):
            return "diverges"
        if self.missing:
            return "unfinished"
        if self.errors or whats:
            return "error"
        return "cut" if self.programs < self.wanted else "agrees"


@dataclass(frozen=True)
class OutcomeSummary:
    """What a check has come to. place: the file that says so. exit_status: of the check,
    0 if all agree."""

    place: str
    seed: int
    seconds: float
    complete: bool
    pairs: Sequence[PairSummary]
    unavailable: Mapping[str, str]
    dead: Mapping[str, str]
    versions: Mapping[str, str]
    exit_status: int = 0


def is_outcome(document: Any) -> bool:
    return isinstance(document, Mapping) and document.get("format") == FORMAT


def read_outcome(document: Any, where: str) -> OutcomeSummary:
    """The outcome in parsed JSON. Raises UsageError with the place of what is wrong."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    error = next(iter(validator.iter_errors(document)), None)
    if error is not None:
        place = "".join(f"[{part!r}]" for part in error.absolute_path)
        raise UsageError(
            f"{where}: is no outcome of a check: {shorten(place + ' ' + error.message)}"
        )
    return OutcomeSummary(
        where,
        document["seed"],
        document["seconds"],
        document["complete"],
        [read_pair(pair) for pair in document["pairs"]],
        document.get("unavailable", {}),
        document.get("dead", {}),
        document.get("versions", {}),
        document.get("exit_status", 0),
    )


def read_pair(pair: Mapping[str, Any]) -> PairSummary:
    cells = pair.get("cells", {"reachable": 0, "empty": {}})
    return PairSummary(
        pair["backend"],
        pair["contract"],
        pair["kind"],
        pair["programs"],
        pair["steps"],
        pair["failures"],
        pair.get("wanted", 0),
        pair.get("margin") or 0.0,
        pair.get("known_divergences", 0),
        cells["reachable"],
        cells["empty"],
        pair.get("errors", ()),
        pair.get("outdated", ()),
        pair.get("missing", {}),
    )
