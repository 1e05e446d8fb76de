"""The adapter to the prefix caches of vllm-mlx, which runs the library's `Scheduler`.

The harness replaces the model: the scheduler looks for stored tokens, and inserts the
remaining tokens with a cache into a `BatchGenerator` of mlx-lm, whose batch has one row.
When the request ends, the scheduler gets the response of this generator, and stores the
row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from vllm_mlx.memory_cache import MemoryAwarePrefixCache, MemoryCacheConfig
from vllm_mlx.request import Request, SamplingParams
from vllm_mlx.scheduler import Scheduler, SchedulerConfig

from lockstep.harness.backends import Backend, Kind
from lockstep.harness.backends.interface import Array
from lockstep.impl.peers.mlx_lm import SHARE, declare
from lockstep.impl.peers.mlx_lm_layers import Layer

Config = Mapping[str, Any]

TOKENIZER = SimpleNamespace(encode=list, decode=str, eos_token_id=None)
SAMPLING = SamplingParams(max_tokens=1 << 20)


class Row(Layer):
    """A `BatchKVCache` with one row."""

    @property
    def offset(self) -> int:
        return int(self.cache.offset[0])

    def state(self) -> tuple[Array, Array] | None:
        """Returns all tokens; the state of an empty cache raises an exception."""
        return None if self.cache.keys is None else self.cache.state[:2]


class Conversations:
    """A scheduler that serves one request at a time.

    Attributes:
        scheduler: the `Scheduler`.
        request: the open `Request`.
        tokens: the tokens of the prompt and the generated tokens.
        batch: the batch of the request, a `PromptProcessingBatch` of mlx-lm.
    """

    batch: Any

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.count = 0
        self.layers: Sequence[Row] = ()

    def begin(self, tokens: Sequence[int], checkpoints: Sequence[int]) -> Sequence[int]:
        self.count += 1
        self.request = Request(str(self.count), list(tokens), SAMPLING)
        self.tokens = list(tokens)
        self.scheduler.add_request(self.request)
        self.scheduler._schedule_waiting()
        generator = self.scheduler.batch_generator
        _, segments, *_ = generator._unprocessed_sequences[-1]
        self.batch = generator._make_batch(1)
        self.layers = [Row(cache) for cache in self.batch.prompt_cache]
        return [token for segment in segments for token in segment]

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def close(self) -> int:
        """Ends the request.

        The scheduler stores only requests that generated tokens. A request that ends
        earlier stands for a request whose prompt has only the computed tokens.
        """
        computed = self.layers[0].offset
        if computed:
            response = SimpleNamespace(
                uid=self.request.batch_uid,
                token=self.tokens[computed - 1],
                finish_reason="stop",
                prompt_cache=self.batch.extract_cache(0),
            )
            self.scheduler._process_batch_responses([response])
        self.request.prompt_token_ids = self.tokens[:computed]
        self.request.output_token_ids = []
        self.scheduler._cleanup_finished({self.request.request_id})
        self.scheduler.remove_finished_request(self.request.request_id)
        return computed


def vllm_mlx() -> Backend:
    """Declares `MemoryAwarePrefixCache`, the default of the scheduler.

    The scheduler stores no prompt of less than 128 tokens. Here it stores all prompts.
    Numbers are copied by the addition of 0, which changes -0.
    """
    return _backend("vllm-mlx", _open_memory)


def vllm_mlx_entries() -> Backend:
    """Declares `PrefixCacheManager` (`--no-memory-aware-cache`)."""
    opener = partial(_open, use_memory_aware_cache=False)
    return _backend("vllm-mlx-entries", opener, SHARE)


def paged() -> Backend:
    """Declares `BlockAwarePrefixCache` (`--use-paged-cache`), with blocks of one token.

    It is not registered, because almost all its programs diverge.
    """
    opener = partial(_open, use_paged_cache=True, paged_cache_block_size=1)
    return _backend("paged", opener)


def _open(config: Config, **settings: Any) -> Conversations:
    model = SimpleNamespace(layers=config["layers"])
    return Conversations(Scheduler(model, TOKENIZER, SchedulerConfig(**settings)))


def _open_memory(config: Config) -> Conversations:
    opened = _open(config)
    opened.scheduler.memory_aware_cache = MemoryAwarePrefixCache(
        opened.scheduler.model, MemoryCacheConfig(min_prefix_tokens=1)
    )
    return opened


def _backend(name: str, opener: Callable[[Config], Any], share: int = 1) -> Backend:
    """Declares a trie of models whose layers keep all tokens; see `mlx_lm_prompts`."""
    config: Mapping[str, tuple[Any, ...]] = {
        "layers": (["kv"], ["kv", "kv"]),
        "special_numbers": (False,),
    }
    kinds = {"trie": Kind(frozenset({"begin", "feed", "close"}), config)}
    return declare(name, kinds, opener, share, contract="prefix", library="vllm-mlx")
