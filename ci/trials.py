"""Scripted trials of `lockstep check`: backends and drivers that die, hang and babble,
workers and parents that are killed.

    python ci/trials.py --count 500 --jobs 2
    python ci/trials.py --only 17

Each trial is drawn from the seed and its number. It must end with the exit status that
the rule of verdicts says, without a traceback, with every program that was found in
outcome.json or in the write-ahead record, and without a process left after five seconds.
The backend is `tests.harness.trouble`.
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
from collections.abc import Iterator, Sequence
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
from tests.harness.commands import find_processes  # noqa: E402
from tests.harness.trouble import ACTS, ANSWERS, LOADING, PLACES, STEPS  # noqa: E402

# --- what is drawn ----------------------------------------------------------------------

HARMLESS = ("fork", "chdir", "delete", "complain")
HANGING = ("sleep", "busy", "hold", "stop")

IN_A_THREAD = ("abort", "kill", "leave", "hold", "stop", "babble", "empty", "close")
"""Acts that touch other threads of their process."""

EVENTS = (*["nothing"] * 5, "KILL", "TERM", "INT", "worker")
STATUS = {"TERM": 143, "INT": 130, "KILL": -9}


@dataclass(frozen=True)
class Trial:
    """One trial. seconds: from the beginning of the work until the event."""

    number: int
    is_driver: bool
    place: str
    act: str
    event: str
    seconds: float

    @property
    def is_harmless(self) -> bool:
        """Whether the act is none of the harness's business."""
        if self.act in ANSWERS:  # nothing is returned there
            return self.place in ("close", "import")
        if self.is_driver:  # it speaks by its output, and has no other connection
            return self.act in (*HARMLESS, "close")
        return self.act in (*HARMLESS, "print", "flood")

    @property
    def is_loading(self) -> bool:
        """Whether the backend cannot be loaded then. A driver may open anything: only its
        steps show that it is wrong."""
        is_shown_later = self.is_driver and self.act in ANSWERS
        return self.place in LOADING and (self.place != "open-any" or not is_shown_later)

    def format(self) -> str:
        side = "driver" if self.is_driver else "module"
        event = "" if self.event == "nothing" else f", {self.event} {self.seconds:.2f} s"
        return f"trial {self.number}: {side}, {self.act} in {self.place}{event}"


def draw(seed: int, number: int) -> Trial:
    random = Random(f"{seed}/{number}")
    place = random.choice(PLACES)
    acts = IN_A_THREAD if place == "between" else list(ACTS)
    return Trial(
        number,
        random.random() < 0.4,
        place,
        random.choice(acts),
        random.choice(EVENTS),
        random.uniform(0.0, 4.0),
    )


# --- a trial that runs ------------------------------------------------------------------

START = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from lockstep.harness.__main__ import main
main()
"""
MOST_SECONDS = 90.0
PROGRAMS = 24


@dataclass
class Ended:
    """What a trial has come to.

    Attributes:
        status: of the command; None if it did not end.
        acted: how long before the event, or the end, the backend had acted; None if it
            has not.
        was_sent: whether the event came in time.
        left: processes that are left after five seconds.
        problems: what is wrong.
    """

    status: int | None
    out: str
    err: str
    acted: float | None
    was_sent: bool
    left: set[int]
    folder: Path
    problems: list[str] = field(default_factory=list)


def run(trial: Trial, folder: Path) -> Ended:
    failures, mark = folder / "failures", folder / "acted"
    backend = "tests.harness.trouble:make"
    if trial.is_driver:
        backend = f"exec:{sys.executable} -m tests.harness.exec.relay {backend}"
    variables = {
        "TRIAL_PLACE": trial.place,
        "TRIAL_ACT": trial.act,
        "TRIAL_MARK": str(mark),
        "TRIAL_FOLDER": str(failures),
        "PYTHONPATH": str(ROOT),
    }
    # A busy machine must not make a hang of what is only slow.
    step, start = (1, 4) if trial.act in HANGING else (20, 60)
    limits = ("--step-time", step, "--start-time", start, "--jobs", 1)
    size = ("--programs", PROGRAMS, "--seed", trial.number, "--failures", failures)
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", START, "check", "--backend", backend]
            + [str(word) for word in (*limits, *size)],
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        was_sent = disturb(trial, process, failures)
        now = time.time()
        status = wait(process)
        if not was_sent:
            now = time.time()
        acted = now - mark.stat().st_mtime if mark.exists() else None
        left = wait_for_end(str(mark))
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return Ended(status, texts[0], texts[1], acted, was_sent, left, failures)


def disturb(trial: Trial, process: subprocess.Popen[bytes], failures: Path) -> bool:
    """Makes the event; False if there is none, or the command was over before."""
    if trial.event == "nothing":
        return False
    while not (failures / "running").exists() and process.poll() is None:
        time.sleep(0.01)
    with suppress(subprocess.TimeoutExpired):
        process.wait(trial.seconds)
        return False
    if trial.event != "worker":
        process.send_signal(getattr(signal, f"SIG{trial.event}"))
        return True
    below = sorted(list_descendants(process.pid))
    if not below:
        return False
    with suppress(ProcessLookupError):
        os.kill(Random(trial.number).choice(below), signal.SIGKILL)
    return True


def wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(MOST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def list_descendants(pid: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                child = int(path.parent.name)
                yield child
                yield from list_descendants(child)


def wait_for_end(mark: str, seconds: float = 5.0) -> set[int]:
    """The processes of a trial that are still there after so many seconds; ends them."""
    deadline = time.monotonic() + seconds
    while (left := find_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return left


# --- and is judged ----------------------------------------------------------------------


def judge(trial: Trial, ended: Ended) -> list[str]:
    """What is wrong; nothing, if all is as it should be."""
    problems = []
    allowed = list_allowed(trial, ended)
    if ended.status not in allowed:
        problems.append(f"exit status {ended.status}, not {sorted(allowed)}")
    if "Traceback" in ended.err or "\nTraceback" in ended.out:
        problems.append("a traceback")
    if not all(
        letter.isprintable() or letter == "\n" for letter in ended.out + ended.err
    ):
        problems.append("control characters")
    if ended.left:
        problems.append(f"{len(ended.left)} processes are left")
    problems += judge_programs(trial, ended)
    return problems


def list_allowed(trial: Trial, ended: Ended) -> set[int]:
    """The exit statuses that the rule allows."""
    has_acted = ended.acted is not None
    if trial.place == "between" and has_acted:
        allowed = {0, 1, 2}  # it may come when all is over
    elif trial.is_harmless or not has_acted:
        allowed = {0}
    else:
        allowed = {2} if trial.is_loading else {1}
    if not ended.was_sent:
        return allowed
    if trial.event == "worker":  # it may have been at nothing, at loading or at a program
        return allowed | {0, 1, 2}
    was_seen = has_acted and ended.acted is not None and ended.acted > 3.0
    if trial.event == "KILL" or not was_seen or allowed == {0}:
        return {STATUS[trial.event]} | (allowed if trial.event != "KILL" else set())
    return allowed | ({STATUS[trial.event]} if trial.is_loading else set())


def judge_programs(trial: Trial, ended: Ended) -> Iterator[str]:
    """Whether a program that was found is in the outcome, or in the record."""
    path = ended.folder / "outcome.json"
    if ended.status is None:
        return
    if ended.status < 0:
        wanted = trial.place in STEPS and not trial.is_harmless and trial.act != "delete"
        if wanted and ended.acted is not None and ended.acted > 1.0:
            files = [*ended.folder.rglob("*.json")]
            if not any(map(holds_program, files)):
                yield "no file has the program"
        return
    if not path.exists():
        yield "no outcome.json"
        return
    outcome = json.loads(path.read_text())
    failures = [one for pair in outcome["pairs"] for one in pair["failures"]]
    if outcome["exit_status"] != ended.status:
        yield f"outcome.json has status {outcome['exit_status']}"
    if ended.status == 1 and not failures:
        yield "no program is named"
    if ended.status == 0 and not is_whole(outcome):
        yield "green, but not whole"
    errors = [error for pair in outcome["pairs"] for error in pair["errors"]]
    if ended.status == 2 and not outcome["dead"] and not errors:
        yield "nothing says why it is 2"
    for failure in failures:
        parse_program(failure["program"], "outcome")
        if not Path(failure["path"]).exists() and trial.act != "delete":
            yield f"{failure['path']} is not there"


def is_whole(outcome: Any) -> bool:
    ran = [pair["programs"] for pair in outcome["pairs"]]
    return outcome["complete"] and ran == [PROGRAMS]


def holds_program(path: Path) -> bool:
    try:
        return bool(parse_program(json.loads(path.read_text()), "file"))
    except (ValueError, UsageError):
        return False


# --- all of them ------------------------------------------------------------------------


def attempt(trial: Trial) -> Ended:
    with tempfile.TemporaryDirectory(prefix="trial-") as folder:
        ended = run(trial, Path(folder))
        ended.problems = judge(trial, ended)
    return ended


def report(trial: Trial, ended: Ended, is_whole: bool) -> None:
    for problem in ended.problems:
        click.echo(f"✗ {trial.format()}: {problem}")
    if is_whole:
        click.echo(f"{trial.format()}: status {ended.status}, acted {ended.acted}")
    if is_whole or ended.problems:
        click.echo(ended.out[-2000:] + ended.err[-2000:])


def summarize(trials: Sequence[Trial], results: Sequence[Ended]) -> str:
    bad = sum(bool(one.problems) for one in results)
    statuses = Counter(str(one.status) for one in results)
    counts = ", ".join(f"{count} × {status}" for status, count in statuses.most_common())
    acted = sum(one.acted is not None for one in results)
    sent = sum(one.was_sent for one in results)
    return (
        f"{len(trials)} trials, {bad} with problems; {acted} backends acted,"
        f" {sent} events came in time; exit status: {counts}"
    )


@click.command()
@click.option("--count", default=500, show_default=True, help="Number of trials.")
@click.option("--first", default=0, help="Number of the first one.")
@click.option("--seed", default=0, show_default=True)
@click.option("--jobs", default=2, show_default=True, help="Trials at a time.")
@click.option("--only", type=int, help="This trial only, with what it prints.")
@click.option("--time", "seconds", default=1e9, help="Begin none after so many seconds.")
def main(
    count: int, first: int, seed: int, jobs: int, only: int | None, seconds: float
) -> None:
    """Runs trials of backends that die, hang and babble; status 1 if one goes wrong."""
    numbers = range(first, first + count) if only is None else [only]
    trials = [draw(seed, number) for number in numbers]
    deadline = time.monotonic() + seconds
    done: list[tuple[Trial, Ended]] = []

    def work(trial: Trial) -> None:
        if time.monotonic() < deadline:
            ended = attempt(trial)
            done.append((trial, ended))
            report(trial, ended, only is not None)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, trials))
    results = [ended for _, ended in done]
    click.echo(summarize([trial for trial, _ in done], results))
    sys.exit(1 if any(one.problems for one in results) else 0)


if __name__ == "__main__":
    main()
