"""Makes a document from the results of `compare --save`.

For each machine, the document has a table and a chart. Both show our time divided by the
time of the fastest third-party cache, for each workload.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

from ci.bench.speed.workloads import WORKLOADS

FRAMEWORKS = {"torch": "#d9534f", "mlx": "#3b7dd8"}
"""Framework → the colour of its dots, distinguishable on white and on black."""

NAMED = ("torch", "transformers", "mlx", "mlx-lm")
"""Packages whose versions the document names."""

HEAD = """\
# How fast our caches are

The tables show the time of our caches divided by that of the fastest third-party cache:
below 1, our cache is faster. Both run in turns in one process. Each kind of work has
several cases (sizes, 2 or 8 heads of K and V, float16 and float32); the tables show the
median and the worst case. `python ci/bench/caches.py compare --save` measures the times
and writes this document; `ci/gpu` writes the results of GPUs to this folder.
"""

ALIGNED = "|---|--:|--:|--:|--:|"

Report = Mapping[str, Any]
Ratios = Mapping[str, Mapping[str, Sequence[float]]]
"""Workload → framework → for each case, our time / the fastest peer's time, ascending."""


def list_ratios(report: Report) -> Ratios:
    """Returns the ratios of our time to the time of the fastest peer; skips cases without
    a peer."""
    ratios: dict[str, dict[str, list[float]]] = {
        workload: {framework: [] for framework in FRAMEWORKS} for workload in WORKLOADS
    }
    for case in report["cases"]:
        peers = [name for name, role in case["roles"].items() if role == "peer"]
        if peers:
            fastest = min(peers, key=case["times"].__getitem__)
            by_framework = ratios[case["workload"]]
            by_framework[case["framework"]].append(case["ratios"][fastest])
    return {
        workload: {framework: sorted(rows) for framework, rows in by_framework.items()}
        for workload, by_framework in ratios.items()
        if any(by_framework.values())
    }


def make_page(reports: Mapping[str, Report]) -> str:
    """Returns the document in Markdown.

    Args:
        reports: the reports, by file name without suffix.
    """
    lines = [HEAD]
    for name, report in reports.items():
        lines += [f"## {report['machine']['processor']}", ""]
        lines += [
            "| work | torch | its worst | MLX | its worst |",
            "|---|--:|--:|--:|--:|",
        ]
        for workload, ratios in list_ratios(report).items():
            cells = (
                f"{median(rows):.2f} | {rows[-1]:.2f}" if rows else "– | –"
                for rows in ratios.values()
            )
            lines.append(f"| {workload} | {' | '.join(cells)} |")
        versions = report["versions"]
        packages = [f"{name} {versions[name]}" for name in NAMED if name in versions]
        about = (
            f"One thread, {report['date']}: {', '.join(packages)}; [all]({name}.json)."
        )
        lines += ["", about, "", f"![Each dot is one case]({name}.svg)", ""]
    return "\n".join(lines)


# --- the chart --------------------------------------------------------------------------

LEFT, RIGHT, TOP, ROW, BOTTOM = 120, 640, 44, 24, 34
LOW, HIGH = 1 / 64, 4.0
TICKS = {1 / 64: "1/64", 1 / 16: "1/16", 1 / 4: "1/4", 1 / 2: "1/2", 1.0: "1", 2.0: "2"}

STYLE = """text { font: 12px sans-serif; fill: #333 }
.tick { stroke: #ccc } .one { stroke: #333 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .tick { stroke: #444 } .one { stroke: #ddd } }"""


def make_svg(report: Report) -> str:
    """Draws a chart with a row for each workload and a dot for each case."""
    workloads = list_ratios(report)
    height = TOP + ROW * len(workloads) + BOTTOM
    title = "Our time over that of the fastest third-party cache (less is better)"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {RIGHT + 24} {height}"'
        f' role="img" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        write(8, 18, title),
    ]
    for number, (framework, colour) in enumerate(FRAMEWORKS.items()):
        left = RIGHT - 110 + 60 * number
        lines.append(f'<circle cx="{left}" cy="14" r="4" fill="{colour}"/>')
        lines.append(write(left + 8, 18, framework))
    for ratio, label in TICKS.items():
        x, style, end = scale(ratio), "one" if ratio == 1 else "tick", height - BOTTOM
        line = f'<line class="{style}" x1="{x}" x2="{x}" y1="{TOP - 10}" y2="{end}"/>'
        lines += [line, write(x, end + 18, label, "middle")]
    for row, (workload, ratios) in enumerate(workloads.items()):
        y = TOP + ROW * row + ROW // 2
        lines.append(write(LEFT - 12, y + 4, workload, "end"))
        for number, (framework, colour) in enumerate(FRAMEWORKS.items()):
            lines += [
                f'<circle cx="{scale(ratio)}" cy="{y - 4 + 8 * number}" r="3.5"'
                f' fill="{colour}" fill-opacity="0.6"/>'
                for ratio in ratios[framework]
            ]
    return "\n".join([*lines, "</svg>", ""])


def write(x: float, y: float, text: str, anchor: str = "") -> str:
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x}" y="{y}"{anchor}>{escape(text)}</text>'


def scale(ratio: float) -> float:
    """Returns the x coordinate of a ratio on a logarithmic scale from LOW to HIGH."""
    share = math.log(min(max(ratio, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return round(LEFT + share * (RIGHT - LEFT), 1)
