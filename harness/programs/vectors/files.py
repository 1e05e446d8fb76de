"""Writes and reads the files of a set of vectors: traces in lines, and the manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert

from lockstep.harness import __version__
from lockstep.harness.core.document import MAX_BYTES, parse_json, read_bytes
from lockstep.harness.core.errors import UsageError, shorten
from lockstep.harness.programs.program import FORMAT, Program, parse_program, trace
from lockstep.harness.programs.vectors import SET_FORMAT, TRACE_FORMAT
from lockstep.harness.programs.vectors.selection import write_json

# --- the manifest -----------------------------------------------------------------------


MANIFEST = "manifest.json"

MAX_MANIFEST = 4 << 20
MAX_FILE = 64 << 20
MAX_FILES = 64

# A file name in a set, which excludes folders and hidden files.
Name = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,40}\.(md|json|jsonl)(?![\s\S])")
]


class Holds(Struct):
    """The programs of a file."""

    contract: str
    kind: str
    programs: int


class File(Struct):
    bytes: Annotated[int, Meta(ge=0, le=MAX_FILE)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}(?![\s\S])")]
    holds: Holds | None = None


class Manifest(Struct):
    format: Literal["lockstep-vectors/1"]
    files: Annotated[dict[Name, File], Meta(max_length=MAX_FILES)]


def make_manifest(
    size: str, contents: Mapping[str, bytes], holds: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Makes the manifest of a set.

    Args:
        size: the name of the size.
        contents: file name → content.
        holds: name of a file with programs → counts and coverage of these programs.
    """
    return {
        "format": SET_FORMAT,
        "program_format": FORMAT,
        "trace_format": TRACE_FORMAT,
        "lockstep": __version__,
        "size": size,
        "programs": sum(covered["programs"] for covered in holds.values()),
        "files": {
            name: {
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
                **({"holds": holds[name]} if name in holds else {}),
            }
            for name, content in contents.items()
        },
    }


def write_pretty(value: Any) -> bytes:
    """Writes JSON for people, with one field on each line."""
    return (json.dumps(value, sort_keys=True, indent=1) + "\n").encode()


# --- reading and checking a set ---------------------------------------------------------


def read_set(folder: Path) -> dict[Path, Holds]:
    """Reads the manifest of a set, and checks that the files match the manifest.

    Returns:
        Path → description, for each file with programs.

    Raises:
        UsageError: the folder is not a set, has an unknown version, or is damaged.
    """
    path = folder / MANIFEST
    if folder.is_dir() and not path.exists():
        raise UsageError(
            f"{folder}: has no {MANIFEST}; `lockstep vectors -o DIR` writes a set"
        )
    text = read_bounded(path, MAX_MANIFEST).decode(errors="replace")
    document = parse_json(text, str(path))
    try:
        manifest = convert(document, Manifest)
    except ValidationError as error:
        raise UsageError(f"{path}: {shorten(str(error), 200)}") from None
    for present in sorted(folder.iterdir()):
        if present.name not in (*manifest.files, MANIFEST):
            raise UsageError(f"{present}: the manifest does not name this file")
    for name, file in manifest.files.items():
        content = read_bounded(folder / name, MAX_FILE)
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise UsageError(
                f"{folder / name}: was changed: the SHA-256 of its {len(content):,}"
                f" bytes is not that of the {file.bytes:,} bytes in the manifest"
            )
    files = sorted(manifest.files.items())
    return {folder / name: file.holds for name, file in files if file.holds}


def read_bounded(path: Path, most: int) -> bytes:
    """Reads a regular file of at most `most` bytes; refuses a link."""
    if path.is_symlink():
        raise UsageError(f"{path}: is a link; a set of vectors must have no links")
    return read_bytes(path, most)


def read_lines(path: Path) -> Iterator[tuple[str, Program, list[Any]]]:
    """Yields the location, the program and the expected answers of each line.

    `lockstep replay` accepts the location.

    Raises:
        UsageError: a line is not a vector.
    """
    content = read_bounded(path, MAX_FILE)
    if not content.endswith(b"\n"):
        raise UsageError(f"{path}: its last line is cut off")
    for number, line in enumerate(content.splitlines(), 1):
        location = f"{path}:{number}"
        if len(line) > MAX_BYTES:
            raise UsageError(f"{location}: is too long; at most {MAX_BYTES >> 20} MiB")
        document = parse_json(line.decode(errors="replace"), location)
        program = parse_program(document, location)
        expected = document.get("expected")
        if document.get("format") != TRACE_FORMAT or not isinstance(expected, list):
            raise UsageError(f"{location}: is not a line of the format {TRACE_FORMAT}")
        if len(program.ops) != len(expected):
            raise UsageError(
                f"{location}: has {len(expected)} answers, but {len(program.ops)}"
                " operations; each operation must have one answer"
            )
        yield location, program, expected


def audit(path: Path, holds: Holds) -> Iterator[str]:
    """Yields differences between the expected answers in a file and the reference.

    Each message describes the first step of a program where the answers differ.

    Raises:
        UsageError: the file contradicts the manifest.
    """
    count = 0
    for location, program, expected in read_lines(path):
        if (program.contract, program.kind) != (holds.contract, holds.kind):
            kind = f"{program.contract} {program.kind}"
            raise UsageError(
                f"{location}: is a {kind} program, but the manifest says {holds.kind}"
            )
        count += 1
        for step, (said, answer) in enumerate(zip(expected, trace(program), strict=True)):
            if (said := write_json(said)) != (written := write_json(answer)):
                op = program.ops[step]
                yield (
                    f"{location}: step {step},"
                    f" {program.rules.operations[op['op']].describe(op)}: the set expects"
                    f" {shorten(said)}, the reference {shorten(written)}"
                )
                break
    if count != holds.programs:
        raise UsageError(
            f"{path}: has {count} programs, but the manifest says {holds.programs}"
        )
