"""Runs random trials: a process dies, hangs or prints garbage during `lockstep check`.

    python ci/trials.py --count 500 --jobs 2
    python ci/trials.py --only 17

The seed and the number of a trial determine the trial. A check must end with the correct
exit status, and without a traceback. Every failing program must be in outcome.json or in
the write-ahead record. Five seconds later, no process may be left. The backend is
`tests.harness.trouble`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

import click  # noqa: E402

from lockstep.harness.core.errors import UsageError  # noqa: E402
from lockstep.harness.programs.program import parse_program  # noqa: E402
from tests.harness.commands import START, find_processes  # noqa: E402
from tests.harness.trouble import ACTS, ANSWERS, LOADING, PLACES, STEPS  # noqa: E402

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
MAX_SECONDS = 600.0


@dataclass
class Ended:
    """The end of a trial.

    Attributes:
        status: the exit status of the command; None if it did not end.
        acted: the seconds from the act of the backend (such as hanging) to the event
            (such as a signal); without an event, to the end of the command. None if the
            backend has not acted.
        was_sent: whether the event was sent before the command ended.
        left: the processes that still run after five seconds.
    """

    status: int | None
    out: str
    err: str
    acted: float | None
    was_sent: bool
    left: set[int]
    problems: list[str] = field(default_factory=list)


def wait(process: subprocess.Popen[Any]) -> int | None:
    """Returns the exit status of a process; None if it was too slow and was killed."""
    try:
        return process.wait(MAX_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def list_descendants(pid: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                child = int(path.parent.name)
                yield child
                yield from list_descendants(child)


# --- a trial ----------------------------------------------------------------------------

HARMLESS = ("fork", "chdir", "delete", "complain")
HANGING = ("sleep", "busy", "hold", "stop")
IN_A_THREAD = ("abort", "kill", "leave", "hold", "stop", "babble", "empty", "close")
"""Acts that affect other threads of the process."""

EVENTS = (*["nothing"] * 5, "KILL", "TERM", "INT", "worker")
STATUS = {"TERM": 143, "INT": 130, "KILL": -9}
PROGRAMS = 24


@dataclass(frozen=True)
class Trial:
    """A trial: at the location `place`, a backend does `act`, such as hanging; `event`,
    such as a signal, may happen after `seconds`.

    Attributes:
        seconds: the time from the start of the work to the event.
    """

    number: int
    is_driver: bool
    place: str
    act: str
    event: str
    seconds: float

    @property
    def is_harmless(self) -> bool:
        """Whether the check must succeed although the backend has done the act."""
        if self.act in ANSWERS:  # nothing is returned there
            return self.place in ("close", "import")
        if self.is_driver:  # its standard output is its only connection
            return self.act in (*HARMLESS, "close")
        return self.act in (*HARMLESS, "print", "flood")

    @property
    def is_loading(self) -> bool:
        """Whether the act prevents the backend from loading.

        A driver that gives a wrong answer to "open-any" still loads. The wrong answer
        causes an error later, when steps run.
        """
        is_shown_later = self.is_driver and self.act in ANSWERS
        return self.place in LOADING and (self.place != "open-any" or not is_shown_later)

    def format(self) -> str:
        backend = "driver" if self.is_driver else "module"
        event = "" if self.event == "nothing" else f", {self.event} {self.seconds:.2f} s"
        return f"trial {self.number}: {backend}, {self.act} in {self.place}{event}"

    def run(self, folder: Path) -> Ended:
        failures, mark = folder / "failures", folder / "acted"
        backend = "tests.harness.trouble:make"
        if self.is_driver:
            backend = f"exec:{sys.executable} -m tests.harness.exec.relay {backend}"
        names = {"PLACE": self.place, "ACT": self.act, "MARK": mark, "FOLDER": failures}
        variables = {f"TRIAL_{name}": str(value) for name, value in names.items()}
        # On a busy machine, a slow start or program must not count as a hang.
        limits = (1, 15) if self.act in HANGING else (60, 120)
        out, err = folder / "out", folder / "err"
        with out.open("w") as to_out, err.open("w") as to_err:
            options = ("check", "--backend", backend, "--programs", PROGRAMS, "--jobs", 1)
            options += ("--step-time", limits[0], "--start-time", limits[1])
            options += ("--seed", self.number, "--failures", failures)
            process = subprocess.Popen(
                [sys.executable, "-c", START, *map(str, options)],
                cwd=folder,
                env={**ENVIRONMENT, **variables},
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
            )
            was_sent = self.disturb(process, failures)
            sent = time.time()
            status = wait(process)
        end = sent if was_sent else time.time()
        acted = end - mark.stat().st_mtime if mark.exists() else None
        texts = out.read_text(), err.read_text()
        return Ended(status, *texts, acted, was_sent, wait_for_end(str(mark)))

    def disturb(self, process: subprocess.Popen[Any], failures: Path) -> bool:
        """Makes the event. Returns False if the trial has no event, or if the command has
        already ended."""
        if self.event == "nothing":
            return False
        while process.poll() is None and not (failures / "running").exists():
            time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            process.wait(self.seconds)
            return False
        if self.event != "worker":
            process.send_signal(getattr(signal, f"SIG{self.event}"))
            return True
        below = sorted(list_descendants(process.pid))
        kill(below and [Random(self.number).choice(below)])
        return bool(below)


def draw(seed: int, number: int) -> Trial:
    random = Random(f"{seed}/{number}")
    place = random.choice(PLACES)
    acts = IN_A_THREAD if place == "between" else list(ACTS)
    is_driver, act = random.random() < 0.4, random.choice(acts)
    event, seconds = random.choice(EVENTS), random.uniform(0.0, 4.0)
    return Trial(number, is_driver, place, act, event, seconds)


def wait_for_end(mark: str, seconds: float = 5.0) -> set[int]:
    """Kills the processes of a trial that are left after some seconds; returns them."""
    deadline = time.monotonic() + seconds
    while (left := find_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill(left)
    return left


def judge(trial: Trial, ended: Ended, failures: Path) -> Iterator[str]:
    """Yields descriptions of errors at the end of a trial."""
    allowed = list_allowed(trial, ended)
    if ended.status not in allowed:
        yield f"exit status {ended.status}, not {sorted(allowed)}"
    if "Traceback" in ended.err or "\nTraceback" in ended.out:
        yield "a traceback"
    if not all(char.isprintable() or char == "\n" for char in ended.out + ended.err):
        yield "control characters"
    if ended.left:
        yield f"{len(ended.left)} processes are left"
    path = failures / "outcome.json"
    if ended.status is not None and ended.status < 0:
        is_kept = trial.place in STEPS and not trial.is_harmless and trial.act != "delete"
        is_kept = is_kept and ended.acted is not None and ended.acted > 1.0
        if is_kept and not any(map(holds_program, failures.rglob("*.json"))):
            yield "no file has the program"
    elif ended.status is not None and not path.exists():
        yield "no outcome.json"
    elif ended.status is not None:
        yield from judge_outcome(trial, ended.status, json.loads(path.read_text()))


def list_allowed(trial: Trial, ended: Ended) -> set[int]:
    """Returns the allowed exit statuses."""
    has_acted = ended.acted is not None
    if trial.place == "between" and has_acted:
        allowed = {0, 1, 2}  # the event may come after the end of the check
    elif trial.is_harmless or not has_acted:
        allowed = {0}
    else:
        allowed = {2} if trial.is_loading else {1}
    if not ended.was_sent:
        return allowed
    if trial.event == "worker":  # it may have been idle, loading or running a program
        return allowed | {0, 1, 2}
    was_seen = ended.acted is not None and ended.acted > 3.0
    if trial.event == "KILL" or not was_seen or allowed == {0}:
        return {STATUS[trial.event]} | (allowed if trial.event != "KILL" else set())
    return allowed | ({STATUS[trial.event]} if trial.is_loading else set())


def judge_outcome(trial: Trial, status: int, outcome: Any) -> Iterator[str]:
    """Yields descriptions of errors in outcome.json and in its failures."""
    pairs = outcome["pairs"]
    failures = [failure for pair in pairs for failure in pair["failures"]]
    if outcome["exit_status"] != status:
        yield f"outcome.json has status {outcome['exit_status']}"
    if status == 1 and not failures:
        yield "no program is named"
    ran = [pair["programs"] for pair in pairs]
    if status == 0 and not (outcome["complete"] and ran == [PROGRAMS]):
        yield "green, but not whole"
    if status == 2 and not outcome["dead"] and not any(pair["errors"] for pair in pairs):
        yield "nothing says why it is 2"
    for failure in failures:
        parse_program(failure["program"], "outcome")
        if not Path(failure["path"]).exists() and trial.act != "delete":
            yield f"{failure['path']} is not there"


def holds_program(path: Path) -> bool:
    try:
        return bool(parse_program(json.loads(path.read_text()), "file"))
    except (ValueError, UsageError):
        return False


# --- the command ------------------------------------------------------------------------


def attempt(trial: Trial) -> Ended:
    with tempfile.TemporaryDirectory(prefix="trial-") as folder:
        ended = trial.run(Path(folder))
        ended.problems = [*judge(trial, ended, Path(folder) / "failures")]
    return ended


def report(trial: Trial, ended: Ended, has_output: bool) -> None:
    for problem in ended.problems:
        click.echo(f"✗ {trial.format()}: {problem}")
    if has_output:
        click.echo(f"{trial.format()}: status {ended.status}, acted {ended.acted}")
    if has_output or ended.problems:
        click.echo(ended.out[-2000:] + ended.err[-2000:])


@click.command()
@click.option("--count", default=500, show_default=True, help="Number of trials.")
@click.option("--first", default=0, help="Number of the first one.")
@click.option("--seed", default=0, show_default=True)
@click.option("--jobs", default=2, show_default=True, help="Trials at a time.")
@click.option("--only", type=int, help="This trial only, with what it prints.")
@click.option("--time", "seconds", default=1e9, help="Begin none after so many seconds.")
def main(
    count: int,
    first: int,
    seed: int,
    jobs: int,
    only: int | None,
    seconds: float,
) -> None:
    """Runs trials in which something dies; status 1 if one goes wrong."""
    numbers = range(first, first + count) if only is None else [only]
    deadline = time.monotonic() + seconds
    results: list[Ended] = []

    def work(number: int) -> None:
        if time.monotonic() < deadline:
            trial = draw(seed, number)
            ended = attempt(trial)
            results.append(ended)
            report(trial, ended, only is not None)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, numbers))
    wrong = sum(bool(ended.problems) for ended in results)
    acted = sum(ended.acted is not None for ended in results)
    sent = sum(ended.was_sent for ended in results)
    statuses = Counter(str(ended.status) for ended in results).most_common()
    counts = ", ".join(f"{count} × {status}" for status, count in statuses)
    click.echo(
        f"{len(results)} trials, {wrong} with problems; {acted} backends acted,"
        f" {sent} events came in time; exit status: {counts}"
    )
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
