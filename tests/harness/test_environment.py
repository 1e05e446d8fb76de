"""Where a failure was found, and what differs from it where it is replayed."""

from __future__ import annotations

import getpass
import json
import platform
import socket
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness import __version__
from lockstep.harness.backends.environment import compare_environments, get_environment
from lockstep.harness.jobs.failures import save
from lockstep.harness.programs.program import Divergence
from tests.harness.building import make, update
from tests.harness.commands import CORRECT, Run

DECLARED = {"versions": {"torch": "2.13.0"}, "device": "cpu"}
DIVERGENCE = Divergence("contents", 0, "update", "row 0 sees too much")


def change(**more: Any) -> dict[str, Any]:
    """The meta of a failure that was found here, but for these."""
    return {"backend": "mine", **get_environment(DECLARED), **more}


def say(**more: Any) -> str | None:
    return compare_environments(change(**more), "mine", get_environment(DECLARED))


def test_what_is_noted() -> None:
    found = get_environment(DECLARED)
    assert found["versions"] == {
        "torch": "2.13.0",
        "python": platform.python_version(),
        "kv-lockstep": __version__,
    }
    assert (found["device"], found["platform"].split()[0]) == ("cpu", platform.system())


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (change(), "found with the same versions on the same device"),
        (
            change(versions={"torch": "2.12.0"}, device="cuda"),
            "found with torch 2.12.0, device cuda; here with torch 2.13.0, device cpu",
        ),
        (
            change(versions={"triton": "3.5"}),
            "found with triton 3.5; here with no triton",
        ),
        (change(backend="other"), "found with backend other; here with backend mine"),
        (
            change(platform="Plan9 mips"),
            f"found with platform Plan9 mips; here with platform {platform.system()}"
            f" {platform.machine()}",
        ),
        ({}, None),
        ({"versions": None}, None),
        ({"versions": [1]}, None),
        ({"versions": {"torch": 3}, "device": [], "platform": 1, "backend": {}}, "same"),
        ({"versions": {"torch": "2\x1b[2J\n3"}}, "found with torch 2·[2J 3; here with"),
    ],
)
def test_what_differs_is_said(found: dict[str, Any], words: str | None) -> None:
    said = compare_environments(found, "mine", get_environment(DECLARED))
    assert said == words if words is None else words in str(said)


def test_what_a_file_says_is_bounded() -> None:
    versions = {f"{number}" * 1000: "1" * 100_000 for number in range(1000)}
    assert len(str(say(versions=versions))) < 10_000


def test_a_failure_replays_with_what_differs(run: Run, tmp_path: Path) -> None:
    """It agrees here; it was found with another version."""
    environment = get_environment({"versions": {"numpy": "1.0"}, "device": "tpu"})
    program = make(update(3))
    failure = save(tmp_path, program, DIVERGENCE, CORRECT, environment, {})
    ended = run("replay", failure.path, "--backend", CORRECT)
    assert (ended.status, ended.out[:5]) == (0, "FIXED")
    words = "agrees in its one step; found with numpy 1.0, device tpu; here with numpy "
    assert words in ended.text


def test_no_name_of_a_host_or_a_user_is_noted() -> None:
    text = json.dumps(get_environment(DECLARED))
    assert socket.gethostname() not in text
    assert getpass.getuser() not in text
