"""The benchmark of the search for planted mistakes counts what each search needs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def find(path: Path, *options: str) -> tuple[dict[str, Any], str]:
    command = [sys.executable, str(ROOT / "ci/bench/find.py"), "--json", str(path)]
    faults = "--fault", "chunk-boundary", "--fault", "refused-is-used"
    command += [*faults, "--seeds", "1", "--most", "2", *options]
    ended = subprocess.run(command, cwd=path.parent, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    findings = json.loads(path.read_text())["findings"]
    return {finding["id"]: finding for finding in findings}, ended.stdout


def test_searches_end_with_the_mistake_or_are_listed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    findings, _ = find(tmp_path / "first.json")
    assert findings["chunk-boundary"]["found"]
    given_up = findings["refused-is-used"]
    assert (given_up["found"], given_up["programs"]) == (False, 3)
    again, printed = find(tmp_path / "second.json", "--beside", f"{tmp_path}/first.json")
    assert again["chunk-boundary"]["programs"] == findings["chunk-boundary"]["programs"]
    assert "refused-is-used: not found: seed 0, 2 programs" in printed
    assert "1 of 2" in printed and "(1.00)" in printed
