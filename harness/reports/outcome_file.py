"""Writes and reads outcome.json, the result of a check."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from typing import Any

from lockstep.harness.core.document import make_validator, write_whole
from lockstep.harness.core.errors import UsageError, shorten
from lockstep.harness.jobs.failures import Failure
from lockstep.harness.jobs.outcome import Outcome, Pair, Rerun
from lockstep.harness.programs.files import OUTCOME
from lockstep.harness.reports.model import (
    COPIED,
    OutcomeSummary,
    PairSummary,
    get_fields,
)

FORMAT = "lockstep-outcome/1"

# --- written ----------------------------------------------------------------------------


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Returns the document of a check's outcome."""
    return {
        "format": FORMAT,
        "seed": outcome.settings.seed,
        "front": outcome.settings.generator,
        "seconds": round(outcome.seconds, 2),
        "complete": outcome.is_complete,
        "exit_status": outcome.get_exit_status(),
        "require_complete": outcome.settings.require_complete,
        **get_fields(outcome, "versions", "unavailable", "dead"),
        "saved": asdict(outcome.saved),
        "pairs": [describe_pair(pair) for pair in outcome.pairs],
    }


class OutcomeFile:
    """The file of an outcome in the folder of failures, for `lockstep report`.

    The name of the file is outcome.json. If another check has written this file since the
    object was made, the name becomes, for example, outcome-1a2b3c4d.json. Therefore, make
    the object before the check begins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / OUTCOME
        self.before = get_version(self.path)

    def write(self, outcome: Outcome) -> Path:
        """Writes the file, and returns its path.

        Raises:
            OSError: it cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            if get_version(self.path) not in (self.before, None):
                name, _, ending = OUTCOME.partition(".")
                self.path = self.folder / f"{name}-{token_hex(4)}.{ending}"
            write_whole(self.path, json.dumps(to_json(outcome), indent=1) + "\n")
            self.before = get_version(self.path)
        return self.path


def get_version(path: Path) -> tuple[int, int] | None:
    """Returns the inode and the modification time; None if the file does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks the folder against other checks, if its file system has locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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
        "known_programs": pair.entered,
        "signatures": pair.count_signatures(),
        **get_fields(pair, "outdated", "errors", "missing", "crashes", "shortfall"),
        "undeclared": pair.list_undeclared(),
        "unchecked": list(pair.unchecked),
        "own_name": pair.own_name,
        **get_fields(pair, "programs_of", "parted"),
        "failures": [describe_failure(failure) for failure in pair.failures],
    }


def describe_failure(failure: Failure) -> dict[str, Any]:
    return {
        "signature": failure.signature,
        "path": str(failure.path),
        "operations": len(failure.program.ops),
        "flaky": None if failure.flaky is None else str(failure.flaky),
        "cause": failure.cause,
        "options": dict(failure.options),
        "unsaved": failure.unsaved,
        "answers": dict(failure.answers),
        "divergence": failure.divergence.to_json(),
        "program": failure.program.to_json(),
    }


def get_digest(pair: Pair) -> str:
    """Returns a digest of all programs that were run, in the order of shards.

    It depends on the seed, and not on the number of workers.
    """
    digest = hashlib.sha256()
    for _, shard in sorted(pair.digests.items()):
        digest.update(shard.encode())
    return digest.hexdigest()


# --- read and validated ----------------------------------------------------------------

MOST_PAIRS = 500

COUNT = {"type": "integer", "minimum": 0, "maximum": 1 << 53}
NUMBER = {"type": "number", "minimum": 0}
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
NAMED = {"type": "object", "additionalProperties": TEXT}
COUNTS = {"type": "object", "additionalProperties": COUNT}


def make_schema(
    required: Mapping[str, Any], optional: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Makes the JSON Schema of an object."""
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
    {
        "cause": COUNT,
        "flaky": {"type": ["string", "null"]},
        "options": {"type": "object"},
        "answers": NAMED,
    },
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
        "known_programs": COUNTS,
        "signatures": COUNTS,
        "cells": CELLS,
        "outdated": TEXTS,
        "errors": TEXTS,
        "missing": NAMED,
        "unchecked": TEXTS,
        "shortfall": {"type": ["string", "null"]},
        "own_name": TEXT,
        "programs_of": TEXT,
        "parted": TEXT,
    },
)
SAVED = make_schema(
    {
        "ran": COUNT,
        "agreeing": TEXTS,
        "absent": TEXTS,
        "broken": TEXTS,
        "left_out": COUNT,
    }
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
        "require_complete": {"type": "boolean"},
        "versions": NAMED,
        "unavailable": NAMED,
        "dead": NAMED,
        "saved": SAVED,
    },
)


def is_outcome(document: Any) -> bool:
    return isinstance(document, Mapping) and document.get("format") == FORMAT


def read_outcome(document: Any, where: str) -> OutcomeSummary:
    """Reads a parsed outcome.json. Raises UsageError that names an invalid value."""
    error = next(make_validator(SCHEMA).iter_errors(document), None)
    if error is not None:
        path = "".join(f"[{key!r}]" for key in error.absolute_path)
        message = shorten(f"{path} {error.message}")
        raise UsageError(f"{where}: is not the outcome of a check: {message}")
    names = ("unavailable", "dead", "versions", "exit_status", "require_complete")
    saved = document.get("saved", {})
    return OutcomeSummary(
        [read_pair(pair) for pair in document["pairs"]],
        document["seed"],
        document["seconds"],
        document["complete"],
        saved=Rerun(**{name: saved[name] for name in SAVED["required"] if name in saved}),
        path=where,
        **{name: document[name] for name in names if name in document},
    )


def read_pair(pair: Mapping[str, Any]) -> PairSummary:
    cells = pair.get("cells", {"reachable": 0, "empty": {}})
    return PairSummary(
        programs=pair["programs"],
        steps=pair["steps"],
        differences=[failure["divergence"]["what"] for failure in pair["failures"]],
        known=pair.get("known_divergences", 0),
        reachable=cells["reachable"],
        empty=cells["empty"],
        **{name: pair[name] for name in COPIED if name in pair},
    )
