"""Measures what Ray costs a campaign: steps per second against the local pool.

    python ci/bench/campaign.py --backend torch-cpu --kind kv --kind rotating --rounds 5

A local pool with `--jobs` workers and a cluster of as many nodes on this machine, each
with one CPU, are open all the time and take turns: each runs the same few shards, for
some seconds, then the other does; the order changes with each round. So what else the
machine does meets both, as do the processes of Ray that only wait (some percent of a
core). What it takes to start is not counted: shards run for `--settle` seconds before.
Reported are the rates of each round, and the median of their ratios, which must be `BAR`
at least.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

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


def prepare(team: Team, settings: Settings, terms: Terms, settle: float) -> list[Any]:
    """Starts the workers of a team, and lets shards run for a while; lists all shards."""
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
    return tasks


def measure(team: Team, tasks: Sequence[object]) -> float:
    """Steps per second."""
    started = time.monotonic()
    return run(team, tasks) / (time.monotonic() - started)


def run(team: Team, tasks: Sequence[object]) -> int:
    steps = 0
    for _, _, event in team.run(deque(tasks), lambda: None):
        if isinstance(event, SliceDone):
            steps += event.counts.steps
    return steps


@click.command()
@click.option("--backend", "backends", multiple=True, default=["torch-cpu"])
@click.option("--kind", "kinds", multiple=True, default=["kv", "rotating", "causal"])
@click.option("--slice", default=250, show_default=True, help="Programs in a shard.")
@click.option("--shards", default=3, show_default=True, help="Of a worker, in a turn.")
@click.option("--rounds", default=20, show_default=True)
@click.option("--jobs", default=2, show_default=True)
@click.option("--settle", default=20.0, show_default=True, help="Seconds.")
@JSON
def main(
    backends: Sequence[str],
    kinds: Sequence[str],
    slice: int,
    shards: int,
    rounds: int,
    jobs: int,
    settle: float,
    path: Path | None,
) -> None:
    """Measures steps per second under Ray and in the local pool."""
    turn = jobs * shards
    terms = Terms(
        backends=[*backends],
        kinds=[*kinds],
        programs=slice * -(-rounds * turn // len(kinds)),
        slice=slice,
    )
    rates: dict[str, list[float]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = terms.get_settings(Path(folder), jobs)
        with LocalTeam(settings) as local, open_cluster(settings) as ray:
            teams = {"local": local, "ray": ray}
            for team in teams.values():
                tasks = prepare(team, settings, terms, settle)
            for number in range(rounds):
                own = tasks[number * turn : (number + 1) * turn]
                for name in sorted(teams, reverse=bool(number % 2)):
                    rates[name].append(measure(teams[name], own))
                each = ", ".join(f"{name} {rates[name][-1]:,.0f}" for name in teams)
                click.echo(f"round {number}: steps/s: {each}")
    ratio = statistics.median(
        ray / local for ray, local in zip(rates["ray"], rates["local"], strict=True)
    )
    click.echo(f"ray / local: {ratio:.3f} (of {rounds} rounds; at least {BAR})")
    if path is not None:
        versions = {"ray": version("ray"), "kv-lockstep": version("kv-lockstep")}
        document = {"versions": versions, "jobs": jobs, "rates": rates, "ratio": ratio}
        path.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(0 if ratio >= BAR else 1)


if __name__ == "__main__":
    main()
