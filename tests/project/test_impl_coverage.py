"""What generated programs reach of our caches is measured, and what is left is listed."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))  # ci is not installed

from ci.work import list_work

TOOL = Path(__file__).resolve().parents[2] / "ci" / "impl_coverage.py"


def test_few_programs_reach_nearly_all_and_what_is_left_is_listed() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mlx.core")
    command = [sys.executable, str(TOOL), "--programs", "8"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    summary = {
        line.split()[2]: float(line.split()[0])
        for line in ended.stdout.splitlines()
        if " %  impl/" in line
    }
    small = {"impl/mlx/rope.py", "impl/torch/rope.py", "impl/prefix/session.py"}
    assert summary["impl/shared/mask_line.py"] == 100
    assert summary["impl/torch/graphs.py"] == 0, "for CUDA graphs"
    assert small < summary.keys()
    assert "impl/prefix/trie.py:" in ended.stdout
    assert "never goes to" in ended.stdout
    assert "impl/torch/kernels/fused.py:" not in ended.stdout, "explained"


def test_a_kind_can_be_chosen() -> None:
    (work,) = list_work(["reference"], ["state"])
    assert (work.contract, work.kind) == ("layer", "state")
