"""The reference with one mistake each, to see that it is caught by a relation alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from math import inf
from typing import Any, NamedTuple

import lockstep.reference.session
from lockstep.reference.batch import Batch
from lockstep.reference.batched import BatchedCache, check_rows
from lockstep.reference.causal import CausalCache
from lockstep.reference.encoder import EncoderCache, Image, Removal
from lockstep.reference.errors import CacheFull
from lockstep.reference.kv import KVCache
from lockstep.reference.layers import Layer, Model
from lockstep.reference.list import ListCache
from lockstep.reference.paged import Group, PagedCache
from lockstep.reference.recurrent import RecurrentCache, Slot
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.slots import REFUSALS, Slots
from lockstep.reference.snapshot import Captures, Snapshot
from lockstep.reference.state import StateCache
from lockstep.reference.token import SharedToken, Token
from lockstep.reference.trie import Path, Trie
from lockstep.reference.wrapper import WrapperCache


class Mistake(NamedTuple):
    """A method that is wrong.

    Attributes:
        kind: what it is a mistake of.
        relation: the one that finds it, before any other does.
        owner: a class, or a module.
        method: its name there.
        wrong: stands in its place.
    """

    kind: str
    relation: str
    owner: Any
    method: str
    wrong: Any

    def plant(self, replace: Callable[[Any, str, Any], None]) -> None:
        replace(self.owner, self.method, self.wrong)


MISTAKES: dict[str, Mistake] = {}


def mistake(kinds: str, relation: str, owner: Any, method: str) -> Callable[[Any], Any]:
    """Notes what is decorated as a mistake of each of these kinds."""

    def note(wrong: Any) -> Any:
        is_property = isinstance(getattr(owner, method), property)
        new = property(wrong) if is_property else wrong
        first, *others = kinds.split()
        name = wrong.__name__.replace("_", "-")
        MISTAKES[name] = Mistake(first, relation, owner, method, new)
        for kind in others:
            MISTAKES[f"{name}-{kind}"] = Mistake(kind, relation, owner, method, new)
        return wrong

    return note


# --- layer caches -----------------------------------------------------------------------


@mistake("kv", "return", KVCache, "trim")
def trim_resurrects(self: KVCache, count: int) -> int:
    """Of two tokens and more, one comes back with the next update."""
    trimmed = min(count, self.offset)
    self.keep_below(self.offset - trimmed + (trimmed > 1))
    return trimmed


class Joining(list[Token]):
    """A list that `merge` can join with a tuple."""

    def __add__(self, other: Any) -> Any:
        return (*self, *other)


take_snapshot = KVCache.snapshot


@mistake("kv", "mask", KVCache, "snapshot")
def snapshot_is_the_cache(self: KVCache, begin: int) -> Snapshot | None:
    """From position 0 on, it grows with the cache until tokens are removed."""
    taken = take_snapshot(self, begin)
    if taken is None or taken.begin > 0:
        return taken
    if not isinstance(self.tokens, Joining):
        self.tokens = Joining(self.tokens)
    shared: Any = self.tokens
    return Snapshot(0, taken.end, shared)


@mistake("kv", "recompute", KVCache, "clone")
def clone_is_the_cache(self: KVCache) -> KVCache:
    copy = KVCache(self.chunk)
    copy.tokens = self.tokens
    return copy


@mistake("kv", "mask", KVCache, "visible")
def chunk_begins_late(self: KVCache, query: int) -> list[Token]:
    """The first token of a chunk is never seen, but by itself: the same in any cut."""
    first = 0 if self.chunk is None else min(query, query - query % self.chunk + 1)
    return [token for token in self.tokens if first <= token.position <= query]


@mistake("kv", "mask", KVCache, "restore")
def restore_goes_on_top(self: KVCache, snapshot: Snapshot | None, target: int) -> bool:
    """The live tokens at the positions of the snapshot stay beside it."""
    if not self.can_restore(snapshot, target):
        return False
    if snapshot is not None and self.offset <= snapshot.end:
        self.keep_below(snapshot.begin)
    self.tokens += snapshot.tokens if snapshot is not None else ()
    self.keep_below(target)
    return True


split = KVCache.split


@mistake("kv", "mask", KVCache, "split")
def split_loses_one(self: KVCache, snapshot: Snapshot, at: int) -> Any:
    left, right = split(self, snapshot, at)
    if left is None or right is None:
        return left, right
    short = (*right.tokens[:1], *right.tokens[2:])
    return left, Snapshot(right.begin, right.end, short)


@mistake("kv", "mask", KVCache, "update")
def captures_come_at_the_end(self: KVCache, tags: Sequence[int]) -> None:
    """A write that goes past several scheduled offsets captures only the last."""
    for tag in tags:
        self.tokens.append(Token(tag, position=self.offset))
    self.captures.reach(self.offset, self.snapshot)


reach = Captures.reach


@mistake("kv", "mask", Captures, "reach")
def captures_move_on(self: Captures, offset: int, snapshot: Any) -> None:
    """A capture is made again when a write comes by a second time."""
    self.captured.pop(offset, None)
    reach(self, offset, snapshot)


@mistake("rotating", "mask", RotatingCache, "visible")
def window_is_one_less(self: RotatingCache, query: int) -> list[Token]:
    """Consistently: in every cut, after every restore."""
    latest = max(1, self.window - self.keep - 1)
    return [
        token
        for token in self.tokens
        if token.position <= query
        and (token.position > query - latest or token.position < self.keep)
    ]


restore_ring, update_ring = RotatingCache.restore, RotatingCache.update
take_window, read_window = RotatingCache.snapshot, RotatingCache.state


@mistake("rotating", "mask", RotatingCache, "update")
def chunk_after_the_wrap_drops(self: RotatingCache, tags: Sequence[int]) -> None:
    """Several tokens at once, after the window is full, push out one too many."""
    if len(tags) > 1 and self.offset > self.window > 2:
        self.tokens = self.tokens[-(self.window - 2) :]
    update_ring(self, tags)


@mistake("rotating", "return", RotatingCache, "snapshot")
def snapshot_is_short(self: RotatingCache, begin: int) -> Snapshot | None:
    """Of a window that has slid, the oldest token is not put aside."""
    taken = take_window(self, begin)
    if taken is not None and self.offset > self.window > 1:
        return Snapshot(taken.begin, taken.end, taken.tokens[1:])
    return taken


@mistake("rotating", "mask", RotatingCache, "may_rewind")
def rewind_is_allowed_too_late(self: RotatingCache) -> bool:
    """One token after the window began to slide. Nothing shows it but a rewind after a
    restore, for only a snapshot has let go of what slid out."""
    return self.offset <= self.window + 1


@mistake("rotating", "mask", RotatingCache, "may_rewind")
def rewind_is_refused_too_early(self: RotatingCache) -> bool:
    return self.offset < self.window


@mistake("rotating", "recompute", RotatingCache, "state")
def reading_forgets(self: RotatingCache) -> list[Token]:
    """To read the state takes away what older positions would have seen."""
    seen = read_window(self)
    if self.offset > self.window > 1:
        self.tokens = self.tokens[-(self.window - 1) :]
    return seen


@mistake("rotating", "return", RotatingCache, "restore")
def sinks_are_forgotten(self: RotatingCache, snapshot: Any, target: int) -> bool:
    """A restore brings the latest tokens, not the first ones."""
    done = restore_ring(self, snapshot, target)
    if done and snapshot is not None and self.offset > self.window:
        self.tokens = self.tokens[self.keep :]
    return done


@mistake("state", "recompute", StateCache, "can_restore")
def state_restores_before_its_end(self: StateCache, snapshot: Any, target: int) -> bool:
    if snapshot is None:
        return target == self.offset
    return target in (snapshot.end, snapshot.end - 1)


update_state, clone_state = StateCache.update, StateCache.clone


@mistake("state", "cut", StateCache, "update")
def long_updates_lose_their_middle(self: StateCache, tags: Sequence[int]) -> None:
    update_state(self, tags)
    if len(tags) == 4:
        at = len(self.tokens) - 2
        self.tokens[at] = self.tokens[at]._replace(tag=tags[1])


@mistake("state", "recompute", StateCache, "clone")
def state_clone_is_the_cache(self: StateCache) -> StateCache:
    copy = clone_state(self)
    copy.tokens = self.tokens
    return copy


# --- batches ----------------------------------------------------------------------------


@mistake("batch-kv", "mask", BatchedCache, "select")
def rows_stay_in_order(self: BatchedCache, numbers: Sequence[int]) -> None:
    check_rows(numbers, len(self.rows))
    self.rows = [self.rows[number].clone() for number in sorted(numbers)]


@mistake("batch-kv", "cut", BatchedCache, "update")
def announcements_are_not_counted_down(
    self: BatchedCache, length: int, tags: Any
) -> None:
    """A short row goes on to get tokens until the longest row has all."""
    for row, own in zip(self.rows, tags, strict=True):
        row.update(own)
    self.width += length
    if self.coming is not None:
        longest = max(self.coming) - length
        self.coming = [min(longest, coming) for coming in self.coming]


@mistake("batch-rotating", "mask", BatchedCache, "extend")
def the_others_come_first(self: BatchedCache, other: BatchedCache) -> None:
    self.rows = [*other.rows, *self.rows]


@mistake("batch-rotating", "recompute", BatchedCache, "extract")
def a_row_is_taken_out_for_good(self: BatchedCache, number: int) -> Any:
    """The single cache is the row itself."""
    return self.rows[number]


@mistake("batch-state", "mask", BatchedCache, "extract")
def the_first_row_is_taken_out(self: BatchedCache, number: int) -> Any:
    return self.rows[0].clone()


@mistake("batch-state", "recompute", BatchedCache, "clone")
def batch_clone_shares_its_rows(self: BatchedCache) -> BatchedCache:
    return type(self)(self.rows)


@mistake("batch-list", "mask", ListCache, "trim")
def a_list_is_trimmed_where_it_can_be(self: ListCache, count: int) -> int:
    return max([part.trim(count) for part in self.parts])


@mistake("batch-list", "recompute", ListCache, "clone")
def list_clone_shares_its_parts(self: ListCache) -> ListCache:
    return ListCache(self.parts)


# --- unified caches ---------------------------------------------------------------------


def see(rule: Callable[..., bool]) -> Callable[[CausalCache, int], list[SharedToken]]:
    """Another rule of visibility: rule(cache, query, token, row)."""

    def visible(self: CausalCache, row: int) -> list[SharedToken]:
        assert self.current is not None
        query, sequence = self.current.positions[row], self.current.sequences[row]
        ahead = row in self.current.exceptions
        own = [token for token in self.tokens if sequence in token.sequences]
        return [token for token in own if rule(self, query, token, ahead)]

    return visible


def add_rule(name: str, kind: str, relation: str, rule: Callable[..., bool]) -> None:
    MISTAKES[name] = Mistake(kind, relation, CausalCache, "visible", see(rule))


def is_near(cache: CausalCache, query: int, token: SharedToken, ahead: bool) -> bool:
    """The window counts the query itself."""
    near = token.position > query - cache.window or token.position == query
    return near and (token.position <= query or ahead)


def is_shifted(cache: CausalCache, query: int, token: SharedToken, ahead: bool) -> bool:
    """Chunks begin at 1, 1 + chunk, …: nothing but the mask shows it."""
    before = (query - 1) % cache.chunk if cache.chunk != inf else query
    return (token.position <= query or ahead) and token.position >= query - before


def is_behind(cache: CausalCache, query: int, token: SharedToken, ahead: bool) -> bool:
    """A batch that crosses into the next chunk sees on from where it began."""
    assert cache.current is not None
    first = query - query % cache.chunk if cache.chunk != inf else 0
    first = min(first, min(cache.current.positions))
    return (token.position <= query or ahead) and token.position >= first


# one token too far ahead of what is stored: only a step back shows it
add_rule(
    "sees-the-next", "causal", "mask", lambda _, query, t, __: t.position <= query + 1
)
# a query does not see itself: the same in every cut, after every removal
add_rule("strictly-before", "causal", "mask", lambda _, q, t, a: t.position < q or a)
add_rule("window-counts-itself", "swa", "mask", is_near)
add_rule("chunks-are-shifted", "chunked", "mask", is_shifted)
add_rule("chunk-ends-at-the-batch", "chunked", "mask", is_behind)

remove = CausalCache.remove


@mistake("causal", "mask", CausalCache, "remove")
def middle_moves_too_far(self: Any, sequence: int, begin: int, end: int | None) -> None:
    """Two tokens taken out of the middle: what follows moves up by three."""
    remove(self, sequence, begin, end)
    if end is not None and end - begin == 2:
        self.tokens = [
            token._replace(position=token.position - 1)
            if sequence in token.sequences and token.position > begin
            else token
            for token in self.tokens
        ]


@mistake("causal", "return", CausalCache, "drop")
def end_of_another_goes(self: Any, sequence: int, begin: float, end: float) -> None:
    """To remove the end of one sequence takes shared tokens from all."""
    self.tokens = [
        token
        for token in self.tokens
        if not (sequence in token.sequences and begin <= token.position < end)
    ]


@mistake("causal", "mask", CausalCache, "list_refusals")
def copies_count_twice(self: CausalCache, batch: Batch, reserve: bool) -> list[Exception]:
    held = sum(len(token.sequences) for token in self.tokens)
    full = self.room - held < len(batch) and not reserve
    return [CacheFull("full")] if full else []


@mistake("causal", "mask", CausalCache, "list_refusals")
def full_one_too_early(self: CausalCache, batch: Batch, reserve: bool) -> list[Exception]:
    """Always, however the tokens came."""
    room = self.room - len(self.tokens)
    return [CacheFull("full")] if room <= len(batch) and not reserve else []


@mistake("causal", "return", CausalCache, "save")
def load_shares(self: CausalCache) -> list[SharedToken]:
    """The saved list is the cache's own, and goes on with it."""
    return self.tokens


def add_eviction(
    name: str,
    kind: str,
    relation: str,
    choose: Callable[[Sequence[int]], int] = min,
    more: int = 0,
) -> None:
    """Eviction that goes by a chosen position of a batch, and takes more tokens."""

    def get_kept(self: CausalCache, batch: Batch) -> list[SharedToken]:
        smaller = copy(self)
        for sequence in range(self.sequences):
            own = batch.get_positions(sequence)
            low = choose(own) if own else self.get_end(sequence)
            smaller.drop(sequence, 0, low - self.memory + more)
        return smaller.tokens

    MISTAKES[name] = Mistake(kind, relation, CausalCache, "get_kept", get_kept)


add_eviction("last-of-the-batch-counts", "swa", "mask", choose=max)
add_eviction("evicts-early", "swa", "mask", more=1)
add_eviction("evicts-late", "swa-memory", "mask", more=-1)


@mistake("swa", "mask", CausalCache, "get_kept")
def the_idle_forget_nothing(self: CausalCache, batch: Batch) -> list[SharedToken]:
    """Only the sequences of the batch let go: the others fill the cache."""
    smaller = copy(self)
    for sequence in set(batch.sequences):
        smaller.drop(sequence, 0, min(batch.get_positions(sequence)) - self.memory)
    return smaller.tokens


@mistake("swa-memory", "mask", CausalCache, "can_resume")
def resumes_too_often(self: CausalCache, sequence: int, position: int) -> bool:
    stored = [token.position for token in self.get_tokens(sequence)]
    return self.memory == inf or (bool(stored) and position <= max(stored) + 1)


@mistake("swa", "mask", CausalCache, "can_resume")
def resumes_too_seldom(self: CausalCache, sequence: int, position: int) -> bool:
    stored = [token.position for token in self.get_tokens(sequence)]
    return self.memory == inf or (bool(stored) and position <= max(stored))


@mistake("recurrent", "return", RecurrentCache, "is_shared")
def states_stay_shared(self: RecurrentCache, sequence: int) -> bool:
    return False


@mistake("recurrent", "mask", RecurrentCache, "put_checkpoint")
def checkpoint_is_the_state(self: RecurrentCache, slot: Slot) -> None:
    """A checkpoint that goes on with its state, once there is a second one."""
    if self.interval:
        slot.checkpoints.append(slot.read)
        slot.checkpoints = slot.checkpoints[-self.checkpoint_count :]


@mistake("recurrent", "mask", RecurrentCache, "remove")
def cut_state_keeps_its_end(self: Any, sequence: int, begin: int, end: Any) -> None:
    """The cells go, what was read of them stays read."""
    remove(self, sequence, begin, end)
    if begin == 0:
        self.slots.pop(sequence, None)


@mistake("encoder", "mask", EncoderCache, "image")
def image_of_the_first_row(self: EncoderCache) -> int | None:
    rows = self.current.multimodal if self.current else ()
    return self.current.positions[min(rows)] if self.current and rows else None


@mistake("encoder", "mask", Removal, "spares")
def image_survives_its_own_place(self: Removal, image: Image) -> bool:
    return not self.begin < image.position < self.end


remove_images = EncoderCache.remove


@mistake("encoder", "rename", EncoderCache, "remove")
def image_belongs_to_a_sequence(self: Any, sequence: int, begin: int, end: Any) -> None:
    """Only sequence 0 can remove it."""
    if sequence == 0:
        remove_images(self, sequence, begin, end)


@mistake("wrapper", "mask", WrapperCache, "forward")
def one_refuses_the_others_keep(
    self: WrapperCache, batch: Batch, tags: Any, reserve: bool = False
) -> None:
    """Only the first cache is asked whether there is room."""
    batch.check(self.caches[0].sequences, self.caches[0].batch)
    self.close()
    if not reserve:
        for cache in self.caches:
            cache.forward(batch, tags)


@mistake("wrapper", "return", WrapperCache, "remove")
def the_last_cache_is_not_cut(self: Any, sequence: int, begin: int, end: Any) -> None:
    self.close()
    for cache in self.caches[:-1]:
        cache.remove(sequence, begin, end)


@mistake("wrapper", "mask", WrapperCache, "can_resume")
def the_last_cache_decides(self: WrapperCache, sequence: int, position: int) -> bool:
    return self.caches[-1].can_resume(sequence, position)


# --- prefix caches ----------------------------------------------------------------------

copy_slot, remove_from_slot, rank = Slots.copy, Slots.remove, Slots.rank


@mistake("slots", "mask", Slots, "copy")
def forks_are_short(self: Slots, source: int, target: int, length: int) -> bool:
    """One token fewer is copied than the slot then says that it holds."""
    copied = copy_slot(self, source, target, length)
    with suppress(*REFUSALS):
        self.cache.remove(target, length - 1, None)
    return copied


@mistake("slots", "mask", Slots, "remove")
def the_wrong_middle_goes(self: Slots, number: int, begin: int, end: int | None) -> bool:
    """The cache loses one token later than the slot says."""
    late = end is not None and begin > 0
    return remove_from_slot(self, number, begin + late, end and end + late)


@mistake("slots", "mask", Slots, "rank")
def newest_slot_is_taken(self: Slots, slot: Any, tokens: Any) -> tuple[bool, int, int]:
    parts, age, number = rank(self, slot, tokens)
    return parts, -age if self.several_users else age, number


@mistake("slots", "mask", Slots, "rank")
def the_first_free_slot_is_taken(self: Slots, slot: Any, tokens: Any) -> Any:
    ranked = rank(self, slot, tokens)
    return ranked if self.several_users else (False, 0, slot.number)


count_common = lockstep.reference.session.count_common


@mistake("session", "mask", lockstep.reference.session, "count_common")
def compares_three_tokens(left: Sequence[int], right: Sequence[int]) -> int:
    """Never reuses more than the first three tokens: always the same."""
    return min(3, count_common(left, right))


@mistake("session", "mask", lockstep.reference.session, "count_common")
def nothing_is_left(left: Sequence[int], right: Sequence[int]) -> int:
    """An exact repeat reuses all but two tokens."""
    common = count_common(left, right)
    return common if common < len(left) else max(0, common - 2)


hold = Layer.hold


@mistake("session", "mask", Layer, "hold")
def windows_come_back_short(self: Layer, tags: Sequence[int]) -> None:
    hold(self, tags)
    if isinstance(self.cache, RotatingCache) and len(tags) > 1:
        self.cache.tokens = self.cache.tokens[-self.cache.window :][1:]


@mistake("session", "cut", Model, "feed")
def later_layers_miss_one(self: Model, count: int, layers: int | None = None) -> None:
    """A pass of three tokens and more hands the second layer its first token twice."""
    end = self.computed + count
    tags = list(self.get_tags(self.get_request()[:end]))[self.computed :]
    for layer in self.layers[:layers]:
        if layer is not None:
            layer.cache.update(tags)
        if len(tags) > 2:
            tags[1] = tags[0]
    self.computed = end


list_victims, is_wanted, begin_request = Trie.list_victims, Trie.is_wanted, Trie.begin


@mistake("trie", "keep", Trie, "list_victims")
def newest_goes_first(self: Trie, parents: Mapping[Path, Path]) -> list[Path]:
    victims = list_victims(self, parents)
    return sorted(victims, key=lambda path: -self.points[path].used)[:1]


@mistake("trie", "keep", Trie, "touch")
def use_is_not_noted(self: Trie, tokens: Sequence[int]) -> None:
    """A conversation that is told again is as old as before."""
    point = self.points.get(tuple(tokens))
    if point is not None and not point.used:
        self.clock += 1
        point.used = self.clock


@mistake("trie", "mask", Trie, "list_victims")
def the_live_path_goes(self: Trie, parents: Mapping[Path, Path]) -> list[Path]:
    inner = set(parents.values())
    return [path for path in parents if path not in inner or self.points[path].captured]


@mistake("trie", "mask", Trie, "is_wanted")
def checkpoints_are_one_late(self: Trie, end: int) -> bool:
    return is_wanted(self, end - 1)


@mistake("trie", "mask", Trie, "begin")
def parting_captures_nothing(
    self: Trie, tokens: Sequence[int], checkpoints: Any = (), refusing: Any = ()
) -> list[int]:
    left = begin_request(self, tokens, checkpoints, refusing)
    self.wanted = set(checkpoints)
    return left


@mistake("trie", "mask", Trie, "count_tokens")
def shared_tokens_count_twice(self: Trie) -> int:
    ends = set(self.points) - set(self.get_parents().values())
    return sum(len(path) for path in ends)


# --- paged caches -----------------------------------------------------------------------


first, accept, can_hit = Group.first, PagedCache.accept, PagedCache.can_hit
let_go = PagedCache.let_go


@mistake("paged-full", "mask", PagedCache, "accept")
def rejected_drafts_stay(
    self: PagedCache, name: str, kept: int, sampled: int, drafts: Sequence[int] = ()
) -> None:
    accept(self, name, len(self.requests[name].drafts), sampled, drafts)


@mistake("paged-full paged-state", "return", PagedCache, "let_go")
def one_who_goes_takes_all(self: PagedCache, name: str, reuse: bool) -> None:
    """Where nobody may hit what a request has computed, all that ended is forgotten."""
    let_go(self, name, reuse)
    if not reuse:
        self.past = []


@mistake("paged-sliding", "mask", Group, "first")
def window_is_too_wide(self: Group, query: int) -> int:
    return max(0, first(self, query) - 1)


@mistake("paged-sliding paged-state paged-hybrid", "rename", PagedCache, "can_hit")
def a_token_is_never_hit(self: Any, name: str, hit: int, in_step: bool = True) -> bool:
    """Token 1 stands for padding."""
    known = self.get(name).tokens[:hit]
    return can_hit(self, name, hit, in_step) and not (hit and 1 in known)


@mistake("paged-chunked", "mask", Group, "first")
def chunk_begins_early(self: Group, query: int) -> int:
    return max(0, query - query % self.width - 1) if self.width else 0


@mistake("paged-chunked", "mask", Group, "first")
def chunk_is_a_window(self: Group, query: int) -> int:
    return max(0, query - self.width + 1)


@mistake("paged-hybrid", "mask", Group, "first")
def windows_are_too_narrow(self: Group, query: int) -> int:
    return min(query, first(self, query) + (self.type == "sliding"))
