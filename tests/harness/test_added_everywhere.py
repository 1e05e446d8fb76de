"""The operation of the guide in every command, each in a process of its own.

Processes learn the operation when their interpreter starts, from the code of the guide.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lockstep.harness.backends.backend import Backend
from tests.harness.commands import ROOT, Ended, lockstep
from tests.harness.test_added_operation import README, Greedy, Rolling, declare_with

REGISTER = """\
# Runs when an interpreter starts, so also in each worker.
from lockstep.harness.contracts import answer_schemas, operation
from lockstep.harness.contracts.layer import model, operations, system

for module in (answer_schemas, operation, model, system, operations):
    globals().update(vars(module))

{code}
operations.OPERATIONS["rollback"] = Rollback()
"""

HERE = "tests.harness.test_added_everywhere"
CORRECT, GREEDY = f"{HERE}:make_correct", f"{HERE}:make_greedy"
DRIVER = f"exec:{sys.executable} -m tests.harness.exec.relay"


def make_correct() -> Backend:
    return declare_with("rollback", Rolling)


def make_greedy() -> Backend:
    return declare_with("rollback", Greedy)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which processes know the operation."""
    folder = tmp_path_factory.mktemp("added")
    code = README.read_text().split("```python\n")[1].split("```")[0]
    (folder / "sitecustomize.py").write_text(REGISTER.format(code=code))
    return folder


Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def run_added(home: Path) -> Run:
    """`lockstep` in a process that knows the operation."""
    path = os.pathsep.join([str(home), str(ROOT)])
    failures = ("--failures", home / "failures")

    def run(command: str, *arguments: object) -> Ended:
        more = failures if command in ("check", "explore") else ()
        return lockstep(command, *arguments, *more, PYTHONPATH=path)

    return run


@pytest.fixture(scope="module")
def failure(home: Path, run_added: Run) -> Path:
    """The failure that `lockstep check` finds in the cache with the mistake."""
    ended = run_added("check", "--backend", GREEDY, "--programs", 60)
    assert ended.status == 1, ended.text
    (path,) = (home / "failures").glob("layer-kv-rollback-offset/*.json")
    assert json.loads(path.read_text())["ops"] == [
        {"op": "update", "length": 1},
        {"op": "rollback", "count": 2},
    ]
    return path


def test_check_draws_it_and_agrees(run_added: Run) -> None:
    ended = run_added("check", "--backend", CORRECT, "--programs", 60, "--json")
    assert ended.status == 0, ended.text
    (pair,) = json.loads(ended.out)["pairs"]
    assert "rollback" not in pair["undeclared"]


COMMANDS = {
    "replay": (["replay", "FILE", "--backend", GREEDY], 1, "FAILED"),
    "replay of a correct one": (["replay", "FILE", "--backend", CORRECT], 0, "FIXED"),
    "shrink": (["shrink", "FILE", "--backend", GREEDY], 1, "roll back 2 tokens"),
    "show": (["show", "FILE", "--backend", GREEDY], 0, "roll back 2 tokens"),
    "report": (["report", "FILE", "-b", GREEDY, "-o", "HOME/page"], 0, "report.html"),
    "snippet": (["snippet", "FILE", "--backend", GREEDY], 0, "rollback(2)"),
    "trace": (["trace", "FILE"], 0, '{"ok": false, "offset": 1}'),
    "explore": (["explore", "-b", GREEDY, "--size", "tiny", "--depth", 2], 1, "rollback"),
    "a driver": (
        ["check", "-b", f"{DRIVER} {GREEDY}", "--programs", 40, "--strict"],
        1,
        "✗ " + f"{DRIVER} {GREEDY} layer-kv-rollback-offset",
    ),
    "a driver that agrees": (
        ["check", "-b", f"{DRIVER} {CORRECT}", "--programs", 40, "--strict"],
        0,
        "✓",
    ),
    "snippet of a driver": (
        ["snippet", "FILE", "-b", f"{DRIVER} {GREEDY}"],
        0,
        '"op":"rollback","cache":0,"count":2',
    ),
}


@pytest.mark.parametrize(("command", "status", "words"), COMMANDS.values(), ids=COMMANDS)
def test_every_command_knows_it(
    home: Path,
    failure: Path,
    run_added: Run,
    command: Sequence[object],
    status: int,
    words: str,
) -> None:
    filled = [
        str(word).replace("FILE", str(failure)).replace("HOME", str(home))
        for word in command
    ]
    ended = run_added(*filled)
    assert (ended.status, words in ended.words) == (status, True), ended.text


def test_vectors_have_it_and_are_verified(home: Path, run_added: Run) -> None:
    folder = home / "vectors"
    ended = run_added("vectors", "-o", folder, "--size", "tiny", "--kind", "kv")
    assert ended.status == 0, ended.text
    assert '"op":"rollback"' in (folder / "layer-kv.jsonl").read_text()
    assert "| rollback | count | Takes back" in (folder / "README.md").read_text()
    assert run_added("vectors", "verify", folder).status == 0
    ended = run_added("replay", folder / "layer-kv.jsonl", "--backend", CORRECT, "--json")
    statuses = [result["status"] for result in json.loads(ended.out)["replayed"]]
    assert "AGREES" in statuses and "FAILED" not in statuses


def test_a_new_backend_has_its_method(home: Path, run_added: Run) -> None:
    for options, name in (((), "mine"), (("--exec",), "mine-exec")):
        ended = run_added("new-backend", name, *options, "-o", home)
        assert ended.status == 0, ended.text
        text = (home / f"{name.replace('-', '_')}.py").read_text()
        assert "def rollback(self, count):" in text
        assert "Takes back the last `count` tokens" in text
