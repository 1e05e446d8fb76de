"""What `compare` has saved, for people: a table of Markdown, and a chart.

Both show our time over that of the fastest released cache, by the kind of work: a number
below 1 means that ours is faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

from ci.bench.speed.workloads import WORKLOADS

FRAMEWORKS = {"torch": "#d9534f", "mlx": "#3b7dd8"}
"""Framework → the colour of its dots, which can be told apart on white and on black."""

Ratios = Mapping[str, Mapping[str, Sequence[float]]]
"""Workload → framework → the ratio of each case to its fastest peer."""


def list_ratios(report: Mapping[str, Any]) -> Ratios:
    """Lists the cases that have a peer. report: see `report.make_report`."""
    found: dict[str, dict[str, list[float]]] = {}
    for case in report["cases"]:
        ratios = [case["ratios"][name] for name in list_peers(case)]
        if ratios:
            by_framework = found.setdefault(case["workload"], {})
            by_framework.setdefault(case["framework"], []).append(max(ratios))
    return {name: found[name] for name in WORKLOADS if name in found}


def list_peers(case: Mapping[str, Any]) -> list[str]:
    """Names the fastest peer of a case, if it has one."""
    peers = [name for name, role in case["roles"].items() if role == "peer"]
    return [min(peers, key=lambda name: case["times"][name])] if peers else []


def make_markdown(report: Mapping[str, Any], place: str) -> str:
    """Makes the table, and a line about where it was measured. place: of the files."""
    lines = [
        "| work | torch | its worst | MLX | its worst |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, found in list_ratios(report).items():
        cells = [format_ratios(found.get(framework, ())) for framework in FRAMEWORKS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    versions = report["versions"]
    names = [f"{name} {versions[name]}" for name in PEOPLE if name in versions]
    about = f"{report['machine']['processor']}, one thread, {report['date']}"
    return "\n".join(
        [*lines, "", f"{about}: {', '.join(names)}; [all {place}]({place})."]
    )


PEOPLE = ("torch", "transformers", "mlx", "mlx-lm")
"""Packages that the line names."""


def format_ratios(ratios: Sequence[float]) -> str:
    """The median and the worst, as two cells."""
    return f"{median(ratios):.2f} | {max(ratios):.2f}" if ratios else "– | –"


# --- the chart --------------------------------------------------------------------------


LEFT, RIGHT, TOP, ROW, BOTTOM = 120, 640, 44, 24, 34
LOW, HIGH = 1 / 64, 4.0
TICKS = {1 / 64: "1/64", 1 / 16: "1/16", 1 / 4: "1/4", 1 / 2: "1/2", 1.0: "1", 2.0: "2"}

STYLE = """text { font: 12px sans-serif; fill: #333 }
.tick { stroke: #ccc } .one { stroke: #333 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .tick { stroke: #444 } .one { stroke: #ddd } }"""


def make_svg(report: Mapping[str, Any]) -> str:
    """Draws a row for each workload, with a dot for each case."""
    ratios = list_ratios(report)
    height = TOP + ROW * len(ratios) + BOTTOM
    title = "Our time over that of the fastest released cache (less is better)"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {RIGHT + 24} {height}"'
        f' role="img" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<text x="8" y="18">{title}</text>',
    ]
    for at, (name, colour) in enumerate(FRAMEWORKS.items()):
        left = RIGHT - 110 + 60 * at
        parts.append(f'<circle cx="{left}" cy="14" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + 8}" y="18">{name}</text>')
    for ratio, words in TICKS.items():
        x, kind = place(ratio), "one" if ratio == 1 else "tick"
        end = height - BOTTOM
        parts.append(
            f'<line class="{kind}" x1="{x}" x2="{x}" y1="{TOP - 10}" y2="{end}"/>'
        )
        parts.append(f'<text x="{x}" y="{end + 18}" text-anchor="middle">{words}</text>')
    for row, (name, found) in enumerate(ratios.items()):
        y = TOP + ROW * row + ROW // 2
        parts.append(
            f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(name)}</text>'
        )
        for at, (framework, colour) in enumerate(FRAMEWORKS.items()):
            for ratio in sorted(found.get(framework, ())):
                parts.append(
                    f'<circle cx="{place(ratio)}" cy="{y - 4 + 8 * at}" r="3.5"'
                    f' fill="{colour}" fill-opacity="0.6"/>'
                )
    return "\n".join([*parts, "</svg>", ""])


def place(ratio: float) -> float:
    """The x of a ratio, on a scale of its logarithm; what is off the scale is at its
    end."""
    share = math.log(min(max(ratio, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return round(LEFT + share * (RIGHT - LEFT), 1)


# --- in results/README.md ---------------------------------------------------------------


BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
"""The document has the table and the chart between these lines."""

SECTION = """\
## How fast our caches are

How long a piece of an engine's work takes with our caches, over how long it takes with
the fastest released cache, in turns in one process: below 1, ours is faster. Each kind of
work has several cases (sizes, 8 heads of K and V or 2, float16 and float32); the columns
have their median, and the worst. `python ci/bench/caches.py compare --save` measures it.
"""


def splice(text: str, report: Mapping[str, Any], path: str) -> str:
    """Puts the section with the table and the chart into a document.

    Args:
        text: of the document, with both lines.
        report: what was measured.
        path: of its file, from the document.
    """
    chart = f"![Each dot is one case]({Path(path).with_suffix('.svg').as_posix()})"
    parts = BEGIN, SECTION, make_markdown(report, path), "", chart, END
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    found, count = re.subn(pattern, lambda _: "\n".join(parts), text, flags=re.S)
    if count != 1:
        raise ValueError(f"the document has {count} places for the table, not one")
    return found
