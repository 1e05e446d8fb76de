"""Reads a backend's refusals and its answers that are not arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import index
from typing import Any

from lockstep.harness.core.errors import Broken, clean, format_plain


def ask_backend(
    call: Callable[[], Any], errors: Mapping[str, type[Exception]]
) -> dict[str, Any]:
    """Calls the backend and returns its answer.

    Args:
        call: calls the backend.
        errors: name → exception that the backend declares; see `Backend.errors`. If
            several exceptions match, the most specific class counts.

    Returns:
        {"error": name, "why": message} if the backend refuses, {} if the call returns
        None, else {"result": value}.
    """
    usage = errors.get("usage", ValueError)
    try:
        result = call()
    except (usage, *errors.values()) as error:
        names: dict[type, str] = {usage: "usage"}
        names |= {kind: name for name, kind in errors.items()}
        name = next(names[kind] for kind in type(error).__mro__ if kind in names)
        if not str(error).strip():
            raise Broken(
                "error",
                f"a {name} error has no message; it must say why the call was refused",
            ) from error
        return {"error": name, "why": clean(str(error))}
    return {} if result is None else {"result": result}


def read_list(
    answer: Any, name: str, length: int | None = None, content: str = ""
) -> list[Any]:
    """Returns a backend's answer as a list.

    Args:
        answer: the returned value.
        name: the operation that returned the value.
        length: the required length; None for any length.
        content: a description of the list, which ends the message.

    Raises:
        Broken: the answer is not a list, or has another length.
    """
    items = None
    if not isinstance(answer, str | bytes | Mapping):
        with suppress(TypeError):
            items = list(answer)
    if items is None or length not in (None, len(items)):
        wanted = "a list" if length is None else f"a list of {length}{content}"
        raise Broken("malformed", f"{name} returned {format_plain(answer)}, not {wanted}")
    return items


def read_index(value: Any) -> int | None:
    """Returns a backend's value as an int, or None if it is not an integer.

    An integer is an object with `__index__`, such as an int or an integer array without
    axes. A bool does not count as an integer.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        return index(value)
    except Exception:  # of the framework
        return None


def require_index(value: Any, name: str) -> int:
    """Returns a backend's value as an int.

    Args:
        value: the value.
        name: the name of the value, for the message.

    Raises:
        Broken: the value is not an integer; see `read_index`.
    """
    number = read_index(value)
    if number is None:
        text = f"{format_plain(value)} ({type(value).__name__})"
        raise Broken("malformed", f"{name} is {text}, not an integer")
    return number


def read_object(answer: Any, attributes: Sequence[str], name: str, noun: str) -> Any:
    """Returns a backend's answer if it is the expected object, such as a cache.

    Args:
        answer: the returned value.
        attributes: the names of the required attributes.
        name: the operation that returned the value.
        noun: the expected object, for the message.

    Raises:
        Broken: an attribute is missing.
    """
    missing = [name for name in attributes if getattr(answer, name, None) is None]
    if missing:
        raise Broken(
            "malformed",
            f"{name} returned {format_plain(answer)}, not {noun}: it has no"
            f" {', '.join(missing)}",
        )
    return answer
