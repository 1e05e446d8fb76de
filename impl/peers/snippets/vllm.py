"""The building blocks of snippets for vLLM: parts of this file are copied.

It imports vLLM and nothing of ours. What is in capitals, a snippet sets itself.
"""

from math import lcm
from types import SimpleNamespace

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    get_block_hash,
    get_group_id,
    get_request_block_hasher,
    init_none_hash,
    maybe_convert_block_hash,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus

GROUPS = [("full", 2, 0)]  # type, tokens of a block, window or chunk
BLOCKS, MAX_LENGTH, CACHES, UNIT = 12, 24, True, 2


def describe(kind, block, width):
    sizes = {"block_size": block, "num_kv_heads": 1, "head_size": 1}
    if kind == "state":
        dtypes = {"shapes": ((1,),), "dtypes": (torch.float32,)}
        return MambaSpec(block_size=block, mamba_cache_mode="align", **dtypes)
    sizes["dtype"] = torch.float32
    if kind == "sliding":
        return SlidingWindowSpec(sliding_window=width, **sizes)
    if kind == "chunked":
        return ChunkedLocalAttentionSpec(attention_chunk_size=width, **sizes)
    return FullAttentionSpec(**sizes)


def find_first(kind, width, query):
    """The oldest position that the token at position `query` attends to."""
    if kind == "sliding":
        return max(0, query - width + 1)
    return query - query % width if kind == "chunked" else 0


class Engine:
    """A block manager, called as vLLM's scheduler does; and what a model would write.

    memory: (block, place in it) → group, and all tokens up to the one that is there."""

    def __init__(self):
        init_none_hash(sha256)
        groups = [
            KVCacheGroupSpec([str(n)], describe(*one)) for n, one in enumerate(GROUPS)
        ]
        self.manager = KVCacheManager(
            KVCacheConfig(BLOCKS + 1, [], groups),
            max_model_len=MAX_LENGTH + 1,
            scheduler_block_size=lcm(*(block for _, block, _ in GROUPS)),
            hash_block_size=UNIT,
            max_in_flight_tokens=MAX_LENGTH,
            enable_caching=CACHES,
        )
        self.requests, self.step, self.memory, self.prefixes = {}, {}, {}, {}

    def open(self, name, tokens, salt):
        params = SimpleNamespace(max_tokens=99)
        params.extra_args = params.skip_reading_prefix_cache = None
        hasher = get_request_block_hasher(UNIT, sha256)
        own = {"cache_salt": salt, "block_hasher": hasher}
        self.requests[name] = Request(name, tokens, params, None, **own)

    def match(self, name):
        return self.manager.get_computed_blocks(self.requests[name])[1]

    def schedule(self, name, count):
        one, manager, hit = self.requests[name], self.manager, {}
        if not self.step:
            manager.new_step_starts()
        start = one.num_computed_tokens
        if one.status != RequestStatus.RUNNING:
            blocks, start, _ = manager.get_computed_blocks(one)
            hit = {"num_new_computed_tokens": start, "new_computed_blocks": blocks}
        count = min(count, one.num_tokens - start)
        if manager.allocate_slots(one, count, **hit) is None:
            return None
        one.status, one.num_computed_tokens = RequestStatus.RUNNING, start
        self.step[name] = count
        return start

    def run(self):
        """Plays the model; lists what it reads that is not what should be there."""
        wrong = [list(self.read(name, states=True)) for name in self.step]
        for name, count in self.step.items():
            one = self.requests[name]
            for position in range(
                one.num_computed_tokens, one.num_computed_tokens + count
            ):
                for group in range(len(GROUPS)):
                    slot, content = self.look(name, group, position)
                    if slot is not None:
                        self.memory[slot] = content
        wrong += [list(self.read(name, states=False)) for name in self.step]
        for name, count in self.step.items():
            self.requests[name].num_computed_tokens += count
        self.step = {}
        return [line for lines in wrong for line in lines]

    def read(self, name, states):
        """Of a state what the step begins with; else all that its tokens attend to."""
        start = self.requests[name].num_computed_tokens
        for group, (kind, _, width) in enumerate(GROUPS):
            if (kind == "state") != states:
                continue
            first, end = find_first(kind, width, start), start + self.step[name]
            if states:
                first, end = max(0, start - 1), start
            for position in range(first, end):
                slot, content = self.look(name, group, position)
                if slot is None or self.memory.get(slot) != content:
                    yield f"{name}, group {group}, position {position}"

    def look(self, name, group, position):
        """The slot of a position, and what must be there."""
        one, (kind, block, _) = self.requests[name], GROUPS[group]
        table, number = self.manager.get_block_ids(name)[group], position // block
        content = group, one.cache_salt, *one.all_token_ids[: position + 1]
        if number >= len(table) or not table[number]:  # 0 is the null block
            return None, content
        return (table[number], 0 if kind == "state" else position % block), content

    def list_lies(self):
        """Blocks that can be hit, but neither hold the tokens of their hash nor get them
        in this step."""
        for one in self.requests.values():
            for number, key in enumerate(one.block_hashes, 1):
                prefix = one.cache_salt, *one.all_token_ids[: number * UNIT]
                self.prefixes[key] = self.prefixes[maybe_convert_block_hash(key)] = prefix
        coming = [
            self.look(name, group, self.requests[name].num_computed_tokens + more)
            for name, count in self.step.items()
            for group in range(len(GROUPS))
            for more in range(count)
        ]
        lies = []
        cached = self.manager.block_pool.cached_block_hash_to_block._cache
        for key, found in cached.items():
            group, prefix = get_group_id(key), self.prefixes[get_block_hash(key)]
            kind, block, _ = GROUPS[group]
            for number in found if isinstance(found, dict) else [found.block_id]:
                place = 0 if kind == "state" else (len(prefix) - 2) % block
                slot, content = (number, place), (group, *prefix)
                if self.memory.get(slot) != content and (slot, content) not in coming:
                    lies.append(f"block {number}: tokens {list(prefix[1:])}")
        return lies

    def accept(self, name, sampled):
        self.requests[name].append_output_token_ids(sampled)

    def preempt(self, name):
        one = self.requests[name]
        self.manager.free(one)
        one.status, one.num_computed_tokens = RequestStatus.PREEMPTED, 0
        self.step.pop(name, None)

    def evict(self, count):
        idle = self.manager.block_pool.free_block_queue.get_all_free_blocks()
        cached = [one.block_id for one in idle if one.block_hash is not None]
        self.manager.evict_blocks(set(cached[:count]))

    def free(self, name):
        self.list_lies()  # notes the hashes of the request
        self.manager.free(self.requests.pop(name))
