"""Unified caches: the shadow state, detours, and plain attention for every kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep.harness.contracts.operation import Answer, Config, Op
from lockstep.harness.contracts.unified.model import CAUSAL, SLIDING
from lockstep.harness.contracts.unified.operations import rename_owner
from lockstep.harness.core.document import MAX_LENGTH
from lockstep.harness.execution.metamorphic.relations import (
    Builder,
    Derived,
    History,
    Part,
    ShadowState,
    Step,
    pick,
)
from lockstep.harness.programs.program import Program

PURE = ("causal", "chunked")
"""Kinds that keep a token until it is removed, and read it into no state."""


def list_kinds(config: Config) -> set[str]:
    """Returns the kinds of the caches of a wrapper; of others, the kind itself."""
    return {part["kind"] for part in config["caches"]} or {config["kind"]}


def get_first_seen(config: Config, position: int) -> int:
    """Returns the first position in the window or chunk of a query at a position."""
    if config["chunk"]:
        return position - position % int(config["chunk"])
    return position - int(config["window"]) if config["window"] else 0


@dataclass(frozen=True)
class Cell:
    """A token at a position.

    Attributes:
        owners: the sequences that hold it, several after a copy.
    """

    tag: int
    position: int
    owners: frozenset[int]


@dataclass
class Content:
    """The content of all sequences.

    Attributes:
        cells: in the order in which they were written.
        peaks: sequence → the position after all that it ever held. One that got the
            positions 0, 1, 2 and lost 2 has the peak 3.
        unsteady: sequences whose tokens, in the order in which they were written, may be
            at other positions than 0, 1, 2, ….
    """

    cells: list[Cell]
    peaks: dict[int, int]
    unsteady: set[int]

    def copy(self) -> Content:
        return Content([*self.cells], {**self.peaks}, {*self.unsteady})


class UnifiedShadow(ShadowState):
    """The cells of a unified cache.

    A pass with the rows (position 0, sequence 0), (1, 0), (0, 1) writes the cells of
    tokens 0, 1 and 2. Tokens that a window dropped stay; relations mask and cut say which
    of them are still seen.

    Attributes:
        saved: name → the content saved under it.
        is_muddled: whether a wrapper refused an operation that may have changed some of
            its caches. From then on the content is unknown.
    """

    ends_with_cut = True

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.kinds = list_kinds(program.config)
        self.slides = not self.kinds.isdisjoint(SLIDING)
        self.now = Content([], {}, set())
        self.saved: dict[str, Content] = {}
        self.is_muddled = False

    def get_cells(self, owner: int) -> list[Cell]:
        return [cell for cell in self.now.cells if owner in cell.owners]

    def list_owners(self) -> list[int]:
        return sorted({owner for cell in self.now.cells for owner in cell.owners})

    def write(self, step: Step) -> None:
        if step.answer.get("error", "usage") != "usage" and step.name != "forward":
            self.is_muddled |= self.config["kind"] == "wrapper"
        super().write(step)

    def write_forward(self, step: Step) -> None:
        op, now = step.op, self.now
        if op["reserve"]:
            return
        rows = zip(step.tags, op["positions"], op["sequences"], strict=False)
        for tag, position, owner in rows:
            if position != len(self.get_cells(owner)):
                now.unsteady.add(owner)
            now.cells.append(Cell(tag, position, frozenset({owner})))
            now.peaks[owner] = max(now.peaks.get(owner, 0), position + 1)

    def write_copy_prefix(self, step: Step) -> None:
        """Follows a copy. A state is copied as a whole, so it may have read more than the
        copy holds."""
        source, target, length = (step.op[x] for x in ("source", "target", "length"))
        now = self.now
        self.drop(target, 0, None)
        now.cells = [
            replace(cell, owners=cell.owners | {target})
            if source in cell.owners and cell.position < length
            else cell
            for cell in now.cells
        ]
        now.peaks[target] = max(now.peaks.get(source, 0), now.peaks.get(target, 0))
        if source in now.unsteady or now.peaks.get(source, 0) > length:
            now.unsteady.add(target)

    def write_remove(self, step: Step) -> None:
        """Follows a removal. Tokens after a gap move up. A shared token cannot move; so
        if the removal was not refused, the sequence had dropped its share before."""
        owner, begin, end = (step.op[x] for x in ("sequence", "begin", "end"))
        now = self.now
        self.drop(owner, begin, end)
        if end is not None:
            now.cells = [
                cell
                if owner not in cell.owners or cell.position < end
                else replace(cell, owners=cell.owners - {owner})
                if len(cell.owners) > 1
                else replace(cell, position=cell.position + begin - end)
                for cell in now.cells
            ]
            now.unsteady.add(owner)
        elif begin == 0:
            now.unsteady.discard(owner)
            now.peaks.pop(owner, None)

    def drop(self, owner: int, begin: int, end: int | None) -> None:
        """Removes a range of positions from a sequence, and cells without a sequence."""
        left = [
            replace(cell, owners=cell.owners - {owner})
            if cell.position >= begin and (end is None or cell.position < end)
            else cell
            for cell in self.now.cells
        ]
        self.now.cells = [cell for cell in left if cell.owners]

    def write_save(self, step: Step) -> None:
        self.saved[step.op["into"]] = self.now.copy()

    def write_load(self, step: Step) -> None:
        self.now = self.saved[step.op["from"]].copy()

    def may_interrupt(self, step: Step) -> bool:
        """Returns whether the step opens a pass: get and put read the open one."""
        opens = step.name == "forward" and step.answer.get("error") != "usage"
        return opens and not self.is_muddled

    def rename(self, op: Op) -> Op:
        count = self.config["sequences"]
        renamed = {**rename_owner(op, {one: (one + 1) % count for one in range(count)})}
        for field in {"into", "from"} & renamed.keys():
            renamed[field] = f"x{renamed[field]}"
        return renamed

    def rebuild(self, builder: Builder) -> bool:
        """Rebuilds sequence by sequence, if nothing was dropped, read into a state, or
        saved. Shared tokens would take more room in a fresh cache."""
        shares = any(len(cell.owners) > 1 for cell in self.now.cells)
        if self.saved or shares or not self.kinds <= {*PURE}:
            return False
        for owner in self.list_owners():
            add_cells(builder, owner, self.get_cells(owner))
        return True

    def list_cuts(self, step: Step) -> Sequence[Sequence[Part]]:
        """Cuts a pass into the first half of each sequence and the rest, or into one
        sequence and the others.

        No row may see in one pass a row that comes after it in two. If a window slides,
        sequences must continue after all that they ever held, because their tokens may be
        dropped a pass earlier or later.
        """
        op = step.op
        if not is_pass(step) or op["except"] or op["multimodal"]:
            return []
        if self.slides and not self.goes_on(step):
            return []
        owners, rows = op["sequences"], range(len(op["sequences"]))
        own = {owner: [row for row in rows if owners[row] == owner] for owner in owners}
        halves = [row for some in own.values() for row in some[: len(some) // 2]]
        cuts = []
        for first in (sorted(halves), own[owners[0]]):
            second = [row for row in rows if row not in first]
            sees = any(
                owners[a] == owners[b] and op["positions"][b] <= op["positions"][a]
                for a in first
                for b in second
            )
            if first and second and not sees:
                cuts.append([(choose_rows(op, some), some) for some in (first, second)])
        return cuts

    def goes_on(self, step: Step) -> bool:
        """Returns whether every sequence of a pass continues after all it ever held."""
        peaks = {**self.now.peaks}
        for owner, at in zip(step.op["sequences"], step.op["positions"], strict=True):
            if at < peaks.get(owner, 0):
                return False
            peaks[owner] = at + 1
        return True

    def list_detours(self, step: Step) -> Sequence[str]:
        if not self.now.cells:
            return []
        ways = [LOAD, FRESH] if self.config["kind"] in CAUSAL else []
        if "encoder" not in self.kinds and self.list_free():
            ways.append(FORK)
        return ways

    def list_free(self) -> list[int]:
        """Lists the sequences that hold nothing, not even a state without tokens."""
        every = {*range(self.config["sequences"])}
        return sorted(every - {*self.list_owners(), *self.now.peaks})

    def take_detour(self, detour: str, builder: Builder, step: Step) -> None:
        """Takes a detour of the last sequence that holds tokens."""
        owner = self.list_owners()[-1]
        end = self.now.peaks.get(owner, 0)
        if detour == FORK:
            free = self.list_free()[0]
            fork = {"source": owner, "target": free, "length": end}
            builder.add({"op": "copy_prefix", **fork})
            if not self.slides:  # a pass may drop tokens of any sequence
                add_new(builder, free, [end])
            add_removal(builder, free, 0)
            return
        builder.add({"op": "save", "into": "r0"})
        add_new(builder, owner, [end, end + 1][: self.config["batch"]])
        add_removal(builder, owner, 1, 2)
        add_removal(builder, owner, 0)
        add_new(builder, owner, [0])
        builder.add({"op": "load", "from": "r0", "fresh": detour == FRESH})

    def derive_mask(self, history: History, step: Step) -> Derived | None:
        """Compares the first sequence of a pass with a layer cache, if its tokens 0, 1, 2
        are at 0, 1, 2.

        The layer cache sees the same, except outside of the window or the chunk, and
        reads the same into a state. If a window slides, the sequence must never have
        stepped back: some of the tokens it shows may have been dropped then.
        """
        op, config = step.op, self.config
        if not is_pass(step) or op["except"] or op["multimodal"]:
            return None
        if config["kind"] in ("encoder", "wrapper") or self.slides > self.goes_on(step):
            return None
        owner = op["sequences"][0]
        rows = [row for row, other in enumerate(op["sequences"]) if other == owner]
        cells, places = self.get_cells(owner), [op["positions"][row] for row in rows]
        held = [*(cell.position for cell in cells), *places]
        is_steady = owner not in self.now.unsteady and held == [*range(len(held))]
        if not is_steady or len(held) > MAX_LENGTH:
            return None
        kind = "state" if config["kind"] == "recurrent" else "kv"
        builder = Builder(history, contract="layer", kind=kind)
        tags = [cell.tag for cell in cells] + [step.tags[row] for row in rows]
        other = builder.add({"op": "update", "length": len(tags)}, tags)

        def view(answer: Answer) -> Answer:
            seen = [
                [pair for pair in enumerate(row) if pair[0] >= get_first_seen(config, at)]
                for at, row in zip(places, answer["visible"][-len(rows) :], strict=True)
            ]
            return {"visible": seen, "states": answer["visible"][-1:]}

        builder.claim(step, other, pick(step.answer, op, rows), view, rows)
        return builder.build(f"a {kind} layer that reads this sequence alone")


LOAD = "save, other tokens, load"
FRESH = "save, other tokens, load into a fresh cache"
FORK = "a sequence is copied, the copy goes on and is removed"


def is_pass(step: Step) -> bool:
    """Returns whether a step is a pass that was not refused and shows something."""
    shows = step.name == "forward" and "error" not in step.answer
    return shows and not step.op["reserve"]


def choose_rows(op: Op, rows: Sequence[int]) -> Op:
    """Returns the pass with only these rows."""
    chosen = {
        name: [op[name][row] for row in rows] for name in ("positions", "sequences")
    }
    return {**op, **chosen}


def add_cells(builder: Builder, owner: int, cells: Sequence[Cell]) -> None:
    """Adds passes that write these cells, each as large as the batch allows."""
    add_rows(builder, owner, [(cell.position, cell.tag) for cell in cells])


def add_new(builder: Builder, owner: int, positions: Sequence[int]) -> list[int]:
    """Adds passes with new tokens, which the first program does not have; returns their
    numbers."""
    return add_rows(builder, owner, [(at, None) for at in positions])


def add_rows(
    builder: Builder, owner: int, rows: Sequence[tuple[int, int | None]]
) -> list[int]:
    """Adds passes with rows (position, tag or None); returns their numbers."""
    most, numbers = builder.config["batch"], []
    for begin in range(0, len(rows), most):
        some = rows[begin : begin + most]
        op = {
            "op": "forward",
            "positions": [position for position, _ in some],
            "sequences": [owner] * len(some),
        }
        numbers.append(builder.add(op, [tag for _, tag in some if tag is not None]))
    return numbers


def add_removal(builder: Builder, owner: int, begin: int, end: int | None = None) -> int:
    return builder.add({"op": "remove", "sequence": owner, "begin": begin, "end": end})
