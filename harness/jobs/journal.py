"""What an exploration has done, on disk, so that another run can go on from there.

A file of lines: what is explored, then the counts of each part that is over. A line that
was cut off, because the process ended in the middle of it, is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.failures import slug

FORMAT = "lockstep-explored/1"
FOLDER = "explored"
MAX_BYTES = 256 << 20

COUNT = {"type": "integer", "minimum": 0}
CELL = {
    "type": "array",
    "prefixItems": [{"type": "string"}, {"type": "string"}, COUNT],
    "minItems": 3,
    "maxItems": 3,
}
COUNTS: Mapping[str, Any] = {
    **dict.fromkeys(("programs", "steps", "skipped", "covered", "avoided"), COUNT),
    "margin": {"type": "number", "minimum": 0},
    "signatures": {"type": "object", "additionalProperties": COUNT},
    "coverage": {"type": "array", "items": CELL},
    "digest": {"type": "string"},
}
"""What is kept of a part; see `harness.jobs.outcome.Pair.add`."""

PART = {
    "type": "object",
    "properties": {
        "part": COUNT,
        "counts": {"type": "object", "properties": COUNTS, "required": list(COUNTS)},
    },
    "required": ["part", "counts"],
}
CHECKER = jsonschema.Draft202012Validator(PART)


class Journal:
    """The journal of one backend and kind.

    about: what is explored: equal for two runs if the one can go on from the other.
    parts: how many there are.
    """

    def __init__(
        self, folder: Path, name: str, about: Mapping[str, Any], parts: int
    ) -> None:
        self.path = folder / FOLDER / f"{slug(name)}.journal"
        self.header = {"format": FORMAT, **about}
        self.parts = parts

    def begin(self) -> None:
        """A new file, in the place of an older one."""
        self.write(json.dumps(self.header) + "\n", "w")

    def add(self, part: int, counts: Mapping[str, Any]) -> None:
        """A part is over."""
        kept = {name: counts[name] for name in COUNTS}
        self.write(json.dumps({"part": part, "counts": kept}) + "\n", "a")

    def write(self, text: str, mode: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode) as file:
                file.write(text)
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be written ({error.strerror}); choose another"
                " folder with --failures"
            ) from None

    def load(self) -> dict[int, dict[str, Any]]:
        """Part → its counts, of all that are over; none if there is no such file. Raises
        UsageError if it is about something else."""
        try:
            if self.path.stat().st_size > MAX_BYTES:
                raise UsageError(f"{self.path}: larger than {MAX_BYTES >> 20} MiB")
            lines = self.path.read_text().split("\n")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{self.path}: cannot be read ({error})") from None
        is_cut = bool(lines.pop())
        if not lines or self.parse(lines[0], 1) != self.header:
            raise UsageError(
                f"{self.path}: is about something else (other code, another version of a"
                " package, other operations); start anew without --resume"
            )
        parts = dict(self.iterate(lines[1:]))
        if is_cut:  # what comes next must not be added to half a line
            self.write("".join(f"{line}\n" for line in lines), "w")
        return parts

    def iterate(self, lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(lines, 2):
            entry = self.parse(line, number)
            error = next(CHECKER.iter_errors(entry), None)
            if error is not None or entry["part"] >= self.parts:
                why = error.message if error else "there is no such part"
                raise UsageError(f"{self.path}:{number}: {why}; start without --resume")
            yield entry["part"], entry["counts"]

    def parse(self, line: str, number: int) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{self.path}:{number}: no JSON ({error}); start without --resume"
            ) from None
