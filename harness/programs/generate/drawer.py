"""Draws programs from a source of random choices, guided by the reference; no backend
runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import (
    Cell,
    Config,
    Effect,
    Op,
    Operation,
    Source,
    advance,
)
from lockstep.harness.core.document import NAMES
from lockstep.harness.programs.condition import parse_duties
from lockstep.harness.programs.ledger import (
    Entry,
    KnownProgram,
    find_reason,
    make_known,
)
from lockstep.harness.programs.program import MAX_TOKENS, Program

SHORTEST, LONGEST = 36, 84
"""The range of the number of operations in nearly all programs."""

ENDS, OFTEN = 720, 8
"""Before the shortest length, a program ends after each operation with probability
1 / ENDS, so one program in 20 is shorter.

Whether a program ends is drawn in two steps: first from OFTEN options, and only if the
first option is drawn, from ENDS // OFTEN options."""

FAR, FARTHEST = 192, (200, 240)
"""One in FAR programs has a number of operations in the range FARTHEST.

Only such long programs show errors that accumulate."""

REPEATED, FAR_REACH = (480, 560), 640
"""If the contract has long programs, the range is REPEATED instead, offsets are at most
FAR_REACH, and most operations that add tokens are repeated on their object: one cache
then has hundreds of updates."""

MOST_NUMBERS = 1 << 20
"""The maximal count of numbers in K and V of a drawn program."""

TRIES = 4
"""The number of draws for each operation of the longest program.

Some draws give no operation, or an operation that leads to a known divergence."""

MOST_KNOWN = 8
"""The maximal length of `Drawer.known`, for each drawn program."""

MISUSE = 8
"""One in MISUSE programs has invalid calls, if the cache declares that it refuses them.

In such a program, about a third of the operations are invalid calls."""

AIMS = 6
"""The number of cells that a program tries to reach at the same time.

Half of the operations are drawn for such a cell, if the program is in the cell's state
and the operation is legal."""

COINCIDE = 16
"""One operation in COINCIDE repeats the last one on one of its objects, with other
fields; for another one, equally many options mean equal choices (`Echo`).

Independent choices hardly ever begin two transfers of one request, or let all sequences
of a pass skip one position."""

RARE = 2
"""One in RARE programs aims only at rarely reached cells, if `aim_at` has set any."""


class Echo(Source):
    """Passes on the choices of another source; repeats the first choice for each number
    of options."""

    def __init__(self, source: Source) -> None:
        self.source, self.made = source, dict[int, int]()

    def below(self, limit: int) -> int:
        if limit not in self.made:
            self.made[limit] = self.source.below(limit)
        return self.made[limit]


@dataclass(eq=False)
class Draft:
    """A program that is being drawn.

    Attributes:
        model: the reference after `ops`.
        misuses: whether some operations are invalid calls.
        cells: the cells from which `aims` are drawn, with equal probability. Aims are
            needed because a program in a rare state seldom draws the operation of a
            missing cell by chance.
        aims: the cells that the program currently tries to reach.
        most: the maximal number of tokens of a program with this config.
        least, longest: the range of the number of operations.
        repeats: whether most operations that add tokens follow each other on one object.
    """

    rules: Contract
    config: Config
    model: Any
    misuses: bool
    cells: Sequence[Cell]
    aims: list[Cell]
    most: int
    least: int
    longest: int
    repeats: bool = False
    ops: list[Op] = field(default_factory=list)

    def has_room(self, op: Op) -> bool:
        tags = self.rules.operations[op["op"]].count_tags(op)
        return bool(self.model.tag + tags <= self.most)


def share_object(op: Op, last: Op, operation: Operation) -> bool:
    """Tells whether two calls of an operation name the same object, or have no names."""
    fields = [name for name, schema in operation.fields.items() if NAMES in schema]
    shared = [op[name] == last[name] is not None for name in fields]
    return any(shared) or not fields


class Drawer:
    """Draws programs for one kind of one backend.

    Args:
        contract: the name of the contract.
        kind: the kind of cache.
        declared: the declared operations and config values of the kind.
        dtypes: the dtypes that are drawn.
        avoid: known divergences. The drawer skips operations that lead to a known
            divergence, except for contracts whose executor skips them during the run.
        misuse: one in `misuse` programs has invalid calls; see `MISUSE`.
        longest: the maximal number of operations of a program; None for the default.

    Attributes:
        lengths: the range of the number of operations in a program.
        rare: the rarely reached cells: cells of legal operations, and cells of invalid
            calls.
        known: programs that lead to known divergences: one for each of the latest
            operations that were skipped while the last program was drawn.
    """

    lengths = SHORTEST, LONGEST

    def __init__(
        self,
        contract: str,
        kind: str,
        declared: Kind,
        dtypes: Sequence[str],
        avoid: Sequence[Entry] = (),
        misuse: int = MISUSE,
        longest: int | None = None,
    ) -> None:
        self.rules: Contract = CONTRACTS[contract]
        self.kind = kind
        config = {"dtype": tuple(dtypes), **declared.config}
        self.declared = replace(declared, config=config)
        self.names = [
            name for name in self.rules.operations if name in declared.operations
        ]
        self.avoid = [entry for entry in avoid if entry.program.kind == kind]
        self.duties = parse_duties(declared, self.rules, kind)
        self.known: deque[KnownProgram] = deque(maxlen=MOST_KNOWN)
        self.misuse, self.longest = misuse, longest
        self.cells = self.rules.list_cells(kind, replace(declared, refuses=False))
        cells = self.rules.list_cells(kind, declared)
        self.misuse_cells = [cell for cell in cells if cell not in self.cells]
        self.rare: tuple[Sequence[Cell], Sequence[Cell]] = [], []

    def aim_at(self, cells: Collection[Cell]) -> None:
        """Sets the rarely reached cells. Some programs aim at these cells and no
        others."""
        legal = [cell for cell in self.cells if cell in cells]
        self.rare = legal, [cell for cell in self.misuse_cells if cell in cells]

    def draw(self, source: Source) -> Program:
        """Draws a program of legal operations that the kind, as declared, supports.

        The program depends only on the choices, and not on earlier programs, so that
        equal choices give an equal program.
        """
        config = self.rules.draw_config(source, self.kind, self.declared)
        draft = self.open_draft(source, config)
        self.known.clear()
        source.renew()
        for _ in range(TRIES * draft.longest):
            op = self.propose(source, draft)
            source.renew()
            if op is None or self.leaves_out(config, draft.ops, op, draft.model):
                continue
            if draft.has_room(op):
                self.add(draft, op)
                if self.is_over(source, draft):
                    break
        return Program(self.rules.name, config, draft.ops)

    def open_draft(self, source: Source, config: Config) -> Draft:
        rules = self.rules
        model = rules.open_model(config, rows=False)
        rules.draw_reach(source, model)
        is_far = source.one_in(FAR)
        repeats = is_far and rules.long_reach > 0
        if repeats:
            model.reach = FAR_REACH
        misuses, cells = self.choose_cells(source)
        cells = rules.choose_cells(model, cells) or cells
        aims = [source.pick(cells) for _ in range(AIMS)]
        numbers = MOST_NUMBERS // rules.count_numbers(config)
        most = min(MAX_TOKENS, rules.get_tag_limit(config), numbers)
        span = REPEATED if repeats else FARTHEST if is_far else self.lengths
        least, longest = (min(end, self.longest or end) for end in span)
        sizes = most, least, longest
        return Draft(rules, config, model, misuses, cells, aims, *sizes, repeats)

    def is_over(self, source: Source, draft: Draft) -> bool:
        """Draws whether a program ends after its last operation.

        All lengths from `least` to `longest` are about equally likely. The choice is made
        after each operation, and always among equally many options, so that a shrinker
        can delete all choices of an operation.
        """
        length = len(draft.ops)
        chance = ENDS // (draft.longest - length + 1) if length >= draft.least else 1
        is_over = source.below(OFTEN) == 0 and source.below(ENDS // OFTEN) < chance
        return is_over or length >= draft.longest

    def choose_cells(self, source: Source) -> tuple[bool, Sequence[Cell]]:
        """Chooses whether a program has invalid calls, and the cells to aim at."""
        legal, misuses = self.rare
        if (legal or misuses) and source.one_in(RARE):
            is_misuse = not legal or (bool(misuses) and source.one_in(2))
            return is_misuse, misuses if is_misuse else legal
        is_misuse = self.declared.refuses and source.one_in(self.misuse)
        return is_misuse, (is_misuse and self.misuse_cells) or self.cells

    def propose(self, source: Source, draft: Draft) -> Op | None:
        """Draws the next operation of a program, or None."""
        model = draft.model
        op = None if self.declared.atomic else self.rules.get_clearing(model)
        coincidence = source.below(COINCIDE)
        if draft.repeats and draft.ops and coincidence % 4:
            effect = self.rules.operations[draft.ops[-1]["op"]].effect
            coincidence = 1 if Effect.ADDS in effect else coincidence
        if coincidence == 1 and draft.ops:
            op = op or self.draw_again(source, draft)
        source = Echo(source) if coincidence == 2 else source
        op = op or self.draw_aim(source, draft)
        return op or self.draw_operation(source, draft)

    def draw_again(self, source: Source, draft: Draft) -> Op | None:
        """Draws the last operation again, on the same object, but with other fields."""
        last = draft.ops[-1]
        operation = self.rules.operations[last["op"]]
        for _ in range(TRIES):
            op = operation.draw(source, draft.model)
            op = op and operation.complete(op)
            is_again = op is not None and share_object(op, last, operation)
            if op and is_again and operation.why_illegal(op, draft.model) is None:
                return op
        return None

    def draw_aim(self, source: Source, draft: Draft) -> Op | None:
        """Draws the operation of a cell that the program tries to reach.

        Returns None in half of the calls, and if the cell cannot be reached now.
        """
        rules, model = self.rules, draft.model
        if rules.is_bound(model) or not source.one_in(2):
            return None
        index = source.below(AIMS)
        state, name = draft.aims[index]
        operation = rules.operations[name]
        op = operation.draw(source, model)
        if op is None and draft.misuses:
            op = rules.draw_misuse(source, model, [name])
        if op is None:
            return None
        op = operation.complete(op)
        if operation.why_illegal(op, model) or state not in rules.get_states(op, model):
            return None
        draft.aims[index] = source.pick(draft.cells)
        return op

    def draw_operation(self, source: Source, draft: Draft) -> Op | None:
        """Draws a legal operation or, in programs with invalid calls, an invalid call.

        Returns None if no operation can be drawn.
        """
        op = None
        if draft.misuses and source.one_in(2):
            op = self.rules.draw_misuse(source, draft.model, self.names)
        return op or self.rules.draw_operation(source, draft.model, self.names)

    def add(self, draft: Draft, op: Op) -> None:
        """Adds an operation to a program."""
        draft.ops.append(op)
        advance(self.rules.operations, op, draft.model)

    def leaves_out(self, config: Config, ops: Sequence[Op], op: Op, model: Any) -> bool:
        """Returns whether an operation breaks a duty or leads to a known divergence.

        For a known divergence, the program that leads to it is added to `known`.

        Args:
            config: the config of the program.
            ops: the operations before `op`.
            op: the operation, with all defaults filled in.
            model: the reference before the operation.
        """
        avoid = () if self.rules.leaves_choices else self.avoid
        reason = find_reason(op, model, self.duties, avoid)
        if isinstance(reason, Entry):
            self.known.append(make_known(reason, config, ops, op))
        return reason is not None
