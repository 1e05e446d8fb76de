"""Defines programs with their answers, shadow states, derived programs, and the generic
relations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from lockstep.harness.contracts.contract import read_move
from lockstep.harness.contracts.operation import (
    Answer,
    Effect,
    Op,
    list_names,
    rename,
)
from lockstep.harness.core.document import NAMES
from lockstep.harness.programs.program import Program, why_too_large

CHANGES = Effect.ADDS | Effect.REMOVES | Effect.MOVES

Tags = Sequence[int]


@dataclass(frozen=True)
class Step:
    """An operation that the reference ran.

    Attributes:
        number: the index of the operation in the program.
        op: the operation with every field set.
        answer: the answer of the reference.
        tags: the tags of the operation's tokens. Tags are assigned in order: an update
            with 3 tokens gets the tags 0, 1, 2, and a following update with 2 tokens
            gets 3 and 4.
        effect: the effect of the operation on tokens.
        is_first: whether no operation ran before.
    """

    number: int
    op: Op
    answer: Answer
    tags: range
    effect: Effect
    is_first: bool

    @property
    def name(self) -> str:
        return str(self.op["op"])


@dataclass(frozen=True)
class History:
    """A program with the answers of the reference.

    Attributes:
        program: a complete program.
        steps: the operations that ran.
        shadow: the class of the family's shadow state.
    """

    program: Program
    steps: Sequence[Step]
    shadow: type[Shadow]

    def walk(self) -> Iterator[tuple[Step, Any]]:
        """Yields each step with the shadow state before the step.

        Stops when the shadow state becomes unknown. All pairs share one state object,
        which each iteration changes.
        """
        state = self.shadow(self.program)
        for step in self.steps:
            if state.is_lost:
                return
            yield step, state
            state.write(step)

    def get_state(self, step: Step) -> Any:
        """Returns the shadow state before a step."""
        return next(state for walked, state in self.walk() if walked is step)

    def split(self, step: Step) -> tuple[Sequence[Step], Sequence[Step]]:
        """Returns the steps before `step`, and the steps from `step` on."""
        index = self.steps.index(step)
        return self.steps[:index], self.steps[index:]


def make_history(
    program: Program, answers: Sequence[Answer], shadow: type[Shadow]
) -> History:
    operations = program.rules.operations
    steps: list[Step] = []
    tag = 0
    for number, (op, answer) in enumerate(zip(program.ops, answers, strict=True)):
        operation = operations[op["op"]]
        tags = range(tag, tag + operation.count_tags(op))
        if "skipped" not in answer:
            steps.append(Step(number, op, answer, tags, operation.effect, not steps))
        tag = tags.stop
    return History(program, steps, shadow)


Portion = tuple[Op, Sequence[int]]
"""An operation on some tokens of another operation, with the indices of their tags."""


class Shadow:
    """The tokens that each cache of a program holds.

    The state is computed from the operations and the answers of the reference, never from
    its caches. If a trim by 3 answers that 2 tokens were trimmed, 2 tokens are removed.
    The state is therefore the content that the reference claims to have, and relations
    check that later answers of the reference agree with it.

    A new family implements `write_NAME` for each operation whose effect changes the
    tokens. Without this method, the tokens are unknown after the operation, and no
    relation applies to a later step.

    Attributes:
        special: the relations that only this family has.
        keeps: operations that change tokens, but not the tokens in the shadow state.
        is_lost: whether the tokens are unknown after an operation.
    """

    special: ClassVar[Sequence[Relation]] = ()
    keeps: ClassVar[Collection[str]] = ()

    def __init__(self, program: Program) -> None:
        self.program = program
        self.config = program.config
        self.is_lost = False

    def write(self, step: Step) -> None:
        """Applies a step to the state. A refused operation changes nothing."""
        if "error" in step.answer or step.name in self.keeps:
            return
        follow = getattr(self, f"write_{step.name}", None)
        if follow is not None:
            follow(step)
        elif step.effect & CHANGES:
            self.is_lost = True

    def see(self, step: Step) -> Answer | None:
        """Returns the fields of a step's answer that follow from the tokens.

        Called on the state before the step. An answer without the field `error` says that
        the step is not refused. Returns None if nothing follows from the tokens.
        """
        return None

    def may_interrupt(self, step: Step) -> bool:
        """Returns whether the program may continue on another cache from this step on."""
        return True

    def rebuild(self, builder: Builder) -> bool:
        """Adds operations that write the current tokens to new caches. Returns False if
        the answers so far do not determine the tokens."""
        return False

    def list_cuts(self, step: Step) -> Sequence[Sequence[Portion]]:
        """Lists the ways to replace the operation of a step, which was not refused, by
        several operations with the same effect."""
        return ()

    def list_detours(self, step: Step) -> Sequence[str]:
        """Lists the detours that are possible before a step: operations, as text, that
        change a cache and then restore it."""
        return ()


# --- derived programs -------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """A claim about an answer of a derived program.

    Attributes:
        step: the number of the step in the first program.
        derived: the number of the operation in the derived program.
        answer: the expected fields of the answer.
        is_promise: whether `answer` is known to be correct, and not taken from the
            first program's answer.
    """

    step: int
    derived: int
    answer: Answer
    is_promise: bool = False


@dataclass(frozen=True)
class Derived:
    """A derived program, with the claims about its answers.

    Attributes:
        description: a description such as "the program with other names".
        program: the derived program.
        tags: tag in the derived program → the corresponding tag in the first program.
        claims: the claims in the order in which they are checked.
    """

    description: str
    program: Program
    tags: Mapping[int, int]
    claims: Sequence[Claim]


class Builder:
    """Builds a derived program, operation by operation."""

    def __init__(self, program: Program) -> None:
        self.contract, self.rules = program.contract, program.rules
        self.config: dict[str, Any] = {**program.config}
        self.ops: list[Op] = []
        self.claims: list[Claim] = []
        self.tags: dict[int, int] = {}
        self.tag = 0

    def add(self, op: Op, tags: Tags = ()) -> int:
        """Adds an operation without a claim, and returns its number.

        Args:
            op: the operation; missing fields get their defaults.
            tags: the tags of its tokens in the first program.
        """
        operation = self.rules.operations[op["op"]]
        op = operation.complete(op)
        self.ops.append(op)
        self.tags |= dict(enumerate(tags, self.tag))
        self.tag += operation.count_tags(op)
        return len(self.ops) - 1

    def play(self, text: str, **common: Any) -> None:
        """Adds the operations of a text in the syntax of `read_move`, separated by ";".
        Adds the fields `common` to all operations."""
        for move in text.split(";"):
            self.add({**common, **read_move(move)})

    def take(self, steps: Iterable[Step]) -> None:
        """Adds the operations of steps of the first program, and claims that each has the
        same answer as in the first program."""
        for step in steps:
            self.claim(step, self.add(step.op, step.tags), step.answer)

    def claim(
        self, step: Step, number: int, answer: Answer, is_promise: bool = False
    ) -> None:
        """Claims that an operation has at least the fields `answer`; see `Claim`."""
        self.claims.append(Claim(step.number, number, answer, is_promise))

    def build(self, description: str) -> Derived | None:
        """Returns the derived program; None if it has no claim or is too large."""
        program = Program(self.contract, self.config, self.ops)
        if not self.claims or why_too_large(program):
            return None
        return Derived(description, program, self.tags, self.claims)


DETOUR = "a token of the detour"
"""Replaces a token of the derived program that has no counterpart in the first."""


# --- relations --------------------------------------------------------------------------


class Relation(NamedTuple):
    """A rule that derives programs from a program and its answers.

    A relation may read the program and the answers, but never the reference.

    Attributes:
        name: the name in signatures of failures.
        list_ways: lists the ways to derive a program at a step; gets the shadow state
            before the step, and the step.
        derive: derives a program; gets the history, the shadow state before the step, the
            step, and the way. Returns None if the way yields no program.
    """

    name: str
    list_ways: Callable[[Any, Step], Iterable[Any]]
    derive: Callable[[History, Any, Step, Any], Derived | None]


def apply_once(state: Shadow, step: Step) -> Sequence[None]:
    """Applies a relation to the whole program, at its first step."""
    return [None] if step.is_first else []


def list_rebuilds(state: Shadow, step: Step) -> Sequence[None]:
    return [None] if not step.is_first and state.may_interrupt(step) else []


def recompute(history: History, state: Shadow, step: Step, way: None) -> Derived | None:
    """Claims that a cache behaves like a new cache that got its current tokens in one
    update.

    Example: a cache gets an update with 4 tokens and a trim by 1; a new cache gets one
    update with the tokens 0, 1, 2. The next update with 2 tokens must give the same
    answer in both caches.
    """
    builder = Builder(history.program)
    if not state.rebuild(builder):
        return None
    _, later = history.split(step)
    builder.take(later)
    return builder.build("new caches with the current tokens")


def list_cuts(state: Shadow, step: Step) -> Sequence[Sequence[Portion]]:
    is_cut = Effect.ADDS in step.effect and "error" not in step.answer
    return state.list_cuts(step) if is_cut else ()


def cut(
    history: History, state: Shadow, step: Step, portions: Sequence[Portion]
) -> Derived | None:
    """Claims that an operation may be split. Example: after an update with 1 token and an
    update with 2 tokens, all answers are the same as after one update with 3 tokens."""
    builder = Builder(history.program)
    earlier, (_, *later) = history.split(step)
    for previous in earlier:
        builder.add(previous.op, previous.tags)
    for op, indices in portions:
        builder.add(op, [step.tags[index] for index in indices])
    # Until tokens are added again, an operation may read the last pass.
    adding = (n for n, x in enumerate(later) if Effect.ADDS in x.effect)
    end = next(adding, len(later))
    builder.take(x for n, x in enumerate(later) if n >= end or x.effect != Effect.READS)
    return builder.build("the program with one operation split into two")


TOKENS = ("tokens", "generate", "drafts", "remaining")
USERS = {"a": "b", "b": "c", "c": "d", "d": "a"}


def rename_token(token: Any) -> Any:
    """Replaces each of the tokens 0 to 9 by 9 minus the token."""
    return 9 - token if type(token) is int and 0 <= token <= 9 else token


def rename_tokens(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an operation or an answer with all of its tokens renamed."""
    renamed = dict(fields)
    for name in TOKENS:
        if type(fields.get(name)) is list:
            renamed[name] = list(map(rename_token, fields[name]))
    if "sampled" in fields:
        renamed["sampled"] = rename_token(fields["sampled"])
    return renamed


def rename_all(history: History, state: Shadow, step: Step, way: None) -> Derived | None:
    """Claims that other names and tokens change no answer. Each name is replaced by the
    next name of its kind in the program."""
    operations, builder = history.program.rules.operations, Builder(history.program)
    ops = [step.op for step in history.steps]
    schemas = [s for operation in operations.values() for s in operation.fields.values()]
    for sort in sorted({schema[NAMES] for schema in schemas if NAMES in schema}):
        used = sorted({name for op in ops for name in list_names(op, operations, sort)})
        names = dict(zip(used, [*used[1:], *used[:1]], strict=True))
        ops = [rename(op, operations, sort, names) for op in ops]
    for step, op in zip(history.steps, map(rename_tokens, ops), strict=True):
        user = {"user": USERS.get(op["user"], op["user"])} if "user" in op else {}
        number = builder.add({**op, **user}, step.tags)
        builder.claim(step, number, rename_tokens(step.answer))
    if builder.ops == [step.op for step in history.steps]:
        return None
    return builder.build("the program with other names")


def list_detours(state: Shadow, step: Step) -> Sequence[str]:
    return state.list_detours(step) if state.may_interrupt(step) else ()


def detour(history: History, state: Shadow, step: Step, text: str) -> Derived | None:
    """Claims that a detour (operations that undo each other) changes no later answer.

    Example: a snapshot, an update with other tokens, and a restore.
    """
    builder = Builder(history.program)
    earlier, later = history.split(step)
    for previous in earlier:
        builder.add(previous.op, previous.tags)
    builder.play(text)
    builder.take(later)
    return builder.build("the program after a detour")


def promise(history: History, state: Shadow, step: Step, way: None) -> Derived | None:
    """Claims that windows, chunks and states hide tokens, but change nothing else: the
    answers of all steps follow from the tokens that the caches must hold."""
    builder = Builder(history.program)
    for step, state in history.walk():
        promised = state.see(step)
        number = builder.add(step.op, step.tags)
        if promised is not None:
            builder.claim(step, number, promised, is_promise=True)
    return builder.build("the same program")


MASK = Relation("mask", apply_once, promise)
GENERIC = (
    Relation("recompute", list_rebuilds, recompute),
    Relation("cut", list_cuts, cut),
    Relation("rename", apply_once, rename_all),
    Relation("return", list_detours, detour),
    MASK,
)
