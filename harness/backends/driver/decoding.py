"""Lines of a driver as structs, and what is wrong with a line, in words."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeVar, get_args

import msgspec

from lockstep.harness.backends.backend import Alignment
from lockstep.harness.backends.driver.messages import (
    PROTOCOL,
    ArrayDtype,
    Dtype,
    ErrorName,
)
from lockstep.harness.core.document import suggest
from lockstep.harness.core.errors import clean

T = TypeVar("T", bound=msgspec.Struct)

# Types as msgspec names them → as authors of drivers know them.
TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
    "bool | int | float | null": "a number or null",
}

# What may stand in a field that takes a few values.
CHOICES = {
    "op": "the name of the operation",
    "protocol": f"{PROTOCOL}, the version that the harness speaks",
    "dtype": f"one of {', '.join(get_args(ArrayDtype))}",
    "dtypes": f"one of {', '.join(get_args(Dtype))}",
    "causal": f"one of {', '.join(get_args(Alignment))}",
    "error": f"one of {', '.join(get_args(ErrorName))}",
    "mask": 'null, "causal" or an array',
}


class Malformed(Exception):
    """An answer does not have the form that its message asks for."""


def say(value: Any) -> str:
    """A value of JSON, for a sentence."""
    if isinstance(value, list) and len(value) > 8:
        return f"a list of {len(value)}"
    return clean(json.dumps(value, ensure_ascii=False), 80)


def refuse(constant: str) -> NoReturn:
    raise Malformed(
        f"it holds {constant}, which JSON does not have: write null for NaN, 1e999 and"
        " -1e999 for infinity"
    )


DECODER = json.JSONDecoder(parse_constant=refuse)
"""Not msgspec's own, which refuses 1e999."""


def decode(line: bytes) -> dict[str, Any]:
    """A line as an object of JSON. Raises Malformed."""
    try:
        answer = DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise Malformed(f"byte {error.start} of the line is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        shown = clean(line[:400].decode(errors="replace"), 60)
        raise Malformed(f"the line is not JSON ({clean(str(error))}): {shown}") from None
    if not isinstance(answer, dict):
        raise Malformed(f"the line is {say(answer)}, not an object")
    return answer


def parse(document: Any, kind: type[T], place: str = "the answer", *, strict: bool) -> T:
    """A document as a struct. Raises Malformed.

    Args:
        document: what was decoded.
        kind: the struct that it should be.
        place: what to call the document in a message.
        strict: whether fields that the struct does not have are refused.
    """
    try:
        parsed = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise Malformed(explain(str(error), document, place)) from None
    if strict:
        require_no_more(document, parsed, place)
    return parsed


def explain(text: str, document: Any, place: str) -> str:
    """Words for the error of msgspec in a document, with its place and its value."""
    found = re.fullmatch(r"(.*?)(?: - at `(?:key` in `)?\$([^`]*)`)?", text, re.DOTALL)
    words, path = (found[1], found[2] or "") if found else (text, "")
    fields = re.findall(r"\.(\w+)", path)
    value = document
    for name, at in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        value = value[name or int(at)]
    place = path.removeprefix(".") or place
    missing = re.fullmatch(r"Object missing required field `(\w+)`", words)
    if missing:
        return f"{place} has no {missing[1]}"
    if words.startswith("Invalid enum value"):
        return f"{place} is {say(value)}; expected {CHOICES[fields[-1]]}"
    expected = re.fullmatch(r"Expected `([^`]*)`(.*?)(, got .*)?", words)
    if expected:
        kinds = TYPES.get(expected[1]) or " or ".join(
            TYPES[each] for each in expected[1].split(" | ")
        )
        return f"{place} is {say(value)}; expected {kinds}{expected[2]}"
    return f"{place} {words}"


def require_no_more(document: Any, parsed: Any, place: str) -> None:
    """Raises Malformed for a field that its struct does not have, however deep, and for
    an item that stands twice in a set."""
    if isinstance(parsed, frozenset) and len(parsed) != len(document):
        raise Malformed(f"{place} has an item twice")
    if isinstance(parsed, list) and place != "data":
        for value, item in zip(document, parsed, strict=True):
            require_no_more(value, item, place)
    if isinstance(parsed, msgspec.Struct):
        fields = dict.fromkeys(parsed.__struct_fields__)
        for name, value in document.items():
            if name not in fields:
                hint = suggest(name, fields)
                raise Malformed(
                    f"{place} has {say(name)}, which its schema does not have{hint}"
                )
            require_no_more(value, getattr(parsed, name), name)
