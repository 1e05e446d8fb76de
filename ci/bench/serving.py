"""Plays a day of a server on our block manager, and on vLLM's, in one run.

    python ci/bench/serving.py
    python ci/bench/serving.py --requests 1000 --blocks 4096 --json serving.json

The requests are those of `prefixes/day.py`, with a new user every 0.2 s: conversations
that go on, agents with sub-agents, requests that are broken off. A scheduler takes them
into steps of at most 2,048 tokens, 256 requests at once: those that run come first,
long prompts are computed in parts, and where there is no room, the request that came
last is preempted. A step takes 1/60 s of the day.

Measured is the time in the block manager, the hashing of tokens included. Then the same
day runs on our manager with its memory on torch, where K and V of a token are numbers
that depend on all tokens before it: what a request reuses is read when it begins, and
everything that it holds when it ends. Exit status 1 if anything was wrong, or if our
manager takes over 1.05 of vLLM's time.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
sys.path[0] = str(Path(__file__).resolve().parents[2])

import click  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from ci.bench.blocks import BAR, BLOCK, VllmBlocks  # noqa: E402
from ci.bench.options import JSON  # noqa: E402
from ci.bench.prefixes.day import Request, make_day  # noqa: E402
from ci.bench.prefixes.numbers import Numbers  # noqa: E402
from ci.bench.prefixes.oracle import measure_repetition  # noqa: E402
from ci.bench.prefixes.shared import DIM  # noqa: E402
from lockstep.harness.backends import Unavailable  # noqa: E402
from lockstep.impl.shared.paged import BlockManager  # noqa: E402
from lockstep.impl.shared.paged_memory import StoringManager  # noqa: E402
from lockstep.impl.torch.paged import TorchBlocks  # noqa: E402

EVERY, STEP, BUDGET, BATCH = 0.2, 1 / 60, 2048, 256
LONGEST = 16_384
GROUP = {"type": "full", "block": BLOCK, "layers": 1}


class Job:
    """A request on its way.

    Attributes:
        tokens: those that are known: the prompt and what was sampled.
        computed: how many of them have K and V.
        sampled: how many tokens of the answer are known.
    """

    def __init__(self, name: str, request: Request) -> None:
        self.name, self.request = name, request
        self.tokens: list[int] = request.prompt.tolist()
        self.answer: list[int] = request.generated.tolist()
        self.prompt = len(self.tokens)
        self.computed = self.sampled = 0

    @property
    def is_broken_off(self) -> bool:
        """Says whether it has come to where it is broken off in its prompt."""
        if self.request.stop not in ("prefill", "pass"):
            return False
        return self.computed >= int(self.request.share * (self.prompt - 1))


class Manager(Protocol):
    """A block manager, as the scheduler calls it."""

    def open(self, job: Job) -> None: ...

    def schedule(self, job: Job, count: int) -> int | None: ...

    def run(self, step: Sequence[tuple[Job, int, int]]) -> None: ...

    def sample(self, job: Job, token: int) -> None: ...

    def preempt(self, job: Job) -> None: ...

    def free(self, job: Job) -> None: ...


# --- the managers -----------------------------------------------------------------------


class Ours:
    """Our manager."""

    def __init__(self, blocks: int) -> None:
        self.manager = BlockManager([GROUP], blocks, LONGEST)

    def open(self, job: Job) -> None:
        self.manager.open(job.name, job.tokens, None)

    def schedule(self, job: Job, count: int) -> int | None:
        return self.manager.schedule(job.name, count)

    def run(self, step: Sequence[tuple[Job, int, int]]) -> None:
        self.manager.run()

    def sample(self, job: Job, token: int) -> None:
        self.manager.accept(job.name, 0, token, ())

    def preempt(self, job: Job) -> None:
        self.manager.preempt(job.name)

    def free(self, job: Job) -> None:
        self.manager.free(job.name, True)


class Stored(Ours):
    """Our manager with its memory.

    Attributes:
        wrong: the requests that read something else than they should.
    """

    def __init__(self, blocks: int) -> None:
        memory = TorchBlocks(blocks, BLOCK, 1, 1, (DIM, DIM), torch.empty(0))
        self.manager = self.stored = StoringManager(memory, [GROUP], blocks, LONGEST)
        self.pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self.wrong: set[str] = set()
        self.read = 0

    def open(self, job: Job) -> None:
        super().open(job)
        keys, values = Numbers(job.request.text).get_pair(0, 0, len(job.request.text))
        self.pairs[job.name] = torch.from_numpy(keys), torch.from_numpy(values)

    def schedule(self, job: Job, count: int) -> int | None:
        start = super().schedule(job, count)
        if start and not job.computed:
            self.check(job, start)
        return start

    def run(self, step: Sequence[tuple[Job, int, int]]) -> None:
        pairs = [
            [one[:, :, begin:end] for one in self.pairs[job.name]]
            for job, begin, end in step
        ]
        keys, values = (torch.cat(list(all_), 2) for all_ in zip(*pairs, strict=True))
        self.stored.write(0, keys, values)
        super().run(step)

    def preempt(self, job: Job) -> None:
        self.check(job, job.computed)
        super().preempt(job)

    def free(self, job: Job) -> None:
        self.check(job, job.computed)
        del self.pairs[job.name]
        super().free(job)

    def check(self, job: Job, end: int) -> None:
        """Compares the first `end` tokens that a request holds with its own."""
        slots = self.stored.list_slots(self.stored.get(job.name), 0, 0, end)
        found = self.stored.memory.read(0, slots)
        self.read += end
        for one, own in zip(found, self.pairs[job.name], strict=True):
            if not torch.equal(one, own[:, :, :end]):
                self.wrong.add(job.name)


class Released(VllmBlocks):
    """vLLM's, called as its scheduler calls it."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks, LONGEST)
        self.requests: dict[str, Any] = {}
        self.begun = False

    def open(self, job: Job) -> None:
        self.requests[job.name] = self.make_request(job.tokens)

    def schedule(self, job: Job, count: int) -> int | None:
        if not self.begun:
            self.manager.new_step_starts()
            self.begun = True
        request = self.requests[job.name]
        if job.computed:
            count = min(count, request.num_tokens - job.computed)
            found = self.manager.allocate_slots(request, count)
            return None if found is None else job.computed
        blocks, hit, _ = self.manager.get_computed_blocks(request)
        count = min(count, request.num_tokens - hit)
        found = self.manager.allocate_slots(request, count, hit, blocks)
        if found is None:
            return None
        request.num_computed_tokens = hit
        return int(hit)

    def run(self, step: Sequence[tuple[Job, int, int]]) -> None:
        self.begun = False
        for job, _, end in step:
            self.requests[job.name].num_computed_tokens = end

    def sample(self, job: Job, token: int) -> None:
        self.requests[job.name].append_output_token_ids(token)

    def preempt(self, job: Job) -> None:
        request = self.requests[job.name]
        self.manager.free(request)
        request.num_computed_tokens = 0

    def free(self, job: Job) -> None:
        self.manager.free(self.requests.pop(job.name))


# --- the scheduler ----------------------------------------------------------------------


@dataclass
class Day:
    """A day on one manager.

    Attributes:
        seconds: spent in the manager, by its method.
        calls: how often each was called.
        counts: steps; tokens computed and reused; requests preempted; the most at once.
    """

    requests: Sequence[Request]
    manager: Manager
    seconds: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    waiting: deque[Job] = field(default_factory=deque)
    running: list[Job] = field(default_factory=list)

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls the manager, and counts the time."""
        called: Callable[..., Any] = getattr(self.manager, method)
        begin = time.perf_counter()
        result = called(*arguments)
        self.seconds[method] += time.perf_counter() - begin
        self.calls[method] += 1
        return result

    def play(self) -> None:
        jobs = [Job(str(number), one) for number, one in enumerate(self.requests)]
        coming, now = deque(jobs), 0.0
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                now = max(now, coming[0].request.time)
            while coming and coming[0].request.time <= now:
                self.call("open", coming[0])
                self.waiting.append(coming.popleft())
            step = self.make_step()
            self.call("run", step)
            for job, _, end in step:
                self.go_on(job, end)
            self.counts["steps"] += 1
            now += STEP

    def make_step(self) -> list[tuple[Job, int, int]]:
        """Schedules those that run, and, if all have room, those that wait."""
        step: list[tuple[Job, int, int]] = []
        budget, place = BUDGET, 0
        preempted = self.counts["preempted"]
        while place < len(self.running) and budget:
            job = self.running[place]
            start = self.call("schedule", job, budget)
            if start is None:
                self.preempt()
                continue
            step.append((job, start, min(len(job.tokens), start + budget)))
            budget -= step[-1][2] - start
            place += 1
        while self.waiting and budget and preempted == self.counts["preempted"]:
            job = self.waiting[0]
            if len(self.running) == BATCH:
                break
            start = self.call("schedule", job, budget)
            if start is None:
                break
            self.running.append(self.waiting.popleft())
            step.append((job, start, min(len(job.tokens), start + budget)))
            budget -= step[-1][2] - start
            self.counts["reused"] += start
        self.counts["most"] = max(self.counts["most"], len(self.running))
        self.counts["computed"] += BUDGET - budget
        return step

    def preempt(self) -> None:
        """Lets the request wait that came last."""
        last = self.running.pop()
        self.call("preempt", last)
        last.computed = 0
        self.waiting.appendleft(last)
        self.counts["preempted"] += 1

    def go_on(self, job: Job, end: int) -> None:
        """Samples the next token of a request that has computed all, or ends it."""
        job.computed = end
        if job.is_broken_off or (
            end == len(job.tokens) and job.sampled == len(job.answer)
        ):
            self.call("free", job)
            self.running.remove(job)
        elif end == len(job.tokens):
            token = job.answer[job.sampled]
            job.sampled += 1
            if job.sampled == len(job.answer):  # the last is never computed
                self.call("free", job)
                self.running.remove(job)
                return
            job.tokens.append(token)
            self.call("sample", job, token)


# --- the command ------------------------------------------------------------------------


def measure(requests: Sequence[Request], manager: Manager) -> Day:
    gc.collect()
    day = Day(requests, manager)
    day.play()
    return day


def tell(days: dict[str, Day], requests: Sequence[Request]) -> Table:
    """Makes the table of what was measured."""
    prompts = sum(len(one.prompt) for one in requests)
    title = f"{len(requests):,} requests, {prompts:,} tokens of prompts"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in days:
        table.add_column(name, justify="right")
    rows: dict[str, Callable[[Day], str]] = {
        "seconds in the manager": lambda day: f"{sum(day.seconds.values()):.2f}",
        "µs for each token computed": lambda day: (
            f"{1e6 * sum(day.seconds.values()) / day.counts['computed']:.2f}"
        ),
        "steps": lambda day: f"{day.counts['steps']:,}",
        "requests at once, at most": lambda day: f"{day.counts['most']:,}",
        "tokens computed": lambda day: f"{day.counts['computed']:,}",
        "tokens reused": lambda day: f"{day.counts['reused']:,}",
        "requests preempted": lambda day: f"{day.counts['preempted']:,}",
    }
    for words, get in rows.items():
        table.add_row(words, *map(get, days.values()))
    return table


@click.command()
@click.option("--requests", default=10_000, show_default=True, type=click.IntRange(1))
@click.option(
    "--blocks",
    default=8192,
    show_default=True,
    type=click.IntRange(LONGEST // BLOCK),
    help="Of 16 tokens.",
)
@click.option("--seed", default=0, show_default=True)
@JSON
def main(requests: int, blocks: int, seed: int, path: Path | None) -> None:
    """Plays a day of a server on block managers."""
    console = Console()
    asked = make_day(seed, requests, EVERY)
    managers: dict[str, Manager] = {"ours": Ours(blocks)}
    try:
        managers["vLLM"] = Released(blocks)
    except Unavailable as error:
        console.print(f"vLLM is not measured: {error}", highlight=False)
    days = {name: measure(asked, manager) for name, manager in managers.items()}
    console.print(tell(days, asked))
    repeated, _ = measure_repetition(asked)
    console.print(
        f"{repeated:,} tokens of prompts repeat an earlier text", highlight=False
    )
    checked = Stored(blocks)
    again = measure(asked, checked)
    same = again.counts == days["ours"].counts
    words = f"wrong for {len(checked.wrong)} requests" if checked.wrong else "all right"
    console.print(f"K and V: {checked.read:,} tokens read back, {words}", highlight=False)
    if not same:
        console.print("with its memory, the day went otherwise", highlight=False)
    ratio = None
    if "vLLM" in days:
        ours, theirs = (sum(day.seconds.values()) for day in days.values())
        ratio = ours / theirs
        console.print(f"ratio {ratio:.2f}", highlight=False)
    if path:
        told = {
            name: {"seconds": dict(day.seconds), "counts": dict(day.counts)}
            for name, day in days.items()
        }
        found = {"days": told, "ratio": ratio, "repeated": repeated}
        found |= {"read": checked.read, "wrong": sorted(checked.wrong)}
        path.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(bool(checked.wrong) or not same or (ratio or 0) > BAR)


if __name__ == "__main__":
    main()
