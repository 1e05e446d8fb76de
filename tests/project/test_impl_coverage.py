"""What generated programs reach of our caches is measured, and what is left is listed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "ci" / "impl_coverage.py"


def measure(*arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch")
    pytest.importorskip("mlx.core")
    command = [sys.executable, str(TOOL), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_few_programs_of_every_kind_reach_nearly_all() -> None:
    ended = measure("--programs", "10")
    summary = {
        line.split()[2]: float(line.split()[0])
        for line in ended.stdout.splitlines()
        if " %  impl/" in line
    }
    small = {"impl/mlx/rope.py", "impl/torch/rope.py", "impl/prefix/session.py"}
    assert summary["impl/shared/mask_line.py"] == 100
    assert summary["impl/torch/graphs.py"] == 0, "for CUDA graphs"
    assert small < summary.keys()


def test_what_is_not_reached_is_listed() -> None:
    ended = measure("--programs", "2", "--kind", "state")
    assert ended.returncode == 1, ended.stderr
    assert "impl/prefix/trie.py:" in ended.stdout
    assert "never goes to" in ended.stdout
    assert "impl/torch/kernels/fused.py:" not in ended.stdout, "explained"
