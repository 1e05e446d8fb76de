"""JSON Schemas of the fields that configs and operations are made of, and their checks.

Every number is bounded, so that no program file can make a process work or grow without
limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import jsonschema

from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.printable import shorten

Schema = Mapping[str, Any]
"""A JSON Schema for one field. A field with a "default" may be left out."""

# Tokens in one update.
MAX_LENGTH = 1024

MAX_POSITION = 65_536


def integer(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def optional(schema: Schema) -> Schema:
    """The same, or null, which is also the default."""
    return {**schema, "type": [schema["type"], "null"], "default": None}


LENGTH: Schema = integer(1, MAX_LENGTH)
POSITION: Schema = integer(0, MAX_POSITION)
INTEGER: Schema = integer(-MAX_POSITION, MAX_POSITION)
WINDOW: Schema = integer(1, MAX_POSITION)
DIMENSION: Schema = integer(1, 1024)

# A key in the schema of a field that holds a name, or a list of names: its sort, such as
# "snapshot". Names of one sort may be exchanged.
NAMES = "names"

# A key in the schema of a field that means nothing without another: only the contract
# simplifies it.
JOINT = "joint"

# A key in the schema of a number that follows from others, such as a limit in bytes:
# shrinking compares it last.
DERIVED = "derived"

NAME: Schema = {"type": "string", "pattern": r"^[A-Za-z0-9_.-]{1,32}(?![\s\S])"}
DTYPE: Schema = {"enum": ["float32", "float16", "bfloat16"], "default": "float32"}

# In the place of a default that a field does not have.
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
    """Fills in defaults, and checks each field against its schema.

    Args:
        given: the fields of a document.
        schemas: the schema of each field.
        where: the place of the document, for messages.

    Raises:
        UsageError: a field is unknown, missing or wrong.
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
    """Returns the value, whole floats as ints. Raises UsageError if the schema does not
    allow it."""
    validator = jsonschema.Draft202012Validator(dict(schema))
    error = next(iter(validator.iter_errors(value)), None)
    if error is not None:
        place = "".join(f"[{part}]" for part in error.absolute_path)
        message = shorten(error.message)
        if error.validator == "maxItems":
            message = f"has {len(error.instance)} items; at most {error.validator_value}"
        raise UsageError(f"{where}{place}: {message}")
    return make_whole(value)


def make_whole(value: Any) -> Any:
    """Turns whole floats into ints, however deep."""
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
        raise UsageError(f"{where}: missing; one of {', '.join(options)}")
    raise UsageError(f"{where}: unknown {show(name)}{suggest(name, options)}")


def suggest(name: Any, options: Mapping[str, Any]) -> str:
    """A question that names the nearest options, or all of them."""
    near = get_close_matches(str(name), options) or list(options)
    return f"; did you mean {', '.join(near)}?"


def show(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False, default=repr))


def name_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    if value is None:
        return "missing"
    return names.get(type(value), "a number")
