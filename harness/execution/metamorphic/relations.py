"""Defines histories, shadow states, derived programs, and the generic relations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.contract import read_move
from lockstep.harness.contracts.operation import Answer, Effect, Op, list_names, rename
from lockstep.harness.core.document import NAMES
from lockstep.harness.execution.compare import PARTS, ROWS, STATES
from lockstep.harness.programs.program import Program, why_too_large

CHANGES = Effect.ADDS | Effect.REMOVES | Effect.MOVES


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
    """

    number: int
    op: Op
    answer: Answer
    tags: range
    effect: Effect

    @property
    def name(self) -> str:
        return str(self.op["op"])


@dataclass(frozen=True)
class History:
    """A program with the answers of the reference.

    Attributes:
        program: a complete program.
        steps: the operations that were not skipped.
        shadow: the class of the family's shadow state.
    """

    program: Program
    steps: Sequence[Step]
    shadow: type[Shadow]

    def get_step(self, number: int) -> Step:
        return next(step for step in self.steps if step.number == number)

    def before(self, number: int | None = None) -> Any:
        """Returns the shadow state before step `number`; for None, after all steps."""
        state = self.shadow(self.program)
        for step in self.steps:
            if step.number == number:
                break
            state.write(step)
        return state

    def along(self) -> Iterator[tuple[Step, Any]]:
        """Yields each step with the shadow state before the step, until the state is
        unknown. All pairs share one state object, which each iteration changes."""
        state = self.shadow(self.program)
        for step in self.steps:
            if state.is_lost:
                return
            yield step, state
            state.write(step)


def make_history(
    program: Program, answers: Sequence[Answer], shadow: type[Shadow]
) -> History:
    operations = program.rules.operations
    steps, tag = [], 0
    for number, (op, answer) in enumerate(zip(program.ops, answers, strict=True)):
        operation = operations[op["op"]]
        end = tag + operation.count_tags(op)
        if "skipped" not in answer:
            steps.append(Step(number, op, answer, range(tag, end), operation.effect))
        tag = end
    return History(program, steps, shadow)


Portion = tuple[Op, Sequence[int], Sequence[int]]
"""An operation on some rows of another operation, with the numbers of these rows and the
indices of their tags."""


class Shadow:
    """The tokens that each cache of a program holds.

    The state is computed only from the operations and the answers of the reference, which
    are taken as true: if a trim by 3 answers that 2 tokens were trimmed, 2 tokens are
    removed. The state is therefore the content that the reference claims to have, and the
    relations check whether later answers of the reference agree with it.

    A new family implements `write_NAME` for each operation whose effect changes the
    tokens. After an operation without that method the tokens are unknown, and only
    relations that do not need them apply.

    Attributes:
        keeps: operations that change tokens, but not the tokens in the shadow state.
        ends_with_cut: whether later steps may answer differently after a pass was cut.
        is_lost: whether the shadow state could not follow an operation.
    """

    keeps: ClassVar[Collection[str]] = ()
    ends_with_cut: ClassVar[bool] = False

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

    def may_interrupt(self, step: Step) -> bool:
        """Returns whether the program may continue in another cache from this step on."""
        return True

    def rebuild(self, builder: Builder) -> bool:
        """Adds operations that write the current tokens to new caches. Returns False if
        the answers so far do not determine the tokens."""
        return False

    def list_cuts(self, step: Step) -> Sequence[Sequence[Portion]]:
        """Lists the ways to cut a step into operations with the same total effect."""
        return ()

    def list_detours(self, step: Step) -> Sequence[str]:
        """Lists the names of the detours that are possible before a step."""
        return ()

    def take_detour(self, detour: str, builder: Builder, step: Step) -> None:
        """Adds the operations of a detour, which changes a cache and then restores it."""
        raise NotImplementedError(detour)

    def derive_mask(self, history: History, step: Step) -> Derived | None:
        """Derives a program with plain attention that determines the visible tokens of a
        step. Returns None if the step shows no tokens. Called on the state before the
        step."""
        return None


# --- what relations derive --------------------------------------------------------------


View = Callable[[Answer], Answer]
"""Selects the compared fields of a derived program's answer. The answer has the tags of
the first program."""


def see_all(answer: Answer) -> Answer:
    return answer


@dataclass(frozen=True)
class Claim:
    """A claim that an answer of the derived program equals one of the first program.

    Attributes:
        step: the number of the step in the first program.
        derived: the number of the operation in the derived program.
        answer: the compared fields of the first program's answer.
        view: selects the compared fields of the derived program's answer.
        rows: the rows of the first program's answer in `answer`; None for all rows.
        is_promise: whether the derived program must give `answer` independently of the
            first program's answer.
        is_condition: whether the following claims are dropped if the derived program
            gives a different answer.
    """

    step: int
    derived: int
    answer: Answer
    view: View = see_all
    rows: Sequence[int] | None = None
    is_promise: bool = False
    is_condition: bool = False


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
    """Builds a derived program, operation by operation.

    Args:
        history: the history of the first program.
        contract: the contract of the derived program, if it differs from the first
            program's contract; the config fields then have their defaults.
        changes: the changed config fields.
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
        """Adds an operation without a claim, and returns its number.

        Args:
            op: the operation; missing fields get their defaults.
            tags: the tags in the first program that correspond to its tokens.
        """
        operation = self.rules.operations[op["op"]]
        op = operation.complete(op)
        self.ops.append(op)
        self.tags |= dict(enumerate(tags, self.tag))
        self.tag += operation.count_tags(op)
        return len(self.ops) - 1

    def play(self, step: Step, text: str, **common: Any) -> None:
        """Adds the operations of a text in the syntax of `read_move`, separated by ";".

        The fields after "=>" are promised fields of the operation's answer. The field
        `tags` lists the tags in the first program that correspond to its tokens.

        Args:
            step: the step to report if a promise is broken.
            text: the operations.
            common: fields that are added to all operations.
        """
        for line in filter(str.strip, text.split(";")):
            move, _, promised = line.partition("=>")
            op = {**common, **read_move(move)}
            number = self.add(op, op.pop("tags", ()))
            if promised:
                answer = read_move(f"answer {promised}")
                self.promise(step, number, {x: answer[x] for x in answer if x != "op"})

    def take(self, step: Step, **changes: Any) -> int:
        """Adds the operation of a step, claims the step's answer for it, and returns its
        number."""
        number = self.add({**step.op, **changes}, step.tags)
        self.claim(step, number)
        return number

    def claim(
        self,
        step: Step,
        number: int,
        answer: Answer | None = None,
        view: View = see_all,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Claims that an operation gives the answer of a step, or `answer`, the compared
        fields of that answer."""
        answer = step.answer if answer is None else answer
        self.claims.append(Claim(step.number, number, answer, view, rows))

    def promise(
        self, step: Step, number: int, answer: Answer, is_condition: bool = False
    ) -> None:
        """Claims that an operation gives `answer`, independently of the first program."""
        promise = Claim(step.number, number, answer, see_all, None, True, is_condition)
        self.claims.append(promise)

    def build(self, description: str) -> Derived | None:
        """Returns the derived program; None if it has no claim or is too large."""
        program = Program(self.contract, self.config, self.ops)
        if not self.claims or self.rules.why_illegal(self.config):
            return None
        if why_too_large(program):
            return None
        return Derived(description, program, self.tags, self.claims)


DETOUR = "a token of the detour"
"""Replaces a token of the derived program that has no counterpart in the first."""


def pick(answer: Answer, op: Op, rows: Sequence[int], whole: bool = True) -> Answer:
    """Restricts the answer of an operation to some of its rows.

    Args:
        answer: the answer to the operation with all its rows.
        op: the operation.
        rows: the rows to keep, in their order.
        whole: also keep fields that belong to no single row, such as an offset.
    """
    picked = dict(answer) if whole else {}
    for name in {ROWS, "positions"} & answer.keys():
        picked[name] = [answer[name][row] for row in rows if row < len(answer[name])]
    if STATES in picked:
        owners = list(dict.fromkeys(op["sequences"]))
        wanted = dict.fromkeys(op["sequences"][row] for row in rows)
        picked[STATES] = [answer[STATES][owners.index(owner)] for owner in wanted]
    if PARTS in answer:
        picked[PARTS] = [pick(member, op, rows, whole) for member in answer[PARTS]]
    return picked


# --- relations --------------------------------------------------------------------------


class Relation(ABC):
    """A rule that derives programs from a program and its answers.

    A relation may read the program and the answers, but never the reference. A choice
    selects one of the derived programs, for example by the step before a detour or the
    index of a cut.
    """

    name: str

    @abstractmethod
    def list_choices(self, history: History) -> Sequence[Any]:
        """Lists the choices for a program. `derive` may return None for some choices."""

    @abstractmethod
    def derive(self, history: History, choice: Any) -> Derived | None:
        """Derives a program; returns None if the choice yields no program."""


@dataclass(frozen=True)
class Family:
    """The relations of one kind of cache.

    Attributes:
        shadow: the class of the family's shadow state.
        special: the relations of the family in addition to the generic relations.
    """

    shadow: type[Shadow]
    special: Sequence[Relation] = ()


class Recompute(Relation):
    """A cache behaves like a new cache that got its current tokens in one update.

    Example: after an update with 4 tokens and a trim by 1, an update with 2 tokens must
    give the same answer as in a new cache after one update with the tokens 0, 1, 2.
    """

    name = "recompute"

    def list_choices(self, history: History) -> Sequence[int]:
        steps = [step for step, state in history.along() if state.may_interrupt(step)]
        return [step.number for step in steps if step is not history.steps[0]]

    def derive(self, history: History, choice: int) -> Derived | None:
        builder = Builder(history)
        if not history.before(choice).rebuild(builder):
            return None
        for step in history.steps:
            if step.number >= choice:
                builder.take(step)
        return builder.build("fresh caches given the tokens that are left")


class Cut(Relation):
    """An operation may be split: an update with 3 tokens gives the same rows as an update
    with 1 token and an update with 2. A choice is (step, index of the cut)."""

    name = "cut"

    def list_choices(self, history: History) -> Sequence[Any]:
        return [
            (step.number, way)
            for step, state in history.along()
            if Effect.ADDS in step.effect
            for way in range(len(state.list_cuts(step)))
        ]

    def derive(self, history: History, choice: tuple[int, int]) -> Derived | None:
        number, way = choice
        builder = Builder(history)
        for step in history.steps:
            if step.number == number:
                self.cut(builder, step, history.before(number).list_cuts(step)[way])
            elif step.number < number or not history.shadow.ends_with_cut:
                builder.take(step)
        return builder.build("the program with one operation cut in two")

    def cut(self, builder: Builder, step: Step, portions: Sequence[Portion]) -> None:
        for op, rows, tags in portions:
            number = builder.add(op, [step.tags[index] for index in tags])
            # For several rows of a batch, only the visible tokens are compared.
            whole = op is portions[-1][0] and len(tags) == len(rows)
            answer = pick(step.answer, step.op, rows, whole)
            builder.claim(step, number, answer, rows=rows)


TOKENS = ("tokens", "generate", "drafts", "remaining")
USERS = {"a": "b", "b": "c", "c": "d", "d": "a"}


def rename_token(token: Any) -> Any:
    """Replaces the tokens 0 to 9 by 9 to 0."""
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


class Rename(Relation):
    """With other names and tokens, all answers stay the same. Each name is replaced by
    the next name of its kind in the program."""

    name = "rename"

    def list_choices(self, history: History) -> Sequence[int]:
        return [0]

    def derive(self, history: History, choice: int) -> Derived | None:
        operations, builder = history.program.rules.operations, Builder(history)
        ops = [step.op for step in history.steps]
        schemas = [
            s for operation in operations.values() for s in operation.fields.values()
        ]
        for sort in sorted({schema[NAMES] for schema in schemas if NAMES in schema}):
            named = {name for op in ops for name in list_names(op, operations, sort)}
            used = sorted(named)
            names = dict(zip(used, [*used[1:], *used[:1]], strict=True))
            ops = [rename(op, operations, sort, names) for op in ops]
        for step, op in zip(history.steps, map(rename_tokens, ops), strict=True):
            user = {"user": USERS.get(op["user"], op["user"])} if "user" in op else {}
            number = builder.add({**op, **user}, step.tags)
            builder.claim(step, number, view=rename_tokens)
        if builder.ops == [step.op for step in history.steps]:
            return None
        return builder.build("the program with other names")


class Return(Relation):
    """A detour that restores the cache changes no later answer. An example of a detour is
    a snapshot, an update with other tokens and a restore.

    The answers within the detour are claimed too. A choice is (step after the detour,
    name of the detour).
    """

    name = "return"

    def list_choices(self, history: History) -> Sequence[Any]:
        return [
            (step.number, detour)
            for step, state in history.along()
            if state.may_interrupt(step)
            for detour in state.list_detours(step)
        ]

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, detour = choice
        builder = Builder(history)
        for step in history.steps:
            if step.number < number:
                builder.add(step.op, step.tags)
                continue
            if step.number == number:
                history.before(number).take_detour(detour, builder, step)
            builder.take(step)
        return builder.build(f"the program after a detour ({detour})")


class Mask(Relation):
    """Windows, chunks and states are masks over plain attention: the answer of a step can
    be computed from one plain pass over the current tokens."""

    name = "mask"

    def list_choices(self, history: History) -> Sequence[int]:
        return [step.number for step, _ in history.along()]

    def derive(self, history: History, choice: int) -> Derived | None:
        step = history.get_step(choice)
        derived: Derived | None = history.before(choice).derive_mask(history, step)
        return derived


Case = Callable[[Builder, Step], None]


class Cases(Relation):
    """Simple programs whose answers are known independently of the first program. For
    example, a cache accepts as many tokens as its capacity. A choice is (step,
    description of a case).

    Args:
        name: the name of the relation.
        operation: the name of the operation whose steps a contradiction is reported for.
        cases: description → a function that adds the operations and promises of the case
            to a derived program, or nothing if the config does not allow the case.
    """

    def __init__(self, name: str, operation: str, cases: Mapping[str, Case]) -> None:
        self.name, self.operation, self.cases = name, operation, cases

    def list_choices(self, history: History) -> Sequence[Any]:
        steps = [step for step in history.steps if step.name == self.operation]
        return [(step.number, case) for step in steps for case in self.cases]

    def derive(self, history: History, choice: tuple[int, str]) -> Derived | None:
        number, case = choice
        builder = Builder(history)
        self.cases[case](builder, history.get_step(number))
        return builder.build(case)


GENERIC = (Recompute(), Cut(), Rename(), Return(), Mask())
