"""Makers of hostile files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

GOOD: Mapping[str, Any] = {
    "format": "lockstep/1",
    "contract": "layer",
    "config": {"kind": "kv"},
    "ops": [{"op": "update", "length": 2}],
}
TEXT = json.dumps(GOOD)
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m"
"""The title of a terminal, and all that is on it, and its colour."""

Make = Callable[[Path], Path]
"""Makes the hostile thing in a folder, and returns the path to give to a command."""


Content = str | bytes | Callable[[], str | bytes]
"""Of a file; a function for what is large."""


def as_file(content: Content, name: str = "p.json") -> Make:
    def make(folder: Path) -> Path:
        path = folder / name
        made = content() if callable(content) else content
        path.write_bytes(made.encode() if isinstance(made, str) else made)
        return path

    return make


def change(**fields: Any) -> Make:
    """The good program with other fields at the top."""
    return as_file(json.dumps({**GOOD, **fields}))


def with_config(**fields: Any) -> Make:
    return change(config={"kind": "kv", **fields})


def with_op(**fields: Any) -> Make:
    return change(ops=[{"op": "update", "length": 2, **fields}])


def replaced(old: str, new: str) -> Make:
    """The good program with other text."""
    return as_file(TEXT.replace(old, new))


def with_length(literal: str) -> Make:
    """A number as it stands in the file."""
    return replaced('"length": 2', f'"length": {literal}')


def as_gzip(content: bytes, then: Callable[[bytes], bytes] = bytes) -> Make:
    """A gzipped file. then: changes its bytes."""
    return as_file(lambda: then(gzip.compress(content)), "p.json.gz")


DEEP = 100_000
"""Brackets: far deeper than any program."""

Cases = Mapping[str, tuple[Make, str]]
"""What is made, and words of the line that says what is wrong with it."""
