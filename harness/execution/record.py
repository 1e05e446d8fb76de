"""The write-ahead record: the program that is running stands on disk before it runs.

The file is a mapped page, so a step costs less than a microsecond to record, and what
was written survives when the process is killed. It is a valid program file at any time:
the number of the step has a fixed place and width, and the rest is padded with blanks.
"""

from __future__ import annotations

import json
import mmap
from pathlib import Path

from lockstep.harness.programs.program import Program

SIZE = 1 << 16
STEP = b', "step": '
WIDTH = 8


class Record:
    """The record of one worker: the program that is running, on disk before it runs.

    The file is a mapped page, so a step costs less than a microsecond to record, and what
    was written survives when the process is killed. It is a valid program file at any
    time: the number of the step has a fixed place and width, and the rest is padded with
    blanks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".tmp")  # it gets its name once it can be read
        self.file = draft.open("w+b")
        self.map = self.make_map(SIZE)
        self.place = 0
        self.clear()
        draft.replace(path)

    def make_map(self, size: int) -> mmap.mmap:
        self.file.truncate(size)
        self.used = size
        return mmap.mmap(self.file.fileno(), size)

    def begin(self, program: Program, backend: str) -> bytes:
        """Records a program that is about to run; its JSON, with an empty `meta`."""
        body = json.dumps({**program.to_json(), "meta": {}}).encode()
        meta = json.dumps({"backend": backend, "running": True}).encode()
        head = body.removesuffix(b"{}}") + meta.removesuffix(b"}") + STEP
        self.place = len(head)
        self.put(head + b"0".rjust(WIDTH) + b"}}")
        return body

    def step(self, step: int) -> None:
        """Records the step that is about to run."""
        self.map[self.place : self.place + WIDTH] = b"%8d" % step

    def clear(self) -> None:
        """Records that nothing is running."""
        self.put(b"{}")

    def put(self, content: bytes) -> None:
        """Writes a content and blanks over what stood there."""
        if len(content) > len(self.map):
            self.map.close()
            self.map = self.make_map(2 * len(content))
        self.map[: len(content)] = content
        self.map[len(content) : self.used] = b" " * (self.used - len(content))
        self.used = len(content)

    def close(self) -> None:
        """Removes the file, when the worker ends well."""
        self.map.close()
        self.file.close()
        self.path.unlink(missing_ok=True)
