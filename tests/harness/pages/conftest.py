"""Failures to show, and programs of which both sides are recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from lockstep.harness.execution.record import Record
from lockstep.harness.execution.recording.picture import Bounds, Step
from lockstep.harness.execution.recording.recorder import record
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.reports.outcome_file import read_outcome
from lockstep.harness.reports.pages.gather import Material, Stage, add_outcome
from lockstep.harness.reports.pages.view import FailureView
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.registry import load
from tests.harness.commands import run_here

FAULTS = "lockstep.impl.faults.torch"

Recorded = tuple[list[Step], Divergence | None]

HOSTILE = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7*7 }}"
    "\x1b[31m\u202e&amp;"
)


def save(program: Program, backend: str | None = None, **more: Any) -> FailureView:
    """A failure as its file has it."""
    return FailureView(program, "failures/x/f.json", backend, **more)


def make_failure(program: Program, message: str = "m", **more: Any) -> dict[str, Any]:
    """A failure as an outcome has it: the contents of the first step differ."""
    return {
        "signature": "layer-kv-update-contents",
        "path": "failures/x/f.json",
        "divergence": {
            "what": "contents",
            "step": 0,
            "operation": "update",
            "message": message,
        },
        "program": program.to_json(),
        **more,
    }


def make_outcome(more: Mapping[str, Any] | None = None, **pair: Any) -> dict[str, Any]:
    """An outcome as a check writes it. more: other fields; pair: fields of its pair."""
    counts = {"wanted": 100, "programs": 100, "steps": 900}
    other = {"margins": {"attention": 0.25}, "known_divergences": 1}
    empty: dict[str, Any] = {"outdated": [], "errors": [], "failures": []}
    cells = {"reachable": 40, "empty": {"wrapped": ["trim", "free"]}}
    whole = {"backend": "torch-cpu", "contract": "layer", "kind": "kv", "cells": cells}
    return {
        "format": "lockstep-outcome/1",
        "seed": 7,
        "seconds": 12.5,
        "complete": True,
        "versions": {"torch": "2.13.0"},
        "unavailable": {"mlx-gpu": "there is no GPU"},
        "dead": {},
        "pairs": [{**whole, **counts, **other, **empty, **pair}],
        **(more or {}),
    }


def gather_outcome(document: Mapping[str, Any], *saved: FailureView) -> Material:
    """Gathers the material of a report from an outcome and files."""
    material = Material()
    add_outcome(read_outcome(document, "outcome.json"), material)
    material.saved += saved
    return material


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    """Plays programs again in this process, on the given backends."""
    monkeypatch.setattr(Pool, "run", run_here)
    return lambda *given: Stage(Pool(1, tmp_path / "running"), Settings(given))


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., Recorded]]:
    """Both sides of a program, as a worker records them, in this process."""
    written = Record(tmp_path / "record.json")

    def play(
        program: Program,
        backend: str,
        until: int | None = None,
        bounds: Bounds | None = None,
        wanted: str | None = None,
    ) -> Recorded:
        own = partial(written.begin, backend=backend), written.step
        chosen = bounds or Bounds()
        answer = record(program, load(backend), chosen, until, wanted, *own)
        answer = json.loads(json.dumps(answer))
        found = answer["divergence"]
        steps = convert(answer["steps"], type=list[Step])
        return steps, found and convert(found, type=Divergence)

    yield play
    written.close()
