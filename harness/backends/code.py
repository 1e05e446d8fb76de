"""The code of programs in a framework's own API, as an adapter declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Call:
    """The code of one operation.

    Attributes:
        text: lines of Python with fields in braces: those of the operation, {cache} and
            {into} as variables, {written} for the tags of the tokens that it writes.
        answers: name in the reference's answer → the expression that must equal it. In an
            answer about several caches {layer} is the number of the cache.
    """

    text: str
    answers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Code:
    """The code for programs of one config.

    Attributes:
        source: a Python file that imports the framework alone. A snippet gets a copy of
            the imports, functions and constants that it uses.
        settings: constant of that file → the expression that replaces its value.
        opening: the expression that makes an empty cache.
        calls: operation → its code; an operation that is not named cannot be written.
    """

    source: Path
    settings: Mapping[str, str]
    opening: str
    calls: Mapping[str, Call]
