"""A run does more than compare: it has a scope, counts cells, takes samples."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.system import SAMPLE, ArrayWatch
from lockstep.harness.execution.executor import Coverage, run
from lockstep.harness.programs.program import Program
from tests.harness.building import draw_some
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
    with pytest.raises(KeyboardInterrupt):
        run(make(9), fail_after(3, KeyboardInterrupt()), coverage=coverage)
    assert coverage == count_cells(make(4), BACKEND)


# --- samples ----------------------------------------------------------------------------


def test_a_keyboard_interrupt_where_ctrl_c_is_ignored_is_the_backends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a worker: it is a failure of its program, like sys.exit."""
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)
    divergence = run(make(9), fail_after(3, KeyboardInterrupt())).divergence
    assert divergence is not None
    assert (divergence.what, divergence.step) == ("crash", 3)
    assert divergence.message == "would have ended the process: raised KeyboardInterrupt"


def test_one_update_in_so_many_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a program that begins are none too often."""
    updates: list[int] = []
    sampled: list[int] = []
    keep = ArrayWatch.keep

    def update(cache: Cache, keys: Any, values: Any) -> Any:
        updates.append(cache.offset)
        return Cache.update(cache, keys, values)

    def note(promises: ArrayWatch, cache: str, name: str, *given: Any) -> None:
        if name == "update" and len(given) == 1:  # not what was given, but returned
            sampled.append(updates[-1])
        keep(promises, cache, name, *given)

    monkeypatch.setattr(ArrayWatch, "keep", note)
    backend = misbehave(update)()
    for program in draw_some(400, "layer", "kv", DECLARED, 3, BACKEND.dtypes):
        assert run(program, backend).divergence is None
    assert len(updates) > 2000
    assert 0.5 < len(sampled) * SAMPLE / len(updates) < 2
    assert 0.5 < sampled.count(0) * SAMPLE / updates.count(0) < 2
