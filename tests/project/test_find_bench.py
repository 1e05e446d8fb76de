"""The search for planted mistakes runs, and counts what it needs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def find(path: Path, *arguments: str) -> tuple[Any, str]:
    command = [sys.executable, str(ROOT / "ci/bench/find.py"), "--json", str(path)]
    command += ["--jobs", "1", "--seeds", "1", *arguments]
    ended = subprocess.run(command, cwd=path.parent, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(path.read_text()), ended.stdout


def test_searches_end_with_the_mistake_or_are_listed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    faults = "--fault", "chunk-boundary", "--fault", "refused-is-used"
    options = *faults, "--no-ledger", "--most", "2"
    report, _ = find(tmp_path / "first.json", *options)
    beside = "--beside", str(tmp_path / "first.json")
    again, printed = find(tmp_path / "second.json", *options, *beside)
    found = {one["name"].rpartition(":")[2]: one for one in report["findings"]}
    assert found["chunk_boundary"]["is_found"]
    given_up = found["refused_is_used"]
    assert (given_up["is_found"], given_up["programs"]) == (False, 3)
    assert "refused_is_used: not found: seed 0" in printed and "1 of 2" in printed
    assert [row["half"] for row in again["planted"]] == ["all", "even", "odd"]
    assert again["planted"][0]["ratios"]["steps"] == 1
    assert report["planted"][0]["ratios"] == {}
