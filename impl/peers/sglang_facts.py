"""Reports the contents of SGLang's trees and pools in the terms of the paged contract.

A block is a page. The pools of full layers, of sliding layers and of states are separate
memories, so their blocks get different numbers. A tree counts locks instead of
references: a node is locked by each request whose tokens include the node's tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.harness.backends.paged import Entry, Pool
from lockstep.impl.peers.engines.sglang import load_sglang

sglang = load_sglang()
TYPES = sglang.ComponentType

SLIDING, STATE = 1000, 2000
"""Offsets of the block numbers of sliding layers (beside full layers) and of states."""

Events = list[tuple[str, Entry | None]]


class Layout(NamedTuple):
    """The groups of a config: at most one full, one sliding and one state group, in this
    order.

    Attributes:
        page: the number of tokens in a page.
        full: the index of the full group, or None.
        sliding: the index of the sliding group, or None.
        state: the index of the state group, or None.
        window: the number of previous tokens that a token of the sliding group attends
            to, or None.
    """

    page: int
    full: int | None
    sliding: int | None
    state: int | None
    window: int | None

    @staticmethod
    def read(groups: Sequence[Mapping[str, Any]]) -> Layout:
        slot = {group["type"]: number for number, group in enumerate(groups)}
        widths = [group["width"] - 1 for group in groups if group["type"] == "sliding"]
        names = ("full", "sliding", "state")
        full, sliding, state = (slot.get(name) for name in names)
        return Layout(groups[0]["block"], full, sliding, state, next(iter(widths), None))


class Node(NamedTuple):
    """A node of a tree.

    Attributes:
        namespace: the namespace of its requests.
        tokens: all tokens from the root to the end of the node.
        length: the number of tokens that only this node adds.
        components: group → the blocks of these tokens (None if they are evicted), and the
            number of the node's locks in this group.
    """

    namespace: str | None
    tokens: tuple[int, ...]
    length: int
    components: Mapping[int, tuple[Sequence[int] | None, int]]


class Facts:
    """Reports the contents of a tree and its pools.

    Args:
        layout: the layout of the groups.
        rows: the `ReqToTokenPool`, which has the tables of all requests.
        slots: the allocator of token slots.
        tree: the prefix cache.
        core: the core of the tree; see `Options`.
    """

    def __init__(
        self, layout: Layout, rows: Any, slots: Any, tree: Any, core: str | None
    ) -> None:
        self.layout, self.rows, self.slots = layout, rows, slots
        self.tree, self.core = tree, core

    # --- room ---------------------------------------------------------------------------

    def count(self) -> dict[str, int]:
        """Returns the numbers of free, cached and locked slots, and of unused request
        entries."""
        tree, slots, layout = self.tree, self.slots, self.layout
        counts = {
            "free": slots.available_size(),
            "cached": tree.full_evictable_size(),
            "locked": tree.full_protected_size(),
            "unused request": self.rows.available_size(),
        }
        if layout.sliding is not None:
            counts["free sliding"] = slots.swa_available_size()
            counts["cached sliding"] = tree.swa_evictable_size()
            counts["locked sliding"] = tree.swa_protected_size()
        if layout.state is not None:
            counts["free state"] = self.rows.mamba_allocator.available_size()
            counts["cached state"] = tree.mamba_evictable_size()
            counts["locked state"] = tree.mamba_protected_size()
        return counts

    def has_room(self, tokens: int, states: int) -> bool:
        tree, slots, layout = self.tree, self.slots, self.layout
        rooms = [slots.available_size() + tree.evictable_size() >= tokens]
        if layout.full is not None and layout.sliding is not None:
            rooms = [
                slots.full_available_size() + tree.full_evictable_size() >= tokens,
                slots.swa_available_size() + tree.swa_evictable_size() >= tokens,
            ]
        if layout.state is not None:
            free = self.rows.mamba_allocator.available_size()
            rooms.append(free + tree.mamba_evictable_size() >= states)
        return all(rooms)

    def evict(self, count: int) -> int:
        """Evicts from a tree, and returns the number of evicted blocks.

        If there are sliding or state groups, evicts only blocks of these groups.
        """
        layout, tokens = self.layout, count * self.layout.page
        is_hybrid = layout.full is not None and (layout.sliding or layout.state)
        done = self.tree.evict(
            sglang.EvictParams(
                num_tokens=0 if is_hybrid else tokens,
                swa_num_tokens=tokens if layout.sliding else 0,
                mamba_num=count if layout.state else 0,
            )
        )
        evicted = done.num_tokens_evicted + done.swa_num_tokens_evicted
        return int(evicted // layout.page + done.mamba_num_evicted)

    # --- tables -------------------------------------------------------------------------

    def list_tables(self, request: Any) -> list[list[int | None]]:
        """Returns the table of a request for each group."""
        layout, kv = self.layout, request.kv
        row = self.rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len]
        tables: list[list[int | None]] = []
        if layout.full is not None:
            tables.append(self.name_pages(row[:: layout.page], 0))
        if layout.sliding is not None:
            tables.append(self.list_window(request, row))
        if layout.state is not None:
            tables.append([*self.name_states(kv.mamba_pool_idx)])
        return tables

    def list_window(self, request: Any, row: Any) -> list[int | None]:
        """Returns the table of a sliding group: the pages of the tree that the request
        has locked, and the request's own pages that the window has not freed."""
        page, kv = self.layout.page, request.kv
        places = self.slots.full_to_swa_index_mapping[row[::page].long()]
        if self.layout.full is None:
            freed = range(kv.swa_dead_lo(page), kv.get_evicted_seqlen(TYPES.SWA))
            return self.name_pages(places, 0, freed)
        unlocked = range(self.find_locked(request))
        return self.name_pages(places, SLIDING, unlocked)

    def name_pages(
        self, places: Any, base: int, gone: range = range(0)
    ) -> list[int | None]:
        """Returns the block of each page, from the first slot of each page.

        Returns None for a page without a slot, and for a page whose position is in
        `gone`.
        """
        page = self.layout.page
        return [
            base + slot // page if slot > 0 and number * page not in gone else None
            for number, slot in enumerate(places.tolist())
        ]

    def name_states(self, places: Any) -> list[int]:
        return [STATE + slot for slot in places.view(-1).tolist()]

    def find_locked(self, request: Any) -> int:
        """Returns the first position for which the request has locked pages of sliding
        layers."""
        if not self.tree.supports_prefix_sharing():
            return 0
        [path] = self.tree.tree_core.collect_path_info([request.lock.node])
        end = path[-1].path_end if path else 0
        for node in reversed(path):
            if self.is_boundary(request, node, end):
                return int(node.path_start)
        return 0

    def is_boundary(self, request: Any, node: Any, end: int) -> bool:
        """Returns whether this node is the last node of a lock that was taken at position
        `end`.

        A Rust tree does not show the nodes of a lock, but its locks end where a window
        ends.
        """
        if self.core == "rust":
            return bool(end - node.path_start >= self.layout.window)
        component = self.tree.tree_core.node_by_id(node.node_id).component(TYPES.SWA)
        mark = request.lock.receipt.component_lock_uuids[TYPES.SWA]
        return mark is not None and component.metadata.get("uuid") == mark

    # --- trees --------------------------------------------------------------------------

    def iter_nodes(self) -> Iterator[Node]:
        """Yields the nodes of a Python tree."""
        waiting = [(child, ()) for child in self.tree.root_node.children.values()]
        while waiting:
            node, path = waiting.pop()
            length = len(node.key)  # counts bigrams, one fewer than tokens
            tokens = (*path, *node.key.raw_token_ids()[:length])
            namespace = node.key.cache_salt or node.key.extra_key
            yield Node(namespace, tokens, length, self.read_parts(node))
            waiting += [(child, tokens) for child in node.children.values()]

    def read_parts(self, node: Any) -> dict[int, tuple[Sequence[int] | None, int]]:
        layout = self.layout
        if self.core is None or layout.full is None:
            return {0: (self.list_blocks(node.value, 0), node.lock_ref)}
        kinds = (
            (layout.full, TYPES.FULL, 0),
            (layout.sliding, TYPES.SWA, SLIDING),
            (layout.state, TYPES.MAMBA, STATE),
        )
        components = {}
        for group, kind, base in kinds:
            if group is not None:
                component = node.component(kind)
                components[group] = (
                    self.list_blocks(component.value, base),
                    component.lock_ref,
                )
        return components

    def list_blocks(self, places: Any, base: int) -> list[int] | None:
        """Returns the blocks of a node's slots."""
        if places is None:
            return None
        page = 1 if base == STATE else self.layout.page
        return [base + slot // page for slot in places[::page].tolist()]

    def list_entries(self) -> list[Entry]:
        page, state = self.layout.page, self.layout.state
        entries = []
        for node in self.iter_nodes():
            start = len(node.tokens) - node.length
            for group, (blocks, _) in node.components.items():
                step = node.length if group == state else page
                ends = range(start + step, len(node.tokens) + 1, step)
                entries += [
                    Entry(group, node.namespace, node.tokens[:end], block)
                    for end, block in zip(ends, blocks or (), strict=blocks is not None)
                ]
        return entries

    def get_pool(self) -> Pool:
        """Returns the pool.

        A page in the tree has as many references as locks. A page that is neither free
        nor in the tree belongs to one request. Locked states of the tree are pinned,
        because they are in no table.
        """
        locks = [
            (block, count)
            for node in self.iter_nodes()
            for blocks, count in node.components.values()
            for block in blocks or ()
        ]
        free = list(self.iter_free())
        used = self.list_all() - {block for block, _ in locks} - set(free)
        counts = Counter(used)
        for block, count in locks:
            counts[block] += count
        cached = [block for block, count in locks if not count]
        pinned = Counter({block: n for block, n in locks if block > STATE})
        return Pool(+counts, free, cached, list(pinned.elements()))

    def iter_free(self) -> Iterator[int]:
        layout, slots = self.layout, self.slots
        if layout.full is None:
            yield from slots.swa_attn_allocator.get_all_free_pages().tolist()
        elif layout.sliding is None:
            yield from slots.get_all_free_pages().tolist()
        else:
            yield from slots.full_attn_allocator.get_all_free_pages().tolist()
            free = slots.swa_attn_allocator.get_all_free_pages()
            yield from (SLIDING + slot for slot in free.tolist())
        if layout.state is not None:
            yield from self.name_states(self.rows.mamba_allocator.free_slots)

    def list_all(self) -> set[int]:
        """Returns all existing blocks; slot 0 and page 0 are for padding."""
        layout, slots = self.layout, self.slots
        pages = range(1, slots.size_full // layout.page + 1)
        blocks = set(pages)
        if layout.full is not None and layout.sliding is not None:
            blocks |= {SLIDING + page for page in pages}
        if layout.state is not None:
            states = range(1, self.rows.mamba_allocator.size + 1)
            blocks |= {STATE + slot for slot in states}
        return blocks


class EventReader:
    """Reads events.

    Attributes:
        prefixes: hash → the namespace and the tokens of the hash.
    """

    def __init__(self) -> None:
        self.prefixes: dict[int, tuple[str | None, tuple[int, ...]]] = {}

    def translate(self, events: Sequence[Any]) -> Events:
        return [entry for event in events for entry in self.translate_one(event)]

    def translate_one(self, event: Any) -> Events:
        """Returns the content of an event, which contains no block."""
        if isinstance(event, sglang.AllBlocksCleared):
            return [("cleared", None)]
        if isinstance(event, sglang.BlockStored):
            self.note(event)
            name = "stored"
        else:
            name = "removed"
        return [(name, Entry(0, *self.prefixes[key], 0)) for key in event.block_hashes]

    def note(self, event: Any) -> None:
        """Stores the tokens of each hash."""
        _, tokens = self.prefixes.get(event.parent_block_hash, (None, ()))
        size = event.block_size
        # With EAGLE, an event pairs each token with the next token.
        pairs = event.token_ids
        told_tokens = [pair[0] if isinstance(pair, tuple) else pair for pair in pairs]
        for number, key in enumerate(event.block_hashes):
            tokens = (*tokens, *told_tokens[number * size : (number + 1) * size])
            self.prefixes[key] = event.cache_salt, tokens
