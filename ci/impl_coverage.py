"""Lines and branches of our caches that the ci profile reaches: nearly all.

    python ci/impl_coverage.py                   slice by slice, until all is reached
    python ci/impl_coverage.py --kind trie --programs 250

Code that no program runs is checked by nobody. The programs are those of `lockstep check`
on torch-cpu and mlx-cpu. `UNREACHED` names what none of them can reach, and why. Exit
status 1 if something else is left after the last slice, or if a reason is out of date.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from linecache import getline
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import coverage

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

FOLDERS = "impl/shared", "impl/torch", "impl/mlx", "impl/prefix"

# What is imported below is measured from its first line on.
REACHED = coverage.Coverage(
    branch=True,
    source=[str(ROOT / folder) for folder in FOLDERS],
    data_file=None,
    config_file=False,
)
REACHED.start()

import click  # noqa: E402

from ci.work import list_work  # noqa: E402
from lockstep.harness.jobs.outcome import PROFILES, Settings  # noqa: E402

BACKENDS = "torch-cpu", "mlx-cpu"

EVERYTHING = "*"
TRITON = "a Triton kernel, or its launch: on a GPU (ci/gpu), or in Triton's interpreter"
GPU = "runs on a GPU only; see ci/gpu"
GRAPHS = "of steps that a CUDA graph replays; see tests/impl/test_torch_graphs.py"
DIRECT = "a guard for direct callers: the contract has no such config"

UNPUT = "a pass whose K and V were never put has no contents to compare"
SAVED = "a guard for direct callers: the caches of a program have one size"
ONE_FORM = "a guard for direct callers: all batches of a program have one form and config"
TOO_MANY = "a guard for direct callers: no row is asked for more tokens than it has"
STANDS = "what pad_left announced stands behind a refused update; programs have one call"
POSITIONS = "for models; the harness reads the offsets"
CLOSED = "a guard for direct callers: the name of a closed snapshot is unknown"
ODD = {
    "if dim % 2:": DIRECT,
    'raise MisuseError(f"a key of {dim} numbers has no pairs to turn")': DIRECT,
}

UNREACHED: Mapping[str, Mapping[str, str]] = {
    "impl/torch/graphs.py": {EVERYTHING: GRAPHS},
    "impl/torch/kernels/batches.py": {EVERYTHING: TRITON},
    "impl/torch/kernels/copies.py": {EVERYTHING: TRITON},
    "impl/torch/kernels/fused.py": {EVERYTHING: TRITON},
    "impl/torch/kernels/masks.py": {EVERYTHING: TRITON},
    "impl/torch/kernels/paged.py": {EVERYTHING: TRITON},
    "impl/torch/kernels/rounding.py": {EVERYTHING: TRITON},
    "impl/torch/kernels/tables.py": {EVERYTHING: TRITON},
    "impl/torch/kernels/turns.py": {EVERYTHING: TRITON},
    "impl/torch/kernels/__init__.py": {"choose": GPU},
    "impl/torch/kernels/plain.py": {
        "PlainKernels.place_fixed": GRAPHS,
        "if isinstance(index, Padded):": GRAPHS,
        "rows = (index.cells >= 0).nonzero()[:, 0]": GRAPHS,
        "keys, values = keys[..., rows, :], values[..., rows, :]": GRAPHS,
        "index = index.cells[rows]": GRAPHS,
    },
    "impl/torch/causal.py": {
        "if self.form is None:": UNPUT,
        "return": UNPUT,
    },
    "impl/mlx/causal.py": {"if self.form is None:": UNPUT, "return": UNPUT},
    "impl/torch/arrays.py": {
        "if isinstance(mask, str):": "for the caches of transformers",
        "return scaled_dot_product_attention(queries, keys, values, is_causal=True)": (
            "for the caches of transformers"
        ),
    },
    "impl/torch/rope.py": ODD,
    "impl/mlx/rope.py": ODD,
    "impl/mlx/backend.py": {"gpu": GPU},
    "impl/prefix/slots.py": {
        "if count < 1:": DIRECT,
        'raise MisuseError(f"count {count} is no number of slots; give 1 or more")': (
            DIRECT
        ),
    },
    "impl/shared/causal.py": {
        "if saved.table.shape[1] > self.cells.count:": SAVED,
        "raise MisuseError(": SAVED,
    },
    "impl/shared/cells.py": {
        "if not 0 < sequences <= MAX_SEQUENCES:": DIRECT,
        'raise MisuseError(f"{sequences} sequences; 1 … {MAX_SEQUENCES} are possible")': (
            DIRECT
        ),
    },
    "impl/shared/memory.py": {
        "if self.arrays is None:": CLOSED,
        'raise MisuseError(f"snapshot [{self.begin}, {self.end}) has been closed")': (
            CLOSED
        ),
        "if self.memory is None and self.arrays is None:": CLOSED,
        'raise MisuseError(f"snapshot [{self.begin}, {self.end}) was closed before")': (
            CLOSED
        ),
    },
    "impl/shared/rotating.py": {
        "if window < 1:": DIRECT,
        'raise MisuseError(f"window {window} holds no token")': DIRECT,
    },
    "impl/shared/wrapper.py": {
        "if not caches:": DIRECT,
        'raise MisuseError("a wrapper needs at least one cache")': DIRECT,
    },
    "impl/shared/batched.py": {
        "if max(self.left) >= length:": STANDS,
        "raise MisuseError(": STANDS,
        "if wrong or any(": TOO_MANY,
        'raise MisuseError(f"rollback: {list(counts)} of {list(self.lengths)} tokens")': (
            TOO_MANY
        ),
        "if times < 1:": DIRECT,
        'raise MisuseError(f"repeat: {times} times keeps no row")': DIRECT,
        "if type(other) is not type(self):": ONE_FORM,
        'raise MisuseError(f"extend: a {type(other).__name__} has other rows")': ONE_FORM,
        "if any(self.lengths):": DIRECT,
        'raise MisuseError("load: the batch has tokens; open another one")': DIRECT,
        "if len(found) > 1 or not found <= set(kinds):": ONE_FORM,
        "names = sorted(kind.__name__ for kind in found)": ONE_FORM,
        "if len({id(cache) for cache in caches}) < len(caches):": DIRECT,
        'raise MisuseError("stack: a cache twice; clone it first")': DIRECT,
    },
    "impl/shared/batched_state.py": {
        "if (mine.shape[1:], mine.dtype) != (its.shape[1:], its.dtype):": ONE_FORM,
        "raise MisuseError(": ONE_FORM,
        "if {array.shape[0] for array in arrays} != {rows}:": ONE_FORM,
        'raise MisuseError(f"load: the states are not those of {rows} rows")': ONE_FORM,
    },
    "impl/shared/batched_tokens.py": {
        "if window is not None and window < 1:": DIRECT,
        'raise MisuseError(f"window {window} holds no token")': DIRECT,
        "if len(shape) != 4 or shape[0] != len(self.lengths):": ONE_FORM,
        "raise MisuseError(": ONE_FORM,
        "if self.window != other.window:": ONE_FORM,
        'raise MisuseError(f"extend: windows of {self.window} and {other.window}")': (
            ONE_FORM
        ),
        "if None not in forms and forms[0][1:] != forms[1][1:]:": ONE_FORM,
        'raise MisuseError(f"extend: rows of the form {forms[1]} to {forms[0]}")': (
            ONE_FORM
        ),
        "if len(set(windows)) > 1:": ONE_FORM,
        'raise MisuseError(f"stack: different windows: {windows}")': ONE_FORM,
        "if len(forms) > 1:": ONE_FORM,
        'raise MisuseError(f"stack: caches of different forms: {[*forms]}")': ONE_FORM,
        'if saved["window"] != self.window:': ONE_FORM,
        "raise MisuseError("
        "f\"load: a window of {saved['window']}, not {self.window}\")": ONE_FORM,
        "if end is None or (end and not fits):": ONE_FORM,
        'lengths = tuple(saved["lengths"])': ONE_FORM,
        'raise MisuseError(f"load: keys are not those of rows of {lengths} tokens")': (
            ONE_FORM
        ),
    },
    "impl/shared/batched_list.py": {
        "if not parts:": DIRECT,
        'raise MisuseError("a list has at least one cache")': DIRECT,
        "if count < 0:": DIRECT,
        'raise MisuseError(f"trim: count {count} is negative")': DIRECT,
        "if len(self.parts) != len(other.parts):": ONE_FORM,
        "if set(counts) - {len(batches)}:": ONE_FORM,
        'raise MisuseError(f"stack: lists of {counts} caches, not of {len(batches)}")': (
            ONE_FORM
        ),
        "if len(saved) != len(self.parts):": ONE_FORM,
        "raise MisuseError(": ONE_FORM,
    },
    "impl/shared/layer.py": {
        "if len(keys.shape) != 4 or len(values.shape) != 4:": ONE_FORM,
        "raise MisuseError(": ONE_FORM,
    },
    "impl/torch/batched.py": {
        "return self.place(length).view(-1, length)": POSITIONS,
    },
    "impl/mlx/batched.py": {
        "return mx.array(self.place(length)).reshape(-1, length)": POSITIONS,
    },
    "impl/torch/backend.py": {
        "cuda": GPU,
        "wait_within": GPU,
        "warm_up": GPU,
        "is_fatal": "asked only of an exception, and no program raises one here",
        "triton": TRITON,
    },
}
"""File → function, line or EVERYTHING → why no program reaches it on a CPU."""


class Place(NamedTuple):
    """A line that was not reached, or a branch from it.

    Attributes:
        function: the function that it is in; empty for none.
        target: the line that the branch goes to; None if the line itself is meant.
    """

    file: str
    function: str
    line: int
    target: int | None

    @property
    def text(self) -> str:
        return getline(str(ROOT / self.file), self.line).strip()

    def list_names(self) -> tuple[str, str, str]:
        """Lists the keys of `UNREACHED` that would explain it."""
        return EVERYTHING, self.function, self.text

    def is_explained(self) -> bool:
        return any(name in UNREACHED.get(self.file, {}) for name in self.list_names())

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}  {self.text}"
        if self.target is None:
            return text
        end = "the end" if self.target < 0 else f"line {self.target}"
        return f"{text}  never goes to {end}"


def measure() -> dict[str, Any]:
    """Returns the files of coverage's report, by path below the root."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        REACHED.json_report(outfile=str(path))
        files: dict[str, Any] = json.loads(path.read_text())["files"]
    return {
        Path(name).resolve().relative_to(ROOT).as_posix(): report
        for name, report in files.items()
    }


def list_missed(files: Mapping[str, Any]) -> Iterator[Place]:
    """Iterates over the lines and branches that were not reached."""
    for file, report in sorted(files.items()):
        for function, own in report["functions"].items():
            missed = own["missing_lines"]
            yield from (Place(file, function, line, None) for line in missed)
            for line, target in own["missing_branches"]:
                if line not in missed:
                    yield Place(file, function, line, target)


def list_stale(missed: Sequence[Place]) -> Iterator[str]:
    """Iterates over the keys of `UNREACHED` that explain nothing: reached, or gone."""
    used = {(place.file, name) for place in missed for name in place.list_names()}
    for file, names in UNREACHED.items():
        yield from (f"{file}: {name}" for name in names if (file, name) not in used)


@click.command()
@click.option("--backend", "names", multiple=True, default=BACKENDS, show_default=True)
@click.option("--kind", "kinds", multiple=True, help="Only this kind.")
@click.option("--programs", default=PROFILES["ci"].programs, show_default=True)
def main(names: Sequence[str], kinds: Sequence[str], programs: int) -> None:
    """Runs the ci profile until it has reached every line and branch of our caches."""
    started, works = time.monotonic(), list(list_work(names, kinds))
    files: Mapping[str, Any] = {}
    missed: list[Place] = []
    left: list[str] = []
    ran = 0
    for number, size in Settings(programs=programs).list_slices():
        for work in works:
            work.check(number, size, size)
        files, ran = measure(), ran + size
        missed = list(list_missed(files))
        left = [str(place) for place in missed if not place.is_explained()]
        seconds = time.monotonic() - started
        print(f"{ran} programs of a kind, {seconds:.0f} s: {len(left)} left", flush=True)
        if not left:
            break
    REACHED.stop()
    stale = list(list_stale(missed))
    report(files, left, stale)
    sys.exit(1 if left or stale else 0)


def report(files: Mapping[str, Any], left: Sequence[str], stale: Sequence[str]) -> None:
    """Prints how much of each file was reached, and what is left."""
    for file, numbers in sorted(files.items()):
        share = numbers["summary"]["percent_covered"]
        why = UNREACHED.get(file, {}).get(EVERYTHING, "")
        print(f"{share:6.1f} %  {file}  {why}".rstrip())
    print(f"\n{len(left)} lines and branches left", *left, sep="\n  ")
    if stale:
        print("\nexplained, but reached or gone", *stale, sep="\n  ")


if __name__ == "__main__":
    main()
