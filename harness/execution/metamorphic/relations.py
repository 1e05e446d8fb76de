"""Defines programs with their answers, shadow states, derived programs, and the generic
relations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.contract import read_move
from lockstep.harness.contracts.operation import (
    Answer,
    Config,
    Effect,
    Op,
    list_names,
    rename,
)
from lockstep.harness.core.document import NAMES
from lockstep.harness.execution.compare import PARTS, ROWS, STATES
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


Portion = tuple[Op, Sequence[int], Sequence[int]]
"""An operation on some rows of another operation, with the numbers of these rows and the
indices of their tags."""


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
        keeps: operations that change tokens, but not the tokens in the shadow state.
        ends_with_cut: whether the steps after a cut pass may have other answers. The
            derived program then ends with the cut pass.
        is_lost: whether the tokens are unknown after an operation.
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
        """Returns whether the program may continue on another cache from this step on."""
        return True

    def rebuild(self, builder: Builder) -> bool:
        """Adds operations that write the current tokens to new caches. Returns False if
        the answers so far do not determine the tokens."""
        return False

    def list_cuts(self, step: Step) -> Sequence[Sequence[Portion]]:
        """Lists the ways to replace the operation of a step by several operations with
        the same effect."""
        return ()

    def list_detours(self, step: Step) -> Sequence[str]:
        """Lists the names of the detours that are possible before a step."""
        return ()

    def take_detour(self, detour: str, builder: Builder, step: Step) -> None:
        """Adds the operations of a detour: they change a cache and then restore it."""
        raise NotImplementedError(detour)

    def list_members(self) -> Sequence[Config]:
        """Lists the configs of the caches in a list or wrapper."""
        return ()

    def derive_mask(self, step: Step) -> Derived | None:
        """Derives a program with full attention that determines the visible tokens of a
        step.

        Called on the state before the step. Returns None if the step shows no tokens.
        """
        return None


# --- derived programs -------------------------------------------------------------------


View = Callable[[Answer], Answer]
"""Selects the compared fields of a derived program's answer. The answer has the tags of
the first program."""


def see_all(answer: Answer) -> Answer:
    return answer


@dataclass(frozen=True)
class Claim:
    """A claim that an answer of the derived program equals an answer of the first
    program.

    Attributes:
        step: the number of the step in the first program.
        derived: the number of the operation in the derived program.
        answer: the compared fields of the first program's answer.
        view: selects the compared fields of the derived program's answer.
        rows: which rows of the first program's answer `answer` contains; None for all
            rows.
        is_promise: whether `answer` is known to be correct, and not taken from the
            first program's answer.
        is_condition: if true, a different answer is no contradiction; the claims after
            this claim are then dropped.
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
        program: the first program.
        contract: the contract of the derived program, if it differs from the first
            program's contract; the config fields then have their defaults.
        changes: the changed config fields.
    """

    def __init__(
        self, program: Program, contract: str | None = None, **changes: Any
    ) -> None:
        self.contract = contract or program.contract
        self.rules = CONTRACTS[self.contract]
        config = program.config
        if contract:
            config = {name: s.get("default") for name, s in self.rules.config.items()}
        self.config = {**config, **changes}
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

    def play(self, step: Step, text: str, **common: Any) -> None:
        """Adds the operations of a text in the syntax of `read_move`, separated by ";".

        The fields after "=>" are promised fields of the operation's answer. The field
        `tags` lists the tags of the operation's tokens in the first program.

        Args:
            step: the step to report if a promise is broken.
            text: the operations.
            common: fields that are added to all operations.
        """
        for line in filter(str.strip, text.split(";")):
            move, arrow, promised = line.partition("=>")
            op = {**common, **read_move(move)}
            number = self.add(op, op.pop("tags", ()))
            if arrow:
                answer = read_move(f"answer {promised}")
                self.promise(step, number, {x: answer[x] for x in answer if x != "op"})

    def take(self, steps: Iterable[Step]) -> None:
        """Adds the operations of steps of the first program, and claims that each has the
        same answer as in the first program."""
        for step in steps:
            self.claim(step, self.add(step.op, step.tags))

    def claim(
        self,
        step: Step,
        number: int,
        answer: Answer | None = None,
        view: View = see_all,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Claims that an operation has the answer of a step, or at least the fields
        `answer` of this answer."""
        answer = step.answer if answer is None else answer
        self.claims.append(Claim(step.number, number, answer, view, rows))

    def promise(
        self, step: Step, number: int, answer: Answer, is_condition: bool = False
    ) -> None:
        """Claims that an operation has the answer `answer`, whatever the first program
        answers."""
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
        whole: whether to keep fields that describe the whole operation, such as an
            offset.
    """
    picked = dict(answer) if whole else {}
    for name in {ROWS, "positions"} & answer.keys():
        picked[name] = [answer[name][row] for row in rows if row < len(answer[name])]
    if STATES in picked:
        sequences = list(dict.fromkeys(op["sequences"]))
        wanted = dict.fromkeys(op["sequences"][row] for row in rows)
        picked[STATES] = [answer[STATES][sequences.index(name)] for name in wanted]
    if PARTS in answer:
        picked[PARTS] = [pick(member, op, rows, whole) for member in answer[PARTS]]
    return picked


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


class Family(NamedTuple):
    """The shadow state of a kind of cache, and the special relations of this kind."""

    shadow: type[Shadow]
    special: Sequence[Relation] = ()


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
    return state.list_cuts(step) if Effect.ADDS in step.effect else ()


def cut(
    history: History, state: Shadow, step: Step, portions: Sequence[Portion]
) -> Derived | None:
    """Claims that an operation may be split. Example: an update with 1 token and an
    update with 2 tokens give the same answers as one update with 3 tokens."""
    builder = Builder(history.program)
    earlier, (_, *later) = history.split(step)
    builder.take(earlier)
    for op, rows, tags in portions:
        number = builder.add(op, [step.tags[index] for index in tags])
        # For several rows of a batch, only the visible tokens are compared.
        whole = op is portions[-1][0] and len(tags) == len(rows)
        answer = pick(step.answer, step.op, rows, whole)
        builder.claim(step, number, answer, rows=rows)
    if not state.ends_with_cut:
        builder.take(later)
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
        builder.claim(step, number, view=rename_tokens)
    if builder.ops == [step.op for step in history.steps]:
        return None
    return builder.build("the program with other names")


def list_detours(state: Shadow, step: Step) -> Sequence[str]:
    return state.list_detours(step) if state.may_interrupt(step) else ()


def detour(history: History, state: Shadow, step: Step, name: str) -> Derived | None:
    """Claims that a detour (operations that undo each other) changes no later answer.
    Also claims that the operations of the detour have the correct answers.

    Example of a detour: a snapshot, an update with other tokens, and a restore.
    """
    builder = Builder(history.program)
    earlier, later = history.split(step)
    for before in earlier:
        builder.add(before.op, before.tags)
    state.take_detour(name, builder, step)
    builder.take(later)
    return builder.build(f"the program after a detour ({name})")


def derive_mask(history: History, state: Shadow, step: Step, way: None) -> Derived | None:
    """Claims that windows, chunks and states hide tokens, but change nothing else: the
    answer of a step follows from one pass with full attention over the current tokens."""
    return state.derive_mask(step)


def list_members(state: Shadow, step: Step) -> Sequence[int]:
    return range(len(state.list_members())) if step.is_first else ()


def isolate(history: History, state: Shadow, step: Step, member: int) -> Derived | None:
    """Claims that a cache in a list or a wrapper gives the same answers as the cache
    alone, until a cache refuses an operation."""
    config, rules = state.list_members()[member], history.program.rules
    builder = Builder(history.program, **{**config, **get_allowed(config)})
    operations = rules.list_operations(config["kind"])
    for step in history.steps:
        if step.answer.get("error", "usage") != "usage":
            break  # other caches may have changed before one cache refused
        is_other = step.op.get("type", member) != member
        if is_other or step.name not in operations or refuses(step.answer):
            continue  # another cache may have caused a refusal
        alone = {"type": 0} if "type" in step.op else {}
        answer: Answer = dict(step.answer)
        if PARTS in answer:
            answer |= answer.pop(PARTS)[member]
        builder.claim(step, builder.add({**step.op, **alone}, step.tags), answer)
    return builder.build("that cache alone")


def get_allowed(config: Config) -> Config:
    """Returns the defaults of the fields that are reserved for recurrent caches; {} for a
    recurrent cache."""
    if "slots" not in config or config["kind"] == "recurrent":
        return {}
    return {"slots": None, "interval": None, "checkpoints": 1}


def refuses(answer: Answer) -> bool:
    """Returns whether an answer without `error` is a refusal: no token was removed, or
    the sequence cannot resume."""
    return any(answer.get(name) in (0, False) for name in ("trimmed", "done", "result"))


GENERIC = (
    Relation("recompute", list_rebuilds, recompute),
    Relation("cut", list_cuts, cut),
    Relation("rename", apply_once, rename_all),
    Relation("return", list_detours, detour),
    Relation("mask", lambda state, step: [None], derive_mask),
    Relation("part", list_members, isolate),
)

Case = Callable[[Builder, Step], None]
"""Adds the operations and promises of a simple program, whose answers are known
independently of the first program, to a derived program; adds nothing if the config does
not allow the program. For example, a cache accepts as many tokens as its capacity."""


def make_cases(name: str, operation: str, cases: Mapping[str, Case]) -> Relation:
    """Makes a relation of simple programs.

    Args:
        name: the name of the relation.
        operation: the name of the operation; a contradiction is reported at such a step.
        cases: description → case.
    """

    def derive(history: History, state: Shadow, step: Step, case: str) -> Derived | None:
        builder = Builder(history.program)
        cases[case](builder, step)
        return builder.build(case)

    def list_ways(state: Shadow, step: Step) -> Iterable[str]:
        return cases if step.name == operation else ()

    return Relation(name, list_ways, derive)
