"""Backends that cannot be loaded: a broken one is an error, whether it was asked for or
only found, and one that is not here is a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.cli import backends, jobs
from lockstep.harness.workers.guard import YOUNG
from tests.harness.commands import CORRECT, ROOT, Run

Find = Callable[..., None]

MODULES = {
    "absent": "import no_such_package",
    "elsewhere": "from lockstep.harness.backends import Unavailable\n"
    "def make(): raise Unavailable('no GPU')",
    "counts": "import gc\nfrom lockstep.harness.backends import Unavailable\n"
    "WHEN = gc.get_threshold()[0]\n"
    "def make(): raise Unavailable(f'garbage after {WHEN} objects')",
    "breaks": "1 / 0",
    "aborts": "import os; print('no memory map'); os.abort()",
    "leaves": "import os; print('no licence'); os._exit(0)",
    "stays": "import time; print('waiting'); time.sleep(3600)",
    "keeps": "import ctypes; ctypes.PyDLL(None).sleep(3600)",
}


@pytest.fixture
def find(run_workers: Run, monkeypatch: pytest.MonkeyPatch) -> Find:
    """Registers modules of `MODULES` beside the correct backend."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:.")
    for name, text in MODULES.items():
        Path(f"of_{name}.py").write_text(text)

    def find(*names: str) -> None:
        found = {CORRECT: "", **{f"of_{name}:make": "" for name in names}}
        for module in (jobs, backends):
            monkeypatch.setattr(module, "list_names", lambda: found)

    return find


def read_outcome() -> Any:
    return json.loads(Path("failures/outcome.json").read_text())


SIZE = ("--programs", 5, "--jobs", 1, "--start-time", 10)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("breaks", "raised ZeroDivisionError: division by zero, in <module> (of_breaks"),
        ("aborts", "was ended by SIGABRT; its last words: no memory map"),
        ("leaves", "the process ended with exit status 0; its last words: no licence"),
        ("stays", "was not loaded within 10 s; --start-time gives it more; its last wo"),
        ("keeps", "it was not loaded within 10 s; --start-time gives it more"),
    ],
)
def test_a_backend_that_is_broken_is_an_error(
    run_workers: Run, find: Find, name: str, words: str
) -> None:
    """Although it was only found, and the other one agrees."""
    find(name)
    ended = run_workers("check", *SIZE)
    assert (ended.status, ended.err) == (2, "")
    assert f"of_{name}:make: ERROR: could not be loaded: " in ended.words
    assert words in ended.words
    assert "all agree" not in ended.words.replace("not all agree", "")
    assert "✓ 5" in ended.out
    outcome = read_outcome()
    assert words in outcome["dead"][f"of_{name}:make"]
    assert outcome["exit_status"] == 2


def test_backends_that_are_not_here_are_lines(run_workers: Run, find: Find) -> None:
    find("absent", "elsewhere")
    ended = run_workers("check", *SIZE)
    assert ended.status == 0
    assert "of_elsewhere:make: not checked: no GPU" in ended.out
    assert "of_absent:make: not checked: needs the package no_such_package" in ended.words
    asked = run_workers("check", *SIZE, "--backend", "of_elsewhere:make")
    assert (asked.status, "nothing was checked" in asked.words) == (2, True)


def test_garbage_is_collected_less_often_while_one_is_imported(
    run_workers: Run, find: Find
) -> None:
    find("counts")
    ended = run_workers("check", *SIZE)
    assert f"of_counts:make: not checked: garbage after {YOUNG} objects" in ended.words


@pytest.mark.parametrize("asked", [(), ("--kind", "kv")])
def test_one_that_dies_leaves_an_outcome(
    run_workers: Run, find: Find, asked: tuple[str, ...]
) -> None:
    """The only one: it is no question of kinds."""
    find()
    ended = run_workers("check", *SIZE, *asked, "--backend", "of_aborts:make")
    assert (ended.status, "declares a kind" in ended.words) == (2, False)
    assert "no memory map" in read_outcome()["dead"]["of_aborts:make"]


def test_a_backend_without_the_kinds_that_were_asked_for(
    run_workers: Run, find: Find
) -> None:
    """Nothing of it was run, although it was asked for by name."""
    find()
    pairs = ("--backend", CORRECT, "--backend", "reference", "--kind", "trie")
    ended = run_workers("check", *SIZE, *pairs)
    assert ended.status == 2
    why = "not checked: declares no cache of kind trie (it has: kv)"
    assert f"{CORRECT}: {why}" in ended.words
