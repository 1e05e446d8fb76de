"""Defines the shadow state, the detours and the special relations of unified caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lockstep.harness.contracts.operation import Answer, Config, Op
from lockstep.harness.contracts.unified.model import CAUSAL, SLIDING, list_part_configs
from lockstep.harness.core.document import MAX_LENGTH
from lockstep.harness.execution.metamorphic.relations import (
    DETOUR,
    Builder,
    Case,
    Derived,
    Family,
    Portion,
    Relation,
    Shadow,
    Step,
    Tags,
    make_cases,
    pick,
)
from lockstep.harness.programs.program import Program

PURE = {"causal", "chunked"}
"""Kinds that keep a token until it is removed, and read it into no state."""


def list_kinds(config: Config) -> set[str]:
    """Returns the kinds of a wrapper's caches, or the kind of any other cache."""
    return {member["kind"] for member in list_part_configs(config)}


def get_first_seen(config: Config, position: int) -> int:
    """Returns the first position that the query at `position` sees in its window or
    chunk."""
    if config["chunk"]:
        return position - position % int(config["chunk"])
    return position - int(config["window"]) if config["window"] else 0


@dataclass
class Content:
    """The content of all sequences.

    Attributes:
        cells: sequence → its (position, tag) pairs, in the order in which they were
            written.
        peaks: sequence → 1 + the highest position that the sequence ever held. Example: a
            sequence that got the positions 0, 1, 2 and lost position 2 has the peak 3.
        unsteady: sequences whose tokens, in the order of writing, may have other
            positions than 0, 1, 2, ….
    """

    cells: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    peaks: dict[int, int] = field(default_factory=dict)
    unsteady: set[int] = field(default_factory=set)

    def get(self, sequence: int) -> list[tuple[int, int]]:
        return self.cells.get(sequence, [])

    def get_peak(self, sequence: int) -> int:
        return self.peaks.get(sequence, 0)

    def list_used(self) -> list[int]:
        """Lists the sequences that hold tokens."""
        return sorted(sequence for sequence, cells in self.cells.items() if cells)

    def is_shared(self, sequence: int, tag: int) -> bool:
        """Returns whether another sequence holds the same token; a different token with
        equal content does not count."""
        others = (cells for name, cells in self.cells.items() if name != sequence)
        return any(tag == held for cells in others for _, held in cells)


class UnifiedShadow(Shadow):
    """The cells of a unified cache.

    Example: a pass with the rows (position 0, sequence 0), (1, 0), (0, 1) writes the
    cells of the tokens 0, 1 and 2. Tokens that have left a window stay in the state; the
    relations `mask` and `cut` determine which tokens are visible. If a wrapper refuses an
    operation, some of its caches may have changed, so the content is then unknown.

    Attributes:
        saved: name → the content that was saved under the name.
    """

    ends_with_cut = True

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.kinds = list_kinds(program.config)
        self.slides = not self.kinds.isdisjoint(SLIDING)
        self.content = Content()
        self.saved: dict[str, Content] = {}

    def write(self, step: Step) -> None:
        if step.answer.get("error", "usage") != "usage" and step.name != "forward":
            self.is_lost |= self.config["kind"] == "wrapper"
        super().write(step)

    def write_forward(self, step: Step) -> None:
        op, content = step.op, self.content
        rows = zip(step.tags, op["positions"], op["sequences"], strict=False)
        for tag, position, sequence in () if op["reserve"] else rows:
            cells = content.cells.setdefault(sequence, [])
            if position != len(cells):
                content.unsteady.add(sequence)
            cells.append((position, tag))
            content.peaks[sequence] = max(content.get_peak(sequence), position + 1)

    def write_copy_prefix(self, step: Step) -> None:
        """Applies a copy. A recurrent state is copied as a whole, so it may have read
        tokens that the copy does not hold."""
        source, target, length = (step.op[x] for x in ("source", "target", "length"))
        content = self.content
        peak = content.get_peak(source)
        content.cells[target] = [cell for cell in content.get(source) if cell[0] < length]
        content.peaks[target] = max(peak, content.get_peak(target))
        if source in content.unsteady or peak > length:
            content.unsteady.add(target)

    def write_remove(self, step: Step) -> None:
        """Applies a removal, which moves later tokens to lower positions.

        A token that another sequence shares cannot move. If the removal was not refused,
        the sequence had already dropped this token.
        """
        sequence, begin, end = (step.op[x] for x in ("sequence", "begin", "end"))
        content, kept = self.content, []
        for position, tag in content.get(sequence):
            is_behind = end is not None and position >= end
            if position < begin:
                kept.append((position, tag))
            elif is_behind and not content.is_shared(sequence, tag):
                kept.append((position + begin - end, tag))
        content.cells[sequence] = kept
        if end is not None:
            content.unsteady.add(sequence)
        elif begin == 0:
            content.unsteady.discard(sequence)
            content.peaks.pop(sequence, None)

    def write_save(self, step: Step) -> None:
        self.saved[step.op["into"]] = deepcopy(self.content)

    def write_load(self, step: Step) -> None:
        self.content = deepcopy(self.saved[step.op["from"]])

    # --- relations ----------------------------------------------------------------------

    def may_interrupt(self, step: Step) -> bool:
        """Returns whether the step opens a pass. A step such as `get` or `put` cannot run
        on another cache, because it needs the open pass."""
        return step.name == "forward" and step.answer.get("error") != "usage"

    def rebuild(self, builder: Builder) -> bool:
        """Adds passes that write each sequence to the new cache.

        Returns False if a token was dropped, read into a state or saved, or if sequences
        share tokens: in a new cache, such tokens would need more capacity.
        """
        held = [tag for cells in self.content.cells.values() for _, tag in cells]
        if self.saved or len({*held}) < len(held) or not self.kinds <= PURE:
            return False
        for sequence in self.content.list_used():
            positions, tags = zip(*self.content.get(sequence), strict=True)
            add_tokens(builder, sequence, positions, tags)
        return True

    def list_cuts(self, step: Step) -> Sequence[Sequence[Portion]]:
        """Cuts a pass in two ways: into the first and the second half of its sequences,
        or into its first sequence and all others.

        A pass is not cut if a row of the first new pass would see a row of the second. If
        a window slides, each sequence must continue after its highest position so far,
        because the cut may change the pass in which a token is dropped.
        """
        op = step.op
        if not self.is_plain_pass(step) or self.slides > self.goes_on(step):
            return []
        sequences, positions = op["sequences"], op["positions"]
        rows = range(len(sequences))
        halves = []
        for sequence in dict.fromkeys(sequences):
            rows_of_it = list_rows(op, sequence)
            halves += rows_of_it[: len(rows_of_it) // 2]
        cuts = []
        for first in (sorted(halves), list_rows(op, sequences[0])):
            second = [row for row in rows if row not in first]
            sees = any(
                sequences[a] == sequences[b] and positions[b] <= positions[a]
                for a in first
                for b in second
            )
            if first and second and not sees:
                pair = first, second
                cuts.append([(choose_rows(op, half), half, half) for half in pair])
        return cuts

    def is_plain_pass(self, step: Step) -> bool:
        """Returns whether a step is a pass that was not refused, writes tokens, and has
        no image and no row that sees later positions."""
        op = step.op
        if step.name != "forward" or "error" in step.answer or op["reserve"]:
            return False
        return not op["except"] and not op["multimodal"]

    def goes_on(self, step: Step) -> bool:
        """Returns whether a pass continues each sequence after its highest position."""
        peaks = {**self.content.peaks}
        for sequence, at in zip(step.op["sequences"], step.op["positions"], strict=True):
            if at < peaks.get(sequence, 0):
                return False
            peaks[sequence] = at + 1
        return True

    def list_detours(self, step: Step) -> Sequence[str]:
        if not self.content.list_used():
            return []
        ways = [LOAD, FRESH] if self.config["kind"] in CAUSAL else []
        return ways + ([FORK] if "encoder" not in self.kinds and self.list_free() else [])

    def list_free(self) -> list[int]:
        """Lists the sequences that have neither tokens nor a state."""
        used = {*self.content.list_used(), *self.content.peaks}
        return [x for x in range(self.config["sequences"]) if x not in used]

    def take_detour(self, detour: str, builder: Builder, step: Step) -> None:
        """Adds a detour for the last sequence that holds tokens."""
        sequence = self.content.list_used()[-1]
        end = self.content.get_peak(sequence)
        if detour == FORK:
            free = self.list_free()[0]
            # A pass may drop tokens of any sequence, if a window slides.
            new = f"forward positions=[{end}] sequences=[{free}];"
            builder.play(
                step,
                f"copy_prefix source={sequence} target={free} length={end};"
                f"{'' if self.slides else new} remove sequence={free} begin=0 end=null",
            )
            return
        builder.add({"op": "save", "into": "r0"})
        add_tokens(builder, sequence, [end, end + 1][: self.config["batch"]])
        builder.play(
            step,
            f"remove sequence={sequence} begin=1 end=2; remove sequence={sequence}"
            f" begin=0 end=null; forward positions=[0] sequences=[{sequence}];"
            f" load from=r0 fresh={str(detour == FRESH).lower()}",
        )

    def list_members(self) -> Sequence[Config]:
        return list_part_configs(self.config) if self.config["kind"] == "wrapper" else ()

    def derive_mask(self, step: Step) -> Derived | None:
        """Derives a layer cache with the tokens of the first sequence of a pass.

        Only applies if these tokens have the positions 0, 1, 2, …. Both caches must see
        the same tokens within the window or the chunk, and read the same tokens into a
        state. If a window slides, the sequence must never have gone back to an earlier
        position: the window may have dropped tokens before.
        """
        op, config = step.op, self.config
        if not self.is_plain_pass(step) or config["kind"] in ("encoder", "wrapper"):
            return None
        sequence = op["sequences"][0]
        rows = list_rows(op, sequence)
        written = [(op["positions"][row], step.tags[row]) for row in rows]
        positions, tags = zip(*self.content.get(sequence), *written, strict=True)
        is_steady = sequence not in self.content.unsteady
        if not is_steady or positions != (*range(len(positions)),):
            return None
        if self.slides > self.goes_on(step) or len(positions) > MAX_LENGTH:
            return None
        kind = "state" if config["kind"] == "recurrent" else "kv"
        builder = Builder(self.program, "layer", kind=kind)
        number = builder.add({"op": "update", "length": len(tags)}, tags)

        def view(answer: Answer) -> Answer:
            pairs = zip(written, answer["visible"][-len(rows) :], strict=True)
            seen = [
                [pair for pair in enumerate(row) if pair[0] >= get_first_seen(config, at)]
                for (at, _), row in pairs
            ]
            return {"visible": seen, "states": answer["visible"][-1:]}

        builder.claim(step, number, pick(step.answer, op, rows), view, rows)
        return builder.build(f"a {kind} layer that reads this sequence alone")


LOAD = "save, other tokens, load"
FRESH = "save, other tokens, load into a fresh cache"
FORK = "copy a sequence, extend the copy, remove the copy"


def list_rows(op: Op, sequence: int) -> list[int]:
    """Lists the rows of a pass that belong to a sequence."""
    return [row for row, name in enumerate(op["sequences"]) if name == sequence]


def choose_rows(op: Op, rows: Sequence[int]) -> Op:
    """Returns the pass without the rows whose indices are not given."""
    return {**op, **{x: [op[x][row] for row in rows] for x in ("positions", "sequences")}}


def add_tokens(
    builder: Builder, sequence: int, positions: Sequence[int], tags: Tags = ()
) -> list[int]:
    """Adds passes that write tokens of one sequence, and returns the numbers of the
    passes.

    Args:
        builder: the derived program.
        sequence: the sequence.
        positions: the positions of the tokens. Each pass has as many rows as possible.
        tags: the tags of the tokens in the first program; empty for new tokens.
    """
    size, numbers = builder.config["batch"], []
    for begin in range(0, len(positions), size):
        batch = [*positions[begin : begin + size]]
        op = {"op": "forward", "positions": batch, "sequences": [sequence] * len(batch)}
        numbers.append(builder.add(op, tags[begin : begin + size]))
    return numbers


def add_removal(
    builder: Builder, sequence: int, begin: int, end: int | None = None
) -> int:
    op = {"op": "remove", "sequence": sequence, "begin": begin, "end": end}
    return builder.add(op)


# --- cases ------------------------------------------------------------------------------

MAX_TOKENS = 400
"""The maximum number of tokens in a simple program."""


def see(config: Config, position: int) -> dict[str, Any]:
    """Returns the correct answer to a pass with one row at `position`. No token up to
    this position may occur in the first program."""
    answers = []
    for member in list_part_configs(config):
        first = max(0, get_first_seen(member, position))
        seen = [(at, DETOUR) for at in range(first, position + 1)]
        answers.append({} if member["kind"] == "encoder" else {"visible": [seen]})
    return {"caches": answers} if config["kind"] == "wrapper" else answers[0]


def get_room(config: Config) -> int:
    """Returns the number of tokens that fill the cache.

    Returns 0 if a window drops tokens, or if the number exceeds MAX_TOKENS.
    """
    members = list_part_configs(config)
    capacities = [x["capacity"] for x in members if x["kind"] != "encoder"]
    if not capacities or not list_kinds(config).isdisjoint(SLIDING):
        return 0
    room = int(min(capacities) * config["sequences"])
    return room if room <= MAX_TOKENS else 0


def fill_up(builder: Builder, step: Step) -> None:
    """Promises that a copied prefix uses no capacity, and that a pass beyond the padded
    capacity is refused and writes no token.

    To check that no token was written, the program removes the last token and writes a
    new token at its position. The new token must see the same tokens as the removed
    token. If the refused pass had written a token, this removal would move it to a
    visible position, provided that keys can be rotated.
    """
    config, room = builder.config, get_room(builder.config)
    if not room:
        return
    add_tokens(builder, 0, range(room - 1))
    if config["sequences"] > 1 and list_kinds(config) <= PURE:
        builder.play(step, f"copy_prefix source=0 target=1 length={room - 1}")
    builder.promise(step, add_tokens(builder, 0, [room - 1])[-1], {})
    over = add_tokens(builder, 0, range(room, room + config["cache_padding"]))
    builder.promise(step, over[-1], {"error": "cache-full"})
    if "recurrent" not in list_kinds(config):
        end = room if config["shift"] else None
        builder.promise(step, add_removal(builder, 0, room - 1, end), {})
        go_on(builder, step, room - 1)


def get_memory(config: Config) -> int:
    """Returns the number of tokens that a cache with a window keeps.

    Returns 0 without a window, or if the cache may round the number up to its capacity.
    """
    memory = int(config["window" if config["kind"] == "swa" else "memory"] or 0)
    return memory if config["window"] and memory < config["capacity"] - 1 else 0


def forget_in_time(builder: Builder, step: Step) -> None:
    """Promises that every sequence can get more tokens than the memory of the window
    holds."""
    count, memory = builder.config["sequences"], get_memory(builder.config)
    length = memory + 3
    if not memory or length * count > MAX_TOKENS:
        return
    for sequence in [*range(count), 0]:
        begin = length if sequence == 0 and builder.ops else 0
        for number in add_tokens(builder, sequence, range(begin, begin + length)):
            builder.promise(step, number, {})


def close_gap(builder: Builder, step: Step) -> None:
    """Promises that, after a removal of 1 to 3 of 6 tokens, a new token sees the other
    tokens."""
    if builder.config["shift"] and builder.config["capacity"] >= 6:
        count = 1 + step.number % 3
        add_tokens(builder, 0, range(6))
        builder.promise(step, add_removal(builder, 0, 1, 1 + count), {})
        go_on(builder, step, 6 - count)


def go_on(builder: Builder, step: Step, position: int, **fields: Any) -> None:
    """Adds a token of sequence 0 at `position`, and promises the tokens that it sees."""
    (number,) = add_tokens(builder, 0, [position])
    builder.promise(step, number, {**see(builder.config, position), **fields})


def resume(
    builder: Builder, step: Step, position: int, may_refuse: bool = False, **fields: Any
) -> None:
    """Removes the tokens of sequence 0 from a position on, and adds a token there.

    Args:
        builder: the derived program.
        step: the step of the first program to report if a promise is broken.
        position: the position at which sequence 0 continues.
        may_refuse: whether `can_resume` may be false; later claims are then dropped.
        fields: further promised fields of the answer to the added token.
    """
    number = builder.add({"op": "can_resume", "sequence": 0, "position": position})
    builder.promise(step, number, {"result": True}, is_condition=may_refuse)
    builder.promise(step, add_removal(builder, 0, position), {})
    go_on(builder, step, position, **fields)


def go_back_too_far(builder: Builder, step: Step) -> None:
    """Promises that a sequence cannot continue at a position whose window was partly
    dropped.

    Example: with a window of 2 and a memory of 3, a pass at position 6 keeps the
    positions from 3 on. A new token at position 4 would miss the token at position 2. A
    cache may keep one token more than the config requires; therefore, the program writes
    one more token if the step number is odd.
    """
    window, memory = builder.config["window"], get_memory(builder.config)
    if memory:
        last = memory + window + 1 + step.number % 2
        add_tokens(builder, 0, range(last))
        add_tokens(builder, 0, [last])
        resume(builder, step, 2 * window, may_refuse=True)


def go_back_in_window(builder: Builder, step: Step) -> None:
    """Promises that a sequence that fits into its window can continue at any position."""
    if get_memory(builder.config):
        window = builder.config["window"]
        add_tokens(builder, 0, range(window))
        for position in (window, window // 2):
            resume(builder, step, position)


def go_back_one(builder: Builder, step: Step) -> None:
    """Promises that, after two passes, the state can continue from the checkpoint of the
    first pass."""
    config = builder.config
    if config["interval"] and (config["interval"] > 1 or config["checkpoints"] > 1):
        add_tokens(builder, 0, [0])
        add_tokens(builder, 0, [1])
        resume(builder, step, 1, states=[[DETOUR, DETOUR]])


def lose_image(builder: Builder, step: Step, begin: int) -> None:
    """Promises that the cache stores the later of two images. It keeps this image if
    the token of the earlier image is removed, and drops it if its own token is
    removed."""
    if builder.config["batch"] > 1:
        builder.play(
            step,
            "forward positions=[3,4] sequences=[0,0] multimodal=[0,1]; put;"
            f" remove sequence=0 begin={begin} end={begin + 1};"
            f" forward positions=[5] sequences=[0] => cached={str(begin == 3).lower()}",
        )


FULL = make_cases("room", "forward", {"a cache that becomes full": fill_up})
GAP = make_cases("gap", "forward", {"a removal from the middle of a sequence": close_gap})
GROWING = make_cases("room", "forward", {"sequences that only grow": forget_in_time})
WINDOW: Mapping[str, Case] = {
    "a sequence that goes back to a position whose window was dropped": go_back_too_far,
    "a sequence that goes back within its window": go_back_in_window,
}
STATE: Mapping[str, Case] = {"a state with a checkpoint after one pass": go_back_one}
IMAGE: Mapping[str, Case] = {
    f"a removal of the {which} of two images": partial(lose_image, begin=begin)
    for which, begin in (("first", 3), ("last", 4))
}
SPECIAL: Mapping[str, Sequence[Relation]] = {
    **dict.fromkeys(PURE, (FULL, GAP)),
    **dict.fromkeys(SLIDING, (GROWING, make_cases("resume", "forward", WINDOW))),
    "encoder": [make_cases("image", "forward", IMAGE)],
    "wrapper": [FULL],
    "recurrent": [FULL, make_cases("resume", "forward", STATE)],
}
FAMILIES = {kind: Family(UnifiedShadow, relations) for kind, relations in SPECIAL.items()}
