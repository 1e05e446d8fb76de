"""The benchmark of the harness runs, and tells a backend's time from the harness's."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.bench.harness import Bench, measure_rounds
from lockstep.harness.execution.record import Record
from lockstep.harness.programs.generate.sources import draw_some
from lockstep.harness.workers.registry import load

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("state", "wrapper", "batch-list", "slots", "paged-hybrid")
"""One of each contract; those whose caches contain others."""

SLEEP = 0.05
"""More than all else that a backend does in three programs."""


def test_it_measures_kinds_of_every_contract(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    path = tmp_path / "harness.json"
    tiny = ["--backend=mlx-cpu", "--programs=2", "--rounds=1", f"--json={path}"]
    kinds = [f"--kind={kind}" for kind in KINDS]
    command = [sys.executable, str(ROOT / "ci/bench/harness.py"), *tiny, *kinds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [row["kind"] for row in rows] == [*KINDS, "all"]
    for row in rows:
        assert row["rate"] > 0
        assert sum(row["shares"].values()) == pytest.approx(1 + row["shares"]["outside"])
        assert all(row["shares"][name] > 0 for name in ("draw", "reference", "backend"))


@pytest.mark.parametrize("kind", ["kv", "wrapper", "trie", "slots"])
def test_what_a_backend_takes_is_its_own(kind: str, tmp_path: Path) -> None:
    """A cache that opens slowly is a slow backend, and no slow harness."""
    pytest.importorskip("torch")
    backend = load("torch-cpu")

    def open_slowly(config: Any) -> Any:
        time.sleep(SLEEP)
        return backend.open(config)

    record = Record(tmp_path / "record.json")
    bench = Bench(replace(backend, open=open_slowly), kind, record, programs=3)
    bench.programs = draw_some(bench.count, 0, bench.drawer.draw)
    bench.run_watched()
    record.close()
    assert 3 * SLEEP < bench.watch.take() < 60 * SLEEP


@pytest.mark.parametrize(
    ("device", "seeds"), [("cpu", [3, 0, 1, 2]), ("cuda", [*"012012"])]
)
def test_no_compiler_is_timed(
    device: str, seeds: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU all programs run before any is timed, by the clock of the wall."""
    pytest.importorskip("torch")
    record, ran = Record(tmp_path / "record.json"), []
    bench = Bench(replace(load("torch-cpu"), device=device), "kv", record, programs=3)
    monkeypatch.setattr(bench, "measure", lambda seed: ran.append(seed) or {"check": 1.0})
    assert measure_rounds(bench, 3) == {"check": 1.0}
    assert ran == [int(seed) for seed in seeds]
    assert bench.clock is (time.process_time if device == "cpu" else time.perf_counter)
    record.close()
