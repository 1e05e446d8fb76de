"""Measures decode attention through block tables on torch: our cache, and transformers'
paged cache.

All requests have the same number of tokens, in blocks of 16. A step writes one token of
each request and computes attention. Making the indices, which are the same for all layers
of a step, is not measured for any contender.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch

from ci.bench.speed.measure import Contender
from ci.bench.speed.workloads import DIM, Contenders
from lockstep.impl.shared.paged_memory import StoringManager
from lockstep.impl.torch.paged import TorchBlocks

BLOCK = 16

Work = Callable[[], torch.Tensor]


def list_contenders(
    requests: int, tokens: int, heads: int, like: torch.Tensor
) -> Contenders:
    """Lists the contenders for one size.

    Args:
        requests: the number of requests.
        tokens: the number of tokens of each request.
        heads: the number of heads of K and V.
        like: an empty tensor with the device and dtype of K and V.
    """
    sizes = requests, tokens, fill(-1, requests, heads, like)
    contenders = [Contender("ours", "ours", make_ours(*sizes))]
    if find_spec("transformers"):
        contenders.append(Contender("transformers paged", "peer", make_released(*sizes)))
    return [*contenders, Contender("each alone", "limit", attend_alone(*sizes))]


def fill(number: int, tokens: int, heads: int, like: torch.Tensor) -> torch.Tensor:
    """Returns random numbers [1, heads, tokens, DIM], which are both K and V of a
    request."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn((1, heads, tokens, DIM), generator=generator).to(like)


def make_ours(requests: int, tokens: int, step: torch.Tensor) -> Work:
    """Fills our cache and returns the work of a step."""
    heads, blocks = step.shape[1], requests * (tokens // BLOCK + 2)
    memory = TorchBlocks(blocks, BLOCK, 1, heads, (DIM, DIM), step.new_empty(0))
    group = {"type": "full", "block": BLOCK, "layers": 1}
    cache = StoringManager(memory, [group], blocks, tokens + 2)
    names = list(map(str, range(requests)))
    for number, name in enumerate(names):
        cache.open(name, [number] * (tokens + 1), None)
        cache.schedule(name, tokens)
        filled = fill(number, tokens, heads, step)
        cache.write(0, filled, filled)
        cache.run()
    for name in names:
        cache.schedule(name, 1)

    def attend() -> torch.Tensor:
        cache.write(0, step, step)
        attended: torch.Tensor = cache.attend(0, step)
        return attended

    return attend


def attend_alone(requests: int, tokens: int, step: torch.Tensor) -> Work:
    """Returns work that attends to each request separately, with contiguous K and V."""
    heads = step.shape[1]
    held = [fill(number, tokens + 1, heads, step) for number in range(requests)]
    queries = [step[:, :, row : row + 1] for row in range(requests)]
    attention = torch.nn.functional.scaled_dot_product_attention

    def attend() -> torch.Tensor:
        every = zip(queries, held, strict=True)
        return torch.cat([attention(query, own, own) for query, own in every], 2)

    return attend


def make_released(requests: int, tokens: int, step: torch.Tensor) -> Work:
    """Fills transformers' cache, like continuous batching, and returns the work of a
    step."""
    from transformers import ContinuousBatchingConfig, LlamaConfig
    from transformers.generation.continuous_batching.cache import PagedAttentionCache
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    heads, device = step.shape[1], step.device
    config = LlamaConfig(
        num_hidden_layers=1,
        hidden_size=heads * DIM,
        num_attention_heads=heads,
        num_key_value_heads=heads,
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
    alone = SimpleNamespace(tp_size=1)
    cache = PagedAttentionCache(config, sizes, device, alone, step.dtype)

    def index(items: list[tuple[str, int, int]]) -> dict[str, Any]:
        groups = cache.cache_allocators.values()
        read: list[list[int]] = [[] for _ in groups]
        written: list[list[int]] = [[] for _ in groups]
        for name, past, count in items:
            cache.extend_read_and_write_indices(name, past, count, read, written)
        names = [group.layer_type for group in groups]
        return {
            "read_index": [torch.tensor(each, device=device) for each in read],
            "write_index": [torch.tensor(each, device=device) for each in written],
            "cu_seq_lens_k": dict.fromkeys(names, torch.tensor([0])),
            "max_length_k": dict.fromkeys(names, 0),
        }

    for number in range(requests):
        request = Request(str(number), [number] * (tokens + 1))
        cache.search_prefix_match(request.request_id, request.initial_tokens)
        assert cache.can_store_request_tokens(request, tokens)
        filled = fill(number, tokens, heads, step)
        cache.update(filled, filled, 0, index([(request.request_id, 0, tokens)]))
        request.length = tokens
        assert cache.can_store_request_tokens(request, 1)
    made = index([(str(number), tokens, 1) for number in range(requests)])
    size = 1, 1, requests, requests * (tokens + 1)
    mask = step.new_full(size, float("-inf"))
    for number in range(requests):
        mask[..., number, number * (tokens + 1) : (number + 1) * (tokens + 1)] = 0
    module: Any = SimpleNamespace(layer_idx=0, num_key_value_groups=1)

    def attend() -> torch.Tensor:
        inputs = dict(made)  # the update changes them
        keys, values = cache.update(step, step, 0, inputs)
        attended, _ = sdpa_attention_forward(
            module, step, keys, values, mask, scaling=DIM**-0.5, **inputs
        )
        return attended.transpose(1, 2)

    return attend


class Request:
    """A request with the attributes that transformers' cache reads."""

    def __init__(self, name: str, tokens: list[int]) -> None:
        self.request_id, self.initial_tokens = name, tokens
        self.generated_tokens: list[int] = []
        self.length = 0

    def current_len(self) -> int:
        return self.length
