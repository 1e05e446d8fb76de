"""The adapter to SGLang's prefix caches and token pools, with the calls of the scheduler.

Comments contain line numbers of version 0.5.23, below `sglang/srt/`: H means
`managers/scheduler.py`, B `managers/schedule_batch.py`, P `managers/schedule_policy.py`,
R `managers/scheduler_components/batch_result_processor.py`, C `mem_cache/common.py`.

`sglang` declares the backends, `sglang_pools` opens the pools, and `sglang_facts` reports
the contents of the trees and pools.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from lockstep.harness.backends.paged import Entry, Pool
from lockstep.impl.peers.engines.sglang import load_sglang
from lockstep.impl.peers.sglang_facts import EventReader, Facts, Layout
from lockstep.impl.peers.sglang_pools import (
    Config,
    Options,
    open_rows,
    open_slots,
    open_tree,
)

sglang = load_sglang()

SAMPLING = SimpleNamespace(
    max_new_tokens=1 << 20, stop_strs=[], stop_regex_strs=[], ignore_eos=True
)
NO_SPECULATION = SimpleNamespace(is_none=lambda: True)
EXTEND = SimpleNamespace(is_decode=lambda: False, is_extend=lambda: True)
DECODE = SimpleNamespace(is_decode=lambda: True, is_extend=lambda: False)
MODEL = SimpleNamespace(is_encoder_decoder=False)


class Trees:
    """A tree with its pools, and the scheduler code that calls them.

    Attributes:
        rows: the `ReqToTokenPool`.
        slots: the allocator of token slots.
        tree: the prefix cache.
        requests: name → its `Req`.
        running: the names of the requests that have sampled a token and now decode.
        step: the names of the requests in the current step.
        moved: the states to copy, as pairs of source and target.
    """

    def __init__(self, config: Config, layout: Layout, options: Options) -> None:
        self.config, self.layout, self.options = config, layout, options
        self.rows, self.slots = open_rows(config, layout), open_slots(config, layout)
        self.tree = open_tree(config, layout, options, self.rows, self.slots)
        self.facts = Facts(layout, self.rows, self.slots, self.tree, options.core)
        self.reader = EventReader()
        self.requests: dict[str, Any] = {}
        self.running: set[str] = set()
        self.step: list[str] = []
        self.moved: list[tuple[int, int]] = []
        if layout.state is not None:
            self.rows.mamba_pool.copy_from = self.move

    def move(self, source: Any, target: Any) -> None:
        """Notes the copy of a state. Replaces `MambaPool.copy_from`, because the harness
        holds the states."""
        self.moved += zip(
            self.facts.name_states(source), self.facts.name_states(target), strict=True
        )

    def open(self, request: str, tokens: Sequence[int], namespace: str | None) -> None:
        space = "cache_salt" if self.options.salts else "extra_key"
        self.requests[request] = sglang.Req(
            request, "", array("q", tokens), SAMPLING, **{space: namespace}
        )

    def match(self, name: str) -> int:
        request = self.requests[name]
        request.init_next_round_input(self.tree)
        return int(request.prefix_len)

    # --- a step -------------------------------------------------------------------------

    def schedule(self, name: str, count: int) -> int | None:
        request = self.requests[name]
        if name in self.running:
            start = self.decode(request)
        elif request.kv.holds_kv:
            start = self.go_on(request, count)
        else:
            start = self.admit(request, count)
        if start is not None:
            self.step.append(name)
        return start

    def admit(self, request: Any, count: int) -> int | None:
        """Schedules a waiting request (H:4216 to 4304, P:1395, P:1685)."""
        if self.rows.available_size() == 0:
            return None
        request.init_next_round_input(self.tree)
        pinned = self.tree.lock(request.last_node)
        fits = self.has_room(request, count)
        if fits:
            request.extend_end = self.find_end(request, count)
            request.lock = self.tree.lock(request.last_node)
        self.tree.unlock(pinned)
        if not fits:
            self.give_back_state(request)
            return None
        return self.extend(request)

    def give_back_state(self, request: Any) -> None:
        """Frees the state that a match has allocated for a request (H:4291)."""
        request.kv.mamba_cow_src_index = None
        request.kv.mamba_needs_clear = False
        if request.kv.holds_mamba:
            self.rows.mamba_allocator.free(request.kv.mamba_pool_idx.unsqueeze(-1))
            request.kv.mamba_pool_idx = None

    def go_on(self, request: Any, count: int) -> int | None:
        """Schedules the next chunk of a prompt (H:4176, P:1140)."""
        request.init_next_round_input()
        if not self.has_room(request, count):
            return None
        request.extend_end = self.find_end(request, count)
        return self.extend(request)

    def find_end(self, request: Any, count: int) -> int:
        return min(request.prefix_len + count, len(request.full_untruncated_fill_ids))

    def has_room(self, request: Any, count: int) -> bool:
        """Returns whether enough slots are free or can be evicted.

        `PrefillAdder` makes the same test, but also reserves slots for later tokens.
        """
        page = self.layout.page
        pages = -(-self.find_end(request, count) // page) - -(-request.prefix_len // page)
        return self.facts.has_room(pages * page, int(not request.kv.holds_mamba))

    def extend(self, request: Any) -> int:
        """Makes a batch of prompts (B:2884 to 2914, H:4357)."""
        start, end = request.prefix_len, request.extend_end
        batch = self.make_batch(
            request, EXTEND, end, prefix_lens=[start], extend_lens=[end - start]
        )
        batch.extend_num_tokens = end - start
        sglang.alloc_for_extend(batch)
        request.extend_batch_idx += 1
        request.is_retracted = False
        if self.layout.full is None and self.options.keeps_prompt:
            request.kv.swa_evict_floor = end
        batch._collect_deferred_mamba_cow_and_clear([request])
        if batch.mamba_cow_src_indices is not None:
            self.move(batch.mamba_cow_src_indices, batch.mamba_cow_dst_indices)
        return int(start)

    def decode(self, request: Any) -> int | None:
        """Makes a batch of decoding requests (H:4469, B:3780)."""
        start = request.kv.kv_committed_len
        batch = self.make_batch(request, DECODE, start)
        if not batch.check_decode_mem():
            return None
        with sglang.envs.SGLANG_SWA_EVICTION_INTERVAL.override(1):
            sglang.alloc_for_decode(batch, token_per_req=1)
        request.decode_batch_idx += 1
        return int(start)

    def make_batch(
        self,
        request: Any,
        mode: Any,
        length: int,
        algorithm: Any = NO_SPECULATION,
        **fields: Any,
    ) -> Any:
        lengths = torch.tensor([length])
        return sglang.ScheduleBatch(
            reqs=[request],
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.slots,
            tree_cache=self.tree,
            model_config=MODEL,
            device="cpu",
            spec_algorithm=algorithm,
            forward_mode=mode,
            req_pool_indices=torch.tensor([request.kv.req_pool_idx or 0]),
            req_pool_indices_cpu=torch.tensor([request.kv.req_pool_idx or 0]),
            seq_lens=lengths,
            seq_lens_cpu=lengths,
            **fields,
        )

    def copies(self) -> list[tuple[int, int]]:
        moved, self.moved = self.moved, []
        return moved

    def run(self) -> None:
        """Publishes chunks that do not complete a prompt (H:3776, H:3919)."""
        for name in self.step:
            request = self.requests[name]
            is_chunk = request.extend_end < len(request.full_untruncated_fill_ids)
            if is_chunk and name not in self.running:
                sglang.checkpoint_kv_cache(request, self.tree)
        self.step = []

    def accept(
        self, name: str, accepted: int, sampled: int, drafts: Sequence[int]
    ) -> None:
        """Processes the output of a request; publishes a complete prompt (R:365
        to 394)."""
        request = self.requests[name]
        request.output_ids.append(sampled)
        if name not in self.running:
            sglang.checkpoint_kv_cache(request, self.tree)
        self.running.add(name)

    # --- release ------------------------------------------------------------------------

    def preempt(self, name: str) -> None:
        """Preempts a request, which SGLang calls retract (B:2360)."""
        running = [request for request in self.requests.values() if request.kv.holds_kv]
        sglang.release_req(
            req=self.requests[name],
            remaing_req_count=len(running) - 1,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.slots,
            tree_cache=self.tree,
            hisparse_coordinator=None,
        )
        self.running.discard(name)

    def free(self, name: str, reuse: bool) -> None:
        """Ends a request that waits (H:5675), whose prompt is incomplete (H:3778), or
        that has sampled a token (R:1466)."""
        request = self.requests.pop(name)
        is_chunk = request.kv.kv_committed_len < len(request.full_untruncated_fill_ids)
        request.finished_reason = SimpleNamespace()
        if request.kv.holds_kv:
            checkpoint = name in self.running or not is_chunk
            sglang.release_kv_cache(request, self.tree, checkpoint=checkpoint)
        self.running.discard(name)

    def evict(self, count: int) -> int:
        return self.facts.evict(count)

    def reset(self) -> bool:
        """Flushes the cache, like an idle server (H:5518)."""
        if any(request.kv.holds_kv for request in self.requests.values()):
            return False
        self.tree.reset()
        self.rows.clear()
        self.slots.clear()
        return True

    # --- reports ------------------------------------------------------------------------

    def tables(self, request: str) -> list[list[int | None]]:
        return self.facts.list_tables(self.requests[request])

    def pool(self) -> Pool:
        return self.facts.get_pool()

    def entries(self) -> list[Entry]:
        return self.facts.list_entries()

    def events(self) -> list[tuple[str, Entry | None]]:
        return self.reader.translate(self.tree.take_events())
