"""How fast the harness checks, on one core: steps per second and where the time goes.

    python ci/bench/harness.py --backend torch-cpu --backend mlx-cpu

For each backend and kind, in one process and interleaved, medians of several rounds:

* hypothesis, plain: whole programs, drawn and checked, as `lockstep check` does it;
* checked: the same programs, drawn beforehand, checked;
* bare: the same operations on backend and reference without looking at what comes back
  (the arrays are made and waited for); `ratio` is checked time / bare time.

The write-ahead record is kept in all but the bare run.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
sys.path[0] = str(Path(__file__).resolve().parents[2])  # this file has a package's name

import click  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from harness.backend import Backend  # noqa: E402
from harness.contracts import CONTRACTS  # noqa: E402
from harness.contracts.layer.subject import LayerSubject  # noqa: E402
from harness.contracts.prefix.slots_subject import SlotsSubject  # noqa: E402
from harness.contracts.prefix.subject import ConversationSubject  # noqa: E402
from harness.contracts.unified.model import IMAGE, UnifiedModel  # noqa: E402
from harness.contracts.unified.subject import UnifiedSubject  # noqa: E402
from harness.fronts import FRONTS  # noqa: E402
from harness.fronts.draw import Drawer  # noqa: E402
from harness.ledger import load_ledger  # noqa: E402
from harness.program import Program  # noqa: E402
from harness.record import Record  # noqa: E402
from harness.registry import load  # noqa: E402
from harness.run import Coverage, run  # noqa: E402
from reference.encoder import EncoderCache  # noqa: E402
from reference.recurrent import RecurrentCache  # noqa: E402

PROGRAMS, ROUNDS = 150, 5
KINDS = [kind for rules in CONTRACTS.values() for kind in rules.kinds]


class Bench:
    """One backend and kind."""

    def __init__(self, backend: Backend, kind: str, record: Record) -> None:
        self.backend, self.kind, self.record = backend, kind, record
        (contract,) = [name for name, rules in CONTRACTS.items() if kind in rules.kinds]
        declared = backend.contracts[contract][kind]
        avoid = load_ledger(backend.ledger, backend.name)
        self.drawer = Drawer(contract, kind, declared, backend.dtypes, avoid)
        self.bare = BARE[kind if kind in BARE else contract]
        self.coverage: Coverage = Counter()
        self.programs: list[Program] = []
        FRONTS["plain"](PROGRAMS, 0, self.drawer.draw, self.programs.append)

    def check(self, program: Program) -> None:
        self.record.begin(program, self.backend.name)
        result = run(
            program, self.backend, coverage=self.coverage, on_step=self.record.step
        )
        if result.divergence is not None:
            raise SystemExit(f"{self.backend.name} diverges: {result.divergence}")
        self.steps += result.steps

    def run_front(self, front: str, round_number: int) -> None:
        FRONTS[front](PROGRAMS, round_number, self.drawer.draw, self.check)

    def run_checked(self) -> None:
        for program in self.programs:
            self.check(program)

    def run_bare(self) -> None:
        """The operations and nothing else."""
        for program in self.programs:
            rules = program.rules
            model = rules.open_model(program.config)
            subject = self.bare(
                self.backend, program.config, program.count_tokens(), False
            )
            for op in program.ops:
                operation = rules.operations[op["op"]]
                operation.expect(op, model)
                operation.observe(op, subject, model)
                model.tag += operation.tokens(op)
                self.steps += 1

    def time(self, work: Callable[[], None]) -> float:
        """Microseconds a step."""
        self.steps = 0
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) / self.steps * 1e6

    def measure(self) -> dict[str, float]:
        times: dict[str, list[float]] = {}
        for number in range(ROUNDS):
            for name, work in (
                ("hypothesis", lambda: self.run_front("hypothesis", number)),  # noqa: B023
                ("plain", lambda: self.run_front("plain", number)),  # noqa: B023
                ("checked", self.run_checked),
                ("bare", self.run_bare),
            ):
                times.setdefault(name, []).append(self.time(work))
        return {name: median(values) for name, values in times.items()}


class BareLayer(LayerSubject):
    """Calls the backend as the harness does, waits for the arrays, and looks away."""

    def update(
        self, name: str, tags: Sequence[int], tokens: Sequence[Any]
    ) -> dict[str, Any]:
        cache, length = self.get(name), len(tags)
        if self.config["kind"] == "state":
            self.recurrence.advance(cache, tags)
            return {}
        padding = self.config["mask_padding"]
        keys, values = self.reader.feed(tags)
        mask = cache.make_mask(length, -(-length // padding) * padding)
        keys, values = cache.update(keys, values)
        self.wait(
            keys, values, *([] if mask is None or isinstance(mask, str) else [mask])
        )
        return {}

    def read_all(self, operation: str, name: str, older: Sequence[Any]) -> dict[str, Any]:
        pair = self.get(name).state() if operation == "state" else self.get(name).view()
        if pair is not None:
            self.wait(*pair)
        return {}

    def wait(self, *arrays: Any) -> None:
        for array in arrays:
            self.backend.arrays.to_numpy(array)


class BareUnified(UnifiedSubject):
    """The same for a cache of many sequences: put and get in every layer."""

    def pass_layer(
        self, which: int, layer: int, op: Any, model: UnifiedModel
    ) -> dict[str, Any]:
        part, batch = self.get_part(which), model.batch
        assert batch is not None
        reader = self.get_reader(model.kinds[which], which, layer)
        tags = range(model.tag, model.tag + len(batch))
        if isinstance(model.parts[which], EncoderCache):
            if op["multimodal"]:
                image = range(tags.stop, tags.stop + IMAGE)
                part.put(layer, *reader.feed(image, [0] * IMAGE))
            self.wait(*(part.get(layer) or ()))
            return {}
        part.put(layer, *reader.feed(tags, batch.positions))
        self.wait(*part.get(layer))
        if isinstance(model.parts[which], RecurrentCache) and not op["reserve"]:
            self.advance(which, layer, batch, model.tag)
        return {}

    def get(self, which: int, layer: int, model: UnifiedModel) -> dict[str, Any]:
        self.wait(*(self.get_part(which).get(layer) or ()))
        return {}

    def wait(self, *arrays: Any) -> None:
        for array in arrays:
            self.backend.arrays.to_numpy(array)


class BareConversation(ConversationSubject):
    """A session or a trie over such layers."""

    layer_type = BareLayer


class BareSlots(SlotsSubject):
    """Slots over such a cache."""

    unified_type = BareUnified


BARE: dict[str, Any] = {
    "layer": BareLayer,
    "unified": BareUnified,
    "prefix": BareConversation,
    "slots": BareSlots,
}


def get_memory() -> int:
    """The largest resident size of this process so far, in MB."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size // (1 << 20 if sys.platform == "darwin" else 1 << 10)


@click.command()
@click.option("--backend", "names", multiple=True, default=["torch-cpu", "mlx-cpu"])
@click.option("--kind", "kinds", multiple=True, default=KINDS)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write them there.")
def main(names: Sequence[str], kinds: Sequence[str], path: Path | None) -> None:
    """Measures checked steps per second on one core."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows, versions = [], {}
    with tempfile.TemporaryDirectory() as folder:
        record = Record(Path(folder) / "record.json")
        for name in names:
            backend = load(name)
            versions.update(backend.versions)
            for kind in kinds:
                times = Bench(backend, kind, record).measure()
                rows.append({"backend": name, "kind": kind, **times})
        record.close()
    show(rows)
    print(f"memory of this process: {get_memory()} MB")
    if path:
        report = {"versions": versions, "unit": "µs a step", "rows": rows}
        path.write_text(json.dumps(report, indent=1) + "\n")


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title="checked steps per second, one core", title_justify="left")
    for name in ("backend", "kind", "hypothesis", "plain", "checked", "bare", "ratio"):
        table.add_column(name, justify="left" if name in ("backend", "kind") else "right")
    for row in rows:
        rates = [f"{1e6 / row[name]:,.0f}" for name in ("hypothesis", "plain")]
        rates += [f"{1e6 / row[name]:,.0f}" for name in ("checked", "bare")]
        ratio = f"{row['checked'] / row['bare']:.2f}"
        table.add_row(row["backend"], row["kind"], *rates, ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
