"""The schemas of all messages, in schemas/, and whether a message keeps to its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from referencing import Registry, Resource

from lockstep.harness.backends.driver.fields import Malformed
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.printable import clean

NAMES = ("common", "session", "layer", "unified", "prefix")


def check_request(contract: str, operation: str, request: Mapping[str, Any]) -> None:
    """Of the harness. Raises UsageError: it is the harness that is wrong then."""
    error = find_error(contract, f"{operation}.request", request)
    if error is not None:
        raise UsageError(f"the harness itself wrote a wrong '{operation}': {say(error)}")


def check_answer(contract: str, operation: str, answer: Mapping[str, Any]) -> None:
    """Of a driver. Raises Malformed."""
    place = (contract, f"{operation}.answer")
    if "error" in answer:
        place = ("common", "error")
    error = find_error(*place, answer)
    if error is not None:
        raise Malformed(say(error))


def find_error(contract: str, name: str, message: Any) -> ValidationError | None:
    worst: ValidationError | None = best_match(
        get_validator(contract, name).iter_errors(message)
    )
    return worst


def say(error: ValidationError) -> str:
    """What is wrong, and where."""
    place = "".join(f"[{json.dumps(part)}]" for part in error.absolute_path)
    return f"by its schema{place and f', at {place}'}: {clean(error.message, 160)}"


FLAT = {"type": ["number", "boolean", "null"]}
PLAIN = {int, float, bool, type(None)}


def check_items(
    validator: Any, items: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    """`items` as ever; the numbers of an array, of which there are many, all at once."""
    is_flat = items == FLAT and isinstance(instance, list)
    if not is_flat or not set(map(type, instance)) <= PLAIN:
        yield from Draft202012Validator.VALIDATORS["items"](
            validator, items, instance, schema
        )


Validator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {"items": check_items}
)


@cache
def get_validator(contract: str, name: str) -> Draft202012Validator:
    schema = {"$ref": f"{contract}.json#/$defs/{name}"}
    validator: Draft202012Validator = Validator(schema, registry=get_registry())
    return validator


@cache
def get_registry() -> Registry[Any]:
    resources = [(f"{name}.json", Resource.from_contents(load(name))) for name in NAMES]
    registry: Registry[Any] = Registry()
    return registry.with_resources(resources)


def load(name: str) -> Any:
    """One of the schemas in this folder."""
    text = (
        files("lockstep.harness.backends.driver") / "schemas" / f"{name}.json"
    ).read_text()
    return json.loads(text)
