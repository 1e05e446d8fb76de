"""Measures how many programs `lockstep faults` needs to find planted mistakes.

    python ci/bench/find.py --seeds 5 --json now.json --beside earlier.json

With each seed, the command searches for every mistake that is planted in the backends.
The table shows the number of programs and the seconds in which they run, as geometric
means over all mistakes and seeds. With `--beside`, the table also shows the ratios to the
same searches in an earlier file. If `--most` programs do not find a mistake, the mistake
counts as found by the next program, and is listed.

The mistakes with an even index and the mistakes with an odd index also have a row each:
if the generator is tuned on one half, the other half shows whether the generator has
improved.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # this file has the name of a package

import click  # noqa: E402

from ci.bench.options import JSON, print_table  # noqa: E402

Finding = Mapping[str, Any]
"""The id and index of a mistake, the seed, and the programs and seconds of the search."""


def search(seed: int, options: Sequence[str]) -> list[Finding]:
    """Runs `lockstep faults` with a seed.

    Raises:
        ClickException: a search could not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lockstep.harness", "faults", "--json"]
        command += [f"--seed={seed}", f"--failures={folder}", *options]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise click.ClickException(done.stdout + done.stderr)
    return [
        {
            "id": row["planted"]["id"],
            "index": index,
            "seed": seed,
            "found": row["found"],
            "programs": row["programs"] + (not row["found"]),
            "seconds": row["seconds"],
        }
        for index, row in enumerate(json.loads(done.stdout)["faults"])
    ]


def compute_mean(findings: Sequence[Finding], name: str) -> float:
    return geometric_mean(max(finding[name], 1e-4) for finding in findings)


def make_row(
    half: str, findings: Sequence[Finding], earlier: Sequence[Finding]
) -> list[str]:
    """Makes a row of means; also of ratios to the same searches in an earlier run."""
    pairs = [
        (now, before)
        for now in findings
        for before in earlier
        if (now["id"], now["seed"]) == (before["id"], before["seed"])
    ]
    found = sum(finding["found"] for finding in findings)
    cells = [half, f"{found} of {len(findings)}"]
    for name, factor in (("programs", 1), ("seconds", 1e3)):
        cell = f"{factor * compute_mean(findings, name):.1f}"
        if pairs:
            now, before = (compute_mean(some, name) for some in zip(*pairs, strict=True))
            cell += f" ({now / before:.2f})"
        cells.append(cell)
    return cells


@click.command()
@click.option("--backend", "names", multiple=True, default=["torch-cpu"])
@click.option("--seeds", type=click.IntRange(1), default=5)
@click.option("--first-seed", type=int, default=0)
@click.option("--fault", "ids", multiple=True, help="This mistake only; may be repeated.")
@click.option(
    "--most", type=click.IntRange(1), default=2000, help="Programs of a search."
)
@click.option("--beside", type=click.Path(exists=True, path_type=Path))
@JSON
def main(
    names: Sequence[str],
    seeds: int,
    first_seed: int,
    ids: Sequence[str],
    most: int,
    beside: Path | None,
    path: Path | None,
) -> None:
    """Measures how many programs it takes until mistakes are found."""
    options = [f"--backend={name}" for name in names] + [f"--fault={id}" for id in ids]
    findings: list[Finding] = []
    for seed in range(first_seed, first_seed + seeds):
        findings += search(seed, [*options, f"--programs={most}"])
    earlier = json.loads(beside.read_text())["findings"] if beside else []
    if path:
        path.write_text(json.dumps({"findings": findings}, indent=1) + "\n")
    halves = {
        "all": findings,
        "even": [finding for finding in findings if finding["index"] % 2 == 0],
        "odd": [finding for finding in findings if finding["index"] % 2 == 1],
    }
    rows = [make_row(half, some, earlier) for half, some in halves.items() if some]
    print_table("planted mistakes", ["half", "found", "programs", "ms"], rows)
    for finding in findings:
        if not finding["found"]:
            tried = f"seed {finding['seed']}, {finding['programs'] - 1:,} programs"
            click.echo(f"{finding['id']}: not found: {tried}")


if __name__ == "__main__":
    main()
