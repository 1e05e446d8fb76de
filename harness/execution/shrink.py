"""Makes a failing program as short and simple as it goes, in steps that a person would
take: leave out operations, join updates, lower numbers, take the plain config. What is
simpler, and what is not, is said by `get_rank`; no step makes a program rank worse."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from lockstep.harness.contracts.types import Op
from lockstep.harness.core.fields import JOINT, Schema
from lockstep.harness.programs.complexity import get_rank
from lockstep.harness.programs.program import Program

Fails = Callable[[Program], bool]
"""Whether a program still shows the same bug."""

Clock = Callable[[], float]
"""Seconds, from any beginning."""

PATIENCE = 4


def make_busy_clock() -> Clock:
    """Tells the seconds that this process computes, or a share of those that pass, if
    that is more: on a machine that is busy with something else, shrinking comes as far as
    on an idle one."""
    computed, passed = time.process_time(), time.monotonic()

    def tell() -> float:
        waited = (time.monotonic() - passed) / PATIENCE
        return max(time.process_time() - computed, waited)

    return tell


FEW = 14
"""With so few operations left, every pair of them is tried."""


class Shrinker:
    """The smallest program found so far.

    fails: must hold for `program`. seconds: when to stop, at the latest. allows: which
    programs may be tried at all. cut: of the program that has just failed, what is needed
    for that: with another config it may fail earlier, and what follows is in the way.
    clock: what `seconds` are told by.
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
        self.deadline = clock() + seconds
        self.tried: set[str] = {program.digest()}

    def shrink(self) -> Program:
        """Repeats all passes until none helps."""
        passes = (
            self.leave_out_runs,
            self.take_candidates(get_simpler_configs),
            self.take_candidates(get_merged),
            self.leave_out_pairs,
            self.take_candidates(get_domain_steps),
            self.take_candidates(get_simpler_fields),
        )
        before = None
        while self.best is not before and not self.is_over():
            before = self.best
            for improve in passes:
                improve()
        self.take(rename(self.best))
        return self.best

    def is_over(self) -> bool:
        return self.clock() > self.deadline

    def take(self, candidate: Program) -> bool:
        """Makes `candidate` the best if it still fails, ranks no worse, and was not tried
        before."""
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

    def while_time(
        self, propose: Callable[[Program], Iterator[Program]]
    ) -> Iterator[Program]:
        """The candidates for the best; to make them takes time too."""
        return takewhile(lambda _: not self.is_over(), propose(self.best))

    def leave_out_runs(self) -> None:
        """Runs of neighbours, from half of all down to single ones, last first."""
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
        """Two that need each other, such as a snapshot and its restore."""
        found = True
        while found and 2 < len(self.best.ops) <= FEW:
            ops = self.best.ops
            pairs = [(a, b) for b in range(len(ops)) for a in range(b)]
            found = any(
                self.take(replace(self.best, ops=leave_out(ops, pair))) for pair in pairs
            )

    def take_candidates(
        self, propose: Callable[[Program], Iterator[Program]]
    ) -> Callable[[], None]:
        """Takes what fails, and starts over from it."""

        def improve() -> None:
            while any(self.take(candidate) for candidate in self.while_time(propose)):
                pass

        return improve


def leave_out(ops: Sequence[Op], places: Sequence[int]) -> list[Op]:
    return [op for place, op in enumerate(ops) if place not in places]


def get_merged(program: Program) -> Iterator[Program]:
    """Neighbours that one operation can stand for."""
    ops = program.ops
    for place in range(len(ops) - 1):
        merged = program.rules.merge_operations(ops[place], ops[place + 1])
        if merged is not None:
            config = program.rules.fit_config(program.config, merged)
            merged_ops = [*ops[:place], merged, *ops[place + 2 :]]
            yield replace(program, config=config, ops=merged_ops)


def get_domain_steps(program: Program) -> Iterator[Program]:
    for config, changed in program.rules.simplify_config(program.config, program.ops):
        yield replace(program, config=config, ops=changed)
    for ops in program.rules.simplify(program.ops):
        yield replace(program, ops=ops)


def get_simpler_configs(program: Program) -> Iterator[Program]:
    """Each field of the config at its default, or lower."""
    rules = program.rules
    for name, schema in rules.config.items():
        old = program.config[name]
        for value in get_simpler(old, schema):
            if isinstance(old, list) and len(value) == len(old):
                continue  # it is not the numbers in a list that a person reads
            config = {**program.config, name: value}
            if rules.why_not(config) is None:
                yield replace(program, config=config)


def get_simpler_fields(program: Program) -> Iterator[Program]:
    """Each field of each operation at its default, or lower."""
    for place, op in enumerate(program.ops):
        fields = program.rules.operations[op["op"]].fields
        for name, schema in fields.items():
            for value in get_simpler(op[name], schema):
                simpler = {**op, name: value}
                ops = [*program.ops[:place], simpler, *program.ops[place + 1 :]]
                yield replace(program, ops=ops)


def get_simpler(value: Any, schema: Schema) -> list[Any]:
    """Values for a field that a person would rather read, best first: the default, or
    where there is none, nothing at all, or something lower."""
    default = schema.get("default")
    if value is None or value == default or JOINT in schema:
        return []
    simpler: list[Any] = [default] if "default" in schema else []
    if isinstance(schema.get("type"), list):
        simpler.append(None)
    if isinstance(value, list):
        fewer = range(len(value)) if len(value) > schema.get("minItems", 0) else ()
        shorter = [leave_out(value, [place]) for place in fewer]
        return simpler + shorter + lower_items(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return simpler
    if value < 0:
        return [*simpler, 0]
    low = max(0, schema.get("minimum", 0))
    lower = {low, low + 1, low + 2, low + 3, value // 2, value - 1}
    return simpler + sorted(number for number in lower if low <= number < value)


def lower_items(values: list[Any]) -> list[list[Any]]:
    """One number of a list lower by one."""
    return [
        [*values[:place], value - 1, *values[place + 1 :]]
        for place, value in enumerate(values)
        if isinstance(value, int) and value > 0 and value - 1 not in values
    ]


def rename(program: Program) -> Program:
    """Names in the order of their appearance: caches a, b, c; snapshots s0, s1, …."""
    return replace(program, ops=program.rules.rename(program.ops))
