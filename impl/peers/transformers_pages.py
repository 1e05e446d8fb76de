"""The adapter to transformers' paged cache, with the calls of continuous batching.

`schedule` calls the library's own scheduler for one request. `update` uses the library's
inputs of a batch. The other methods make the calls of `ContinuousBatchProcessor` and
`OffloadingManager`, in the same order. The adapter checks no call.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from transformers.generation.continuous_batching.cache_allocators import cache_allocator
from transformers.generation.continuous_batching.requests import (
    FutureRequestState,
    RequestState,
    RequestStatus,
)

from lockstep.harness.backends.paged import Entry, Pool, Ring, Table

Pair = tuple[torch.Tensor, torch.Tensor]


class Scheduled(NamedTuple):
    """A request in a step.

    Attributes:
        future: the library's record of the request.
        is_decode: whether a kernel with tables may process the request.
        tokens: the number of tokens to compute.
        reads: the largest number of tokens to read.
    """

    future: FutureRequestState
    is_decode: bool
    tokens: int
    reads: int


class Pages:
    """Adapts a `PagedAttentionCache` to the interface of the paged contract.

    Args:
        cache: the cache.
        scheduler: the library's scheduler.
        runner: the library's model runner, which has the inputs of a batch.
        types: for each group of layers, the name of its type.
        layers: the number of each layer in the model, in the order of the groups.

    Attributes:
        states: request → the library's state of the request.
        step: request → its record, for the scheduled requests, in order.
        inputs: the inputs of the model for this step, after they are made.
        copied: copied blocks of full attention, as pairs of source and target.
        prefixes: hash → the tokens of the hash.
    """

    def __init__(
        self,
        cache: Any,
        scheduler: Any,
        runner: Any,
        types: Sequence[str],
        layers: Sequence[int],
    ) -> None:
        self.cache, self.scheduler, self.runner = cache, scheduler, runner
        self.types, self.layers = types, layers
        self.states: Mapping[str, Any] = ChainMap(
            scheduler.active_requests, scheduler.waiting_requests
        )
        self.step: dict[str, Scheduled] = {}
        self.inputs: Mapping[str, Any] | None = None
        self.copied: list[tuple[int, int]] = []
        self.prefixes: dict[int, tuple[int, ...]] = {}

    def open(self, request: str, tokens: Sequence[int], namespace: str | None) -> None:
        state = RequestState(request, list(tokens), max_new_tokens=None)
        self.scheduler.add_waiting_request(state)

    # --- a step -------------------------------------------------------------------------

    def schedule(self, request: str, count: int) -> int | None:
        """Schedules a request.

        If there is no free block, acts like `prepare_next_batch`: evicts cached blocks,
        then resets the request if it began with a hit.
        """
        waited = request in self.scheduler.waiting_requests
        planned = self.try_schedule(request, count)
        if not planned:
            self.cache.evict_cached_blocks()
            planned = self.try_schedule(request, count)
        if planned:
            start: int = self.states[request].position_offset
            return start
        if waited and request in self.scheduler.active_requests:
            self.preempt(request)
        return None

    def try_schedule(self, request: str, count: int) -> bool:
        """Calls the library's scheduler with this request as the only candidate for the
        current step."""
        begun: set[str] = set()
        reads = self.cache.max_tokens_read - sum(
            item.reads for item in self.step.values()
        )
        planned, _, *sizes = self.scheduler._process_candidates(
            [self.states[request]], count, reads, begun
        )
        self.scheduler._cleanup_waiting_queue(begun)
        for future in planned:
            self.step[request] = Scheduled(future, *sizes)
        return bool(planned)

    def prepare(self) -> Mapping[str, Any]:
        """Makes the inputs of the model, once in each step. This updates the requests."""
        if self.inputs is None:
            step, runner = self.step.values(), self.runner
            tokens, reads = (
                sum(item.tokens for item in step),
                sum(item.reads for item in step),
            )
            is_decode = all(item.is_decode for item in step)
            tokens, reads = runner.maybe_pad_inputs(tokens, reads, is_decode)
            runner.inputs_and_outputs.prepare_batch_tensors(
                requests_in_batch=[item.future for item in step],
                logits_processors=runner.logit_processor,
                use_decode_fast_path=is_decode,
                num_q_tokens=tokens,
                max_kv_read=reads,
                use_padding=runner.pad_inputs,
            )
            self.inputs = runner.inputs_and_outputs.get_model_kwargs(runner.pad_inputs)
        return self.inputs

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> list[Pair]:
        inputs = dict(self.prepare())  # `update` changes what a layer is given
        keys, values = self.cache.update(keys, values, self.layers[layer], inputs)
        ends = inputs["cu_seq_lens_k"][: len(self.step) + 1].tolist()
        return [
            (keys[:, :, begin:end], values[:, :, begin:end])
            for begin, end in pairwise(ends)
        ]

    def run(self) -> None:
        self.prepare()
        for item in self.step.values():
            state = item.future.state
            self.name_prefixes(state)
            self.cache.mark_complete_blocks(state, item.future.complete_blocks)
        self.step, self.inputs = {}, None

    def name_prefixes(self, state: Any) -> None:
        """Stores the tokens of each hash of a request."""
        tokens = (state.initial_tokens + state.generated_tokens)[: state.position_offset]
        for allocator in self.cache.cache_allocators.values():
            parent, page = None, allocator.tokens_per_page
            for end in range(page, len(tokens) + 1, page):
                page_tokens = tokens[end - page : end]
                parent = cache_allocator.compute_block_hash(parent, page_tokens)
                self.prefixes[parent] = tuple(tokens[:end])

    def accept(
        self, request: str, accepted: int, sampled: int, drafts: Sequence[int]
    ) -> None:
        self.states[request].update_and_check_completion(sampled, None)

    # --- release ------------------------------------------------------------------------

    def preempt(self, request: str) -> None:
        """Resets a request, like `offload_requests` without host memory."""
        state = self.states[request]
        self.step.pop(request, None)
        self.cache.free_blocks(request, no_cache=True)
        equivalent = state.create_equivalent_initial_request()
        state._status = RequestStatus.FINISHED
        self.scheduler.finish_request(request)
        self.scheduler.add_waiting_request(equivalent)

    def free(self, request: str, reuse: bool) -> None:
        self.step.pop(request, None)
        if not reuse:
            self.cache.free_blocks(request, no_cache=True)
        self.scheduler.set_request_cancellation(request)
        self.scheduler.clear_cancelled_requests()

    def evict(self, count: int) -> int:
        """Evicts all cached blocks, because the library cannot evict a given number of
        blocks."""
        cached = [block for item in self.list_ledgers() for block in item.cached_blocks]
        self.cache.evict_cached_blocks()
        return len(cached)

    def reset(self) -> bool:
        self.cache.reset()
        return True

    def fork(self, source: str, target: str, tokens: Sequence[int]) -> bool:
        """Forks a request, like `update_batch`; the new request continues with its own
        tokens.

        If there are too few blocks, `update_batch` opens a request without slots. This
        method first evicts cached blocks, which the next step would do.
        """
        state = self.states[source]
        if not self.try_fork(state, target):
            self.cache.evict_cached_blocks()
            if not self.try_fork(state, target):
                return False
        child = state.fork(target)
        all_tokens = (state.initial_tokens + state.generated_tokens)[
            : state.position_offset
        ]
        child.initial_tokens, child.generated_tokens = [*all_tokens, *tokens], []
        child.remaining_prefill_tokens = list(tokens)
        child.status = RequestStatus.PREFILLING
        self.scheduler.active_requests[target] = child
        return True

    def try_fork(self, state: Any, target: str) -> bool:
        copies: dict[str, tuple[list[int], list[int]]]
        copies = {name: ([], []) for name in self.cache.cache_allocators}
        self.cache.pool.try_to_free_sectors()
        forked = self.cache.prepare_fork_request(state, [target], copies)
        self.cache.perform_cache_copy(copies)
        full = copies.get("full_attention", ([], []))
        self.copied += zip(*full, strict=True)
        return bool(forked)

    # --- reports ------------------------------------------------------------------------

    def tables(self, request: str) -> list[Table]:
        """Returns a table for each group; the table of a sliding group is a ring."""
        return [self.get_table(name, request) for name in self.types]

    def get_table(self, name: str, request: str) -> Table:
        allocator = self.cache.cache_allocators[name]
        blocks = self.list_units(allocator, allocator.block_table[request])
        return Ring(blocks) if name == "sliding_attention" else blocks

    def copies(self) -> list[tuple[int, int]]:
        copied, self.copied = self.copied, []
        return copied

    def pool(self) -> Pool:
        """Returns the pool, counted in blocks of the smallest type.

        A free sector can become blocks of any type. A block of another type counts as
        several of the smallest blocks.
        """
        pool = self.cache.pool
        free = [
            unit
            for allocator in self.list_allocators()
            for tree in pool._free_blocks[allocator.index].trees.values()
            for unit in self.list_units(allocator, tree)
        ]
        free += self.list_sectors(pool.free_sectors)
        cached = [
            unit
            for allocator in self.list_allocators()
            for unit in self.list_units(allocator, allocator.ledger.cached_blocks)
        ]
        first = pool.num_reserved_sectors
        blocks = self.list_sectors(range(first, first + pool.num_sectors))
        used = set(blocks) - {*free, *cached}
        shared = ChainMap(*(item.shared_ref_counts for item in self.list_ledgers()))
        return Pool({unit: shared.get(unit, 1) for unit in used}, free, cached)

    def entries(self) -> list[Entry]:
        return [
            Entry(group, None, self.prefixes[key], block)
            for group, name in enumerate(self.types)
            for key, block in self.get_ledger(name).hash_to_block.items()
        ]

    def get_ledger(self, name: str) -> Any:
        return self.cache.cache_allocators[name].ledger

    def list_ledgers(self) -> Iterator[Any]:
        return (allocator.ledger for allocator in self.list_allocators())

    def list_allocators(self) -> list[Any]:
        return list(self.cache.cache_allocators.values())

    def list_units(self, allocator: Any, blocks: Sequence[int]) -> list[int]:
        size = allocator.bytes_per_block // self.get_unit()
        return [unit for item in blocks for unit in range(item * size, (item + 1) * size)]

    def list_sectors(self, sectors: Sequence[int]) -> list[int]:
        size = self.cache.bytes_per_sector // self.get_unit()
        return [
            unit for item in sectors for unit in range(item * size, (item + 1) * size)
        ]

    def get_unit(self) -> int:
        """Returns the size of the smallest block in bytes."""
        return min(allocator.bytes_per_block for allocator in self.list_allocators())
