"""Selects a few drawn programs that together reach every reachable cell.

The selection depends only on kind and size: programs come from Python's random generator
with a fixed seed, and no result depends on workers, the order of a `set` or the machine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Cell, Effect, Op, list_allowed
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import RandomSource
from lockstep.harness.programs.program import FORMAT, Program, trace, walk
from lockstep.harness.programs.vectors import TRACE_FORMAT

DTYPES = ("float32", "float16", "bfloat16")

LENGTHS = 12, 44
"""The range of the number of operations in a program.

The programs are shorter than the programs of a check, so that people can read them."""

# --- levels: the first level has the operations that every engine has -------------------


# Level → the effect of the operations that it adds to the level before.
ADDED = {"cut": Effect.REMOVES, "basic": Effect.READS}


def list_levels(contract: str, kind: str) -> dict[str, Kind]:
    """Returns level → the required operations and settings, the simplest level first.

    A cache with five of thirteen operations can run few programs that use all thirteen.
    Therefore, the programs of a kind have levels. Each level may use more operations than
    the level before it, and covers the cells that earlier levels cannot reach. An engine
    runs the levels whose operations and settings it has.
    """
    rules = CONTRACTS[contract]
    plain = rules.counted
    all_operations = frozenset(rules.list_operations(kind))
    operations = all_operations & {*rules.required}
    levels = {"core": operations}
    for level, effect in ADDED.items():
        operations |= {
            name for name in all_operations if rules.operations[name].effect is effect
        }
        levels[level] = operations
    levels["full"] = all_operations
    declared = {level: Kind(names, plain) for level, names in levels.items()}
    declared["usage"] = Kind(all_operations, plain, refuses=True)
    config = rules.get_plain_config(kind, declared["full"], DTYPES)
    settings = {
        name: values
        for name, values in rules.settings.items()
        if rules.why_illegal({**config, name: values[-1]}) is None
    }
    declared["settings"] = Kind(all_operations, {**plain, **settings})
    return declared


# --- selection --------------------------------------------------------------------------


# Stands for any state, or any operation, in a cell.
ANY = ""

# A pseudo-cell for a step whose operation was illegal.
SKIPPED = ("skipped", ANY)

# Prefixes of a pseudo-state: the name of an error follows, or the name of a setting whose
# value is not the default.
ERROR, SETTING = "error ", "setting "


@dataclass(frozen=True)
class Size:
    """The coverage of each kind that a set must have.

    Attributes:
        cells: True to cover each operation in each abstract state; False to cover each
            operation in some state.
        times: the number of programs that must reach each such cell or operation.
        drawn: the number of programs in a round.
        about: a description.
    """

    cells: bool
    times: int
    drawn: int
    about: str


SIZES: Mapping[str, Size] = {
    "tiny": Size(False, 1, 24, "every operation"),
    "small": Size(True, 2, 160, "every abstract state with every operation, twice"),
    "standard": Size(True, 20, 400, "the same, twenty times"),
}
# The number of rounds after which the selection gives up goals that no program reaches.
ROUNDS = 6


@dataclass
class Selection:
    """The programs of one kind.

    Attributes:
        chosen: (level, line) of each program.
        goals: cells, errors and settings that programs are to reach.
        counted: goal → the number of chosen programs that reach it.
        drawn: the number of programs that were drawn.
    """

    contract: str
    kind: str
    size: Size
    chosen: list[tuple[str, str]] = field(default_factory=list)
    goals: set[Cell] = field(default_factory=set)
    counted: Counter[Cell] = field(default_factory=Counter)
    drawn: int = 0

    def select(self, on_draw: Callable[[Program], None] = lambda _: None) -> None:
        """Selects the programs of all levels, the shortest first, as long as they reach
        cells that earlier programs do not reach often enough.

        Args:
            on_draw: is called with each program that is drawn.
        """
        for number, (level, declared) in enumerate(
            list_levels(self.contract, self.kind).items()
        ):
            drawer = Drawer(self.contract, self.kind, declared, DTYPES)
            drawer.lengths = LENGTHS
            cells = drawer.rules.list_cells(self.kind, declared)
            names = [(ANY, name) for _, name in cells]
            self.goals |= set(cells if self.size.cells else names)
            for turn in range(ROUNDS):
                missing = {goal for goal in self.goals if self.is_missing(goal)}
                if turn and not missing:
                    break
                drawer.cells = aim(drawer.cells, missing)
                drawer.misuse_cells = aim(drawer.misuse_cells, missing)
                source = RandomSource(1000 * number + turn)
                drawn = [drawer.draw(source) for _ in range(self.size.drawn)]
                for program in sorted(drawn, key=lambda program: len(program.ops)):
                    on_draw(program)
                    self.choose(level, program)

    def is_missing(self, goal: Cell) -> bool:
        return self.counted[goal] < self.size.times

    def choose(self, level: str, program: Program) -> None:
        """Chooses a program if a set may contain it and it reaches a missing goal."""
        name, self.drawn = f"{self.contract}-{self.kind}-{self.drawn:05d}", self.drawn + 1
        program = replace(program, ops=list(filter(is_typed, program.ops)))
        reached = set(list_reached(program))
        if SKIPPED in reached:
            return
        self.goals |= {goal for goal in reached if goal[0].startswith((ERROR, SETTING))}
        if any(map(self.is_missing, reached & self.goals)):
            line = make_line(program, {"name": name, "level": level})
            # Each step has a single correct answer, unless the contract allows several.
            if program.rules.leaves_choices or '"one_of"' not in line:
                self.chosen.append((level, line))
                self.counted.update(reached)

    def describe(self) -> dict[str, Any]:
        """Returns counts of the chosen programs, and the reached and missed goals."""
        return {
            "contract": self.contract,
            "kind": self.kind,
            "programs": len(self.chosen),
            "levels": dict(Counter(level for level, _ in self.chosen)),
            "drawn": self.drawn,
            "covered": group(goal for goal in self.goals if self.counted[goal]),
            "not_covered": group(goal for goal in self.goals if not self.counted[goal]),
        }


def aim(cells: list[Cell], missing: Collection[Cell]) -> list[Cell]:
    """Returns the cells to aim at: the missing cells, or all cells if no cell is
    missing."""
    return [cell for cell in cells if cell in missing] or cells


def make_line(program: Program, meta: Mapping[str, Any]) -> str:
    """Writes a trace on one line, with the same bytes on every machine.

    Keys are sorted, every field is written, and there are no blanks and no fractions.
    """
    written = {
        "format": FORMAT,
        "contract": program.contract,
        "config": program.config,
        "ops": list(program.ops),
        "meta": meta,
    }
    expected = trace(program)
    return write_json({"format": TRACE_FORMAT, "program": written, "expected": expected})


def write_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def is_typed(op: Op) -> bool:
    """Returns whether all tokens are integers; many languages support no other type."""
    tokens = (*op.get("tokens", ()), *op.get("generate", ()))
    return all(type(token) is int for token in tokens)


def list_reached(program: Program) -> Iterator[Cell]:
    """Iterates over all goals that a program reaches: settings, operations, cells and
    errors."""
    for name, (default, *_) in program.rules.settings.items():
        if program.config[name] != default:
            yield f"{SETTING}{name} {program.config[name]}", ANY
    for step in walk(program, rows=False):
        operation = step.op["op"]
        if step.skipped is not None:
            yield SKIPPED
            continue
        yield ANY, operation
        for state in program.rules.get_states(step.op, step.model):
            yield state, operation
        error = list_allowed(step.run_reference())[0].get("error")
        if error is not None:
            yield f"{ERROR}{error}", operation


def group(cells: Iterable[Cell]) -> dict[str, list[str]]:
    """Maps each state to the operations that were run in this state."""
    grouped: dict[str, list[str]] = {}
    for state, operation in sorted(cells):
        grouped.setdefault(state, []).append(operation)
    return grouped
