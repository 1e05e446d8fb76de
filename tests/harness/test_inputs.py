"""The arrays that a cache is given stay the caller's, who writes into them after the
call."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.harness.backends.backend import Backend, Kind, list_unchecked
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load
from tests.harness.building import draw_some, make, update
from tests.harness.commands import Run
from tests.harness.misbehaving import Array, Cache, misbehave


def copies(cache: Cache, keys: Array, values: Array) -> Any:
    return Cache.update(cache, keys.copy(), values.copy())


def keeps(cache: Cache, keys: Array, values: Array) -> Any:
    """Its first arrays become the cache's own."""
    return Cache.update(cache, keys, values)


def returns(cache: Cache, keys: Array, values: Array) -> Any:
    """Keeps copies, but returns what it was given the first time."""
    is_first = cache.offset == 0
    kept = Cache.update(cache, keys.copy(), values.copy())
    return (keys, values) if is_first else kept


def writes(cache: Cache, keys: Array, values: Array) -> Any:
    kept = Cache.update(cache, keys.copy(), values.copy())
    keys[:] = 0
    return kept


def writes_later(cache: Any, keys: Array, values: Array) -> Any:
    """Uses the arrays of the update before as scratch memory."""
    scratch = getattr(cache, "scratch", None)
    if scratch is not None:
        scratch[:] = 1
    cache.scratch = keys
    return Cache.update(cache, keys.copy(), values.copy())


def make_backend(how: Any, inputs: Any = "copied", lifetime: Any = "forever") -> Backend:
    backend = misbehave(how)()
    kind = replace(backend.contracts["layer"]["kv"], inputs=inputs)
    return replace(
        backend,
        contracts={"layer": {"kv": kind}},
        lifetime=lifetime,
        overwrite=lambda array: array.fill(np.nan),
    )


PROGRAM = make(update(2), update(1), update(1))


def find(program: Program, backend: Backend, every: bool = True) -> str | None:
    divergence = run(program, backend, every=every).divergence
    return divergence and f"{divergence.what}: {divergence.message}"


@pytest.mark.parametrize("lifetime", ["forever", "until-write"])
def test_a_cache_that_copies_agrees(lifetime: str) -> None:
    backend = make_backend(copies, lifetime=lifetime)
    declared = backend.contracts["layer"]["kv"]
    for program in draw_some(100, "layer", "kv", declared):
        assert find(program, backend) is None


@pytest.mark.parametrize("lifetime", ["forever", "until-write"])
def test_a_cache_that_keeps_arrays_is_found_whatever_is_checked(lifetime: str) -> None:
    backend = make_backend(keeps, lifetime=lifetime)
    assert "should see token" in (find(PROGRAM, backend, every=False) or "")
    assert find(PROGRAM, backend) == (
        "alias: an array that update returned has changed when the caller overwrote what"
        " it had given"
    )


def test_a_cache_that_returns_what_it_was_given_is_found() -> None:
    assert "alias: an array that update returned" in (
        find(PROGRAM, make_backend(returns)) or ""
    )


@pytest.mark.parametrize("how", [writes, writes_later])
def test_a_cache_that_writes_to_what_it_was_given_is_found(how: Any) -> None:
    assert "alias: an array that update was given has changed" in (
        find(PROGRAM, make_backend(how)) or ""
    )


@pytest.mark.parametrize("how", [keeps, returns, writes_later])
def test_nothing_is_checked_where_inputs_are_kept(how: Any) -> None:
    assert find(PROGRAM, make_backend(how, "kept")) is None


def test_what_is_not_checked_is_listed() -> None:
    kept, copied = Kind(frozenset(), inputs="kept"), Kind(frozenset())
    backend = make_backend(copies)
    assert "inputs kept" in list_unchecked(backend, kept)
    assert not any("inputs" in words for words in list_unchecked(backend, copied))
    words = list_unchecked(replace(backend, overwrite=None), copied)
    assert "inputs, since overwrite is not declared" in words


def test_every_report_says_that_inputs_are_kept(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm")
    words = "mlx-lm × rotating: not checked: inputs kept"
    common = "--backend", "mlx-lm", "--kind", "rotating", "--programs", "3"
    done = run("check", *common, "--failures", tmp_path)
    assert words in done.words
    document = json.loads((tmp_path / "outcome.json").read_text())
    assert "inputs kept" in document["pairs"][0]["unchecked"]
    assert words in run("report", tmp_path, "--format", "markdown").words
    run("report", tmp_path, "-o", tmp_path)
    assert words in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("name", ["torch-cpu", "mlx-cpu"])
def test_our_backends_leave_no_inputs_unchecked(name: str) -> None:
    pytest.importorskip(name.partition("-")[0])
    backend = load(name)
    for kinds in backend.contracts.values():
        for declared in kinds.values():
            words = list_unchecked(backend, declared)
            assert not any("inputs" in word for word in words)
