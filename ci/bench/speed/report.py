"""Formats results as tables for the terminal, and as a file."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ci.bench.options import print_table
from ci.bench.speed.bars import Verdict
from ci.bench.speed.measure import Outcome, Role

PACKAGES = ("torch", "triton", "mlx", "mlx-lm", "transformers", "numpy")
FORMAT = "lockstep-speed/1"


def print_outcomes(framework: str, outcomes: Sequence[Outcome]) -> None:
    """Prints our time for each case, and the ratios of our time to the time of the
    fastest peer and to the limit."""
    title = f"{framework}: µs, and our time over that of the fastest peer and limit"
    columns = ["workload", "dtype", "heads", "ours", "/ peer", "/ limit"]
    print_table(title, columns, map(make_row, outcomes))


def make_row(outcome: Outcome) -> list[str]:
    case, roles = outcome.case, ("peer", "limit")
    ratios = (outcome.get_ratio(outcome.get_best(role)) for role in roles)
    time = f"{outcome.get_time('ours'):,.1f}"
    row = [case.format_work(), case.dtype, str(case.heads), time]
    return [*row, *map(format_ratio, ratios)]


def format_ratio(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    rows = [
        [
            verdict.bar,
            f"{verdict.bound:.2f}",
            f"{format_ratio(verdict.worst)} {'✓' if verdict.holds else '✗'}",
            verdict.case,
        ]
        for verdict in verdicts
    ]
    title = "bars: the worst ratio of all cases"
    print_table(title, ["bar", "at most", "worst", "in"], rows)


def make_report(
    device: str, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict], rounds: int
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "date": str(date.today()),
        "device": device,
        "machine": {"system": platform.system(), "processor": get_processor()},
        "python": sys.version.split()[0],
        "versions": {
            package: version(package)
            for package in PACKAGES
            if find_spec(package.replace("-", "_"))
        },
        "unit": "µs",
        "rounds": rounds,
        "cases": [describe(outcome) for outcome in outcomes],
        "bars": [{**vars(verdict), "holds": verdict.holds} for verdict in verdicts],
    }


def describe(outcome: Outcome) -> dict[str, Any]:
    case, roles = outcome.case, dict[str, Role](outcome.roles)
    ratios = {name: outcome.get_ratio(name) for name in roles}
    return {
        **{"workload": case.workload, "framework": case.framework},
        **{"dtype": case.dtype, "heads": case.heads, **case.sizes},
        "times": {name: round(outcome.get_time(name), 3) for name in roles},
        "ratios": {name: round(ratio, 4) for name, ratio in ratios.items() if ratio},
        "roles": roles,
        **({"held": dict(outcome.held)} if outcome.held else {}),
    }


def get_processor() -> str:
    """Returns the name of the processor, or its architecture if the name is unknown."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
