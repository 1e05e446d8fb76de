"""Makes the JSON Schemas of all messages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import schema_components

from lockstep.harness.backends.driver.messages import (
    COMMON,
    Protocol,
    get_operation,
)

FOLDER = Path(__file__).with_name("schemas")
DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE = "common.json#/$defs/"


def make_documents(protocol: Protocol) -> dict[str, Any]:
    """Returns file name → the schemas in the file."""
    common = {name: describe([kind]) for name, kind in COMMON.items()}
    documents = {"common": common}
    for contract, messages in protocol.messages.items():
        schemas: dict[str, Any] = {}
        for operation in dict.fromkeys(map(get_operation, messages)):
            variants = [name for name in messages if get_operation(name) == operation]
            requests = [protocol.get_request(contract, name) for name in variants]
            answers = [protocol.get_answer(contract, name) for name in variants]
            schemas[f"{operation}.request"] = describe(requests)
            schemas[f"{operation}.answer"] = describe(answers)
        documents[contract] = schemas
    return {
        name: {"$schema": DIALECT, "$id": f"{name}.json", "$defs": schemas}
        for name, schemas in documents.items()
    }


def describe(variants: Iterable[type[Struct]]) -> dict[str, Any]:
    """Returns the schema of a struct, or the alternatives of several structs."""
    texts = dict.fromkeys(json.dumps(describe_one(kind)) for kind in variants)
    different: list[dict[str, Any]] = list(map(json.loads, texts))
    return different[0] if len(different) == 1 else {"anyOf": different}


def describe_one(kind: type[Struct]) -> dict[str, Any]:
    _, components = schema_components([kind], ref_template=REFERENCE + "{name}")
    schema: dict[str, Any] = components[kind.__name__]
    del schema["title"]
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    text = json.dumps({**schema, "additionalProperties": False})
    for name, struct in COMMON.items():
        text = text.replace(f'"{REFERENCE}{struct.__name__}"', f'"{REFERENCE}{name}"')
    described: dict[str, Any] = json.loads(text)
    return described


def write_documents(protocol: Protocol) -> None:
    for name, document in make_documents(protocol).items():
        (FOLDER / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
