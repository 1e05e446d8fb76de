"""Leaks planted in our caches, one for each way in which a block, a cell, a slot, a row,
a state or a snapshot ends. Drawn programs find each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from unittest.mock import patch

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.execution.executor import run
from lockstep.impl.faults.fault import Fault
from lockstep.impl.faults.torch import FAULTED
from lockstep.impl.shared.memory import Snapshot
from tests.harness.building import draw

PROGRAMS = 100
Plant = Callable[[Any], None]
Cases = Iterator[tuple[str, str, Plant]]
"""Name of a leak, kind of the cache, and the leak."""


def always(*_: Any) -> bool:
    return True


def itself(cache: Any) -> Any:
    return cache


def around(
    method: str,
    look: Callable[[Any], Any],
    lose: Callable[[Any, Any], None],
    target: Callable[[Any], Any] = itself,
    is_due: Callable[..., bool] = always,
) -> Plant:
    """Returns a leak in calls of a method.

    Args:
        method: the name of the method.
        look: look(cache) returns what `lose` compares.
        lose: lose(cache, seen) loses what has ended since `look`.
        target: returns the object with the method.
        is_due: is_due(cache, *arguments) tells whether a call leaks.
    """

    def plant(cache: Any) -> None:
        owner = target(cache)
        call = getattr(owner, method)

        def call_and_lose(*args: Any, **options: Any) -> Any:
            due, seen = is_due(cache, *args), look(cache)
            answer = call(*args, **options)
            if due:
                lose(cache, seen)
            return answer

        setattr(owner, method, call_and_lose)

    return plant


# --- blocks -----------------------------------------------------------------------------


def lose_blocks(memory: str, method: str, leaves: bool | None = None) -> Plant:
    """Loses blocks of "blocks" or "host" that become free or cached; `leaves`: only in
    transfers in this direction."""

    def look(cache: Any) -> tuple[set[int], set[int]]:
        pool = getattr(cache, memory)
        return set(pool.free), set(pool.cached)

    def lose(cache: Any, seen: tuple[set[int], set[int]]) -> None:
        pool, (free, cached) = getattr(cache, memory), seen
        lost = pool.cached.keys() - cached
        for block in lost:
            pool.forget(block)
        pool.free[:] = [block for block in pool.free if block in free - lost]

    def is_due(cache: Any, *args: Any) -> bool:
        return leaves is None or is_leaving(cache, args[0], leaves)

    return around(method, look, lose, is_due=is_due)


def is_leaving(cache: Any, name: str, leaves: bool) -> bool:
    return name in cache.transfers and cache.transfers[name].leaves == leaves


def keep_held(memory: str, leaves: bool) -> Plant:
    """Lets transfers in one direction hold their blocks for ever."""

    def plant(cache: Any) -> None:
        release = getattr(cache, f"release_{memory}")

        def keep(transfer: Any) -> None:
            if transfer.leaves != leaves:
                release(transfer)

        setattr(cache, f"release_{memory}", keep)

    return plant


def list_block_leaks() -> Cases:
    full, sliding = "paged-full", "paged-sliding"
    for name in ("free", "preempt", "rewind", "evict", "reset", "schedule", "restore"):
        yield f"device-{name}", full, lose_blocks("blocks", name)
    for name in ("run", "accept"):  # a window has passed blocks
        yield f"device-{name}", sliding, lose_blocks("blocks", name)
    for name in ("free", "reset", "restore"):
        yield f"host-{name}", full, lose_blocks("host", name)
    for leaves, way in ((True, "offload"), (False, "load")):
        for memory, pool in (("device", "blocks"), ("host", "host")):
            yield f"{memory}-{way}-held", full, keep_held(memory, leaves)
            for name in ("landed", "failed"):
                leak = lose_blocks(pool, name, leaves)
                yield f"{memory}-{way}-{name}", full, leak


# --- cells and slots --------------------------------------------------------------------

NOBODY = 1 << 62
"""The bit of a sequence that no cache has."""


def lose_cells(method: str, is_due: Callable[..., bool] = always) -> Plant:
    def look(cache: Any) -> Any:
        return cache.cells.bits == 0

    def lose(cache: Any, seen: Any) -> None:
        lost = (cache.cells.bits == 0) & ~seen
        cache.cells.stored[1][lost] = NOBODY
        cache.cells.unused -= int(lost.sum())

    return around(method, look, lose, is_due=is_due)


def lose_state(get_owner: Callable[[Any], Any], method: str) -> Plant:
    """Loses the slot of a state that a call of a method drops."""

    def plant(cache: Any) -> None:
        owner, slots = get_owner(cache), cache.slots
        call, drop = getattr(owner, method), slots.drop

        def drop_and_lose(sequence: int) -> None:
            free = list(slots.free)
            drop(sequence)
            slots.free[:] = free

        def call_and_lose(*args: Any) -> Any:
            with patch.object(slots, "drop", drop_and_lose):
                return call(*args)

        setattr(owner, method, call_and_lose)

    return plant


def keep_owner(cache: Any) -> None:
    """A sequence that gets a state of its own stays an owner of the shared state."""
    slots, own = cache.slots, cache.slots.own

    def own_and_keep(owners: Any) -> Any:
        shared = [slots.assigned.get(owner) for owner in owners]
        answer = own(owners)
        for owner, slot in zip(owners, shared, strict=True):
            if slot is not None and slots.assigned[owner] is not slot:
                slot.owners += 1
        return answer

    slots.own = own_and_keep


def stay_in_use(method: str) -> Plant:
    """A slot of a user is in use for ever."""

    def plant(slots: Any) -> None:
        call = getattr(slots, method)

        def call_and_keep(slot: int) -> Any:
            answer = call(slot)
            slots.get_slot(slot).in_use = True
            return answer

        setattr(slots, method, call_and_keep)

    return plant


def list_cell_leaks() -> Cases:
    whole = lambda _, __, begin, end: begin == 0 and end is None  # noqa: E731
    tail = lambda _, __, begin, end: begin > 0 and end is None  # noqa: E731
    gap = lambda _, __, ___, end: end is not None  # noqa: E731
    for name, is_due in {"whole": whole, "tail": tail, "gap": gap}.items():
        yield f"cells-remove-{name}", "causal", lose_cells("remove", is_due)
    for name in ("copy_prefix", "load"):
        yield f"cells-{name}", "causal", lose_cells(name)
    yield "cells-evict", "swa", lose_cells("evict")
    yield "states-remove", "recurrent", lose_state(itself, "remove")
    for name in ("rewind", "share"):
        yield f"states-{name}", "recurrent", lose_state(lambda cache: cache.slots, name)
    yield "states-own", "recurrent", keep_owner
    for name in ("close", "cancel"):
        yield f"slots-{name}", "slots", stay_in_use(name)


# --- rows, states and snapshots ---------------------------------------------------------


def keep_arrays(method: str, target: Callable[[Any], Any] = itself) -> Plant:
    """Keeps the arrays that a call replaces or frees."""
    kept: dict[int, list[Any]] = {}

    def look(cache: Any) -> list[Any]:
        owner = target(cache)
        if id(owner) not in kept:
            held, mine = owner.held, kept.setdefault(id(owner), [])
            owner.held = lambda: {
                **held(),
                "bytes": held()["bytes"] + sum(array.nbytes for array in mine),
            }
        return list(owner.list_arrays())

    def lose(cache: Any, seen: list[Any]) -> None:
        owner = target(cache)
        now = {id(array) for array in owner.list_arrays()}
        kept[id(owner)] += [array for array in seen if id(array) not in now]

    return around(method, look, lose, target)


def get_memory(cache: Any) -> Any:
    return cache.memory


def keep_snapshots(
    method: str,
    target: Callable[[Any], Any] = itself,
    is_due: Callable[..., bool] = always,
) -> Plant:
    """Keeps the snapshots open that a call should close."""
    kept: list[Any] = []

    def plant(cache: Any) -> None:
        for owner in [item] if not isinstance(item := target(cache), list) else item:
            plant_in(owner)

    def plant_in(owner: Any) -> None:
        call = getattr(owner, method)

        def call_and_keep(*args: Any) -> Any:
            if not is_due(*args):
                return call(*args)
            with patch.object(Snapshot, "close", lambda snapshot: kept.append(snapshot)):
                return call(*args)

        setattr(owner, method, call_and_keep)

    return plant


def list_memory_leaks() -> Cases:
    for kind in ("batch-kv", "batch-rotating", "batch-state"):
        replacing = "load" if kind == "batch-state" else "free"  # else nothing ends
        for name in ("keep", "join", replacing):
            yield f"{kind}-{name}", kind, keep_arrays(name)
    for kind in ("kv", "rotating"):
        yield f"{kind}-free", kind, keep_arrays("clear", get_memory)
        yield f"{kind}-growth", kind, keep_arrays("carry_out", get_memory)
        yield f"{kind}-captures-free", kind, keep_snapshots("free")
        for is_copied in (False, True):
            is_due = lambda taken, is_copied=is_copied: (  # noqa: E731
                (taken.memory is None) == is_copied
            )
            leak = keep_snapshots("close", is_due=is_due)
            yield f"{kind}-snapshot-{is_copied}", kind, leak
    yield "state-snapshot", "state", keep_snapshots("close")
    yield "kv-merge", "kv", keep_snapshots("merge")
    yield "rotating-merge", "rotating", keep_snapshots("merge")
    yield "kv-split", "kv", keep_snapshots("split")
    for name in ("remove", "merge", "uncapture", "clear", "tighten", "split"):
        yield f"trie-{name}", "trie", keep_snapshots(name, lambda trie: trie.tree)
    yield "trie-captures", "trie", keep_snapshots("close", lambda trie: trie.captures)


LEAKS = [*list_block_leaks(), *list_cell_leaks(), *list_memory_leaks()]


@pytest.mark.parametrize(
    ("kind", "leak"), [pytest.param(*case[1:], id=case[0]) for case in LEAKS]
)
def test_a_leak_is_found(kind: str, leak: Plant) -> None:
    contract = next(name for name, rules in CONTRACTS.items() if kind in rules.kinds)
    fault = Fault("leak", "constructed", contract, kind, "a leak", 1, leak)
    backend = FAULTED.make_backend(fault)
    declared = backend.contracts[fault.contract][kind]
    programs = islice(draw(fault.contract, kind, declared), PROGRAMS)
    assert any(run(program, backend).divergence for program in programs)
