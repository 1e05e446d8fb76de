"""The benchmark of block managers runs, with vLLM or without it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_a_day_is_played_with_and_without_memory(tmp_path: Path) -> None:
    """Blocks are few: requests are preempted; what is read is right all the same."""
    pytest.importorskip("torch")
    path = tmp_path / "day.json"
    sizes = "--requests", "60", "--blocks", "1024", "--json", str(path)
    command = [sys.executable, str(ROOT / "ci/bench/serving.py"), *sizes]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    numbers = json.loads(path.read_text())
    counts = numbers["days"]["ours"]["counts"]
    assert counts["preempted"] > 0 and counts["reused"] > 0
    assert numbers["read"] > counts["reused"] and not numbers["wrong"]
    assert (ended.stderr, "all right" in ended.stdout) == ("", True)


def test_a_memory_that_mixes_slots_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from ci.bench import serving

    manager = serving.Stored(1024)
    memory = manager.stored.memory
    write = memory.write

    def write_reversed(layer: int, slots: Any, keys: Any, values: Any) -> None:
        write(layer, slots[::-1], keys, values)

    monkeypatch.setattr(memory, "write", write_reversed)
    serving.play(manager, 0, 20)
    assert manager.wrong
