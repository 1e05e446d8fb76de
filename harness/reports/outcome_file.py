"""outcome.json: what a check has counted and found, written and read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema

from lockstep.harness.core.document import write_whole
from lockstep.harness.core.errors import UsageError, shorten
from lockstep.harness.jobs.outcome import Failure, Outcome, Pair
from lockstep.harness.programs.files import OUTCOME
from lockstep.harness.reports.model import OutcomeSummary, PairSummary, get_fields

FORMAT = "lockstep-outcome/1"

# --- written ----------------------------------------------------------------------------


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Everything a check has counted and found."""
    return {
        "format": FORMAT,
        "seed": outcome.settings.seed,
        "front": outcome.settings.generator,
        "seconds": round(outcome.seconds, 2),
        "complete": not outcome.is_cut,
        "exit_status": outcome.get_exit_status(),
        **get_fields(outcome, "versions", "unavailable", "dead"),
        "pairs": [describe_pair(pair) for pair in outcome.pairs],
    }


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Leaves the outcome beside the failures, for `lockstep report`."""
    try:
        write_whole(folder / OUTCOME, json.dumps(to_json(outcome), indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"{folder / OUTCOME}: cannot be written: {error}") from None


def describe_pair(pair: Pair) -> dict[str, Any]:
    return {
        **get_fields(pair, "backend", "contract", "kind", "wanted", "programs", "steps"),
        "skipped": pair.skipped,
        "mean_length": round(pair.steps / pair.programs, 2) if pair.programs else None,
        "margins": pair.margins,
        "digest": get_digest(pair),
        "coverage": {
            f"{state} × {operation}": times
            for (state, operation), times in sorted(pair.coverage.items())
        },
        "cells": {"reachable": len(pair.cells), "empty": pair.group_empty_cells()},
        "known_divergences": pair.known,
        **get_fields(pair, "outdated", "errors", "missing"),
        "undeclared": pair.list_undeclared(),
        "unchecked": list(pair.unchecked),
        "failures": [describe_failure(failure) for failure in pair.failures],
    }


def describe_failure(failure: Failure) -> dict[str, Any]:
    return {
        "signature": failure.signature,
        "path": str(failure.path),
        "operations": len(failure.program.ops),
        "likely_one_with": failure.likely,
        "why_likely": failure.why_likely,
        "divergence": failure.divergence.to_json(),
        "program": failure.program.to_json(),
    }


def get_digest(pair: Pair) -> str:
    """A digest of all programs that were run, byte for byte, in the order of shards: the
    same for the same seed, however many workers there were."""
    digest = hashlib.sha256()
    for _, part in sorted(pair.digests.items()):
        digest.update(part.encode())
    return digest.hexdigest()


# --- read with suspicion ----------------------------------------------------------------

MOST_PAIRS = 500

COUNT = {"type": "integer", "minimum": 0, "maximum": 1 << 53}
NUMBER = {"type": "number", "minimum": 0}
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
NAMED = {"type": "object", "additionalProperties": TEXT}


def make_schema(
    required: Mapping[str, Any], optional: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The schema of an object."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


DIVERGENCE = make_schema(
    {"what": TEXT, "step": COUNT, "operation": TEXT, "message": TEXT}
)
FAILURE = make_schema(
    {
        "signature": TEXT,
        "path": TEXT,
        "divergence": DIVERGENCE,
        "program": {"type": "object"},
    },
    {"why_likely": {"type": ["string", "null"]}},
)
CELLS = make_schema(
    {"reachable": COUNT, "empty": {"type": "object", "additionalProperties": TEXTS}}
)
PAIR = make_schema(
    {
        "backend": TEXT,
        "contract": TEXT,
        "kind": TEXT,
        "programs": COUNT,
        "steps": COUNT,
        "failures": {"type": "array", "items": FAILURE},
    },
    {
        "wanted": COUNT,
        "margins": {"type": "object", "additionalProperties": NUMBER},
        "known_divergences": COUNT,
        "cells": CELLS,
        "outdated": TEXTS,
        "errors": TEXTS,
        "missing": NAMED,
        "unchecked": TEXTS,
    },
)
SCHEMA = make_schema(
    {
        "format": {"const": FORMAT},
        "seed": {"type": "integer"},
        "seconds": NUMBER,
        "complete": {"type": "boolean"},
        "pairs": {"type": "array", "maxItems": MOST_PAIRS, "items": PAIR},
    },
    {
        "front": TEXT,
        "exit_status": COUNT,
        "versions": NAMED,
        "unavailable": NAMED,
        "dead": NAMED,
    },
)


def is_outcome(document: Any) -> bool:
    return isinstance(document, Mapping) and document.get("format") == FORMAT


def read_outcome(document: Any, where: str) -> OutcomeSummary:
    """Reads the outcome in parsed JSON. Raises UsageError with the place of an error."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    error = next(iter(validator.iter_errors(document)), None)
    if error is not None:
        place = "".join(f"[{part!r}]" for part in error.absolute_path)
        words = shorten(place + " " + error.message)
        raise UsageError(f"{where}: is not the outcome of a check: {words}")
    names = ("unavailable", "dead", "versions", "exit_status")
    return OutcomeSummary(
        [read_pair(pair) for pair in document["pairs"]],
        document["seed"],
        document["seconds"],
        document["complete"],
        place=where,
        **{name: document[name] for name in names if name in document},
    )


COPIED = (
    "backend", "contract", "kind", "programs", "steps", "wanted", "margins", "errors",
    "outdated", "missing", "unchecked",
)  # fmt: skip
"""Fields of a pair that have the same name in the file."""


def read_pair(pair: Mapping[str, Any]) -> PairSummary:
    cells = pair.get("cells", {"reachable": 0, "empty": {}})
    return PairSummary(
        whats=[failure["divergence"]["what"] for failure in pair["failures"]],
        known=pair.get("known_divergences", 0),
        reachable=cells["reachable"],
        empty=cells["empty"],
        **{name: pair[name] for name in COPIED if name in pair},
    )
