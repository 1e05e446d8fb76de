"""The benchmark of block managers runs, with vLLM or without it."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_it_measures_all_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "blocks.json"
    script = ROOT / "ci/bench/blocks.py"
    command = [sys.executable, str(script), "--rounds", "1", "--json", str(path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.stderr == ""
    found = json.loads(path.read_text())
    assert {"request", "match", "step"} == found["microseconds"].keys()
    assert all(times["ours"] > 0 for times in found["microseconds"].values())
    assert found["ratios"] or "vLLM is not measured" in ended.stdout
