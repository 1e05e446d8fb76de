"""Failures on disk: failures/<signature>/<digest>.json, one shrunk program each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any

from lockstep.harness.core.document import write_whole
from lockstep.harness.programs.program import Divergence, Program


@dataclass(frozen=True)
class Failure:
    """A program that diverges, and its file.

    Attributes:
        likely: the signature of another failure that is likely the same bug; see
            `harness.execution.cluster`.
    """

    program: Program
    divergence: Divergence
    backend: str
    signature: str
    path: Path
    likely: str | None = None

    @property
    def why_likely(self) -> str | None:
        """The line of a report about `likely`."""
        if self.likely is None:
            return None
        return f"likely one bug with {self.likely}: the same steps lead to both"


def save(
    folder: Path,
    program: Program,
    divergence: Divergence,
    backend: str,
    environment: Mapping[str, Any],
    found: Mapping[str, Any],
) -> Failure:
    """Writes the file of a failure.

    Args:
        folder: of all failures.
        program: diverges, as `divergence` says.
        divergence: the first one of the program.
        backend: by the name that the user gave.
        environment: for `meta`: versions, device and platform, see `get_environment`.
        found: for `meta`: how it was found (front, seed, number of the slice).
    """
    signature = divergence.get_signature(program)
    path = folder / signature / f"{program.digest()}-{slug(backend)}.json"
    meta = {
        "signature": signature,
        "backend": backend,
        **environment,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **found,
        "step": divergence.step,
        "what": divergence.message,
        "expected": divergence.expected,
        "got": divergence.got,
        "replay": get_replay_line(path, backend),
    }
    write(path, replace(program, meta=meta))
    return Failure(program, divergence, backend, signature, path)


def write(path: Path, program: Program) -> None:
    document = program.to_json()
    lines = [f' "{name}": {json.dumps(document[name])}' for name in document]
    write_whole(path, "{" + ",\n".join(lines).removeprefix(" ") + "}\n")


def slug(backend: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in backend)


def get_replay_line(path: Path, backend: str) -> str:
    """The command that runs a failure again."""
    return f"lockstep replay {quote(str(path))} --backend {quote(backend)}"
