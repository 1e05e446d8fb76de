"""Scripts of plain calls for our own backends: each shows the planted mistake of its
program, and none without the mistake."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import run
from lockstep.harness.execution.scripts.script import try_script, write_script
from lockstep.harness.programs.files import load_saved
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import RandomSource
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import get_target, load, load_faults

pytest.importorskip("torch")

PATH = Path(__file__).parents[1] / "data" / "scripts.jsonl"
PROGRAMS = [program for _, program in load_saved([PATH])]
FAULTS = "lockstep.impl.faults.torch"
CORRECT = get_target("torch-cpu")


@pytest.fixture(scope="module")
def correct() -> dict[str, str]:
    """Backend with a mistake → the same without it."""
    return {
        fault.backend: fault.correct for fault in load_faults(f"{FAULTS}:list_faults")
    }


def name(program: Program) -> str:
    return str(program.meta["backend"]).partition(":")[2]


def write(program: Program, backend: str) -> str:
    return write_script(program, load(backend), get_target(backend))


def mend(script: str, correct: str) -> str:
    """The same calls of the backend without the mistake."""
    module, _, factory = get_target(correct).partition(":")
    lines = script.replace(f"import {FAULTS}\n", f"import {module}\n").splitlines()
    opened = f"backend = {module}.{factory}()"
    mended = [opened if line.startswith("backend = ") else line for line in lines]
    assert mended != lines
    return "\n".join(mended)


@pytest.mark.parametrize("program", PROGRAMS, ids=name)
def test_a_script_shows_the_mistake_and_nothing_without_it(
    program: Program, correct: dict[str, str]
) -> None:
    backend = str(program.meta["backend"])
    script = write(program, backend)
    assert try_script(script) == 1
    assert try_script(mend(script, correct[backend])) == 0


def test_every_family_has_a_program() -> None:
    families = {program.contract for program in PROGRAMS}
    assert families == {"layer", "batched", "unified", "paged", "prefix"}


def draw() -> Iterator[Program]:
    backend = load("torch-cpu")
    for contract, kinds in backend.contracts.items():
        for kind, declared in kinds.items():
            drawer = Drawer(contract, kind, declared, backend.dtypes, [])
            source = RandomSource(5)
            for _ in range(2):
                yield drawer.draw(source)


def test_programs_at_large_agree_in_their_scripts() -> None:
    """Each operation may be the last; what a script cannot show it says."""
    why: list[str] = []
    written = 0
    backend = load("torch-cpu")
    for program in draw():
        assert run(program, backend).divergence is None
        try:
            assert try_script(write_script(program, backend, CORRECT)) == 0
            written += 1
        except UsageError as error:
            why.append(str(error))
    assert not [words for words in why if "a script of its calls does not" in words]
    assert written > len(why), why


def test_a_script_runs_where_the_backend_can_be_imported(tmp_path: Path) -> None:
    program = PROGRAMS[0]
    (tmp_path / "bug.py").write_text(write(program, str(program.meta["backend"])))
    ended = subprocess.run(
        [sys.executable, "bug.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "<- differs" in ended.stdout
