"""A run does more than compare: it has a scope, counts cells, makes costly checks."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.watch import ArrayWatch
from lockstep.harness.execution.executor import Coverage, run
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load
from tests.harness.building import make as make_program
from tests.harness.commands import handling_ctrl_c, run_slice
from tests.harness.misbehaving import Cache, correct, misbehave

BACKEND = correct()
DECLARED = BACKEND.contracts["layer"]["kv"]


def make(updates: int) -> Program:
    """So many updates with one token."""
    config = CONTRACTS["layer"].get_plain_config("kv", DECLARED, BACKEND.dtypes)
    op = {"op": "update", "length": 1, "cache": "a"}
    return Program("layer", config, [op] * updates)


def fail_after(updates: int, error: BaseException) -> Backend:
    """A backend that raises in the update after so many."""

    def update(cache: Cache, keys: Any, values: Any) -> Any:
        if cache.offset == updates:
            raise error
        return Cache.update(cache, keys, values)

    return misbehave(update)()


# --- the scope --------------------------------------------------------------------------


class Scope:
    """Knows whether somebody is in it, and how often somebody was."""

    def __init__(self) -> None:
        self.is_open, self.times = False, 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        self.is_open, self.times = True, self.times + 1
        try:
            yield
        finally:
            self.is_open = False


def test_a_program_runs_in_the_scope_of_its_backend() -> None:
    scope, seen = Scope(), []

    def update(cache: Cache, keys: Any, values: Any) -> Any:
        seen.append(scope.is_open)
        return Cache.update(cache, keys, values)

    backend = replace(misbehave(update)(), scope=scope.enter)
    assert run(make(3), backend).divergence is None
    assert seen == [True] * 3
    assert (scope.is_open, scope.times) == (False, 1)


def test_a_scope_ends_where_the_backend_fails() -> None:
    scope = Scope()
    backend = replace(fail_after(1, RuntimeError("no")), scope=scope.enter)
    divergence = run(make(3), backend).divergence
    assert divergence is not None
    assert (divergence.what, divergence.step) == ("error", 1)
    assert not scope.is_open


def test_a_scope_that_fails_is_the_backends_mistake() -> None:
    def enter() -> Any:
        raise RuntimeError("no")

    divergence = run(make(3), replace(BACKEND, scope=enter)).divergence
    assert divergence is not None
    assert (divergence.what, divergence.operation) == ("error", "open")
    assert "no" in divergence.message


# --- cells ------------------------------------------------------------------------------


def count_cells(program: Program, backend: Backend) -> Coverage:
    coverage: Coverage = Counter()
    run(program, backend, coverage=coverage)
    return coverage


def test_cells_are_counted_up_to_the_divergence() -> None:
    failing = fail_after(3, RuntimeError("no"))
    assert count_cells(make(9), failing) == count_cells(make(4), BACKEND)
    assert count_cells(make(9), BACKEND) != count_cells(make(4), BACKEND)


def test_cells_are_counted_where_a_run_is_interrupted() -> None:
    coverage: Coverage = Counter()
    with handling_ctrl_c(), pytest.raises(KeyboardInterrupt):
        run(make(9), fail_after(3, KeyboardInterrupt()), coverage=coverage)
    assert coverage == count_cells(make(4), BACKEND)


# --- costly checks ----------------------------------------------------------------------


def test_a_keyboard_interrupt_where_ctrl_c_is_ignored_is_the_backends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a worker: it is a failure of its program, like sys.exit."""
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)
    divergence = run(make(9), fail_after(3, KeyboardInterrupt())).divergence
    assert divergence is not None
    assert (divergence.what, divergence.step) == ("crash", 3)
    assert divergence.message == "would have ended the process: raised KeyboardInterrupt"


def watch_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Backend, list[list[int]], list[int]]:
    """Returns a backend; the updates of each program, by their offset; and the offsets of
    the updates whose arrays are kept under watch, one list for all programs."""
    programs: list[list[int]] = []
    watched: list[int] = []
    keep = ArrayWatch.keep

    def update(cache: Cache, keys: Any, values: Any) -> Any:
        programs[-1].append(cache.offset)
        return Cache.update(cache, keys, values)

    def note(
        watch: ArrayWatch, owner: str, operation: str, arrays: Any, is_given: bool = False
    ) -> Any:
        if operation == "update" and not is_given:
            watched.append(programs[-1][-1])
        return keep(watch, owner, operation, arrays, is_given)

    @contextmanager
    def begin() -> Iterator[None]:
        programs.append([])
        yield

    monkeypatch.setattr(ArrayWatch, "keep", note)
    return replace(misbehave(update)(), scope=begin), programs, watched


def test_a_program_gets_all_costly_checks_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, programs, watched = watch_updates(monkeypatch)
    assert run(make(40), backend).divergence is None
    assert watched == []
    assert run(make(40), backend, every=True).divergence is None
    assert watched == programs[-1] == list(range(40))


def test_one_program_of_a_slice_in_16_gets_all_checks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each of its updates, on full caches as on empty ones; no other program has any."""
    backend, programs, watched = watch_updates(monkeypatch)
    run_slice(tmp_path, backend, 120)
    assert len(programs) > 120  # some are derived
    with_all = programs[8::16]
    assert watched == [offset for program in with_all for offset in program]
    assert sum(offset > 0 for offset in watched) > 40


# --- long programs ----------------------------------------------------------------------


def count_instructions(program: Program, every: bool) -> int:
    """Counts the Python instructions of a run on our rotating cache."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return trace

    backend = load("torch-cpu")
    sys.settrace(trace)
    try:
        assert run(program, backend, every).divergence is None
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("every", [False, True])
def test_a_step_over_a_window_takes_as_long_in_a_long_program(every: bool) -> None:
    """The second half of a program takes as many instructions as the first."""
    update, state = {"op": "update", "length": 1}, {"op": "state"}
    _, short, middle, long = (  # the first run fills caches
        count_instructions(
            make_program(*[update, state] * times, kind="rotating", window=4), every
        )
        for times in (20, 20, 40, 80)
    )
    assert long - middle == pytest.approx(2 * (middle - short), rel=0.02)


# --- masks ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(-1,), (1, -1), (1, 1, 1, -1)])
def test_a_mask_may_broadcast(shape: Sequence[int]) -> None:
    """An update with one token has one row."""

    class Short(Cache):
        def make_mask(self, length: int, rows: int) -> Any:
            mask = super().make_mask(length, rows)
            return mask.reshape(shape) if rows == 1 else mask

    backend = replace(correct(), open=lambda _: Short())
    assert run(make(updates=3), backend, every=True).divergence is None
