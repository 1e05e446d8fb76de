"""The checks of paged caches: hand-made tables, pools, entries and events, and a cache
with one planted mistake each. Every message of every check appears."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.backends.native import open_native
from lockstep.harness.backends.paged import Entry, Pool, Ring
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
from lockstep.harness.programs.program import walk
from lockstep.harness.workers.registry import check_declaration
from tests.harness.paging import (
    GROUPS,
    RUN,
    Manager,
    ask,
    declare,
    fork,
    make,
    open_request,
)

SLIDING = {"type": "sliding", "block": 2, "width": 3, "layers": 1}
STATE = {"type": "state", "block": 2, "layers": 1}


BEGUN = (open_request("a", 1, 2, 3, 4, 5), ask("schedule", "a"), RUN)
"""Five tokens in three blocks, or in a window of three."""
BOTH = (
    *(open_request("a", 1, 2, 3), ask("schedule", "a")),
    *(open_request("b", 7, 2, 3), ask("schedule", "b"), RUN),
)


def reach(*ops: Mapping[str, Any], **config: Any) -> PagedModel:
    """Returns the reference after a program without a backend."""
    [*_, last] = walk(make(*ops, **config))
    model: PagedModel = last.model
    return model


def refuse(check: Any, *arguments: Any) -> str:
    with pytest.raises(Broken) as caught:
        check(*arguments)
    return f"{caught.value.what}: {caught.value}"


# --- tables -----------------------------------------------------------------------------


def test_tables_that_are_right() -> None:
    check_tables(reach(*BOTH), {"a": [[0, 1]], "b": [[2, 3]]})
    same = reach(*BEGUN, fork("a", "b", 6))
    check_tables(same, {"a": [[0, 1, 2]], "b": [[0, 1, 2]]})


def test_a_table_that_is_wrong(snapshot: Any) -> None:
    wrong = (
        {"a": [[5, 5]], "b": [[2, 3]]},
        {"a": [[0, 1]], "b": [[2, 1]]},
        {"a": [[0, 1]], "b": [[1, 3]]},
    )
    assert [refuse(check_tables, reach(*BOTH), tables) for tables in wrong] == snapshot


def test_the_groups_of_one_request_share_no_block() -> None:
    groups = [SLIDING, SLIDING]
    model = reach(*BEGUN, groups=groups)
    check_tables(model, {"a": [[None, 1, 2], [None, 3, 4]]})
    words = refuse(check_tables, model, {"a": [[None, 1, 2], [None, 3, 2]]})
    assert "(group 1), but also position 4 of a (group 0)" in words


def test_what_a_request_needs_stands_in_slots() -> None:
    """Of a window its last tokens; of states the last one, in a whole block."""
    sliding = reach(*BEGUN, groups=[SLIDING])
    request = sliding.cache.requests["a"]
    assert [one.position for one in list_needs(sliding, request, 5)] == [3, 4]
    state = reach(*BEGUN, groups=[STATE])
    request = state.cache.requests["a"]
    assert [one.position for one in list_needs(state, request, 5)] == [4]
    assert locate(state.config, [7, None, 9], 0, 5, 7) == [(9, 0)]
    assert locate(sliding.config, [7, None, 9], 0, 1, 7) == [(7, 1)]
    assert locate(sliding.config, [7, None, 9], 0, 3, 7) == []
    assert locate(sliding.config, [7, None, 9], 0, 6, 7) == []


# --- references -------------------------------------------------------------------------

TABLES = {"a": [[0, 1]], "b": [[0, None, 2]]}
COUNTED = {0: 2, 1: 1, 2: 1}


def test_a_pool_that_is_right() -> None:
    check_pool(TABLES, Pool(COUNTED, [3, 4], [5]), 6)


def test_a_pool_that_is_wrong(snapshot: Any) -> None:
    pools = (
        Pool({**COUNTED, 0: 1}, [3, 4], [5]),
        Pool({0: 2, 1: 1}, [3, 4], [5]),
        Pool({**COUNTED, 3: 1}, [4], [5]),
        Pool(COUNTED, [3, 4, 3], [5]),
        Pool(COUNTED, [3, 4], [5, 4]),
        Pool(COUNTED, [3, 4, 1], [5]),
        Pool(COUNTED, [3, 4], [2]),
        Pool(COUNTED, [3], [5]),
        Pool(COUNTED, [3, 4, 6], [5]),
    )
    assert [refuse(check_pool, TABLES, pool, 6) for pool in pools] == snapshot


def test_blocks_that_wait_for_a_copy_are_held() -> None:
    tables = {"a": [[1, None]]}
    check_pool(tables, Pool({1: 2, 2: 1}, [3], [], [1, 2]), 3)
    with pytest.raises(Broken, match="block 1 has 2 references, but 1 tables"):
        check_pool(tables, Pool({1: 2, 2: 1}, [3], [], [2]), 3)


def test_the_blocks_of_a_ring_are_counted() -> None:
    tables = {"a": [Ring([1, 2])]}
    check_pool(tables, Pool({1: 1, 2: 1}, [3], []), 3)
    with pytest.raises(Broken, match="block 2 has 0 references, but 1 tables hold it"):
        check_pool(tables, Pool({1: 1}, [2, 3], []), 3)


# --- entries ----------------------------------------------------------------------------

HELD = {
    (3, 0): (0, 0, ()),
    (3, 1): (0, 1, ()),
    (4, 0): (0, 2, ()),
    (4, 1): (0, 3, ()),
    (5, 0): (0, 4, ()),
}
"""What BEGUN wrote to blocks 3, 4 and 5: slot → (group, tag)."""


def test_entries_that_are_right() -> None:
    model = reach(*BEGUN)
    entries = [Entry(0, None, (1, 2), 3), Entry(0, None, (1, 2, 3, 4), 4)]
    check_entries(model, entries, HELD, {})


def test_an_entry_that_lies(snapshot: Any) -> None:
    entries = (
        Entry(0, None, (1, 2), 4),
        Entry(0, None, (1, 2, 3, 4), 3),
        Entry(0, None, (1, 2, 3), 5),
        Entry(0, None, (9, 2), 3),
        Entry(0, "x", (1, 2), 3),
        Entry(0, None, (1, 2), 8),
        Entry(0, None, (1, 2, 3, 4, 5, 6), 5),
    )
    model = reach(*BEGUN)
    assert [refuse(check_entries, model, [one], HELD, {}) for one in entries] == snapshot


def test_an_entry_of_another_group_lies() -> None:
    groups = [SLIDING, SLIDING]
    model = reach(*BEGUN, groups=groups)
    check_entries(model, [Entry(0, None, (1, 2), 3)], HELD, {})
    words = refuse(check_entries, model, [Entry(1, None, (1, 2), 3)], HELD, {})
    assert "(namespace None, group 1) names block 3" in words


def test_a_state_stands_for_all_its_tokens() -> None:
    model = reach(*BEGUN, groups=[STATE])
    entries = [Entry(0, None, (1, 2, 3, 4), 6)]
    check_entries(model, entries, {(6, 0): (0, 3, ())}, {})
    words = refuse(check_entries, model, entries, {(6, 0): (0, 2, ())}, {})
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


def test_an_entry_stands_for_its_adapter_and_its_extras() -> None:
    opened = ask("open", "a", tokens=[1, 2, 3], adapter="x", extras=[[0, 3, "k"]])
    ops = opened, ask("schedule", "a"), RUN
    model = reach(*ops, extra_keys=True)
    right = Entry(0, None, (1, 2), 3, "x", ((0, 2, "k"),))
    check_entries(model, [right], {(3, 0): (0, 0, ()), (3, 1): (0, 1, ())}, {})
    wrong = [
        right._replace(adapter=None),
        right._replace(adapter=None, namespace="x"),
        right._replace(extras=()),
        right._replace(extras=((0, 1, "k"),)),
        right._replace(extras=((0, 2, "l"),)),
    ]
    for entry in wrong:
        words = refuse(
            check_entries, model, [entry], {(3, 0): (0, 0, ()), (3, 1): (0, 1, ())}, {}
        )
        assert "in place of token None" in words
    named = "the tokens [1, 2] (namespace None, adapter x, extras [[0, 2, 'k']], group 0)"
    assert named in refuse(check_entries, model, [right], {}, {})


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
    ("events", "entries"),
    [
        ([], [FIRST]),
        ([("stored", FIRST)], []),
        ([("stored", FIRST), ("stored", FIRST)], [FIRST]),
        ([("stored", FIRST), ("removed", FIRST)], [FIRST]),
        ([("removed", FIRST)], []),
        ([("stored", FIRST), ("cleared", None)], [FIRST]),
    ],
)
def test_events_that_leave_something_out(
    events: Any, entries: Any, snapshot: Any
) -> None:
    book = Counter[Prefix]()
    follow_events(book, events)
    assert refuse(check_events, book, entries) == snapshot


# --- the form of what is told -----------------------------------------------------------


MALFORMED: tuple[Callable[[], Any], ...] = (
    lambda: read_tables(None, "a", 1, True),
    lambda: read_tables([[1], [2]], "a", 1, True),
    lambda: read_tables([None], "a", 1, True),
    lambda: read_tables([["x"]], "a", 1, True),
    lambda: read_copies([(1, 2, 3)], "copies"),
    lambda: read_copies([(1, None)], "copies"),
    lambda: read_pool(None),
    lambda: read_pool(Pool([1], [], [])),
    lambda: read_pool(Pool({1: None}, [], [])),
    lambda: read_pool(Pool({}, ["x"], [])),
    lambda: read_entries([(0, None, [1])], 1),
    lambda: read_entries([(1, None, [1], 0)], 1),
    lambda: read_entries([(0, 7, [1], 0)], 1),
    lambda: read_entries([(0, None, [], 0)], 1),
    lambda: read_entries([(0, None, ["x"], 0)], 1),
    lambda: read_entries([(0, None, [1], None)], 1),
    lambda: read_entries([(0, None, [1], 0, None)], 1),
    lambda: read_entries([(0, None, [1], 0, 7, [])], 1),
    lambda: read_entries([(0, None, [1], 0, None, [(0, 1)])], 1),
    lambda: read_entries([(0, None, [1], 0, None, [(0, 1, 7)])], 1),
    lambda: read_entries([(0, None, [1], 0, None, [(0, None, "k")])], 1),
    lambda: read_entries([(0, None, [1], 0, None, [(0, 2, "k")])], 1),
    lambda: read_events([("moved", FIRST)], 1),
    lambda: read_events([("cleared", FIRST)], 1),
    lambda: read_events([("stored", None)], 1),
    lambda: read_events(["stored"], 1),
)


def test_what_has_another_form(snapshot: Any) -> None:
    said = [refuse(read) for read in MALFORMED]
    assert all(words.startswith("malformed: ") for words in said)
    assert said == snapshot


def test_a_pool_may_tell_blocks_without_references() -> None:
    assert read_pool(Pool({1: 0, 2: 1}, [1], [])) == Pool({2: 1}, [1], [])


# --- a cache with one mistake; more in `impl/faults/paged.py` ---------------------------


def change_tables(change: Callable[[Any], Any], computed: int = 0) -> type[Manager]:
    """Other tables of requests that have computed so many tokens."""

    class Changed(Manager):
        def tables(self, request: str) -> Any:
            tables = super().tables(request)
            is_changed = self.get(request).computed >= computed
            return [change(table) if is_changed else table for table in tables]

    return Changed


class NoCopy(Manager):
    """Takes a new block for a shared one, and leaves it empty."""

    def copies(self) -> Any:
        super().copies()
        return []


FORKED = (*BEGUN, fork("a", "b", 7), ask("schedule", "b"), RUN)
FAULTS: dict[str, tuple[type[Manager], Sequence[Any]]] = {
    "twice": (change_tables(lambda table: table[:1] * len(table)), BEGUN),
    "in two tables": (change_tables(lambda table: [0, 1]), BOTH),
    "too short": (change_tables(lambda table: table[:-1]), BEGUN),
    "gone late": (change_tables(lambda table: [None, *table[1:]], 1), BEGUN),
    "another late": (change_tables(lambda table: [9, *table[1:]], 1), BEGUN),
    "reversed late": (change_tables(lambda table: table[::-1], 1), BEGUN),
    "no copy": (NoCopy, FORKED),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_mistake_is_named(name: str, snapshot: Any) -> None:
    cache, ops = FAULTS[name]
    assert run(make(*ops), declare()).divergence is None
    divergence = run(make(*ops), declare(cache, tells=frozenset())).divergence
    assert divergence is not None
    assert f"{divergence.what}: {divergence.message}" == snapshot


def test_a_cache_in_python_stands_for_itself() -> None:
    """Only one that is not written in Python is wrapped."""
    assert type(open_native(Manager)(make().config)) is Manager


# --- the declaration --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tells", "words"),
    [
        ("table", 'paged-full with "table" in tells; paged caches can have pool, ent'),
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
