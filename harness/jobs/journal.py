"""The finished slices of an exploration, on disk, so that another run can go on.

A file of lines: what is explored, then each slice that is over. A last line without an
end, because the process ended while it wrote it, does not count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert, structs

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.outcome import slug
from lockstep.harness.workers.messages import Natural, SliceDone, unfold

FORMAT = "lockstep-explored/1"
FOLDER = "explored"
MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class Entry:
    """A slice that is over."""

    part: Natural
    done: SliceDone


class Journal:
    """The journal of one backend and kind.

    Args:
        folder: of failures.
        name: of the file.
        about: what is explored: equal for two runs if one can continue the other.
        parts: how many slices there are.
    """

    def __init__(
        self, folder: Path, name: str, about: Mapping[str, Any], parts: int
    ) -> None:
        self.path = folder / FOLDER / f"{slug(name)}.journal"
        self.header = {"format": FORMAT, **about}
        self.parts = parts

    def begin(self) -> None:
        """Starts a new file, in the place of an older one."""
        self.write(json.dumps(self.header) + "\n", "w")

    def add(self, part: int, done: SliceDone) -> None:
        counts = replace(done.counts, seconds=0.0)  # all runs write the same lines
        entry = Entry(part, structs.replace(done, counts=counts))
        self.write(json.dumps(entry, default=unfold) + "\n", "a")

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

    def load(self) -> dict[int, SliceDone]:
        """The slices that are over, by number; none if there is no such file.

        Raises:
            UsageError: the file cannot be read, or is about something else.
        """
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
        entries = [self.read(line, number) for number, line in enumerate(lines[1:], 2)]
        if is_cut:  # what comes next must not be added to half a line
            self.write("".join(f"{line}\n" for line in lines), "w")
        return {entry.part: entry.done for entry in entries}

    def read(self, line: str, number: int) -> Entry:
        document = self.parse(line, number)
        try:
            entry = convert(document, type=Entry)
            if entry.part >= self.parts:
                raise ValidationError(f"there is no slice {entry.part}")
        except ValidationError as error:
            raise UsageError(
                f"{self.path}:{number}: {error}; start without --resume"
            ) from None
        return entry

    def parse(self, line: str, number: int) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{self.path}:{number}: not JSON ({error}); start without --resume"
            ) from None
