"""Reads JSON documents from untrusted sources and checks them field by field.

The size of a document and every number in it are bounded, so that no program file can
make a process run or allocate memory without limit.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from io import BytesIO
from os.path import isfile, join
from pathlib import Path
from typing import Any

from lockstep.harness.core.errors import UsageError, shorten

# --- files ------------------------------------------------------------------------------


# The maximum size of one document after decompression.
MAX_BYTES = 8 << 20


def read_text(path: Path) -> str:
    """Reads the text of a file, gzipped or not. Raises UsageError for a large file."""
    return decode(read_bytes(path, MAX_BYTES), str(path))


def read_bytes(path: Path, most: int) -> bytes:
    """Reads the content of a file.

    Raises:
        UsageError: the file has more than `most` bytes, or is not a regular file;
            reading a pipe or a device may never end.
    """
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
    """Decodes the content of a file; decompresses it if the file name `where` ends in
    ``.gz``."""
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
    """Parses a JSON text.

    Raises:
        UsageError: the text is not JSON, an object has a name twice, or a number is not
            a JSON number, such as NaN.
    """

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON number")

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
        reason = "a number has too many digits" if "digits" in str(error) else error
        raise UsageError(f"{where}: is not JSON: {reason}") from None


def walk_files(folder: Path) -> Iterator[Path]:
    """Yields the regular files below a folder. Skips files and folders that disappear
    during the walk.

    Raises:
        UsageError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise UsageError(f"{error.filename}: cannot be read: {error.strerror}")

    for location, _, names in os.walk(folder, onerror=refuse):
        yield from (
            Path(location, name) for name in names if isfile(join(location, name))
        )


def write_whole(path: Path, text: str) -> None:
    """Writes a file atomically: no reader sees a partly written file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:  # such as a full disk
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


# --- schemas of fields ------------------------------------------------------------------


Schema = Mapping[str, Any]
"""A JSON Schema for one field. A field whose schema has a "default" is optional."""

# The maximum number of tokens in one update.
MAX_LENGTH = 2048

MAX_POSITION = 65_536


def integer(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def optional(schema: Schema) -> Schema:
    """Returns a schema that also allows null, which is its default."""
    return {**schema, "type": [schema["type"], "null"], "default": None}


LENGTH: Schema = integer(1, MAX_LENGTH)
POSITION: Schema = integer(0, MAX_POSITION)
INTEGER: Schema = integer(-MAX_POSITION, MAX_POSITION)
WINDOW: Schema = integer(1, MAX_POSITION)
DIMENSION: Schema = integer(1, 1024)

# A key in the schema of a field that holds a name or a list of names. Its value is the
# kind of the names, such as "snapshot". Names of equal kind may be exchanged.
NAMES = "names"

# A key in the schema of a field that has no meaning without another field. Only the
# contract simplifies such a field.
JOINT = "joint"

# A key in the schema of a number that is computed from other numbers, such as a limit in
# bytes. Shrinking compares such a number last.
DERIVED = "derived"

NAME: Schema = {"type": "string", "pattern": r"^[A-Za-z0-9_.-]{1,32}(?![\s\S])"}
# The index of a scope that the backend declares. The scope does not change results.
SCOPE: Schema = {**integer(0, 15), "default": 0}
# The index of an alternative implementation of an operation in a cache. The variant does
# not change results. 0 is the implementation that the cache chooses by default.
VARIANT: Schema = {**integer(0, 15), "default": 0}

DTYPE: Schema = {"enum": ["float32", "float16", "bfloat16"], "default": "float32"}

# Stands for the default of a field that has no default.
REQUIRED = object()


def drop_defaults(
    fields: Mapping[str, Any], schemas: Mapping[str, Schema]
) -> dict[str, Any]:
    return {
        name: fields[name]
        for name, schema in schemas.items()
        if fields[name] != schema.get("default", REQUIRED)
    }


def complete(
    given: Mapping[str, Any], schemas: Mapping[str, Schema], where: str
) -> dict[str, Any]:
    """Adds the defaults to the fields of a document and checks each field.

    Args:
        given: the fields of the document.
        schemas: the schemas by field name.
        where: the location of the document, for messages.

    Raises:
        UsageError: a field is unknown, missing or invalid.
    """
    for name in given:
        if name not in schemas:
            raise UsageError(
                f"{where}: unknown field {show(name)}{suggest(name, schemas)}"
            )
    fields = {}
    for name, schema in schemas.items():
        if name in given:
            fields[name] = check_field(given[name], schema, f"{where}: {name}")
        elif "default" in schema:
            fields[name] = schema["default"]
        else:
            raise UsageError(f'{where}: the field "{name}" is missing')
    return fields


def check_field(value: Any, schema: Schema, where: str) -> Any:
    """Returns the value, with whole floats converted to ints. Raises UsageError if the
    schema does not allow the value."""
    error = next(iter(make_validator(schema).iter_errors(value)), None)
    if error is not None:
        location = "".join(f"[{part}]" for part in error.absolute_path)
        message = shorten(error.message)
        if error.validator == "maxItems":
            message = f"has {len(error.instance)} items; at most {error.validator_value}"
        raise UsageError(f"{where}{location}: {message}")
    return make_whole(value)


def make_validator(schema: Schema) -> Any:
    """Returns a validator of `jsonschema`."""
    # Most processes need no validator, and this import takes a tenth of their start time.
    import jsonschema

    return jsonschema.Draft202012Validator(dict(schema))


def make_whole(value: Any) -> Any:
    """Converts whole floats to ints, at every depth of lists and objects."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [make_whole(item) for item in value]
    if isinstance(value, dict):
        return {name: make_whole(item) for name, item in value.items()}
    return value


def get_named(options: Mapping[str, Any], name: Any, where: str) -> Any:
    if isinstance(name, str) and name in options:
        return options[name]
    if name is None:
        raise UsageError(f"{where}: is missing; give one of {', '.join(options)}")
    raise UsageError(f"{where}: unknown {show(name)}{suggest(name, options)}")


def suggest(name: Any, options: Mapping[str, Any]) -> str:
    """Returns a text such as "; did you mean a, b?", with the most similar options if any
    option is similar, else with all options."""
    similar = get_close_matches(str(name), options) or list(options)
    return f"; did you mean {', '.join(similar)}?"


def show(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False, default=repr))


def name_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    if value is None:
        return "missing"
    return names.get(type(value), "a number")
