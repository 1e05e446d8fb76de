"""Selects a few of the drawn programs, which together reach all that can be reached.

The selection is a function of kind and size alone: programs come from Python's own random
generator with a fixed seed, and nothing depends on workers, the order of a `set` or the
machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.batched.parts import LISTS, SPECIAL
from lockstep.harness.contracts.layer import CHOICES
from lockstep.harness.contracts.operation import Cell, Config, list_allowed
from lockstep.harness.programs.generate.drawer import Drawer, generate
from lockstep.harness.programs.program import Program, walk
from lockstep.harness.programs.vectors import SEED
from lockstep.harness.programs.vectors.manifest import make_line, make_typed

# --- levels: first what any engine can run, then the rest -------------------------------


DTYPES = ("float32", "float16", "bfloat16")

# Level → contract → the operations that it adds to the level before. The first level has
# the required operations, the last one all.
ADDED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "cut": {
        "layer": ("trim",),
        "batched": ("trim", "filter"),
        "unified": ("remove",),
        "prefix": ("cancel",),
        "paged": ("accept", "preempt"),
    },
    "basic": {
        "layer": ("state", "size", "clone", "free"),
        "batched": ("extend", "extract", "stack", "state", "size"),
        "unified": ("copy_prefix", "can_resume"),
        "prefix": ("break", "count", "free"),
        "paged": ("match", "evict", "reset"),
    },
}

# Fields that are declared so that the abstract states around them count.
ALWAYS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "kv": {"step": CHOICES["step"]},
    "rotating": {"step": CHOICES["step"]},
    **{kind: {"pads_left": (True,)} for kind in CONTRACTS["batched"].kinds},
}

MASKS: Mapping[str, Sequence[Any]] = {
    "mask_padding": (1, 4),
    "mask_form": ("any", "additive"),
}
POOL: Mapping[str, Sequence[Any]] = {
    "layers": (1, 2, 3),
    "cache_padding": (1, 4, 32),
    "mask_padding": (1, 4, 32),
    "mask_dtype": DTYPES,
    "permuted_values": (False, True),
}
BLOCKS: Mapping[str, Sequence[Any]] = {
    "hash_block": (None, 1, 2),
    "drop_last": (False, True),
    "host": (0, 4),
}
# Fields that have their default in all levels but the last one; the default comes first.
SETTINGS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "kv": {"chunk": (None, 2, 3), **MASKS},
    "rotating": {"keep": (0, 1, 2), **MASKS},
    "state": {},
    "batch-kv": {"pads_left": (True, False), "chunk": (None, 2, 3)},
    "batch-rotating": {"pads_left": (True, False), "keep": (0, 1, 2)},
    "batch-state": {"pads_left": (True, False)},
    "batch-list": {"pads_left": (True, False), "caches": (*LISTS, SPECIAL)},
    **dict.fromkeys(CONTRACTS["unified"].kinds, POOL),
    **dict.fromkeys(CONTRACTS["paged"].kinds, BLOCKS),
    "session": {},
    "trie": {"interval": (None, 1, 2, 3)},
    "slots": {"interval": (None, 1, 2, 3)},
}


@dataclass(frozen=True)
class Level:
    """A group of programs, drawn for one declaration."""

    name: str
    declared: Kind


def list_levels(contract: str, kind: str) -> list[Level]:
    """Lists the levels of a kind, the simplest first.

    A cache with five of thirteen operations can run few programs that use all thirteen.
    So the programs of a kind come in levels. Each level may do more than the one before,
    and covers what the levels before cannot reach. An engine runs the levels whose
    operations and settings it has.
    """
    rules = CONTRACTS[contract]
    every = frozenset(rules.list_operations(kind))
    plain: dict[str, Any] = {name: tuple(v) for name, v in ALWAYS.get(kind, {}).items()}
    settings = {name: tuple(v) for name, v in SETTINGS[kind].items()}
    operations = every & {*rules.required}
    levels = [Level("core", Kind(operations, plain))]
    for name, added in ADDED.items():
        operations |= every & {*added[contract]}
        levels.append(Level(name, Kind(operations, plain)))
    levels.append(Level("full", Kind(every, plain)))
    levels.append(Level("usage", Kind(every, plain, refuses=True)))
    if settings:
        levels.append(Level("settings", Kind(every, {**plain, **settings})))
    return levels


def get_whole(contract: str, kind: str) -> Kind:
    """Returns the declaration of all levels together."""
    last = list_levels(contract, kind)[-1].declared
    return Kind(last.operations, last.config, refuses=True)


# --- the choice -------------------------------------------------------------------------


# In the place of a state or an operation of a cell: any of them.
ANY = ""

# In the place of a cell: the operation was illegal.
SKIPPED = ("skipped", ANY)

# Prefix of an error's name in the place of a state: the operation was refused.
ERROR = "error "


@dataclass(frozen=True)
class Size:
    """The coverage of each kind that a set must have.

    Attributes:
        cells: whether to cover each abstract state with each operation, or only the
            operations.
        times: the number of programs that must reach each of them.
        drawn: the number of programs in a round.
        rounds: the number of rounds after which missing cells are given up.
        about: the same in words.
    """

    cells: bool
    times: int
    drawn: int
    rounds: int
    about: str


SIZES: Mapping[str, Size] = {
    "tiny": Size(False, 1, 24, 6, "every operation"),
    "small": Size(True, 2, 160, 6, "every abstract state with every operation, twice"),
    "standard": Size(True, 20, 400, 6, "the same, twenty times"),
}


@dataclass(frozen=True, eq=False)
class Candidate:
    """A drawn program, the cells that it reaches, and its line in a file."""

    program: Program
    reached: frozenset[Cell]
    line: str


@dataclass
class Selection:
    """The programs of one kind.

    Attributes:
        chosen: (level, line) of each program.
        counted: cell → the number of chosen programs that reach it.
        steps: the number of operations in all chosen programs.
        drawn: the number of programs that were drawn.
    """

    contract: str
    kind: str
    size: Size
    chosen: list[tuple[str, str]] = field(default_factory=list)
    counted: Counter[Cell] = field(default_factory=Counter)
    steps: int = 0
    drawn: int = 0

    def select(self, on_draw: Callable[[Program], None] = lambda _: None) -> None:
        """Selects the programs of all levels.

        Args:
            on_draw: is called with each program that is drawn.
        """
        for number, level in enumerate(list_levels(self.contract, self.kind)):
            candidates = self.draw_level(number, level, on_draw)
            for candidate in self.choose(candidates, level):
                self.keep(candidate, level)

    def draw_level(
        self, number: int, level: Level, on_draw: Callable[[Program], None]
    ) -> list[Candidate]:
        """Draws programs until all goals are reached often enough or rounds run out.

        From the second round on, the programs aim at the missing goals.
        """
        drawer = Drawer(self.contract, self.kind, level.declared, DTYPES)
        goals = self.list_goals(level)
        candidates: list[Candidate] = []

        def consume(program: Program) -> None:
            on_draw(program)
            program = make_typed(program)
            reached = frozenset(list_reached(program))
            is_useful = reached & goals or any(map(is_error, reached))
            if is_useful and SKIPPED not in reached:
                name = f"{self.contract}-{self.kind}-{self.drawn:05d}"
                line = make_line(program, {"name": name, "level": level.name})
                # Each step has one right answer, unless the contract leaves the choice.
                if drawer.rules.leaves_choices or '"one_of"' not in line:
                    candidates.append(Candidate(program, reached, line))
            self.drawn += 1

        for turn in range(self.size.rounds):
            missing = self.list_missing(goals, candidates)
            if turn and not missing:
                break
            if turn:
                aim_at(drawer, missing)
            seed = SEED + 1000 * number + turn
            generate(self.size.drawn, seed, drawer.draw, consume)
        return candidates

    def list_goals(self, level: Level) -> frozenset[Cell]:
        """Lists the goals that a level can reach and the levels before did not."""
        cells = CONTRACTS[self.contract].list_cells(self.kind, level.declared)
        operations = dict.fromkeys(operation for _, operation in cells)
        goals = cells if self.size.cells else [(ANY, name) for name in operations]
        if level.name == "settings":
            settings = list_setting_names(self.kind)
            every = operations if self.size.cells else [ANY]
            goals = [*goals, *((name, each) for name in settings for each in every)]
        return frozenset(goal for goal in goals if self.counted[goal] < self.size.times)

    def list_missing(
        self, goals: Iterable[Cell], candidates: Sequence[Candidate]
    ) -> list[Cell]:
        """Lists the goals that are not reached often enough by all candidates, sorted."""
        counted = self.counted.copy()
        for candidate in candidates:
            counted.update(candidate.reached)
        return sorted(goal for goal in goals if counted[goal] < self.size.times)

    def choose(self, candidates: Sequence[Candidate], level: Level) -> list[Candidate]:
        """Chooses candidates greedily: most missing goals for the length of its line.

        It ends when no candidate reaches a missing goal. The gain of a candidate never
        grows, so it is computed again only when the candidate seems to be the best.
        """
        goals = set(self.list_goals(level))
        if self.size.cells:
            every = {cell for candidate in candidates for cell in candidate.reached}
            goals |= set(filter(is_error, every))
        wanted = {goal: self.size.times - self.counted[goal] for goal in goals}

        def rate(place: int) -> float:
            """Returns the negative gain for the length, so that the best comes first."""
            candidate = candidates[place]
            gain = sum(wanted.get(cell, 0) > 0 for cell in candidate.reached)
            return -gain / len(candidate.line)

        chosen: list[Candidate] = []
        heap = [(rate(place), place) for place in range(len(candidates))]
        heapify(heap)
        while heap and heap[0][0]:
            _, place = heap[0]
            if heap[0][0] != rate(place):
                heapreplace(heap, (rate(place), place))
                continue
            heappop(heap)
            chosen.append(candidates[place])
            for cell in candidates[place].reached & wanted.keys():
                wanted[cell] -= 1
        return chosen

    def keep(self, candidate: Candidate, level: Level) -> None:
        self.chosen.append((level.name, candidate.line))
        self.counted.update(candidate.reached)
        self.steps += len(candidate.program.ops)

    def get_lines(self) -> list[str]:
        return [line for _, line in self.chosen]


def aim_at(drawer: Drawer, missing: Sequence[Cell]) -> None:
    """Makes the drawer aim at those of the missing goals that are cells."""
    for name in ("cells", "misuse_cells"):
        aims = [cell for cell in getattr(drawer, name) if cell in missing]
        if aims:
            setattr(drawer, name, aims)


def is_error(cell: Cell) -> bool:
    return cell[0].startswith(ERROR)


def iter_cells(program: Program) -> Iterator[Cell]:
    """Iterates over the cells and errors that a program reaches, step by step."""
    for step in walk(program, rows=False):
        name = step.op["op"]
        if step.skipped is not None:
            yield SKIPPED
            continue
        for state in program.rules.get_states(step.op, step.model):
            yield state, name
        error = list_allowed(step.run_reference())[0].get("error")
        if error is not None:
            yield ERROR + error, name


def list_reached(program: Program) -> Iterator[Cell]:
    """Iterates over all goals that a program reaches: cells, operations, settings."""
    operations = [ANY, *dict.fromkeys(op["op"] for op in program.ops)]
    states = [ANY, *(name for name in list_setting_names(program.kind, program.config))]
    yield from ((state, operation) for state in states for operation in operations)
    yield from iter_cells(program)


def list_setting_names(kind: str, config: Config | None = None) -> Iterator[str]:
    """Iterates over settings that are not the default, such as "chunk 2".

    Args:
        kind: the kind of cache.
        config: list those that this config has; None for all.
    """
    for field_name, (default, *others) in SETTINGS[kind].items():
        for value in others:
            if config is None or (config[field_name] == value != default):
                yield f"{field_name} {value}"


# --- what it covers, and what not -------------------------------------------------------


def describe(selection: Selection) -> dict[str, Any]:
    """Describes the programs of one kind: what they cover, and why not the rest."""
    contract, kind, counted = selection.contract, selection.kind, selection.counted
    rules = CONTRACTS[contract]
    reachable = rules.list_cells(kind, get_whole(contract, kind))
    levels = Counter(level for level, _ in selection.chosen)
    others = [cell for cell in counted if cell[0] not in rules.states and cell[0]]
    errors = [(name.removeprefix(ERROR), op) for name, op in others if ERROR in name]
    settings = [cell for cell in others if ERROR not in cell[0] and cell[1]]
    return {
        "contract": contract,
        "kind": kind,
        "programs": len(selection.chosen),
        "operations": selection.steps,
        "levels": {
            level.name: levels[level.name] for level in list_levels(contract, kind)
        },
        "drawn": selection.drawn,
        "reachable": len(reachable),
        "covered": group(cell for cell in reachable if counted[cell]),
        "errors": group(errors),
        "settings": group(settings),
        "not_covered": [
            {"why": why, "cells": group(cells)}
            for why, cells in explain_rest(selection).items()
        ],
    }


def group(cells: Iterable[Cell]) -> dict[str, list[str]]:
    """Maps each state to the operations that find it."""
    grouped: dict[str, list[str]] = {}
    for state, operation in sorted(cells):
        grouped.setdefault(state, []).append(operation)
    return grouped


def explain_rest(selection: Selection) -> dict[str, list[Cell]]:
    """Maps each reason to the cells of the contract that no program reaches for it."""
    contract, kind = selection.contract, selection.kind
    rules, whole = CONTRACTS[contract], get_whole(contract, kind)
    states = rules.list_states(kind, whole)
    unreachable = rules.list_unreachable(kind, whole)
    rest: dict[str, list[Cell]] = {}
    for state in rules.states:
        for operation in rules.list_operations(kind):
            cell = state, operation
            if selection.counted[cell]:
                continue
            why = next((rule.why for rule in unreachable if rule.holds(cell)), None)
            if state not in states:
                why = f"a {kind} cache has no such state"
            elif why is None and not selection.size.cells:
                why = "a set of this size covers operations, not states"
            elif why is None:
                why = f"none of {selection.drawn} programs that were drawn reaches it"
            rest.setdefault(why, []).append(cell)
    return rest
