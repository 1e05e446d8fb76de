"""Measures decode attention through tables beside transformers' paged path, on the CPU.

    python ci/bench/tables.py
    python ci/bench/tables.py --requests 8 --tokens 512 --rounds 3 --json tables.json

Requests hold so many tokens each, in blocks of 16; a step writes one more token of each
and attends. Both sides have 8 heads of 128 in float32, one thread, and the same indices
for all layers of a step, which are not timed for either. Exit status 1 if our median is
over 1.05 of transformers'.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
sys.path[0] = str(Path(__file__).resolve().parents[2])

import click  # noqa: E402
import torch  # noqa: E402
from transformers import ContinuousBatchingConfig, LlamaConfig  # noqa: E402
from transformers.generation.continuous_batching.cache import (  # noqa: E402
    PagedAttentionCache,
)
from transformers.integrations.sdpa_attention import (  # noqa: E402
    sdpa_attention_forward,
)

from ci.bench.options import JSON  # noqa: E402
from lockstep.impl.shared.paged_memory import StoringManager  # noqa: E402
from lockstep.impl.torch.paged import TorchBlocks  # noqa: E402

HEADS, DIM, BLOCK = 8, 128, 16
BAR = 1.05

Work = Callable[[], torch.Tensor]


def make_ours(requests: int, tokens: int, step: torch.Tensor) -> Work:
    """Fills our cache; returns the step."""
    blocks = requests * (tokens // BLOCK + 2)
    memory = TorchBlocks(blocks, BLOCK, 1, HEADS, (DIM, DIM), torch.empty(0))
    group = {"type": "full", "block": BLOCK, "layers": 1}
    cache = StoringManager(memory, [group], blocks, tokens + 2)
    names = list(map(str, range(requests)))
    for number, name in enumerate(names):
        cache.open(name, [number] * (tokens + 1), None)
        cache.schedule(name, tokens)
        filled = fill(number, tokens)
        cache.write(0, filled, filled)
        cache.run()
    for name in names:
        cache.schedule(name, 1)

    def attend() -> torch.Tensor:
        cache.write(0, step, step)
        attended: torch.Tensor = cache.attend(0, step)
        return attended

    return attend


def make_released(requests: int, tokens: int, step: torch.Tensor) -> Work:
    """The same of transformers, as its continuous batching calls it."""
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    config = LlamaConfig(
        num_hidden_layers=1,
        hidden_size=HEADS * DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=DIM,
        layer_types=["full_attention"],
    )
    config._attn_implementation = "paged|sdpa"
    sizes = ContinuousBatchingConfig(
        page_size=BLOCK,
        num_blocks=requests * (tokens // BLOCK + 2),
        max_batch_tokens=tokens,
        allow_block_sharing=False,
        max_memory_percent=0.9,
    )
    cache = PagedAttentionCache(
        config, sizes, torch.device("cpu"), SimpleNamespace(tp_size=1), torch.float32
    )

    def index(items: list[tuple[str, int, int]]) -> dict[str, Any]:
        groups = cache.cache_allocators.values()
        read: list[list[int]] = [[] for _ in groups]
        written: list[list[int]] = [[] for _ in groups]
        for name, past, count in items:
            cache.extend_read_and_write_indices(name, past, count, read, written)
        names = [group.layer_type for group in groups]
        return {
            "read_index": list(map(torch.tensor, read)),
            "write_index": list(map(torch.tensor, written)),
            "cu_seq_lens_k": dict.fromkeys(names, torch.tensor([0])),
            "max_length_k": dict.fromkeys(names, 0),
        }

    for number in range(requests):
        request = Request(str(number), [number] * (tokens + 1))
        cache.search_prefix_match(request.request_id, request.initial_tokens)
        assert cache.can_store_request_tokens(request, tokens)
        filled = fill(number, tokens)
        cache.update(filled, filled, 0, index([(request.request_id, 0, tokens)]))
        request.length = tokens
        assert cache.can_store_request_tokens(request, 1)
    made = index([(str(number), tokens, 1) for number in range(requests)])
    mask = torch.full((1, 1, requests, requests * (tokens + 1)), float("-inf"))
    for number in range(requests):
        mask[..., number, number * (tokens + 1) : (number + 1) * (tokens + 1)] = 0
    module: Any = SimpleNamespace(layer_idx=0, num_key_value_groups=1)

    def attend() -> torch.Tensor:
        attended, _ = sdpa_attention_forward(
            module, step, step, step, mask, scaling=DIM**-0.5, cache=cache, **made
        )
        return attended.transpose(1, 2)

    return attend


class Request:
    """What transformers' cache asks of a request."""

    def __init__(self, name: str, tokens: list[int]) -> None:
        self.request_id, self.initial_tokens = name, tokens
        self.generated_tokens: list[int] = []
        self.length = 0

    def current_len(self) -> int:
        return self.length


def fill(number: int, tokens: int) -> torch.Tensor:
    """Makes K and V of one request, the same for both sides."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn((1, HEADS, tokens, DIM), generator=generator)


@click.command()
@click.option("--requests", default=32, show_default=True, type=click.IntRange(1))
@click.option("--tokens", default=4096, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1))
@JSON
def main(requests: int, tokens: int, rounds: int, path: Path | None) -> None:
    """Measures decode attention through tables."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        step = fill(-1, requests)
        works = {
            "ours": make_ours(requests, tokens, step),
            "transformers": make_released(requests, tokens, step),
        }
        ours, released = (work() for work in works.values())
        error = float((ours - released.reshape(ours.shape)).abs().max())
        times: dict[str, list[float]] = {name: [] for name in works}
        for turn in range(rounds):
            for name in list(works)[:: 1 if turn % 2 else -1]:
                begin = time.perf_counter()
                works[name]()
                times[name].append(time.perf_counter() - begin)
    if error > 1e-4:
        raise click.ClickException(f"the two sides differ by {error:.2g}")
    medians = {name: 1e3 * median(own) for name, own in times.items()}
    ratio = medians["ours"] / medians["transformers"]
    for name, milliseconds in medians.items():
        click.echo(f"{name:>12}: {milliseconds:9.2f} ms a step")
    click.echo(f"{'ratio':>12}: {ratio:9.2f}, wanted at most {BAR}")
    if path:
        path.write_text(json.dumps({"milliseconds": medians, "ratio": ratio}, indent=1))
    sys.exit(ratio > BAR)


if __name__ == "__main__":
    main()
