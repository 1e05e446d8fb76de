"""The adapter to vLLM's `KVCacheManager`, with the calls of the scheduler.

Line numbers in comments are those of `vllm/v1/core/sched/scheduler.py`, version 0.33.0.
`vllm` declares the backends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import gcd, lcm
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from lockstep.harness.backends.paged import Entry, Pool
from lockstep.impl.peers.engines.vllm import load_vllm, open_vllm

Config = Mapping[str, Any]
vllm = load_vllm()

SHAPE = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
SAMPLING = SimpleNamespace(
    max_tokens=1 << 20, extra_args=None, skip_reading_prefix_cache=None
)
"""The only sampling parameters that a manager reads."""


class Options(NamedTuple):
    """The settings of a server.

    Attributes:
        has_draft_model: whether a model computes the drafts, which needs slots after
            them.
        covers_next: whether a hash also includes the token after its block, which the
            draft model of EAGLE has read.
        drops_last: whether a hit is one block shorter, because the draft model of EAGLE
            has read the token after a block.
        retention: the interval at which sliding windows and states are kept, in blocks of
            the scheduler; 0 keeps them only at the ends of prompts, None keeps all.
        budget: the largest number of tokens in a step, `max_num_scheduled_tokens`; None
            for no limit. The limit matters for models with states.
    """

    has_draft_model: bool = True
    covers_next: bool = False
    drops_last: bool = False
    retention: int | None = None
    budget: int | None = None


# --- opening ----------------------------------------------------------------------------


@cache
def _open_hash() -> Any:
    """Returns the hash function of a server with default settings, and initializes it for
    blocks."""
    sha256 = open_vllm().load("vllm.utils.hashing").sha256
    vllm.init_none_hash(sha256)
    return sha256


def _open_spec(group: Mapping[str, Any]) -> Any:
    """Returns vLLM's specification of the layers of a group."""
    block = group["block"]
    if group["type"] == "sliding":
        width = group["width"]
        return vllm.SlidingWindowSpec(block_size=block, sliding_window=width, **SHAPE)
    if group["type"] == "chunked":
        return vllm.ChunkedLocalAttentionSpec(
            block_size=block, attention_chunk_size=group["width"], **SHAPE
        )
    if group["type"] == "state":
        return vllm.MambaSpec(
            block_size=block,
            shapes=((1,),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align",
        )
    return vllm.FullAttentionSpec(block_size=block, **SHAPE)


def _open_manager(config: Config, options: Options) -> Any:
    """Returns a manager, like the one that a scheduler makes for this config
    (line 340)."""
    block = lcm(*(group["block"] for group in config["groups"]))
    groups = [
        vllm.KVCacheGroupSpec([f"layer.{number}"], _open_spec(group))
        for number, group in enumerate(config["groups"])
    ]
    return vllm.KVCacheManager(
        vllm.KVCacheConfig(
            config["blocks"] + 1,  # the first is the null block
            [],
            groups,
            prefix_cache_retention_interval=_open_retention(block, options),
        ),
        # A request ends at this length, so no request computes its last token.
        max_model_len=config["max_length"] + 1,
        scheduler_block_size=block,
        hash_block_size=_open_unit(config),
        max_in_flight_tokens=config["max_length"],
        enable_caching=config["prefix_cache"],
        use_eagle=options.drops_last,
        num_hash_lookahead_tokens=int(options.covers_next),
        num_prefill_lookahead=int(options.covers_next or options.drops_last),
        enable_kv_cache_events=True,
    )


def _open_retention(block: int, options: Options) -> int | None:
    return None if options.retention is None else options.retention * block


def _open_unit(config: Config) -> int:
    """Returns the number of tokens in a hash."""
    return int(
        config["hash_block"] or gcd(*(group["block"] for group in config["groups"]))
    )


def open_blocks(config: Config, options: Options) -> Blocks:
    """Opens a manager and its scheduler for a complete config of the paged contract."""
    groups = config["groups"]
    states = [group["block"] for group in groups if group["type"] == "state"]
    manager = _open_manager(config, options)
    kind = StateBlocks if states else Blocks
    return kind(manager, config, options)


# --- the scheduler ----------------------------------------------------------------------


class Blocks:
    """A manager, and the scheduler code that calls it.

    Attributes:
        manager: the `KVCacheManager`.
        requests: name → its `Request`.
        step: name → the number of its tokens in the current step.
        drafted: name → its scheduled drafts.
        prefixes: hash → the prefix of the hash, as an entry of group 0 and block 0.
        retained: the blocks that a copy of this step reads or writes.
    """

    def __init__(self, manager: Any, config: Config, options: Options) -> None:
        self.manager = manager
        self.unit = _open_unit(config)
        self.drafts = config["lookahead"]  # num_spec_tokens
        self.lookahead = config["lookahead"] * options.has_draft_model
        self.hasher = vllm.get_request_block_hasher(
            self.unit, _open_hash(), int(options.covers_next)
        )
        self.requests: dict[str, Any] = {}
        self.step: dict[str, int] = {}
        self.drafted: dict[str, Sequence[int]] = {}
        self.prefixes: dict[Any, Entry] = {}
        self.retained: list[Any] = []

    def open(
        self,
        request: str,
        tokens: Sequence[int],
        namespace: str | None,
        adapter: str | None = None,
        extras: Sequence[tuple[int, int, str]] = (),
    ) -> None:
        lora = SimpleNamespace(
            name=adapter, lora_name=adapter, lora_path=adapter, adapter_id=1
        )
        self.requests[request] = vllm.Request(
            request,
            list(tokens),
            SAMPLING,
            None,
            mm_features=[make_feature(*extra) for extra in extras],
            lora_request=adapter and lora,
            cache_salt=namespace,
            block_hasher=self.hasher,
        )
        self.note(self.requests[request])

    def note(self, request: Any) -> None:
        """Stores the tokens of each hash, because entries and events contain only the
        hash."""
        for number, key in enumerate(request.block_hashes, 1):
            end, salt, lora = number * self.unit, request.cache_salt, request.lora_request
            tokens = tuple(request.all_token_ids[:end])
            extras = list_extras(request.mm_features, end)
            prefix = Entry(0, salt, tokens, 0, lora and lora.name, extras)
            self.prefixes[key] = prefix
            self.prefixes[vllm.maybe_convert_block_hash(key)] = prefix

    def match(self, request: str) -> int:
        _, hit, _ = self.manager.get_computed_blocks(self.requests[request])
        return int(hit)

    # --- a step -------------------------------------------------------------------------

    def schedule(self, name: str, count: int) -> tuple[int, int] | None:
        request = self.requests[name]
        if not self.step:
            self.manager.new_step_starts()  # line 746
        if request.status == vllm.RequestStatus.RUNNING:
            return self.go_on(request, count)
        return self.admit(request, count)

    def go_on(self, request: Any, count: int) -> tuple[int, int] | None:
        """Schedules a running request (lines 830 to 1025)."""
        start = request.num_computed_tokens
        allowed = self.limit(
            request, start, min(count, request.num_tokens_with_spec - start)
        )
        if allowed == 0:
            return None
        got = self.manager.allocate_slots(
            request, allowed, num_lookahead_tokens=self.lookahead
        )
        if got is None:
            return None
        scheduled = start + allowed - request.num_tokens
        self.drafted[request.request_id] = request.spec_token_ids[: max(0, scheduled)]
        request.spec_token_ids = []
        self.step[request.request_id] = allowed
        return start, allowed

    def admit(self, request: Any, count: int) -> tuple[int, int] | None:
        """Schedules a waiting request after its hit (lines 1110 to 1600)."""
        blocks, hit, request.shared_prefix_boundary = self.manager.get_computed_blocks(
            request
        )
        allowed = self.limit(request, hit, min(count, request.num_tokens - hit))
        if allowed == 0:
            return None
        got = self.manager.allocate_slots(
            request,
            allowed,
            num_new_computed_tokens=hit,
            new_computed_blocks=blocks,
            num_lookahead_tokens=self.lookahead,
            full_sequence_must_fit=False,  # scheduler_reserve_full_isl
        )
        if got is None:
            return None
        request.status = vllm.RequestStatus.RUNNING
        request.num_computed_tokens = hit
        self.step[request.request_id] = allowed
        return int(hit), allowed

    def limit(self, request: Any, start: int, count: int) -> int:
        """Returns the allowed number of tokens, at most `count`, in a step that begins at
        `start`."""
        return count

    def copies(self) -> list[tuple[int, int]]:
        copies, retained = self.manager.take_kv_cache_block_copies()  # line 1699
        self.retained += retained
        return [(copy.src_block_id, copy.dst_block_id) for copy in copies]

    def run(self) -> None:
        """Ends the scheduling and runs the step (lines 1681 to 1860, 3095)."""
        self.manager.take_boundary_state_offloads()
        self.manager.block_pool.free_blocks(self.retained)
        self.retained = []
        self.manager.take_new_block_ids()
        for name, count in self.step.items():
            self.requests[name].num_computed_tokens += count
        self.step = {}

    def accept(
        self, name: str, accepted: int, sampled: int, drafts: Sequence[int]
    ) -> None:
        """Processes the output of a request (lines 2346 to 2415, 2753, 2879)."""
        request = self.requests[name]
        drafted = self.drafted.pop(name, ())
        request.num_computed_tokens -= len(drafted) - accepted
        for token in (*drafted[:accepted], sampled):
            request.append_output_token_ids(token)
        self.note(request)
        if self.drafts:
            self.manager.cache_blocks(request, request.num_computed_tokens)
        request.spec_token_ids = list(drafts)

    # --- release ------------------------------------------------------------------------

    def preempt(self, name: str) -> None:
        """Preempts a request (line 1799)."""
        request = self.requests[name]
        self.manager.free(request)
        request.status = vllm.RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.spec_token_ids = []
        request.num_preemptions += 1
        self.forget(name)

    def free(self, request: str, reuse: bool) -> None:
        """Ends a request (line 3084)."""
        self.manager.free(self.requests.pop(request))
        self.forget(request)

    def forget(self, request: str) -> None:
        self.step.pop(request, None)
        self.drafted.pop(request, None)

    def evict(self, count: int) -> int:
        victims = self.pool().cached[:count]
        self.manager.evict_blocks(set(victims))
        return len(victims)

    def reset(self) -> bool:
        return bool(self.manager.reset_prefix_cache())

    # --- reports ------------------------------------------------------------------------

    def tables(self, request: str) -> list[list[int | None]]:
        groups = self.manager.get_block_ids(request)
        return [[block or None for block in blocks] for blocks in groups]

    def pool(self) -> Pool:
        pool = self.manager.block_pool
        used = {
            block.block_id: block.ref_cnt
            for block in pool.blocks
            if block.ref_cnt and not block.is_null
        }
        idle = pool.free_block_queue.get_all_free_blocks()
        free = [block.block_id for block in idle if block.block_hash is None]
        cached = [block.block_id for block in idle if block.block_hash is not None]
        pinned = [block.block_id for block in self.retained]
        return Pool(used, free, cached, pinned)

    def entries(self) -> list[Entry]:
        cached = self.manager.block_pool.cached_block_hash_to_block._cache
        return [
            self.prefixes[vllm.get_block_hash(key)]._replace(
                group=vllm.get_group_id(key), block=block
            )
            for key, blocks in cached.items()
            for block in list_ids(blocks)
        ]

    def events(self) -> list[tuple[str, Entry | None]]:
        return [
            entry
            for event in self.manager.take_events()
            for entry in self.translate(event)
        ]

    def translate(self, event: Any) -> list[tuple[str, Entry | None]]:
        """Returns the content of an event, which contains no block."""
        if isinstance(event, vllm.AllBlocksCleared):
            return [("cleared", None)]
        name = "stored" if isinstance(event, vllm.BlockStored) else "removed"
        return [
            (name, self.prefixes[key]._replace(group=event.group_idx))
            for key in event.block_hashes
        ]


def make_feature(first: int, end: int, key: str) -> Any:
    """Returns the fields of an image that a manager reads. The hash contains the length,
    because the content of an image determines its number of tokens."""
    position = SimpleNamespace(offset=first, length=end - first)
    return SimpleNamespace(
        identifier=f"{key}:{end - first}", mm_position=position, key=key
    )


def list_extras(features: Sequence[Any], end: int) -> list[tuple[int, int, str]]:
    """Returns the extras of the images, as far as they lie before `end`."""
    spans = [(item.mm_position, item.key) for item in features]
    return [
        (span.offset, min(end, span.offset + span.length), key)
        for span, key in spans
        if span.offset < end
    ]


def list_ids(blocks: Any) -> list[int]:
    """Returns the blocks of a hash; vLLM stores several blocks as a dict."""
    return list(blocks) if isinstance(blocks, dict) else [blocks.block_id]


class StateBlocks(Blocks):
    """A manager of models with recurrent states, which are kept at the ends of blocks
    (the mode "align").

    Attributes:
        block: the number of positions in a block of states.
        budget: the largest number of tokens in a step.
    """

    def __init__(self, manager: Any, config: Config, options: Options) -> None:
        super().__init__(manager, config, options)
        self.block = next(
            group["block"] for group in config["groups"] if group["type"] == "state"
        )
        self.budget = options.budget or config["max_length"]

    def limit(self, request: Any, start: int, count: int) -> int:
        """Returns the number of tokens up to a position where a state can be cached.

        This is the part of `_mamba_block_aligned_split` (line 546) that applies without
        EAGLE and without internal checkpoints.
        """
        block, prefill_end = (
            self.block,
            max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        count = min(count, self.budget)
        if start >= prefill_end:
            return count
        end = start + count
        aligned = end // block * block
        if end < prefill_end and (aligned > start or block <= self.budget):
            end = aligned
        last = self.find_checkpoint(request.num_tokens, block)
        tail = self.find_checkpoint(request.num_prompt_tokens, self.unit)
        has_tail = self.manager.coordinator.enable_partial_hash_hits
        junction = request.shared_prefix_boundary
        stops = (
            (start // block + 1) * block if start % block else 0,
            last,
            tail if has_tail and last < tail < request.num_prompt_tokens else 0,
            start + (junction - start) // block * block if start < junction < end else 0,
        )
        end = min((stop for stop in stops if start < stop < end), default=end)
        return max(end - start, 0)

    def find_checkpoint(self, tokens: int, block: int) -> int:
        """Returns the last end of a block that leaves at least one token to compute."""
        find = open_vllm().load("vllm.v1.kv_cache_interface")
        position: int = find.get_mamba_prefill_checkpoint_position(tokens, block, False)
        return position
