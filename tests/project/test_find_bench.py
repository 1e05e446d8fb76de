"""The comparison of generators runs, and counts what a search needs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def find(folder: Path, *arguments: str) -> Any:
    path = folder / "found.json"
    command = [sys.executable, str(ROOT / "ci/bench/find.py"), "--json", str(path)]
    command += ["--generator", "plain", "--generator", "choices", "--jobs", "1"]
    ended = subprocess.run(
        [*command, "--seeds", "1", *arguments], cwd=folder, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(path.read_text()), ended.stdout


def test_searches_end_with_the_mistake_or_are_listed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    faults = "--fault", "chunk-boundary", "--fault", "refused-is-used"
    options = "--no-ledger", "--most", "2"
    report, words = find(tmp_path, *faults, *options)
    found = {
        (one["name"].rpartition(":")[2], one["job"]["generator"]): one
        for one in report["findings"]
    }
    for generator in ("plain", "choices"):
        assert found["chunk_boundary", generator]["is_found"]
        given_up = found["refused_is_used", generator]
        assert (given_up["is_found"], given_up["programs"]) == (False, 3)
        assert f"refused_is_used: not found by {generator}, seed 0" in words
    ratios = [row.get("programs_ratio") for row in report["planted"]]
    assert ratios[0] == 1 and len(ratios) == 6
    assert "1 of 2" in words
