"""Reads a backend's refusals and its answers that are not arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
            raise Broken("error", f"a {name} error came without a message") from error
        return {"error": name, "why": clean(str(error))}
    return {} if result is None else {"result": result}


def read_list(answer: Any, name: str, length: int | None = None) -> list[Any]:
    """Returns a backend's answer as a list.

    Args:
        answer: the returned value.
        name: the operation that returned the value.
        length: the required length; None for any length.

    Raises:
        Broken: the answer is not a list, or has another length.
    """
    items = None
    if not isinstance(answer, str | bytes | Mapping):
        with suppress(TypeError):
            items = list(answer)
    if items is None or length not in (None, len(items)):
        wanted = "a list" if length is None else f"a list of {length}"
        raise Broken("malformed", f"{name} returned {format_plain(answer)}, not {wanted}")
    return items


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
