"""Builds JSON Schemas of answers for `Operation.answer`."""

from __future__ import annotations

from lockstep.harness.core.document import DERIVED, JOINT, NAMES, Schema

NUMBER: Schema = {"type": "integer", "minimum": 0}
NUMBER_OR_NONE: Schema = {"type": ["integer", "null"], "minimum": 0}
BOOLEAN: Schema = {"type": "boolean"}
TAGS: Schema = {"type": "array", "items": NUMBER}
TAG_ROWS: Schema = {"type": "array", "items": TAGS}
PAIR: Schema = {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2}
PAIR_ROWS: Schema = {"type": "array", "items": {"type": "array", "items": PAIR}}
RANGE: Schema = {**PAIR, "type": ["array", "null"]}
OFFSETS: Schema = {"type": "array", "items": NUMBER_OR_NONE}
TOKENS: Schema = {"type": "array", "items": {"type": "integer"}}


def record(**fields: Schema) -> Schema:
    """Makes the schema of an object with exactly these fields."""
    return {
        "type": "object",
        "properties": {name: drop_annotations(fields[name]) for name in fields},
        "required": sorted(fields),
        "additionalProperties": False,
    }


def drop_annotations(schema: Schema) -> Schema:
    """Returns the schema without our keys for renaming and shrinking."""
    ours = (DERIVED, JOINT, NAMES)
    return {name: value for name, value in schema.items() if name not in ours}


def extend(schema: Schema, **fields: Schema) -> Schema:
    """Makes the schema of a record with additional fields."""
    return record(**{**schema["properties"], **fields})


def error(*names: str) -> Schema:
    """Makes the schema of a refusal with one of these names."""
    return record(error={"enum": list(names)})


def list_of(*schemas: Schema) -> Schema:
    return {"type": "array", "items": any_of(*schemas)}


def any_of(*schemas: Schema) -> Schema:
    """Makes the schema of a value that matches one of `schemas`.

    Nested choices are flattened, and duplicates are dropped.
    """
    flat: list[Schema] = []
    for schema in list_alternatives(*schemas):
        if schema not in flat:
            flat.append(schema)
    return flat[0] if len(flat) == 1 else {"anyOf": flat}


def list_alternatives(*schemas: Schema) -> list[Schema]:
    """Lists the schemas, with each "anyOf" replaced by its alternatives."""
    return [option for schema in schemas for option in schema.get("anyOf", [schema])]


def left_open(schema: Schema) -> Schema:
    """Makes the schema of a value that the backend may choose; see
    `Operation.resolve`."""
    return any_of(schema, record(one_of=list_of(schema)))


NOTHING = record()
USAGE = error("usage")
NOTHING_OR_USAGE = any_of(NOTHING, USAGE)
