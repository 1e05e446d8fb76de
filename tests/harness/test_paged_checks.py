"""The checks of paged caches: hand-made tables, pools, entries and events, and a cache
with one planted mistake each. Every message of every check appears."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from paging import GROUPS, Manager, Request, Storing, declare

from lockstep.harness.backends.backend import Kind
from lockstep.harness.backends.native import open_native
from lockstep.harness.backends.paged import Entry, Pool
from lockstep.harness.contracts.paged import PAGED
from lockstep.harness.contracts.paged.checks import (
    Prefix,
    check_entries,
    check_events,
    check_pool,
    check_tables,
    follow_events,
)
from lockstep.harness.contracts.paged.contents import list_needs, locate
from lockstep.harness.contracts.paged.model import PagedModel
from lockstep.harness.contracts.paged.reading import (
    read_copies,
    read_entries,
    read_events,
    read_pool,
    read_tables,
)
from lockstep.harness.core.errors import Broken, Unloadable
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Divergence, walk
from lockstep.harness.workers.registry import check_declaration
from tests.harness.building import make

SLIDING = {"type": "sliding", "block": 2, "width": 3, "layers": 1}
STATE = {"type": "state", "block": 2, "layers": 1}


def open_request(name: str, *tokens: int) -> dict[str, Any]:
    return {"op": "open", "request": name, "tokens": list(tokens)}


def ask(op: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"op": op, "request": name, **fields}


RUN = {"op": "run"}
BEGUN = (open_request("a", 1, 2, 3, 4, 5), ask("schedule", "a"), RUN)
"""Five tokens in three blocks, or in a window of three."""
BOTH = (
    *(open_request("a", 1, 2, 3), ask("schedule", "a")),
    *(open_request("b", 7, 2, 3), ask("schedule", "b"), RUN),
)


def reach(*ops: Mapping[str, Any], **config: Any) -> PagedModel:
    """Returns the reference after a program without a backend."""
    config = {"kind": "paged-full", **config}
    program = make(*ops, contract="paged", **config)
    [*_, last] = walk(program)
    model: PagedModel = last.model
    return model


def refuse(check: Any, *arguments: Any) -> str:
    with pytest.raises(Broken) as caught:
        check(*arguments)
    return f"{caught.value.what}: {caught.value}"


# --- tables -----------------------------------------------------------------------------


def test_tables_that_are_right() -> None:
    check_tables(reach(*BOTH), {"a": [[0, 1]], "b": [[2, 3]]})
    same = reach(*BEGUN, {"op": "fork", "source": "a", "target": "b", "tokens": [6]})
    check_tables(same, {"a": [[0, 1, 2]], "b": [[0, 1, 2]]})


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (
            {"a": [[5, 5]], "b": [[2, 3]]},
            "table: the table of request a, group 0, has block 5 2 times: [5, 5]",
        ),
        (
            {"a": [[0, 1]], "b": [[2, 1]]},
            "table: block 1 is position 2 of request b (group 0), and at once position 2"
            " of a (group 0), with other contents",
        ),
        (
            {"a": [[0, 1]], "b": [[1, 3]]},
            "table: block 1 is position 0 of request b (group 0), and at once position 2"
            " of a (group 0), with other contents",
        ),
    ],
)
def test_a_table_that_is_wrong(tables: Any, words: str) -> None:
    assert refuse(check_tables, reach(*BOTH), tables) == words


def test_the_groups_of_one_request_share_no_block() -> None:
    groups = [SLIDING, SLIDING]
    model = reach(*BEGUN, kind="paged-sliding", groups=groups)
    check_tables(model, {"a": [[None, 1, 2], [None, 3, 4]]})
    words = refuse(check_tables, model, {"a": [[None, 1, 2], [None, 3, 2]]})
    assert "(group 1), and at once position 4 of a (group 0)" in words


def test_what_a_request_needs_stands_in_slots() -> None:
    """Of a window its last tokens; of states the last one, in a whole block."""
    sliding = reach(*BEGUN, kind="paged-sliding", groups=[SLIDING])
    request = sliding.cache.requests["a"]
    assert [one.position for one in list_needs(sliding, request, 5)] == [3, 4]
    state = reach(*BEGUN, kind="paged-state", groups=[STATE])
    request = state.cache.requests["a"]
    assert [one.position for one in list_needs(state, request, 5)] == [4]
    assert locate(state.config, [7, None, 9], 0, 5) == (9, 0)
    assert locate(sliding.config, [7, None, 9], 0, 1) == (7, 1)
    assert locate(sliding.config, [7, None, 9], 0, 3) is None
    assert locate(sliding.config, [7, None, 9], 0, 6) is None


# --- references -------------------------------------------------------------------------

TABLES = {"a": [[0, 1]], "b": [[0, None, 2]]}
COUNTED = {0: 2, 1: 1, 2: 1}


def test_a_pool_that_is_right() -> None:
    check_pool(TABLES, Pool(COUNTED, [3, 4], [5]), 6)


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (
            Pool({**COUNTED, 0: 1}, [3, 4], [5]),
            "block 0 has 1 references, and 2 tables hold it",
        ),
        (
            Pool({0: 2, 1: 1}, [3, 4], [5]),
            "block 2 has 0 references, and 1 tables hold it",
        ),
        (
            Pool({**COUNTED, 3: 1}, [4], [5]),
            "block 3 has 1 references, and 0 tables hold it",
        ),
        (Pool(COUNTED, [3, 4, 3], [5]), "block 3 is free 2 times"),
        (Pool(COUNTED, [3, 4], [5, 4]), "block 4 is free 2 times"),
        (Pool(COUNTED, [3, 4, 1], [5]), "block 1 is free, and a table holds it"),
        (Pool(COUNTED, [3, 4], [2]), "block 2 is free, and a table holds it"),
        (
            Pool(COUNTED, [3], [5]),
            "3 blocks are held, 1 are free and 1 can be hit: 5 of 6",
        ),
        (
            Pool(COUNTED, [3, 4, 6], [5]),
            "3 blocks are held, 3 are free and 1 can be hit: 7 of 6",
        ),
    ],
)
def test_a_pool_that_is_wrong(pool: Pool, words: str) -> None:
    assert refuse(check_pool, TABLES, pool, 6) == f"references: {words}"


# --- entries ----------------------------------------------------------------------------

HELD = {(3, 0): (0, 0), (3, 1): (0, 1), (4, 0): (0, 2), (4, 1): (0, 3), (5, 0): (0, 4)}
"""What BEGUN wrote to blocks 3, 4 and 5: slot → (group, tag)."""


def test_entries_that_are_right() -> None:
    model = reach(*BEGUN)
    entries = [Entry(0, None, (1, 2), 3), Entry(0, None, (1, 2, 3, 4), 4)]
    check_entries(model, entries, HELD, {})


@pytest.mark.parametrize(
    ("entry", "held", "position"),
    [
        (Entry(0, None, (1, 2), 4), "token 2 in place of token 0", 0),
        (Entry(0, None, (1, 2, 3, 4), 3), "token 0 in place of token 2", 2),
        (Entry(0, None, (1, 2, 3), 5), "token 4 in place of token 2", 2),
        (Entry(0, None, (9, 2), 3), "token 0 in place of token None", 0),
        (Entry(0, "x", (1, 2), 3), "token 0 in place of token None", 0),
        (Entry(0, None, (1, 2), 8), "nothing in place of token 0", 0),
        (Entry(0, None, (1, 2, 3, 4, 5, 6), 5), "nothing in place of token None", 5),
    ],
)
def test_an_entry_that_lies(entry: Entry, held: str, position: int) -> None:
    words = refuse(check_entries, reach(*BEGUN), [entry], HELD, {})
    assert words == (
        f"hash: the entry of {len(entry.tokens)} tokens {list(entry.tokens)} (namespace"
        f" {entry.namespace}, group 0) names block {entry.block}, which holds {held} at"
        f" position {position}"
    )


def test_an_entry_of_another_group_lies() -> None:
    groups = [SLIDING, SLIDING]
    model = reach(*BEGUN, kind="paged-sliding", groups=groups)
    check_entries(model, [Entry(0, None, (1, 2), 3)], HELD, {})
    words = refuse(check_entries, model, [Entry(1, None, (1, 2), 3)], HELD, {})
    assert "(namespace None, group 1) names block 3" in words


def test_a_state_stands_for_all_its_tokens() -> None:
    model = reach(*BEGUN, kind="paged-state", groups=[STATE])
    entries = [Entry(0, None, (1, 2, 3, 4), 6)]
    check_entries(model, entries, {(6, 0): (0, 3)}, {})
    words = refuse(check_entries, model, entries, {(6, 0): (0, 2)}, {})
    assert "holds token 2 in place of token 3 at position 3" in words


def refuse_entry(entry: Entry, *ops: Mapping[str, Any]) -> str:
    """The refusal of an entry before anything is written; a has blocks 3 to 5."""
    return refuse(check_entries, reach(*ops), [entry], {}, {"a": [[3, 4, 5]]})


def test_what_the_step_computes_is_no_lie_yet() -> None:
    entry = Entry(0, None, (1, 2), 3)
    check_entries(reach(*BEGUN[:2]), [entry], {}, {"a": [[3, 4, 5]]})
    assert "holds nothing" in refuse_entry(entry, *BEGUN[:1])
    assert "holds nothing" in refuse_entry(Entry(0, "x", (1, 2), 3), *BEGUN[:2])
    more = (*BEGUN, ask("accept", "a", sampled=6), ask("schedule", "a"))
    assert "holds nothing" in refuse_entry(entry, *more)


def test_what_the_step_computes_elsewhere_is_a_lie() -> None:
    """Another request of the step has the same tokens, in block 3."""
    assert "names block 9" in refuse_entry(Entry(0, None, (1, 2), 9), *BEGUN[:2])


# --- events -----------------------------------------------------------------------------

FIRST, NEXT = Entry(0, None, (1, 2), 3), Entry(0, None, (1, 2, 3, 4), 4)


def test_events_replay_to_the_entries() -> None:
    book = Counter[Prefix]()
    follow_events(book, [("stored", FIRST), ("stored", NEXT)])
    check_events(book, [NEXT, FIRST])
    moved = FIRST._replace(block=9)
    follow_events(book, [("removed", FIRST), ("stored", moved)])
    check_events(book, [NEXT, moved])
    follow_events(book, [("cleared", None)])
    check_events(book, [])


@pytest.mark.parametrize(
    ("events", "entries", "counts"),
    [
        ([], [FIRST], (0, 1)),
        ([("stored", FIRST)], [], (1, 0)),
        ([("stored", FIRST), ("stored", FIRST)], [FIRST], (2, 1)),
        ([("stored", FIRST), ("removed", FIRST)], [FIRST], (0, 1)),
        ([("removed", FIRST)], [], (-1, 0)),
        ([("stored", FIRST), ("cleared", None)], [FIRST], (0, 1)),
    ],
)
def test_events_that_leave_something_out(
    events: Any, entries: Any, counts: tuple[int, int]
) -> None:
    book = Counter[Prefix]()
    follow_events(book, events)
    assert refuse(check_events, book, entries) == (
        f"events: by its events {counts[0]} blocks can be hit for the tokens [1, 2]"
        f" (namespace None, group 0), but there are {counts[1]}"
    )


# --- the form of what is told -----------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (
            lambda: read_tables(None, "a", 1, True),
            "tables returned None, not a list of 1",
        ),
        (lambda: read_tables([[1], [2]], "a", 1, True), "[[1], [2]], not a list of 1"),
        (lambda: read_tables([None], "a", 1, True), "tables returned None, not a list"),
        (
            lambda: read_tables([["x"]], "a", 1, True),
            "tables(a) has x, not a block or None",
        ),
        (
            lambda: read_copies([(1, 2, 3)], "copies"),
            "copies returned [1, 2, 3], not a list of 2",
        ),
        (lambda: read_copies([(1, None)], "copies"), "copies has None, not a block"),
        (lambda: read_pool(None), "pool returned None, not a pool: it has no references"),
        (lambda: read_pool(Pool([1], [], [])), "references of pool has [1], not counts"),
        (lambda: read_pool(Pool({1: None}, [], [])), "of pool has None, not a count"),
        (lambda: read_pool(Pool({}, ["x"], [])), "pool has x, not a block"),
        (lambda: read_entries([(0, None, [1])], 1), "not a list of 4"),
        (lambda: read_entries([(1, None, [1], 0)], 1), "has 1, not a group below 1"),
        (lambda: read_entries([(0, 7, [1], 0)], 1), "has 7, not a namespace or None"),
        (lambda: read_entries([(0, None, [], 0)], 1), "has [], not at least one token"),
        (lambda: read_entries([(0, None, ["x"], 0)], 1), "not at least one token"),
        (lambda: read_entries([(0, None, [1], None)], 1), "has None, not a block"),
        (lambda: read_events([("moved", FIRST)], 1), "events has moved, not one of stor"),
        (lambda: read_events([("cleared", FIRST)], 1), 'the event "cleared" has'),
        (lambda: read_events([("stored", None)], 1), "events returned None, not a list"),
        (lambda: read_events(["stored"], 1), "events returned stored, not a list of 2"),
    ],
)
def test_what_has_another_form(read: Any, words: str) -> None:
    said = refuse(read)
    assert said.startswith("malformed: ")
    assert words in said


def test_a_pool_may_tell_blocks_without_references() -> None:
    assert read_pool(Pool({1: 0, 2: 1}, [1], [])) == Pool({2: 1}, [1], [])


# --- a cache with one mistake -----------------------------------------------------------


class Faulty(Storing):
    """Shares a block although another holds it: raises no reference."""

    def hold(self, block: int) -> None:
        if not self.references[block]:
            super().hold(block)


class FreeTwice(Manager):
    def let_go(self, one: Request) -> None:
        tables = one.tables
        super().let_go(one)
        self.free_blocks += [block for table in tables or () for block in table][:1]


class LostBlock(Manager):
    def let_go(self, one: Request) -> None:
        super().let_go(one)
        del self.free_blocks[-1:]


class FreeAndHeld(Manager):
    def run(self) -> None:
        super().run()
        self.free_blocks += [
            one.tables[0][0] for one in self.requests.values() if one.tables
        ]


class Twice(Manager):
    def tables(self, request: str) -> Any:
        tables = super().tables(request)
        return [[table[0]] * len(table) for table in tables]


class SharedBlock(Manager):
    def take(self) -> int:
        super().take()
        return 0


class HashKept(Manager):
    def forget(self, block: int) -> None:
        key = self.keys[block]
        super().forget(block)
        self.hashed[key] = block


class HashOfNamespace(Manager):
    """Leaves the namespace out."""

    def list_keys(self, one: Request, group: int, length: int) -> Any:
        return [(group, None, key[2]) for key in super().list_keys(one, group, length)]


class SilentEviction(Manager):
    def forget(self, block: int) -> None:
        super().forget(block)
        self.noted.pop()


class TableTooShort(Manager):
    def tables(self, request: str) -> Any:
        return [table[:-1] for table in super().tables(request)]


class NoCopy(Manager):
    """Takes a new block for a shared one, and leaves it empty."""

    def copies(self) -> Any:
        super().copies()
        return []


class Late(Manager):
    """Tells another table when a step has run."""

    is_over = False

    def run(self) -> None:
        super().run()
        self.is_over = True

    def tables(self, request: str) -> Any:
        tables = super().tables(request)
        return [self.change(table) for table in tables] if self.is_over else tables

    def change(self, table: list[int | None]) -> list[int | None]:
        return [None, *table[1:]]


class LateOther(Late):
    def change(self, table: list[int | None]) -> list[int | None]:
        return [0, *table[1:]]


class LateReversed(Late):
    def change(self, table: list[int | None]) -> list[int | None]:
        return table[::-1]


class HitTooLong(Manager):
    def match(self, request: str) -> int:
        return len(self.get(request).tokens)


TWO = (*BEGUN, open_request("b", 1, 2, 7), ask("schedule", "b"))
FORKED = (*BEGUN, {"op": "fork", "source": "a", "target": "b", "tokens": [7]})
FREED = (*BEGUN, ask("free", "a"), {"op": "evict", "count": 9})
SPACE = ({**open_request("b", 1, 2, 7), "namespace": "x"}, ask("schedule", "b"), RUN)
SPACES = (*BEGUN, *SPACE)

FAULTS: Sequence[tuple[type[Manager], Sequence[Any], Any, str, str]] = [
    # cache, program, what it tells, what differs, words
    (Faulty, TWO, ["pool"], "references", "has 1 references, and 2 tables hold it"),
    (FreeTwice, FREED[:4], ["pool"], "references", "is free 2 times"),
    (LostBlock, FREED[:4], ["pool"], "references", "and 2 can be hit: 11 of 12"),
    (FreeAndHeld, BEGUN, ["pool"], "references", "is free, and a table holds it"),
    (Twice, BEGUN, [], "table", "has block 11 3 times: [11, 11, 11]"),
    (SharedBlock, BOTH, [], "table", "has block 0 2 times"),
    (HashKept, FREED + BOTH[2:], ["entries"], "hash", "names block 10, which holds"),
    (HashOfNamespace, SPACE, ["entries"], "hash", "in place of token None at position"),
    (HashOfNamespace, SPACES, [], "result", "start is 2, not 0"),
    (SilentEviction, FREED, ["entries", "events"], "events", "but there are 0"),
    (TableTooShort, BEGUN, [], "table", "position 4 of request a, group 0, has no slot"),
    (Late, BEGUN, [], "contents", "0 of request a, group 0, has no slot, not token 0"),
    (
        LateOther,
        BEGUN,
        [],
        "contents",
        "0 of request a, group 0, is nothing, not token 0",
    ),
    (LateReversed, BEGUN, [], "contents", "group 0, is token 4, not token 0"),
    (
        NoCopy,
        (*FORKED, ask("schedule", "b"), RUN),
        [],
        "contents",
        "position 4 holds nothing, not",
    ),
    (HitTooLong, (*BEGUN[:1], ask("match", "a")), [], "result", "hit is 5, not 0"),
]


def run_fault(
    cache: type[Manager], ops: Sequence[Any], tells: Sequence[str]
) -> Divergence | None:
    backend = declare(cache, tells=frozenset(tells))
    program = make(*ops, contract="paged", kind="paged-full")
    return run(program, backend).divergence


@pytest.mark.parametrize(("cache", "ops", "tells", "what", "words"), FAULTS)
def test_a_mistake_is_named(
    cache: type[Manager], ops: Sequence[Any], tells: Any, what: str, words: str
) -> None:
    assert run_fault(Storing, ops, ("pool", "entries", "events")) is None
    divergence = run_fault(cache, ops, tells)
    assert divergence is not None
    assert divergence.what == what, divergence
    assert words in divergence.message


def test_a_cache_in_python_stands_for_itself() -> None:
    """Only one that is not written in Python is wrapped."""
    backend = declare(Manager)
    config = {"groups": [{"block": 2}], "blocks": 4}
    assert type(open_native(backend.open)(config)) is Manager


# --- the declaration --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tells", "words"),
    [
        ("table", 'that paged-full tells "table"; paged caches tell pool, entries, ev'),
        ("entries", "its cache (Mute) has no method entries"),
    ],
)
def test_a_declaration_of_what_is_not_there(tells: str, words: str) -> None:
    class Mute(Manager):
        entries = None

    with pytest.raises(Unloadable) as caught:
        check_declaration(declare(Mute, tells=frozenset({tells})), "paging")
    assert words in str(caught.value)


def test_without_accept_there_are_no_drafts() -> None:
    config = {"groups": GROUPS}
    all_of_it = frozenset(PAGED.operations)
    drafts = {"drafted", "kept", "rejected"}
    assert drafts <= {*PAGED.list_states("paged-full", Kind(all_of_it, config))}
    without = Kind(all_of_it - {"accept"}, config)
    assert not drafts & {*PAGED.list_states("paged-full", without)}


def test_blocks_of_one_token_have_no_inside() -> None:
    for block, inside in ((1, False), (2, True)):
        group = {"type": "sliding", "block": block, "width": 3, "layers": 1}
        declared = Kind(frozenset({"open"}), {"groups": ([group],)})
        assert ("inside-block" in PAGED.list_states("paged-sliding", declared)) == inside
