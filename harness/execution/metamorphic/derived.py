"""The words of this folder: histories, shadow states, derived programs and relations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Answer, Op
from lockstep.harness.execution.compare import PARTS, ROWS, STATES
from lockstep.harness.programs.program import Program, why_too_large

# --- what relations start from ----------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One operation that was carried out.

    Attributes:
        number: its place in the program, from 0.
        op: with every field set.
        answer: of the reference.
        tags: those of its tokens. Tokens are numbered as they come: after an update with
            3 tokens, one with 2 has the tags 3 and 4.
    """

    number: int
    op: Op
    answer: Answer
    tags: range

    @property
    def name(self) -> str:
        return str(self.op["op"])


@dataclass(frozen=True)
class History:
    """A program and what the reference answered to it.

    Attributes:
        program: a complete program.
        steps: its operations, without skipped ones.
        shadow: the shadow state of its family.
    """

    program: Program
    steps: Sequence[Step]
    shadow: type[ShadowState]

    def get_step(self, number: int) -> Step:
        return next(step for step in self.steps if step.number == number)

    def before(self, number: int | None = None) -> Any:
        """The shadow state before the step of that number; without one, after all."""
        state = self.shadow(self.program)
        for step in self.steps:
            if step.number == number:
                break
            state.write(step)
        return state

    def along(self) -> Iterator[tuple[Step, Any]]:
        """Each step with the shadow state before it. The state is one object that changes
        when the next step is asked for."""
        state = self.shadow(self.program)
        for step in self.steps:
            yield step, state
            state.write(step)


def make_history(
    program: Program, answers: Sequence[Answer], shadow: type[ShadowState]
) -> History:
    operations = program.rules.operations
    steps, tag = [], 0
    for number, (op, answer) in enumerate(zip(program.ops, answers, strict=True)):
        end = tag + operations[op["op"]].tokens(op)
        if "skipped" not in answer:
            steps.append(Step(number, op, answer, range(tag, end)))
        tag = end
    return History(program, steps, shadow)


Part = tuple[Op, Sequence[int]]
"""An operation on some rows of another one, and the numbers of these rows."""


class ShadowState(ABC):
    """Who holds which tokens in the caches of one program.

    It is written from the operations and their answers alone. Answers are believed: if a
    trim by 3 answers that 2 tokens were trimmed, 2 are dropped. So it says what the
    reference claims to hold, and the relations check whether the reference acts so.

    A new family implements `write_NAME` for each operation that changes who holds what,
    `rebuild`, `list_cuts` and `rename`; relations recompute, cut and rename need no more.

    Attributes:
        ends_with_cut: whether later steps may answer otherwise after a pass was cut.
    """

    ends_with_cut: ClassVar[bool] = False

    def __init__(self, program: Program) -> None:
        self.program = program
        self.config = program.config

    def write(self, step: Step) -> None:
        """Follows a step: calls `write_NAME` of its operation, if there is such a method.
        A refused operation changes nothing."""
        follow = getattr(self, f"write_{step.name}", None)
        if follow and "error" not in step.answer:
            follow(step)

    def may_interrupt(self, step: Step) -> bool:
        """Whether the program may go on in another cache from this step on."""
        return True

    @abstractmethod
    def rebuild(self, builder: Builder) -> bool:
        """Gives fresh caches the tokens that are left. False if the answers so far do not
        tell which these are."""

    @abstractmethod
    def list_cuts(self, step: Step) -> Sequence[Sequence[Part]]:
        """The ways to cut a step, each as operations that do the same together."""

    @abstractmethod
    def rename(self, op: Op) -> Op:
        """The operation with other names for caches, sequences, users or tokens."""

    def rename_answer(self, answer: Answer) -> Answer:
        """The answer of a renamed operation, in the names of the program."""
        return answer

    def list_detours(self, step: Step) -> Sequence[str]:
        """The detours that are possible before a step, as descriptions."""
        return ()

    def take_detour(self, detour: str, builder: Builder, step: Step) -> None:
        """Leads a cache away and back, before a step."""
        raise NotImplementedError(detour)

    def derive_mask(self, history: History, step: Step) -> Derived | None:
        """A program whose plain attention tells what a step shows, if it shows anything.
        The state is the one before the step."""
        return None


# --- what relations derive --------------------------------------------------------------


View = Callable[[Answer], Answer]
"""Selects what is compared of an answer of the derived program, which it gets in the tags
of the first program."""


def see_all(answer: Answer) -> Answer:
    return answer


@dataclass(frozen=True)
class Claim:
    """An answer of the derived program that must be an answer of the first program.

    Attributes:
        step: number of the step in the first program.
        other: number of the operation in the derived program.
        answer: what is compared, of the first program's answer.
        view: selects what it is compared with, of the derived program's answer.
        rows: the rows of the first program's answer in `answer`, if not all are.
        is_promise: `answer` is what the derived program must answer, whatever the first
            one answered.
        is_condition: if the derived program answers something else, the claims that
            follow are dropped.
    """

    step: int
    other: int
    answer: Answer
    view: View = see_all
    rows: Sequence[int] | None = None
    is_promise: bool = False
    is_condition: bool = False


@dataclass(frozen=True)
class Derived:
    """A derived program, with the claims about its answers.

    Attributes:
        words: what the program is, as in "the program with other names".
        program: the derived program.
        tags: its tags → the tags of the first program that they stand for.
        claims: in the order in which they are checked.
    """

    words: str
    program: Program
    tags: Mapping[int, int]
    claims: Sequence[Claim]


class Builder:
    """Puts a derived program together, operation by operation.

    Args:
        history: of the first program.
        contract: of the derived program, if it is another one; its config is then the
            default one.
        changes: fields of the config that are different.
    """

    def __init__(
        self, history: History, contract: str | None = None, **changes: Any
    ) -> None:
        self.contract = contract or history.program.contract
        self.rules = CONTRACTS[self.contract]
        config = history.program.config
        if contract:
            config = {name: s.get("default") for name, s in self.rules.config.items()}
        self.config = {**config, **changes}
        self.ops: list[Op] = []
        self.claims: list[Claim] = []
        self.tags: dict[int, int] = {}
        self.tag = 0

    def add(self, op: Op, tags: Sequence[int] = ()) -> int:
        """Adds an operation, of which nothing is claimed; returns its number.

        Args:
            op: fields that are not set get their defaults.
            tags: those of the first program that its tokens stand for.
        """
        operation = self.rules.operations[op["op"]]
        op = {**operation.get_defaults(), **op}
        self.ops.append(op)
        self.tags |= dict(enumerate(tags, self.tag))
        self.tag += operation.tokens(op)
        return len(self.ops) - 1

    def take(self, step: Step, **changes: Any) -> int:
        """Adds the operation of a step, which must answer the same."""
        other = self.add({**step.op, **changes}, step.tags)
        self.claim(step, other)
        return other

    def claim(
        self,
        step: Step,
        other: int,
        answer: Answer | None = None,
        view: View = see_all,
        rows: Sequence[int] | None = None,
    ) -> None:
        """`other` must answer what a step answered, or the given part of that."""
        answer = step.answer if answer is None else answer
        self.claims.append(Claim(step.number, other, answer, view, rows))

    def promise(
        self, step: Step, other: int, answer: Answer, is_condition: bool = False
    ) -> None:
        """`other` must answer this, whatever the first program answered."""
        claim = Claim(
            step.number, other, answer, is_promise=True, is_condition=is_condition
        )
        self.claims.append(claim)

    def build(self, words: str) -> Derived | None:
        """None if there is nothing to compare, or if no program may be so large."""
        program = Program(self.contract, self.config, self.ops)
        if not self.claims or self.rules.why_not(self.config) or why_too_large(program):
            return None
        return Derived(words, program, self.tags, self.claims)


DETOUR = "a token of the detour"
"""Stands for a token of the derived program that the first program does not have."""


def pick(answer: Answer, op: Op, rows: Sequence[int], rest: bool = True) -> Answer:
    """The answer to an operation with only some of its rows.

    Args:
        answer: to the operation with all its rows.
        op: that operation.
        rows: the rows to keep, in their order.
        rest: also what the answer says of no single row, such as an offset.
    """
    picked = dict(answer) if rest else {}
    for name in (ROWS, "positions"):
        if name in answer:
            picked[name] = [answer[name][row] for row in rows]
    if STATES in picked:
        owners = list(dict.fromkeys(op["sequences"]))
        wanted = dict.fromkeys(op["sequences"][row] for row in rows)
        picked[STATES] = [answer[STATES][owners.index(owner)] for owner in wanted]
    if PARTS in answer:
        picked[PARTS] = [pick(part, op, rows, rest) for part in answer[PARTS]]
    return picked


# --- relations --------------------------------------------------------------------------


class Relation(ABC):
    """One way to derive programs from a program and the answers to it.

    It may look at the program and the answers, never at the reference. A choice is one
    way to derive: before which step a detour is made, say, or where an update is cut.
    """

    name: str

    @abstractmethod
    def list_choices(self, history: History) -> Sequence[Any]:
        """The ways to derive a program from this one; some may come to nothing."""

    @abstractmethod
    def derive(self, history: History, choice: Any) -> Derived | None:
        """None if nothing follows."""


@dataclass(frozen=True)
class Family:
    """One kind of cache.

    Attributes:
        shadow: its shadow state.
        special: relations beside the generic ones.
    """

    shadow: type[ShadowState]
    special: Sequence[Relation] = ()
