"""Generated programs reach every line of the reference."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "ci" / "reference_coverage.py"


def measure(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--quick", "--backend", "torch-cpu"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True)


def test_the_ci_profile_reaches_every_line_and_branch_of_the_reference() -> None:
    pytest.importorskip("torch")
    ended = measure()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "nothing is left" in ended.stdout


def test_what_is_not_reached_is_listed() -> None:
    pytest.importorskip("torch")
    ended = measure("--programs", "2")
    assert ended.returncode == 1
    assert "left in" in ended.stdout
    assert "reference/trie.py" in ended.stdout
