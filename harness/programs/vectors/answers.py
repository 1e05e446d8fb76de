"""What the reference can answer to each operation of each contract, as JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.fields import Schema

NUMBER: Schema = {"type": "integer", "minimum": 0}
BOOLEAN: Schema = {"type": "boolean"}
TAGS: Schema = {"type": "array", "items": NUMBER}
ROWS: Schema = {"type": "array", "items": TAGS}
PLACE: Schema = {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2}
PLACES: Schema = {"type": "array", "items": {"type": "array", "items": PLACE}}
RANGE: Schema = {**PLACE, "type": ["array", "null"]}
RANGES: Schema = {"type": "array", "items": RANGE}
STORED: Schema = {**TAGS, "type": ["array", "null"]}
OFFSETS: Schema = {"type": "array", "items": {"type": ["integer", "null"], "minimum": 0}}
TOKENS: Schema = {"type": "array", "items": {"type": "integer"}}


def answer(**fields: Schema) -> Schema:
    """An object with these fields, and no other."""
    return {
        "type": "object",
        "properties": fields,
        "required": sorted(fields),
        "additionalProperties": False,
    }


def error(*names: str) -> Schema:
    return answer(error={"enum": list(names)})


def list_of(*schemas: Schema) -> Schema:
    return {"type": "array", "items": any_of(*schemas)}


def any_of(*schemas: Schema) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


NOTHING = answer()
USAGE = error("usage")
SKIPPED = answer(skipped={"type": "string", "minLength": 1})
OFFSET = answer(offset=NUMBER)
RESULT = answer(result=BOOLEAN)
REFUSAL = error("usage", "cache-full", "not-supported", "shared")

ROW_ANSWER = answer(visible=PLACES)
STATE_ANSWER = answer(visible=PLACES, states=ROWS)
IMAGE_ANSWER = answer(cached=BOOLEAN, stored=STORED)
PASSES: Mapping[str, Schema] = {
    "encoder": IMAGE_ANSWER,
    "recurrent": STATE_ANSWER,
    "wrapper": answer(caches=list_of(ROW_ANSWER, STATE_ANSWER, IMAGE_ANSWER)),
}
"""What a pass shows, of the kinds that differ from the others."""

LAYER: Mapping[str, Schema] = {
    "update": answer(offset=NUMBER, visible=ROWS),
    "state": answer(tags=TAGS),
    "view": answer(tags=TAGS),
    "size": answer(size=NUMBER),
    "trim": any_of(answer(trimmed=NUMBER, offset=NUMBER), USAGE),
    "clone": NOTHING,
    "free": OFFSET,
    "snapshot": answer(range=RANGE),
    "restore": answer(ok=BOOLEAN, offset=NUMBER),
    "split": answer(parent=RANGE, child=RANGE),
    "merge": any_of(answer(range=RANGE), USAGE),
    "close": NOTHING,
    "prepare": any_of(NOTHING, USAGE),
    "take": answer(ranges=RANGES),
}


def get_unified(kind: str) -> Mapping[str, Schema]:
    shown = PASSES.get(kind, ROW_ANSWER)
    of_part = [IMAGE_ANSWER, ROW_ANSWER] if kind == "wrapper" else [ROW_ANSWER]
    again = [IMAGE_ANSWER] if kind == "encoder" else of_part
    return {
        "forward": any_of(shown, NOTHING, REFUSAL),
        "copy_prefix": any_of(NOTHING, REFUSAL),
        "remove": any_of(NOTHING, REFUSAL),
        "can_resume": any_of(RESULT, USAGE),
        "save": NOTHING,
        "load": NOTHING,
        "get": any_of(*again, NOTHING, USAGE),
        "put": any_of(NOTHING, USAGE),
        "open": any_of(NOTHING, USAGE),
    }


HELD = {"offsets": OFFSETS, "caches": list_of(answer(tags=TAGS), NOTHING)}
READ = answer(offsets=OFFSETS, caches=list_of(answer(visible=ROWS), NOTHING))
STORES: Mapping[str, Schema] = {
    "session": answer(tokens=NUMBER),
    "trie": answer(tokens=NUMBER, bytes=NUMBER),
}


def get_conversations(kind: str) -> Mapping[str, Schema]:
    """Of a session or a trie."""
    # A token that was generated and is none is refused after the pass.
    refused = [add(each, error=USAGE["properties"]["error"]) for each in (READ, FED)]
    return {
        "begin": any_of(answer(remaining=TOKENS, **HELD), USAGE),
        "feed": any_of(READ, FED, *refused),
        "break": READ,
        "close": any_of(answer(stored=NUMBER), USAGE),
        "cancel": any_of(answer(stored=NUMBER), USAGE),
        "refuse": NOTHING,
        "checkpoint": NOTHING,
        "count": STORES[kind],
        "free": any_of(answer(**HELD), USAGE),
        "limit": any_of(NOTHING, USAGE),
        "open": USAGE,
    }


FED = answer(offsets=OFFSETS)


def add(schema: Schema, **fields: Schema) -> Schema:
    return answer(**{**schema["properties"], **fields})


SLOT = answer(offsets=OFFSETS, tokens=TOKENS, remaining=TOKENS)
POSITIONS = {"positions": TAGS}
SHOWN = (ROW_ANSWER, STATE_ANSWER, PASSES["wrapper"])


def get_slots() -> Mapping[str, Schema]:
    refused, usage = REFUSAL["properties"]["error"], USAGE["properties"]["error"]
    passes = [add(SLOT, **POSITIONS, **shown["properties"]) for shown in SHOWN]
    # A token that was generated and is none is refused after the pass.
    wrong = [add(each, error=usage) for each in (SLOT, *passes)]
    full = add(SLOT, **POSITIONS, error=refused)
    begun = add(SLOT, slot=NUMBER)
    return {
        "begin": any_of(begun, error("usage", "no-slot")),
        "feed": any_of(*passes, SLOT, full, *wrong),
        "break": any_of(add(SLOT, **POSITIONS), full),
        "close": add(SLOT, stored=NUMBER),
        "cancel": add(SLOT, stored=NUMBER),
        "refuse": NOTHING,
        "open": USAGE,
        "reserve": USAGE,
        "commit": USAGE,
    }


def get_answers(contract: str, kind: str) -> Mapping[str, Any]:
    """operation → the schema of what is expected of it, for those that the kind has."""
    answers: Mapping[str, Schema] = LAYER
    if contract == "unified":
        answers = get_unified(kind)
    elif contract == "prefix":
        answers = get_slots() if kind == "slots" else get_conversations(kind)
    return {name: answers[name] for name in CONTRACTS[contract].list_operations(kind)}
