"""JSON Schemas of the fields that configs and operations are made of.

Every number is bounded, so that no program file can make a process work or grow without
limit.
"""

from typing import Any

from lockstep.harness.contracts.base import Schema

MAX_LENGTH = 1024
"""Tokens in one update."""

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
JOINT = "joint"
"""A key in the schema of a field that means nothing without another: only the contract
makes it simpler."""

DERIVED = "derived"
"""A key in the schema of a number that follows from others, such as a limit in bytes: it
is the last one that makes a program simpler."""

NAME: Schema = {"type": "string", "pattern": r"^[A-Za-z0-9_.-]{1,32}(?![\s\S])"}
DTYPE: Schema = {"enum": ["float32", "float16", "bfloat16"], "default": "float32"}
