"""Simulates the scheduler of a server for a day, on our block manager and on vLLM's.

    python ci/bench/serving.py
    python ci/bench/serving.py --requests 2000 --blocks 4096 --json day.json

Chats and tasks of agents begin with one of a few system prompts, and each request repeats
the conversation so far (`STYLES`). A step of 1/60 s computes at most 2,048 tokens of at
most 256 requests. Long prompts are computed in chunks. If there are not enough blocks,
the request that arrived last is preempted.

The measured time is the time in the block manager, including the hashing of tokens.
Afterwards, the same day runs on our manager with stored K and V, which depend on all
previous tokens. When a request reuses tokens, is preempted or ends, its stored K and V
are compared with the expected K and V. The exit status is 1 if they differ, or if our
manager takes more than 1.05 times the time of vLLM's manager.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
sys.path[0] = str(Path(__file__).resolve().parents[2])

import click  # noqa: E402
import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import torch  # noqa: E402

from ci.bench.options import JSON, print_table  # noqa: E402
from lockstep.harness.backends import Unavailable  # noqa: E402
from lockstep.impl.peers.engines.vllm import load_vllm, open_vllm  # noqa: E402
from lockstep.impl.shared.paged import BlockManager  # noqa: E402
from lockstep.impl.shared.paged_memory import StoringManager  # noqa: E402
from lockstep.impl.torch.paged import TorchBlocks  # noqa: E402

BLOCK, BAR = 16, 1.05
STEP, BUDGET, BATCH = 1 / 60, 2048, 256
MAX_PROMPT, MAX_TOKENS = 8_192, 16_384
GROUP = {"type": "full", "block": BLOCK, "layers": 1}
DIM = 2

# --- the requests of a day --------------------------------------------------------------

Lognormal = tuple[float, float, float]
"""The median, sigma, and the highest value."""


@dataclass(frozen=True)
class Style:
    """A kind of conversation.

    Attributes:
        turns: the average number of turns.
        pause: the time between an answer and the next message, in seconds.
    """

    systems: int
    system: Lognormal
    turns: int
    message: Lognormal
    answer: Lognormal
    pause: Lognormal


CHAT = Style(8, (600, 0.7, 2e3), 6, (60, 1, 1.5e3), (200, 0.8, 1.2e3), (40, 1, 3600))
AGENT = Style(3, (2e3, 0.3, 3.5e3), 14, (180, 1.3, 3e3), (50, 0.6, 300), (3, 1.2, 600))
STYLES, SHARES = (CHAT, AGENT), (0.75, 0.25)
EVERY, CANCELLED = 0.2, 0.015
"""Seconds between two conversations, and the share of requests that are cancelled within
their prompt."""


@dataclass
class Request:
    """An active request.

    Attributes:
        cancelled_at: the number of prompt tokens after which the request is cancelled;
            None if it is not cancelled.
        computed: the number of tokens that have K and V.
    """

    time: float
    prompt: list[int]
    answer: list[int]
    cancelled_at: int | None
    name: str = ""
    tokens: list[int] = field(default_factory=list)
    computed: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the request is cancelled or complete.

        The last token of an answer is sampled, but never computed.
        """
        if self.cancelled_at is not None:
            return self.computed >= self.cancelled_at
        return self.computed >= len(self.prompt) + len(self.answer) - 1


class Author:
    """Generates random conversations."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.systems = {
            style: [self.draw_tokens(style.system) for _ in range(style.systems)]
            for style in STYLES
        }

    def draw(self, shape: Lognormal) -> float:
        median, sigma, highest = shape
        drawn = float(self.random.lognormal(np.log(median), sigma))
        return min(max(drawn, 1.0), highest)

    def draw_tokens(self, length: Lognormal) -> list[int]:
        tokens = self.random.integers(0, 50_000, int(self.draw(length)))
        return [int(token) for token in tokens]

    def converse(self, start: float) -> Iterator[Request]:
        style = STYLES[self.random.choice(len(STYLES), p=SHARES)]
        text = self.systems[style][self.random.integers(style.systems)]
        for _ in range(self.random.geometric(1 / style.turns)):
            text = text + self.draw_tokens(style.message)
            answer = self.draw_tokens(style.answer)
            if len(text) > MAX_PROMPT:
                return
            is_cancelled = self.random.random() < CANCELLED
            end = int(self.random.integers(len(text))) if is_cancelled else None
            yield Request(start, text, answer, end)
            start += len(text) / 8_000 + len(answer) / 60 + self.draw(style.pause)
            text = text + answer


def make_day(seed: int, count: int) -> list[Request]:
    """Returns the first `count` requests, sorted by time."""
    author, requests, start = Author(seed), list[Request](), 0.0
    while sum(request.time <= start for request in requests) < count:
        start += author.random.exponential(EVERY)
        requests += author.converse(start)
    requests = sorted(requests, key=lambda request: request.time)[:count]
    for number, request in enumerate(requests):
        request.name, request.tokens = str(number), [*request.prompt]
    return requests


def make_contents(tokens: Sequence[int]) -> list[torch.Tensor]:
    """Makes K and V [1, 1, tokens, DIM] that depend on all tokens up to their own."""
    positions = np.arange(1, len(tokens) + 1, dtype=np.uint64) << np.uint64(32)
    hashes = np.add.accumulate(mix(positions | np.array(tokens, np.uint64)))
    numbers = mix(hashes).view(np.uint16).astype(np.float32)  # exact in float32
    both = torch.from_numpy(numbers).view(1, 1, len(tokens), 2 * DIM)
    return [both[..., :DIM], both[..., DIM:]]


def mix(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mixes the bits of a number: a change of one bit changes half of the 64 bits on
    average (the end of splitmix64)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


# --- the managers -----------------------------------------------------------------------

Chunk = tuple[Request, int, int]
"""A request, and the tokens of it that a step computes: from, to."""


class Ours:
    """Our block manager, without K and V."""

    def __init__(self, blocks: int) -> None:
        self.manager = BlockManager([GROUP], blocks, MAX_TOKENS)

    def open(self, request: Request) -> None:
        self.manager.open(request.name, request.tokens, None)

    def schedule(self, request: Request, count: int) -> int | None:
        """Allocates slots for the next `count` tokens of a request.

        Returns the number of tokens before these tokens; None if there are not enough
        slots.
        """
        return self.manager.schedule(request.name, count)

    def run(self, step: Sequence[Chunk]) -> None:
        self.manager.run()

    def sample(self, request: Request, token: int) -> None:
        self.manager.accept(request.name, 0, token, ())

    def preempt(self, request: Request) -> None:
        self.manager.preempt(request.name)

    def free(self, request: Request) -> None:
        self.manager.free(request.name, True)


class Stored(Ours):
    """Our block manager, with stored K and V.

    Attributes:
        wrong: the names of the requests that read wrong K and V.
        read: the number of compared tokens.
    """

    def __init__(self, blocks: int) -> None:
        memory = TorchBlocks(blocks, BLOCK, 1, 1, (DIM, DIM), torch.empty(0))
        self.manager = self.stored = StoringManager(memory, [GROUP], blocks, MAX_TOKENS)
        self.contents: dict[str, list[torch.Tensor]] = {}
        self.wrong, self.read = set[str](), 0

    def open(self, request: Request) -> None:
        super().open(request)
        self.contents[request.name] = make_contents(request.prompt + request.answer)

    def schedule(self, request: Request, count: int) -> int | None:
        start = super().schedule(request, count)
        if start and not request.computed:
            self.check(request, start)
        return start

    def run(self, step: Sequence[Chunk]) -> None:
        keys, values = (
            torch.cat(
                [self.contents[request.name][side][:, :, begin:end]
                 for request, begin, end in step], 2,
            )
            for side in (0, 1)
        )  # fmt: skip
        self.stored.write(0, keys, values)
        super().run(step)

    def preempt(self, request: Request) -> None:
        self.check(request, request.computed)
        super().preempt(request)

    def free(self, request: Request) -> None:
        self.check(request, request.computed)
        super().free(request)

    def check(self, request: Request, end: int) -> None:
        """Compares stored and expected K and V of the first `end` tokens of a request."""
        slots = self.stored.list_slots(self.stored.get(request.name).tables, 0, 0, end)
        stored = self.stored.memory.read(0, slots)
        self.read += end
        for array, expected in zip(stored, self.contents[request.name], strict=True):
            if not torch.equal(array, expected[:, :, :end]):
                self.wrong.add(request.name)


class Released:
    """vLLM's manager with one full-attention group and prefix caching.

    The methods call the manager in the same way as vLLM's scheduler.
    """

    def __init__(self, blocks: int) -> None:
        self.vllm = vllm = load_vllm()
        hashing = open_vllm().load("vllm.utils.hashing").sha256  # its default
        vllm.init_none_hash(hashing)
        form = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        spec = vllm.FullAttentionSpec(block_size=BLOCK, **form)
        groups = [vllm.KVCacheGroupSpec(["layer"], spec)]
        self.manager = vllm.KVCacheManager(
            vllm.KVCacheConfig(blocks + 1, [], groups),
            max_model_len=MAX_TOKENS,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            max_in_flight_tokens=MAX_TOKENS,
            enable_caching=True,
        )
        self.hasher = vllm.get_request_block_hasher(BLOCK, hashing)
        self.requests: dict[str, Any] = {}
        self.begun = False

    def open(self, request: Request) -> None:
        self.requests[request.name] = self.vllm.Request(
            request.name, request.tokens, Sampling(), None, block_hasher=self.hasher
        )

    def schedule(self, request: Request, count: int) -> int | None:
        if not self.begun:
            self.manager.new_step_starts()
            self.begun = True
        theirs, hit = self.requests[request.name], ()
        start = request.computed
        if not start:
            blocks, start, _ = self.manager.get_computed_blocks(theirs)
            hit = (start, blocks)
        count = min(count, theirs.num_tokens - start)
        if self.manager.allocate_slots(theirs, count, *hit) is None:
            return None
        theirs.num_computed_tokens = start
        return int(start)

    def run(self, step: Sequence[Chunk]) -> None:
        self.begun = False
        for request, _, end in step:
            self.requests[request.name].num_computed_tokens = end

    def sample(self, request: Request, token: int) -> None:
        self.requests[request.name].append_output_token_ids(token)

    def preempt(self, request: Request) -> None:
        self.manager.free(self.requests[request.name])
        self.requests[request.name].num_computed_tokens = 0

    def free(self, request: Request) -> None:
        self.manager.free(self.requests.pop(request.name))


class Sampling:
    """The sampling parameters that vLLM's `Request` reads."""

    max_tokens = 1 << 20
    extra_args = None
    skip_reading_prefix_cache = None


# --- the scheduler ----------------------------------------------------------------------


class Day:
    """A simulated day on one manager.

    Attributes:
        seconds: the time spent in the manager.
        counts: the numbers of steps, of computed and reused tokens and of preempted
            requests, and the maximal number of requests that run at the same time.
    """

    def __init__(self, requests: Sequence[Request], manager: Ours | Released) -> None:
        self.manager, self.seconds, self.counts = manager, 0.0, Counter[str]()
        self.coming, self.waiting = deque(requests), deque[Request]()
        self.running: list[Request] = []

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the manager, and adds the time to `seconds`."""
        begin = time.perf_counter()
        result = getattr(self.manager, method)(*arguments)
        self.seconds += time.perf_counter() - begin
        return result

    def play(self) -> None:
        now = 0.0
        while self.coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                now = max(now, self.coming[0].time)
            while self.coming and self.coming[0].time <= now:
                self.call("open", self.coming[0])
                self.waiting.append(self.coming.popleft())
            step = self.make_step()
            self.call("run", step)
            for request, _, end in step:
                self.go_on(request, end)
            self.counts["steps"] += 1
            now += STEP

    def make_step(self) -> list[Chunk]:
        """Schedules the running requests. If all of them fit, also schedules waiting
        requests."""
        step: list[Chunk] = []
        budget, has_room = BUDGET, True
        while budget and len(step) < len(self.running):
            if chunk := self.schedule(self.running[len(step)], budget):
                step.append(chunk)
                budget -= chunk[2] - chunk[1]
            else:
                has_room = False
                self.preempt()
        while self.waiting and budget and has_room and len(self.running) < BATCH:
            if not (chunk := self.schedule(self.waiting[0], budget)):
                break
            self.running.append(self.waiting.popleft())
            step.append(chunk)
            budget -= chunk[2] - chunk[1]
            self.counts["reused"] += chunk[1]
        self.counts["most"] = max(self.counts["most"], len(self.running))
        self.counts["computed"] += BUDGET - budget
        return step

    def schedule(self, request: Request, budget: int) -> Chunk | None:
        start = self.call("schedule", request, budget)
        if start is None:
            return None
        return request, start, min(len(request.tokens), start + budget)

    def preempt(self) -> None:
        """Preempts the request that arrived last."""
        request = self.running.pop()
        self.call("preempt", request)
        request.computed = 0
        self.waiting.appendleft(request)
        self.counts["preempted"] += 1

    def go_on(self, request: Request, end: int) -> None:
        """Ends a request, or samples its next token if all its tokens are computed."""
        request.computed = end
        if request.is_over:
            self.call("free", request)
            self.running.remove(request)
        elif end == len(request.tokens):
            token = request.answer[end - len(request.prompt)]
            request.tokens.append(token)
            self.call("sample", request, token)


# --- the command ------------------------------------------------------------------------


def play(manager: Ours | Released, seed: int, requests: int) -> Day:
    day = Day(make_day(seed, requests), manager)
    gc.collect()
    day.play()
    return day


@click.command()
@click.option("--requests", default=10_000, show_default=True, type=click.IntRange(1))
@click.option(
    "--blocks",
    default=8192,
    show_default=True,
    type=click.IntRange(MAX_TOKENS // BLOCK),
    help="Of 16 tokens.",
)
@click.option("--seed", default=0, show_default=True)
@JSON
def main(requests: int, blocks: int, seed: int, path: Path | None) -> None:
    """Plays a day of a server on block managers."""
    days = {"ours": play(Ours(blocks), seed, requests)}
    try:
        days["vLLM"] = play(Released(blocks), seed, requests)
    except Unavailable as error:
        click.echo(f"vLLM is not measured: {error}")
    rows = [["seconds in the manager", *(f"{day.seconds:.2f}" for day in days.values())]]
    for name in ("steps", "most", "computed", "reused", "preempted"):
        rows.append([name, *(f"{day.counts[name]:,}" for day in days.values())])
    print_table(f"{requests:,} requests", ["", *days], rows)
    checked = Stored(blocks)
    is_same = play(checked, seed, requests).counts == days["ours"].counts
    verdict = f"wrong for {len(checked.wrong)} requests" if checked.wrong else "all right"
    click.echo(f"K and V: {checked.read:,} tokens read back, {verdict}")
    if not is_same:
        click.echo("with its memory, our manager made other choices")
    ratio = days["ours"].seconds / days["vLLM"].seconds if "vLLM" in days else None
    if ratio:
        click.echo(f"ratio {ratio:.2f}")
    if path:
        document: dict[str, Any] = {
            name: {"seconds": day.seconds, "counts": dict(day.counts)}
            for name, day in days.items()
        }
        document = {"days": document, "ratio": ratio, "read": checked.read}
        document["wrong"] = sorted(checked.wrong)
        path.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(bool(checked.wrong) or not is_same or (ratio or 0) > BAR)


if __name__ == "__main__":
    main()
