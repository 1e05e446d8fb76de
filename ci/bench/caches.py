"""Measures the speed of our caches: beside released ones, and by the size of their pool.

    python ci/bench/caches.py compare
    python ci/bench/caches.py compare --framework torch --workload "window step"
    python ci/bench/caches.py compare --save

Ours on torch and MLX beside those of transformers and mlx-lm, and beside the
bare limit: what the framework takes for the same bytes without a cache around it. In one
process, in turns; what counts is the median of the rounds' ratios. The work is in
`speed/workloads.py`, the bars in `speed/bars.py`. Exit status 1 if a bar is missed. In
all, with pools of a million cells, it takes more than 20 minutes and 17 GB.

`--save` keeps the numbers as `results/PROCESSOR.json` with a chart beside them, and
writes the table into `results/README.md`. That takes up to an hour; if it is cut off, the
same command goes on where it stopped.
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
UNFINISHED = ROOT / "build" / "speed.json"
sys.path[0] = str(ROOT)

import click  # noqa: E402
from rich.console import Console  # noqa: E402

from ci.bench.options import JSON  # noqa: E402
from ci.bench.speed import report, results  # noqa: E402
from ci.bench.speed.bars import Verdict, judge  # noqa: E402
from ci.bench.speed.measure import Case, Outcome, measure  # noqa: E402
from ci.bench.speed.progress import Progress  # noqa: E402
from ci.bench.speed.workloads import DIM, HEADS, WORKLOADS, K, list_cases  # noqa: E402
from ci.sources import hash_folders  # noqa: E402

POOLS = (4 * K, 64 * K, K * K)
DTYPES = ("float16", "float32", "bfloat16")


def choose(name: str, values: Sequence[str], help: str) -> Callable[..., Any]:
    """An option that may be given several times."""
    kind = click.Choice(values)
    return click.option(f"--{name}", f"{name}s", multiple=True, type=kind, help=help)


@click.group()
def main() -> None:
    """Measures our caches."""


@main.command()
@choose("framework", ["torch", "mlx"], "Default: both on the CPU, torch on CUDA.")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True
)
@choose("workload", WORKLOADS, "Not all.")
@choose("dtype", DTYPES, "Default: float16 and float32, on CUDA bfloat16 too.")
@choose("form", list(HEADS), "Default: both.")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1))
@click.option(
    "--cells",
    default=POOLS[-1],
    show_default=True,
    type=click.IntRange(POOLS[0]),
    help="Of the largest pool.",
)
@click.option(
    "--save",
    "is_kept",
    is_flag=True,
    help="Keep the numbers of all work on the CPU. If that is cut off, it goes on where"
    " it stopped, as long as machine, versions, rounds and code are the same.",
)
@JSON
def compare(
    frameworks: Sequence[str],
    device: str,
    workloads: Sequence[str],
    dtypes: Sequence[str],
    forms: Sequence[str],
    rounds: int,
    cells: int,
    is_kept: bool,
    path: Path | None,
) -> None:
    """Ours beside released caches and beside the bare limit."""
    on_cuda = device == "cuda"
    if on_cuda:
        check_cuda(frameworks)
    if is_kept and (path or on_cuda or frameworks or workloads or dtypes or forms):
        raise click.UsageError("--save keeps all on the CPU: give no other option to it")
    asked = frameworks
    frameworks = asked or (("torch",) if on_cuda else ("torch", "mlx"))
    precisions = dtypes or DTYPES[: 3 if on_cuda else 2]
    pools = [size for size in POOLS if size <= cells]
    outcomes: list[Outcome] = []
    console = Console()
    measure_case = measure
    if is_kept:
        progress = Progress(UNFINISHED, describe_run(rounds))
        console.print(progress.describe())
        measure_case = progress.measure

    def save(verdicts: Sequence[Verdict] = ()) -> None:
        if path:
            document = report.make_report(device, outcomes, verdicts, rounds)
            path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")

    with console.status("") as status:
        for framework in frameworks:
            for case in list_all(
                framework, device, precisions, forms or list(HEADS), pools
            ):
                if not workloads or case.workload in workloads:
                    status.update(f"{len(outcomes) + 1}: {case.describe()}")
                    outcomes.append(measure_case(case, rounds))
                    save()  # whoever ends this keeps what there is
                    gc.collect()
    for framework in frameworks:
        own = [outcome for outcome in outcomes if outcome.case.framework == framework]
        console.print(report.make_table(framework, own))
    # On a GPU times are measured; ci/bench/kernels.py has its bars.
    every = not (asked or workloads or dtypes or forms)
    verdicts = [] if on_cuda else judge(outcomes, every)
    if verdicts:
        console.print(report.make_verdicts(verdicts))
    save(verdicts)
    if is_kept:
        keep(report.make_report(device, outcomes, verdicts, rounds))
        UNFINISHED.unlink()
    sys.exit(not all(verdict.holds for verdict in verdicts))


def describe_run(rounds: int) -> dict[str, Any]:
    """What the numbers of a run depend on."""
    whole = report.make_report("cpu", (), (), rounds)
    about = {name: whole[name] for name in ("machine", "python", "versions", "rounds")}
    return {**about, "code": hash_folders(ROOT, ("impl", "ci/bench"))}


def keep(document: Mapping[str, Any]) -> None:
    """Writes the numbers and the chart, and puts the table into results/README.md."""
    name = re.sub(r"[^0-9A-Za-z]+", "-", document["machine"]["processor"]).strip("-")
    path, document_path = RESULTS / f"{name}.json", RESULTS / "README.md"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    path.with_suffix(".svg").write_text(results.make_svg(document))
    text = results.splice(document_path.read_text(), document, path.name)
    document_path.write_text(text)
    click.echo(f"written to {path.relative_to(ROOT)} and {document_path.name} beside it")


def check_cuda(frameworks: Sequence[str]) -> None:
    import torch

    if "mlx" in frameworks:
        raise click.UsageError("on CUDA only torch is measured: leave out mlx")
    if not torch.cuda.is_available():
        raise click.UsageError("torch finds no CUDA device here: not measured on a GPU")


def list_all(
    framework: str,
    device: str,
    dtypes: Sequence[str],
    forms: Sequence[str],
    pools: Sequence[int],
) -> Iterator[Case]:
    for dtype in dtypes:
        for form in forms:
            heads = HEADS[form]
            side = open_side(framework, device, dtype, heads)
            width = 4 if dtype == "float32" else 2
            room = [
                cells
                for cells in pools
                if 2 * cells * heads * DIM * width < get_room(device)
            ]
            for cells in set(pools) - set(room):
                click.echo(f"not measured, too little memory: {cells:,} cells of {dtype}")
            yield from list_cases(framework, dtype, heads, side, room)


def open_side(framework: str, device: str, dtype: str, heads: int) -> Any:
    """Imports only what is asked for."""
    if framework == "torch":
        from ci.bench.speed.on_torch import TorchSide, prepare

        prepare()
        return TorchSide(device, dtype, heads)
    from ci.bench.speed.on_mlx import MLXSide

    return MLXSide(device, dtype, heads)


def get_room(device: str) -> int:
    """Bytes that a pool may take: two thirds of the device's memory."""
    if device == "cuda":
        import torch

        return torch.cuda.mem_get_info()[1] * 2 // 3
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 2 // 3


if __name__ == "__main__":
    main()
