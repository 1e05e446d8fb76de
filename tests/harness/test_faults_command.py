"""`lockstep faults`: what it finds, what survives, what it prints and exits with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = "tests.harness.misbehaving"

Lockstep = Callable[..., Any]


def test_all_are_found_and_told(lockstep: Lockstep, tmp_path: Path) -> None:
    ended = lockstep("faults", "--backend", f"{HERE}:has_faults", "--failures", tmp_path)
    assert ended.status == 0, ended.words
    assert "3 of 3 faults found: programs" in ended.words
    for name in ("nan-in-the-third", "one-less", "raises-late"):
        assert name in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80


def test_a_survivor_is_told_and_is_exit_status_1(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    arguments = ("--programs", 120, "--failures", tmp_path)
    ended = lockstep("faults", "--backend", f"{HERE}:has_a_survivor", *arguments)
    assert ended.status == 1
    assert "no-mistake: not found: as in correct" in ended.words
    assert "(120)" in ended.words
    assert "1 of 2 faults found" in ended.words


def test_one_fault_as_json(lockstep: Lockstep, tmp_path: Path) -> None:
    arguments = ("--fault", "one-less", "--json", "--failures", tmp_path)
    ended = lockstep("faults", "--backend", f"{HERE}:has_faults", *arguments)
    assert ended.status == 0, ended.words
    outcome = json.loads(ended.out)
    (fault,) = outcome["faults"]
    assert fault["planted"]["id"] == "one-less"
    assert (fault["found"], fault["operations"], fault["excess"]) == (True, 1, 0)
    assert fault["signature"] == "layer-kv-update-malformed"
    assert outcome["summary"]["found"] == 1
    assert 0 < fault["programs"] <= 50


def test_what_cannot_be_run_is_an_error(lockstep: Lockstep, tmp_path: Path) -> None:
    broken = ("--backend", f"{HERE}:has_a_broken_fault", "--failures", tmp_path)
    ended = lockstep("faults", *broken)
    assert ended.status == 2
    assert "no-factory: ERROR: " in ended.words
    assert "has no factory there_is_no_such_factory" in ended.words


def test_a_backend_whose_list_is_none_is_told(lockstep: Lockstep, tmp_path: Path) -> None:
    arguments = ("--backend", f"{HERE}:names_no_function", "--failures", tmp_path)
    ended = lockstep("faults", *arguments)
    assert ended.status == 2
    assert "misbehaving has no function there_is_none" in ended.words


def test_an_unknown_fault_is_told(lockstep: Lockstep, tmp_path: Path) -> None:
    arguments = ("--fault", "one-les", "--failures", tmp_path)
    ended = lockstep("faults", "--backend", f"{HERE}:has_faults", *arguments)
    assert ended.status == 2
    assert ended.words == "lockstep: there is no fault one-les; known: one-less"


def test_a_backend_without_faults_is_nothing_to_search(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    arguments = ("--backend", f"{HERE}:correct", "--failures", tmp_path)
    ended = lockstep("faults", *arguments)
    assert ended.status == 2
    assert "0 of 0 faults found" in ended.words
