"""The progress of a check, on any terminal."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.reports import console as reports
from lockstep.harness.reports.console import (
    Pace,
    PlainConsole,
    Progress,
    draw_progress,
    get_check_status,
    print_outcome,
)
from lockstep.harness.workers.messages import Counts
from tests.harness.commands import CORRECT, ROOT

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def make_outcome(seconds: float | None = None) -> Outcome:
    """A check after about ten seconds: one pair is half done, another not begun."""
    kind = Kind(frozenset(CONTRACTS["layer"].list_operations("kv")))
    running, waiting = (
        Pair(name, "layer", "kv", kind, wanted=200) for name in ("torch-cpu", "mlx-cpu")
    )
    running.running[0] = Counts(programs=100, steps=2000, seconds=8.0)
    running.reached.update(running.cells[:50])
    settings = Settings(seconds=seconds)
    started = time.monotonic() - 10
    return Outcome(settings, pairs=[running, waiting], started=started)


def make_console(width: int) -> Console:
    return Console(width=width, file=io.StringIO(), highlight=False)


def show(what: Any, width: int) -> str:
    with (console := make_console(width)).capture() as captured:
        console.print(what)
    return captured.get()


def test_the_status_says_how_far_how_fast_and_how_long() -> None:
    words = get_check_status(Pace(), make_outcome()).plain
    assert re.match(r"1\d s: 100 of 400 programs, (1\d\d|200) steps/s, ", words)
    cells = 2 * len(make_outcome().pairs[0].cells)
    assert re.search(rf"50 of {cells} cells, 0 failures, about 3\d s left$", words)


def test_what_is_left_follows_the_recent_rate() -> None:
    """10 programs a second at first, then 1: the mean of all says 18 s."""
    pace = Pace()
    for seconds in range(1, 101):
        pace.estimate(seconds, 10 * seconds, 1)
    for more in range(1, 101):
        left = pace.estimate(100 + more, 1000 + more, 100)
    assert left == pytest.approx(100, rel=0.01)
    for more in range(100, 200):
        left = pace.estimate(100 + more, 1100, 100)
    assert left == pytest.approx(100 * 299 / 1100)  # nothing of late: that of the run


def test_brackets_in_names_are_no_markup() -> None:
    """The name of a driver, of a file: what is not ours."""
    outcome = make_outcome()
    names = "ev[/red]il", "[bold]x"
    for pair, name in zip(outcome.pairs, names, strict=True):
        pair.backend = name
    file = io.StringIO()
    console = PlainConsole(file=file, width=80)
    print_outcome(console, outcome)
    console.print("q[/y]/f[red].json")
    for words in (*names, "q[/y]/f[red].json"):
        assert words in file.getvalue()


@pytest.mark.parametrize("width", [40, 80])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    """And names and numbers can be read."""
    outcome = make_outcome()
    for text in (
        show(draw_progress(Pace(), width, outcome), width),
        print_all(outcome, width),
    ):
        assert max(map(len, text.splitlines())) <= width
        assert "torch-cpu" in text
    assert f"50/{len(outcome.pairs[0].cells)}" in print_all(outcome, width)


def get_contract(kind: str) -> str:
    return next(name for name, rules in CONTRACTS.items() if kind in rules.kinds)


def print_all(outcome: Outcome, width: int, verbose: bool = False) -> str:
    with (console := make_console(width)).capture() as captured:
        print_outcome(console, outcome, verbose=verbose)
    return captured.get()


@pytest.mark.parametrize(
    "options",
    [{"force_terminal": False}, {"force_terminal": True, "_environ": {"TERM": "dumb"}}],
)
def test_where_nothing_can_be_redrawn_there_is_a_line_now_and_then(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipe, and on a terminal that is dumb: without control sequences."""
    for seconds, lines in ((-1.0, ["line 0", "line 1"]), (3600.0, [])):
        monkeypatch.setattr(reports, "QUIET_SECONDS", seconds)
        file = io.StringIO()
        console = Console(file=file, width=80, **options)
        with Progress(
            console, lambda _: Text("drawn"), lambda n: Text(f"line {n}")
        ) as shown:
            for number in range(2):
                shown.show(number)
        assert file.getvalue().splitlines() == lines


def read_all(master: int) -> str:
    """Reads a pseudo-terminal until it is closed at the other end."""
    seen = b""
    with suppress(OSError):  # that is how it ends
        while part := os.read(master, 65536):
            seen += part
    return seen.decode()


@pytest.mark.parametrize(
    ("environment", "has_control", "has_colour"),
    [
        ({"TERM": "xterm-256color"}, True, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_a_real_terminal(
    tmp_path: Path, environment: dict[str, str], has_control: bool, has_colour: bool
) -> None:
    master, slave = os.openpty()
    command = ("check", "--backend", CORRECT, "--programs", "40")
    kept = {name: value for name, value in os.environ.items() if "COLOR" not in name}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lockstep.harness.cli.main",
            *command,
            "--failures",
            tmp_path,
        ],
        cwd=ROOT,
        env={**kept, "COLUMNS": "80", **environment},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    text = read_all(master)
    os.close(master)
    assert process.wait(600) == 0
    assert "all agree" in CONTROL.sub("", text)
    assert ("\x1b[2K" in text) == has_control
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]m", text)) == has_colour
