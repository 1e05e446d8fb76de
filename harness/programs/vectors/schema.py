"""The JSON Schema (2020-12) of one line: a trace of any contract and kind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.backends.interface import STATISTICS as COUNTED
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.core.document import DERIVED, JOINT, NAMES, Schema
from lockstep.harness.programs.program import FORMAT, MAX_OPERATIONS
from lockstep.harness.programs.vectors import TRACE_FORMAT

# --- answers of the reference to each operation -----------------------------------------


OURS = (DERIVED, JOINT, NAMES)

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


def record(**fields: Schema) -> Schema:
    """Makes the schema of an object with exactly these fields."""
    return {
        "type": "object",
        "properties": {name: drop_ours(schema) for name, schema in fields.items()},
        "required": sorted(fields),
        "additionalProperties": False,
    }


def drop_ours(schema: Schema) -> Schema:
    """Drops the keys of a schema that only shrinking reads."""
    return {name: value for name, value in schema.items() if name not in OURS}


def error(*names: str) -> Schema:
    return record(error={"enum": list(names)})


def list_of(*schemas: Schema) -> Schema:
    return {"type": "array", "items": any_of(*schemas)}


def any_of(*schemas: Schema) -> Schema:
    """Makes the schema of what is one of these; choices among them are flattened."""
    flat = [one for schema in schemas for one in schema.get("anyOf", [schema])]
    return flat[0] if len(flat) == 1 else {"anyOf": flat}


NOTHING = record()
USAGE = error("usage")
SKIPPED = record(skipped={"type": "string", "minLength": 1})
OFFSET = record(offset=NUMBER)
RESULT = record(result=BOOLEAN)
REFUSAL = error("usage", "cache-full", "not-supported", "shared")

ROW_ANSWER = record(visible=PLACES)
STATE_ANSWER = record(visible=PLACES, states=ROWS)
IMAGE_ANSWER = record(cached=BOOLEAN, stored=STORED)
# Kind → the answer of its passes, for kinds that differ from the others.
PASSES: Mapping[str, Schema] = {
    "encoder": IMAGE_ANSWER,
    "recurrent": STATE_ANSWER,
    "wrapper": record(caches=list_of(ROW_ANSWER, STATE_ANSWER, IMAGE_ANSWER)),
}

LAYER: Mapping[str, Schema] = {
    "update": any_of(record(offset=NUMBER, visible=ROWS), USAGE),
    "state": record(tags=TAGS),
    "view": record(tags=TAGS),
    "size": record(size=NUMBER),
    "trim": any_of(record(trimmed=NUMBER, offset=NUMBER), USAGE),
    "clone": NOTHING,
    "free": OFFSET,
    "snapshot": record(range=RANGE),
    "restore": record(ok=BOOLEAN, offset=NUMBER),
    "split": record(parent=RANGE, child=RANGE),
    "merge": any_of(record(range=RANGE), USAGE),
    "close": NOTHING,
    "prepare": any_of(NOTHING, USAGE),
    "take": record(ranges=RANGES),
}


PLACED: Sequence[Mapping[str, Schema]] = ({}, {"position": NUMBER}, {"offset": NUMBER})
BATCH_ROWS = list_of(
    *(record(visible=ROWS, **place) for place in PLACED),
    record(position=NUMBER, offset=NUMBER, visible=ROWS),
)
ROWS_OFFSETS = any_of(record(offsets=OFFSETS), NOTHING, USAGE)
BATCHED: Mapping[str, Schema] = {
    **dict.fromkeys(
        (
            *("open", "pad_right", "finalize", "filter", "select", "repeat"),
            *("extend", "stack", "load"),
        ),
        ROWS_OFFSETS,
    ),
    "update": any_of(record(caches=BATCH_ROWS), LAYER["update"]),
    "trim": any_of(
        record(trimmed=NUMBER, offsets=OFFSETS), record(trimmed=NUMBER), LAYER["trim"]
    ),
    "rollback": any_of(
        record(done=BOOLEAN, offsets=OFFSETS), record(done=BOOLEAN), USAGE
    ),
    "extract": any_of(OFFSET, USAGE),
    "save": any_of(NOTHING, USAGE),
    "state": any_of(record(caches=list_of(record(tags=TAGS))), LAYER["state"], USAGE),
    "size": any_of(record(sizes=TAGS), LAYER["size"], USAGE),
    "clone": any_of(NOTHING, USAGE),
    "free": any_of(record(offsets=OFFSETS), NOTHING, OFFSET, USAGE),
}


def get_batched(kind: str) -> Mapping[str, Schema]:
    if kind != "batch-list":
        return BATCHED
    made = {name: BATCHED[name] for name in ("save", "clone")}
    return {name: nest(schema) for name, schema in BATCHED.items()} | made


def nest(schema: Schema) -> Schema:
    """Makes the schema of the answer of a list, whose caches answer so."""
    nested = []
    for one in schema.get("anyOf", [schema]):
        fields = dict(one["properties"])
        kept = {name: fields.pop(name) for name in OF_LISTS if name in fields}
        own = {} if "error" in kept else {"caches": list_of(record(**fields))}
        nested.append(record(**kept, **own))
    return any_of(*nested)


OF_LISTS = ("error", "trimmed", "done")
"""Fields that a list answers for all its caches."""


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


HELD = {"offsets": OFFSETS, "caches": list_of(record(tags=TAGS), NOTHING)}
READ = record(offsets=OFFSETS, caches=list_of(record(visible=ROWS), NOTHING))
STATISTICS = record(**dict.fromkeys(COUNTED, NUMBER))
STORES: Mapping[str, Schema] = {
    "session": record(tokens=NUMBER),
    "trie": record(tokens=NUMBER, bytes=NUMBER),
}


def get_conversations(kind: str) -> Mapping[str, Schema]:
    """Returns operation → schema of its answer, for a session or a trie."""
    # A generated token that is not a token is refused after the pass.
    refused = [add(each, error=USAGE["properties"]["error"]) for each in (READ, FED)]
    return {
        "begin": any_of(record(remaining=TOKENS, **HELD), USAGE),
        "feed": any_of(READ, FED, *refused),
        "break": READ,
        "overrun": READ,
        "close": any_of(record(stored=NUMBER), USAGE),
        "cancel": any_of(record(stored=NUMBER), USAGE),
        "refuse": NOTHING,
        "checkpoint": NOTHING,
        "count": STORES[kind],
        "statistics": STATISTICS,
        "free": any_of(record(**HELD), USAGE),
        "limit": any_of(NOTHING, USAGE),
        "open": USAGE,
    }


FED = record(offsets=OFFSETS)


def add(schema: Schema, **fields: Schema) -> Schema:
    return record(**{**schema["properties"], **fields})


SLOT = record(offsets=OFFSETS, tokens=TOKENS, remaining=TOKENS)
POSITIONS = {"positions": TAGS}
SHOWN = (ROW_ANSWER, STATE_ANSWER, PASSES["wrapper"])


def get_slots() -> Mapping[str, Schema]:
    refused, usage = REFUSAL["properties"]["error"], USAGE["properties"]["error"]
    passes = [add(SLOT, **POSITIONS, **shown["properties"]) for shown in SHOWN]
    # A generated token that is not a token is refused after the pass.
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
        "statistics": STATISTICS,
        "open": USAGE,
        "reserve": USAGE,
        "commit": USAGE,
    }


def one_of(schema: Schema) -> Schema:
    """Makes the schema of a value, or of several that are allowed."""
    return any_of(schema, record(one_of=list_of(schema)))


PLACE_OR_NONE: Schema = {"type": ["integer", "null"], "minimum": 0}
READS = record(first=NUMBER, slots=TAGS)
PAGED: Mapping[str, Schema] = {
    **dict.fromkeys(("open", "accept", "preempt", "free"), any_of(NOTHING, USAGE)),
    **dict.fromkeys(("offload", "landed"), any_of(NOTHING, USAGE)),
    "load": any_of(record(loaded=one_of(PLACE_OR_NONE)), USAGE),
    "failed": any_of(record(kept=one_of(NUMBER)), USAGE),
    "save": record(saved=BOOLEAN),
    "restore": NOTHING,
    "match": any_of(record(hit=one_of(NUMBER)), USAGE),
    "schedule": any_of(record(start=one_of(PLACE_OR_NONE)), USAGE),
    "run": record(caches=list_of(READS, record(state=TAGS))),
    "fork": any_of(record(ok=one_of(BOOLEAN)), USAGE),
    "rewind": any_of(record(ok=one_of(BOOLEAN)), USAGE),
    "evict": record(evicted=record(between=PLACE)),
    "reset": record(ok=BOOLEAN),
}


def get_answers(contract: str, kind: str) -> Mapping[str, Any]:
    """Maps each operation of the kind to the schema of its answer."""
    answers: Mapping[str, Schema] = LAYER
    if contract == "batched":
        answers = get_batched(kind)
    elif contract == "unified":
        answers = get_unified(kind)
    elif contract == "paged":
        answers = PAGED
    elif contract == "prefix":
        answers = get_slots() if kind == "slots" else get_conversations(kind)
    return {name: answers[name] for name in CONTRACTS[contract].list_operations(kind)}


# --- a line -----------------------------------------------------------------------------


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_schema() -> dict[str, Any]:
    """Makes the schema: for each kind a branch with its config, operations and answers.

    It cannot say that each operation has one answer, nor which answers belong to it.
    """
    branches = [
        make_branch(rules, kind) for rules in CONTRACTS.values() for kind in rules.kinds
    ]
    return {
        "$schema": DIALECT,
        "title": f"One line of a set of vectors: {TRACE_FORMAT}",
        **record(
            format={"const": TRACE_FORMAT},
            program=record(
                format={"const": FORMAT},
                contract={"enum": list(CONTRACTS)},
                config={"type": "object", "required": ["kind"]},
                ops={"type": "array", "maxItems": MAX_OPERATIONS},
                meta=record(name={"type": "string"}, level={"type": "string"}),
            ),
            expected={"type": "array", "maxItems": MAX_OPERATIONS},
        ),
        "anyOf": [branch["if"] for branch in branches],
        "allOf": branches,
        "$defs": make_definitions(),
    }


def make_definitions() -> dict[str, Any]:
    """Maps "CONTRACT-OPERATION" to the schema of the operation."""
    return {
        f"{rules.name}-{name}": record(op={"const": name}, **operation.fields)
        for rules in CONTRACTS.values()
        for name, operation in rules.operations.items()
    }


def make_branch(rules: Contract, kind: str) -> dict[str, Any]:
    """Makes the branch of a kind: if a line is of this kind, it has these fields."""
    config = record(**rules.config)
    answers = list_distinct([*get_answers(rules.name, kind).values(), SKIPPED])
    fields = {
        "program": having(config=config, ops={"items": choose_operation(rules, kind)}),
        "expected": {"items": {"anyOf": answers}},
    }
    return {"if": select(rules.name, kind), "then": having(**fields)}


def select(contract: str, kind: str) -> dict[str, Any]:
    """Makes the schema that matches the lines of this kind."""
    own = having(contract={"const": contract}, config=having(kind={"const": kind}))
    return having(program=own)


def having(**fields: Schema) -> dict[str, Any]:
    """Makes the schema of an object with these fields, and any others."""
    return {"properties": fields, "required": sorted(fields)}


def choose_operation(rules: Contract, kind: str) -> dict[str, Any]:
    """Makes the schema of an operation of the kind, selected by its name.

    So an error names the wrong field, and not all operations that do not match.
    """
    names = rules.list_operations(kind)
    return {
        "type": "object",
        **having(op={"enum": list(names)}),
        "allOf": [
            {
                "if": having(op={"const": name}),
                "then": {"$ref": f"#/$defs/{rules.name}-{name}"},
            }
            for name in names
        ],
    }


def list_distinct(schemas: Sequence[Schema]) -> list[Schema]:
    """Lists each alternative of these schemas once."""
    flat = [one for schema in schemas for one in schema.get("anyOf", [schema])]
    return list({json.dumps(one, sort_keys=True): one for one in flat}.values())
