"""The benchmarks of block managers and prefixes run, with vLLM or without it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(script: str, folder: Path, *options: str) -> tuple[str, Any]:
    """Runs a benchmark; returns what it printed and what it wrote."""
    path = folder / "numbers.json"
    command = [sys.executable, str(ROOT / "ci/bench" / script), *options]
    ended = subprocess.run(
        [*command, "--json", str(path)], cwd=folder, capture_output=True, text=True
    )
    assert ended.stderr == ""
    return ended.stdout, json.loads(path.read_text())


def test_it_measures_all_that_it_names(tmp_path: Path) -> None:
    printed, numbers = run("blocks.py", tmp_path, "--rounds", "1")
    assert {"request", "match", "step", "begin"} == numbers["microseconds"].keys()
    assert all(times["ours"] > 0 for times in numbers["microseconds"].values())
    assert numbers["ratios"] or "vLLM is not measured" in printed


def test_a_day_is_played_with_and_without_memory(tmp_path: Path) -> None:
    """Blocks are few: requests are preempted; what is read is right all the same."""
    pytest.importorskip("torch")
    sizes = "--requests", "60", "--blocks", "1024"
    printed, numbers = run("serving.py", tmp_path, *sizes)
    counts = numbers["days"]["ours"]["counts"]
    assert counts["preempted"] > 0 and counts["reused"] > 0
    assert numbers["read"] > counts["reused"] and not numbers["wrong"]
    assert "all right" in printed


def test_a_memory_that_mixes_slots_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script changes its own
    from ci.bench import serving

    manager = serving.Stored(1024)
    memory = manager.stored.memory
    write = memory.write

    def write_reversed(layer: int, slots: Any, keys: Any, values: Any) -> None:
        write(layer, slots[::-1], keys, values)

    monkeypatch.setattr(memory, "write", write_reversed)
    serving.play(manager, 0, 20)
    assert manager.wrong
