"""The benchmark of the harness runs, and tells a backend's time from the harness's."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))  # ci is not installed

from ci.bench.pace import stopwatch
from ci.bench.pace.passes import Bench, measure_rounds
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.execution.record import Record
from lockstep.harness.programs.generate.sources import draw_some
from lockstep.harness.workers.registry import load

HARNESS = Path(stopwatch.__file__).parents[1] / "harness.py"
KINDS = [kind for rules in CONTRACTS.values() for kind in rules.kinds]
SLEEP = 0.05
"""More than all else that a backend does in three programs."""


def run_bench(path: Path, backend: str, *options: str) -> Sequence[dict[str, Any]]:
    pytest.importorskip("torch" if backend.startswith("torch") else "mlx.core")
    tiny = ["--programs", "2", "--rounds", "1", "--json", str(path)]
    command = [sys.executable, str(HARNESS), "--backend", backend, *tiny, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows: Sequence[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


@pytest.mark.parametrize(
    ("backend", "kinds"), [("mlx-cpu", KINDS), ("torch-cpu", ["kv", "causal", "trie"])]
)
def test_it_measures_every_kind(backend: str, kinds: list[str], tmp_path: Path) -> None:
    """Of one framework; what is measured does not depend on it."""
    chosen = [f"--kind={kind}" for kind in kinds]
    rows = run_bench(tmp_path / "harness.json", backend, *chosen)
    assert [row["kind"] for row in rows] == [*kinds, "all"]
    for row in rows:
        assert all(rate > 0 for rate in row["rates"].values())
        assert sum(row["shares"][name] for name in row["shares"]) == pytest.approx(
            1 + row["shares"]["outside"]
        )
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
