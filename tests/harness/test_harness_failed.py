"""An exception in the harness or the reference is not taken for one of a backend, nor
the other way round, whatever a backend answers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.native import NativeCache, wrap_native
from lockstep.harness.contracts import system
from lockstep.harness.core.errors import HarnessError
from lockstep.harness.execution import compare
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Program, load_programs
from lockstep.harness.workers.registry import load
from lockstep.reference.kv import KVCache
from tests.harness.building import SMALL, draw, make, trim, update
from tests.harness.commands import CORRECT, Run
from tests.harness.misbehaving import Cache, correct

PROGRAM = make(update(2), trim(1), **SMALL)

MISTAKES = {
    "reference": (KVCache, "keep_below", "trim (kv.py:"),
    "reader": (system, "get_visible_columns", "get_rows (system.py:"),
    "comparison": (compare, "NAMED", "find_difference (compare.py:"),
}


@pytest.fixture(params=MISTAKES)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Plants a mistake in the harness: a name stands for nothing. Where it shows."""
    owner, name, where = MISTAKES[request.param]
    monkeypatch.setattr(owner, name, None)
    return where


class Wrong(Cache):
    """Has one token too many, it says."""

    def size(self) -> Any:
        return self.offset + 1


def open_wrong() -> Backend:
    return replace(correct(), open=lambda _: Wrong())


def test_an_exception_of_ours_is_no_divergence(place: str) -> None:
    program = make(update(2), trim(1), {"op": "size"}, **SMALL)
    with pytest.raises(HarnessError) as caught:
        run(program, open_wrong())
    assert place in str(caught.value)
    assert caught.value.program == program


def test_a_check_says_that_the_harness_failed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 2, with a file to report; replay and shrink say the same."""
    monkeypatch.setattr(system, "get_visible_columns", None)
    chosen = ("--backend", CORRECT, "--failures", tmp_path)
    ended = run("check", *chosen, "--programs", 20, "--jobs", 1, "--json")
    assert ended.status == 2
    (pair,) = json.loads(ended.out)["pairs"]
    assert pair["failures"] == []
    (error,) = pair["errors"]
    assert error.startswith("the harness failed: TypeError: 'NoneType' object is not")
    assert "in get_rows (system.py:" in error
    (path,) = (tmp_path / "harness-failed").glob("*.json")
    assert error.endswith(f"please report this with {path}")
    (program,) = load_programs(path)
    assert "update" in {op["op"] for op in program.ops}
    for command in ("replay", "shrink"):
        ended = run(command, path, *chosen)
        assert ended.status == 2
        assert "the harness failed: TypeError" in ended.words
        assert "please report this with" in ended.words


def test_a_mistake_that_shows_in_drawing_is_reported_as_well(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KVCache, "keep_below", None)
    ended = run("check", "--backend", CORRECT, "--failures", tmp_path, "--programs", 20)
    assert ended.status == 2
    assert "the harness failed: TypeError: 'NoneType' object is not" in ended.words
    assert "in trim (kv.py:51)" in re.sub(r":\d+", ":51", ended.words)
    assert "please report this" in ended.words


# --- the backend is to blame ------------------------------------------------------------


def test_a_native_cache_is_to_blame_for_its_exceptions() -> None:
    """Their traceback has no frame but those of the harness."""

    class Native(Cache):
        trim = staticmethod(int)  # type: ignore[assignment] # takes no number and a base
        update = np.concatenate  # type: ignore[assignment]

    cache = wrap_native(Native())
    assert isinstance(cache, NativeCache)
    assert wrap_native(Cache()).__class__ is Cache
    backend = replace(correct(), open=lambda _: wrap_native(Native()))
    divergence = run(PROGRAM, backend).divergence
    assert divergence is not None
    assert divergence.get_signature(PROGRAM) == "layer-kv-update-error"


NONSENSE: Sequence[Any] = (
    None, 5, "x", [], (1, 2), [None, None], {}, object(), np.zeros((2, 2)),
)  # fmt: skip

CALLS = {
    "layer": (
        *("offset", "make_mask", "update", "state", "view", "size", "trim", "clone"),
        *("snapshot", "restore", "split", "merge", "take", "read", "boundaries"),
    ),
    "unified": ("forward", "put", "get", "of", "cached", "read_states", "can_resume"),
    "prefix": (
        *("begin", "extend", "close", "count_tokens", "count_bytes", "layers"),
        *("get_tokens", "get_remaining", "reserve", "commit", "cache"),
    ),
}
KINDS = [("layer", "kv"), ("layer", "state"), ("unified", "causal"), ("prefix", "trie")]
KINDS += [("unified", "wrapper"), ("unified", "encoder"), ("unified", "recurrent")]
KINDS += [("prefix", "session"), ("prefix", "slots")]


class Nonsense:
    """A cache with one attribute or method that answers nonsense."""

    def __init__(self, cache: Any, name: str, nonsense: Any) -> None:
        self.inner, self.name, self.nonsense = cache, name, nonsense

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.inner, name)
        if name != self.name:
            return member
        if not callable(member):
            return self.nonsense

        def answer(*arguments: Any) -> Any:
            member(*arguments)
            return self.nonsense

        return answer


@pytest.mark.parametrize(("contract", "kind"), KINDS)
def test_a_backend_that_answers_nonsense_is_to_blame(contract: str, kind: str) -> None:
    backend = load("torch-cpu")
    declared = backend.contracts[contract][kind]
    programs = list(islice(draw(contract, kind, declared), 2))
    found = 0

    def open_nonsense(name: str, nonsense: Any, config: Any) -> Any:
        cache = backend.open(config)
        return Nonsense(cache, name, nonsense) if config["kind"] == kind else cache

    def diverges(program: Program, name: str, nonsense: Any) -> bool:
        wrong = lambda config: open_nonsense(name, nonsense, config)  # noqa: E731
        return run(program, replace(backend, open=wrong)).divergence is not None

    for name in CALLS[contract]:
        for nonsense in NONSENSE:
            found += any(diverges(program, name, nonsense) for program in programs)
    assert found > len(NONSENSE)
