"""The protocol of a paged cache: the block manager of an engine, and its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from lockstep.harness.backends.interface import Array


class Ring(NamedTuple):
    """Blocks of a sliding group that later positions overwrite, each at its turn: there
    is no table. The K and V that a backend stores there are checked, and who holds them.
    """

    blocks: Sequence[int]


Table = Sequence[int | None] | Ring
"""The block of each `block` positions; None where a request has none."""

Tables = Sequence[Table]
"""Of one request, for each group. A state group keeps in entry i the state after its last
computed token in the positions of block i. Block numbers of different memory differ."""


EVENTS = ("stored", "removed", "cleared")
"""The names of events; see `PagedCache.events`."""


class Pool(NamedTuple):
    """The blocks of a cache. Each is held, free or cached.

    Attributes:
        references: block → the number of tables that hold it.
        free: blocks that nobody holds and that cannot be hit.
        cached: blocks that nobody holds and that can be hit.
        pinned: blocks that are held until they are copied, or until a transfer ends,
            listed once for each such reference.
        idle: blocks of other memory that are free or can be evicted.
    """

    references: Mapping[int, int]
    free: Sequence[int]
    cached: Sequence[int]
    pinned: Sequence[int] = ()
    idle: Sequence[int] = ()


class Entry(NamedTuple):
    """A prefix that can be hit in one group.

    Attributes:
        group: its number in the config.
        namespace: of the request that computed it.
        tokens: the whole prefix.
        block: where its last tokens are, or its state.
    """

    group: int
    namespace: str | None
    tokens: Sequence[int]
    block: int


TELLS = ("pool", "entries", "events", "attend", "host_entries", "reuse")
"""What a paged cache may tell beside its tables; see `Kind.tells`. "reuse" is no method,
but a promise about the entries: all that a step has computed can be hit when it has run,
what a load has copied too when it has landed, all that an offload has copied can be
loaded then, and a request that waits reuses as much as the entries allow."""


class PagedCache(Protocol):
    """A block manager, as a scheduler calls it; `reference.paged` defines the meaning.

    A kind declares the operations that it has. A call that breaks a rule of usage raises
    ValueError and changes nothing, where the kind declares `refuses`.
    """

    def open(self, request: str, tokens: Sequence[int], namespace: str | None) -> None:
        """Adds a request. It holds no slots until it is scheduled."""

    def match(self, request: str) -> int:
        """Returns how many tokens of a waiting request it would reuse now."""

    def schedule(self, request: str, count: int) -> int | tuple[int, int] | None:
        """Gives slots to the next `count` known tokens, drafts included, or to all of
        them.

        A waiting request first reuses its cached prefix, and keeps it. A request that
        waits for a transfer is refused.

        Returns:
            The position of the first of these tokens, that is, the number of computed or
            reused tokens; for a cache that may take fewer tokens, so that a step ends
            where a state is kept, also their number. None if there is no room, or if with
            a state group a step of `count` tokens cannot end at the end of a block; then
            nothing changes. There is room in free blocks and in cached blocks that no
            request holds. With one group and `pool`, None is checked against these
            numbers.

        Raises:
            "usage" error: `count` is below 1, no token is left to compute, or the request
                is in this step already, waits for a transfer, or does not exist. This is
                checked before a lack of room.
        """

    def run(self) -> None:
        """The step is computed: all slots that were given are written."""

    def accept(
        self, request: str, kept: int, sampled: int, drafts: Sequence[int]
    ) -> None:
        """Keeps the first computed drafts, appends the sampled token, and takes new
        drafts; drops the other drafts."""

    def preempt(self, request: str) -> None:
        """Takes all slots from a request, which waits again without drafts."""

    def free(self, request: str, reuse: bool) -> None:
        """Ends a request. reuse: others may hit what it has computed."""

    def fork(self, source: str, target: str, tokens: Sequence[int]) -> bool:
        """Opens a request with the computed tokens of `source`, followed by `tokens`.

        Returns:
            False if there is no room; then nothing changes.
        """

    def rewind(self, request: str, to: int, tokens: Sequence[int]) -> bool:
        """Goes back to the first `to` tokens, and appends others.

        Returns:
            False if a group has freed these tokens; then nothing changes.
        """

    def evict(self, count: int) -> int:
        """Drops up to `count` cached blocks that nobody holds; returns how many."""

    def reset(self) -> bool:
        """Forgets all that can be hit; False, and nothing, if a request holds slots or a
        transfer is under way."""

    # --- transfers: other memory has blocks with numbers of their own ------------------

    def offload(self, request: str, transfer: str) -> Sequence[tuple[int, int]]:
        """Begins to copy the blocks of a request that can be hit to other memory.

        A transfer may read and write its blocks until it ends, even if the request ends
        before.

        Returns:
            The blocks to copy: from, to. There may be none.
        """

    def load(
        self, request: str, transfer: str
    ) -> tuple[int, Sequence[tuple[int, int]]] | None:
        """Gives slots to the prefix of a waiting request that is on the device or in
        other memory, and begins to copy the blocks in other memory.

        Returns:
            The number of computed tokens after landing, and the blocks to copy: (from
            other memory, to the device). None if there is no room, or nothing to copy.
        """

    def landed(self, transfer: str) -> None:
        """A transfer is over: all its blocks have been copied."""

    def failed(self, transfer: str, arrived: int) -> int:
        """A transfer is over: it has copied its first `arrived` blocks, and no others.

        Returns:
            How many tokens the request that waits for it keeps: computed, in its slots.
            With 0 it waits again and holds no slots.
        """

    # --- saving -------------------------------------------------------------------------

    def save(self) -> Any:
        """Returns all that can be hit, in any form; None, if a request holds slots or a
        transfer is under way."""

    def restore(self, saved: Any) -> None:
        """Loads what another cache of this config has saved into this fresh cache, with
        the same content in each block."""

    # --- what it tells ------------------------------------------------------------------

    def tables(self, request: str) -> Tables:
        """Returns the tables of a request that holds slots."""

    def copies(self) -> Sequence[tuple[int, int]]:
        """Returns, and forgets, the blocks to copy before the step runs: from, to."""

    def pool(self) -> Pool:
        """Returns all blocks: held by tables, free and cached."""

    def entries(self) -> Sequence[Entry]:
        """Returns every prefix that can be hit now, with its block."""

    def host_entries(self) -> Sequence[Entry]:
        """Returns every prefix that other memory holds now, with its block there."""

    def events(self) -> Sequence[tuple[str, Entry | None]]:
        """Returns, and forgets, the events since the last call: "stored" and "removed"
        with the entry, and "cleared" with None."""

    # --- memory, with data "backend": between the last schedule and run ----------------

    def update(
        self, layer: int, keys: Array, values: Array
    ) -> Sequence[tuple[Array, Array]]:
        """Writes K and V of the step in one layer, and returns what it attends to.

        Args:
            layer: counts through the layers of all groups, in order.
            keys: [1, heads, tokens, key_dim]: the tokens of each request of the step, in
                the order of their scheduling.
            values: [1, heads, tokens, value_dim].

        Returns:
            For each request K and V of the positions from the oldest that its first token
            attends to, up to its last token: [1, heads, positions, dim].
        """

    def attend(self, layer: int, queries: Array) -> Array:
        """Computes attention of the step in a layer that is updated, through the tables.

        Args:
            layer: not of a state group.
            queries: [1, heads, tokens, key_dim], in the order of `update`.

        Returns:
            [1, heads, tokens, value_dim]; the scale is key_dim ** -0.5.
        """

    def read_states(self, layer: int) -> Sequence[tuple[Array, Array] | None]:
        """Returns, for each request of the step, its state before the step: two arrays
        [1, heads, 1, dim]; None if it has read no token yet."""

    def list_ends(self, layer: int) -> Sequence[Sequence[int]]:
        """Returns, for each request of the step, after how many tokens its states are to
        be written, ascending; the last is the end of the step."""

    def write_states(self, layer: int, states: Array, more: Array) -> None:
        """Writes the states at all of these ends: [1, heads, ends, dim]."""
