"""The files of a set: lines of traces, and the manifest of what they cover."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.harness import __version__
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.document import make_validator, parse_json, read_bytes, show
from lockstep.harness.core.errors import UsageError, shorten
from lockstep.harness.programs.program import FORMAT, Program, trace
from lockstep.harness.programs.vectors import SEED, TRACE_FORMAT

# --- lines, the same bytes everywhere ---------------------------------------------------


def make_typed(program: Program) -> Program:
    """Drops tokens that are not integers: many languages cannot pass them to a cache."""
    ops = []
    for op in program.ops:
        if "generate" in op and not is_typed(op["generate"]):
            op = {**op, "generate": []}
        if is_typed(op.get("tokens", ())):
            ops.append(op)
    return replace(program, ops=ops)


def is_typed(tokens: Sequence[Any]) -> bool:
    return all(type(token) is int for token in tokens)


def make_line(program: Program, meta: Mapping[str, Any]) -> str:
    """Writes a trace on one line, with the same bytes on every machine.

    Keys are sorted, every field is written, and there are no blanks and no fractions.
    """
    document = {
        "format": TRACE_FORMAT,
        "program": {
            "format": FORMAT,
            "contract": program.contract,
            "config": program.config,
            "ops": list(program.ops),
            "meta": meta,
        },
        "expected": trace(program),
    }
    return write_json(document)


def write_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def write_lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def write_pretty(value: Any) -> bytes:
    """Writes JSON for people, with one field on each line."""
    return (json.dumps(value, sort_keys=True, indent=1) + "\n").encode()


# --- the manifest -----------------------------------------------------------------------


SET_FORMAT = "lockstep-vectors/1"
MANIFEST = "manifest.json"

MAX_MANIFEST = 4 << 20
MAX_FILE = 64 << 20
MAX_FILES = 64

FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,40}\.(md|json|jsonl)(?![\s\S])"
"""Pattern of the file names in a set, which excludes folders and hidden files."""

Schema = dict[str, Any]


def having(required: str, **fields: Schema) -> Schema:
    """Makes the schema of an object with at least the required ones of these fields.

    Args:
        required: their names, separated by blanks.
        fields: name → schema.
    """
    return {"type": "object", "properties": fields, "required": required.split()}


COUNT: Schema = {"type": "integer", "minimum": 0}
TEXT: Schema = {"type": "string"}
CELLS = {"type": "object", "additionalProperties": {"type": "array", "items": TEXT}}
REST = {**having("why cells", why=TEXT, cells=CELLS), "additionalProperties": False}
KIND = having(
    "contract kind programs covered",
    contract=TEXT,
    kind=TEXT,
    levels={"type": "object", "additionalProperties": COUNT},
    not_covered={"type": "array", "items": REST},
    **dict.fromkeys(("programs", "operations", "drawn", "reachable"), COUNT),
    **dict.fromkeys(("covered", "errors", "settings"), CELLS),
)
FILE = {
    **having(
        "bytes sha256",
        bytes={**COUNT, "maximum": MAX_FILE},
        sha256={"type": "string", "pattern": r"^[0-9a-f]{64}(?![\s\S])"},
        holds=KIND,
    ),
    "additionalProperties": False,
}
SCHEMA = having(
    "format lockstep size files",
    format={"const": SET_FORMAT},
    lockstep={"type": "string", "pattern": r"^[0-9]{1,4}(\.[0-9]{1,4}){1,3}"},
    programs=COUNT,
    seed=COUNT,
    size=TEXT,
    files={
        "type": "object",
        "maxProperties": MAX_FILES,
        "propertyNames": {"pattern": FILE_NAME},
        "additionalProperties": FILE,
    },
)


@dataclass(frozen=True)
class File:
    """One file of a set.

    Attributes:
        size: in bytes.
        holds: the description of its programs in the manifest; None without programs.
    """

    name: str
    size: int
    sha256: str
    holds: Mapping[str, Any] | None


def make_manifest(
    size: str, contents: Mapping[str, bytes], holds: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Makes the manifest of a set.

    Args:
        size: the name of the size.
        contents: file name → content.
        holds: name of a file with programs → the result of `describe`.
    """
    return {
        "format": SET_FORMAT,
        "program_format": FORMAT,
        "trace_format": TRACE_FORMAT,
        "lockstep": __version__,
        "size": size,
        "seed": SEED,
        "programs": sum(own["programs"] for own in holds.values()),
        "files": {
            name: {
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
                **({"holds": holds[name]} if name in holds else {}),
            }
            for name, content in contents.items()
        },
    }


# --- read with suspicion ----------------------------------------------------------------


def read_manifest(folder: Path) -> dict[str, File]:
    """Reads the files that a set must have, by name.

    Raises:
        UsageError: this version cannot read the manifest.
    """
    path = folder / MANIFEST
    text = read_bounded(path, MAX_MANIFEST).decode(errors="replace")
    document = parse_json(text, str(path))
    form = document.get("format") if isinstance(document, dict) else None
    if form != SET_FORMAT:
        newer = isinstance(form, str) and re.fullmatch(r"lockstep-vectors/\d{1,9}", form)
        hint = "; a newer version of lockstep reads it" if newer else ""
        raise UsageError(
            f'{path}: "format" is {show(form)}; this version reads "{SET_FORMAT}"{hint}'
        )
    error = next(make_validator(SCHEMA).iter_errors(document), None)
    if error is not None:
        place = "/".join(map(str, error.absolute_path))
        raise UsageError(f"{path}: {shorten(place)}: {shorten(error.message)}")
    check_version(document["lockstep"], path)
    return {
        name: File(name, entry["bytes"], entry["sha256"], entry.get("holds"))
        for name, entry in document["files"].items()
    }


def check_version(version: str, path: Path) -> None:
    if get_numbers(version) > get_numbers(__version__):
        raise UsageError(
            f"{path}: the set was made by lockstep {shorten(version, 40)}, and this is"
            f" {__version__}: update it with pip install --upgrade kv-lockstep"
        )


def get_numbers(version: str) -> tuple[int, ...]:
    """Parses "0.1.0" into (0, 1, 0)."""
    return tuple(map(int, re.findall(r"\d+", version)[:4]))


def read_bounded(path: Path, most: int) -> bytes:
    """Reads a regular file of at most `most` bytes; refuses a link."""
    if path.is_symlink():
        raise UsageError(f"{path}: is a link; a set of vectors has none")
    if path.name == MANIFEST and not path.exists():
        raise UsageError(f"{path}: there is no such file; a set of vectors has one")
    return read_bytes(path, most)


def check_files(folder: Path, files: Mapping[str, File]) -> None:
    """Checks that exactly the files of the manifest are there, and unchanged.

    Raises:
        UsageError: the first file that is missing, changed or not in the manifest.
    """
    present = sorted(path.name for path in folder.iterdir())
    for name in present:
        if name not in files and name != MANIFEST:
            raise UsageError(f"{folder / name}: the manifest does not name this file")
    for file in files.values():
        content = read_bounded(folder / file.name, MAX_FILE)
        if len(content) != file.size:
            is_short = len(content) < file.size
            hint = "; it may be cut off" if is_short else ""
            raise UsageError(
                f"{folder / file.name}: has {len(content):,} bytes, not {file.size:,} as"
                f" the manifest says{hint}"
            )
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise UsageError(
                f"{folder / file.name}: was changed: its SHA-256 is not the one in the"
                " manifest"
            )
    for name, file in files.items():
        if name.endswith(".jsonl") == (file.holds is None):
            raise UsageError(
                f"{folder / MANIFEST}: {name}: says wrongly whether it holds programs"
            )
        if file.holds is not None:
            check_holds(folder, name, file.holds)


def check_holds(folder: Path, name: str, holds: Mapping[str, Any]) -> None:
    contract, kind = holds["contract"], holds["kind"]
    if contract not in CONTRACTS or kind not in CONTRACTS[contract].kinds:
        raise UsageError(
            f"{folder / MANIFEST}: {name}: there is no kind {show(contract)} {show(kind)}"
        )
