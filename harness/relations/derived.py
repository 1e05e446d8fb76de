"""What a relation makes of a program: another program, and which of its answers must be
those of the first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.compare import COLUMNS, PARTS, ROWS, STATES, STORED, TAGS
from harness.contracts import CONTRACTS
from harness.contracts.base import Answer, Op
from harness.program import Program, why_too_large

DETOUR = "a token of the detour"
"""In the place of a tag that the first program has no token for."""

View = Callable[[Answer], Answer]
"""What of an answer of the derived program is compared, once it speaks of the tags of the
first program."""


Match = Callable[[Program, Sequence[Answer]], Mapping[int, int]]


def see_all(answer: Answer) -> Answer:
    return answer


@dataclass(frozen=True)
class Step:
    """One operation that was carried out.

    number: its place in the program. tags: those that it has used up.
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
    """A program and what was answered to it.

    steps: without the operations that were skipped.
    """

    program: Program
    steps: Sequence[Step]


def make_history(program: Program, answers: Sequence[Answer]) -> History:
    operations = program.rules.operations
    steps, tag = [], 0
    for number, (op, answer) in enumerate(zip(program.ops, answers, strict=True)):
        end = tag + operations[op["op"]].tokens(op)
        if "skipped" not in answer:
            steps.append(Step(number, op, answer, range(tag, end)))
        tag = end
    return History(program, steps)


@dataclass(frozen=True)
class Claim:
    """What a step of the program answered must be what a step of the derived program
    answers.

    step, other: their numbers. answer: the part of the program's answer that is meant.
    view: the part of the derived one's, in the same form. rows: which rows of the
    program's answer stand in `answer`, if not all do. is_promise: it is not what the
    program answered, but what the derived one must answer. is_condition: the same, but it
    need not; only what follows is claimed for that case alone.
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
    """words: what was done to the program, as the end of a sentence. tags: the tags of
    the derived program → those of the first that they stand for; match: the same, known
    only once it has been answered. excused: errors that
    only one of the two may answer; what comes after such a claim is not claimed any more.
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

    changes: fields of the config that are others. contract: if it is another one.
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
        """One more operation; its number. tags: what its tokens stand for."""
        operation = self.rules.operations[op["op"]]
        op = {**operation.get_defaults(), **op}
        self.ops.append(op)
        self.tags |= dict(enumerate(tags, self.tag))
        self.tag += operation.tokens(op)
        return len(self.ops) - 1

    def take(self, step: Step, **changes: Any) -> int:
        """The same operation, or with other fields, that must answer the same."""
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


# --- answers in the tags of another program ---------------------------------------------


def map_answer(answer: Answer, tags: Mapping[int, int]) -> Answer:
    """The same answer with other tags."""
    mapped: Answer = {}
    for name, value in answer.items():
        if name == PARTS:
            mapped[name] = [map_answer(part, tags) for part in value]
        elif name in (ROWS, STATES):
            mapped[name] = [map_tags(row, tags) for row in value]
        elif name in (TAGS, STORED) and isinstance(value, list):
            mapped[name] = map_tags(value, tags)
        elif name != COLUMNS:
            mapped[name] = value
    return mapped


def map_tags(row: Sequence[Any], tags: Mapping[int, int]) -> list[Any]:
    """Tags, or (position, tag) pairs."""
    return [
        (token[0], tags.get(token[1], DETOUR))
        if isinstance(token, tuple)
        else tags.get(token, DETOUR)
        for token in row
    ]


def see_rows(first: int, count: int) -> View:
    """Only so many rows of what is visible, from one on."""

    def view(answer: Answer) -> Answer:
        return {**answer, ROWS: answer[ROWS][first : first + count]}

    return view


def restrict(answer: Answer, wanted: Answer) -> Answer:
    """Those fields of an answer that stand in another one, tokens first."""
    told = sorted(wanted, key=lambda name: name not in (ROWS, TAGS, STATES, PARTS))
    kept = {name: answer[name] for name in told if name in answer}
    if "error" in answer:
        kept["error"] = answer["error"]
    if PARTS in kept and PARTS in wanted:
        pairs = zip(answer[PARTS], wanted[PARTS], strict=False)
        kept[PARTS] = [restrict(part, other) for part, other in pairs]
    return kept
