"""A backend that is begun: written, run as it stands, and told what is missing."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep.harness.cli.main import main
from lockstep.harness.cli.new_backend import IMPORTS, INTERFACES
from lockstep.harness.contracts import CONTRACTS

ROOT = Path(__file__).parents[2]

CONFIG = {"kind": "kv", "step": 1, "conv_width": 2}

EACH = ("kv", "state", "causal")
"""One kind of each interface."""

Lockstep = Callable[..., Any]


def write(folder: Path, *arguments: str) -> Any:
    return CliRunner().invoke(main, ["new-backend", *arguments, "-o", str(folder)])


@pytest.mark.parametrize("arrays", IMPORTS)
@pytest.mark.parametrize("kind", INTERFACES)
def test_a_skeleton_has_all_that_a_kind_can_have(
    tmp_path: Path, kind: str, arrays: str
) -> None:
    ended = write(tmp_path, "my-cache", "--kind", kind, "--arrays", arrays)
    assert ended.exit_code == 0, ended.output
    text = (tmp_path / "my_cache.py").read_text()
    assert max(map(len, text.split("\n"))) <= 90
    cache = next(
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == "Cache"
    )
    methods = [node for node in cache.body if isinstance(node, ast.FunctionDef)]
    rules = next(rules for rules in CONTRACTS.values() if kind in rules.kinds)
    wanted = rules.list_methods(kind, rules.list_operations(kind))
    assert {method.name for method in methods} >= set(wanted)
    assert all(ast.get_docstring(method) for method in methods)


@pytest.mark.parametrize("kind", EACH)
def test_a_skeleton_is_unfinished_and_says_so(
    lockstep: Lockstep, tmp_path: Path, kind: str
) -> None:
    write(tmp_path, "begun", "--kind", kind)
    pair = ("--backend", "begun:make", "--kind", kind, "--programs", 3, "--jobs", 1)
    where = ("--failures", tmp_path / "failures")
    ended = lockstep("check", *pair, *where, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert ended.status == 2, ended.out + ended.err
    assert "! unfinished" in ended.words
    assert "is not written yet" in ended.words
    assert "(begun.py:" in ended.words
    assert "not declared, not checked: " in ended.words
    assert "Traceback" not in ended.words
    assert not list(tmp_path.glob("failures/*/*"))  # it is no failure


@pytest.mark.parametrize("kind", EACH)
def test_a_driver_is_unfinished_and_says_so(
    lockstep: Lockstep, tmp_path: Path, kind: str
) -> None:
    ended = write(tmp_path, "my-driver", "--kind", kind, "--exec")
    assert ended.exit_code == 0, ended.output
    path = tmp_path / "my_driver.py"
    backend = ("--backend", f"exec:{path}")
    assert f"lockstep check --backend exec:{path} --kind {kind}" in ended.output
    size = ("--programs", 1000, "--jobs", 1, "--strict")
    ended = lockstep("check", *backend, *size, "--failures", tmp_path / "failures")
    assert ended.status == 2, ended.out + ended.err
    programs = int(re.findall(r"unfinished: (\d+) programs", ended.words)[0])
    assert programs <= 250  # the rest is left out: none of them has a step that runs
    first = {"state": "boundaries"}.get(kind, "update")
    first = first if kind in ("kv", "rotating", "state") else "forward"
    assert f"{first} is not written yet" in ended.words
    assert not list(tmp_path.glob("failures/*/*"))


@pytest.mark.parametrize("kind", INTERFACES)
def test_a_driver_has_a_method_for_each_message(tmp_path: Path, kind: str) -> None:
    write(tmp_path, "my-driver", "--kind", kind, "--exec")
    text = (tmp_path / "my_driver.py").read_text()
    assert max(len(line) for line in text.split("\n") if "exec:" not in line) <= 90
    rules = next(rules for rules in CONTRACTS.values() if kind in rules.kinds)
    for operation in rules.list_operations(kind):
        if operation != "open" and not (operation == "update" and kind == "state"):
            assert f"    def {operation}(self" in text


def test_the_parts_that_are_written_are_checked(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    """`trim` is not; the steps before one agree, in all programs."""
    backend = "tests.harness.misbehaving:has_no_trim_yet"
    check = ("check", "--backend", backend, "--programs", 400, "--jobs", 1, "--json")
    ended = lockstep(*check, "--failures", tmp_path / "f")
    assert ended.status == 2, ended.err
    (pair,) = json.loads(ended.out)["pairs"]
    assert list(pair["missing"].values()) == ["trim"]
    (part,) = pair["missing"]
    assert part.startswith("trim (misbehaving.py:")
    assert part.endswith(") is not written yet: take back the last tokens")
    assert pair["programs"] == 400
    assert pair["steps"] > 400
    assert pair["failures"] == []
    assert "clone" in pair["undeclared"]


def test_replay_and_explore_say_what_is_not_written(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    backend = ("--backend", "tests.harness.misbehaving:has_no_trim_yet")
    program = tmp_path / "p.json"
    ops = [{"op": "update", "length": 1}, {"op": "trim", "count": 1}]
    head = {"format": "lockstep/1", "contract": "layer", "config": CONFIG}
    program.write_text(json.dumps({**head, "ops": ops}))
    where = ("--failures", tmp_path / "f")
    ended = lockstep("replay", program, *backend, *where)
    assert ended.status == 2
    assert "step 1 (trim): trim (misbehaving.py:" in ended.words
    ended = lockstep("explore", *backend, "--depth", 2, *where)
    assert ended.status == 2, ended.out + ended.err
    assert "! unfinished" in ended.words
    assert "came upon what is not written yet" in ended.words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["5"], "cannot name a Python file"),
        (["a/../b"], "cannot name a Python file"),
        (["class"], "cannot name a Python file"),
        (["x" * 61], "cannot name a Python file"),
        (["mine", "--kind", "trie"], "'trie' is not one of"),
        (["mine", "--arrays", "jax"], "'jax' is not one of"),
        ([], "Missing argument 'NAME'"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, arguments: list[str], words: str) -> None:
    ended = write(tmp_path, *arguments)
    assert ended.exit_code == 2
    assert words in " ".join(ended.output.split())
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("precious")
    ended = write(tmp_path, "mine")
    assert ended.exit_code == 2
    assert "exists already and was not changed" in ended.output
    assert (tmp_path / "mine.py").read_text() == "precious"
    ended = write(tmp_path / "mine.py", "other")
    assert ended.exit_code == 2


def test_the_backend_of_an_installed_package_appears_by_name(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    """As `pip install` would leave it: a module, and a folder that says what it is."""
    write(tmp_path, "their-cache")
    installed = tmp_path / "their_cache-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1\n")
    points = "[lockstep.backends]\ntheir-cache = their_cache:make\n"
    (installed / "entry_points.txt").write_text(points)
    where = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    ended = lockstep("backends", "--failures", tmp_path / "f", **where)
    assert ended.status == 0
    assert "their-cache on cpu, their-cache 0, float32" in ended.words


def test_what_is_printed_runs(tmp_path: Path) -> None:
    """The line that `new-backend` ends with is a command."""
    ended = write(tmp_path / "a folder", "mine")
    *_, line = ended.output.splitlines()
    line = line.strip().replace(
        "lockstep", f"{sys.executable} -m lockstep.harness.cli.main", 1
    )
    line = line.replace("PYTHONPATH=", f"PYTHONPATH={ROOT}:", 1)
    line += f" --programs 1 --failures '{tmp_path / 'f'}'"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert "is not written yet" in " ".join(done.stdout.split()), done.stderr
