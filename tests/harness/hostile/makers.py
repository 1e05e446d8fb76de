"""Makers of hostile files."""

from __future__ import annotations

import gzip
import io
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

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


def as_zip(
    *members: tuple[str | ZipInfo, str | bytes],
    how: int = ZIP_DEFLATED,
    claim: Callable[[ZipInfo], None] | None = None,
    then: Callable[[bytes], bytes] = bytes,
) -> Make:
    """A zip. claim: changes what its directory says of the first member; then: its
    bytes."""

    def make(folder: Path) -> Path:
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that come twice
            with ZipFile(buffer, "w", how) as archive:
                for name, content in members:
                    archive.writestr(name, content)
                if claim:
                    claim(archive.filelist[0])
        path = folder / "a.zip"
        path.write_bytes(then(buffer.getvalue()))
        return path

    return make


def make_member(kind: int) -> ZipInfo:
    """A member of this kind of file."""
    member = ZipInfo("p.json")
    member.external_attr = (kind | 0o777) << 16
    return member


def say(name: str, value: Any) -> Callable[[ZipInfo], None]:
    return lambda member: setattr(member, name, value)


DEEP = 100_000
"""Brackets: far deeper than any program."""

Cases = Mapping[str, tuple[Make, str]]
"""What is made, and words of the line that says what is wrong with it."""
