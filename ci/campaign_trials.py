"""Trials of `lockstep campaign`: something is killed in the middle, or the disk is full.

    python ci/campaign_trials.py --count 50 --jobs 2
    python ci/campaign_trials.py --only 17

Each trial is drawn from the seed and its number. A campaign runs in the local pool or on
a Ray cluster of two nodes on this machine. At some moment a worker, a node of the cluster
or the coordinator is killed with SIGKILL, or the disk is full. Then `resume` runs to the
end, which must be that of a campaign that nothing has disturbed: the same shards with the
same digests, each counted once, and the same failures. The disk is a tmpfs, which only
root can mount; others skip these trials.
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
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

import click  # noqa: E402

from ci.trials import START, list_descendants  # noqa: E402
from lockstep.harness.jobs.campaign.terms import CAMPAIGN  # noqa: E402

BACKEND = "tests.harness.misbehaving:wrong_twice"
SIZE = ("--programs", "240", "--slice", "20", "--backend", BACKEND)
SHARDS = 13
"""One with the declaration, 12 with programs."""

MOST_SECONDS = 600.0
MOST_RESUMED = 3

EVENTS = ("worker", "coordinator", "disk", "raylet", "task")
"""What is killed; of a cluster only: a node's raylet, the process of a shard."""

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 1, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=node)
cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True)
class Trial:
    """One trial. seconds: from the first shard that is done until the event."""

    number: int
    event: str
    on_ray: bool
    seconds: float

    def format(self) -> str:
        where = "Ray" if self.on_ray else "local"
        return f"trial {self.number}: {where}, {self.event} after {self.seconds:.2f} s"


def draw(seed: int, number: int) -> Trial:
    random = Random(f"{seed}/{number}")
    event = EVENTS[number % len(EVENTS)]
    on_ray = event in ("raylet", "task") or random.random() < 0.3
    return Trial(number, event, on_ray, random.uniform(0.0, 3.0))


@dataclass
class Ended:
    """What a trial has come to.

    Attributes:
        at_event: shards that were done when it happened.
        resumed: how often `resume` ran.
        text: all that was printed.
    """

    at_event: int | None = None
    resumed: int = 0
    text: str = ""
    problems: list[str] = field(default_factory=list)


# --- a campaign -------------------------------------------------------------------------


def begin(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START, "campaign", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int | None, str]:
    """The exit status, None if it takes too long, and what was printed."""
    try:
        text, _ = process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return None, process.communicate()[0]
    return process.returncode, text


def read_result(folder: Path) -> dict[str, Any]:
    """What is the same however a campaign has come to its end."""
    digests, programs = {}, 0
    for path in sorted((folder / "shards").glob("*.json")):
        last = json.loads(path.read_text())["events"][-1]
        digests[path.name] = last.get("digest")
        if "counts" in last:
            programs += last["counts"]["programs"]
    failures = sorted(path.name for path in (folder / "failures").glob("*/*-*.json"))
    _, text = end(begin("status", str(folder), "--json"))
    (pair,) = json.loads(text)["pairs"]
    counted = pair["programs"], pair["steps"], pair["digest"], pair["signatures"]
    return {
        "shards": digests,
        "programs": programs,
        "failures": failures,
        "counted": counted,
    }


@cache
def get_undisturbed() -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(prefix="trial-") as name:
        folder = Path(name) / "campaign"
        status, text = end(begin("start", str(folder), *SIZE, "--jobs", "2"))
        assert status == 1, text
        result = read_result(folder)
    assert len(result["shards"]) == SHARDS and result["failures"]
    return result


# --- a trial ----------------------------------------------------------------------------


@contextmanager
def open_cluster(trial: Trial) -> Iterator[tuple[str, int]]:
    """The address of a cluster and the process that keeps it; ("", 0) without one."""
    if not trial.on_ray:
        yield "", 0
        return
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin and process.stdout
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        below = [*list_descendants(process.pid)]
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        for pid in (*below, process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


@contextmanager
def open_disk(trial: Trial) -> Iterator[Path]:
    """A folder; for a trial with a full disk, on a small one of its own."""
    with tempfile.TemporaryDirectory(prefix="trial-") as name:
        if trial.event != "disk":
            yield Path(name)
            return
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", name]
        subprocess.run(mount, check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


def attempt(trial: Trial) -> Ended:
    ended = Ended()
    with open_disk(trial) as disk, open_cluster(trial) as (address, cluster):
        folder = disk / "campaign"
        where = ["--ray", address] if trial.on_ray else ["--jobs", "2"]
        process = begin("start", str(folder), *SIZE, *where)
        ended.at_event = disturb(trial, process, folder, cluster)
        status, ended.text = end(process)
        (disk / "filler").unlink(missing_ok=True)
        while status not in (0, 1) or not is_over(folder):
            if ended.resumed == MOST_RESUMED:
                ended.problems.append(f"not over; status {status}")
                return ended
            ended.resumed += 1
            status, text = end(begin("resume", str(folder), "--jobs", "2"))
            ended.text += f"--- resume\n{text}"
        judge(ended, folder)
    return ended


def disturb(
    trial: Trial, process: subprocess.Popen[str], folder: Path, cluster: int
) -> int | None:
    """Makes the event; the number of shards that are done then, None if it is late."""
    while not [*folder.glob("shards/layer-*")] and process.poll() is None:
        time.sleep(0.01)
    with suppress(subprocess.TimeoutExpired):
        process.wait(trial.seconds)
        return None
    if trial.event == "disk":
        fill(folder.parent / "filler")
    elif trial.event == "coordinator":
        process.kill()
    else:
        kill_one(trial, [*list_descendants(cluster or process.pid)])
    return len([*folder.glob("shards/*.json")])


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", 0) as file:
        while True:
            file.write(bytes(4096))


def kill_one(trial: Trial, below: list[int]) -> None:
    """Kills one of the processes that the event is about."""
    marks = {
        "raylet": "raylet/raylet",
        "task": "ray::run_remote",
        "worker": "workers.guard",
    }
    found = find_marked(marks[trial.event], below)
    if found:
        with suppress(ProcessLookupError):
            os.kill(Random(trial.number).choice(found), signal.SIGKILL)


def find_marked(mark: str, below: Iterable[int]) -> list[int]:
    """Those of the processes with this text in their command, the oldest first."""
    found = []
    for pid in below:
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            if mark in line.decode(errors="replace"):
                found.append(pid)
    return sorted(found)


def is_over(folder: Path) -> bool:
    return (folder / CAMPAIGN).exists() and len([*folder.glob("shards/*.json")]) == SHARDS


def judge(ended: Ended, folder: Path) -> None:
    wanted, got = get_undisturbed(), read_result(folder)
    for name in wanted:
        if got[name] != wanted[name]:
            ended.problems.append(f"{name}: {got[name]}, not {wanted[name]}")
    if "Traceback" in ended.text:
        ended.problems.append("a traceback")


# --- all of them ------------------------------------------------------------------------


@click.command()
@click.option("--count", default=50, show_default=True, help="Number of trials.")
@click.option("--first", default=0, help="Number of the first one.")
@click.option("--seed", default=0, show_default=True)
@click.option("--jobs", default=2, show_default=True, help="Trials at a time.")
@click.option("--only", type=int, help="This trial only, with what it prints.")
def main(count: int, first: int, seed: int, jobs: int, only: int | None) -> None:
    """Runs trials of campaigns that are disturbed; status 1 if one goes wrong."""
    get_undisturbed()
    numbers = range(first, first + count) if only is None else [only]
    trials = [draw(seed, number) for number in numbers]
    if os.geteuid() != 0:
        trials = [trial for trial in trials if trial.event != "disk"]

    def work(trial: Trial) -> Ended:
        ended = attempt(trial)
        click.echo(
            f"{'✗' if ended.problems else '✓'} {trial.format()}: {ended.at_event} shards"
            f" were done, resumed {ended.resumed} times {'; '.join(ended.problems)}"
        )
        if ended.problems or only is not None:
            click.echo(ended.text[-4000:])
        return ended

    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(work, trials))
    bad = sum(bool(each.problems) for each in results)
    came = Counter(
        trial.event
        for trial, each in zip(trials, results, strict=True)
        if each.at_event is not None
    )
    events = ", ".join(f"{number} × {event}" for event, number in sorted(came.items()))
    click.echo(f"{len(trials)} trials, {bad} with problems; in time: {events}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
