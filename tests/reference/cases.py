"""Tables of cases: a name, and below it, further in, what is made and what happens to it.

a window of 1 is two tokens
    swa window=1 | forward 0 1 2 > 0 / 0 1 / 1 2; forward 3 > 2 3  # a comment
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pytest


class Named(Protocol):
    @property
    def name(self) -> str: ...


def read_table(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yields the name of each case, what stands before its bar, and its steps. A line
    that begins with # is a heading."""
    text = re.sub(r"^#.*\n", "", text.strip("\n"), flags=re.MULTILINE)
    for case in re.split(r"\n(?! )", text):
        name, *lines = case.split("\n")
        body = " ".join(line.split("#")[0].strip() for line in lines).strip()
        head, _, script = body.partition(" | ")
        yield name, head, script.split("; ")


def read_words(text: str) -> tuple[list[str], dict[str, Any]]:
    """Splits text into words and what is given by name."""
    words = text.split()
    named = dict(word.split("=") for word in words if "=" in word)
    return (
        [word for word in words if "=" not in word],
        {name: read_value(value) for name, value in named.items()},
    )


def read_value(word: str) -> Any:
    """Reads a number, a list of numbers, None, a truth value, or else a word."""
    literal = re.match(r"\[|-?\d", word) or word in ("None", "True", "False")
    return ast.literal_eval(word) if literal else word.strip("-")


def each(cases: Sequence[Named]) -> pytest.MarkDecorator:
    names = [one.name for one in cases]
    assert len(set(names)) == len(names)
    return pytest.mark.parametrize("one", cases, ids=names)
