"""Paged caches: which content each position of each request must hold.

This reference has no blocks, tables, hashes or evictions: an engine chooses them freely,
and they must not affect the content of requests. K and V of a position depend only on the
namespace and the adapter of its request, and on all inputs up to and including it. The
content of a position is therefore the same, no matter which request computed it.

A scheduler may launch several steps before the first of them has finished. Steps execute
one after another, in this order. A later step may therefore reuse what an earlier step
computes, even if the request of the earlier step has lost its slots since. The token that
a launched step samples may be scheduled at once. The cache is told the token when the
step finishes: nobody can hit it before, and if its request has let go, it is dropped.

The input at a position is a token. If an extra, such as an image, covers the position,
the input is also the key of the extra and the offset of the position in the extra. Two
requests thus share their first n positions if and only if their namespaces, their
adapters and their first n tokens are equal, and also their extras, as far as these lie
before n. A namespace never stands for an adapter, nor an adapter for a namespace.

When the weights of the model change, all K and V that are already computed are out of
date, and no other request may hit them. Requests that hold such K and V continue with
them. K and V that these requests compute later depend on them, and must not be hit
either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Space(NamedTuple):
    """The names on which K and V of all positions of a request depend."""

    namespace: str | None
    adapter: str | None = None


class Covered(NamedTuple):
    """A token at a position that an extra covers, and its offset in the extra."""

    token: int
    key: str
    offset: int


Input = int | Covered

Content = tuple[Space, tuple[Input, ...]]
"""The content of position p: the space, and the inputs at positions 0 … p."""

Extra = tuple[int, int, str]
"""The positions [first, end) and the key of an extra."""

Weights = tuple[int, ...]
"""The changes of the weights before K and V of a position were computed: for each change,
the number of tokens before the position whose K and V are older than the change."""


def cover(tokens: Sequence[int], extras: Sequence[Extra]) -> list[Input]:
    """Returns the inputs of tokens that extras cover.

    Raises:
        ValueError: an extra is empty, has no key, leaves the tokens, or begins before
            the end of the extra before it.
    """
    inputs: list[Input] = list(tokens)
    last = 0
    for first, end, key in extras:
        if not last <= first < end <= len(tokens) or not key:
            raise ValueError(
                f"the extra {key!r} covers [{first}, {end}), but needs a key and at least"
                f" one of the positions [{last}, {len(tokens)})"
            )
        covered = enumerate(tokens[first:end])
        inputs[first:end] = [Covered(token, key, offset) for offset, token in covered]
        last = end
    return inputs


class Group(NamedTuple):
    """Layers that attend to the same positions.

    Attributes:
        type: "full", "sliding", "chunked" or "state".
        width: number of tokens of a window, including the query, or of a chunk.
        lags: whether a step may leave out these layers, such as those of a drafter.
    """

    type: str
    width: int = 0
    lags: bool = False

    def first(self, query: int) -> int:
        """Returns the oldest position that the token at position `query` attends to."""
        if self.type == "sliding":
            return max(0, query - self.width + 1)
        if self.type == "chunked":
            return query - query % self.width
        return 0


def list_places(
    type: str, index: int, ranks: int, interleave: int
) -> list[tuple[int, int]]:
    """Lists where the ranks of context parallelism store a position of a block.

    The positions of a "full" group are distributed across the ranks: `interleave`
    consecutive positions for each rank in turn. Position p is stored on rank
    (p // interleave) mod ranks. Every rank stores all positions of the other groups.

    Args:
        type: the type of the group.
        index: the index of the position in the block, over all ranks.
        ranks: the number of ranks.
        interleave: see above; ranks · interleave divides the size of the block.

    Returns:
        Each rank that stores the position, and the index in the block on this rank.
    """
    if type != "full":
        return [(rank, index) for rank in range(ranks)]
    turn, offset = divmod(index, interleave)
    return [(turn % ranks, turn // ranks * interleave + offset)]


class Request:
    """One request.

    Attributes:
        space: the namespace and the adapter.
        tokens: the inputs of the prompt, and the sampled tokens.
        untold: number of the last of these that unfinished steps sample.
        drafts: guessed tokens after `tokens`; `accept` confirms or drops them. Their
            slots come after the slots of `tokens`, in this order.
        parents: for each draft, the number of the draft that it follows, from 1, or 0 if
            it follows `tokens`. Several drafts may follow the same token.
        is_held: whether the request holds slots. If not, it waits and has no computed
            tokens.
        computed: number of tokens whose K and V finished steps have computed.
        launched: number of tokens after these that launched steps compute.
        scheduled: number of tokens that the planned step computes.
        awaited: number of tokens whose slots a transfer fills; 0 if there is no transfer.
        present: number of these tokens that the cache has already; it has all of them
            unless another cache sends them.
        transfer: the name of this transfer.
        admitted: number of tokens for which the request has slots, computed or not.
        skipped: the first position of each step that left out the groups that may lag.
        changes: for each change of the weights so far, the number of tokens with K and V
            before it: 0 unless the request still has some of them.
    """

    def __init__(
        self, tokens: Sequence[Input], space: Space, changes: Sequence[int] = ()
    ) -> None:
        self.tokens, self.space = list(tokens), space
        self.untold = 0
        self.drafts: list[int] = []
        self.parents: list[int] = []
        self.is_held = False
        self.computed = self.launched = self.scheduled = 0
        self.awaited = self.present = self.admitted = 0
        self.transfer: str | None = None
        self.skipped: list[int] = []
        self.changes = list(changes)

    @property
    def known(self) -> list[Input]:
        return [*self.tokens, *self.drafts]

    @property
    def told(self) -> int:
        """The number of tokens that the cache knows."""
        return len(self.tokens) - self.untold

    @property
    def begun(self) -> int:
        """The number of tokens with K and V after the launched steps."""
        return self.computed + self.launched

    @property
    def settled(self) -> int:
        """The number of tokens with K and V after the launched steps, here or in other
        memory."""
        return max(self.begun, self.present)

    @property
    def end(self) -> int:
        """The number of tokens with K and V after the planned step, too."""
        return self.settled + self.scheduled

    @property
    def chain(self) -> list[Input]:
        """The computed tokens, each of which follows the token before it: the drafts are
        left out unless they form a chain."""
        return (self.known if self.is_chain else self.tokens)[: self.computed]

    @property
    def is_chain(self) -> bool:
        """Whether each draft follows the draft before it."""
        return self.parents == list(range(len(self.drafts)))

    def list_path(self, draft: int) -> list[int]:
        """Lists the tokens from the first after `tokens` to a draft, whose number counts
        from 1; none for 0."""
        path: list[int] = []
        while draft > 0:
            path.insert(0, self.drafts[draft - 1])
            draft = self.parents[draft - 1]
        return path

    def get_content(self, position: int) -> Content:
        path = self.list_path(position + 1 - len(self.tokens))
        return self.space, (*self.tokens[: position + 1], *path)

    @property
    def is_stale(self) -> bool:
        """Whether any K and V are of older weights."""
        return any(self.changes)

    def get_weights(self, position: int) -> Weights:
        """Returns the weights on which K and V of a position depend."""
        return tuple(change for change in self.changes if change <= position)

    def count_valid(self, group: Group, end: int) -> int:
        """Returns how many of the first `end` tokens have K and V in a group, if `end`
        tokens are computed.

        A group that has left out a token has no K and V of it and of all later tokens,
        since these depend on it.
        """
        return min([end, *self.skipped]) if group.lags else end

    def drop(self, kept: int = 0) -> None:
        """Drops the drafts, the tokens that unfinished steps sample, the transfer, and
        all slots except those of the first `kept` computed tokens."""
        self.drafts, self.parents, self.skipped = [], [], []
        self.tokens, self.untold = self.tokens[: self.told], 0
        self.is_held, self.transfer = kept > 0, None
        self.launched = self.scheduled = 0
        self.awaited = self.present = self.admitted = 0
        self.cut(kept)

    def cut(self, computed: int) -> None:
        """Keeps K and V of the first `computed` tokens."""
        self.computed = computed
        self.changes = [min(change, computed) for change in self.changes]


class PagedCache:
    """All requests of one model.

    Args:
        groups: the groups of the model's layers.
        prefix_cache: whether requests may reuse tokens that other requests computed.
        dropped: minimum number of tokens at the end of the longest possible hit that are
            computed again, for their outputs.
        admits: for which tokens a request gets slots when it is scheduled: "chunk": the
            tokens up to the end of the step; "prompt": all known tokens; "output": as
            many tokens as a request may have.
        most: the number of tokens that a request may have.
        ahead: the number of further tokens for which a request gets slots.
        overlap: whether the token that a launched step samples may be scheduled before
            the step has finished.

    Attributes:
        requests: name → request.
        step: the names of the scheduled requests, in order.
        flights: the launched steps, the oldest first: each request that still holds the
            slots of the step, and its number of tokens in the step.
        past: the space and the computed tokens of requests when they released them.
        transfers: name of each running transfer → the request that began it.
        changes: the number of changes of the weights so far.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        prefix_cache: bool = True,
        dropped: int = 0,
        admits: str = "chunk",
        most: int = 0,
        ahead: int = 0,
        overlap: bool = False,
    ) -> None:
        self.groups, self.prefix_cache, self.dropped = groups, prefix_cache, dropped
        self.admits, self.most, self.ahead = admits, most, ahead
        self.overlap = overlap
        self.requests: dict[str, Request] = {}
        self.step: list[str] = []
        self.flights: list[list[tuple[Request, int]]] = []
        self.past: list[Content] = []
        self.transfers: dict[str, Request] = {}
        self.changes = 0

    def open(
        self,
        name: str,
        tokens: Sequence[int],
        namespace: str | None = None,
        adapter: str | None = None,
        extras: Sequence[Extra] = (),
    ) -> None:
        """Adds a waiting request.

        Args:
            name: the name of the request.
            tokens: its prompt.
            namespace: a name that separates users, such as a salt.
            adapter: the name of the changes to the model, such as LoRA.
            extras: what the model reads at positions of the prompt besides their tokens.
        """
        if "" in (namespace, adapter):
            raise ValueError("open: a namespace or an adapter is an empty text")
        self.add(name, cover(tokens, extras), Space(namespace, adapter))

    def add(self, name: str, tokens: Sequence[Input], space: Space) -> None:
        if name in self.requests:
            raise ValueError(f"open: there is a request {name} already")
        if not tokens:
            raise ValueError("open: a request has at least one token")
        self.requests[name] = Request(tokens, space, [0] * self.changes)

    def get(self, name: str) -> Request:
        if name not in self.requests:
            raise ValueError(f"there is no request {name}")
        return self.requests[name]

    # --- hits ---------------------------------------------------------------------------

    def can_hit(self, name: str, hit: int, in_step: bool = True) -> bool:
        """Returns whether a waiting request can reuse its first `hit` tokens.

        It can if all groups have computed all tokens that the next token attends to;
        computed drafts do not count. At least one token remains to be computed, for its
        output.

        Args:
            name: the name of the request.
            hit: number of tokens.
            in_step: whether tokens that the planned step computes also count. They never
                count with states, because a layer reads all states before it writes any
                state, nor with a group that the step may leave out. Tokens and states of
                launched steps always count.
        """
        request = self.get(name)
        longer = range(hit + self.dropped, len(request.tokens))
        return hit == 0 or (
            self.is_there(request, hit, in_step)
            and any(self.is_there(request, further, in_step) for further in longer)
        )

    def is_there(self, request: Request, hit: int, in_step: bool) -> bool:
        """Returns whether the first `hit` tokens could be reused if `dropped` were 0."""
        if not self.prefix_cache or hit >= len(request.tokens):
            return False
        if all(group.first(hit) == hit for group in self.groups):
            return True  # a chunk begins: nothing before it is read
        is_late = any(group.type == "state" or group.lags for group in self.groups)
        computed = [
            (donor.space, tuple(donor.tokens[: min(donor.end, donor.told)]))
            if in_step and not is_late
            else self.get_complete(donor)
            for donor in self.requests.values()
            if not donor.is_stale
        ]
        reused = tuple(request.tokens[:hit])
        return any(
            space == request.space and tokens[:hit] == reused
            for space, tokens in [*computed, *self.past]
        )

    def get_complete(self, request: Request) -> Content:
        """Returns the told tokens, without drafts, that all groups have computed."""
        ends = (request.count_valid(group, request.settled) for group in self.groups)
        return request.space, tuple(request.tokens[: min(request.told, *ends)])

    # --- a step -------------------------------------------------------------------------

    def count_admitted(self, name: str, end: int) -> int:
        """Returns for how many tokens a request has slots after a step.

        Args:
            name: the name of the request.
            end: number of tokens with K and V after the step.
        """
        known = len(self.get(name).known)
        tokens = {"chunk": end, "prompt": known, "output": self.most}[self.admits]
        return max(end, tokens) + self.ahead

    def schedule(self, name: str, count: int, hit: int = 0) -> None:
        """Adds a request to the next step.

        Args:
            name: the name of the request.
            count: number of tokens to compute; all remaining tokens if there are fewer.
                Drafts after these tokens are dropped.
            hit: number of tokens that a waiting request reuses; see `can_hit`.
        """
        request = self.get(name)
        assert self.can_hit(name, hit)
        if request.scheduled:
            raise ValueError(f"schedule: {name} is in this step already")
        if request.awaited:
            raise ValueError(f"schedule: {name} waits for {request.transfer}")
        start = request.begun if request.is_held else hit
        if count < 1 or start == len(request.known):
            raise ValueError(f"schedule: {name} has no token to compute")
        request.is_held, request.computed = True, start - request.launched
        request.scheduled = min(count, len(request.known) - start)
        admitted = self.count_admitted(name, request.end)
        request.admitted = max(request.admitted, admitted)
        for drafts in (request.drafts, request.parents):
            del drafts[max(0, request.end - len(request.tokens)) :]
        self.step.append(name)

    def can_lose(self, name: str, other: str, refused: bool = False) -> bool:
        """Returns whether `other` may lose its slots to a request that is scheduled.

        It may if it waits for a step; it then waits without slots, as after `preempt`.
        The request itself may lose its slots if it is refused.
        """
        request = self.get(other)
        return (other != name or refused) and request.is_held and not request.scheduled

    def launch(self, lags: bool = False) -> None:
        """Begins to compute the planned step; the next step can be planned.

        Args:
            lags: whether the groups that may lag compute nothing.
        """
        step = [self.requests[name] for name in self.step]
        self.flights.append([(request, request.scheduled) for request in step])
        for request in step:
            if lags:
                request.skipped.append(request.begun)
            request.launched, request.scheduled = request.launched + request.scheduled, 0
        self.step = []

    def finish(self) -> None:
        """Ends the oldest launched step: its tokens are computed, and the cache is told
        the token that it has sampled for each request."""
        for request, count in self.flights.pop(0):
            request.computed, request.launched = (
                request.computed + count,
                request.launched - count,
            )
            # The step samples the token that follows; later tokens stay untold.
            later = len(request.tokens) - request.computed - 1
            request.untold = max(0, min(request.untold, later))

    def accept(
        self,
        name: str,
        kept: int,
        sampled: int,
        drafts: Sequence[int] = (),
        parents: Sequence[int] = (),
    ) -> None:
        """Confirms drafts of a request whose known tokens are all computed, or, with
        `overlap`, appends the token that the last launched step of the request samples.

        Args:
            name: the name of the request.
            kept: the number of the last correct draft, from 1; 0 if no draft is correct.
                The drafts that lead to it are also correct. Other drafts are dropped.
            sampled: the next token, which is not computed yet.
            drafts: the drafts after `sampled`.
            parents: for each draft, the number of the earlier draft that it follows, or 0
                if it follows `sampled`; empty if each draft follows the one before it.
        """
        request = self.get(name)
        if not self.can_accept(request):
            raise ValueError(f"accept: {name} has tokens that are not computed")
        if not 0 <= kept <= len(request.drafts):
            raise ValueError(
                f"accept: {kept} of the {len(request.drafts)} drafts of {name}"
            )
        parents = parents or range(len(drafts))
        are_earlier = all(0 <= parent < at for at, parent in enumerate(parents, 1))
        if len(parents) != len(drafts) or not are_earlier:
            raise ValueError(
                f"accept: the parents of {len(drafts)} drafts are {list(parents)}, but"
                " each draft needs 0 or an earlier draft"
            )
        request.tokens += [*request.list_path(kept), sampled]
        request.drafts, request.parents = list(drafts), list(parents)
        if request.launched:
            request.untold += 1
        else:
            request.cut(len(request.tokens) - 1)

    def can_accept(self, request: Request) -> bool:
        """Returns whether the last step of a request, whose token may be accepted,
        computes all known tokens.

        This step has finished; with `overlap`, a step without drafts may be unfinished.
        """
        has_finished = not request.launched
        is_last = request.is_held and request.begun == len(request.known)
        may_overlap = self.overlap and not request.drafts
        return is_last and not request.scheduled and (has_finished or may_overlap)

    def has_sampled(self, request: Request) -> bool:
        """Returns whether all known tokens are computed, by steps that have finished."""
        return self.can_accept(request) and not request.launched

    # --- letting go ---------------------------------------------------------------------

    def preempt(self, name: str) -> None:
        """Takes all slots from a request, which then waits again."""
        request = self.get(name)
        self.let_go(name, True)
        request.drop()

    def free(self, name: str, reuse: bool = True) -> None:
        """Ends a request.

        Args:
            name: the name of the request.
            reuse: whether other requests may hit its computed tokens.
        """
        self.let_go(name, reuse)
        del self.requests[name]

    def let_go(self, name: str, reuse: bool) -> None:
        request = self.get(name)
        if name in self.step:
            self.step.remove(name)
        for step in self.flights:  # what they compute no longer counts for the request
            step[:] = [item for item in step if item[0] is not request]
        if reuse:
            self.remember(request)

    def remember(self, request: Request) -> None:
        """Adds the computed and launched tokens of a request to `past`, unless some are
        of older weights."""
        if not request.is_stale:
            self.past.append(self.get_complete(request))

    @property
    def is_idle(self) -> bool:
        """Whether no request holds slots, and no step or transfer is running."""
        is_held = any(request.is_held for request in self.requests.values())
        return not is_held and not self.transfers and not self.flights

    def reset(self) -> bool:
        """Forgets all computed tokens if the cache is idle.

        Returns:
            False if the cache is not idle; then nothing changes.
        """
        is_idle = self.is_idle
        if is_idle:
            self.forget()
        return is_idle

    def may_forget(self) -> bool:
        """Returns whether a cache that is not idle may forget all computed tokens.

        It may if no request needs a slot: none is scheduled, and the next token of each
        attends to no token before it. Transfers are ignored.
        """
        held = [request for request in self.requests.values() if request.is_held]
        nexts = [request.awaited or request.begun for request in held]
        return not any(request.scheduled for request in held) and all(
            group.first(position) == position
            for group in self.groups
            for position in nexts
        )

    def forget(self) -> None:
        """Forgets the computed tokens of requests that have released their slots."""
        self.past = []

    def update_weights(self) -> None:
        """Records that the weights of the model have changed.

        Launched steps execute with the older weights, and the planned step with the new
        ones. Requests keep the K and V that they have or wait for. These can no longer be
        hit, nor can K and V that such a request computes before it releases its slots.
        """
        self.past, self.changes = [], self.changes + 1
        for request in self.requests.values():
            request.changes.append(max(request.begun, request.awaited))

    # --- transfers ----------------------------------------------------------------------

    def offload(self, name: str, transfer: str) -> None:
        """Begins to copy the computed tokens of a request to other memory.

        The copy has no visible effect: hits do not depend on where K and V are stored.

        Args:
            name: the name of the request.
            transfer: the name of the transfer.
        """
        request = self.get(name)
        if not request.computed:
            raise ValueError(f"{name} has computed nothing")
        self.begin(transfer, request)

    def load(self, name: str, transfer: str, end: int) -> None:
        """Gives a waiting request slots for its first tokens, and begins to fill them.

        Args:
            name: the name of the request.
            transfer: the name of the transfer.
            end: number of tokens that the request reuses after the transfer; see
                `can_hit`.
        """
        request = self.get(name)
        if request.is_held:
            raise ValueError(f"load: {name} holds slots")
        assert self.can_hit(name, end)
        self.wait(request, transfer, end, present=end)

    def send(self, name: str, transfer: str) -> None:
        """Begins to copy the computed tokens of a request to another cache.

        The sent content does not change until the transfer ends, even if the request
        ends.

        Args:
            name: the name of the request.
            transfer: the name of the transfer.
        """
        self.offload(name, transfer)

    def receive(self, name: str, transfer: str, end: int, hit: int = 0) -> None:
        """Gives a waiting request slots for its first tokens, which another cache has
        computed, and begins to fill them. No request can hit them before they are there.

        Args:
            name: the name of the request.
            transfer: the name of the transfer.
            end: number of computed tokens after the transfer; at least one token of the
                request remains to be computed.
            hit: number of these tokens that the request reuses instead; see `can_hit`.
        """
        request = self.get(name)
        if request.is_held:
            raise ValueError(f"receive: {name} holds slots")
        assert hit < end < len(request.tokens) and self.can_hit(name, hit)
        self.wait(request, transfer, end, present=hit)

    def wait(self, request: Request, transfer: str, end: int, present: int) -> None:
        self.begin(transfer, request)
        request.is_held, request.transfer = True, transfer
        request.awaited, request.present, request.admitted = end, present, end

    def begin(self, transfer: str, request: Request) -> None:
        if transfer in self.transfers:
            raise ValueError(f"there is a transfer {transfer} already")
        self.transfers[transfer] = request

    def landed(self, transfer: str) -> None:
        """Ends a transfer that has copied all its tokens."""
        request = self.end(transfer)
        if request is not None:
            request.computed, request.awaited, request.present = request.awaited, 0, 0

    def failed(self, transfer: str, kept_tokens: int = 0) -> None:
        """Ends a transfer that was interrupted.

        Args:
            transfer: the name of the transfer.
            kept_tokens: number of computed tokens that the request keeps; if 0, the
                request waits again and holds no slots.
        """
        request = self.end(transfer)
        if request is not None:
            self.remember(request)  # what has arrived may be hit
            request.drop(kept_tokens)

    def end(self, transfer: str) -> Request | None:
        """Removes a transfer.

        Returns:
            The request that waits for the transfer, or None.
        """
        if transfer not in self.transfers:
            raise ValueError(f"there is no transfer {transfer}")
        request = self.transfers.pop(transfer)
        if request.transfer != transfer:
            return None
        request.transfer = None
        return request

    # --- saving -------------------------------------------------------------------------

    def save(self) -> Sequence[Content] | None:
        """Returns all contents that can be hit, for `restore`; None if not idle."""
        return tuple(self.past) if self.is_idle else None

    def restore(self, saved: Sequence[Content]) -> None:
        """Removes all requests and replaces the contents that can be hit by `saved`."""
        self.requests, self.step, self.flights, self.transfers = {}, [], [], {}
        self.past = list(saved)

    # --- branches -----------------------------------------------------------------------

    def fork(self, source: str, target: str, tokens: Sequence[int]) -> None:
        """Opens a request that continues from the `chain` of another request.

        Args:
            source: the name of the other request, which is in no unfinished step.
            target: the name of the new request.
            tokens: the tokens of the new request after these.
        """
        origin = self.get(source)
        if not origin.computed or origin.launched or origin.scheduled:
            raise ValueError(f"fork: {source} has not computed its step")
        if not tokens:
            raise ValueError("fork: the new request has no token to compute")
        self.add(target, [*origin.chain, *tokens], origin.space)
        self.requests[target].is_held = True
        self.requests[target].skipped = list(origin.skipped)
        self.requests[target].changes = list(origin.changes)
        self.requests[target].cut(len(origin.chain))

    def rewind(self, name: str, to: int, tokens: Sequence[int]) -> None:
        """Keeps the first `to` tokens of a `chain` and replaces the rest by `tokens`.

        The request loses the computed tokens after the first `to`, but other requests may
        still hit them.
        """
        request = self.get(name)
        is_busy = request.launched + request.scheduled > 0
        if is_busy or not 0 < to <= len(request.chain) or not tokens:
            raise ValueError(f"rewind: {name} to {to}")
        self.remember(request)
        request.tokens = [*request.chain[:to], *tokens]
        request.drafts, request.parents, request.admitted = [], [], to
        request.cut(to)
        request.skipped = [position for position in request.skipped if position < to]
