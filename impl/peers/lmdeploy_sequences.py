"""The adapter to LMDeploy's scheduler, with the calls of its PyTorch engine.

The scheduler admits one request at a time here. Comments contain line numbers of
`lmdeploy/pytorch/engine/`: E means `engine.py`, L `engine_loop.py`, I `inputs_maker.py`.
`lmdeploy` declares the backends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

import numpy as np

from lockstep.harness.backends.paged import Entry, Pool
from lockstep.impl.peers.engines.lmdeploy import load_lmdeploy

Config = Mapping[str, Any]
lmdeploy = load_lmdeploy()


STATE = 1 << 20
"""The offset of the block numbers of states."""

MOST = 6
"""The number of requests, and of checkpoints of states that always have room."""


class Sequences:
    """A scheduler, and the engine that calls it.

    Attributes:
        scheduler: the `Scheduler`.
        checkpoints: the checkpoints of states.
        interval: the distance between checkpoints of an answer; 0 for none.
        ahead: the number of tokens after a step for which it gets slots,
            `prefill_interval`.
        sequences: name → its sequence, each in a session of its own.
        long: the names of the running requests of whose prompt a part is computed.
        step: the sequences of the planned step, their numbers of tokens, and whether
            these are sampled tokens.
        flights: the sequences of each launched step, the oldest first.
        copied: the blocks that are copied next.
    """

    def __init__(self, config: Config, interval: int = 0) -> None:
        group, *states = config["groups"]
        self.block, self.ahead = group["block"], config["ahead"]
        self.interval = interval * self.block
        cache = lmdeploy.CacheConfig(
            max_batches=1,
            block_size=self.block,
            num_cpu_blocks=0,
            num_gpu_blocks=count_blocks(config, group),
            # A query attends to so many tokens before it (kernels/, kv_min_loc).
            window_size=group.get("width", 0) - 1,
            enable_prefix_caching=config["prefix_cache"],
            num_state_caches=1 + 2 * MOST,
            prefix_cache_state_budget=MOST,
            states_shapes=[(1,)] * len(states),
        )
        limits = lmdeploy.SchedulerConfig(max_batches=1, max_session_len=1 << 20)
        meta = lmdeploy.SequenceMeta(self.block, lmdeploy.ARSequenceStrategy())
        self.scheduler = lmdeploy.Scheduler(limits, cache, meta)
        self.checkpoints = self.scheduler.state_checkpoints
        self.numbers = count()
        self.sequences: dict[str, Any] = {}
        self.long: set[str] = set()
        self.step: list[tuple[Any, int, bool]] = []
        self.flights: list[list[Any]] = []
        self.copied: list[tuple[int, int]] = []

    def open(self, request: str, tokens: Sequence[int], namespace: str | None) -> None:
        """Adds a session with a sequence (E:343, E:495)."""
        session = self.scheduler.add_session(next(self.numbers))
        self.sequences[request] = session.add_sequence(tokens)

    def match(self, request: str) -> int:
        """Matches a prefix, as an admission that then finds no blocks."""
        scheduler, sequence = self.scheduler, self.sequences[request]
        match = lmdeploy._TentativePrefixMatch(
            sequence,
            scheduler.block_trie,
            scheduler.block_manager,
            is_ssm=scheduler.is_ssm,
            preserve_existing_state=False,
        )
        if scheduler.block_trie.enabled:
            match.match()
        hit = sequence.num_history_ids
        match.rollback("no blocks")
        return int(hit)

    # --- a step -------------------------------------------------------------------------

    def schedule(self, name: str, count: int) -> tuple[int | None, int, list[str]]:
        """Makes the inputs of a request; others that wait may lose their blocks."""
        sequence = self.sequences[name]
        holding = [name for name, item in self.sequences.items() if item.num_blocks]
        self.scheduler.cache_config.max_prefill_token_num = count
        decodes = False
        if sequence.status is lmdeploy.MessageStatus.WAITING:
            admitted = self.prefill(name, sequence)
        elif name in self.long:
            admitted = self.go_on(name, sequence, count)
        else:
            admitted = decodes = self.decode(sequence)
        lost = [name for name in holding if not self.sequences[name].num_blocks]
        if not admitted:
            return None, 0, lost
        taken = min(count, sequence.num_token_ids)
        self.step.append((sequence, taken, decodes))
        if not decodes:  # I:954
            restored = self.checkpoints.prepare_restore_batch([sequence])
            self.copied += self.list_pairs(restored)
        return int(sequence.num_history_ids), int(taken), lost

    def prefill(self, name: str, sequence: Any) -> bool:
        """Admits the sequence that has waited longest (I:571)."""
        scheduler = self.scheduler
        running = scheduler.num_ready() + scheduler.num_running()
        scheduler.scheduler_config.max_batches = running + 1
        sequence.arrive_time = -next(self.numbers)
        admitted = scheduler.schedule(True, prealloc_size=self.ahead).running
        if sequence.kv_token_limit is not None:
            self.long.add(name)
        return bool(admitted)

    def go_on(self, name: str, sequence: Any, count: int) -> bool:
        """Goes on with a prompt (I:604 to 645)."""
        is_last = sequence.num_token_ids <= count
        admitted = self.scheduler.reserve_long_context_chunk(
            sequence,
            min(count, sequence.num_token_ids),
            prealloc_size=self.ahead if is_last else 0,
            is_last_chunk=is_last,
        )
        if admitted and is_last:
            self.long.remove(name)
        return bool(admitted)

    def decode(self, sequence: Any) -> bool:
        """Goes on with an answer (I:1166)."""
        [admitted] = self.scheduler.schedule_running([sequence], 1, self.ahead)
        return bool(admitted)

    def list_pairs(self, plan: Any) -> list[tuple[int, int]]:
        states = [(STATE + a, STATE + b) for a, b in plan.state_pairs]
        return [
            *states,
            *((self.locate(a), self.locate(b)) for a, b in plan.kv_block_pairs),
        ]

    def locate(self, block: int) -> int:
        allocator = self.scheduler.block_manager.allocator
        return int(allocator.get_physical_blocks(block))

    def copies(self) -> list[tuple[int, int]]:
        copied, self.copied = self.copied, []
        return copied

    def run(self) -> None:
        self.launch()
        self.finish()

    def launch(self) -> None:
        """Reserves checkpoints, and sends the inputs (I:967 to 1012, L:506, L:551)."""
        saves = [self.reserve(*item) for item in self.step]
        sequences = [sequence for sequence, *_ in self.step]
        self.scheduler.activate_seqs(sequences)
        for sequence, tokens, _ in self.step:
            if sequence.kv_token_limit is not None:  # I:234
                sequence.set_step(sequence.num_history_ids + tokens)
        self.checkpoints.finish_forward_dispatch(sequences, has_save_plan=any(saves))
        self.copied += chain(*saves)
        self.flights.append(sequences)
        self.step = []

    def reserve(self, sequence: Any, tokens: int, decodes: bool) -> list[tuple[int, int]]:
        """Reserves a checkpoint after a step; returns the blocks to copy."""
        batch, end = [sequence], sequence.num_history_ids + tokens
        if decodes:
            saves = self.checkpoints.reserve_decode_save_batch(batch, self.interval)
        else:
            steps = None if sequence.kv_token_limit is None else (end,)
            saves = self.checkpoints.reserve_prefill_save_batch(batch, steps)
        return self.list_pairs(saves)

    def finish(self) -> None:
        """Gets the output of a step (L:513)."""
        self.checkpoints.unpin_saves(self.flights.pop(0))

    def accept(
        self, name: str, accepted: int, sampled: int, drafts: Sequence[int]
    ) -> None:
        mode = lmdeploy.UpdateTokenMode.DECODE
        self.sequences[name].update_token_ids(np.array([sampled]), mode=mode)

    def free(self, name: str, reuse: bool) -> None:
        """Ends a session (E:422)."""
        self.scheduler.end_session(self.sequences.pop(name).session_id)
        self.long.discard(name)

    def evict(self, count: int) -> int:
        evicted: int = self.scheduler.block_trie.evict(count)
        return evicted + int(self.checkpoints.evict(count - evicted))

    # --- reports ------------------------------------------------------------------------

    def tables(self, request: str) -> list[list[int | None]]:
        sequence = self.sequences[request]
        blocks = self.scheduler.block_manager.get_block_table(sequence).tolist()
        table = [None] * (sequence.num_ignored_history // self.block) + blocks
        return [table, [STATE + sequence.logical_state]][: 1 + self.scheduler.is_ssm]

    def pool(self) -> Pool:
        allocator, slots = (
            self.scheduler.block_manager.allocator,
            self.scheduler.state_manager,
        )
        counts, gpu = allocator._log_mem.ref_count, allocator.get_phy_allocator("gpu")
        references = Counter(
            {self.locate(block): int(counts[block]) for block in counts.nonzero()[0]}
        )
        paths = [path for path in self.iter_paths() if path[1:]]
        references.subtract(self.locate(path[-1].block_id) for path in paths)
        references.update({STATE + slot: 0 for slot in slots._checkpoint_states})
        references.update(STATE + slot for slot in slots._runtime_states)
        pinned: list[int] = []
        for node, blocks in self.iter_checkpoints():
            references.subtract(blocks[1:])
            checkpoint = node.state_checkpoint
            pinned += blocks * (checkpoint.pin_count + (not checkpoint.published))
        references.update(pinned)
        used = {block: number for block, number in references.items() if number}
        free = gpu._free_blocks[gpu._num_blocks - gpu._free_count :].tolist()
        states = slots.allocator
        free_states = states._free_states[states.num_states - states._free_count :]
        free += (STATE + free_states).tolist() * self.scheduler.is_ssm
        return Pool(
            used, free, [block for block in references if block not in used], pinned
        )

    def entries(self) -> list[Entry]:
        entries = []
        for path in self.iter_paths():
            tokens = [*chain(*(node.token_ids.tolist() for node in path[1:]))]
            block = self.locate(path[-1].block_id)
            entries += [Entry(0, None, tokens, block)] * bool(tokens)
        for node, blocks in self.iter_checkpoints():
            if node.state_checkpoint.published:
                tokens = node.state_checkpoint.exact_match_data.token_ids.tolist()
                pairs = zip((1, 0), blocks, strict=False)
                entries += [Entry(group, None, tokens, block) for group, block in pairs]
        return entries

    def iter_paths(self) -> Iterator[list[Any]]:
        """Yields the nodes from a root to each node of the trie."""
        paths = [[root] for root in self.scheduler.block_trie._roots.values()]
        for path in paths:
            paths += [[*path, child] for child in path[-1].children.values()]
            yield path

    def iter_checkpoints(self) -> Iterator[tuple[Any, list[int]]]:
        """Yields each node with a checkpoint; the state, and the block of a part."""
        for *_, node in self.iter_paths():
            checkpoint = node.state_checkpoint
            if checkpoint is not None:
                frozen = checkpoint.frozen_block_id
                blocks = [self.locate(frozen)] * (frozen >= 0)
                yield node, [STATE + checkpoint.slot, *blocks]


def count_blocks(config: Config, group: Mapping[str, Any]) -> int:
    """Counts the blocks; what leaves a window keeps its blocks until the next is due."""
    longest: int = config["max_length"]
    return int(config["blocks"]) * -(-longest // group.get("width", longest))
