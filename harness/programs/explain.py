"""A failure in words: config, steps, divergence, history of its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lockstep.harness.core.document import drop_defaults
from lockstep.harness.core.errors import clean
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.programs.walk import walk

MOST = 4
"""Tokens whose history is told."""


@dataclass
class Life:
    """The position of a token, and the steps that wrote and removed it."""

    position: int
    written: int
    removed: int | None = None


MAX_STORY = 1 << 21
"""Operations times tokens of a program whose tokens' lives are told: the walk looks at
every token after every step."""


def describe_failure(
    program: Program, step: int | None, what: str, message: str, most: int | None = None
) -> Iterator[str]:
    """A failure in words, a line each: the config, the steps, what differs.

    Args:
        program: the failing program.
        step: the step that diverges; None if it is not known.
        what: what differs, in a word.
        message: the same in a sentence.
        most: how many of the last steps are listed; None for all.
    """
    yield f"{program.kind} cache, {clean(describe_config(program))}"
    last = len(program.ops) - 1 if step is None else step
    first = 0 if most is None else max(0, last + 1 - most)
    if first:
        yield f"  steps 0 to {first - 1} are left out"
    for number in range(first, last + 1):
        op = program.ops[number]
        mark = "→" if number == step else " "
        words = program.rules.operations[op["op"]].describe(op)
        yield f"{mark} step {number}: {words}"
    yield f"{what}: {message}"


def describe_config(program: Program) -> str:
    fields = drop_defaults(program.config, program.rules.config)
    fields.pop("kind", None)
    words = [say_field(name, value) for name, value in fields.items()]
    return ", ".join(words) or "default config"


def say_field(name: str, value: Any) -> str:
    """A field of a config, as a person would call it."""
    words = name.replace("_", " ")
    if isinstance(value, bool):
        return words if value else f"no {words}"
    return f"{words} {say_value(value)}"


def say_value(value: Any) -> str:
    """A field of a config in words."""
    if isinstance(value, Mapping):
        rest = [part for item in value.items() if item[0] != "kind" for part in item]
        return " ".join(map(str, [value["kind"], *rest]))
    if isinstance(value, list):
        return " + ".join(map(say_value, value))
    return "none" if value is None else str(value)


def describe_token(tag: int, life: Life | None) -> str:
    if life is None:
        return f"token {tag} was never written"
    text = f"token {tag} was written in step {life.written} at position {life.position}"
    if life.removed is not None:
        text += f", and no cache holds it since step {life.removed}"
    return text


def list_lives(program: Program, last: int) -> Mapping[int, Life]:
    """The life of every token until step `last`, from the reference."""
    lives: dict[int, Life] = {}
    for step in islice(walk(program, rows=False), last + 1):
        step.finish()
        live = program.rules.list_live(step.model)
        for tag, position in live.items():
            lives.setdefault(tag, Life(position, step.number)).removed = None
        for tag, life in lives.items():
            if tag not in live and life.removed is None:
                life.removed = step.number
    return lives


def tell_tokens(program: Program, divergence: Divergence) -> Iterator[str]:
    """Tells where the tokens come from that a divergence is about."""
    if not divergence.tokens or len(program.ops) * program.count_tokens() > MAX_STORY:
        return
    lives = list_lives(program, divergence.step)
    for tag in list(dict.fromkeys(divergence.tokens))[:MOST]:
        yield describe_token(tag, lives.get(tag))
