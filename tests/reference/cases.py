"""Tables of cases: a name, and below it, further in, what is made and what happens to it.

a window of 2
    rotating window=2 | fill 3; see 2 > 11 12; trim 1 > 0  # a comment

A step is a call, which a `Desk` makes, and behind ">" its answer: "yes" or "no", a
number, tokens or tags, "-" for none of them, or the error; nothing if it returns None.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Case:
    """A case: what stands before the bar is its head."""

    name: str
    head: str
    steps: Sequence[str]


def read_table(text: str) -> list[Case]:
    """Reads cases. A line that begins with # is a heading."""
    text = re.sub(r"^#.*\n", "", text.strip("\n"), flags=re.MULTILINE)
    cases = []
    for case in re.split(r"\n(?! )", text):
        name, *lines = case.split("\n")
        body = " ".join(line.split("#")[0].strip() for line in lines).strip()
        head, _, script = body.partition(" | ")
        cases.append(Case(name, head, script.split("; ")))
    return cases


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


class Desk:
    """Makes the calls of a case: by a method `do_WORD`, or by the method of the cache."""

    cache: Any = None

    def check(self, steps: Sequence[str]) -> None:
        for number, step in enumerate(steps):
            call, _, expected = step.partition(" > ")
            (word, *arguments), named = read_words(call)
            method = getattr(self, f"do_{word}", None) or getattr(self.cache, word)
            try:
                answer = say(method(*map(read_value, arguments), **named))
            except ValueError as error:
                answer = f"error: {error}"
            assert answer == expected, f"step {number}, {call}: {answer}"


def say(answer: Any) -> str:
    if answer is None or isinstance(answer, str):
        return answer or ""
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    if isinstance(answer, int):
        return str(answer)
    return " ".join(str(getattr(token, "tag", token)) for token in answer) or "-"


def each(cases: Sequence[Any]) -> pytest.MarkDecorator:
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    return pytest.mark.parametrize("case", cases, ids=names)
