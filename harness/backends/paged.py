"""The protocol of a paged cache: the block manager of an engine, and its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from lockstep.harness.backends.interface import Array


class Ring(NamedTuple):
    """The blocks of a sliding group without a table: later positions overwrite the blocks
    in turn. The harness checks the K and V in these blocks, and which requests hold them.
    """

    blocks: Sequence[int]


Table = Sequence[int | None] | Ring
"""The block for each `block` positions; None for positions without a block."""

Tables = Sequence[Table]
"""The tables of a request, for each group. In a state group, entry i is the block with
the state after the last computed token in the positions of block i. If a step ends with
drafts, the states after them are in the next entries, one for each draft. Blocks in
different memory have different numbers."""


EVENTS = ("stored", "removed", "cleared")
"""The names of events; see `PagedCache.events`."""


class Pool(NamedTuple):
    """The blocks of a cache. Each block is held, free or cached.

    Attributes:
        references: block → the number of tables that hold it.
        free: blocks that no request holds and that cannot be hit.
        cached: blocks that no request holds and that can be hit.
        pinned: blocks that are held until they are copied, or until a transfer or a
            launched step ends. A block is listed once for each of these that holds it.
        idle: blocks of other memory that are free or can be evicted. If a new cache lists
            all blocks of other memory, each block must be listed whenever no transfer
            uses it.
    """

    references: Mapping[int, int]
    free: Sequence[int]
    cached: Sequence[int]
    pinned: Sequence[int] = ()
    idle: Sequence[int] = ()


class Entry(NamedTuple):
    """A prefix that can be hit in one group.

    Attributes:
        group: the number of the group in the config.
        namespace: the namespace of the request that computed the prefix.
        tokens: all tokens of the prefix.
        block: the block with the last tokens of the prefix, or with its state.
        adapter, extras: the adapter of this request, and its extras, as far as they lie
            in the prefix; see `PagedCache.open`.
    """

    group: int
    namespace: str | None
    tokens: Sequence[int]
    block: int
    adapter: str | None = None
    extras: Sequence[tuple[int, int, str]] = ()


TELLS = ("pool", "entries", "events", "attend", "host_entries", "reuse", "slots")
"""The optional methods and promises of a paged cache; see `Kind.tells`. "reuse" is not a
method but a promise about the entries: all tokens that a step computes can be hit after
`run` or `finish`; tokens that a transfer brings can be hit after `landed`; tokens that an
offload copies can be loaded after `landed`; a waiting request reuses as many tokens as
the entries allow; and if the cache has the method `pool`, an entry goes only if no block
is free after the operation, except in `evict`, `reset`, `restore`, `update_weights`, and
`free` without reuse."""


class PagedCache(Protocol):
    """A block manager that a scheduler calls; `reference.paged` defines its behavior.

    A kind declares its operations. If the kind declares `refuses`, an invalid call raises
    the "usage" error and changes nothing.
    """

    def open(
        self,
        request: str,
        tokens: Sequence[int],
        namespace: str | None,
        adapter: str | None = None,
        extras: Sequence[tuple[int, int, str]] = (),
    ) -> None:
        """Adds a waiting request, which holds no slots until it is scheduled.

        Args:
            request: the name of the request.
            tokens: its prompt.
            namespace: the name of its namespace, such as a salt.
            adapter: the name of its adapter, such as LoRA.
            extras: (first, end, key): additional inputs at the positions [first, end) of
                the prompt, such as an image with the hash `key`.

        `adapter` and `extras` are given if the config field `extra_keys` is true.
        """

    def match(self, request: str) -> int:
        """Returns the number of tokens that a waiting request would reuse now."""

    def schedule(
        self, request: str, count: int
    ) -> int | tuple[int, int] | tuple[int, int, Sequence[str]] | None:
        """Allocates slots for the next `count` known tokens, including drafts, or for all
        remaining known tokens if there are fewer.

        If the config field `overlap` is true, and
        launched steps compute all known tokens and no drafts, allocates a slot for the
        token that the last of these steps samples; see `finish`.

        A waiting request first reuses its cached prefix, and holds it from then on. A
        request that waits for a transfer is refused.

        Returns:
            The position of the first of these tokens, that is, the number of computed or
            reused tokens. A cache that may take fewer tokens, so that a step ends at a
            position where a state is stored, also returns the number of tokens. A cache
            that declares the config field `preempts` may take missing blocks from
            requests that are not in the step; it then also returns the number of tokens
            and the names of these requests, which wait as after `preempt`. None if
            there is no room, or if a cache with a state group cannot end a step of
            `count` tokens at the end of a block; then nothing changes. (None, 0, names)
            if it has taken blocks, but still too few; `names` may then contain the
            request itself. A cache need not evict cached blocks before it takes blocks
            of requests. There is room in free blocks and in cached blocks that no
            request holds; the config fields `admits` and `ahead` determine which tokens
            must fit. If the cache has one group and the method `pool`, the harness checks
            None against the numbers of `pool`.

        Raises:
            "usage" error: `count` is below 1, no token remains to be computed, or the
                request is already in this step, waits for a transfer, or does not exist.
                This is checked before a lack of room.
        """

    def run(self, lags: bool = False) -> None:
        """Ends the step: all allocated slots have been written, and its tokens are
        computed.

        Args:
            lags: whether the groups with `lags` in the config were left out: they have
                written nothing, and content from the first token of the step on must
                never be hit there. Given if the config has such a group.
        """

    def launch(self, lags: bool = False) -> None:
        """Begins to compute the planned step; called in place of `run` if the config
        field `flight` is not 0.

        Until the step finishes, the scheduler plans and launches later steps, and
        preempts, frees and offloads requests. Steps execute in the order of their
        launches. The blocks that `copies` lists after a launch are copied when the
        launched steps have finished. A later step may reuse tokens and states of the
        launched step, and the blocks of its requests. A transfer may not, because it may
        land before the step writes: `offload` may not copy blocks that the step has
        still to write, and `load` may not overwrite its blocks.
        `schedule` continues after the launched tokens. `lags` is given as for `run`.
        """

    def finish(self, sampled: Sequence[int | None] = ()) -> None:
        """Ends the oldest launched step: its slots have been written, and its tokens are
        computed. Results for a request that has been preempted or has ended are dropped,
        even if a new request has the same name.

        Args:
            sampled: for each request of the step, the next token, which may have been
                scheduled already; None if there is none, or if `accept` gives it later.
                Given if the config field `overlap` is true.
        """

    def accept(
        self,
        request: str,
        kept: int,
        sampled: int,
        drafts: Sequence[int],
        parents: Sequence[int] = (),
    ) -> Sequence[tuple[int, int, int, int]] | None:
        """Keeps computed drafts, appends the sampled token, and takes new drafts; drops
        the other drafts.

        `parents` is given if the config field `trees` is true.

        Args:
            request: the name of the request.
            kept: the number of the last draft to keep, from 1; 0 to keep no draft. The
                drafts that lead to this draft are also kept. In a chain, these are the
                first `kept` drafts.
            sampled: the next token.
            drafts: the drafts after this token. They get slots in this order, after the
                slot of the token.
            parents: for each draft, the number of the earlier draft that it follows; 0 if
                it follows the sampled token. Empty if each draft follows the draft before
                it. In `attend`, a draft attends to itself, the drafts that lead to it,
                and all tokens before the drafts.

        In a state group, the state after the last kept draft becomes the state of the
        request: its block moves to the entry of its position, or is copied (`copies`).

        Returns:
            The slots whose contents must move, in order, so that kept drafts lie in the
            slots of their new positions: (block, index in the block) of the source and of
            the target. A cache that stores K and V moves them itself, and also reports
            the moves. None for no moves.

        Raises:
            "usage" error: not all tokens of the request are computed; there are fewer
                than `kept` drafts; there is not one parent for each draft; or a parent is
                not an earlier draft or 0. Nothing changes.
        """

    def preempt(self, request: str) -> None:
        """Frees all slots of a request. The request waits again, without drafts."""

    def free(self, request: str, reuse: bool) -> None:
        """Ends a request. reuse: whether other requests may hit its computed tokens."""

    def fork(self, source: str, target: str, tokens: Sequence[int]) -> bool:
        """Opens a request with the computed tokens of `source`, followed by `tokens`.

        Drafts count as tokens if they form a chain, here and in `rewind`. The new request
        takes no drafts of a tree.

        Returns:
            Whether there was room; if not, nothing changes.
        """

    def rewind(self, request: str, to: int, tokens: Sequence[int]) -> bool:
        """Keeps the first `to` tokens of a request, and appends `tokens`.

        Returns:
            False if a group has already freed tokens that it needs; then nothing changes.
        """

    def evict(self, count: int) -> int:
        """Drops up to `count` cached blocks that no request holds; returns their
        number."""

    def reset(self) -> bool:
        """Drops all cached prefixes. Returns False, and changes nothing, if a request
        holds slots or a transfer has not ended."""

    def update_weights(self) -> None:
        """Tells that the weights of the model have changed: drops all cached prefixes, in
        all memory.

        Launched steps execute with the older weights, the planned step with the new ones.
        Requests keep their K and V, also those that launched steps and transfers still
        write. Nothing of this may be hit, nor what a request computes after it. A request
        that has released all its slots is computed anew.
        """

    # --- transfers: other memory has blocks with numbers of their own ------------------

    def offload(self, request: str, transfer: str) -> Sequence[tuple[int, int]]:
        """Begins to copy the blocks of a request that can be hit to other memory.

        The transfer may read and write its blocks until it ends, even if the request ends
        earlier.

        Returns:
            The blocks to copy, as (source, target) pairs. The list may be empty.
        """

    def load(
        self, request: str, transfer: str
    ) -> tuple[int, Sequence[tuple[int, int]]] | None:
        """Allocates slots for the prefix of a waiting request that is on the device or in
        other memory, and begins to copy the blocks in other memory to the device.

        Returns:
            The number of computed tokens after `landed`, and the blocks to copy: (block
            in other memory, block on the device). None if there is no room, or no block
            to copy.
        """

    def landed(self, transfer: str) -> None:
        """Ends a transfer that has copied all its blocks."""

    def failed(self, transfer: str, arrived: int) -> int:
        """Ends a transfer that has failed after copying its first `arrived` blocks.

        Returns:
            The number of computed tokens that the request that waits for the transfer
            keeps in its slots. If it is 0, the request waits again and holds no slots.
        """

    # --- transfers to and from other caches, which have blocks of their own -------------

    def send(self, request: str, transfer: str) -> Sequence[int]:
        """Begins to send what a request has computed, without drafts, to another cache.

        The blocks must keep their contents until the transfer ends, even if the request
        ends earlier.

        Returns:
            The blocks to send. Blocks whose contents have been sent for the request
            before may be left out.
        """

    def receive(
        self, request: str, transfer: str, end: int
    ) -> tuple[int, Sequence[int]] | None:
        """Allocates slots for the first `end` tokens of a waiting request, which reuses a
        prefix; another cache sends the contents after this prefix.

        Returns:
            The length of the reused prefix, and the blocks that are sent, in order. They
            must not be hit before `landed`. None if there is no room, or if the request
            can hit all these tokens.
        """

    # --- saving -------------------------------------------------------------------------

    def save(self) -> Any:
        """Returns all cached prefixes, in any form; None if a request holds slots or a
        transfer has not ended."""

    def restore(self, saved: Any) -> None:
        """Loads the result of `save` of a cache with the same config into this new
        cache. Each block has the same content as before.

        Raises:
            "usage" error: the other cache had another config.
        """

    # --- what it tells ------------------------------------------------------------------

    def tables(self, request: str) -> Tables:
        """Returns the tables of a request that holds slots.

        The tables that were returned last before a `launch` must not change until this
        step has finished.
        """

    def copies(self) -> Sequence[tuple[int, int]]:
        """Returns the blocks to copy after the launched steps and before the planned
        step, as (source, target) pairs, and clears this list."""

    def pool(self) -> Pool:
        """Returns all blocks: held by tables, free and cached."""

    def entries(self) -> Sequence[Entry]:
        """Returns all prefixes that can be hit now, with their blocks."""

    def host_entries(self) -> Sequence[Entry]:
        """Returns all prefixes in other memory, with their blocks there."""

    def events(self) -> Sequence[tuple[str, Entry | None]]:
        """Returns the events since the last call, and clears this list: ("stored",
        entry), ("removed", entry) and ("cleared", None)."""

    def slots(self, request: str) -> Sequence[Sequence[Sequence[int | None]]]:
        """Returns, for each rank and each group, the slot to which the planned step
        writes each position of a request; None where the rank does not store the
        position. [] for a state group, whose states lie in their blocks on all ranks.

        Called after `tables`, if the config field `ranks` is above 1.

        Slot = block · size + index in the block, where `size` is the number of positions
        of a block on one rank: `block` / `ranks` in a "full" group, otherwise `block`.
        """

    # --- memory, with data "backend": between the last schedule and run, for the planned
    # step; before finish, for the oldest launched step --------------------------------

    def update(
        self, layer: int, keys: Array, values: Array
    ) -> Sequence[tuple[Array, Array]]:
        """Writes the K and V of the step in one layer, and returns the K and V to attend
        to.

        Args:
            layer: the number of the layer; layers are numbered from 0 through all groups,
                in order. Then come the layers of the config field `reads`. Such a layer
                must not write: it ignores its K and V, which are other numbers, and
                returns the K and V of the layer that it reads.
            keys: [1, heads, tokens, key_dim]: the tokens of all requests of the step;
                requests are in the order in which they were scheduled.
            values: [1, heads, tokens, value_dim].

        Returns:
            For each request, K and V [1, heads, positions, dim]. The positions begin with
            the oldest position that the request's first token in the step attends to, and
            end with its last token.
        """

    def attend(self, layer: int, queries: Array) -> Array:
        """Computes the attention of the step in a layer, through the tables. `update` of
        this layer is called before.

        Args:
            layer: the number of a layer that is not in a state group.
            queries: [1, heads, tokens, key_dim], in the order of `update`.

        Returns:
            [1, heads, tokens, value_dim]; the scale is key_dim ** -0.5.
        """

    def read_states(self, layer: int) -> Sequence[tuple[Array, Array] | None]:
        """Returns the state of each request of the step before the step: two arrays
        [1, heads, 1, dim]; None if the request has read no token yet."""

    def list_ends(self, layer: int) -> Sequence[Sequence[int]]:
        """Returns, for each request of the step, the ascending numbers of tokens after
        which its states must be written: the number before its drafts, the number after
        each draft, and others before."""

    def write_states(self, layer: int, states: Array, more: Array) -> None:
        """Writes the states of each request: arrays [1, heads, ends, dim], one state for
        each number of tokens in `list_ends`."""
