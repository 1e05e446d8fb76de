"""Mistakes of block managers: keys, references, windows, copies, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

from lockstep.impl.faults.fault import edit, mistake, rewrite
from lockstep.impl.shared.block_pool import list_held
from lockstep.impl.shared.paged import list_path
from lockstep.impl.shared.paged_groups import SlidingGroup, StateGroup
from lockstep.impl.shared.prefix_hash import PrefixHash

# --- keys -------------------------------------------------------------------------------


@mistake("paged-full", 5, "vLLM PR#4764, #5364")
def paged_evicted_hash(cache: Any) -> None:
    """An evicted block keeps its keys."""
    keep_keys(cache.blocks)


def keep_keys(pool: Any) -> None:
    """Changes a pool: blocks that it evicts can still be hit."""
    wrong = "del self.cached[block]\n        self.free.append(block)"
    edit(pool, "evict", "self.forget(block)", wrong)


@mistake("paged-full", 3, "vLLM#41838")
def paged_hash_before_write(cache: Any) -> None:
    """The keys are published when slots are allocated, before K and V are written."""
    schedule = cache.schedule

    def publish_early(name: str, count: int) -> int | None:
        start: int | None = schedule(name, count)
        request = cache.requests[name]
        if start is not None:
            request.begun = request.end
            cache.settle(request)
            request.begun = start
        return start

    cache.schedule = publish_early


@mistake("paged-full", 6, "vLLM#56656")
def paged_namespace(cache: Any) -> None:
    """The key lacks the namespace, on which K and V depend besides the tokens."""

    def leave_out(prefix_hash: PrefixHash) -> None:
        _, adapter = prefix_hash.names
        prefix_hash.seed = PrefixHash(prefix_hash.unit, (None, adapter)).seed

    change_hashes(cache, leave_out)


@mistake("paged-full", 5, "vLLM#44701")
def paged_names_joined(cache: Any) -> None:
    """The key joins the letters of the namespace and of the adapter, so that different
    pairs get equal keys."""

    def join(prefix_hash: PrefixHash) -> None:
        joined = "".join(name or "" for name in prefix_hash.names)
        prefix_hash.seed = PrefixHash(prefix_hash.unit, (joined, None)).seed

    change_hashes(cache, join)


@mistake("paged-full", 5, "SGLang PR#10637")
def paged_short_key(cache: Any) -> None:
    """The key of a page leaves out its last token, as if the page were shorter."""

    def shorten(prefix_hash: Any) -> None:
        extend = prefix_hash.extend

        def extend_short(request_tokens: Sequence[int]) -> Any:
            unit = prefix_hash.unit
            last = [
                number % unit == unit - 1 and unit > 1
                for number in range(len(request_tokens))
            ]
            pairs = zip(request_tokens, last, strict=True)
            return extend([0 if is_masked else token for token, is_masked in pairs])

        prefix_hash.extend = extend_short

    change_hashes(cache, shorten)


@mistake("paged-full", 5, "LMCache#690")
def paged_extras_ignored(cache: Any) -> None:
    """The key lacks the extras."""
    hash_extras(cache, "[]")


@mistake("paged-full", 5, "LMCache#4086")
def paged_extras_short_key(cache: Any) -> None:
    """The key has the first letters of the keys of extras only."""
    hash_extras(cache, "[(first, last, name[:1]) for first, last, name in extras]")


@mistake("paged-full", 5)
def paged_extras_without_position(cache: Any) -> None:
    """The key has the keys of extras, but not their positions."""
    hash_extras(cache, "[name for _, _, name in extras]")


@mistake("paged-full", 5)
def paged_extras_where_they_begin(cache: Any) -> None:
    """The key of an extra is in the key of its first block, and not of its later
    blocks."""
    begin = "len(keys) * self.unit"
    hash_extras(cache, f"[item for item in extras if item[0] >= {begin}]")


@mistake("paged-full", 5)
def paged_extra_at_block_end(cache: Any) -> None:
    """If an extra begins at the last position of a block, the key of this block lacks
    the extra."""
    last = "(len(keys) + 1) * self.unit - 1"
    hash_extras(cache, f"[item for item in extras if item[0] != {last}]")


def hash_extras(cache: Any, wrong: str) -> None:
    """Changes what is hashed of the list `extras` of a unit."""
    hashed = "repr(extras).encode() if extras"
    extend = rewrite(PrefixHash.extend, hashed, hashed.replace("extras", f"({wrong})"))

    def replace(prefix_hash: Any) -> None:
        prefix_hash.extend = MethodType(extend, prefix_hash)

    change_hashes(cache, replace)


def change_hashes(cache: Any, change: Callable[[PrefixHash], None]) -> None:
    """Changes the keys of each request that is opened."""
    opened = cache.open

    def open_changed(request: str, *fields: Any) -> None:
        opened(request, *fields)
        change(cache.requests[request].hash)

    cache.open = open_changed


@mistake("paged-full", 7)
def paged_draft_published(cache: Any) -> None:
    """Drafts are published before they are confirmed, and stay when they are rejected."""
    settle = cache.settle

    def settle_all(request: Any) -> None:
        tokens, drafts = request.tokens, request.drafts
        request.tokens, request.drafts = [*tokens, *drafts], []
        settle(request)
        request.tokens, request.drafts = tokens, drafts

    cache.settle = settle_all


@mistake("paged-full", 5)
def paged_last_not_dropped(cache: Any) -> None:
    """The last unit of a hit is not computed again."""
    cache.dropped = 0


@mistake("paged-full", 5)
def paged_withdrawn_hit(cache: Any) -> None:
    """The tokens of a request can be hit although the request forbade it."""
    cache.withdraw = lambda request: None


# --- references -------------------------------------------------------------------------


@mistake("paged-full", 3)
def paged_double_free(cache: Any) -> None:
    """The last block of a request that ends is freed twice."""
    let_go = cache.let_go

    def free_twice(request: Any) -> None:
        blocks = [block for table in request.tables or () for block in list_held(table)]
        let_go(request)
        if blocks and not cache.blocks.references[blocks[-1]]:
            cache.blocks.free.append(blocks[-1])

    cache.let_go = free_twice


@mistake("paged-full", 6, "SGLang#35270")
def paged_double_count(cache: Any) -> None:
    """The blocks that a hit reuses are also counted as blocks that can be evicted."""
    pool = cache.blocks
    pool.count_available = lambda reused=(): len(pool.free) + len(pool.cached)


@mistake("paged-full", 7, "mini-sglang PR#142")
def paged_running_duplicate(cache: Any) -> None:
    """Duplicate blocks are freed, but stay in the table of a request."""
    settle = cache.settle

    def free_duplicates(request: Any) -> None:
        settle(request)
        for group, table in zip(cache.groups, request.tables, strict=True):
            for index, key in enumerate(request.hash.keys):
                at = index * cache.unit // group.block
                first_table = table[at] if at < len(table) else None
                last = cache.blocks.find(group.number, key)
                if (
                    first_table is None
                    or last in (None, first_table)
                    or cache.blocks.keys[first_table]
                ):
                    continue
                if cache.blocks.references[first_table] == 1:
                    cache.blocks.release([first_table])

    cache.settle = free_duplicates


@mistake("paged-full", 6, "vLLM PR#7018")
def paged_miss_zeroed(cache: Any) -> None:
    """In a step, a request with a hit overwrites the table of a request without a hit."""
    schedule = cache.schedule

    def zero(request: str, count: int) -> int | None:
        start: int | None = schedule(request, count)
        first = cache.step[0] if cache.step else None
        if start and first is not None and first.start == 0:
            for table, last in zip(
                first.tables, cache.requests[request].tables, strict=True
            ):
                table[0] = last[0]
        return start

    cache.schedule = zero


# --- windows ----------------------------------------------------------------------------


@mistake("paged-hybrid", 3, "SGLang PR#27586, #29860")
def paged_window_frees_live(cache: Any) -> None:
    """When a window slides, a stale mapping frees blocks of a full group."""

    def release_full(table: Any, begin: int, end: int) -> None:
        for request in cache.requests.values():
            if any(first_table is table for first_table in request.tables or ()):
                cache.blocks.release(list_held(request.tables[0][begin:end]))

    for group in cache.groups:
        if isinstance(group, SlidingGroup):
            group.let_go = release_full


@mistake("paged-hybrid", 6, "TensorRT-LLM PR#2983, #10875")
def paged_min_window(cache: Any) -> None:
    """The length of a hit is determined by the group with the largest window, not by all
    groups."""
    for group in cache.groups[1:]:
        group.find = lambda keys, most: most
        group.get = lambda keys, end, group=group: cache.blocks.find(
            group.number, keys[end // cache.unit - 1]
        )


# --- copies -----------------------------------------------------------------------------


@mistake("paged-full", 6)
def paged_fork_shares_last(cache: Any) -> None:
    """After a fork, both requests write into their shared block."""
    filled = cache.blocks.filled
    cache.is_own = lambda block, index, is_held: filled[block] <= index


@mistake("paged-full", 6)
def paged_rewind_in_place(cache: Any) -> None:
    """A rewind overwrites a block whose old content can still be hit."""
    references = cache.blocks.references
    cache.is_own = lambda block, index, is_held: references[block] + (not is_held) == 1


@mistake("paged-full", 6)
def paged_copy_first_layer(cache: Any) -> None:
    """The copy of a block copies its first layer and no other layer."""
    memory = getattr(cache, "memory", None)
    if memory is None:
        return
    copy = memory.copy

    def copy_first(source: int, target: int) -> None:
        buffers = memory.buffers
        memory.buffers = buffers[:1]
        copy(source, target)
        memory.buffers = buffers

    memory.copy = copy_first


@mistake("paged-sliding", 3)
def paged_chunk_without_mask(cache: Any) -> None:
    """The attention of several tokens of a request has no mask, so a token sees later
    tokens."""
    memory = getattr(cache, "memory", None)
    if memory is not None:
        attend = memory.attend
        memory.attend = lambda queries, pair, seen: attend(queries, pair, None)


# --- steps in flight --------------------------------------------------------------------


@mistake("paged-state", 7, "SGLang#24221")
def paged_state_stored_early(cache: Any) -> None:
    """A launched step is expected to write the state at its end only, so the state at the
    end of a block is offloaded before the step has written it."""
    launch = cache.launch

    def note_last(lags: bool = False) -> None:
        launch(lags)
        flight = cache.launched[-1]
        flight.written = {
            table[group.get_index(segment.end, segment.length)]
            for segment in flight.segments
            for group, table in zip(cache.groups, segment.tables, strict=True)
        }

    cache.launch = note_last


@mistake("paged-full", 7, "vLLM#45704, PR#46278")
def paged_stored_early(cache: Any) -> None:
    """An offload copies blocks to which a launched step has still to write."""
    written = "None if any(block in item.written for item in self.launched) else block"
    edit(cache, "find_new", written, "block")


@mistake("paged-full", 5, "TensorRT-LLM PR#15546")
def paged_table_overwritten(cache: Any) -> None:
    """The tables for the next step are written over those that the launched step has
    still to read."""
    tables, buffers = cache.tables, dict[str, list[Any]]()

    def overwrite(request: str) -> list[Any]:
        buffer = buffers.setdefault(request, [])
        buffer[:] = tables(request)
        return buffer

    cache.tables = overwrite


@mistake("paged-full", 7, "vLLM PR#49620")
def paged_late_output(cache: Any) -> None:
    """The output of a step counts for a request that was preempted since the launch, if
    the request holds slots again."""
    let_go, finish = cache.let_go, cache.finish

    def let_go_late(request: Any) -> None:
        segments = [segment for flight in cache.launched for segment in flight.segments]
        late = [segment for segment in segments if segment.request is request]
        let_go(request)
        for segment in late:
            segment.request = request

    def finish_late(*sampled: Any) -> None:
        segments = cache.launched[0].segments
        finish(*sampled)
        for segment in segments:
            if segment.request is not None and segment.request.tables is not None:
                segment.request.begun = max(segment.request.begun, segment.end)
                segment.request.end = max(segment.request.end, segment.end)

    cache.let_go, cache.finish = let_go_late, finish_late


@mistake("paged-full", 8)
def paged_copied_early(cache: Any) -> None:
    """A block is copied for the next step before the launched step has written to it."""
    copy, memory = cache.copy, getattr(cache, "memory", None)

    def copy_now(source: int, target: int) -> None:
        copy(source, target)
        if cache.launched and memory is not None:
            memory.copy(source, target)
            cache.launched[-1].copies.pop()

    cache.copy = copy_now


@mistake("paged-full", 14)
def paged_flight_without_hold(cache: Any) -> None:
    """A request that ends frees its blocks for a load while a launched step has still to
    write to them."""
    cache.hold = lambda flight, blocks: None


# --- sampled tokens in flight -----------------------------------------------------------


@mistake("paged-full", 6)
def paged_placeholder_hashed(cache: Any) -> None:
    """A key has 0 in place of a token that is not told yet."""
    settle = cache.settle

    def settle_early(request: Any) -> None:
        tokens = request.tokens
        request.tokens = [*tokens, *[0] * (request.begun - request.known)]
        settle(request)
        request.tokens = tokens

    cache.settle = settle_early


@mistake("paged-full", 8)
def paged_told_unpublished(cache: Any) -> None:
    """Tokens that are computed before they are told are never published."""
    settle = cache.settle

    def settle_at_once(request: Any) -> None:
        settle(request)
        if request.begun > request.known:
            request.published = request.begun - request.begun % cache.unit

    cache.settle = settle_at_once


@mistake("paged-full", 10)
def paged_token_of_another(cache: Any) -> None:
    """If a request of the step has ended, its token is told the next one of the step."""
    finish = cache.finish

    def finish_rest(sampled: Sequence[int | None] = ()) -> None:
        flight = cache.launched[0]
        flight.segments = [
            segment for segment in flight.segments if segment.request is not None
        ]
        finish(sampled[: len(flight.segments)])

    cache.finish = finish_rest


@mistake("paged-full", 6)
def paged_told_when_planned(cache: Any) -> None:
    """A token is lost if the next step of its request is planned when it is told."""
    finish = cache.finish

    def finish_some(sampled: Sequence[int | None] = ()) -> None:
        pairs = zip(cache.launched[0].segments, sampled, strict=False)
        planned = [segment.request for segment in cache.step]
        finish(
            [None if segment.request in planned else token for segment, token in pairs]
        )

    cache.finish = finish_some


# --- new weights ------------------------------------------------------------------------


@mistake("paged-full", 4, "NeMo-RL PR#4018, SkyRL PR#1824")
def paged_update_when_idle(cache: Any) -> None:
    """If the weights change while requests hold blocks, older prefixes can still be
    hit."""
    update = cache.update_weights
    cache.update_weights = lambda: update() if cache.is_idle else None


@mistake("paged-full", 6)
def paged_stale_published(cache: Any) -> None:
    """Tokens that a request computes after a change of the weights can be hit, although
    they depend on older K and V."""
    change_stale(cache, lambda request: False)


@mistake("paged-full", 6)
def paged_stale_in_flight(cache: Any) -> None:
    """A request counts as new if a launched step computes all its K and V of older
    weights."""
    change_stale(cache, lambda request: request.computed + request.awaited > 0)


def change_stale(cache: Any, is_stale: Callable[[Any], bool]) -> None:
    """Changes which requests are stale after a change of the weights."""
    update = cache.update_weights

    def update_wrongly() -> None:
        update()
        for request in cache.requests.values():
            request.is_stale = is_stale(request)

    cache.update_weights = update_wrongly


# --- trees of drafts --------------------------------------------------------------------


@mistake("paged-full", 7, "SGLang PR#15360")
def paged_path_stays_scattered(cache: Any) -> None:
    """The drafts that are kept stay in their slots, between those of rejected drafts."""
    cache.move_drafts = lambda request, path: []


@mistake("paged-full", 7)
def paged_path_of_siblings(cache: Any) -> None:
    """The tokens of the first drafts are kept, not those of the path."""
    kept = "request.drafts[draft - 1] for draft in "
    edit(cache, "accept", f"{kept}path", f"{kept}range(1, len(path) + 1)")


@mistake("paged-full", 7, "SGLang PR#7239")
def paged_tree_by_step(cache: Any) -> None:
    """The slots of drafts are taken step by step, but the drafts lie branch by branch."""
    move_drafts = cache.move_drafts

    def move_by_step(request: Any, path: Sequence[int]) -> Any:
        begin = len(request.tokens)
        numbers = range(1, len(request.drafts) + 1)
        depths = [len(list_path(request.parents, number)) for number in numbers]
        by_step = sorted(range(len(depths)), key=depths.__getitem__)
        return move_drafts(request, [begin + by_step.index(at - begin) for at in path])

    cache.move_drafts = move_by_step


@mistake("paged-full", 6)
def paged_siblings_seen(cache: Any) -> None:
    """A draft of a tree attends to all drafts before it, as in a chain."""

    def attend_unmasked(layer: int, queries: Any) -> Any:
        for segment in cache.segments:
            segment.parents = list(range(len(segment.parents)))
        return attend(layer, queries)

    if hasattr(cache, "memory"):
        attend, cache.attend = cache.attend, attend_unmasked


# --- ranks ------------------------------------------------------------------------------


@mistake("paged-hybrid", 3, "vLLM PR#57260")
def paged_replicated_shared_out(cache: Any) -> None:
    """Positions of windows are distributed across ranks, but every rank needs all."""
    for group in cache.groups:
        group.ranks = cache.ranks


@mistake("paged-full", 3)
def paged_interleave_ignored(cache: Any) -> None:
    """The ranks take turns after each position."""
    for group in cache.groups:
        group.interleave = 1


@mistake("paged-full", 5)
def paged_rank_from_step(cache: Any) -> None:
    """The first position of each step lies on the first rank."""
    from_step = "(position - begin) // self.interleave % self.ranks"
    for group in cache.groups:
        if not isinstance(group, StateGroup):
            edit(group, "list_slots", "turn % self.ranks", from_step)


# --- layers that read another -----------------------------------------------------------


@mistake("paged-full", 3, "vllm-ascend PR#11791")
def paged_reader_writes(cache: Any) -> None:
    """A layer that should only read another layer writes its K and V to the blocks of
    that layer."""
    if hasattr(cache, "memory"):
        cache.writing = len(cache.layers)


@mistake("paged-sliding", 3, "mlx-lm PR#1702")
def paged_reader_is_late(cache: Any) -> None:
    """A layer that reads another layer places its queries after the tokens of the step,
    because the other layer has already written these tokens."""

    def attend_late(layer: int, queries: Any) -> Any:
        count = max(segment.end - segment.start for segment in cache.segments)
        shift = count if layer >= cache.writing else 0
        for group, first in firsts:
            group.first = lambda query, first=first: first(query + shift)
        attended = attend(layer, queries)
        for group, first in firsts:
            group.first = first
        return attended

    if hasattr(cache, "memory"):
        attend, cache.attend = cache.attend, attend_late
        firsts = [(group, group.first) for group in cache.groups]


@mistake("paged-full", 3, "lalamo PR#291")
def paged_reader_without_mask(cache: Any) -> None:
    """The attention of a layer that reads another has no mask, so a token sees the later
    tokens of the step, which the other layer has written."""

    def attend_unmasked(layer: int, queries: Any) -> Any:
        if layer >= cache.writing:
            cache.memory.attend = lambda queries, pair, seen: attend(queries, pair, None)
        attended = attend_layer(layer, queries)
        cache.memory.attend = attend
        return attended

    if hasattr(cache, "memory"):
        attend, attend_layer = cache.memory.attend, cache.attend
        cache.attend = attend_unmasked


# --- groups that lag --------------------------------------------------------------------


@mistake("paged-full", 3, "vLLM#47930, SGLang PR#19897")
def paged_hit_of_drafter(cache: Any) -> None:
    """Blocks of a drafter can be hit although the step left it out; it then reads memory
    that nobody wrote."""
    run = cache.run
    cache.run = lambda lags=False: run()


# --- drafts beside states ---------------------------------------------------------------


@mistake("paged-state", 7, "tpu-inference PR#3178")
def paged_state_after_rejected(cache: Any) -> None:
    """The state of a request keeps what rejected drafts did to it."""

    def keep_last(group: Any, table: Any, computed: int, length: int, kept: int) -> None:
        last, state = (group.get_index(n, length) for n in (computed, length + kept))
        table[last], table[state] = table[state], table[last]

    change_confirm(cache, keep_last)


@mistake("paged-state", 7, "vLLM PR#41898")
def paged_state_without_block(cache: Any) -> None:
    """If accepted drafts pass the end of a block, the state after them has no block."""

    def keep_length(
        group: Any, table: Any, computed: int, length: int, kept: int
    ) -> None:
        if kept and group.get_index(length, length) < (length + kept - 1) // group.block:
            state = group.get_index(length + kept, length)
            cache.blocks.release([table[state]])
            table[state] = None

    change_confirm(cache, keep_length)


def change_confirm(cache: Any, change: Callable[..., None]) -> None:
    """Changes the table of states before drafts are confirmed."""
    for group in cache.groups:
        if isinstance(group, StateGroup):

            def confirm(
                table: Any,
                computed: int,
                *counts: int,
                group: Any = group,
                correct: Any = group.confirm,
            ) -> None:
                if computed > counts[0]:
                    change(group, table, computed, *counts)
                correct(table, computed, *counts)

            group.confirm = confirm


# --- what is told -----------------------------------------------------------------------


@mistake("paged-full", 5)
def paged_silent_eviction(cache: Any) -> None:
    """There is no event when a block is evicted to make room."""
    if not hasattr(cache, "note"):
        return
    note, take = cache.blocks.note, cache.blocks.take

    def take_silently(count: int) -> Any:
        cache.blocks.note = lambda *event: None
        taken = take(count)
        cache.blocks.note = note
        return taken

    cache.blocks.take = take_silently


@mistake("paged-full", 3)
def paged_reset_under_requests(cache: Any) -> None:
    """A reset reports success while requests hold blocks."""
    reset = cache.reset

    def say_done() -> bool:
        reset()
        return True

    cache.reset = say_done
