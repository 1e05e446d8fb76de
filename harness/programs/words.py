"""Describes failures: config, steps, and the origin of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from lockstep.harness.contracts.operation import (
    Answer,
    Op,
    get_first_allowed,
    list_allowed,
)
from lockstep.harness.core.document import NAMES, drop_defaults
from lockstep.harness.core.errors import clean
from lockstep.harness.programs.program import Divergence, Program, walk


def describe_failure(
    program: Program, step: int | None, what: str, message: str, most: int | None = None
) -> Iterator[str]:
    """Describes a failure in lines: the config, the steps, what differs.

    Args:
        program: the failing program.
        step: the step that diverges; None if it is not known.
        what: the name of the difference.
        message: the difference as a sentence.
        most: the number of last steps to list; None for all.
    """
    yield f"{program.kind} cache, {clean(describe_config(program))}"
    last = len(program.ops) - 1  # -1 without operations, if the opening fails
    last = last if step is None else min(step, last)
    first = 0 if most is None else max(0, last + 1 - most)
    if first:
        yield f"  steps 0 to {first - 1} are left out"
    for number, description in enumerate(list_steps(program, step, last)[first:], first):
        yield f"{'→' if number == step else ' '} step {number}: {description}"
    yield f"{what}: {message}"


MAX_STORY = 1 << 21
"""The maximum of operations times tokens for which a report runs a program on the
reference. A report may look at every token after every step."""


def is_long(program: Program) -> bool:
    """Returns whether a program is too long to run on the reference for a report."""
    return len(program.ops) * program.count_tags() > MAX_STORY


# --- steps ------------------------------------------------------------------------------


NEGATIVE = ("result", "ok", "done", "trimmed", "range", "parent", "child")
"""Answer fields whose value false or null means that an operation had no result."""


REFUSED = "refused: "


def list_steps(program: Program, failing: int | None, last: int) -> list[str]:
    """Describes the steps up to step `last`.

    The description of a step has its result if the step was refused, was skipped, or did
    less than requested.

    `failing` is the step that diverges; its description has the expected result. Steps
    after a choice of the backend have no results, and very long programs have no results
    at all.
    """
    operations, ops = program.rules.operations, program.ops[: last + 1]
    steps = [operations[op["op"]].describe(op) for op in ops]
    if is_long(program):
        return steps
    for step in islice(walk(program, rows=False), last + 1):
        answer = {} if step.skipped else step.run_reference()
        outcome = describe_outcome(step.skipped, step.op, answer)
        steps[step.number] += format_outcome(outcome, step.number == failing)
        if step.answer is not None and get_first_allowed(step.answer) is not step.answer:
            break
    return steps


def describe_outcome(skipped: str | None, op: Op, answer: Answer) -> str:
    """Describes the result of a step that was skipped or refused, or that did too little.

    Returns "" for all other steps.
    """
    if skipped:
        return f"skipped: {skipped}"
    answers = list_allowed(answer)
    refusals = list(dict.fromkeys(allowed.get("error") for allowed in answers))
    if len(refusals) > 1 or refusals[0]:
        return "" if None in refusals else REFUSED + " or ".join(map(str, refusals))
    count, trimmed = op.get("count"), answer.get("trimmed")
    if type(count) is type(trimmed) is int and count != trimmed:
        return f"trimmed {trimmed}"
    lacking_fields = {name: answer[name] for name in NEGATIVE if name in answer}
    lacking = [f"no {name}" for name, value in lacking_fields.items() if value is None]
    is_false = any(value is False for value in lacking_fields.values())
    return "false" if is_false else ", ".join(lacking)


def format_outcome(outcome: str, is_failing: bool) -> str:
    """Formats the result of a step.

    For the step that diverges, an expected refusal is shown, and no other result: the
    message of the divergence has all other expected results.
    """
    if not is_failing:
        return f" → {outcome}" if outcome else ""
    return f" (expected: {outcome})" if outcome.startswith(REFUSED) else ""


# --- unusual features of a program ------------------------------------------------------


def list_traits(program: Program, op: Op) -> list[str]:
    """Lists the unusual features of an operation.

    The features are the operation's name, if the operation is optional, and each field
    whose value is not the default. Fields with names, such as names of caches, are
    skipped.
    """
    fields = program.rules.operations[op["op"]].fields
    optional = {
        name: schema
        for name, schema in fields.items()
        if "default" in schema and NAMES not in schema
    }
    is_optional = op["op"] not in program.rules.required
    changed = drop_defaults({name: op[name] for name in optional}, optional)
    return [op["op"]] * is_optional + [f"{op['op']} with {name}" for name in changed]


def is_special(program: Program, op: Op) -> bool:
    return bool(list_traits(program, op))


def describe_line(program: Program, step: int | None, message: str) -> str:
    """Describes a failure in a line: unusual operations, failing step, difference."""
    operations, ops = program.rules.operations, program.ops
    at = len(ops) - 1 if step is None else min(step, len(ops) - 1)
    special = [op for op in ops[: max(0, at)] if is_special(program, op)]
    after = ", ".join(operations[op["op"]].describe(op) for op in special[:MOST_SPECIAL])
    ellipsis = ", …" if len(special) > MOST_SPECIAL else ""
    where = operations[ops[at]["op"]].describe(ops[at]) if ops else "open"
    begin = f"after {after}{ellipsis}: " if after else ""
    return f"{program.kind}: {begin}{where}: {message}"


MOST_SPECIAL = 3


# --- the config -------------------------------------------------------------------------


def describe_config(program: Program) -> str:
    fields = drop_defaults(program.config, program.rules.config)
    fields.pop("kind", None)
    descriptions = [format_field(name, value) for name, value in fields.items()]
    return ", ".join(descriptions) or "default config"


def format_field(name: str, value: Any) -> str:
    """Formats a field of a config for people."""
    label = name.replace("_", " ")
    if isinstance(value, bool):
        return label if value else f"no {label}"
    return f"{label} {format_value(value)}"


def format_value(value: Any) -> str:
    """Formats the value of a config field; a cache or a group begins with its kind."""
    if isinstance(value, Mapping):
        fields = dict(value)
        name = fields.pop("kind", None) or fields.pop("type")
        return " ".join(map(str, [name, *chain.from_iterable(fields.items())]))
    if isinstance(value, list):
        return " + ".join(map(format_value, value))
    return "none" if value is None else str(value)


# --- tokens -----------------------------------------------------------------------------


MOST = 4
"""The maximum number of tokens whose origin is described."""


@dataclass
class Life:
    """The position of a token, and the steps that wrote and removed it."""

    position: int
    written: int
    removed: int | None = None


def describe_token(tag: int, life: Life | None) -> str:
    if life is None:
        return f"token {tag} was never written"
    text = f"token {tag} was written in step {life.written} at position {life.position}"
    if life.removed is not None:
        text += f", and no cache holds it since step {life.removed}"
    return text


def list_lives(program: Program, last: int) -> Mapping[int, Life]:
    """Returns tag → `Life` for every token until step `last`, from the reference."""
    lives: dict[int, Life] = {}
    for step in islice(walk(program, rows=False), last + 1):
        step.finish()
        live = step.model.list_live()
        for tag, position in live.items():
            lives.setdefault(tag, Life(position, step.number)).removed = None
        for tag, life in lives.items():
            if tag not in live and life.removed is None:
                life.removed = step.number
    return lives


def tell_tokens(program: Program, divergence: Divergence) -> Iterator[str]:
    """Describes the origin of each token that a divergence mentions."""
    if not divergence.tokens or is_long(program):
        return
    lives = list_lives(program, divergence.step)
    for tag in list(dict.fromkeys(divergence.tokens))[:MOST]:
        yield describe_token(tag, lives.get(tag))
