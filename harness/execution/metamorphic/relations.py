"""Histories, shadow states, derived programs, and the relations of every family."""

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
    """One operation that was carried out.

    Attributes:
        number: its index in the program.
        op: with every field set.
        answer: of the reference.
        tags: the tags of its tokens. Tokens are numbered in order: after an update with
            3 tokens, one with 2 has the tags 3 and 4.
        effect: what the operation does to tokens.
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
        steps: its operations, without skipped ones.
        shadow: the class of the shadow state of its family.
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
        """Iterates over the steps, each with the shadow state before it, as long as that
        is known. The state is one object, which changes when the iteration goes on."""
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
"""An operation on some rows of another one, the numbers of these rows, and the indices of
their tags."""


class Shadow:
    """The tokens that each cache of a program holds.

    It follows from the operations and their answers alone. Answers are believed: if a
    trim by 3 answers that 2 tokens were trimmed, 2 are dropped. So it holds the content
    that the reference claims, and the relations check whether the reference acts on it.

    A new family implements `write_NAME` for each operation whose effect changes the
    tokens. After one without that method the tokens are not known: then only the
    relations that need none apply.

    Attributes:
        keeps: operations whose effect leaves what the shadow state holds as it is.
        ends_with_cut: whether later steps may answer differently after a pass was cut.
        is_lost: an operation came that the shadow state cannot follow.
    """

    keeps: ClassVar[Collection[str]] = ()
    ends_with_cut: ClassVar[bool] = False

    def __init__(self, program: Program) -> None:
        self.program = program
        self.config = program.config
        self.is_lost = False

    def write(self, step: Step) -> None:
        """Follows a step. A refused operation changes nothing."""
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
        """Gives fresh caches the tokens that are left. Returns False if the answers so
        far do not tell which tokens these are."""
        return False

    def list_cuts(self, step: Step) -> Sequence[Sequence[Portion]]:
        """Lists the ways to cut a step, each as operations that together do the same."""
        return ()

    def list_detours(self, step: Step) -> Sequence[str]:
        """Lists the descriptions of the detours that are possible before a step."""
        return ()

    def take_detour(self, detour: str, builder: Builder, step: Step) -> None:
        """Leads a cache away and back, before a step."""
        raise NotImplementedError(detour)

    def derive_mask(self, history: History, step: Step) -> Derived | None:
        """Derives a program with plain attention, from which the visible tokens of a step
        follow; None if it shows none. The state is the one before the step."""
        return None


# --- what relations derive --------------------------------------------------------------


View = Callable[[Answer], Answer]
"""Selects what is compared of a derived program's answer, which is told in the tags of
the first program."""


def see_all(answer: Answer) -> Answer:
    return answer


@dataclass(frozen=True)
class Claim:
    """An answer of the derived program that must be an answer of the first program.

    Attributes:
        step: number of the step in the first program.
        derived: number of the operation in the derived program.
        answer: what is compared of the first program's answer.
        view: selects what is compared of the derived program's answer.
        rows: the rows of the first program's answer in `answer`; None for all.
        is_promise: whether the derived program must give `answer` whatever the first one
            answered.
        is_condition: whether the claims that follow are dropped if the derived program
            answers something else.
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
        description: of the program, as in "the program with other names".
        program: the derived program.
        tags: its tags → the tags of the first program that they stand for.
        claims: in the order in which they are checked.
    """

    description: str
    program: Program
    tags: Mapping[int, int]
    claims: Sequence[Claim]


class Builder:
    """Builds a derived program, operation by operation.

    Args:
        history: of the first program.
        contract: of the derived program, if it is another one; then all config fields
            have their defaults.
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
        """Adds an operation without a claim; returns its number.

        Args:
            op: fields that are not set get their defaults.
            tags: the tags of the first program that its tokens stand for.
        """
        operation = self.rules.operations[op["op"]]
        op = operation.complete(op)
        self.ops.append(op)
        self.tags |= dict(enumerate(tags, self.tag))
        self.tag += operation.count_tags(op)
        return len(self.ops) - 1

    def play(self, step: Step, text: str, **common: Any) -> None:
        """Adds operations as `read_moves` reads them.

        Behind "=>" stand the fields of the answer that one must get. `tags` lists the
        tags of the first program that its tokens stand for.

        Args:
            step: that a broken promise is reported for.
            text: the operations.
            common: fields that all of them have.
        """
        for line in filter(str.strip, text.split(";")):
            move, _, promised = line.partition("=>")
            op = {**common, **read_move(move)}
            number = self.add(op, op.pop("tags", ()))
            if promised:
                answer = read_move(f"answer {promised}")
                self.promise(step, number, {x: answer[x] for x in answer if x != "op"})

    def take(self, step: Step, **changes: Any) -> int:
        """Adds the operation of a step, claims the same answer, returns its number."""
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
        """Claims that an operation answers the same as a step, or `answer`, which is what
        is compared of that."""
        answer = step.answer if answer is None else answer
        self.claims.append(Claim(step.number, number, answer, view, rows))

    def promise(
        self, step: Step, number: int, answer: Answer, is_condition: bool = False
    ) -> None:
        """Claims that an operation gives this answer, whatever the first program did."""
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
"""Stands for a token of the derived program that the first program does not have."""


def pick(answer: Answer, op: Op, rows: Sequence[int], whole: bool = True) -> Answer:
    """Restricts the answer of an operation to some of its rows.

    Args:
        answer: to the operation with all its rows.
        op: that operation.
        rows: the rows to keep, in their order.
        rest: also keep fields that belong to no single row, such as an offset.
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
    """One way to derive programs from a program and the answers to it.

    It may look at the program and the answers, never at the reference. A choice is one
    way to derive, for example the step before a detour or the index of a cut.
    """

    name: str

    @abstractmethod
    def list_choices(self, history: History) -> Sequence[Any]:
        """Lists the ways to derive a program from this one; some may yield nothing."""

    @abstractmethod
    def derive(self, history: History, choice: Any) -> Derived | None:
        """Derives a program; None if nothing follows."""


@dataclass(frozen=True)
class Family:
    """The relations of one kind of cache.

    Attributes:
        shadow: the class of its shadow state.
        special: relations in addition to the generic ones.
    """

    shadow: type[Shadow]
    special: Sequence[Relation] = ()


class Recompute(Relation):
    """A cache behaves like a fresh one with the tokens that are left.

    Update with 4 tokens, trim by 1, update with 2 tokens: the last one must answer what
    it answers in a fresh cache that got the tokens 0, 1, 2 in one update.
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
    """Tokens may come at once or in several operations: an update with 3 tokens gives the
    answers of one with 1 token and one with 2. A choice is (step, way to cut it)."""

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
            # Of several rows of a batch, nothing but what they see is compared.
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
    """With other names and tokens, all answers are the same: each name becomes the next
    one of its sort that the program has."""

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
    """A detour that ends where it began changes nothing: snapshot, other tokens, restore.

    The answers of the detour are claimed too. A choice is (step after it, detour).
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
    """A window, a chunk and a state are masks over plain attention: the answer of a step
    follows from one plain pass over the tokens that are left."""

    name = "mask"

    def list_choices(self, history: History) -> Sequence[int]:
        return [step.number for step, _ in history.along()]

    def derive(self, history: History, choice: int) -> Derived | None:
        step = history.get_step(choice)
        derived: Derived | None = history.before(choice).derive_mask(history, step)
        return derived


Case = Callable[[Builder, Step], None]


class Cases(Relation):
    """Plain programs with known answers, whatever the first program did; for example, a
    cache takes as many tokens as its capacity. A choice is (step, description of a case).

    Args:
        name: of the relation.
        operation: the steps that a contradiction is reported for.
        cases: description → adds operations and promises to a derived program, or
            nothing if the config has no such case.
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
