"""The guide in impl/README.md: each of its steps is taken, and says what it says."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from lockstep.harness.cli.main import main
from tests.project.pinned import has_pinned

ROOT = Path(__file__).resolve().parents[2]

BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@has_pinned("numpy", "hypothesis", "rich", "click")
def test_every_step_of_the_guide_says_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    guide = (ROOT / "impl" / "README.md").read_text()
    taken = 0
    for form, text in BLOCK.findall(guide):
        if form == "python":
            head, _, text = text.partition("\n")
            path = tmp_path / head.split()[-1]
            path.write_text(fill_in(path.read_text(), text))
            continue
        for command, said in list_commands(text):
            got = run(command)
            assert agrees(said, got), f"$ {command}\n{got}"
            taken += 1
    assert taken == 21


def test_the_session_of_the_readme_is_from_the_guide() -> None:
    guide = (ROOT / "impl" / "README.md").read_text().splitlines()
    readme = (ROOT / "README.md").read_text()
    lines = [line for form, text in BLOCK.findall(readme) for line in text.splitlines()]
    assert len(lines) > 8
    assert {line for line in lines if line} <= {*guide}


def run(command: str) -> str:
    """Returns the output of a command, without the progress on a slow machine."""
    program, *arguments = shlex.split(command)
    assert program == "lockstep"
    environment = {"COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    output = CliRunner(env=environment).invoke(main, arguments).output
    return re.sub(r"^\d+ s: .* left\n", "", output, flags=re.MULTILINE)


def list_commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with what it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, said = part.partition("\n")
        yield command, said


def agrees(said: str, got: str) -> bool:
    """Whether it is the same but for the time. "…" alone stands for any lines."""
    lines = (re.escape(plain(line)) for line in said.strip().splitlines())
    pattern = "\n".join("(?:.*)" if line == "…" else line for line in lines)
    found = "\n".join(plain(line) for line in got.strip().splitlines())
    return re.fullmatch(pattern, found, re.DOTALL) is not None


def plain(line: str) -> str:
    """Returns the line without times and line numbers."""
    line = re.sub(r"(my_\w+\.py):\d+", r"\1:N", line.rstrip())
    return re.sub(r"in \d+ s\b", "in N s", line)


def fill_in(text: str, block: str) -> str:
    """A module with the methods and lists of `block` in the place of its own; a method
    that is new comes behind the one before it."""
    tree, lines = ast.parse(text), text.split("\n")
    names = {name: node for node in ast.walk(tree) for name in list_names(node)}
    edits: list[tuple[int, int | None, list[str]]] = []
    for node in ast.parse(block).body:
        (name,) = list_names(node)
        new = block.split("\n")[get_first(node) : node.end_lineno]
        if name in names:
            old = names[name]
            edits.append((get_first(old), old.end_lineno, []))
            margin = " " * old.col_offset
        else:
            edits[-1][2].append("")
        edits[-1][2].extend(margin + line if line else line for line in new)
    for first, last, changed in sorted(edits, reverse=True):
        lines[first:last] = changed
    return "\n".join(lines)


def list_names(node: ast.AST) -> Sequence[str]:
    """Lists the names that a function or an assignment defines."""
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return [node.targets[0].id]
    return []


def get_first(node: ast.AST) -> int:
    """The index of the first line of a statement, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min(each.lineno for each in [node, *decorators]) - 1


@pytest.mark.parametrize(
    ("said", "got", "same"),
    [
        ("a in 2 s", "a in 31 s \n", True),
        ("a\n…\nz", "a\nb\nc\nz", True),
        ("…\nz", "a\nz.", False),
        ("a (b)", "a  b", False),
    ],
)
def test_outputs_are_compared_but_for_the_time(said: str, got: str, same: bool) -> None:
    assert agrees(said, got) is same
