"""`lockstep backends` says what can be checked, and why the rest cannot."""

from __future__ import annotations

import pytest

from lockstep.harness.cli import backends
from lockstep.harness.workers.messages import Declared, LoadFailed, Refused
from tests.harness.commands import Run


def test_a_reason_has_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "b": Refused("needs snow: pip install snow"),
        "a": Declared({"snow": "1"}, "cpu", {}, ["float32"], 1),
        "c": Refused("needs snow: pip install snow"),
        "d": LoadFailed("its factory raised"),
    }
    monkeypatch.setattr(backends, "declare_all", lambda names, settings: found)
    ended = run("backends")
    assert ended.status == 0
    assert ended.out.splitlines()[-3:] == [
        "a on cpu, snow 1, float32",
        "b, c: needs snow: pip install snow",
        "d: its factory raised",
    ]
    assert run("backends", "-b", "reference").status == 2
