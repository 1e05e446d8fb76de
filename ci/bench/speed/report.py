"""Tables and files of what was measured."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table

from ci.bench.speed.bars import Verdict
from ci.bench.speed.measure import Outcome

PACKAGES = ("torch", "triton", "mlx", "mlx-lm", "transformers", "numpy")


def make_table(framework: str, outcomes: Sequence[Outcome]) -> Table:
    """A row for each case: our time, and ratios to the fastest others. Another one for
    each other way of ours that tells what it holds."""
    title = f"{framework}: µs, and our time over that of the fastest peer and limit"
    table = Table(title=title, title_justify="left")
    for name in ("workload", "dtype", "heads", "ours"):
        table.add_column(name, justify="left" if name == "workload" else "right")
    table.add_column("/ peer", justify="right")
    table.add_column("/ limit", justify="right")
    for outcome in outcomes:
        case, ours = outcome.case, outcome.get_best("ours")
        others = [outcome.get_best(role) for role in ("peer", "limit")]
        for name in [ours, *(name for name in outcome.held if name != ours)]:
            table.add_row(
                format_way(outcome, name),
                case.dtype,
                str(case.heads),
                f"{outcome.get_time(name):,.1f}" if name else "–",
                *(format_ratio(outcome.get_ratio(other, name or "")) for other in others),
            )
    return table


def format_way(outcome: Outcome, name: str | None) -> str:
    """The work, how it is done if not as usual, and the memory that is held."""
    text = outcome.case.format_work()
    if name in outcome.roles and outcome.roles[name] == "also":
        text += f", {name}"
    held = outcome.held.get(name or "")
    return f"{text}: {held / 1e6:,.1f} MB" if held is not None else text


def format_ratio(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def make_verdicts(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="bars: the worst ratio of all cases", title_justify="left")
    for name in ("bar", "at most", "worst", "in"):
        table.add_column(name, justify="left" if name in ("bar", "in") else "right")
    for verdict in verdicts:
        mark = "✓" if verdict.holds else "✗"
        row = (
            f"{verdict.bound:.2f}",
            f"{format_ratio(verdict.worst)} {mark}",
            verdict.case,
        )
        table.add_row(verdict.bar, *row)
    return table


def make_report(
    device: str, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict], rounds: int
) -> dict[str, Any]:
    return {
        "format": "lockstep-speed/1",
        "date": str(date.today()),
        "device": device,
        "machine": {"system": platform.system(), "processor": get_processor()},
        "python": sys.version.split()[0],
        "versions": dict(list_versions()),
        "unit": "µs",
        "rounds": rounds,
        "cases": [
            {
                "workload": outcome.case.workload,
                "framework": outcome.case.framework,
                "dtype": outcome.case.dtype,
                "heads": outcome.case.heads,
                **dict(outcome.case.place),
                "times": {
                    name: round(outcome.get_time(name), 3) for name in outcome.roles
                },
                "ratios": {
                    name: round(ratio, 4)
                    for name in outcome.roles
                    if (ratio := outcome.get_ratio(name)) is not None
                },
                "roles": dict(outcome.roles),
                **({"held": dict(outcome.held)} if outcome.held else {}),
            }
            for outcome in outcomes
        ],
        "bars": [{**vars(verdict), "holds": verdict.holds} for verdict in verdicts],
    }


def list_versions() -> Sequence[tuple[str, str]]:
    installed = [package for package in PACKAGES if find_spec(package.replace("-", "_"))]
    return [(package, version(package)) for package in installed]


def get_processor() -> str:
    """Its name, where the system says so."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
