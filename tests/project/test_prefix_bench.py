"""The benchmark of prefix caches counts what the rules of the reference allow."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.append(str(Path(__file__).resolve().parents[2]))  # ci is not installed

from ci.bench.prefixes import runner
from ci.bench.prefixes.day import make_day
from ci.bench.prefixes.oracle import measure_repetition
from lockstep.impl.prefix.trie import Trie as Cache
from lockstep.impl.shared.memory import TokenMemory

PREFIX = Path(runner.__file__).parents[1] / "prefix.py"


def test_repetition_is_what_comparing_all_texts_gives() -> None:
    requests = make_day(3, 25)
    repeated, known = 0, set[bytes]()
    for request in requests:
        prompt, text = request.prompt, request.text
        ends = range(1, len(prompt))
        repeated += next((n for n in ends[::-1] if prompt[:n].tobytes() in known), 0)
        known |= {text[:end].tobytes() for end in range(1, len(text) + 1)}
    assert measure_repetition(requests) == (repeated, len(known))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch")
    return subprocess.run(
        [sys.executable, str(PREFIX), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_a_day_reuses_what_can_be_reused_and_nothing_is_wrong(tmp_path: Path) -> None:
    done = run(tmp_path, "day", "--requests", "300", "--json", "day.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    found = json.loads((tmp_path / "day.json").read_text())
    assert found["wrong"] == found["other_reuse"] == found["other_bytes"] == 0
    assert 0 < found["reused"] < found["unlimited"]
    assert 0 < found["small"] == found["possible"]


def overwrite(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is lost when the memory is written to."""
    patch.setattr(TokenMemory, "secure", lambda *_: None)


def ignore_checkpoints(patch: pytest.MonkeyPatch) -> None:
    begin = Cache.begin
    patch.setattr(Cache, "begin", lambda self, tokens, checkpoints: begin(self, tokens))


def miscount(patch: pytest.MonkeyPatch) -> None:
    count = Cache.count_bytes
    patch.setattr(Cache, "count_bytes", lambda self: count(self) + 1)


def exceed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cache, "keep_limit", lambda *_: None)


FAULTS = [
    (overwrite, "wrong"),
    (ignore_checkpoints, "other_reuse"),
    (miscount, "other_bytes"),
    (exceed, "other_bytes"),
]


@pytest.mark.parametrize(
    ("plant", "name"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS]
)
def test_a_fault_of_the_cache_is_a_complaint(
    plant: Callable[[pytest.MonkeyPatch], None],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script changes its own
    from ci.bench.prefix import main

    plant(monkeypatch)
    done = CliRunner().invoke(main, ["day", "--requests", "60"])
    assert done.exit_code == 1, done.output
    assert f"{runner.COMPLAINTS[name]}: " in done.output


def test_nothing_leaks(tmp_path: Path) -> None:
    done = run(tmp_path, "leaks", "--operations", "5000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_begin_is_timed(tmp_path: Path) -> None:
    done = run(tmp_path, "begin", "--stored", "4", "--stored", "8", "--rounds", "2")
    assert done.stdout.count("2,000 repeat") == 2, done.stdout + done.stderr
