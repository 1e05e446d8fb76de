"""The outcome of a check, for machines."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from lockstep.harness.core.document import write_whole
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.failures import Failure
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.programs.files import OUTCOME


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Everything a check has counted and found."""
    return {
        "format": "lockstep-outcome/1",
        "seed": outcome.settings.seed,
        "front": outcome.settings.front,
        "seconds": round(outcome.seconds, 2),
        "complete": not outcome.is_cut,
        "exit_status": outcome.get_exit_status(),
        "versions": outcome.versions,
        "unavailable": outcome.unavailable,
        "dead": outcome.dead,
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
        "backend": pair.backend,
        "contract": pair.contract,
        "kind": pair.kind,
        "wanted": pair.wanted,
        "programs": pair.programs,
        "steps": pair.steps,
        "skipped": pair.skipped,
        "mean_length": round(pair.steps / pair.programs, 2) if pair.programs else None,
        "margin": pair.margin,
        "digest": get_digest(pair),
        "coverage": {
            f"{state} × {operation}": times
            for (state, operation), times in sorted(pair.coverage.items())
        },
        "cells": {"reachable": len(pair.cells), "empty": pair.group_empty_cells()},
        "known_divergences": pair.known,
        "outdated": pair.outdated,
        "errors": pair.errors,
        "missing": pair.missing,
        "undeclared": pair.list_undeclared(),
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
    """Of all programs that were run, byte for byte, in the order of shards: the same for
    the same seed, however many workers there were."""
    digest = hashlib.sha256()
    for _, part in sorted(pair.digests.items()):
        digest.update(part.encode())
    return digest.hexdigest()
