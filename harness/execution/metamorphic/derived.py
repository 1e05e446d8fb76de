"""A derived program: another program, and which of its answers must be which answers of
the first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.types import Answer, Op
from lockstep.harness.execution.metamorphic.answers import View, see_all
from lockstep.harness.execution.metamorphic.history import History, Step
from lockstep.harness.programs.program import Program, why_too_large

Match = Callable[[Program, Sequence[Answer]], Mapping[int, int]]
"""Finds tags → tags of the first program, from the derived program and its answers."""


@dataclass(frozen=True)
class Claim:
    """What a step of the program answered must be what a step of the derived program
    answers.

    step, other: their numbers. answer: what is compared, of the program's answer. view:
    what it is compared with, of the derived program's answer. rows: which rows of the
    program's answer stand in `answer`, if not all do.

    Two flags turn it around. is_promise: `answer` is not what the program answered, but
    what the derived program must answer, whatever the program did. is_condition: the
    derived program may answer something else; then the claims that follow are dropped.
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
    """A derived program, with what it must answer.

    words: what was done to the program, as the end of a sentence: "without one operation
    on something else". tags: the tags of the derived program → those of the first that
    they stand for. match: the same, where it is known only from the answers. excused:
    errors that one of the two programs may answer and the other not; from there on
    nothing is claimed. Without a copy, say, there may be room where there was none.
    """

    words: str
    program: Program
    tags: Mapping[int, int]
    claims: Sequence[Claim]
    excused: Collection[str] = ()
    match: Match | None = None

    def get_tags(self, answers: Sequence[Answer]) -> Mapping[int, int]:
        return self.match(self.program, answers) if self.match else self.tags


class Builder:
    """Puts a derived program together, operation by operation.

    contract: of the derived program, if it is another one; its config is then the
    default one. changes: fields of the config that are different.
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
        """One more operation, of which nothing is claimed; its number. tags: those of the
        first program that its tokens stand for."""
        operation = self.rules.operations[op["op"]]
        op = {**operation.get_defaults(), **op}
        self.ops.append(op)
        self.tags |= dict(enumerate(tags, self.tag))
        self.tag += operation.tokens(op)
        return len(self.ops) - 1

    def take(self, step: Step, **changes: Any) -> int:
        """The operation of a step, which must answer the same; its number. changes:
        fields that are different."""
        other = self.add({**step.op, **changes}, step.tags)
        self.claims.append(Claim(step.number, other, step.answer))
        return other

    def claim(
        self,
        step: Step,
        other: int,
        answer: Answer | None = None,
        view: View = see_all,
        rows: Sequence[int] | None = None,
    ) -> None:
        """What a step answered, or the given part of it, is what `other` answers."""
        answer = step.answer if answer is None else answer
        self.claims.append(Claim(step.number, other, answer, view, rows))

    def promise(
        self, step: Step, other: int, answer: Answer, view: View = see_all
    ) -> None:
        """What the derived program must answer, whatever the program did."""
        self.claims.append(Claim(step.number, other, answer, view, is_promise=True))

    def suppose(self, step: Step, other: int, answer: Answer) -> None:
        """What follows is claimed only if the derived program answers this."""
        claim = Claim(step.number, other, answer, is_promise=True, is_condition=True)
        self.claims.append(claim)

    def build(self, words: str, excused: Collection[str] = ()) -> Derived | None:
        """None if there is nothing to compare, or if no program may be so large."""
        program = Program(self.contract, self.config, self.ops)
        if not self.claims or self.rules.why_not(self.config):
            return None
        if why_too_large(program):
            return None
        return Derived(words, program, self.tags, self.claims, excused, self.get_match())

    def get_match(self) -> Match | None:
        """How to find the tags, if only the answers tell."""
        return None
