"""Makes a failing program as short and simple as possible.

The steps are those of a person who shrinks a program by hand: remove operations, merge
updates, lower numbers, use the default config. `get_rank` determines which of two
programs is simpler. No step may make the rank worse.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple

from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.rewrites import list_steps
from lockstep.harness.core.document import DERIVED, JOINT, Schema, drop_defaults
from lockstep.harness.programs.program import UNSHRUNK, Divergence, Flaky, Program

# --- the rank of a program --------------------------------------------------------------


class Rank(NamedTuple):
    """The complexity of a program. Ranks are compared field by field, in this order.

    If two programs show the same bug, the program with the lower rank is better.

    Attributes:
        numbers: the sum of the numbers in operations, plus 1 for each list item.
        names: the number of caches, snapshots, users and sequences in operations.
        narrow: whether the dtype is not float32.
        fields: the number of config fields that differ from their defaults.
        sizes: the sum of the numbers in these fields and of derived numbers in
            operations, such as limits in bytes.
    """

    operations: int
    tokens: int
    numbers: int
    names: int
    layers: int
    heads: int
    narrow: bool
    fields: int
    sizes: int


def get_rank(program: Program) -> Rank:
    """Returns the rank of a program, which does not depend on the names in it."""
    config, rules = program.config, program.rules
    numbers = derived = 0
    names: set[str] = set()
    for op in rules.rename(program.ops):
        schemas = rules.operations[op["op"]].fields
        for name, value in drop_defaults(op, schemas).items():
            if DERIVED in schemas[name]:
                derived += count_numbers(value)
            else:
                numbers += count_numbers(value)
                values = value if isinstance(value, list) else [value]
                names |= {name for name in values if isinstance(name, str)}
    fields = drop_defaults(config, rules.config)
    return Rank(
        operations=len(program.ops),
        tokens=program.count_tags(),
        numbers=numbers,
        names=len(names) + config.get("sequences", 1),
        layers=rules.count_layers(config) + len(config.get("caches", ())),
        heads=config["heads"],
        narrow=config["dtype"] != "float32",
        fields=len(fields),
        sizes=derived + sum(map(count_numbers, fields.values())),
    )


def count_numbers(value: Any) -> int:
    """Returns the sum of the numbers in a value and its text, plus 1 per list item."""
    if isinstance(value, Mapping):
        return sum(map(count_numbers, value.values()))
    if isinstance(value, list):
        return len(value) + sum(map(count_numbers, value))
    if isinstance(value, str):
        return sum(map(int, re.findall(r":([0-9]+)", value)))
    return abs(int(value or 0))


# --- shrinking --------------------------------------------------------------------------


Fails = Callable[[Program], bool]
"""Returns whether a program still shows the same bug."""

Clock = Callable[[], float]
"""Returns the seconds since an arbitrary start."""

PATIENCE = 4


def make_busy_clock() -> Clock:
    """Creates a clock that returns the CPU time or a quarter of the elapsed time,
    whichever is larger. Thus, shrinking does as much work on a busy machine as on an idle
    machine.
    """
    computed, passed = time.process_time(), time.monotonic()

    def tell() -> float:
        waited = (time.monotonic() - passed) / PATIENCE
        return max(time.process_time() - computed, waited)

    return tell


FEW = 14
"""The maximum number of operations for which removing every pair is tried."""


class Shrinker:
    """Searches for the smallest program that still fails.

    Args:
        program: the program to shrink.
        fails: returns whether a program shows the bug; `program` must show it.
        seconds: the time limit.
        allows: returns whether a program may be tried.
        cut: removes the operations after the failing step of a program that has just
            failed, since a program with a changed config may fail earlier.
        clock: counts the seconds.
    """

    def __init__(
        self,
        program: Program,
        fails: Fails,
        seconds: float,
        allows: Fails = lambda candidate: True,
        cut: Callable[[Program], Program] = lambda failing: failing,
        clock: Clock = time.monotonic,
    ) -> None:
        self.cut = cut
        self.allows = allows
        self.best = program
        self.rank = get_rank(program)
        self.fails = fails
        self.runs = 0
        self.clock = clock
        self.seconds, self.deadline = seconds, clock() + seconds
        self.tried: set[str] = {program.digest()}

    def shrink(self) -> Program:
        """Repeats all passes until no pass makes the program simpler."""
        previous = None
        while self.best is not previous and not self.is_over():
            previous = self.best
            self.leave_out_runs()
            self.take_candidates(get_simpler_configs)
            self.take_candidates(get_merged)
            self.leave_out_pairs()
            self.take_candidates(get_domain_steps)
            self.take_candidates(get_simpler_fields)
        self.take(replace(self.best, ops=self.best.rules.rename(self.best.ops)))
        return self.best

    def is_over(self) -> bool:
        return self.clock() > self.deadline

    def why_unshrunk(self) -> str:
        """Returns why the best program may not be the shortest; "" if it is."""
        return f"the search ended after {self.seconds:g} s" if self.is_over() else ""

    def take(self, candidate: Program) -> bool:
        """Keeps a candidate as the best program if it still fails, has no worse rank, and
        is new."""
        if self.is_over() or get_rank(candidate) > self.rank:
            return False
        digest = candidate.digest()
        if digest in self.tried:
            return False
        self.tried.add(digest)
        if not self.allows(candidate):
            return False
        self.runs += 1
        if not self.fails(candidate):
            return False
        self.best = self.cut(candidate)
        self.rank = get_rank(self.best)
        return True

    def leave_out_runs(self) -> None:
        """Removes consecutive operations: first half of the program, then fewer, finally
        single operations."""
        size = max(1, len(self.best.ops) // 2)
        while size:
            end = len(self.best.ops)
            while end > 0:
                ops = self.best.ops
                begin = max(0, end - size)
                self.take(replace(self.best, ops=[*ops[:begin], *ops[end:]]))
                end = min(begin, len(self.best.ops))
            size //= 2

    def leave_out_pairs(self) -> None:
        """Removes pairs of operations, such as a snapshot and its restore, which can only
        be removed together."""
        is_shorter = True
        while is_shorter and 2 < len(self.best.ops) <= FEW:
            ops = self.best.ops
            pairs = [(a, b) for b in range(len(ops)) for a in range(b)]
            is_shorter = any(
                self.take(replace(self.best, ops=leave_out(ops, pair))) for pair in pairs
            )

    def take_candidates(self, propose: Callable[[Program], Iterator[Program]]) -> None:
        """Keeps a failing candidate and restarts from it, until no candidate fails.

        Creating candidates also takes time.
        """
        is_shorter = True
        while is_shorter:
            candidates = takewhile(lambda _: not self.is_over(), propose(self.best))
            is_shorter = any(map(self.take, candidates))


def leave_out(ops: Sequence[Op], indices: Sequence[int]) -> list[Op]:
    return [op for index, op in enumerate(ops) if index not in indices]


def get_merged(program: Program) -> Iterator[Program]:
    """Yields programs in which two consecutive operations are merged."""
    ops = program.ops
    for index in range(len(ops) - 1):
        merged = program.rules.merge_operations(ops[index], ops[index + 1])
        if merged is not None:
            config = program.rules.fit_config(program.config, merged)
            merged_ops = [*ops[:index], merged, *ops[index + 2 :]]
            yield replace(program, config=config, ops=merged_ops)


def get_domain_steps(program: Program) -> Iterator[Program]:
    for config, changed in program.rules.simplify_config(program.config, program.ops):
        yield replace(program, config=config, ops=changed)
    for ops in program.rules.simplify(program.ops):
        yield replace(program, ops=ops)


def get_simpler_configs(program: Program) -> Iterator[Program]:
    """Yields programs with one config field at its default or a lower value."""
    rules = program.rules
    for name, schema in rules.config.items():
        old = program.config[name]
        for value in get_simpler(old, schema):
            if isinstance(value, list) and len(value) == len(old):
                continue  # lower numbers in a list do not make it easier to read
            config = {**program.config, name: value}
            if rules.why_illegal(config) is None:
                yield replace(program, config=config)


def get_simpler_fields(program: Program) -> Iterator[Program]:
    """Yields programs with one operation field at its default or a lower value."""
    for index, op in enumerate(program.ops):
        fields = program.rules.operations[op["op"]].fields
        for name, schema in fields.items():
            for value in get_simpler(op[name], schema):
                simpler = {**op, name: value}
                ops = [*program.ops[:index], simpler, *program.ops[index + 1 :]]
                yield replace(program, ops=ops)


def get_simpler(value: Any, schema: Schema) -> list[Any]:
    """Returns simpler values for a field, best first: the default, null, lower values."""
    default = schema.get("default")
    if value is None or value == default or JOINT in schema:
        return []
    simpler: list[Any] = [default] if "default" in schema else []
    if isinstance(schema.get("type"), list):
        simpler.append(None)
    if isinstance(value, list):
        fewer = range(len(value)) if len(value) > schema.get("minItems", 0) else ()
        shorter = [leave_out(value, [index]) for index in fewer]
        return simpler + shorter + lower_items(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return simpler
    if value < 0:
        return [*simpler, 0]
    low = max(0, schema.get("minimum", 0))
    steps = [value - less for less in list_steps(value)]
    lower = {low, low + 1, low + 2, low + 3, *steps}
    return simpler + sorted(number for number in lower if low <= number < value)


def lower_items(values: list[Any]) -> list[list[Any]]:
    """Returns the lists in which exactly one number is lower."""
    return [
        [*values[:index], value - less, *values[index + 1 :]]
        for index, value in enumerate(values)
        if isinstance(value, int)
        for less in list_steps(value)
        if value - less not in values
    ]


# --- the result, with other failures that were seen -------------------------------------


@dataclass(frozen=True)
class Shrunk:
    """The result of shrinking a program.

    Attributes:
        program: the shortest program with the failure.
        divergence: the divergence of `program`.
        others: other signatures → a tried program that failed with that signature.
        flaky: set if the failure does not occur in every run; `program` is then the given
            program, not shrunk.
        unshrunk: why the program may not be the shortest; "" if it is.
    """

    program: Program
    divergence: Divergence
    others: Mapping[str, tuple[Program, Divergence]] = field(default_factory=dict)
    flaky: Flaky | None = None
    unshrunk: str = ""

    def get_meta(self) -> dict[str, Any]:
        """Returns the fields of the program's `meta` that describe the search."""
        meta = {} if self.flaky is None else {"flaky": str(self.flaky)}
        return meta | ({UNSHRUNK: self.unshrunk} if self.unshrunk else {})


class SideFailures:
    """Keeps the shortest program for each other signature that occurs during
    shrinking."""

    def __init__(self) -> None:
        self.shortest: dict[str, tuple[Program, Divergence]] = {}

    def add(self, program: Program, divergence: Divergence) -> None:
        signature = divergence.get_signature(program)
        program = replace(program, ops=program.ops[: divergence.step + 1])
        previous = self.shortest.get(signature)
        if previous is None or len(program.ops) < len(previous[0].ops):
            self.shortest[signature] = program, divergence
