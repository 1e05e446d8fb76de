"""The benchmarks of block managers run, with vLLM or without it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "ci/bench" / script), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_it_measures_all_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "blocks.json"
    ended = run("blocks.py", tmp_path, "--rounds", "1", "--json", str(path))
    assert ended.stderr == ""
    found = json.loads(path.read_text())
    assert {"request", "match", "step"} == found["microseconds"].keys()
    assert all(times["ours"] > 0 for times in found["microseconds"].values())
    assert found["ratios"] or "vLLM is not measured" in ended.stdout


def test_a_day_is_played_with_and_without_memory(tmp_path: Path) -> None:
    """Blocks are few: requests are preempted; what is read is right all the same."""
    pytest.importorskip("torch")
    path = tmp_path / "serving.json"
    sizes = "--requests", "60", "--blocks", "1024"
    ended = run("serving.py", tmp_path, *sizes, "--json", str(path))
    assert ended.stderr == ""
    found = json.loads(path.read_text())
    counts = found["days"]["ours"]["counts"]
    assert counts["preempted"] > 0 and counts["reused"] > 0
    assert found["read"] > counts["reused"] and not found["wrong"]
    assert "all right" in ended.stdout
