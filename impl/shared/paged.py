"""A block manager: block tables, shared prefixes, copy-on-write and eviction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import gcd
from sys import maxsize
from typing import Any

from lockstep.impl.shared.block_pool import BlockPool, list_held
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.shared.paged_groups import Group, StateGroup, Table, make_group
from lockstep.impl.shared.prefix_hash import Extra, PrefixHash

Move = tuple[int, int, int, int]
"""A block and the index of a slot in it, and the block and the index of the slot to which
the content is copied."""


class PagedRequest:
    """One request.

    Attributes:
        tokens: the prompt and the sampled tokens.
        drafts: draft tokens after `tokens`; their slots are in this order.
        parents: for each draft, the number of the draft that it follows, from 1; 0 if it
            follows `tokens`.
        hash: the names and extras of the request, and the keys of the prefixes of
            `tokens`, without drafts.
        tables: the block table of each group; None while the request waits.
        computed: number of computed tokens.
        begun: number of computed tokens after the launched steps.
        end: number of computed tokens after the planned step.
        published: number of tokens that other requests can hit; a multiple of the unit.
        passed: for each group, the number of leading blocks that are no longer needed.
        awaited: number of computed tokens after the transfer for which the request waits;
            0 without a transfer.
        present: number of these tokens that are on the device or on the host.
        sent: number of tokens that have been sent to another cache.
        transfer: the name of this transfer.
        lost: the first position that steps left out in groups that may lag.
        is_stale: whether some of its K and V are of older weights, so that other requests
            cannot hit what it computes.
    """

    def __init__(self, tokens: Sequence[int], prefix_hash: PrefixHash) -> None:
        self.tokens, self.hash = list(tokens), prefix_hash
        self.drafts: list[int] = []
        self.parents: list[int] = []
        self.tables: list[Table] | None = None
        self.published = self.awaited = self.present = self.sent = 0
        self.set_computed(0)
        self.passed: list[int] = []
        self.transfer: str | None = None
        self.lost = maxsize
        self.is_stale = False

    def set_computed(self, count: int) -> None:
        """Sets the number of computed tokens of a request that no step computes."""
        self.computed = self.begun = self.end = count

    @property
    def is_scheduled(self) -> bool:
        """Whether the planned step computes tokens of the request."""
        return self.end > self.begun

    @property
    def is_busy(self) -> bool:
        """Whether the planned step or a launched step computes tokens of the request."""
        return self.end > self.computed

    @property
    def known(self) -> int:
        return len(self.tokens) + len(self.drafts)

    def count_valid(self, group: Group, end: int) -> int:
        """Returns how many of the first `end` tokens a group has, if `end` tokens are
        computed."""
        return min(end, self.lost) if group.lags else end

    @property
    def chain(self) -> list[int]:
        """The computed tokens, with drafts only if they form a chain."""
        is_chain = self.parents == list(range(len(self.drafts)))
        return [*self.tokens, *(self.drafts if is_chain else ())][: self.computed]


@dataclass
class Segment:
    """The tokens of one request in a step.

    Attributes:
        request: the request; None if it has released its blocks since the launch.
        start, end: the step computes the positions [start, end).
        length: the number of tokens; the positions from `length` on are drafts.
        tables: the block tables for the step.
        parents: the parents of the drafts, which are the last tokens of the step.
    """

    request: PagedRequest | None
    start: int
    end: int
    length: int
    tables: list[Table]
    parents: list[int]


@dataclass
class Flight:
    """A step that has been launched and has not finished.

    Attributes:
        segments: the segments of the requests.
        blocks: the blocks that the step holds until it finishes. A request may release
            its blocks earlier; until the step finishes, no transfer may overwrite them.
        written: the blocks to which the step writes.
        copies: the copies of blocks that later steps need, to be made after the step.
    """

    segments: Sequence[Segment]
    blocks: list[int] = field(default_factory=list)
    written: set[int | None] = field(default_factory=set)
    copies: list[tuple[int, int]] = field(default_factory=list)


class BlockManager:
    """Assigns blocks of one pool to all requests and all groups.

    Launched steps must execute in the order of their launches. The tokens of a launched
    step can be hit at once, because the requests that hit them are in later steps.

    Args:
        groups: for each group, "type" ("full", "sliding", "chunked" or "state"), "block"
            (number of positions of a block), "width" (of a window or a chunk), and "lags"
            (whether a step may leave out the group), if it may. A "full" group whose
            positions are distributed across ranks also has "ranks", the number of ranks,
            and "interleave", the number of consecutive positions on a rank.
        blocks: number of blocks.
        max_length: maximum number of tokens of a request.
        unit: number of tokens that divides the length of every hit and every block; None
            for the greatest common divisor of the block sizes.
        prefix_cache: whether requests reuse tokens that other requests computed.
        drop_last: whether the last unit of the longest possible hit is computed again.
        overlap: whether `schedule` assigns a slot to the token that a launched step
            samples. It is published when `finish` tells it.

    Attributes:
        step: the planned step.
        launched: the launched steps, the oldest first.
        in_flight: block → number of times that launched steps hold it.
    """

    def __init__(
        self,
        groups: Sequence[Mapping[str, Any]],
        blocks: int,
        max_length: int,
        unit: int | None = None,
        prefix_cache: bool = True,
        drop_last: bool = False,
        overlap: bool = False,
    ) -> None:
        self.unit = unit or gcd(*(group["block"] for group in groups))
        self.blocks = BlockPool(blocks, len(groups))
        self.groups = [
            make_group(number, group, self.blocks, self.unit)
            for number, group in enumerate(groups)
        ]
        full = [group for group in groups if group["type"] == "full"]
        self.full_blocks = [group["block"] for group in full]
        self.ranks = max(group.get("ranks", 1) for group in groups)
        self.max_length, self.prefix_cache = max_length, prefix_cache
        self.dropped, self.overlap = self.unit if drop_last else 0, overlap
        self.requests: dict[str, PagedRequest] = {}
        self.step: list[Segment] = []
        self.launched: list[Flight] = []
        self.in_flight: Counter[int] = Counter()
        self.pending: list[tuple[int, int]] = []

    # --- requests -----------------------------------------------------------------------

    def open(
        self,
        request: str,
        tokens: Sequence[int],
        namespace: str | None = None,
        adapter: str | None = None,
        extras: Sequence[Extra] = (),
    ) -> None:
        """Adds a waiting request.

        Args:
            request: the name of the request.
            tokens: its prompt.
            namespace: the name of its namespace; other namespaces never hit its tokens.
            adapter: the name of the adapter of the model, such as LoRA.
            extras: what the model reads at some positions of the prompt besides their
                tokens, such as images, in the order of the positions.
        """
        self.check_new(request, tokens)
        if "" in (namespace, adapter):
            raise MisuseError(
                "open: the namespace or the adapter is an empty text; give at least one"
                " character, or None"
            )
        last = 0
        for first, end, key in extras:
            if not (last <= first < end <= len(tokens) and key):
                raise MisuseError(
                    f"open: the extra {key!r} at [{first}, {end}) needs a key and at"
                    f" least one of the positions [{last}, {len(tokens)})"
                )
            last = end
        prefix_hash = PrefixHash(self.unit, (namespace, adapter), tuple(extras))
        self.requests[request] = PagedRequest(tokens, prefix_hash)

    def check_new(self, name: str, tokens: Sequence[int]) -> None:
        if name in self.requests:
            raise MisuseError(f"there is a request {name} already")
        if not 0 < len(tokens) <= self.max_length:
            raise MisuseError(
                f"request {name} has {len(tokens)} tokens, but must have 1 …"
                f" {self.max_length}"
            )
        needed = sum(-(-len(tokens) // block) for block in self.full_blocks)
        if needed > self.blocks.count:
            raise MisuseError(
                f"request {name} needs {needed} blocks, but the cache has only"
                f" {self.blocks.count}"
            )

    def get(self, name: str) -> PagedRequest:
        if name not in self.requests:
            raise MisuseError(f"there is no request {name}")
        return self.requests[name]

    # --- hits ---------------------------------------------------------------------------

    def match(self, request: str) -> int:
        """Returns the number of tokens that a waiting request can reuse.

        At least one token always remains to be computed.
        """
        return self.find_hit(self.groups, self.get(request))

    def find_hit(self, groups: Sequence[Group], request: PagedRequest) -> int:
        """Returns the longest hit in these groups."""
        if not self.prefix_cache:
            return 0
        keys = request.hash.extend(request.tokens)
        most = (len(request.tokens) - 1) // self.unit * self.unit
        hit = find(groups, keys, most)
        return find(groups, keys, hit - self.dropped) if self.dropped and hit else hit

    # --- a step -------------------------------------------------------------------------

    def schedule(self, name: str, count: int) -> int | None:
        """Assigns slots to the next `count` tokens; see `harness.backends.paged`."""
        request = self.get(name)
        if request.is_scheduled:
            raise MisuseError(f"request {name} is already scheduled in this step")
        if request.awaited:
            raise MisuseError(
                f"request {name} cannot be scheduled: it waits for transfer"
                f" {request.transfer}"
            )
        tables, start = request.tables, request.begun
        if tables is None:
            start = self.match(name)
            tables = [group.claim(request.hash.keys, start) for group in self.groups]
        known, length = request.known, len(request.tokens)
        if self.overlap and request.computed < length <= start and not request.drafts:
            known = length = start + 1  # launched steps compute all known tokens
        end = min(start + count, known)
        if count < 1 or end <= start:
            raise MisuseError(
                f"schedule: request {name} has no token left to compute, or count is"
                f" less than 1 ({count})"
            )
        reused: list[int] = []
        if request.tables is None:
            reused = [block for table in tables for block in list_held(table)]
        plan = self.plan(tables, start, end, length, not reused)
        needed = sum(len(missing) + len(shared) for missing, shared in plan)
        if needed > self.blocks.count_available(reused):
            return None
        self.blocks.hold(reused)
        for table, (missing, shared) in zip(tables, plan, strict=True):
            self.extend(table, missing, shared)
        if request.tables is None:
            request.published, request.passed = start, [0] * len(tables)
            request.set_computed(start)
        request.tables, request.end = tables, end
        for drafts in (request.drafts, request.parents):
            del drafts[max(0, end - length) :]
        parents = [*request.parents]
        self.step.append(Segment(request, start, end, length, tables, parents))
        return start

    def plan(
        self, tables: Sequence[Table], start: int, end: int, length: int, is_held: bool
    ) -> list[tuple[list[int], list[int]]]:
        """Lists for each group the table indexes at which a step needs a new block.

        Returns:
            For each group, two lists of indexes: entries without a block, and entries
            whose block must be copied because other requests need its present content.
        """
        plan = []
        for group, table in zip(self.groups, tables, strict=True):
            missing, shared = [], []
            for index in group.list_written(start, end, length):
                block = table[index] if index < len(table) else None
                if block is None:
                    missing.append(index)
                elif not self.is_own(block, max(0, start - index * group.block), is_held):
                    shared.append(index)
            plan.append((missing, shared))
        return plan

    def is_own(self, block: int, index: int, is_held: bool) -> bool:
        """Returns whether a step may write to a block without copying it first.

        Args:
            block: the block.
            index: index of the first written position in the block.
            is_held: whether the request already holds the block. If not, the request is
                about to hold it.
        """
        held = self.blocks.references[block] - self.in_flight[block] + (not is_held)
        return held == 1 and self.blocks.filled[block] <= index

    def extend(self, table: Table, missing: Sequence[int], shared: Sequence[int]) -> None:
        """Changes a table: adds new blocks at the indexes `missing`, and replaces the
        blocks at the indexes `shared` by copies."""
        for index, block in zip(missing, self.blocks.take(len(missing)), strict=True):
            if index >= len(table):
                table += [None] * (index + 1 - len(table))
            table[index] = block
        for index in shared:
            block = table[index]
            assert block is not None
            [copied] = self.blocks.take(1)
            self.copy(block, copied)
            self.blocks.release([block])
            table[index] = copied

    def copy(self, source: int, target: int) -> None:
        """Schedules the copy of a block, which is made after the launched steps and
        before the planned step."""
        self.pending.append((source, target))
        if self.launched:
            self.launched[-1].copies.append((source, target))
            self.hold(self.launched[-1], [source, target])

    def hold(self, flight: Flight, blocks: Sequence[int]) -> None:
        """Lets a launched step hold blocks until it finishes."""
        flight.blocks += blocks
        self.blocks.hold(blocks)
        self.in_flight.update(blocks)

    def launch(self, lags: bool = False) -> None:
        """Begins to compute the planned step; the next step can be planned.

        Args:
            lags: whether the step leaves out the groups that may lag. Content that
                depends on its tokens is not published in these groups.
        """
        segments = [
            replace(segment, tables=[list(table) for table in segment.tables])
            for segment in self.step
        ]
        flight = Flight(segments)
        for segment in segments:
            for group, table in zip(self.groups, segment.tables, strict=True):
                self.hold(flight, list_held(table))
                written = group.list_written(segment.start, segment.end, segment.length)
                flight.written.update(table[index] for index in written)
        self.begin_step(flight, lags)

    def begin_step(self, flight: Flight, lags: bool) -> None:
        """Begins a step; see `launch`."""
        self.launched.append(flight)
        for segment in flight.segments:
            assert segment.request is not None
            segment.request.begun = segment.end
            if lags:
                segment.request.lost = min(segment.request.lost, segment.start)
            self.settle(segment.request)
        self.step = []

    def finish(self, sampled: Sequence[int | None] = ()) -> None:
        """Ends the oldest launched step. The caller has written to all its slots.

        Args:
            sampled: for each request of the step, the next token, or None if there is
                none, or if `accept` gives it; empty for no tokens.
        """
        flight = self.launched.pop(0)
        for segment, token in zip_longest(flight.segments, sampled):
            if segment.request is not None:
                segment.request.computed = segment.end
                if token is not None:
                    segment.request.tokens.append(token)
                    self.settle(segment.request)
        self.in_flight.subtract(flight.blocks)
        self.blocks.release(reversed(flight.blocks))

    def run(self, lags: bool = False) -> None:
        """Ends the planned step. The caller has written to all its slots.

        No call comes before its end, so that it need not hold its blocks.
        """
        self.begin_step(Flight(self.step), lags)
        self.finish()

    def settle(self, request: PagedRequest) -> None:
        """Publishes computed and launched tokens, and releases blocks that later steps do
        not need."""
        assert request.tables is not None
        settled = min(request.begun, len(request.tokens))
        publishes = self.prefix_cache and not request.is_stale
        if publishes and settled >= request.published + self.unit:
            keys = request.hash.extend(request.tokens)
            for group, table in zip(self.groups, request.tables, strict=True):
                end = request.count_valid(group, settled)
                group.publish(keys, table, request.published, end)
            request.published = settled - settled % self.unit
        for number, group in enumerate(self.groups):
            last = group.first(settled) // group.block
            if last > request.passed[number]:
                group.let_go(request.tables[number], request.passed[number], last)
                request.passed[number] = last

    def accept(
        self,
        name: str,
        kept: int,
        sampled: int,
        drafts: Sequence[int],
        parents: Sequence[int] = (),
    ) -> list[Move]:
        """Keeps drafts and takes new drafts; see `harness.backends.paged`."""
        request = self.get(name)
        if (
            request.tables is None
            or request.is_scheduled
            or request.computed < request.known
        ):
            raise MisuseError(
                f"accept: not all tokens of request {name} are computed yet; schedule"
                " and run them first"
            )
        if not 0 <= kept <= len(request.drafts):
            raise MisuseError(
                f"accept: kept must be 0 … {len(request.drafts)}, the number of"
                f" drafts of request {name}, not {kept}"
            )
        parents = list(parents or range(len(drafts)))
        are_earlier = all(0 <= parent < at for at, parent in enumerate(parents, 1))
        if len(parents) != len(drafts) or not are_earlier:
            raise MisuseError(
                f"accept: parents must have the number of an earlier draft, or 0, for"
                f" each of the {len(drafts)} drafts, not {parents}"
            )
        path, before = list_path(request.parents, kept), len(request.tokens) - 1
        moves = self.move_drafts(request, [before + draft for draft in path])
        self.confirm(request, request.tables, kept)
        request.tokens += [*(request.drafts[draft - 1] for draft in path), sampled]
        request.set_computed(len(request.tokens) - 1)
        request.drafts, request.parents = list(drafts), parents
        self.settle(request)
        return moves

    def move_drafts(self, request: PagedRequest, path: Sequence[int]) -> list[Move]:
        """Moves drafts from the slots of the positions `path` to the slots after those of
        the request's tokens.

        No other request needs the content of these slots, because a fork takes drafts
        only if they form a chain, whose drafts do not move.
        """
        assert request.tables is not None
        pairs = zip(path, range(len(request.tokens), request.known), strict=False)
        return [
            (*group.locate(table, source), *group.locate(table, target))
            for source, target in pairs
            for group, table in zip(self.groups, request.tables, strict=True)
            if source != target
        ]

    def confirm(self, request: PagedRequest, tables: Sequence[Table], kept: int) -> None:
        """Changes tables of a request whose first `kept` drafts become tokens."""
        for group, table in zip(self.groups, tables, strict=True):
            if isinstance(group, StateGroup):
                group.confirm(table, request.computed, len(request.tokens), kept)

    # --- letting go ---------------------------------------------------------------------

    def preempt(self, name: str) -> None:
        request = self.get(name)
        self.let_go(request)
        request.drafts, request.parents = [], []

    def free(self, name: str, reuse: bool) -> None:
        request = self.get(name)
        if not reuse:
            self.withdraw(request)
        self.let_go(request)
        del self.requests[name]

    def let_go(self, request: PagedRequest) -> None:
        """Releases all blocks of a request; the last blocks of its tables are evicted
        first. What steps compute for the request is dropped."""
        self.step = [segment for segment in self.step if segment.request is not request]
        for flight in self.launched:
            for segment in flight.segments:
                segment.request = None if segment.request is request else segment.request
        for table in request.tables or ():
            self.blocks.release(reversed(list_held(table)))
        request.tables, request.transfer = None, None
        request.lost, request.is_stale = maxsize, False
        request.published = request.awaited = request.present = request.sent = 0
        request.set_computed(0)

    def withdraw(self, request: PagedRequest) -> None:
        """Removes the prefixes of a request from the pool, except those that another
        request also has. A fork may hold a block, but not have what its source has added
        to the block."""
        others = [other for other in self.requests.values() if other is not request]
        for group, entries in zip(self.groups, self.blocks.entries, strict=True):
            shared = {key for other in others for key in self.list_settled(other, group)}
            for key in self.list_settled(request, group):
                if key in entries and key not in shared:
                    self.blocks.forget(entries[key])

    def list_settled(self, request: PagedRequest, group: Group) -> list[bytes]:
        """Lists the keys of the tokens that are computed, launched or being loaded in a
        group, and that can be hit."""
        if request.is_stale:
            return []
        settled = request.count_valid(group, max(request.begun, request.present))
        return request.hash.extend(request.tokens)[: settled // self.unit]

    def evict(self, count: int) -> int:
        return self.blocks.evict(count)

    @property
    def is_idle(self) -> bool:
        """Whether no request holds blocks, and no step is unfinished."""
        is_held = any(request.tables is not None for request in self.requests.values())
        return not is_held and not self.launched

    def reset(self) -> bool:
        if not self.is_idle:
            return False
        self.blocks.evict(self.blocks.count)
        return True

    def update_weights(self) -> None:
        """Removes all prefixes; what requests hold now, or compute later after it, cannot
        be hit."""
        self.blocks.forget_all()
        for request in self.requests.values():
            request.is_stale |= max(request.begun, request.awaited) > 0

    # --- branches -----------------------------------------------------------------------

    def fork(self, source: str, target: str, tokens: Sequence[int]) -> bool:
        """Opens a request that shares all blocks of `source`.

        The first request that writes to a shared block copies the block.
        """
        request = self.get(source)
        if request.tables is None or request.is_busy or not request.computed:
            raise MisuseError(
                f"fork: request {source} has no computed tokens, or its step has not"
                " finished yet"
            )
        chain = request.chain
        if not tokens:
            raise MisuseError(
                f"fork: tokens is empty; give request {target} at least one token to"
                " compute"
            )
        self.check_new(target, [*chain, *tokens])
        branch = PagedRequest([*chain, *tokens], request.hash.branch(len(chain)))
        branch.tables = [list(table) for table in request.tables]
        branch.set_computed(len(chain))
        branch.published, branch.passed = request.published, [*request.passed]
        branch.lost, branch.is_stale = request.lost, request.is_stale
        for table in branch.tables:
            self.blocks.hold(list_held(table))
        self.confirm(request, branch.tables, request.computed - len(request.tokens))
        self.requests[target] = branch
        return True

    def rewind(self, name: str, to: int, tokens: Sequence[int]) -> bool:
        request = self.get(name)
        chain = request.chain
        if request.tables is None or request.is_busy or not 0 < to <= len(chain):
            raise MisuseError(
                f"rewind: request {name} must be in no step, and can go back to 1 …"
                f" {len(chain)} tokens, not to {to}"
            )
        if not tokens:
            raise MisuseError(
                f"rewind: tokens is empty; give request {name} at least one token to"
                " compute"
            )
        pairs = list(zip(self.groups, request.tables, strict=True))
        settled = min(request.computed, len(request.tokens))
        if not all(group.can_go_back(table, to, settled) for group, table in pairs):
            return False
        self.confirm(request, request.tables, to - settled)
        for group, table in pairs:
            group.cut(table, to)
        request.tokens = chain[:to] + list(tokens)
        request.drafts, request.parents = [], []
        request.set_computed(to)
        request.hash.cut(to)
        request.sent = min(request.sent, to)
        request.published = min(request.published, to - to % self.unit)
        request.lost = request.lost if request.lost < to else maxsize
        return True

    # --- what it tells ------------------------------------------------------------------

    def tables(self, request: str) -> list[list[int | None]]:
        tables = self.get(request).tables
        return [list(table) for table in tables or ()]

    def slots(self, request: str) -> list[list[list[int | None]]]:
        """Returns the slots to which the planned step writes on each rank; see
        `harness.backends.paged`."""
        wanted = self.get(request)
        [segment] = [segment for segment in self.step if segment.request is wanted]
        pairs = list(zip(self.groups, segment.tables, strict=True))
        return [
            [
                group.list_slots(table, segment.start, segment.end, rank)
                for group, table in pairs
            ]
            for rank in range(self.ranks)
        ]

    def copies(self) -> list[tuple[int, int]]:
        copies, self.pending = self.pending, []
        return copies


def list_path(parents: Sequence[int], draft: int) -> list[int]:
    """Lists the numbers of the drafts that lead to a draft, and its number; none for
    0."""
    path: list[int] = []
    while draft:
        path.insert(0, draft)
        draft = parents[draft - 1]
    return path


def find(groups: Sequence[Group], keys: Sequence[bytes], most: int) -> int:
    """Returns the longest hit of at most `most` tokens in all groups."""
    hit = -1
    while hit != most:  # each group may shorten the hit that the other groups found
        hit = most
        for group in groups:
            most = group.find(keys, most)
    return most
