"""Draws a program from a source of choices, guided by the reference alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Cell, Config, Op, Source, advance
from lockstep.harness.core.payload import get_tag_limit
from lockstep.harness.programs.condition import parse_duties
from lockstep.harness.programs.ledger import (
    Entry,
    KnownProgram,
    find_reason,
    make_known,
)
from lockstep.harness.programs.program import MAX_TOKENS, Program

SHORTEST, LONGEST = 36, 84
"""Range of operations in nearly all programs: 28 on average. Deep bugs need about ten
steps."""

ENDS, OFTEN = 720, 8
"""One program in 720 ends behind each operation before the shortest length, so one in 20
is shorter. Most of these choices are one among a few."""

FAR, FARTHEST = 192, (200, 240)
"""One program in FAR has so many operations: what adds up over time shows only there."""

TRIES = 4
"""Draws for each operation: some yield nothing, or a known divergence of the ledger."""

MOST_KNOWN = 8
"""Programs that lead to a known divergence, of one drawn program."""

MISUSE = 8
"""One program in MISUSE breaks rules of usage, in one of three operations, if the cache
declares that it refuses such calls."""

AIMS = 6
"""Cells that a program tries to reach at a time: half of its operations are drawn for one
of them, as far as its state is there and the operation is legal."""

RARE = 2
"""One program in RARE aims at the cells that were reached seldom, if any are named."""


@dataclass(eq=False)
class Draft:
    """A program that is being drawn.

    Attributes:
        model: the reference behind `ops`.
        misuses: breaks rules of usage now and then.
        cells: some of them it tries to reach, all of them equally likely. A program that
            happens to be in a rare state seldom draws the right operation next.
        aims: the cells that it tries to reach now.
        most: tokens of the longest program of this config.
        least, longest: range of its operations.
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
    ops: list[Op] = field(default_factory=list)

    def has_room(self, op: Op) -> bool:
        tags = self.rules.operations[op["op"]].count_tags(op)
        return bool(self.model.tag + tags <= self.most)


class Drawer:
    """Draws programs for one kind of one backend.

    Args:
        contract: the name of the contract.
        kind: the kind of cache.
        declared: its operations and config values.
        dtypes: the dtypes that are drawn.
        avoid: known divergences; operations that lead to one are left out, unless it is
            a run that leaves them out.
        misuse: one program in so many breaks rules of usage; see `MISUSE`.
        longest: the most operations of a program; None for as many as are usual.

    Attributes:
        lengths: range of operations in a program.
        rare: cells that were reached seldom: those of legal operations, and of misuses.
        known: for the operations that the last program left out, the latest ones, the
            programs that lead there.
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
        """Names the cells that were reached seldom; some programs aim at nothing else."""
        legal = [cell for cell in self.cells if cell in cells]
        self.rare = legal, [cell for cell in self.misuse_cells if cell in cells]

    def draw(self, source: Source) -> Program:
        """Draws a program of legal operations that the kind, as declared, supports.

        It depends on the choices that it draws and on no earlier program, so that the
        same choices draw it again.
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
        misuses, cells = self.choose_cells(source)
        cells = rules.choose_cells(model, cells) or cells
        aims = [source.pick(cells) for _ in range(AIMS)]
        most = min(MAX_TOKENS, get_tag_limit(rules.get_tag_dimension(config)))
        span = FARTHEST if source.one_in(FAR) else self.lengths
        least, longest = (min(end, self.longest or end) for end in span)
        return Draft(rules, config, model, misuses, cells, aims, most, least, longest)

    def is_over(self, source: Source, draft: Draft) -> bool:
        """Draws whether a program is over: each length from the least to the longest is
        about as likely.

        The choice comes behind each operation, not once before them, and always among as
        many, so that a shrinker can take out all that was chosen for one operation.
        """
        length = len(draft.ops)
        chance = ENDS // (draft.longest - length + 1) if length >= draft.least else 1
        is_over = source.below(OFTEN) == 0 and source.below(ENDS // OFTEN) < chance
        return is_over or length >= draft.longest

    def choose_cells(self, source: Source) -> tuple[bool, Sequence[Cell]]:
        """Chooses whether a program breaks rules of usage, and the cells to aim at."""
        legal, misuses = self.rare
        if (legal or misuses) and source.one_in(RARE):
            is_misuse = not legal or (bool(misuses) and source.one_in(2))
            return is_misuse, misuses if is_misuse else legal
        is_misuse = self.declared.refuses and source.one_in(self.misuse)
        return is_misuse, (is_misuse and self.misuse_cells) or self.cells

    def propose(self, source: Source, draft: Draft) -> Op | None:
        """Draws what comes next in a program, or None."""
        model = draft.model
        op = None if self.declared.atomic else self.rules.get_clearing(model)
        op = op or self.draw_aim(source, draft)
        return op or self.draw_operation(source, draft)

    def draw_aim(self, source: Source, draft: Draft) -> Op | None:
        """Draws the operation of a cell that the program tries to reach, in half of the
        draws; else, or if that cannot be asked now, None."""
        rules, model = self.rules, draft.model
        if not source.one_in(2):
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
        """Draws an operation that is legal now, or None: one in three is a mistake of
        usage, in programs that have such."""
        op = None
        if draft.misuses and source.one_in(2):
            op = self.rules.draw_misuse(source, draft.model, self.names)
        return op or self.rules.draw_operation(source, draft.model, self.names)

    def add(self, draft: Draft, op: Op) -> None:
        """Adds an operation to a program."""
        draft.ops.append(op)
        advance(self.rules.operations, op, draft.model)

    def leaves_out(self, config: Config, ops: Sequence[Op], op: Op, model: Any) -> bool:
        """Returns whether an operation breaks a duty of the callers, or leads to a known
        divergence, and notes the latter.

        Args:
            config: of the program.
            ops: before the operation.
            op: complete.
            model: the reference before the operation.
        """
        avoid = () if self.rules.leaves_choices else self.avoid
        reason = find_reason(op, model, self.duties, avoid)
        if isinstance(reason, Entry):
            self.known.append(make_known(reason, config, ops, op))
        return reason is not None
