"""The adapter to SGLang's prefix caches with drafts.

The letters and line numbers in comments are explained in `sglang_trees`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import torch

from lockstep.impl.peers.engines.sglang import load_sglang, speculate
from lockstep.impl.peers.sglang_facts import Layout
from lockstep.impl.peers.sglang_pools import Config, Options
from lockstep.impl.peers.sglang_trees import DECODE, Trees

sglang = load_sglang()
SPECULATION = SimpleNamespace(is_none=lambda: False)


class DraftingTrees(Trees):
    """A tree and its scheduler code with drafts. Slots for drafts are allocated in
    advance (`eagle_prepare_for_decode`).

    Attributes:
        drafted: name of a request → the drafts of the request.
    """

    def __init__(self, config: Config, layout: Layout, options: Options) -> None:
        super().__init__(config, layout, options)
        self.drafted: dict[str, Sequence[int]] = {}

    def speculate(self) -> AbstractContextManager[None]:
        return speculate(str(self.options.drafts), self.config["lookahead"])

    def decode(self, request: Any) -> int | None:
        start, page = request.kv.kv_committed_len, self.layout.page
        batch = self.make_batch(request, DECODE, start, SPECULATION)
        with self.speculate(), sglang.envs.SGLANG_SWA_EVICTION_INTERVAL.override(1):
            if not batch.check_decode_mem():
                return None
            batch.maybe_evict_swa()
            reserve = sglang.get_alloc_reserve_per_decode()
            begins, ends, needed = sglang.page_aligned_decode_alloc_lens(
                [request], reserve=reserve, page_size=page
            )
            request.decode_batch_idx += 1
            starts, stops = torch.tensor(begins), torch.tensor(ends)
            sglang.alloc_for_spec_decode(
                self.tree,
                self.rows,
                reqs=[request],
                req_pool_indices=batch.req_pool_indices,
                cur_kv_lens=starts,
                cur_kv_lens_cpu=starts,
                nxt_kv_lens=stops,
                nxt_kv_lens_cpu=stops,
                num_needed_tokens=needed,
                batch=batch,
            )
        return int(start)

    def accept(
        self, name: str, accepted: int, sampled: int, drafts: Sequence[int]
    ) -> None:
        """Commits the accepted drafts and the token before them (R:831)."""
        request = self.requests[name]
        if name in self.running:
            request.kv.kv_committed_len += accepted + 1
        request.output_ids.extend(self.drafted.pop(name, ())[:accepted])
        super().accept(name, accepted, sampled, drafts)
        self.drafted[name] = list(drafts)

    def preempt(self, request: str) -> None:
        with self.speculate():
            super().preempt(request)
        self.drafted.pop(request, None)

    def free(self, request: str, reuse: bool) -> None:
        with self.speculate():
            super().free(request, reuse)
        self.drafted.pop(request, None)
