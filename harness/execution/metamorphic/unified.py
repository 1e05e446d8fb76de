"""Defines the shadow state of unified caches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import inf

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Answer, Config, Op
from lockstep.harness.contracts.unified.model import SLIDING, list_part_configs
from lockstep.harness.execution.compare import PARTS
from lockstep.harness.execution.metamorphic.relations import (
    Builder,
    Portion,
    Shadow,
    Step,
    Tags,
)
from lockstep.harness.programs.program import Program

PURE = {"causal", "chunked"}
"""Kinds that keep a token until it is removed, and read it into no state."""

Cell = tuple[int, int]
"""The position and the tag of a token."""


class Cells:
    """The tokens of one cache: the only cache, or a cache of a wrapper.

    Example: a pass with the rows (position 0, sequence 0), (1, 0), (0, 1) writes the
    tokens 0, 1 and 2.

    Attributes:
        cells: sequence → its tokens, in the order in which they were written.
        read: sequence → the tokens that its state has read, in this order.
        checkpoints: sequence → the tokens that its state had read at each checkpoint.
        image: the position of the stored image.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.kind = config, config["kind"]
        self.cells: dict[int, list[Cell]] = defaultdict(list)
        self.read: dict[int, list[Cell]] = defaultdict(list)
        self.checkpoints: dict[int, list[list[Cell]]] = defaultdict(list)
        self.image: int | None = None
        count, window = config["sequences"], float(config["window"] or inf)
        memory = window if self.kind == "swa" else config["memory"] or inf
        if count > 1:
            memory = max(memory, window + 1)  # room for a stop token
        self.window = window
        self.memory = memory if memory < config["capacity"] else inf
        room = count * config["capacity"]
        if self.memory != inf:
            room = count * int(self.memory) + config["batch"]
        padding = config["cache_padding"]
        self.room: int = -(-room // padding) * padding

    def list_kept(self, op: Op) -> dict[int, list[Cell]]:
        """Returns the tokens of each sequence that stay when a pass begins."""
        kept = {}
        for sequence, cells in self.cells.items():
            positions = get_positions(op, sequence)
            first = min(positions or [get_end(cells)]) - self.memory
            kept[sequence] = [cell for cell in cells if cell[0] >= first]
        return kept

    def is_full(self, op: Op) -> bool:
        """Returns whether the cache has no room for a pass. A token that several
        sequences share counts once."""
        held = {tag for cells in self.list_kept(op).values() for _, tag in cells}
        return len(held) + len(op["positions"]) > self.room

    def see(self, op: Op, tags: Tags) -> Answer:
        """Returns the answer to a pass that is not refused."""
        if self.kind == "encoder":
            return {"cached": self.image is not None or bool(op["multimodal"])}
        later = deepcopy(self)
        later.forward(op, tags)
        visible = []
        for row, (position, sequence) in enumerate(list_rows(op)):
            chunk = self.config["chunk"] or inf
            first = max(position - self.window, position - position % chunk)
            last = inf if row in op["except"] else position
            cells = later.cells[sequence]
            visible.append([cell for cell in cells if first <= cell[0] <= last])
        owners = dict.fromkeys(op["sequences"])
        states = [[tag for _, tag in later.read[sequence]] for sequence in owners]
        has_state = self.kind == "recurrent"
        return {"visible": visible, **({"states": states} if has_state else {})}

    def forward(self, op: Op, tags: Tags) -> None:
        """Applies a pass, whose last image is stored; `tags` is empty for a refused
        pass."""
        if op["multimodal"] and tags:
            self.image = op["positions"][max(op["multimodal"])]
        self.cells |= self.list_kept(op)
        for tag, (position, sequence) in zip(tags, list_rows(op), strict=False):
            self.cells[sequence].append((position, tag))
            self.read[sequence].append((position, tag))
        interval = self.config["interval"]
        for sequence in dict.fromkeys(op["sequences"]) if interval and tags else ():
            read, kept = self.read[sequence], self.checkpoints[sequence]
            if get_end(read) - (get_end(kept[-1]) if kept else 1 - interval) >= interval:
                kept.append([*read])
                del kept[: -self.config["checkpoints"]]

    def copy(self, source: int, target: int, length: int) -> None:
        """Applies a copy. A recurrent state is copied as a whole."""
        self.cells[target] = [cell for cell in self.cells[source] if cell[0] < length]
        self.read[target] = [*self.read[source]]
        self.checkpoints[target] = [*self.checkpoints[source]]

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Applies a removal, which moves later tokens to lower positions. A state goes
        back to a checkpoint."""
        stop = inf if end is None else end
        self.cells[sequence] = [
            (at if at < begin else at + begin - int(stop), tag)
            for at, tag in self.cells[sequence]
            if not begin <= at < stop
        ]
        if begin == 0 or get_end(self.read[sequence]) > begin:
            kept = [x for x in self.checkpoints[sequence] if get_end(x) <= begin]
            self.checkpoints[sequence] = kept if begin else []
            self.read[sequence] = [*kept[-1]] if begin and kept else []
        if self.image is not None and begin <= self.image < stop:
            self.image = None

    def can_resume(self, sequence: int, position: int) -> bool:
        """Returns whether all tokens that a token at `position` sees are present, and
        its state is at this position or has a checkpoint there."""
        read = self.read[sequence], *self.checkpoints[sequence]
        if self.kind == "recurrent" and position not in (0, *map(get_end, read)):
            return False
        stored = [at for at, _ in self.cells[sequence]]
        if self.memory == inf or not stored:
            return self.memory == inf
        first = max(0, position - self.window)
        return first >= min(stored) and position <= max(stored) + 1

    def is_free(self, sequence: int) -> bool:
        """Returns whether a sequence has no tokens and no state."""
        return not self.cells[sequence] and not self.read[sequence]


def get_end(cells: Sequence[Cell]) -> int:
    """Returns the position after the last token."""
    return max((position for position, _ in cells), default=-1) + 1


def list_rows(op: Op) -> list[tuple[int, int]]:
    """Lists the position and the sequence of each row of a pass."""
    return list(zip(op["positions"], op["sequences"], strict=True))


def get_positions(op: Op, sequence: int) -> list[int]:
    """Returns the positions of the rows of a pass that belong to a sequence."""
    return [position for position, owner in list_rows(op) if owner == sequence]


class UnifiedShadow(Shadow):
    """The tokens of a unified cache, or of each cache of a wrapper.

    If a wrapper refuses an operation, some of its caches may have changed, so the tokens
    are then unknown, unless it refuses a pass and no cache has a window.

    Attributes:
        members: the tokens of each cache.
        saved: name → the tokens that were saved under the name.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.members = list(map(Cells, list_part_configs(program.config)))
        self.kinds = {member.kind for member in self.members}
        self.slides = not self.kinds.isdisjoint(SLIDING)
        self.is_wrapper = self.config["kind"] == "wrapper"
        self.saved: dict[str, list[Cells]] = {}

    def write(self, step: Step) -> None:
        self.is_lost |= bool(step.op.get("coordinates"))  # the order at one position
        if step.answer.get("error", "usage") != "usage":
            if step.name == "forward":
                for member in self.members:
                    member.forward(step.op, ())
            is_whole = step.name == "forward" and not self.slides
            self.is_lost |= self.is_wrapper and not is_whole
        super().write(step)

    def write_forward(self, step: Step) -> None:
        for member in () if step.op["reserve"] else self.members:
            member.forward(step.op, step.tags)

    def write_copy_prefix(self, step: Step) -> None:
        for member in self.members:
            member.copy(*(step.op[x] for x in ("source", "target", "length")))

    def write_remove(self, step: Step) -> None:
        for member in self.members:
            member.remove(*(step.op[x] for x in ("sequence", "begin", "end")))

    def write_save(self, step: Step) -> None:
        self.saved[step.op["into"]] = deepcopy(self.members)

    def write_load(self, step: Step) -> None:
        self.members = deepcopy(self.saved[step.op["from"]])

    # --- relations ----------------------------------------------------------------------

    def see(self, step: Step) -> Answer | None:
        """Returns what a pass shows, or that the cache is full; and where a sequence can
        continue. With a state, a pass has further reasons for a refusal."""
        op, members = step.op, self.members
        has_state = "recurrent" in self.kinds
        if step.answer.get("error") == "usage":
            return None
        if step.name == "can_resume":
            where = op["sequence"], op["position"]
            return {"result": all(member.can_resume(*where) for member in members)}
        if step.name != "forward" or op["reserve"] or op["coordinates"]:
            return None
        if any(member.kind != "encoder" and member.is_full(op) for member in members):
            return None if has_state else {"error": "cache-full"}
        if has_state and "error" in step.answer:
            return None
        return see_all(members, op, step.tags, self.is_wrapper)

    def may_interrupt(self, step: Step) -> bool:
        """Returns whether the step opens a pass. A step such as `get` or `put` cannot run
        on another cache, because it needs the open pass."""
        return step.name == "forward" and step.answer.get("error") != "usage"

    def rebuild(self, builder: Builder) -> bool:
        """Adds passes that write each sequence to the new cache.

        Returns False if a token was dropped, read into a state or saved, or if sequences
        share tokens: in a new cache, such tokens would need more capacity.
        """
        cells = self.members[0].cells
        held = [tag for sequence in cells.values() for _, tag in sequence]
        if self.saved or len({*held}) < len(held) or not self.kinds <= PURE:
            return False
        size = self.config["batch"]
        for sequence in sorted(cells):
            for begin in range(0, len(cells[sequence]), size):
                batch = cells[sequence][begin : begin + size]
                rows = {"sequences": [sequence] * len(batch)}
                rows["positions"] = [position for position, _ in batch]
                builder.add({"op": "forward", **rows}, [tag for _, tag in batch])
        return True

    def list_cuts(self, step: Step) -> Sequence[Sequence[Portion]]:
        """Cuts a pass into the first and the second half of each sequence.

        No pass is cut if a window slides, because the second pass may drop more tokens,
        nor if checkpoints are made, because the first pass makes another.
        """
        op, first = step.op, list[int]()
        is_plain = not (op["reserve"] or op["except"] or op["multimodal"])
        is_plain &= not op["coordinates"]
        if self.slides or self.config["interval"] or not is_plain:
            return []
        for sequence in dict.fromkeys(op["sequences"]):
            rows = [row for row, x in enumerate(op["sequences"]) if x == sequence]
            first += rows[: len(rows) // 2]
        second = [row for row in range(len(op["positions"])) if row not in first]
        halves = (sorted(first), second) if first else ()
        cut = [(choose_rows(op, half), half) for half in halves]
        return [cut] if cut else []

    def list_detours(self, step: Step) -> Sequence[str]:
        """Lists the detours: save, write other tokens, load; and copy the last sequence,
        extend the copy, remove the copy."""
        numbers = range(self.config["sequences"])
        used = [x for x in numbers if any(member.cells[x] for member in self.members)]
        free = [x for x in numbers if all(member.is_free(x) for member in self.members)]
        if not used:
            return []
        end = 1 + max(
            (at for member in self.members for at, _ in member.cells[used[-1]]),
            default=-1,
        )
        detours = []
        if "save" in CONTRACTS["unified"].list_operations(self.config["kind"]):
            detours.append(
                f"save into=r0; forward positions=[{end}] sequences=[{used[-1]}];"
                f" remove sequence={used[-1]} begin=0 end=null; load from=r0"
            )
        if free and "encoder" not in self.kinds:
            # A pass may drop tokens of any sequence, if a window slides.
            new = f" forward positions=[{end}] sequences=[{free[0]}];"
            detours.append(
                f"copy_prefix source={used[-1]} target={free[0]} length={end};"
                f"{'' if self.slides else new} remove sequence={free[0]} begin=0 end=null"
            )
        return detours


def see_all(members: Sequence[Cells], op: Op, tags: Tags, is_wrapper: bool) -> Answer:
    answers = [member.see(op, tags) for member in members]
    return {PARTS: answers} if is_wrapper else answers[0]


def choose_rows(op: Op, rows: Sequence[int]) -> Op:
    """Returns the pass with only the rows of the given indices."""
    return {**op, **{x: [op[x][row] for row in rows] for x in ("positions", "sequences")}}


SHADOWS: Mapping[str, type[Shadow]] = dict.fromkeys(
    CONTRACTS["unified"].kinds, UnifiedShadow
)
