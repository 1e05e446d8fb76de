"""Caches that lie about one thing, each of which one check of the harness alone finds.

Each removal of such a check, or of a call of it, must let a test here fail.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import Any, NamedTuple

import pytest
import torch

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Op
from lockstep.harness.execution.executor import run
from lockstep.impl.shared.batched import CacheBatch
from lockstep.impl.torch.backend import cpu
from tests.harness.building import KINDS, draw_some, forward, make, trim, update
from tests.harness.changing import STORING, change_caches
from tests.harness.misbehaving import throw
from tests.harness.paging import RUN, ask, declare, open_request

Change = Callable[..., Any]
"""change(result, *arguments) returns what a method returns in the place of its result."""


class Lying:
    """Relays everything to a cache; changes the results of some methods or attributes."""

    def __init__(self, cache: Any, changes: Mapping[str, Change]) -> None:
        self._cache, self._changes = cache, changes

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._cache, name)
        change = self._changes.get(name)
        if change is None:
            return attribute
        if not callable(attribute):
            return change(attribute)
        return partial(call_and_change, attribute, change)


def call_and_change(method: Any, change: Change, *args: Any, **options: Any) -> Any:
    return change(method(*args, **options), *args)


def lie(changes: Mapping[str, Change], backend: Backend) -> Backend:
    """Each cache above all others lies, but no cache below."""

    def open_cache(config: Mapping[str, Any]) -> Any:
        below = [cache for cache in config.get("caches") or () if not is_config(cache)]
        if config["kind"] in ("session", "trie", "slots"):
            return Lying(backend.open(config), changes)
        if below:
            return backend.open(config)
        return Lying(backend.open(config), changes)

    return replace(backend, open=open_cache)


def is_config(cache: Any) -> bool:
    return isinstance(cache, Mapping)


# --- the programs -----------------------------------------------------------------------

BATCH = [{"op": "open", "rows": 2}, update(3)]
LISTED = {"caches": [{"kind": "batch-kv"}, {"kind": "batch-rotating", "window": 2}]}
FED = [forward([0, 1], [0, 0])]
WRAPPED = {"caches": [{"kind": "causal"}, {"kind": "swa", "window": 2}]}
BEGIN = {"op": "begin", "user": "a", "tokens": [1, 2, 3]}
FEED = {"op": "feed", "user": "a", "count": 8}
CLOSE = {"op": "close", "user": "a"}
LAYERS = {"layers": ["kv", "kv"]}
SLOTS = {"layers": ["causal"]}
STEP = [open_request("a", 1, 2, 3), ask("schedule", "a"), RUN]
STORED = {"data": "backend"}
PROGRAMS: Mapping[str, tuple[Sequence[Op], Mapping[str, Any]]] = {
    "layer-kv": ([update(3)], {}),
    "layer-rotating": ([update(3)], {"window": 2}),
    "batched-batch-kv": (BATCH, {}),
    "batched-batch-list": (BATCH, LISTED),
    "unified-causal": (FED, {"sequences": 2}),
    "unified-wrapper": (FED, WRAPPED),
    "unified-recurrent": (FED, {}),
    "prefix-session": ([BEGIN, FEED, CLOSE], LAYERS),
    "prefix-trie": ([BEGIN, FEED, CLOSE], LAYERS),
    "prefix-slots": ([BEGIN, FEED, CLOSE], SLOTS),
    "paged-paged-full": (STEP, STORED),
}


def find(
    backend: Backend,
    what: str,
    ops: Sequence[Op] | None = None,
    every: bool = True,
    **config: Any,
) -> tuple[str, str]:
    """Returns what the last of the programs' operations finds, and the message."""
    contract, _, kind = what.partition("-")
    usual, fields = PROGRAMS.get(what, ((), {}))
    chosen = usual if ops is None else ops
    program = make(*chosen, contract=contract, kind=kind, **{**fields, **config})
    divergence = run(program, backend, every).divergence
    return ("", "") if divergence is None else (divergence.what, divergence.message)


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_cache_that_tells_the_truth_agrees(what: str) -> None:
    assert find(lie({}, cpu()), what) == ("", "")


ATTENDED = {"batched-batch-list": 2, "prefix-session": 2, "prefix-trie": 2}
"""The number of caches in which attention is compared; 1 for others."""


@pytest.mark.parametrize("what", PROGRAMS)
def test_each_comparison_is_counted_once(what: str) -> None:
    """A tick needs them."""
    contract, _, kind = what.partition("-")
    ops, config = PROGRAMS[what]
    program = make(*ops, contract=contract, kind=kind, **config)
    compared = run(program, cpu(), every=True).comparisons.compared
    assert compared["attention"] == ATTENDED.get(what, 1)
    assert (compared["contents"], compared["masks"]) == (1, contract != "paged")


@pytest.mark.parametrize(("contract", "kind"), KINDS)
def test_drawn_programs_agree(contract: str, kind: str) -> None:
    """With every second one full of invalid calls."""
    backend = cpu()
    declared = backend.contracts[contract][kind]
    for program in draw_some(6, contract, kind, declared, misuse=2):
        assert run(program, backend, every=True).divergence is None
        changed = exchange_fields(program.ops, Random(len(program.ops)))
        program = replace(program, ops=tuple(changed))
        assert run(program, backend, every=True).divergence is None


def exchange_fields(ops: Sequence[Op], random: Random) -> Iterator[Op]:
    """Yields each operation with a value that a field has in another one. Whatever the
    contract does not call illegal must run, whoever wrote the program."""
    values = defaultdict[tuple[str, str], list[Any]](list)
    for op in ops:
        for field, value in op.items():
            values[op["op"], field].append(value)
    for op in ops:
        field = random.choice([*op])
        yield {**op, field: random.choice(values[op["op"], field])}


# --- attention --------------------------------------------------------------------------


class LyingArrays:
    """Attention is off by one."""

    def __init__(self, arrays: Any) -> None:
        self._arrays = arrays

    def __getattr__(self, name: str) -> Any:
        return getattr(self._arrays, name)

    def attend(self, *args: Any) -> Any:
        return self._arrays.attend(*args) + 1


@pytest.mark.parametrize("what", [what for what in PROGRAMS if "recurrent" not in what])
def test_attention_is_looked_at(what: str) -> None:
    backend: Any = replace(cpu(), arrays=LyingArrays(cpu().arrays))
    if what.startswith("paged"):
        backend = lie({"attend": lambda result, *_: result + 1}, cpu())
    kind, message = find(backend, what)
    assert (kind, "is off by 1" in message) == ("attention", True)


# --- arrays that the caller owns, and those that a cache has handed out -----------------


def write_first(_: Any, *args: Any) -> Any:
    """Writes to the last array that the caller passed."""
    arrays = [array for array in args if isinstance(array, torch.Tensor)]
    arrays[-1].add_(1)
    return _


@pytest.mark.parametrize(
    ("what", "method"),
    [
        ("layer-kv", "update"),
        ("layer-state", "write"),
        ("batched-batch-kv", "update"),
        ("batched-batch-state", "write"),
        ("unified-causal", "put"),
        ("unified-causal", "put_all"),
        ("unified-recurrent", "write_states"),
        ("paged-paged-full", "update"),
        ("paged-paged-full", "attend"),
        ("paged-paged-state", "write_states"),
    ],
)
def test_what_was_passed_is_not_written_to(what: str, method: str) -> None:
    usual = {"layer-state": [update(2)], "batched-batch-state": BATCH}
    config: dict[str, Any] = {}
    if what == "paged-paged-state":
        config = {"groups": [{"type": "state", "block": 2, "layers": 1}], **STORED}
        usual[what] = STEP
    if method == "put_all":
        config = {"at_once": True}
    backend = lie({method: write_first}, cpu())
    kind, message = find(backend, what, usual.get(what), **config)
    assert (kind, "was given has changed before the call ended" in message) == (
        "alias",
        True,
    )


class Reusing:
    """Writes to the arrays that a method has handed out when another method is called."""

    def __init__(self, cache: Any, handing: str, writing: str) -> None:
        self._cache, self._handing, self._writing = cache, handing, writing
        self._handed: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._cache, name)
        if name == self._handing:
            return partial(self._hand_out, attribute)
        if name == self._writing:
            for array in self._handed:
                array.add_(1)
            self._handed = []
        return attribute

    def _hand_out(self, method: Any, *args: Any) -> Any:
        result = method(*args)
        copies = copy_arrays(result)
        self._handed += [copy for copy in flatten(copies) if copy.dtype != torch.bool]
        return copies


def reuse(backend: Backend, handing: str, writing: str) -> Backend:
    return change_caches(backend, lambda cache: Reusing(cache, handing, writing))


def copy_arrays(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        return type(value)(map(copy_arrays, value))
    return value


def flatten(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value if isinstance(value, list | tuple) else ()
    return [array for part in parts for array in flatten(part)]


@pytest.mark.parametrize(
    ("what", "handing", "writing", "ops"),
    [
        ("layer-kv", "update", "trim", [update(2), trim(0)]),
        ("layer-kv", "state", "trim", [update(2), {"op": "state"}, trim(0)]),
        ("layer-kv", "view", "trim", [update(2), {"op": "view"}, trim(0)]),
        ("batched-batch-kv", "update", "trim", [*BATCH, trim(0)]),
        ("batched-batch-kv", "state", "trim", [*BATCH, {"op": "state"}, trim(0)]),
        ("unified-causal", "get", "can_resume",
         [*FED, {"op": "can_resume", "sequence": 0, "position": 2}]),
    ],
)  # fmt: skip
def test_what_was_handed_out_stays_as_it_is(
    what: str, handing: str, writing: str, ops: Sequence[Op]
) -> None:
    backend = reuse(replace(cpu(), lifetime="forever"), handing, writing)
    kind, message = find(backend, what, ops)
    assert (kind, f"array that {handing} returned has changed" in message) == (
        "alias",
        True,
    )


def test_when_arrays_that_were_handed_out_are_looked_at() -> None:
    """At every step; or, if they need to last only until a write, before it."""
    forever = replace(cpu(), lifetime="forever")
    ops = [update(2), trim(0), trim(0), trim(0)]
    divergence = run(make(*ops), reuse(forever, "update", "trim"), every=True).divergence
    assert divergence is not None and divergence.step == 2
    assert find(reuse(cpu(), "update", "trim"), "layer-kv", ops) == ("", "")
    ops = [update(2), {"op": "size"}, trim(0)]
    kind, _ = find(reuse(cpu(), "update", "size"), "layer-kv", ops)
    assert kind == "alias"


def test_what_was_handed_out_is_not_what_was_passed() -> None:
    backend = lie({"update": lambda _, *pair: pair}, cpu())
    kind, message = find(backend, "layer-kv")
    assert kind == "alias"
    assert "has changed when the caller overwrote what it had given" in message


# --- the form of answers ----------------------------------------------------------------


class Liar(NamedTuple):
    """A lie, and the check that finds it.

    Attributes:
        what: contract and kind.
        changes: method → change.
        found: what is found.
        words: in the message.
        ops: of the program; None for the usual ones.
        config: further config fields.
    """

    what: str
    changes: Mapping[str, Change]
    found: str
    words: str
    ops: Sequence[Op] | None = None
    config: Mapping[str, Any] = {}


def cut(triple: Any, columns: int = 1) -> Any:
    """Leaves the last columns out of K, V and the mask."""
    keys, values, mask = triple
    return keys[:, :, :-columns], values[:, :, :-columns], mask[..., :-columns]


def show_padding(triple: Any, *_: Any) -> Any:
    """Shows the first column to the last row of the mask."""
    keys, values, mask = triple
    mask = mask.clone()
    mask[..., -1, 0] = 0
    return keys, values, mask


def cut_reserved(result: Any, *_: Any) -> Any:
    """A reserving pass has as many columns as the first pass."""
    keys, values, mask = result
    return cut(result, keys.shape[2] - 1) if keys.shape[2] > 2 else (keys, values, mask)


def shared_offsets() -> Mapping[str, Change]:
    """The list of offsets that was handed out changes with an update."""
    handed_out: list[int] = []

    def hand_out(offsets: Any) -> list[int]:
        handed_out[:] = offsets
        return handed_out

    def change(pair: Any, *_: Any) -> Any:
        handed_out[:] = [9, 9]
        return pair

    return {"offsets": hand_out, "update": change}


def add_nan(pair: Any, *_: Any) -> Any:
    """A column more, with NaN in the last row."""
    wide = [torch.nn.functional.pad(array, (0, 0, 0, 1)) for array in pair]
    for array in wide:
        array[-1, :, -1] = torch.nan
    return wide


def hide_last(mask: Any, *_: Any) -> Any:
    """For arrays with a column more."""
    return torch.nn.functional.pad(mask, (0, 1))


RESERVED = [forward([0], [0], reserve=True), *FED]
LIARS = [
    Liar("unified-causal", {"get": show_padding}, "mask",
         "row 3 of the mask is padding, but sees columns", config={"mask_padding": 4}),
    Liar("unified-causal", {"get": lambda triple, *_: cut(triple)}, "mask",
         "3 columns; a multiple of 4 was requested", config={"cache_padding": 4}),
    Liar("unified-causal", {"get": cut_reserved}, "mask",
         "2 columns, but only 1 in a pass that reserved", RESERVED),
    Liar("unified-causal", {"get": lambda *_: None}, "malformed",
         "get returned None, not K, V and a mask"),
    Liar("unified-causal", {"get": lambda triple, *_: (*triple[:2], None)}, "malformed",
         "get returned None in the place of an array"),
    Liar("unified-causal", {"get": lambda triple, *_: (triple[0], *triple[1:])[::-1]},
         "malformed", "K of get has shape", [forward([0], [0], reserve=True)]),
    Liar("layer-state", {"boundaries": lambda *_: [0, 1]}, "malformed",
         "boundaries(1) returned [0, 1]", [update(1)]),
    Liar("layer-state", {"boundaries": lambda *_: [1]}, "malformed",
         "boundaries(2) returned [1]", [update(2)]),
    Liar("layer-state", {"read": lambda pair: (pair[0], pair[1].half())}, "malformed",
         "not float32 of shape", [update(1)]),
    Liar("batched-batch-kv", {"offsets": lambda _: ["x", "y"]}, "malformed",
         "a number of offsets is x (str), not an integer", BATCH),
    Liar("batched-batch-kv", {"offsets": lambda it: torch.tensor(it).float()},
         "malformed", "offsets is an array of", BATCH),
    Liar("batched-batch-kv", {"update": add_nan, "make_mask": hide_last}, "attention",
         "as expected, but column 3 holds NaN", BATCH),
    Liar("layer-state", {"boundaries": lambda *_: 5}, "malformed",
         "boundaries returned 5, not", [update(1)]),
    Liar("layer-kv", {"clone": lambda *_: 5}, "malformed",
         "clone returned 5, not a cache: it has no offset",
         [update(1), {"op": "clone", "into": "b"}]),
    Liar("layer-kv", {"make_mask": lambda mask, *_: mask.float()}, "mask",
         "the mask has dtype float32; float16 was requested",
         config={"mask_form": "additive", "dtype": "float16"}),
    Liar("batched-batch-kv", {"make_mask": lambda mask, *_: torch.ones(3, 3, 3)}, "mask",
         "shape", [BATCH[0], update(1), update(2)]),
    Liar("prefix-slots", {"begin": lambda *_: "x"}, "malformed",
         "begin returned x, not the number of a slot"),
    Liar("prefix-slots", {"reserve": lambda positions, *_: positions[::-1]}, "result",
         "positions is [2, 1, 0], not [0, 1, 2]"),
    Liar("prefix-session", {"begin": lambda *_: 5}, "malformed",
         "begin returned 5, not a list of tokens"),
    Liar("paged-paged-full", {"schedule": lambda start, *_: (start, "x")}, "malformed",
         "schedule has x, not a number of tokens"),
    Liar("paged-paged-full", {"schedule": lambda start, *_: (start, 2)}, "result",
         "took 2 tokens, but 3 were requested"),
    Liar("paged-paged-full", {"attend": lambda out, *_: out[..., :-1]}, "malformed",
         "attend returned shape [1, 1, 3, 3], not [1, 1, 3, 4]"),
    Liar("paged-paged-full", {"evict": lambda count, *_: 9}, "result",
         "evicted 9 blocks, but only 1 could be evicted",
         [*STEP, ask("free", "a"), {"op": "evict", "count": 9}]),
    Liar("paged-paged-full", {"schedule": lambda *_: None}, "result",
         "got no slots, although it needs at most 2 blocks, and 12 were held by no"),
    Liar("layer-kv", {"close": lambda *_: throw(RuntimeError("no"))}, "error",
         "closing snapshot s, at the end: raised RuntimeError: no",
         [update(1), {"op": "snapshot", "from": 0, "into": "s"}]),
    Liar("layer-kv", {"free": lambda *_: throw(RuntimeError("no"))}, "error",
         "freeing a cache, at the end: raised RuntimeError: no"),
    Liar("batched-batch-kv", {"free": lambda *_: throw(RuntimeError("no"))}, "error",
         "freeing a, at the end: raised RuntimeError: no"),
    Liar("batched-batch-kv", shared_offsets(), "alias",
         "the offsets that were returned before the update have changed from"),
]  # fmt: skip


@pytest.mark.parametrize("liar", LIARS, ids=lambda liar: liar.words[:40])
def test_a_lie_is_found(liar: Liar) -> None:
    backend = lie(liar.changes, cpu())
    kind, message = find(backend, liar.what, liar.ops, **liar.config)
    assert (kind, liar.words in message) == (liar.found, True), message


# --- memory -----------------------------------------------------------------------------


def tell_more(more: int, calls: range) -> Callable[[Any], Any]:
    """Tells more bytes than there are in these calls of `held` of each cache."""

    def make_change(cache: Any) -> Any:
        numbers = count()

        def change(sizes: Any) -> Any:
            return {**sizes, "bytes": sizes["bytes"] + more * (next(numbers) in calls)}

        return Lying(cache, {"held": change})

    return make_change


def lie_about_memory(lying: Callable[[Any], Any]) -> Backend:
    """Each cache lies that has arrays."""
    return change_caches(cpu(), lying, *STORING)


ALWAYS = range(1 << 20)
MUCH = 1 << 20
HOLDING = ["layer-kv", "layer-rotating", "batched-batch-kv"]
OF_MANY = ["unified-causal", "prefix-slots", "batched-batch-list"]


@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize("what", [*HOLDING, *OF_MANY, "prefix-session", "prefix-trie"])
def test_memory_is_looked_at(what: str, every: bool) -> None:
    """Of some kinds only when everything is looked at, or at the end."""
    backend = lie_about_memory(tell_more(MUCH, ALWAYS))
    kind, message = find(backend, what, every=every)
    if not every and what in ("prefix-session", "prefix-trie"):
        assert kind in ("memory", "")
    else:
        assert (kind, "bytes, allowed" in message) == ("memory", True)


def test_memory_of_a_cache_that_is_not_atomic_is_looked_at() -> None:
    backend = lie_about_memory(tell_more(MUCH, ALWAYS))
    kind = replace(backend.contracts["unified"]["causal"], atomic=False)
    backend = replace(backend, contracts={"unified": {"causal": kind}})
    assert find(backend, "unified-causal")[0] == "memory"


def tell_more_at_first(cache: Any) -> Any:
    """Tells more bytes than there are until the offsets change again."""
    seen: list[Any] = []

    def change(sizes: Any) -> Any:
        first = getattr(cache, "parts", [cache])[0]
        offsets = getattr(first, "offset", 0) or tuple(getattr(first, "offsets", ()))
        if offsets and not seen:
            seen.append(offsets)
        return {**sizes, "bytes": sizes["bytes"] + MUCH * (seen == [offsets])}

    return Lying(cache, {"held": change})


@pytest.mark.parametrize("what", [*HOLDING, *OF_MANY])
def test_memory_is_looked_at_before_the_end(what: str) -> None:
    lying = tell_more(MUCH, range(1)) if what in OF_MANY[:2] else tell_more_at_first
    ops, _ = PROGRAMS[what]
    ops = ops if what in OF_MANY[:2] else [*ops, update(1)]
    kind, message = find(lie_about_memory(lying), what, ops)
    assert (kind, "bytes, allowed" in message) == ("memory", True)


@pytest.mark.parametrize("what", [*HOLDING, "prefix-trie"])
def test_what_was_freed_is_looked_at(what: str) -> None:
    backend = lie_about_memory(tell_more(8, range(1, 1 << 20)))
    kind, message = find(backend, what)
    assert (kind, "after everything was closed and freed" in message) == ("memory", True)


def test_the_memory_of_an_extracted_cache_is_looked_at() -> None:
    lying = tell_more(MUCH, ALWAYS)
    backend = lie({"extract": lambda cache, *_: lying(cache)}, cpu())
    ops = [*BATCH, {"op": "extract", "row": 0, "into": "x"}, update(1, cache="x")]
    kind, message = find(backend, "batched-batch-kv", ops)
    assert (kind, "bytes, allowed" in message) == ("memory", True)


def test_the_memory_of_a_list_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    held, kind = CacheBatch.held, "batched-batch-list"
    monkeypatch.setattr(CacheBatch, "held", lambda _: {"bytes": 1 << 20})
    assert "bytes, allowed" in find(cpu(), kind)[1]
    calls: list[Any] = []

    def tell_later(batch: Any) -> Any:
        calls.append(batch)
        return {"bytes": held(batch)["bytes"] + 8 * (calls.count(batch) > 1)}

    monkeypatch.setattr(CacheBatch, "held", tell_later)
    assert "after everything was closed and freed" in find(cpu(), kind)[1]


# --- snapshots of a trie ----------------------------------------------------------------


def without_held(backend: Backend) -> Backend:
    kinds = {
        kind: replace(declared, held=None)
        for kind, declared in backend.contracts["prefix"].items()
    }
    return replace(backend, contracts={**backend.contracts, "prefix": kinds})


LEAVES = {"close": [BEGIN, FEED, CLOSE]}
LEAVES["set_limit"] = [*LEAVES["close"], {"op": "limit", "bytes": 10**6}]


@pytest.mark.parametrize("method", LEAVES)
def test_a_snapshot_that_a_trie_leaves_open(method: str) -> None:
    kept = []

    def leave_open(trie: Any) -> Lying:
        def take(result: Any, *_: Any) -> Any:
            kept.append(trie.layers[0].snapshot(0))
            return result

        return Lying(trie, {method: take})

    lying = change_caches(without_held(cpu()), leave_open, "trie")
    kind, message = find(lying, "prefix-trie", LEAVES[method])
    assert (kind, "layer 0 has open snapshots of" in message) == ("snapshots", True)


def test_a_snapshot_that_is_open_after_free() -> None:
    def forget(trie: Any) -> None:
        trie.tree.clear = lambda: None

    backend = change_caches(without_held(cpu()), forget, "trie")
    kind, message = find(backend, "prefix-trie")
    assert (kind, "snapshots are open after free" in message) == ("snapshots", True)


# --- block managers ---------------------------------------------------------------------


def later(change: Change) -> Change:
    """The first answer, before the first operation, is true."""
    calls: list[Any] = []

    def change_later(result: Any, *args: Any) -> Any:
        calls.append(result)
        return change(result, *args) if len(calls) > 1 else result

    return change_later


def free_pinned(pool: Any) -> Any:
    """The blocks of transfers may be given out."""
    held = Counter(pool.references) - Counter(pool.pinned)
    free = [*pool.free, *(pool.references.keys() - held.keys())]
    return pool._replace(references=held, free=free, pinned=())


def keep_pins() -> Change:
    """What was pinned once stays so."""
    pins: list[int] = []

    def change(pool: Any) -> Any:
        pins[:] = pins or pool.pinned
        missing = [block for block in pins if block not in pool.pinned]
        held = dict(pool.references)
        for block in missing:
            held[block] = held.get(block, 0) + 1
        free = [block for block in pool.free if block not in missing]
        cached = [block for block in pool.cached if block not in missing]
        pinned = [*pool.pinned, *missing]
        return pool._replace(references=held, free=free, cached=cached, pinned=pinned)

    return change


OFFLOAD = [*STEP, ask("offload", "a", transfer="t"), ask("free", "a")]
LANDED = [*OFFLOAD, {"op": "landed", "transfer": "t"}]
AGAIN = [*STEP, open_request("b", 1, 2, 7), ask("match", "b")]
COMPARED = {"entries": 4, "host_entries": 1, "events": 1, "contents": 1}
COMPARED |= dict.fromkeys(("entries due", "host_entries due", "events due"), 1)
"""The steps of LANDED in which each is compared, or should be reported."""

NONE: Change = lambda *_: []  # noqa: E731


def move(entries: Any) -> Any:
    return [entry._replace(block=entry.block + 1) for entry in entries]


OF_BLOCKS: Sequence[tuple[str, Mapping[str, Change], str, str, Sequence[Op]]] = [
    # what it tells, changes, what is found, words, program
    ("", {"tables": lambda tables, *_: [table[:1] * 2 for table in tables]},
     "table", "has block 0 2 times", STEP),
    ("pool", {"pool": later(lambda pool: pool._replace(free=pool.free[1:]))},
     "references", "11 in total, but there are 12", STEP[:1]),
    ("pool", {"pool": free_pinned},
     "references", "is available, but transfer t", OFFLOAD),
    ("pool", {"pool": later(lambda pool: pool._replace(idle=pool.idle[1:]))},
     "references", "of other memory are free or can be evicted", STEP[:1]),
    ("pool", {"pool": keep_pins()},
     "references", "is pinned, but no running transfer or step", LANDED),
    ("entries", {"entries": move}, "hash", "names block 1, which holds", STEP),
    ("host_entries", {"host_entries": move},
     "hash", "names block 1, which holds", LANDED),
    ("entries events", {"events": NONE}, "events", "to the events, 0 blocks", STEP),
    ("reuse entries", {"entries": NONE},
     "reuse", "has computed 3 tokens, but there is no", STEP),
    ("reuse entries", {"match": lambda *_: 0},
     "reuse", "reuses only 0 tokens, although there are", AGAIN),
    ("reuse entries host_entries", {"host_entries": NONE},
     "reuse", "of other memory has landed", [*LANDED[:-2], LANDED[-1]]),
]  # fmt: skip


def test_each_comparison_of_blocks_is_counted() -> None:
    backend = declare(tells=frozenset({"entries", "host_entries", "events"}))
    program = make(*LANDED, contract="paged", kind="paged-full", data="tags", host=2)
    result = run(program, backend, every=True)
    counted = {name: result.comparisons.compared[name] for name in COMPARED}
    assert (result.divergence, counted) == (None, COMPARED)


@pytest.mark.parametrize(("tells", "changes", "found", "words", "ops"), OF_BLOCKS)
def test_a_lie_about_blocks_is_found(
    tells: str, changes: Any, found: str, words: str, ops: Sequence[Op]
) -> None:
    backend = declare(tells=frozenset(tells.split()))
    assert find(backend, "paged-paged-full", ops, data="tags", host=2) == ("", "")
    lying = lie(changes, backend)
    kind, message = find(lying, "paged-paged-full", ops, data="tags", host=2)
    assert (kind, words in message) == (found, True), message
