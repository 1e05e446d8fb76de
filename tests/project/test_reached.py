"""What generated programs reach is measured, and what is left is listed."""

import subprocess
import sys
from pathlib import Path

import pytest

from ci.work import list_work

TOOL = Path(__file__).resolve().parents[2] / "ci" / "reached.py"


def measure(*arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch")
    command = [sys.executable, str(TOOL), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_share_of_each_file_of_our_caches_is_told() -> None:
    pytest.importorskip("mlx.core")
    ended = measure("caches", "--kind", "swa", "--programs", "8")
    assert ended.returncode == 1, ended.stderr
    summary = {
        line.split()[2]: float(line.split()[0])
        for line in ended.stdout.splitlines()
        if " %  impl/" in line
    }
    small = {"impl/mlx/rope.py", "impl/torch/rope.py", "impl/prefix/session.py"}
    assert summary["impl/shared/mask_line.py"] > 50
    assert summary["impl/torch/graphs.py"] == 0, "for CUDA graphs"
    assert small < summary.keys()
    assert "impl/prefix/trie.py:" in ended.stdout
    assert "never goes to" in ended.stdout
    assert "impl/torch/kernels/fused.py:" not in ended.stdout, "explained"


def test_the_ci_profile_reaches_every_line_and_branch_of_the_reference() -> None:
    ended = measure("reference", "--quick", "--backend", "torch-cpu")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "\n0 lines and branches left" in ended.stdout


def test_what_is_not_reached_is_listed() -> None:
    options = ("--quick", "--backend", "torch-cpu", "--programs", "2", "--kind", "trie")
    ended = measure("reference", *options)
    assert ended.returncode == 1
    assert "reference/trie.py:" in ended.stdout


def test_a_kind_can_be_chosen() -> None:
    (work,) = list_work(["reference"], ["state"])
    assert (work.contract, work.kind) == ("layer", "state")
