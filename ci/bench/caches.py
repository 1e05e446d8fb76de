"""Measures the speed of our caches, of third-party caches and of bare arrays.

    python ci/bench/caches.py compare
    python ci/bench/caches.py compare --framework torch --workload "window step"
    python ci/bench/caches.py compare --save

Compares our caches on torch and MLX with the caches of transformers and mlx-lm, and with
the limit: the time that the framework needs for the same bytes without a cache. All
contenders run in one process and take turns; the result is the median of the rounds'
ratios. The workloads are in `speed/workloads.py`, and the bars (the largest allowed
ratios) in `speed/bars.py`. The exit status is 1 if a bar is missed. The whole comparison,
with pools of a million cells, takes more than 20 minutes and 17 GB.

`--save` takes up to an hour. It writes the numbers to `results/PROCESSOR.json`, a chart
to the same folder, and `results/README.md`.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "ci" / "bench" / "results"
sys.path[0] = str(ROOT)

import click  # noqa: E402
from rich.console import Console  # noqa: E402

from ci.bench.options import JSON  # noqa: E402
from ci.bench.speed.bars import judge  # noqa: E402
from ci.bench.speed.measure import Case, Outcome, measure  # noqa: E402
from ci.bench.speed.page import make_page, make_svg  # noqa: E402
from ci.bench.speed.report import (  # noqa: E402
    FORMAT,
    make_report,
    print_outcomes,
    print_verdicts,
)
from ci.bench.speed.workloads import DIM, HEADS, WORKLOADS, K, list_cases  # noqa: E402

POOLS = (4 * K, 64 * K, K * K)
DTYPES = ("float16", "float32", "bfloat16")


def choose(name: str, values: Sequence[str], help: str) -> Callable[..., Any]:
    """Makes a command-line option that may be repeated."""
    kind = click.Choice(values)
    return click.option(f"--{name}", f"{name}s", multiple=True, type=kind, help=help)


@click.group()
def main() -> None:
    """Measures our caches."""


@main.command()
@choose("framework", ["torch", "mlx"], "Default: both on the CPU, torch on CUDA.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@choose("workload", WORKLOADS, "Not all.")
@choose("dtype", DTYPES, "Default: float16 and float32, on CUDA bfloat16 too.")
@choose("form", list(HEADS), "Default: both.")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1))
@click.option("--save", is_flag=True, help="Keep the numbers of all work on the CPU.")
@JSON
def compare(
    frameworks: Sequence[str],
    device: str,
    workloads: Sequence[str],
    dtypes: Sequence[str],
    forms: Sequence[str],
    rounds: int,
    save: bool,
    path: Path | None,
) -> None:
    """Ours beside third-party caches and beside the bare limit."""
    on_cuda = device == "cuda"
    if on_cuda:
        check_cuda(frameworks)
    chosen = frameworks or workloads or dtypes or forms
    if save and (path or on_cuda or chosen):
        raise click.UsageError(
            "--save cannot be used with other options: it saves all measurements on"
            " the CPU"
        )
    frameworks = frameworks or (("torch",) if on_cuda else ("torch", "mlx"))
    dtypes = dtypes or DTYPES[: 3 if on_cuda else 2]
    outcomes: list[Outcome] = []
    with Console().status("") as status:
        for case in list_all(frameworks, device, dtypes, forms or [*HEADS]):
            if not workloads or case.workload in workloads:
                status.update(f"{len(outcomes) + 1}: {case.describe()}")
                outcomes.append(measure(case, rounds))
                if path:  # keeps the results so far if the process is ended
                    write(path, make_report(device, outcomes, (), rounds))
                gc.collect()
    for framework in frameworks:
        cases = [each for each in outcomes if each.case.framework == framework]
        print_outcomes(framework, cases)
    # On a GPU, no bars apply; the bars for GPUs are in ci/bench/kernels.py.
    verdicts = [] if on_cuda else judge(outcomes, every=not chosen)
    if verdicts:
        print_verdicts(verdicts)
    report = make_report(device, outcomes, verdicts, rounds)
    if path:
        write(path, report)
    if save:
        keep(report)
    sys.exit(not all(verdict.holds for verdict in verdicts))


def check_cuda(frameworks: Sequence[str]) -> None:
    import torch

    if "mlx" in frameworks:
        raise click.UsageError("--framework mlx cannot be measured on CUDA; leave it out")
    if not torch.cuda.is_available():
        raise click.UsageError("torch finds no CUDA device here, so nothing was measured")


# --- the cases --------------------------------------------------------------------------


def list_all(
    frameworks: Sequence[str], device: str, dtypes: Sequence[str], forms: Sequence[str]
) -> Iterator[Case]:
    """Yields all cases; skips pools that need more than two thirds of the memory."""
    for framework in frameworks:
        for dtype in dtypes:
            for form in forms:
                works = open_works(framework, device, dtype, HEADS[form])
                cell = 2 * HEADS[form] * DIM * (4 if dtype == "float32" else 2)
                most = get_memory(device) * 2 // 3 // cell
                for cells in POOLS:
                    if cells >= most:
                        click.echo(f"not measured, too little memory: {cells:,} cells")
                fitting = [cells for cells in POOLS if cells < most]
                yield from list_cases(framework, dtype, HEADS[form], works, fitting)


def open_works(framework: str, device: str, dtype: str, heads: int) -> Any:
    """Makes the `Works` of a framework; imports only this framework."""
    if framework == "torch":
        from ci.bench.speed.on_torch import TorchWorks, prepare

        prepare()
        return TorchWorks(device, dtype, heads)
    from ci.bench.speed.on_mlx import MLXWorks

    return MLXWorks(device, dtype, heads)


def get_memory(device: str) -> int:
    """Returns the size of the device's memory in bytes."""
    if device == "cuda":
        import torch

        return torch.cuda.mem_get_info()[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# --- the numbers that stay --------------------------------------------------------------


def write(path: Path, report: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def keep(report: Mapping[str, Any]) -> None:
    """Writes the numbers and the chart of this machine, and the document about all
    machines."""
    name = re.sub(r"[^0-9A-Za-z]+", "-", report["machine"]["processor"]).strip("-")
    path = RESULTS / f"{name}.json"
    write(path, report)
    path.with_suffix(".svg").write_text(make_svg(report))
    (RESULTS / "README.md").write_text(make_page(load_reports()))
    click.echo(f"written to {path.relative_to(ROOT)}, and to the README beside it")


def load_reports() -> dict[str, Any]:
    """Returns the reports of all machines, by file name."""
    files = sorted(RESULTS.glob("*.json"))
    documents = {file.stem: json.loads(file.read_text()) for file in files}
    return {name: text for name, text in documents.items() if text["format"] == FORMAT}


if __name__ == "__main__":
    main()
