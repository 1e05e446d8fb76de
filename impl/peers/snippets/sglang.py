"""The building blocks of snippets for SGLang: parts of this file are copied.

It imports SGLang and nothing of ours. What is in capitals, a snippet sets itself.
"""

from array import array
from collections import Counter
from types import SimpleNamespace

import torch
from sglang.srt.managers.schedule_batch import Req, release_req
from sglang.srt.mem_cache.allocator.swa import PureSWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import (
    checkpoint_kv_cache,
    evict_from_tree_cache,
    release_kv_cache,
)
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.pure_swa_radix_cache import PureSWARadixCache
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.runtime_context import get_context, get_parallel

WIDTH, SLOTS, MAX_LENGTH, CACHES = 2, 24, 24, True
KEEPS_PROMPT = False  # is_prefill_aware_swa of the model


def publish():
    """What a server publishes of its settings, as far as the cache reads them."""
    get_parallel().override_permanently(attn_dcp_size=1)
    get_context()._config_bags = {
        "disagg": SimpleNamespace(disaggregation_mode="null"),
        "serving": SimpleNamespace(strip_thinking_cache=False),
        "spec": SimpleNamespace(speculative_algorithm=None),
    }


class Storage(BaseSWAKVPool):
    """K and V are not needed."""

    __init__ = object.__init__
    swa_kv_pool = None
    register_mapping = translate_loc_from_full_to_swa = get_state_buf_infos = id
    get_key_buffer = get_value_buffer = get_kv_buffer = set_kv_buffer = id


class Engine:
    """A prefix cache, called as SGLang's scheduler does; and what a model would write.

    memory: slot → the namespace, and all tokens up to the one that is there."""

    def __init__(self):
        publish()
        self.slots = PureSWATokenToKVPoolAllocator(
            SLOTS, 1, torch.float32, "cpu", Storage(), False
        )
        self.rows = ReqToTokenPool(6, MAX_LENGTH + 3, "cpu", False)
        params = CacheInitParams(
            disable=not CACHES,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.slots,
            page_size=1,
            sliding_window_size=WIDTH - 1,
        )
        self.tree = PureSWARadixCache(params)
        self.requests, self.running, self.step, self.memory = {}, set(), {}, {}

    def open(self, name, tokens, salt):
        sampling = SimpleNamespace(
            max_new_tokens=99, stop_strs=[], stop_regex_strs=[], ignore_eos=True
        )
        self.requests[name] = Req(name, "", array("q", tokens), sampling, cache_salt=salt)

    def match(self, name):
        one = self.requests[name]
        one.init_next_round_input(self.tree)
        return one.prefix_len

    def schedule(self, name, count):
        one, tree, decodes = self.requests[name], self.tree, name in self.running
        if one.kv.holds_kv:
            lock = None
            if not decodes:
                one.init_next_round_input()
        elif not self.rows.available_size():
            return None
        else:
            self.match(name)
            lock = tree.lock(one.last_node)
        start = one.kv.kv_committed_len if decodes else one.prefix_len
        end = min(start + count, one.seqlen)
        if self.slots.available_size() + tree.evictable_size() < end - start:
            if lock is not None:
                tree.unlock(lock)
            return None
        evict_from_tree_cache(tree, end - start)
        if one.decode_batch_idx if decodes else not CACHES:
            tree.evict_sliding_windows(one, start)
        if lock is not None:
            one.lock = lock
            self.rows.alloc([one])
            if start:
                found = tree.prefix_device_indices(one)
                self.rows.write((one.kv.req_pool_idx, slice(0, start)), found.int())
        more = self.slots.alloc(end - start)
        self.rows.write((one.kv.req_pool_idx, slice(start, end)), more.int())
        one.kv.kv_allocated_len = one.kv.kv_committed_len = end
        if decodes:
            one.decode_batch_idx += 1
        else:
            one.extend_end = end
            one.kv.swa_evict_floor = end if KEEPS_PROMPT else 0
        self.step[name] = start, end
        return start

    def run(self):
        """Plays the model; lists what it reads that is not what should be there."""
        for name, (start, end) in self.step.items():
            for position in range(start, end):
                slot, content = self.look(name, position)
                self.memory[slot] = content
        wrong = []
        for name, (start, end) in self.step.items():
            for position in range(max(0, start - WIDTH + 1), end):
                slot, content = self.look(name, position)
                if self.memory.get(slot) != content:
                    wrong.append(f"{name}, position {position}")
        for name, (_, end) in self.step.items():
            if name not in self.running and end < self.requests[name].seqlen:
                checkpoint_kv_cache(self.requests[name], self.tree)
        self.step = {}
        return wrong

    def look(self, name, position):
        """The slot of a position, and what must be there."""
        one = self.requests[name]
        tokens = [*one.origin_input_ids, *one.output_ids]
        slot = int(self.rows.req_to_token[one.kv.req_pool_idx, position])
        return slot, (one.cache_salt, tokens[: position + 1])

    def accept(self, name, sampled):
        one = self.requests[name]
        one.output_ids.append(sampled)
        if name not in self.running:
            checkpoint_kv_cache(one, self.tree)
        self.running.add(name)

    def preempt(self, name):
        release_req(
            req=self.requests[name],
            remaing_req_count=sum(o.kv.holds_kv for o in self.requests.values()) - 1,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.slots,
            tree_cache=self.tree,
            hisparse_coordinator=None,
        )
        self.running.discard(name)

    def free(self, name):
        one = self.requests.pop(name)
        ends = name in self.running or one.kv.kv_committed_len == one.seqlen
        one.finished_reason = SimpleNamespace()
        if one.kv.holds_kv:
            release_kv_cache(one, self.tree, checkpoint=ends)
        self.running.discard(name)

    def evict(self, count):
        self.tree.evict(EvictParams(num_tokens=count))

    def reset(self):
        if any(one.kv.holds_kv for one in self.requests.values()):
            return False
        self.tree.reset()
        self.rows.clear()
        self.slots.clear()
        return True

    def list_lost(self):
        """Slots that are not exactly one of free, in the tree, and of one request."""
        free = self.slots.swa_attn_allocator.get_all_free_pages().tolist()
        counts, nodes = Counter(free), [*self.tree.root_node.children.values()]
        for node in nodes:
            counts.update(node.value.tolist())
            nodes += node.children.values()
        for one in self.requests.values():
            counts.update(self.list_own(one.kv))
        slots = range(1, SLOTS + 1)
        return [f"slot {n}: {counts[n]} times" for n in slots if counts[n] != 1]

    def list_own(self, kv):
        if not kv.holds_kv:
            return []
        row = self.rows.req_to_token[kv.req_pool_idx].tolist()
        gone = range(kv.swa_dead_lo(1), kv.get_evicted_seqlen(ComponentType.SWA))
        own = range(kv.cache_protected_len, kv.kv_allocated_len)
        return [row[position] for position in own if position not in gone]
