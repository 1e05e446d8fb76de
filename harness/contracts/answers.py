"""Answers of a backend that are no arrays, and its refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.harness.core.errors import Broken, clean, format_plain


def ask_backend(
    call: Callable[[], Any], errors: Mapping[str, type[Exception]]
) -> dict[str, Any]:
    """Returns {"error": name, "why": in its words} if the backend refuses, else
    {"result": value} or {}.

    Args:
        call: asks the backend.
        errors: the exceptions that it declares, by name; see `Backend.errors`. Of two
            that fit, the more special one counts.
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
    """Returns a sequence that a backend answered, as a list; else raises Broken."""
    try:
        items = list(answer) if is_list(answer) else None
    except TypeError:
        items = None
    if items is None or length not in (None, len(items)):
        wanted = "a list" if length is None else f"a list of {length}"
        raise Broken("malformed", f"{name} returned {format_plain(answer)}, not {wanted}")
    return items


def is_list(answer: Any) -> bool:
    """Says whether an answer can be a list; one that is costs no look at what it is."""
    return isinstance(answer, LISTS) or not isinstance(answer, str | bytes | Mapping)


LISTS = (list, tuple)


def read_object(answer: Any, attributes: Sequence[str], name: str, noun: str) -> Any:
    """Returns a cache or snapshot that a backend answered.

    Args:
        answer: what came back.
        attributes: what it must have.
        name: the operation that returned it.
        noun: what it should be.

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
