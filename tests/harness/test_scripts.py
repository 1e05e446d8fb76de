"""Scripts for backends and drivers of anybody: what they show, and what is in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from lockstep.harness.backends.backend import Backend
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import run as run_program
from lockstep.harness.execution.scripts import plain
from lockstep.harness.execution.scripts.bundle import is_standard
from lockstep.harness.execution.scripts.script import try_script, write_script
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load
from tests.harness.building import SMALL
from tests.harness.building import make as build
from tests.harness.commands import CORRECT, HERE, Run
from tests.harness.misbehaving import Cache, correct

UPDATE = {"op": "update", "length": 2}
TRIM = {"op": "trim", "count": 1}
make = partial(build, heads=1, **SMALL)
FILE = Path(__file__).parent / "exec" / "driver.py"
DRIVER = f"exec:{sys.executable} {FILE}"


def save(program: Program, file: str = "p.json") -> str:
    Path(file).write_text(json.dumps(program.to_json()))
    return file


def test_modules_of_the_standard_library() -> None:
    assert is_standard("os.path")
    assert not is_standard("numpy.typing")


def test_the_command_prints_a_script_that_fails(
    run: Run, snapshot: SnapshotAssertion
) -> None:
    file = save(make({"op": "update", "length": 1}, TRIM, UPDATE))
    printed = run("snippet", file, "--backend", f"{HERE}:wrong_twice")
    assert (printed.status, printed.err) == (0, "")
    assert printed.out.partition("\nbackend = ")[2] == snapshot
    Path("bug.py").write_text(printed.out)
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [sys.executable, "bug.py"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "<- differs" in ended.stdout


def test_without_the_mistake_the_script_agrees() -> None:
    script = write_script(make(UPDATE, {"op": "size"}), load(CORRECT), CORRECT)
    assert try_script(script) == 0
    assert 'compare("size", got_size, 2)' in script


class FloatSize(Cache):
    def size(self) -> Any:
        return float(super().size())


def float_size() -> Backend:
    return replace(correct(), open=lambda config: FloatSize())


def test_an_answer_of_another_type_differs() -> None:
    """As in a check."""
    program, backend = make(UPDATE, {"op": "size"}), float_size()
    assert run_program(program, backend).divergence is not None
    script = write_script(program, backend, "tests.harness.test_scripts:float_size")
    assert try_script(script) == 1


@pytest.mark.parametrize(
    ("got", "wanted", "agrees"),
    [
        *[(3, 3, True), (np.int32(3), 3, True), ([1, (2,)], [1, [2]], True)],
        *[(True, True, True), (np.bool_(True), True, True), (None, None, True)],
        *[(3.0, 3, False), (np.float32(3), 3, False), (True, 1, False), ("3", 3, False)],
        *[
            (1, True, False),
            (0, False, False),
            ([1, 2.0], [1, 2], False),
            ([1], 1, False),
        ],
        *[([1, 2], [1], False), (None, 0, False), (None, False, False)],
    ],
)
def test_values_are_the_same_if_their_types_are(
    got: Any, wanted: Any, agrees: bool
) -> None:
    assert plain.compare("value", got, wanted) == agrees
    assert plain.compare("value", got, "another", wanted) == agrees


def test_an_array_of_floats_has_no_integers() -> None:
    integers, floats = (np.array([1, 2], kind) for kind in ("int64", "float32"))
    assert plain.list_numbers(correct(), (1, 2)) == [1, 2]
    assert plain.compare("sizes", plain.list_numbers(correct(), integers), [1, 2])
    assert not plain.compare("sizes", plain.list_numbers(correct(), floats), [1, 2])


def test_nothing_that_a_file_says_is_in_a_script() -> None:
    meta = {"signature": "x\n__import__('os')", "what": "EVIL", "backend": "EVIL\n"}
    evil = {"op": "state", "cache": "EVIL"}
    script = write_script(replace(make(UPDATE, evil), meta=meta), load(CORRECT), CORRECT)
    assert "EVIL" not in script
    assert "__import__" not in script


def test_a_script_ends_where_the_program_failed() -> None:
    longer = replace(make(UPDATE, UPDATE, UPDATE), meta={"step": 1})
    shorter = make(UPDATE, UPDATE)
    correct = load(CORRECT)
    assert write_script(longer, correct, CORRECT) == write_script(
        shorter, correct, CORRECT
    )


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ([], "no operation of the program is legal"),
        ([UPDATE, {"op": "free"}], "does not declare free"),
    ],
)
def test_why_there_is_no_script(ops: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        write_script(make(*ops), load(CORRECT), CORRECT)


def test_the_reference_has_no_methods_that_could_be_called(run: Run) -> None:
    ended = run("snippet", save(make(UPDATE)), "--backend", "reference")
    assert (ended.status, ended.out) == (2, "")
    assert "reference has no caches whose methods could be called" in ended.err


# --- drivers ----------------------------------------------------------------------------


def converse(script: str) -> list[Any]:
    """The answers of the driver of a script."""
    ended = subprocess.run(["sh"], input=script, capture_output=True, text=True)
    return [json.loads(line) for line in ended.stdout.splitlines() if line[-1:] == "}"]


def write_lines(run: Run, mistake: str, *ops: Any) -> str:
    """The script for the driver with a mistake."""
    printed = run("snippet", save(make(*ops)), "--backend", f"{DRIVER} {mistake}")
    assert (printed.status, printed.err) == (0, "")
    return printed.out


def test_the_lines_of_a_driver_bring_its_wrong_answer(
    run: Run, snapshot: SnapshotAssertion
) -> None:
    wrong = write_lines(run, "wrong-offset", UPDATE, UPDATE, TRIM)
    right = write_lines(run, "well", UPDATE, UPDATE, TRIM)
    assert [answer["offset"] for answer in converse(wrong) if "mask" in answer] == [
        2,
        "3",
    ]
    assert [answer["offset"] for answer in converse(right) if "mask" in answer] == [2, 4]
    _, _, lines = wrong.replace(f"{sys.executable} {FILE}", "driver").partition("\n\n")
    assert lines == snapshot


@pytest.mark.parametrize("mistake", ["segfault", "exit-1", "not-json"])
def test_what_ends_a_driver_is_in_its_lines(run: Run, mistake: str) -> None:
    script = write_lines(run, mistake, UPDATE, UPDATE)
    assert [answer["id"] for answer in converse(script)] == [1, 2, 3]
    assert script.count('"op":"update"') == 2


def test_what_a_driver_or_a_file_says_is_no_command(run: Run) -> None:
    """Names of a file get others; the words of a driver are in comments."""
    ops = [{**UPDATE, "cache": "EVIL"}, {**UPDATE, "cache": "EVIL"}]
    script = write_lines(run, "fails", *ops)
    assert "EVIL" not in script
    for line in script.splitlines():
        assert line[:2] in ("", "#!", "# ", "{", "pr", "} ")
