"""What tests of other projects import: the strategy of programs, and a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from misbehaving import (
    Cache,
    correct,
    declare,
    from_third_token,
    interrupts,
    one_column_less,
    shows_nan,
)

import lockstep
from lockstep.harness.cli import library
from lockstep.harness.contracts.operation import Simplest
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import run as execute
from lockstep.harness.jobs.crash import recover
from lockstep.harness.programs.files import write_program
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.program import Program, load_programs
from lockstep.harness.workers.pool import is_running
from lockstep.impl.torch.backend import cpu
from tests.harness.building import SMALL, make
from tests.harness.commands import HERE, ROOT, handling_ctrl_c

UPDATE = {"op": "update", "length": 2}


@pytest.fixture(autouse=True)
def _forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Failures of one test are not those of another."""
    monkeypatch.chdir(tmp_path)
    library.SHORTEST_SHOWN.clear()
    yield
    library.SHORTEST_SHOWN.clear()


def draw(count: int, *arguments: Any, number: int = 0, **options: Any) -> list[Program]:
    drawn: list[Program] = []

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(lockstep.programs(*arguments, **options))
    def collect(program: Program) -> None:
        drawn.append(program)

    collect()
    return drawn


# --- programs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("contract", "kind"),
    [("layer", "rotating"), ("prefix", "trie"), ("paged", "paged-full")],
)
def test_programs_are_various(contract: str, kind: str) -> None:
    """Of 100 that Hypothesis would make out of each other, 40 had the same config."""
    programs = draw(100, contract, kind, "torch-cpu")
    assert {program.kind for program in programs} == {kind}
    assert len({program.digest() for program in programs}) > 90
    assert len({json.dumps(program.config) for program in programs}) > 80


@pytest.mark.parametrize("most", [1, 5, 60])
def test_no_program_is_longer_than_asked_for(most: int) -> None:
    lengths = {len(one.ops) for one in draw(60, "layer", "kv", max_ops=most)}
    assert max(lengths) <= most
    assert most < 60 or len(lengths) > 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("layers", "kv"), 'contract: unknown "layers"; did you mean layer?'),
        (("layer", "kvv"), 'kind of layer: unknown "kvv"; did you mean kv?'),
        (("paged", "kv"), 'kind of paged: unknown "kv"'),
        (("layer", "state", correct()), "declares no cache of kind state (layer)"),
        (
            ("layer", "kv", "torch-cpuu"),
            "no backend has this name; did you mean torch-cp",
        ),
    ],
)
def test_what_there_is_not_is_refused(arguments: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        lockstep.programs(*arguments)
    assert words in str(caught.value)


def test_a_program_has_an_operation() -> None:
    with pytest.raises(UsageError, match="max_ops must be at least 1, not 0"):
        lockstep.programs("layer", "kv", max_ops=0)


# --- a run ------------------------------------------------------------------------------


def test_a_run_that_agrees() -> None:
    result = lockstep.run(make(UPDATE, **SMALL), correct())
    assert (result.steps, result.divergence) == (1, None)
    assert not list(Path("failures").glob("*-*"))


def test_a_run_that_diverges_tells_the_shortest_program_and_saves_it() -> None:
    program = make(UPDATE, UPDATE, UPDATE, **SMALL)
    with pytest.raises(lockstep.Diverged) as caught:
        lockstep.run(program, shows_nan())
    failure = caught.value.failure
    assert len(failure.program.ops) == 1
    words = str(caught.value)
    assert words.startswith("layer-kv-update-contents: row 0: ")
    assert "→ step 0: update with " in words
    replay = f"lockstep replay {failure.path} --backend MODULE:FACTORY"
    assert replay in words  # no command finds an object
    [saved] = load_programs(failure.path)
    assert saved.meta["signature"] == "layer-kv-update-contents"
    assert saved.meta["replay"] == replay
    assert lockstep.parse(saved.to_json()).ops == failure.program.ops


@pytest.mark.parametrize("folder", [".", "src"])
def test_a_backend_is_found_where_commands_find_it(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the current folder, and in those of the project's settings."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("pyproject.toml").write_text('[tool.lockstep]\npython-path = ["src"]\n')
    Path("src").mkdir()
    module = f"found_{len(folder)}"
    text = "from misbehaving import shows_nan as make\n"
    Path(folder, f"{module}.py").write_text(text)
    with pytest.raises(lockstep.Diverged) as caught:
        lockstep.run(make(UPDATE, UPDATE, **SMALL), f"{module}:make")
    assert f"--backend {module}:make" in str(caught.value)


def test_each_signature_has_a_class_of_its_own() -> None:
    classes = set()
    for backend in (shows_nan(), one_column_less()):
        with pytest.raises(lockstep.Diverged) as caught:
            lockstep.run(make(UPDATE, UPDATE, **SMALL), backend)
        classes.add(type(caught.value))
    assert len(classes) == 2


def test_of_one_signature_only_a_simpler_program_is_shortened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shortened: list[Program] = []
    shorten = library.shorten

    def count(program: Program, *arguments: Any) -> Any:
        shortened.append(program)
        return shorten(program, *arguments)

    monkeypatch.setattr(library, "shorten", count)
    for times in (3, 4, 2):
        with pytest.raises(lockstep.Diverged):
            lockstep.run(make(*[UPDATE] * times, **SMALL), shows_nan())
    assert len(shortened) <= 2  # not the second, which is longer
    assert len(list(Path("failures").glob("*-*/*.json"))) == 1


def test_what_a_backend_does_not_declare_is_no_divergence() -> None:
    with pytest.raises(UsageError, match="cannot run this program"):
        lockstep.run(make(UPDATE, kind="state"), correct())


# --- a run that ends its process --------------------------------------------------------

ENDS = """
import os
import lockstep
from tests.harness.building import SMALL, make, update
from tests.harness.misbehaving import from_third_token

exits = from_third_token(lambda: os._exit(0))
program = make(*[update(1)] * 4, **SMALL)

def test_agrees():
    lockstep.run(program, "tests.harness.misbehaving:plain")

def test_ends():
    lockstep.run(program, "NAME")
"""
ENDING = [f"{HERE}:dies", "test_ends:exits"]
SIGNATURE = "layer-kv-update-crash"


def run_ends(name: str, *options: str) -> str:
    """What pytest prints of a test in which a backend ends the process."""
    Path("test_ends.py").write_text(ENDS.replace("NAME", name))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}."}
    for name in [name for name in environment if name.startswith("PYTEST_XDIST")]:
        del environment[name]  # it is another run than this one
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.stdout.decode(errors="replace")


@pytest.mark.parametrize("name", ENDING)
def test_the_next_run_names_a_program_that_has_ended_the_process(name: str) -> None:
    """And saves it; a run that goes on in another process is none of its concern."""
    run_ends(name, "-p", "no:xdist")
    assert len(list(Path("failures/running").iterdir())) == 1
    with pytest.warns(UserWarning, match=f"an earlier run ended in {SIGNATURE}") as told:
        lockstep.run(make(UPDATE, **SMALL), correct())
    (path,) = Path("failures", SIGNATURE).iterdir()
    line = f"lockstep replay {path} --backend {name}"
    assert line in str(told[0].message) and "→ step 2: update" in str(told[0].message)
    (program,) = load_programs(path)
    assert (program.meta["backend"], program.meta["step"]) == (name, 2)
    assert list(recover(Path("failures"))) == []
    assert len(list(Path("failures/running").iterdir())) == 1


def test_the_report_of_a_crash_of_xdist_names_the_program() -> None:
    said = run_ends(ENDING[0], "-n", "1")
    assert "crashed while running 'test_ends.py::test_ends'" in said
    (path,) = Path("failures", SIGNATURE).iterdir()
    assert f"lockstep replay {path} --backend {ENDING[0]}" in said
    assert "1 failed, 1 passed" in said
    assert not Path("failures/running").exists()


def test_a_backend_that_raises_keyboard_interrupt_is_wrong() -> None:
    with pytest.raises(lockstep.Diverged, match="raised KeyboardInterrupt"):
        lockstep.run(make(UPDATE, **SMALL), interrupts())


def test_ctrl_c_ends_a_run_and_blames_no_program() -> None:
    backend = from_third_token(lambda: signal.raise_signal(signal.SIGINT))()
    with handling_ctrl_c(), pytest.raises(KeyboardInterrupt):
        lockstep.run(make(UPDATE, UPDATE, **SMALL), backend)
    (record,) = Path("failures/running").iterdir()
    assert not is_running(record.read_bytes())
    assert not list(Path("failures").glob("*-*"))


def test_hypothesis_shrinks_what_it_draws() -> None:
    """Without the steps of `run`: every choice of a program, also of its config, is one
    of Hypothesis."""
    failing: list[Program] = []

    @seed(1)
    @settings(max_examples=300, database=None, deadline=None, report_multiple_bugs=False)
    @given(lockstep.programs("layer", "kv", "torch-cpu"))
    def check(program: Program) -> None:
        if any(op["op"] == "trim" and op["count"] > 1 for op in program.ops):
            failing.append(program)
            raise AssertionError

    with pytest.raises(AssertionError):
        check()
    first, *_, last = failing
    assert len(first.ops) > len(last.ops) <= 4
    declared = cpu().contracts["layer"]["kv"]
    plain = Drawer("layer", "kv", declared, cpu().dtypes).draw(Simplest()).config
    assert sum(plain[field] != last.config[field] for field in plain) <= 2
    assert execute(last, cpu()).divergence is None


# --- examples ---------------------------------------------------------------------------

MINE = """
from hypothesis import Phase, given, settings
import lockstep
from misbehaving import plain

seen = []

@lockstep.examples("failures", kind="kv", backend=plain())
@settings(phases=[Phase.explicit])
@given(lockstep.programs("layer", "kv"))
def test_mine(program):
    seen.append(len(program.ops))
    lockstep.run(program, plain())

def test_seen():
    assert seen == SEEN
"""


def test_programs_that_failed_come_first(tmp_path: Path) -> None:
    with pytest.raises(lockstep.Diverged):
        lockstep.run(make(UPDATE, UPDATE, **SMALL), shows_nan())
    (tmp_path / "failures" / "broken.json").write_text("{")
    undeclared = make(UPDATE, UPDATE, UPDATE, **{**SMALL, "heads": 2})
    write_program(tmp_path / "failures" / "of-another-backend.json", undeclared)
    (tmp_path / "failures" / "running").mkdir(exist_ok=True)
    running = tmp_path / "failures" / "running" / "in-another-process.json"
    write_program(running, make(UPDATE, UPDATE, **SMALL))
    (tmp_path / "test_mine.py").write_text(MINE.replace("SEEN", "[1]"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    paths = {"PYTHONPATH": str(Path(__file__).parent)}

    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_examples_are_of_one_kind_and_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that is named is wanted."""
    seen: list[Program] = []

    def note(program: Program) -> Any:
        seen.append(program)
        return lambda test: test

    monkeypatch.setattr(library, "example", note)
    one, other = make(UPDATE), make(UPDATE, kind="rotating", window=4)
    record = tmp_path / "saved" / "running" / "1.json"
    record.parent.mkdir(parents=True)
    write_program(record, make(UPDATE, UPDATE))
    for number, program in enumerate((one, other)):
        write_program(tmp_path / "saved" / f"{number}.json", program)
    lockstep.examples(tmp_path / "saved", kind="kv")(note)
    lockstep.examples(tmp_path / "saved")(note)
    assert [program.kind for program in seen] == ["kv", "kv", "rotating"]
    seen.clear()
    lockstep.examples(record)(note)
    assert [len(program.ops) for program in seen] == [2]


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_folder_without_programs_has_no_examples(name: str, tmp_path: Path) -> None:
    def test() -> None:
        pass

    (tmp_path / "empty" / "running").mkdir(parents=True)
    (tmp_path / "empty" / "running" / "1.json").write_text("{}")
    assert lockstep.examples(name)(test) is test


def test_the_package_itself_imports_nothing() -> None:
    code = "import lockstep, sys; print('hypothesis' in sys.modules, dir(lockstep)[-1])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split()[0] == "False", done.stderr


def test_what_the_package_does_not_have() -> None:
    with pytest.raises(AttributeError, match="module 'lockstep' has no attribute 'walk'"):
        _ = lockstep.walk


def test_only_what_a_backend_declares_is_drawn() -> None:
    backend = declare(Cache, {"step": (2, 5)})
    programs = draw(40, "layer", "kv", backend)
    assert {program.config["step"] for program in programs} == {2, 5}


def test_the_same_seed_draws_the_same() -> None:
    first = draw(20, "layer", "kv", number=3)
    assert draw(20, "layer", "kv", number=3) == first
    assert draw(20, "layer", "kv", number=4) != first
