"""How fast and how good prefix caches are, and whether they give back what they take.

    python ci/bench/prefix.py begin
    python ci/bench/prefix.py day
    python ci/bench/prefix.py leaks

begin: the time of Trie.begin with 100, 1,000 and 10,000 prompts of 2,000 tokens stored.
They begin with one of four system prompts (200, 500, 1,000, 1,500 tokens). A request has
500, 2,000 or 8,000 tokens and is a

* repeat: as far as it goes, or as far as they go, the tokens of a stored prompt;
* edge: parts from a stored prompt inside an edge of the tree;
* miss: has nothing in common with what is stored.

Between two measurements the request is cancelled, unread, so that there is a node where
it parted. One kv layer: with dim 1 its contents, 8 bytes for a token, hardly count; with
dim 8 begin copies 64 bytes for each reused token that the layer does not hold already.
Sizes are measured in turns, with the garbage collector on. Exit status 1 if a median for
2,000 tokens is over 2 ms.

day: the requests of `day.py`, one after the other, on a trie with a byte limit; four
layers: kv, rotating (512), state, kv. K, V and states are numbers computed from all
tokens so far, 64 bits for each token and layer, so that after every begin all that the
layers hold is compared with what computing from scratch gives. The oracle is the
`Simulation` of `day.py`, which reuses all that the rules allow under the same limit.
Exit status 1 if anything was wrong, reuse is below 0.98 of the oracle's, or the limit was
exceeded by more than what it protects. The time of updates includes the copies of what
was put aside. All times are until the arrays are there.

leaks: operations at random, on a trie with a tiny limit and on a session. Exit status 1
if, in the second half, there are 1.5 times as many live snapshots (that the garbage
collector finds) or bytes as in the first; if the process grows after the first quarter;
if at any time the open snapshots take other bytes than are counted, or there are closed
ones; or if anything is left after free.
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
sys.path[0] = str(Path(__file__).resolve().parents[2])

import click  # noqa: E402
import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from ci.bench import day as days  # noqa: E402
from ci.bench.day import Kind, Request, Simulation, Tokens  # noqa: E402
from harness.backend import Backend  # noqa: E402
from harness.contracts import CONTRACTS  # noqa: E402
from harness.registry import load  # noqa: E402
from impl.prefix.session import Session  # noqa: E402
from impl.prefix.trie import Trie  # noqa: E402
from impl.shared.memory import Snapshot  # noqa: E402

Floats = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint64]
Times = dict[str, list[float]]

MILLISECONDS = 2.0
"""The most that begin may take, by the median, for 2,000 tokens."""

RATIO = 0.98
"""The least share of the oracle's reuse."""


def open_layer(backend: Backend, kind: str, **fields: Any) -> Any:
    rules, declared = CONTRACTS["layer"], backend.contracts["layer"][kind]
    config = rules.get_plain_config(kind, declared, backend.dtypes)
    return backend.open({**config, "step": 256, "poison": False, **fields})


def wait(backend: Backend, arrays: Any) -> None:
    """Until the numbers are there."""
    for array in arrays or ():
        backend.arrays.to_numpy(array)


def get_percentile(times: Sequence[float]) -> float:
    return float(np.percentile(times, 99))


def make_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def report(path: Path | None, results: Any) -> None:
    if path:
        path.write_text(json.dumps(results, indent=1) + "\n")


@contextmanager
def clock(times: Times, name: str) -> Iterator[None]:
    """Adds the milliseconds that this takes to the last entry of a list."""
    start = time.perf_counter()
    yield
    times[name][-1] += (time.perf_counter() - start) * 1e3


BACKEND = click.option(
    "--backend",
    type=click.Choice(["torch", "mlx"]),
    default="torch",
    help="Whose layers.",
    show_default=True,
)
SEED = click.option("--seed", default=0, show_default=True)
JSON = click.option(
    "--json", "path", type=click.Path(path_type=Path), help="Write the numbers there."
)


@click.group()
def main() -> None:
    """Measures prefix caches."""


# --- begin ------------------------------------------------------------------------------

LENGTH = 2_000
SYSTEMS = 200, 500, 1_000, 1_500
LENGTHS = 500, 2_000, 8_000
CASES = "repeat", "edge", "miss"


class Stored:
    """A trie that has `count` prompts."""

    def __init__(self, backend: Backend, count: int, dim: int, seed: int) -> None:
        self.random, self.backend = np.random.default_rng(seed), backend
        form = {"heads": 1, "key_dim": dim, "value_dim": dim}
        self.layer = open_layer(backend, "kv", **form)
        self.trie = Trie([self.layer])
        numbers = np.ones((1, 1, LENGTH, dim), np.float32)
        array = backend.arrays.from_numpy(numbers, "float32")
        systems = [self.draw(length) for length in SYSTEMS]
        self.prompts: list[Tokens] = []
        for number in range(count):
            system = systems[number % len(systems)]
            prompt = np.concatenate((system, self.draw(LENGTH - len(system))))
            self.prompts.append(prompt)
            left = len(self.trie.begin(prompt.tolist(), ()))
            new = array[:, :, :left]
            wait(backend, self.layer.update(new, new))
            self.trie.close()

    def draw(self, length: int, first: int = 0) -> Tokens:
        tokens = self.random.integers(first, first + 50_000, length)
        return tokens.astype(np.uint32)

    def make(self, case: str, length: int) -> list[int]:
        number = int(self.random.integers(len(self.prompts)))
        stored, system = self.prompts[number], SYSTEMS[number % len(SYSTEMS)]
        common = min(length, LENGTH)
        if case == "edge":
            lowest = system if system < common - 1 else 0
            common = int(self.random.integers(lowest + 1, common))
        if case == "miss":
            common = 0
        return [*stored[:common].tolist(), *self.draw(length - common, 60_000).tolist()]

    def time(self, case: str, length: int) -> float:
        """Milliseconds for one begin."""
        tokens = self.make(case, length)
        start = time.perf_counter()
        self.trie.begin(tokens, ())
        wait(self.backend, self.layer.view())
        end = time.perf_counter()
        self.trie.cancel()
        return (end - start) * 1e3


@main.command()
@BACKEND
@SEED
@JSON
@click.option("--stored", multiple=True, type=int, default=[100, 1_000, 10_000])
@click.option("--dim", "dims", multiple=True, type=int, default=[1, 8])
@click.option("--rounds", default=100, show_default=True)
def begin(
    backend: str,
    seed: int,
    path: Path | None,
    stored: Sequence[int],
    dims: Sequence[int],
    rounds: int,
) -> None:
    """The time of Trie.begin, by what is stored and by the request."""
    columns = [f"{count:,} stored" for count in stored]
    names = ("dim, request", *columns, "ratio")
    table = make_table("begin, ms: median / 99th percentile", *names)
    rows = []
    for dim in dims:
        tries = {
            count: Stored(load(f"{backend}-cpu"), count, dim, seed) for count in stored
        }
        click.echo(f"dim {dim}: the tries are built", err=True)
        for row in measure(tries, rounds):
            rows.append({"dim": dim, **row})
            cells = [f"{a:.3f} / {b:.3f}" for a, b in row["times"].values()]
            name = f"{dim}  {row['length']:5,} {row['case']}"
            table.add_row(name, *cells, f"{row['ratio']:.2f}")
    Console().print(table)
    report(path, {"unit": "ms", "backend": backend, "rounds": rounds, "rows": rows})
    large = max(stored)
    twos = [row["times"][large][0] for row in rows if row["length"] == LENGTH]
    sys.exit(max(twos) > MILLISECONDS)


def measure(tries: dict[int, Stored], rounds: int) -> list[dict[str, Any]]:
    """Median and 99th percentile for each trie, and the ratio of the medians with most
    and least stored."""
    keys = [(length, case) for length in LENGTHS for case in CASES]
    times = {(*key, count): list[float]() for key in keys for count in tries}
    for _ in range(rounds):
        for length, case in keys:
            for count, trie in tries.items():
                times[length, case, count].append(trie.time(case, length))
    rows = []
    for key in keys:
        found = {count: times[*key, count] for count in tries}
        pairs = {count: (median(x), get_percentile(x)) for count, x in found.items()}
        ratio = pairs[max(tries)][0] / pairs[min(tries)][0]
        rows.append({"length": key[0], "case": key[1], "times": pairs, "ratio": ratio})
    return rows


# --- day --------------------------------------------------------------------------------

WINDOW = 512
DIM = 2
CONV, DELTA = (1, 3, 4), (1, 1, 4, 4)
FORM = {"heads": 1, "key_dim": DIM, "value_dim": DIM}
STATE = {"heads": 1, "key_dim": 4, "value_dim": 4, "conv_width": 4}
MODEL: Sequence[tuple[str, dict[str, Any]]] = (
    ("kv", FORM),
    ("rotating", {**FORM, "window": WINDOW}),
    ("state", STATE),
    ("kv", FORM),
)
TOKEN_BYTES, STATE_BYTES = 4 * 2 * DIM, 4 * (12 + 16)
KINDS = (
    Kind(TOKEN_BYTES),
    Kind(TOKEN_BYTES, WINDOW),
    Kind(state_bytes=STATE_BYTES),
    Kind(TOKEN_BYTES),
)
CHUNK = 2_048
"""Tokens of a pass."""


def mix(words: Hashes) -> Hashes:
    """Changes each of 64 bits, on average every other (the end of splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class Numbers:
    """What the layers compute for a text: numbers that depend on all tokens so far.

    prefixes: 64 bits for each token and all before it.
    """

    def __init__(self, text: Tokens) -> None:
        places = np.arange(1, len(text) + 1, dtype=np.uint64) << np.uint64(32)
        self.prefixes = np.add.accumulate(mix(places | text.astype(np.uint64)))

    def get(self, layer: int, begin: int, end: int, count: int) -> Floats:
        """`count` numbers for each token, of 16 bits each, so that all are exact."""
        salt = np.arange(-(-count // 4), dtype=np.uint64) + np.uint64(1_000 * layer)
        words = mix(self.prefixes[begin:end, None] + mix(salt + np.uint64(1)))
        return words.view(np.uint16)[:, :count].astype(np.float32)

    def get_pair(self, layer: int, begin: int, end: int) -> tuple[Floats, Floats]:
        """K and V [1, 1, end - begin, DIM]."""
        both = self.get(layer, begin, end, 2 * DIM)[None, None]
        return both[..., :DIM], both[..., DIM:]

    def get_state(self, layer: int, end: int) -> tuple[Floats, Floats]:
        """conv and delta after `end` tokens."""
        if end == 0:
            return np.zeros(CONV, np.float32), np.zeros(DELTA, np.float32)
        row = self.get(layer, end - 1, end, 28)[0]
        return row[:12].reshape(CONV), row[12:].reshape(DELTA)


class Runner:
    """A trie, its layers, and a request.

    times: for each request the milliseconds in begin, extend, close and in the updates of
    the layers.
    """

    def __init__(self, backend: Backend, limit: int | None) -> None:
        self.backend, self.arrays = backend, backend.arrays
        self.layers = [open_layer(backend, kind, **fields) for kind, fields in MODEL]
        self.trie = Trie(self.layers, limit)
        self.times: Times = {"begin": [], "extend": [], "close": [], "updates": []}

    def begin(self, request: Request) -> int:
        """How many tokens are reused."""
        self.numbers, prompt = Numbers(request.text), request.prompt.tolist()
        for times in self.times.values():
            times.append(0.0)
        with clock(self.times, "begin"):
            remaining = self.trie.begin(prompt, request.checkpoints)
            for layer in self.layers:
                wait(self.backend, layer.view())
        self.computed = len(prompt) - len(remaining)
        if list(remaining) != prompt[self.computed :]:
            raise SystemExit("begin returned what is not the end of the request")
        return self.computed

    def extend(self, tokens: Sequence[int]) -> None:
        with clock(self.times, "extend"):
            self.trie.extend(tokens)

    def close(self, request: Request) -> None:
        with clock(self.times, "close"):
            if request.stop:
                self.trie.cancel()
            else:
                self.trie.close()

    def feed(self, begin: int, end: int) -> None:
        while self.computed < end:
            part = min(end, self.computed + CHUNK)
            self.feed_some(part, len(self.layers))
            self.computed = part

    def feed_some(self, end: int, layers: int) -> None:
        for number in range(layers):
            if MODEL[number][0] == "state":
                self.write(number, end)
            elif end > self.computed:
                pair = self.numbers.get_pair(number, self.computed, end)
                keys, values = (self.make(array) for array in pair)
                with clock(self.times, "updates"):
                    wait(self.backend, self.layers[number].update(keys, values))

    def write(self, number: int, end: int) -> None:
        layer, at = self.layers[number], self.computed
        for length in layer.boundaries(end - at) if end > at else ():
            at += length
            conv, delta = map(self.make, self.numbers.get_state(number, at))
            with clock(self.times, "updates"):
                layer.read()
                layer.write(conv, delta, length)
                wait(self.backend, layer.read())

    def make(self, array: Floats) -> Any:
        return self.arrays.from_numpy(array, "float32")

    def count_wrong(self) -> int:
        """Tokens of all layers that are not what computing them from scratch gives; a
        state counts as one."""
        return sum(self.count_wrong_in(number) for number in range(len(self.layers)))

    def count_wrong_in(self, number: int) -> int:
        layer, end = self.layers[number], self.computed
        if MODEL[number][0] == "state":
            held, right = layer.read(), self.numbers.get_state(number, end)
            same = [
                np.array_equal(self.arrays.to_numpy(a), b)
                for a, b in zip(held, right, strict=True)
            ]
            return int(layer.offset != end or not all(same))
        first = max(0, end - MODEL[number][1].get("window", end))
        if layer.offset != end:
            return max(1, end - first)
        if end == 0:
            return 0
        wrong = np.zeros(end - first, bool)
        right = self.numbers.get_pair(number, first, end)
        for held, array in zip(layer.view(), right, strict=True):
            content = self.arrays.to_numpy(held)
            if content.shape != array.shape:
                return end - first
            wrong |= (content != array)[0, 0].any(axis=1)
        return int(wrong.sum())

    def spoil(self) -> None:
        """One wrong number, in a layer that has read something: to see that it is
        seen."""
        if self.computed:
            keys, values = self.numbers.get_pair(0, self.computed - 1, self.computed)
            self.layers[0].trim(1)
            self.layers[0].update(self.make(keys + 1), self.make(values))


def simulate(requests: Sequence[Request], limit: int | None) -> tuple[int, int]:
    """How many tokens can be reused, and the bytes that are stored at the end."""
    simulation, reused = Simulation(KINDS, limit), 0
    for request in requests:
        reused += simulate_one(simulation, request)
        simulation.close()
    return reused, simulation.count_bytes()


def simulate_one(simulation: Simulation, request: Request) -> int:
    reuse = simulation.begin(request.prompt, request.checkpoints)
    days.play(request, simulation, lambda _, end: simulation.feed(end), simulation.feed)
    return reuse


def run_day(
    runner: Runner, requests: Sequence[Request], limit: int | None, plant: int = 0
) -> dict[str, Any]:
    """All requests. plant: in every so manyth a wrong number is put into a layer."""
    oracle = Simulation(KINDS, limit)
    counts = dict.fromkeys(("asked", "reused", "possible", "wrong", "compared"), 0)
    counts |= dict.fromkeys(("other_reuse", "other_bytes", "over", "most_bytes"), 0)
    sizes = []
    for number, request in enumerate(requests, 1):
        reuse = runner.begin(request)
        if plant and number % plant == 0:
            runner.spoil()
        counts["wrong"] += runner.count_wrong()
        counts["compared"] += 2 * reuse + min(reuse, WINDOW) + 1
        days.play(request, runner, runner.feed, runner.feed_some)
        runner.close(request)
        possible = simulate_one(oracle, request)
        oracle.close()
        size = runner.trie.count_bytes()
        counts["asked"] += len(request.prompt)
        counts["reused"] += reuse
        counts["possible"] += possible
        counts["other_reuse"] += reuse != possible
        counts["other_bytes"] += size != oracle.count_bytes()
        if limit is not None and size > limit:
            counts["over"] += size > max(limit, oracle.count_protected())
        counts["most_bytes"] = max(counts["most_bytes"], size)
        sizes.append(size)
        if number % max(1, len(requests) // 10) == 0:
            click.echo(f"{number:,} of {len(requests):,} requests", err=True)
    return {**counts, "bytes": sizes[:: max(1, len(sizes) // 100)]}


@main.command()
@BACKEND
@SEED
@JSON
@click.option("--requests", "count", default=10_000, show_default=True)
@click.option(
    "--limit", type=int, help="Bytes; by default a tenth of what there would be."
)
@click.option("--plant", default=0, help="A wrong number in every so manyth request.")
def day(
    backend: str, seed: int, path: Path | None, count: int, limit: int | None, plant: int
) -> None:
    """A day of a chat server and of agents: what is reused, and is it right?"""
    requests = days.make_day(seed, count)
    unlimited, everything = simulate(requests, None)
    limit = everything // 10 if limit is None else limit
    start = time.perf_counter()
    runner = Runner(load(f"{backend}-cpu"), limit)
    found = run_day(runner, requests, limit, plant)
    found |= {"unlimited": unlimited, "everything": everything, "limit": limit}
    found |= {"seconds": time.perf_counter() - start, "times": runner.times}
    found["ratio"] = found["reused"] / max(1, found["possible"])
    totals = zip(
        *(runner.times[name] for name in ("begin", "extend", "close")), strict=True
    )
    runner.times["all three"] = [sum(each) for each in totals]
    print_day(f"{count:,} requests, seed {seed}, {backend}", found)
    report(
        path, {"backend": backend, "requests": count, "seed": seed, **summarize(found)}
    )
    sys.exit(found["wrong"] > 0 or found["ratio"] < RATIO or found["over"] > 0)


def summarize(found: dict[str, Any]) -> dict[str, Any]:
    times = {
        name: {"median": median(times), "99 %": get_percentile(times)}
        for name, times in found["times"].items()
    }
    return {**found, "times": times, "unit": "ms, for one request"}


def print_day(title: str, found: dict[str, Any]) -> None:
    asked = found["asked"]
    table = make_table(title, "tokens", "")
    table.add_row("asked", f"{asked:,}")
    for name, key in (("reused", "reused"), ("the oracle", "possible")):
        table.add_row(name, f"{found[key]:,} = {found[key] / asked:.2%}")
    unlimited = found["unlimited"]
    table.add_row("the oracle, no limit", f"{unlimited:,} = {unlimited / asked:.2%}")
    table.add_row("reused / the oracle", f"{found['ratio']:.5f}")
    table.add_row("requests that reuse other than it", f"{found['other_reuse']:,}")
    table.add_row("compared after begin", f"{found['compared']:,}")
    table.add_row("wrong", f"{found['wrong']:,}", end_section=True)
    table.add_row("bytes without a limit", f"{found['everything']:,}")
    table.add_row("limit", f"{found['limit']:,}")
    table.add_row("most bytes after a request", f"{found['most_bytes']:,}")
    table.add_row("requests after which too many", f"{found['over']:,}")
    table.add_row("after which other than the oracle's", f"{found['other_bytes']:,}")
    Console().print(table)
    table = make_table("ms for one request", "in", "median", "99 %", "sum, s")
    for name, times in found["times"].items():
        middle, high = median(times), get_percentile(times)
        table.add_row(name, f"{middle:.3f}", f"{high:.3f}", f"{sum(times) / 1e3:.1f}")
    Console().print(table)


# --- leaks ------------------------------------------------------------------------------

LEAK_LIMIT = 8_000
SAMPLES = 100
GROWTH = 1.5
"""How much more there may be in the second half than in the first: limits vary."""

MEGABYTES = 4.0
"""By how much the process may grow after the first quarter, as its allocator likes."""

LONG = 60
"""Tokens of a prompt, at most."""


class Walk:
    """Operations at random on a trie or a session.

    texts: what was asked lately. end: how many tokens the open request has; None if none
    is open. read: how many of them the layers have.
    """

    def __init__(self, backend: Backend, limited: bool, seed: int) -> None:
        window = 8 if limited else 1 << 10  # a session goes back only while it has room
        self.layers = [
            open_layer(backend, "kv", **FORM),
            open_layer(backend, "rotating", **{**FORM, "window": window}),
        ]
        if limited:
            self.layers.append(open_layer(backend, "state", **STATE))
        self.limited = limited
        self.cache: Any = (
            Trie(self.layers, LEAK_LIMIT) if limited else Session(self.layers)
        )
        self.random = random.Random(seed)
        self.texts: list[list[int]] = [[]]
        self.end: int | None = None
        self.read = 0
        make = backend.arrays.from_numpy
        self.array = make(np.ones((1, 1, 2 * LONG, DIM), np.float32), "float32")
        shapes = CONV, DELTA
        self.state = [make(np.ones(shape, np.float32), "float32") for shape in shapes]

    def step(self) -> None:
        """One operation."""
        luck = self.random.random()
        if self.end is None:
            if luck < 0.005:
                self.cache.free()
            elif luck < 0.05 and self.limited:
                self.cache.set_limit(self.random.randrange(LEAK_LIMIT))
            else:
                self.begin()
        elif luck < 0.3:
            self.stop()
        elif luck < 0.5 and self.end < LONG:
            count = self.random.randint(1, 5)
            self.cache.extend([self.random.randrange(4) for _ in range(count)])
            self.end += count
        elif luck < 0.52 and self.limited:
            self.cache.set_limit(self.random.randrange(LEAK_LIMIT))
        elif self.read < self.end:
            self.feed(self.random.randint(self.read + 1, self.end), len(self.layers))

    def begin(self) -> None:
        text = self.random.choice(self.texts)
        more = [self.random.randrange(4) for _ in range(self.random.randint(1, 12))]
        text = [*text[: self.random.randint(0, len(text))], *more][-LONG:]
        points = self.random.sample(range(1, LONG), 2) if self.limited else []
        self.end, self.read = len(text), len(text) - len(self.cache.begin(text, points))
        self.texts = [*self.texts, text][-30:]

    def feed(self, end: int, layers: int) -> None:
        count = end - self.read
        for layer in self.layers[: min(layers, 2)]:
            layer.update(self.array[:, :, :count], self.array[:, :, :count])
        for layer in self.layers[2:layers]:
            for length in layer.boundaries(count):
                layer.write(*self.state, length)
        self.read = end

    def stop(self) -> None:
        """Closes the request; or cancels it, perhaps after a pass that broke off."""
        assert self.end is not None
        luck = self.random.random()
        if luck < 0.1 and self.read < self.end:
            self.feed(self.end, self.random.randint(1, len(self.layers) - 1))
        if luck < 0.3:
            self.cache.cancel()
        else:
            self.cache.close()
        self.end = None

    def sample(self) -> dict[str, float]:
        """What there is, once no request is open. unknown: bytes of open snapshots that
        are not counted. closed: closed snapshots that somebody still holds."""
        if self.end is not None:
            self.stop()
        snapshots = [each for each in gc.get_objects() if type(each) is Snapshot]
        opened = [each for each in snapshots if each.memory or each.arrays is not None]
        size = sum(each.get_size() for each in opened)
        counted = self.cache.count_bytes()
        found = {"snapshots": len(snapshots), "closed": len(snapshots) - len(opened)}
        found |= {"bytes": counted, "unknown": size - counted}
        return {**found, "MB": get_memory()}


def get_memory() -> float:
    """Megabytes of this process that are in memory."""
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    status = Path("/proc/self/statm")
    if status.exists():
        pages = int(status.read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return int(subprocess.check_output(command, text=True)) * 1_024 / 1e6


def is_flat(samples: Sequence[dict[str, float]]) -> bool:
    """Whether nothing grows; see the docstring of this module."""
    middle, early = len(samples) // 2, samples[len(samples) // 4]
    for name in ("snapshots", "bytes"):
        numbers = [each[name] for each in samples]
        if sum(numbers[-middle:]) > GROWTH * sum(numbers[:middle]):
            return False
    if any(each["unknown"] or each["closed"] for each in samples):
        return False
    return samples[-1]["MB"] - early["MB"] < MEGABYTES


@main.command()
@BACKEND
@SEED
@JSON
@click.option("--operations", default=100_000, show_default=True)
def leaks(backend: str, seed: int, path: Path | None, operations: int) -> None:
    """Is everything given back that a trie and a session take?"""
    results = {}
    for limited in (True, False):
        walk, name = Walk(load(f"{backend}-cpu"), limited, seed), "session"
        if limited:
            name = f"trie, at most {LEAK_LIMIT:,} bytes"
        samples = []
        for number in range(1, operations + 1):
            walk.step()
            if number % max(1, operations // SAMPLES) == 0:
                samples.append({"operations": number, **walk.sample()})
        walk.cache.free()
        last = walk.sample()
        flat = is_flat(samples) and last["snapshots"] == last["bytes"] == 0
        print_samples(name, samples, last)
        click.echo("flat" if flat else "it grows, or not all is counted")
        results[name] = {"flat": flat, "samples": samples}
    report(path, results)
    sys.exit(not all(each["flat"] for each in results.values()))


def print_samples(
    title: str, samples: Sequence[dict[str, float]], last: dict[str, float]
) -> None:
    table = make_table(title, *samples[0])
    step = max(1, len(samples) // 10)
    for sample in samples[step - 1 :: step]:
        *counts, memory = sample.values()
        table.add_row(*(f"{count:,}" for count in counts), f"{memory:.1f}")
    *counts, memory = last.values()
    table.add_row("free", *(f"{count:,}" for count in counts), f"{memory:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
