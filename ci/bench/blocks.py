"""Measures our block manager beside vLLM's, in one run.

    python ci/bench/blocks.py
    python ci/bench/blocks.py --rounds 30 --json blocks.json

request: a request of 1,024 blocks of 16 tokens arrives, gets all its slots and ends.
Nothing of it is known, and its blocks can be hit afterwards. match: how many of its 8,192
tokens are there already, beside 100,000 blocks that can be hit; all are. Both include the
hashing of the tokens. step: 256 requests get the slot of one more token each. begin: a
request of 2,000 tokens, which repeats half of a prompt, begins on a trie of 2,000
prompts; ours alone, and at most 2 ms.

vLLM is not needed: without it (`pip install --no-deps -r ci/engines/vllm.txt`) our times
stand alone. Exit status 1 if a median is over 1.05 of vLLM's.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import click  # noqa: E402

from ci.bench.options import JSON, print_table  # noqa: E402
from lockstep.harness.backends import Unavailable  # noqa: E402
from lockstep.impl.peers.engines.vllm import load_vllm, open_vllm  # noqa: E402
from lockstep.impl.prefix.trie import Trie  # noqa: E402
from lockstep.impl.shared.paged import BlockManager  # noqa: E402

BLOCK, REQUEST, MATCH, CACHED, BATCH = 16, 1024, 8192, 100_000, 256
ROOM = 120_000
PROMPTS = PROMPT = 2_000
BAR, MAX_MICROSECONDS = 1.05, 2_000


Medians = dict[str, dict[str, float]]
"""Work → manager → microseconds."""


def make_tokens(number: int, count: int) -> list[int]:
    """Makes tokens that are different for each `number`."""
    return list(range(number * 20_000, number * 20_000 + count))


# --- ours -------------------------------------------------------------------------------


class Ours:
    """Our block manager, with 100,000 reusable blocks and 256 running requests."""

    def __init__(self) -> None:
        group = {"type": "full", "block": BLOCK}
        self.manager = BlockManager([group], ROOM, 1 << 20)
        self.number = 1000
        for number in range(CACHED * BLOCK // 16_000):
            self.compute("a", make_tokens(number, 16_000))
            self.manager.free("a", True)
        for number in range(BATCH):
            self.compute(f"r{number}", make_tokens(5000 + number, 40))

    def compute(self, name: str, tokens: list[int]) -> None:
        self.manager.open(name, tokens, None)
        self.manager.schedule(name, len(tokens))
        self.manager.run()

    def request(self) -> float:
        self.number += 1
        tokens = make_tokens(self.number, REQUEST * BLOCK)
        begin = time.perf_counter()
        self.compute("new", tokens)
        self.manager.free("new", True)
        return time.perf_counter() - begin

    def match(self) -> float:
        tokens = make_tokens(7, MATCH + 1)
        begin = time.perf_counter()
        self.manager.open("new", tokens, None)
        assert self.manager.match("new") == MATCH
        seconds = time.perf_counter() - begin
        self.manager.free("new", True)
        return seconds

    def step(self) -> float:
        names = [f"r{number}" for number in range(BATCH)]
        begin = time.perf_counter()
        for name in names:
            self.manager.accept(name, 0, 1, ())
            self.manager.schedule(name, 1)
        self.manager.run()
        return time.perf_counter() - begin


class Prefixes:
    """A trie of one kv layer on torch."""

    def __init__(self) -> None:
        import torch

        from lockstep.impl.torch.kv import KVCache

        torch.set_grad_enabled(False)
        self.layer, self.number = KVCache(), 0
        self.trie = Trie([self.layer])
        array = torch.ones((1, 1, PROMPT, 1))
        for number in range(PROMPTS):
            self.trie.begin(make_tokens(number, PROMPT))
            self.layer.update(array, array)
            self.trie.close()

    def begin(self) -> float:
        self.number = (self.number + 1) % PROMPTS
        tokens = make_tokens(self.number, PROMPT // 2) + [-1] * (PROMPT // 2)
        begin = time.perf_counter()
        self.trie.begin(tokens)
        self.layer.view()
        seconds = time.perf_counter() - begin
        self.trie.cancel()
        return seconds


# --- vLLM -------------------------------------------------------------------------------


class VllmBlocks:
    """vLLM's manager of one full group, with prefix caching.

    Args:
        blocks: that requests can have.
        longest: the most tokens of a request.
    """

    def __init__(self, blocks: int, longest: int) -> None:
        self.vllm = vllm = load_vllm()
        hashing = open_vllm().load("vllm.utils.hashing").sha256  # its default
        vllm.init_none_hash(hashing)
        import torch  # where vLLM is, torch is

        form = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        spec = vllm.FullAttentionSpec(block_size=BLOCK, **form)
        groups = [vllm.KVCacheGroupSpec(["layer"], spec)]
        self.manager = vllm.KVCacheManager(
            vllm.KVCacheConfig(blocks + 1, [], groups),
            max_model_len=longest,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            max_in_flight_tokens=longest,
            enable_caching=True,
        )
        self.hasher = vllm.get_request_block_hasher(BLOCK, hashing)
        self.opened = 0

    def make_request(self, tokens: list[int]) -> Any:
        self.opened += 1
        sampling = Sampling()
        return self.vllm.Request(
            str(self.opened), tokens, sampling, None, block_hasher=self.hasher
        )


class Released(VllmBlocks):
    """vLLM's block manager, called as vLLM's scheduler calls it."""

    def __init__(self) -> None:
        super().__init__(ROOM, 1 << 20)
        self.number = 1000
        for number in range(CACHED * BLOCK // 16_000):
            self.manager.free(self.compute(make_tokens(number, 16_000)))
        self.running = [
            self.compute(make_tokens(5000 + number, 40)) for number in range(BATCH)
        ]

    def compute(self, tokens: list[int]) -> Any:
        request = self.make_request(tokens)
        self.manager.new_step_starts()
        blocks, hit, _ = self.manager.get_computed_blocks(request)
        self.manager.allocate_slots(request, len(tokens) - hit, hit, blocks)
        request.num_computed_tokens = len(tokens)
        return request

    def request(self) -> float:
        self.number += 1
        tokens = make_tokens(self.number, REQUEST * BLOCK)
        begin = time.perf_counter()
        self.manager.free(self.compute(tokens))
        return time.perf_counter() - begin

    def match(self) -> float:
        tokens = make_tokens(7, MATCH + 1)
        begin = time.perf_counter()
        _, hit, _ = self.manager.get_computed_blocks(self.make_request(tokens))
        assert hit == MATCH
        return time.perf_counter() - begin

    def step(self) -> float:
        begin = time.perf_counter()
        self.manager.new_step_starts()
        for request in self.running:
            request.append_output_token_ids(1)
            self.manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1
        return time.perf_counter() - begin


class Sampling:
    """The sampling parameters that a request reads."""

    max_tokens = 1 << 20
    extra_args = None
    skip_reading_prefix_cache = None


# --- the command ------------------------------------------------------------------------

WORK = {
    "request": "a request of 1,024 blocks",
    "match": "a match of 8,192 tokens",
    "step": "a step of 256 requests",
    "begin": "a request on 2,000 prompts",
}


def measure(managers: Mapping[str, Any], works: Iterable[str], rounds: int) -> Medians:
    """Measures each work on each manager, in turns; returns median microseconds."""
    medians = {}
    for work in works:
        times: dict[str, list[float]] = {name: [] for name in managers}
        for turn in range(rounds):
            for name in sorted(managers, reverse=bool(turn % 2)):
                gc.collect()
                times[name].append(getattr(managers[name], work)())
        medians[work] = {name: 1e6 * median(times[name]) for name in managers}
    return medians


@click.command()
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1))
@JSON
def main(rounds: int, path: Path | None) -> None:
    """Measures block managers, and a trie of prefixes."""
    managers: dict[str, Any] = {"ours": Ours()}
    try:
        managers["vLLM"] = Released()
    except Unavailable as error:
        click.echo(f"vLLM is not measured: {error}")
    *works, begin = WORK
    medians = measure(managers, works, rounds)
    ratios = {
        work: times["ours"] / times["vLLM"]
        for work, times in medians.items()
        if "vLLM" in times
    }
    medians |= measure({"ours": Prefixes()}, [begin], rounds)
    rows = []
    for work, times in medians.items():
        cells = [f"{times[name]:,.0f}" if name in times else "–" for name in managers]
        ratio = f"{ratios[work]:.2f}" if work in ratios else "–"
        rows.append([WORK[work], *cells, ratio])
    print_table("median µs", ["work", *managers, "ratio"], rows)
    if path:
        path.write_text(json.dumps({"microseconds": medians, "ratios": ratios}, indent=1))
    is_slow = medians[begin]["ours"] > MAX_MICROSECONDS
    sys.exit(is_slow or any(ratio > BAR for ratio in ratios.values()))


if __name__ == "__main__":
    main()
