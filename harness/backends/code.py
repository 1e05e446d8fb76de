"""How a program is written in a framework's own API: what an adapter says of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Call:
    """One operation.

    text: lines of Python in which braces stand for what a program has: the fields of the
    operation, {cache} and {into} as variables, {written} the tags of the tokens that it
    writes.
    answers: for each name in what the reference answers, the expression that must come to
    the same; of an answer about several caches {layer} is the number of the cache.
    """

    text: str
    answers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Code:
    """The code for programs of one config.

    source: a Python file that imports the framework alone; its imports, functions and
    names in capitals are copied into a snippet that uses them.
    settings: names of that file that are set to something else here, as expressions.
    opening: the expression that makes an empty cache.
    calls: operation → how it is written; an operation without a call cannot be.
    """

    source: Path
    settings: Mapping[str, str]
    opening: str
    calls: Mapping[str, Call]
