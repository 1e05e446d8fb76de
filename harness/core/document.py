"""JSON documents of other people: bounded in size, and read strictly."""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.printable import shorten

# Of one document, unpacked.
MAX_BYTES = 8 << 20


def read_text(path: Path) -> str:
    """The text of a file, which may be gzipped. Raises UsageError if it is too large."""
    return decode(read_bytes(path, MAX_BYTES), str(path))


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a file. Raises UsageError if it has more than `most` bytes, or is
    not a regular file: reading a pipe or a device may never end."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
        if not is_file and not path.is_dir():
            raise UsageError(f"{path}: is a pipe or a device; write it to a file first")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a folder, not a program file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    return check_size(content, most, str(path))


def check_size(content: bytes, most: int, where: str) -> bytes:
    if len(content) > most:
        raise UsageError(f"{where}: is too large; at most {most >> 20} MiB")
    return content


def decode(content: bytes, where: str) -> str:
    """The text of a file. `where` is its name, which tells whether it is gzipped."""
    if where.endswith(".gz"):
        try:
            with gzip.GzipFile(fileobj=BytesIO(content)) as file:
                content = check_size(file.read(MAX_BYTES + 1), MAX_BYTES, where)
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"{where}: cannot be read: {error}") from None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: is not UTF-8 text: {error}") from None


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text. Raises UsageError for text that is not JSON, for a name
    that stands twice in an object, and for numbers that JSON does not have."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not a number of JSON")

    def parse_float(digits: str) -> float:
        number = float(digits)
        return number if math.isfinite(number) else refuse(f"{shorten(digits, 24)}")

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in pairs:
            if name in fields:
                raise ValueError(f"an object has {json.dumps(shorten(name, 40))} twice")
            fields[name] = value
        return fields

    try:
        return json.loads(
            text,
            parse_constant=refuse,
            parse_float=parse_float,
            object_pairs_hook=make_object,
        )
    except RecursionError:
        raise UsageError(f"{where}: is nested too deeply to be a program") from None
    except json.JSONDecodeError as error:
        is_cut = error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip())
        ends = "; the file may be cut off" if is_cut else ""
        raise UsageError(
            f"{where}: is not JSON: {error.msg}, line {error.lineno}"
            f" column {error.colno}{ends}"
        ) from None
    except ValueError as error:
        why = "a number has too many digits" if "digits" in str(error) else error
        raise UsageError(f"{where}: is not JSON: {why}") from None


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all: nobody ever reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
