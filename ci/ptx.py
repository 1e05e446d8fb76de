"""Compiles every Triton kernel without a GPU, and reports properties of the machine code.

    python ci/ptx.py [--target 90] [--ptx DIR] [--json FILE]

The kernels are compiled with the arguments of a cache with 32 layers and 8 heads of
dimension 128, but nothing is launched. The report lists the registers, the spills and the
accesses of global memory of each kernel, by bytes per thread. The exit status is 1 if a
kernel spills, or if a kernel in `WIDE` has no access of 16 bytes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])
os.environ.pop("TRITON_INTERPRET", None)  # before triton is imported

import click  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from ci.bench.options import print_table  # noqa: E402
from lockstep.impl.torch.kernels import Spans, Table  # noqa: E402
from lockstep.impl.torch.kernels.fused import TritonKernels  # noqa: E402
from lockstep.impl.torch.rope import Rope  # noqa: E402

LAYERS, HEADS, DIM, CELLS, ROWS = 32, 8, 128, 1 << 16, 8192
META = torch.device("meta")
BFLOAT16 = torch.empty(0, dtype=torch.bfloat16, device=META)

WIDE = ("put", "gather", "mask", "turn", "attend")
"""Launches whose accesses must be of 16 bytes; those of permuted values cannot all be."""

ACCESS = re.compile(r"\b(LDG|STG)\.E((?:\.\w+)*)")
SPILL = re.compile(r"\b(?:LDL|STL)\b")


class NoDriver:
    """Replaces the driver of a GPU; has the methods that the compiler calls."""

    def __init__(self, target: int) -> None:
        self.target = GPUTarget("cuda", target, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def list_launches(kernels: TritonKernels) -> Iterator[tuple[str, Callable[[], Any]]]:
    def make(*shape: int) -> torch.Tensor:
        return BFLOAT16.new_empty((LAYERS, 1, HEADS, *shape))

    pools = make(CELLS, DIM), make(CELLS, DIM)
    tokens = make(ROWS, DIM), make(ROWS, DIM)
    across = pools[0], make(DIM, CELLS)
    index = torch.empty(ROWS, dtype=torch.int64, device=META)
    table = torch.empty((2, CELLS), dtype=torch.int64, device=META)
    limits = torch.empty((3, 512), dtype=torch.int64, device=META)
    rope = Rope((1e4,), LAYERS, DIM, META)
    out = BFLOAT16.new_empty((512, CELLS))
    far, near = Table(table), Table(table, True, True)
    yield "put", lambda: kernels.scatter(pools, tokens, index, False)
    yield "put, permuted", lambda: kernels.scatter(across, tokens, index, True)
    yield "gather", lambda: kernels.gather(pools, index, False)
    yield "gather, permuted", lambda: kernels.gather(across, index, True)
    yield "mask", lambda: kernels.mask(near, limits, 0, out)
    yield "mask, alone", lambda: kernels.mask(near, limits, 0, out, True)
    yield "mask, 64 bits", lambda: kernels.mask(far, limits, 0, out)
    yield "mask, float32", lambda: kernels.mask(near, limits, 0, out.float())
    ends, bools = limits[0], BFLOAT16.new_empty(0, dtype=torch.bool)
    yield "see", lambda: kernels.see(ends, ends, 1, (0, CELLS), None, bools)
    yield "see, ring", lambda: kernels.see(ends, ends, 1, (0, CELLS), CELLS, BFLOAT16)
    blocks = torch.empty((32, 256), dtype=torch.int32, device=META)
    spans = Spans(blocks, blocks[:, 0], blocks[:, 1], 16, 16, 4096)
    pool, queries = (pools[0][0], pools[1][0]), BFLOAT16.new_empty((1, 32, 32, DIM))
    yield "attend", lambda: kernels.attend(queries, pool, spans)
    yield "turn", lambda: kernels.turn(pools[0], index, rope, -3)
    yield "update", lambda: kernels.update(table, limits)


def compile_launches(target: int) -> Iterator[tuple[str, Any]]:
    """Yields the name and the compiled kernel of each launch."""
    compiled: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **names: Any) -> Any:
        compiled.append(run(self, *args, grid=grid, warmup=True, **names))

    triton.runtime.driver.set_active(NoDriver(target))
    JITFunction.run = compile_only
    try:
        for name, launch in list_launches(TritonKernels()):
            compiled.clear()
            launch()
            yield name, compiled[0]
            for number, more in enumerate(compiled[1:], 2):
                yield f"{name}, {number}", more
    finally:
        JITFunction.run = run


def describe(name: str, kernel: Any) -> dict[str, Any]:
    """Returns registers, spills, shared memory and accesses of the machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        command = [tool, "-res-usage", "-sass", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers = re.search(r"\bREG:(\d+)", said)
    assert registers is not None, said
    accesses = Counter(get_width(access) for access in ACCESS.findall(said))
    return {
        "launch": name,
        "registers": int(registers[1]),
        "spills": len(SPILL.findall(said)),
        "shared": kernel.metadata.shared,
        "accesses": dict(sorted(accesses.items())),
    }


def get_width(access: tuple[str, str]) -> str:
    """Returns the kind and the bytes of an access: "load 16" for LDG.E.128, "store 4" for
    STG.E."""
    kind, suffixes = access
    bits = re.findall(r"\d+", suffixes) or ["32"]
    return f"{'load' if kind == 'LDG' else 'store'} {int(bits[-1]) // 8}"


def is_bad(row: dict[str, Any]) -> bool:
    wide = {"load 16", "store 16"} if row["launch"] != "mask" else {"store 16"}
    lacks = row["launch"] in WIDE and not wide <= set(row["accesses"])
    return row["spills"] > 0 or lacks


@click.command()
@click.option("--target", default=90, show_default=True, help="Compute capability × 10.")
@click.option("--ptx", "folder", type=click.Path(path_type=Path), help="Keep it there.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write it there.")
def main(target: int, folder: Path | None, path: Path | None) -> None:
    """Compiles every kernel, and says what came out."""
    rows = []
    for name, kernel in compile_launches(target):
        rows.append(describe(name, kernel))
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name.replace(', ', '-')}.ptx").write_text(kernel.asm["ptx"])
    cells = []
    for row in rows:
        numbers = [str(row[name]) for name in ("registers", "spills", "shared")]
        widths = (f"{count} × {name}" for name, count in row["accesses"].items())
        cells.append([row["launch"], *numbers, ", ".join(widths)])
    columns = ["launch", "registers", "spills", "shared", "accesses"]
    print_table(f"compiled for sm_{target}", columns, cells)
    if path:
        path.write_text(json.dumps({"target": target, "rows": rows}, indent=1) + "\n")
    sys.exit(any(map(is_bad, rows)))


if __name__ == "__main__":
    main()
