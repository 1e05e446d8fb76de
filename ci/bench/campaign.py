"""Measures what Ray costs a campaign: steps per second against the local pool.

    python ci/bench/campaign.py --backend torch-cpu --kind kv --kind rotating --rounds 5

Both run the same shards on equally many workers, one after the other in each round: the
local pool with `--jobs` of them, and a cluster of as many nodes on this machine, each
with one CPU. Each round begins in the other order than the one before. What it takes to
start the workers and to import the backend is not counted: shards run for `--settle`
seconds before, in which Ray starts what it needs, too. Reported are the rates of each
round, and the median of their ratios, which must be `BAR` at least.

On a machine that others use, too, look at the CPU seconds: of all processes, those of Ray
included, for a million steps. With all cores busy the rates are to each other as these.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])  # this file has a package's name
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import click  # noqa: E402

from ci.bench.options import JSON  # noqa: E402
from lockstep.harness.jobs.campaign.local import LocalTeam  # noqa: E402
from lockstep.harness.jobs.campaign.plan import Terms, iter_fixed  # noqa: E402
from lockstep.harness.jobs.campaign.team import Team  # noqa: E402
from lockstep.harness.jobs.check import list_pairs  # noqa: E402
from lockstep.harness.jobs.outcome import Settings  # noqa: E402
from lockstep.harness.workers.messages import Declared, SliceDone  # noqa: E402

BAR = 0.95


@contextmanager
def open_cluster(settings: Settings) -> Iterator[Team]:
    """A team on a cluster of its own, with one node for each job."""
    from ray.cluster_utils import Cluster

    from lockstep.harness.jobs.campaign.cluster import RayTeam

    node = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        for _ in range(settings.jobs - 1):
            cluster.add_node(num_cpus=1)
        with RayTeam(settings, cluster.address, 0.25) as team:
            yield team
    finally:
        cluster.shutdown()


@contextmanager
def open_local(settings: Settings) -> Iterator[Team]:
    with LocalTeam(settings) as team:
        yield team


def count_cpu() -> float:
    """CPU seconds of this process and of all below it that are there."""
    parents: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            words = path.read_text().rpartition(")")[2].split()
            ticks = sum(map(int, words[11:15]))  # its own, and of children that are gone
            parents[int(path.parent.name)] = (
                int(words[1]),
                ticks / os.sysconf("SC_CLK_TCK"),
            )
    own, size = {os.getpid()}, 0
    while len(own) > size:
        size = len(own)
        own |= {pid for pid, (parent, _) in parents.items() if parent in own}
    return sum(parents[pid][1] for pid in own)


def measure(
    team: Team, settings: Settings, terms: Terms, settle: float
) -> tuple[float, float]:
    """Steps per second, and CPU seconds for a million steps."""
    offers = team.declare(settings.backends, lambda: None)
    pairs = []
    for name in settings.backends:
        declared = offers[name].event
        if not isinstance(declared, Declared):
            raise click.ClickException(f"{name}: {declared.describe()}")
        pairs += list_pairs(name, declared, settings)
    tasks = list(iter_fixed(terms, pairs))
    while len(team.seats) < settings.jobs:
        team.refresh(tasks)
        time.sleep(0.1)
    opened = time.monotonic()
    run(team, tasks[: settings.jobs])  # each seat starts its worker
    while time.monotonic() - opened < settle:
        run(team, tasks[: settings.jobs])
    started, before = time.monotonic(), count_cpu()
    steps = run(team, tasks)
    seconds, cpu = time.monotonic() - started, count_cpu() - before
    return steps / seconds, 1e6 * cpu / steps


def run(team: Team, tasks: Sequence[object]) -> int:
    steps = 0
    for _, _, event in team.run(deque(tasks), lambda: None):
        if isinstance(event, SliceDone):
            steps += event.counts.steps
    return steps


def compute_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


@click.command()
@click.option("--backend", "backends", multiple=True, default=["torch-cpu"])
@click.option("--kind", "kinds", multiple=True, default=["kv", "rotating", "causal"])
@click.option("--programs", default=3000, show_default=True, help="For each kind.")
@click.option("--slice", default=250, show_default=True, help="Programs in a shard.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--jobs", default=2, show_default=True)
@click.option("--settle", default=20.0, show_default=True, help="Seconds.")
@JSON
def main(
    backends: Sequence[str],
    kinds: Sequence[str],
    programs: int,
    slice: int,
    rounds: int,
    jobs: int,
    settle: float,
    path: Path | None,
) -> None:
    """Measures steps per second under Ray and in the local pool."""
    rates: dict[str, list[float]] = {"local": [], "ray": []}
    costs: dict[str, list[float]] = {"local": [], "ray": []}
    opened: dict[str, Callable[[Settings], object]] = {
        "local": open_local,
        "ray": open_cluster,
    }
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for number in range(rounds):
            terms = Terms(
                seed=number,
                backends=[*backends],
                kinds=[*kinds],
                programs=programs,
                slice=slice,
            )
            settings = terms.get_settings(Path(folder), jobs)
            for name in sorted(opened, reverse=bool(number % 2)):
                with opened[name](settings) as team:
                    rate, cost = measure(team, settings, terms, settle)
                rates[name].append(rate)
                costs[name].append(cost)
            rate, cost = (
                ", ".join(f"{name} {found[name][-1]:,.0f}" for name in opened)
                for found in (rates, costs)
            )
            click.echo(f"round {number}: steps/s: {rate}; CPU s: {cost}")
    ratio = compute_ratio(rates["ray"], rates["local"])
    work = compute_ratio(costs["local"], costs["ray"])
    click.echo(
        f"ray / local: {ratio:.3f} (of {rounds} rounds; at least {BAR}); by CPU seconds"
        f" {work:.3f}"
    )
    if path is not None:
        own = {"ray": version("ray"), "kv-lockstep": version("kv-lockstep")}
        document = {"versions": own, "jobs": jobs, "rates": rates, "ratio": ratio}
        document |= {"cpu_seconds": costs, "cpu_ratio": work}
        path.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(0 if ratio >= BAR else 1)


if __name__ == "__main__":
    main()
