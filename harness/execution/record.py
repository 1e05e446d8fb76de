"""Writes the write-ahead record of a worker: the program is on disk before it runs, so a
crash cannot lose it."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import OPENING, Program

SIZE = 1 << 16
RUNNING, OVER = b'"running": true ', b'"running": false'
STEP = b', "step": '
AT = b'%8d, "side": %4d'
WIDTH = len(AT % (0, 0))

EMPTY = b"{}"


def prepare_record(path: Path) -> None:
    """Creates the file of a record that contains no program yet. Raises OSError."""
    path.write_bytes(EMPTY)


def make_body(program: Program) -> bytes:
    """Returns a program as JSON, with an empty `meta`."""
    return json.dumps({**program.to_json(), "meta": {}}).encode()


class Record:
    """The write-ahead record of one worker.

    The file is memory-mapped, so recording a step takes less than a microsecond, and the
    written bytes survive when the process is killed. The file is a valid program file at
    any time: the numbers of the step and of the side are overwritten at a fixed offset
    with a fixed width, and the end of the file is filled with blanks.

    Args:
        path: the path of the file. If another process reads the file from the start, the
            file must exist; see `prepare_record`.

    Attributes:
        side: the index of the backend that is running the step, if several backends run
            the program together. Each backend gets the full time limit of a step, because
            a change of `side` changes the file.

    Raises:
        UsageError: the file cannot be written. `begin` may raise this error, too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = self.runs = self.side = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT), "r+b", 0)
        except OSError as error:
            raise self.explain(error) from None
        self.map = self.make_map(SIZE)
        self.clear()

    def make_map(self, size: int) -> mmap.mmap:
        """Extends the file with blanks, and maps it into memory.

        The blanks are written first, because an access to a mapped page without disk
        space ends the process.
        """
        missing = size - self.file.seek(0, os.SEEK_END)
        try:
            while missing > 0:
                missing -= self.file.write(b" " * missing)
        except OSError as error:
            raise self.explain(error) from None
        self.used = size
        return mmap.mmap(self.file.fileno(), size)

    def explain(self, error: OSError) -> UsageError:
        return UsageError(
            f"{self.path}: the write-ahead record cannot be written ({error.strerror});"
            " its program was not run; choose another folder with --failures"
        )

    def begin(self, program: Program, backend: str, beside: Sequence[str] = ()) -> bytes:
        """Records a program that is about to run. Returns the result of `make_body`.

        beside: the other backends that run the program.
        """
        body = make_body(program)
        self.runs += 1  # a repeated program must change the file, or it looks like a hang
        others = {"beside": [*beside]} if beside else {}
        meta = json.dumps({"backend": backend, **others, "run": self.runs}).encode()
        head = (
            body.removesuffix(b"{}}") + meta.removesuffix(b"}") + b", " + RUNNING + STEP
        )
        self.put(head + AT % (OPENING, self.side) + b"}}")
        self.position = len(head)
        return body

    def end(self) -> None:
        """Records that the program is over. The program stays in the record, because a
        backend may end the process while its caches are freed."""
        end = self.position - len(STEP)
        self.map[end - len(OVER) : end] = OVER

    def step(self, step: int) -> None:
        """Records the step that is about to run."""
        self.map[self.position : self.position + WIDTH] = AT % (step, self.side)

    def clear(self) -> None:
        """Records that no program is running."""
        self.put(EMPTY)

    def put(self, content: bytes) -> None:
        """Replaces the content of the file, and overwrites the rest with blanks."""
        if len(content) > len(self.map):
            larger = self.make_map(2 * len(content))
            self.map.close()
            self.map = larger
        self.map[: len(content)] = content
        self.map[len(content) : self.used] = b" " * (self.used - len(content))
        self.used = len(content)

    def close(self) -> None:
        """Removes the file, when the worker ends normally."""
        self.map.close()
        self.file.close()
        self.path.unlink(missing_ok=True)
