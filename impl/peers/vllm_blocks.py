"""The adapter to vLLM's `KVCacheManager`, with the calls of the scheduler.

Transfers, preemptions and the ends of requests run in vLLM's own `Scheduler`. Line
numbers in comments are those of `vllm/v1/core/sched/scheduler.py`, version 0.33.0.
`vllm` declares the backends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain, count, zip_longest
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


def _open_spec(group: Mapping[str, Any], ranks: int) -> Any:
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
    return vllm.FullAttentionSpec(block_size=block // ranks, **SHAPE)


def _open_manager(config: Config, options: Options) -> Any:
    """Returns a manager, like the one that a scheduler makes for this config
    (line 340)."""
    block = lcm(*(group["block"] for group in config["groups"]))
    groups = [
        vllm.KVCacheGroupSpec([f"layer.{number}"], _open_spec(group, config["ranks"]))
        for number, group in enumerate(config["groups"])
    ]
    return vllm.KVCacheManager(
        vllm.KVCacheConfig(
            config["blocks"] + 1,  # the first is the null block
            [],
            groups,
            prefix_cache_retention_interval=options.retention
            and options.retention * block,
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
        dcp_world_size=config["ranks"],
    )


def _open_unit(config: Config) -> int:
    """Returns the number of tokens in a hash."""
    return int(
        config["hash_block"] or gcd(*(group["block"] for group in config["groups"]))
    )


def open_blocks(config: Config, options: Options) -> Blocks:
    """Opens a manager and its scheduler for a complete config of the paged contract."""
    return Blocks(_open_manager(config, options), config, options)


# --- the scheduler ----------------------------------------------------------------------


class Connector(vllm.SupportsHMA):  # type: ignore[misc]
    """The scheduler's side of a connector to other caches.

    Attributes:
        transfers: name → the request that is sent or received, and the received blocks.
        blocks: for each group, the blocks of the request that was handed over last.
    """

    def __init__(self) -> None:
        self.transfers: dict[str, tuple[Any, Sequence[int]]] = {}

    def request_finished_all_groups(self, request: Any, blocks: Any) -> tuple[bool, None]:
        """Returns whether the blocks of the request must not be freed yet."""
        self.blocks = blocks
        return request in [item for item, _ in self.transfers.values()], None

    def update_connector_output(self, output: Any) -> None:
        pass


class Scheduler(vllm.AsyncScheduler):  # type: ignore[misc]
    """A scheduler with the attributes that the called methods read, as they are at the
    beginning (lines 87 to 500); None for parts that a server may lack."""

    def __init__(self, manager: Any, config: Config, options: Options) -> None:
        for name in ("_inflight_prefills", "deferred_waiting", "finished_req_ids",
                     "failed_recving_kv_req_ids", "finished_recving_kv_req_ids",
                     "reset_preempted_req_ids"):  # fmt: skip
            setattr(self, name, set())
        for name in ("_kv_fetch_stages", "aux_output_connector", "ec_connector",
                     "finished_req_ids_dict", "log_stats", "needs_kv_cache_zeroing",
                     "mamba_has_prefill_checkpoint_blocks", "prefix_replay_tokens",
                     "mamba_shared_prefix_checkpoint",
                     "prefix_replay_group_ids", "use_v2_model_runner"):  # fmt: skip
            setattr(self, name, None)
        self.use_eagle_block_drop = options.drops_last
        self.kv_cache_manager, self.kv_cache_config = manager, manager.kv_cache_config
        self.block_size = manager.coordinator.scheduler_block_size
        self.hash_block_size = _open_unit(config)
        self.need_mamba_block_aligned_split = manager.kv_cache_config.has_mamba_layers
        self.mamba_partial_cache_hit = manager.coordinator.enable_partial_hash_hits
        self.cache_config = SimpleNamespace(block_size=self.block_size)
        self.scheduler_config = SimpleNamespace(long_prefill_token_threshold=0)
        self.vllm_config = SimpleNamespace(kv_transfer_config=None)
        self.encoder_cache_manager = SimpleNamespace(free=lambda request: None)
        self.max_num_scheduled_tokens = options.budget or config["max_length"]
        self.connector = Connector() if config["remote"] else None
        self.recompute_kv_load_failures = True
        self.defer_block_free = bool(config["remote"] and config["flight"])
        self.sched_step_seq = self.processed_step_seq = self.num_hash_lookahead_tokens = 0
        self.requests, self.deferred_loads, self._pending_encoder_input_ids = {}, {}, {}
        self.running, self.deferred_frees = [], deque[Any]()
        self.waiting, self.kv_holding_waiting = (vllm.FCFSRequestQueue() for _ in "12")
        self.num_sampled_tokens_per_step = int(config["overlap"])


class Blocks:
    """A manager, and the scheduler that calls it.

    Attributes:
        manager: the `KVCacheManager`.
        scheduler: its scheduler, whose requests have identifiers that are never used
            again.
        requests: name → its `Request`.
        step: identifier → the number of tokens in the current step.
        flights: the launched steps, the oldest first.
        drafted: identifier → the scheduled drafts.
        prefixes: hash → the prefix of the hash, as an entry of group 0 and block 0.
        retained: the blocks that a copy of this step reads or writes.
    """

    def __init__(self, manager: Any, config: Config, options: Options) -> None:
        self.manager, self.scheduler = manager, Scheduler(manager, config, options)
        self.unit = _open_unit(config)
        self.has_outputs_later = config["flight"] or config["lookahead"]
        self.lookahead = config["lookahead"] * options.has_draft_model
        self.hasher = vllm.get_request_block_hasher(
            self.unit, _open_hash(), int(options.covers_next)
        )
        self.identifiers = map(str, count())
        self.requests: dict[str, Any] = {}
        self.step: dict[str, int] = {}
        self.flights: list[dict[str, int]] = []
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
        opened = self.requests[request] = vllm.Request(
            next(self.identifiers),
            list(tokens),
            SAMPLING,
            None,
            mm_features=[make_feature(*extra) for extra in extras],
            lora_request=adapter and lora,
            cache_salt=namespace,
            block_hasher=self.hasher,
        )
        self.scheduler.requests[opened.request_id] = opened
        self.note(opened)

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

    def schedule(self, name: str, count: int, end: int = 0) -> tuple[int, int] | None:
        """Schedules a request: a waiting one after its hit, or after the tokens that it
        has received (lines 830 to 1600). With `end`, it waits to receive its tokens."""
        request, scheduler = self.requests[name], self.scheduler
        if not self.step:
            self.manager.new_step_starts()  # line 746
        blocks, hit = self.manager.empty_kv_cache_blocks, 0
        if request.num_computed_tokens == 0:
            lookup = self.manager.get_computed_blocks(request)
            blocks, hit, request.shared_prefix_boundary = lookup
        if end:
            hit -= hit % scheduler.block_size
            blocks = self.manager.truncate_computed_blocks(blocks, hit)
        start = int(request.num_computed_tokens + hit)
        placeholders = request.num_output_placeholders
        known = 0 if end else request.num_tokens_with_spec + placeholders - start
        allowed = min(count, known, scheduler.max_num_scheduled_tokens)
        if allowed and scheduler.need_mamba_block_aligned_split:
            allowed = scheduler._mamba_block_aligned_split(request, allowed, hit)
        if not allowed and end <= start:
            return None
        got = self.manager.allocate_slots(
            request,
            allowed,
            num_new_computed_tokens=hit,
            new_computed_blocks=blocks,
            num_lookahead_tokens=0 if end else self.lookahead,
            num_external_computed_tokens=end and end - start,
            delay_cache_blocks=end > 0,
            full_sequence_must_fit=False,  # scheduler_reserve_full_isl
        )
        if got is None:
            return None
        request.num_computed_tokens = end or start
        if end:
            request.status = vllm.RequestStatus.WAITING_FOR_REMOTE_KVS
            scheduler._enqueue_waiting_request(request)
            return start, 0
        if request.status != vllm.RequestStatus.RUNNING:
            request.status = vllm.RequestStatus.RUNNING
            scheduler.running.append(request)
        drafted = request.spec_token_ids[: max(0, start + allowed - request.num_tokens)]
        self.drafted[request.request_id], request.spec_token_ids = drafted, []
        self.step[request.request_id] = allowed
        return start, allowed

    def copies(self) -> list[tuple[int, int]]:
        copies, retained = self.manager.take_kv_cache_block_copies()  # line 1699
        self.retained += retained
        return [(copy.src_block_id, copy.dst_block_id) for copy in copies]

    def run(self) -> None:
        self.launch()
        self.finish()

    def launch(self) -> None:
        """Ends the scheduling of a step (lines 1681 to 1784)."""
        scheduler, done = self.scheduler, SimpleNamespace(num_scheduled_tokens=self.step)
        done.has_structured_output_requests = False
        done.pending_structured_output_tokens = False
        done.scheduled_spec_decode_tokens, done.num_spec_tokens_to_schedule = {}, 0
        self.manager.take_boundary_state_offloads()
        scheduler._free_cow_retained_blocks(self.retained, scheduler.sched_step_seq + 1)
        self.retained = []
        self.manager.take_new_block_ids()
        scheduler.sched_step_seq += 1
        scheduler._update_after_schedule(done)
        self.flights.append(self.step)
        self.step = {}

    def finish(self, sampled: Sequence[int | None] = ()) -> None:
        """Processes the output of a step (lines 2277 to 2343)."""
        self.scheduler.processed_step_seq += 1
        self.scheduler._drain_deferred_frees()
        step = self.flights.pop(0).items()
        for (name, tokens), token in zip_longest(step, sampled):
            if request := self.scheduler.requests.get(name):
                request.num_in_flight_tokens -= tokens
                if request.num_stale_output_tokens:
                    request.num_stale_output_tokens -= tokens
                elif token is not None and not request.is_finished():
                    self.append(request, [token])

    def accept(
        self, name: str, accepted: int, sampled: int, drafts: Sequence[int]
    ) -> None:
        """Processes the output of a request (lines 2346 to 2415, 2753, 2879)."""
        request = self.requests[name]
        drafted = self.drafted.pop(request.request_id, ())
        request.num_computed_tokens -= len(drafted) - accepted
        self.append(request, [*drafted[:accepted], sampled])
        request.spec_token_ids = list(drafts)

    def append(self, request: Any, tokens: Sequence[int]) -> None:
        """Appends the sampled tokens (lines 2403 to 2416 and 2758 to 2768)."""
        for token in tokens:
            request.append_output_token_ids(token)
        if request.num_output_placeholders:
            request.num_output_placeholders -= 1
        self.note(request)
        if self.has_outputs_later:
            computed = request.num_computed_tokens - request.num_in_flight_tokens
            self.manager.cache_blocks(request, computed)

    # --- release ------------------------------------------------------------------------

    def preempt(self, name: str) -> None:
        request = self.requests[name]
        self.scheduler.running.remove(request)
        self.scheduler._preempt_request(request, 0, drop_stale_output=True)
        self.forget(request)

    def free(self, name: str, reuse: bool) -> None:
        request = self.requests.pop(name)
        stopped = vllm.RequestStatus.FINISHED_STOPPED
        self.scheduler.finish_requests(request.request_id, stopped)
        self.forget(request)

    def forget(self, request: Any) -> None:
        self.step.pop(request.request_id, None)
        self.drafted.pop(request.request_id, None)

    # --- other caches -------------------------------------------------------------------

    def send(self, name: str, transfer: str) -> list[int]:
        """Hands the blocks of a request to the connector (line 3349). The request ends
        later."""
        request, connector = self.requests[name], self.scheduler.connector
        self.scheduler._connector_finished(request)
        connector.transfers[transfer] = request, ()
        return [block for block in chain(*connector.blocks) if block]

    def receive(self, name: str, transfer: str, end: int) -> tuple[int, list[int]] | None:
        admitted, request = self.schedule(name, 0, end), self.requests[name]
        if admitted is None:
            return None
        table = self.manager.get_blocks(request.request_id)
        blocks = [*chain(*table.get_unhashed_block_ids_all_groups())]
        self.scheduler.connector.transfers[transfer] = request, blocks
        return admitted[0], blocks

    def landed(self, transfer: str) -> None:
        """Processes the end of a transfer (lines 3556 and 3519)."""
        request, _ = self.scheduler.connector.transfers.pop(transfer)
        name, waits = [request.request_id], self.scheduler._is_blocked_waiting_status
        received, sent = name * waits(request.status), name * request.is_finished()
        ended = SimpleNamespace(finished_recving=received, finished_sending=sent)
        self.scheduler._update_from_kv_xfer_finished(ended)
        if received:
            self.scheduler._handle_blocked_waiting_request(request)
            self.scheduler.kv_holding_waiting.remove_request(request)

    def failed(self, transfer: str, arrived: int) -> int:
        """Processes the failure of a transfer (lines 2286 to 2302)."""
        request, blocks = self.scheduler.connector.transfers[transfer]
        waits = self.scheduler._is_blocked_waiting_status(request.status)
        if self.manager.num_kv_cache_groups > 1:
            self.scheduler._handle_failed_recving({request.request_id})
        else:
            self.scheduler._handle_invalid_blocks({*blocks[arrived:]}, {})
        self.landed(transfer)
        return int(request.num_computed_tokens) * waits

    def evict(self, count: int) -> int:
        victims = self.pool().cached[:count]
        self.manager.evict_blocks(set(victims))
        return len(victims)

    def reset(self) -> bool:
        return bool(self.manager.reset_prefix_cache())

    # --- reports ------------------------------------------------------------------------

    def tables(self, request: str) -> list[list[int | None]]:
        groups = self.manager.get_block_ids(self.requests[request].request_id)
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
        held = [self.retained, *(blocks for _, blocks in self.scheduler.deferred_frees)]
        for request in self.scheduler.requests.values():
            if request.is_finished():  # not freed before its transfer has ended
                held += self.manager.get_blocks(request.request_id).blocks
        pinned = [each.block_id for blocks in held for each in blocks if not each.is_null]
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
