"""The project as a whole: its style, its types, and what its documents say."""

import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.project.pinned import has_pinned

ROOT = Path(__file__).resolve().parents[2]


@has_pinned("numpy", "ruff", "mypy")
@pytest.mark.parametrize(
    "command",
    [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)],
    ids=["lint", "format", "types"],
)
def test_style_and_types(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_has_two_commands_that_do_everything() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^pip install .* && (.*)$", readme, re.MULTILINE)
    assert commands == ["lockstep check", "pytest -n auto"]


BEGINNINGS = {".png": b"\x89PNG", ".svg": b"<svg "}


def test_pictures_of_documents_are_there_and_small() -> None:
    found = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert found[0] == "harness/reports/pages/failure.png"
    for name in found:
        content = (ROOT / name).read_bytes()
        assert content.startswith(BEGINNINGS[Path(name).suffix])
        assert len(content) < 100_000


def test_every_registered_backend_is_in_the_matrix() -> None:
    readme = (ROOT / "impl" / "peers" / "README.md").read_text()
    for entry in entry_points(group="lockstep.backends"):
        assert f"`{entry.name}`" in readme


def test_every_known_divergence_names_an_existing_backend() -> None:
    names = {entry.name for entry in entry_points(group="lockstep.backends")}
    for path in (ROOT / "impl" / "peers" / "ledger").glob("*.json"):
        assert json.loads(path.read_text())["backend"] in names
