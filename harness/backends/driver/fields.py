"""The fields of what a driver answers, looked at by hand: types and shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lockstep.harness.core.printable import clean

Answer = Mapping[str, Any]

MOST = 80


class Malformed(Exception):
    """An answer is not what the message asks for. The words say what is wrong with it."""


def say(value: Any) -> str:
    """A value of JSON, for a sentence."""
    if isinstance(value, list) and len(value) > 8:
        return f"a list of {len(value)}"
    return clean(json.dumps(value, ensure_ascii=False), MOST)


def find(answer: Answer, name: str) -> Any:
    if name not in answer:
        raise Malformed(f"the answer has no {name}")
    return answer[name]


def find_number(answer: Answer, name: str) -> int:
    """A whole number; one that is negative may be wrong, but is a number."""
    value = find(answer, name)
    if type(value) is not int:
        raise Malformed(f"{name} is {say(value)}, not a whole number")
    return value


def find_bool(answer: Answer, name: str) -> bool:
    value = find(answer, name)
    if type(value) is not bool:
        raise Malformed(f"{name} is {say(value)}, neither true nor false")
    return value


def find_list(answer: Answer, name: str) -> list[Any]:
    value = find(answer, name)
    if not isinstance(value, list):
        raise Malformed(f"{name} is {say(value)}, not a list")
    return value


def find_numbers(answer: Answer, name: str) -> list[int]:
    """A list of whole numbers."""
    values = find_list(answer, name)
    for place, value in enumerate(values):
        if type(value) is not int:
            raise Malformed(f"{name}, place {place}, is {say(value)}, no whole number")
    return values


def find_text(answer: Answer, name: str) -> str:
    """Some text on one line."""
    value = find(answer, name)
    if not isinstance(value, str) or not value.strip() or clean(value) != value:
        raise Malformed(f"{name} is {say(value)}, not a line of text")
    return value
