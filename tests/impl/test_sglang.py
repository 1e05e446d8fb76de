"""SGLang's prefix caches: they agree, and mistakes that are made in them are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from engine_runs import find, load_peers

from lockstep.harness.backends import Backend
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import parse_program

PROGRAMS = 100
Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def peers() -> Any:
    """The module that declares the backends."""
    return load_peers("sglang")


PAIRS = [
    *[("sglang_radix", each) for each in ("full", "sliding")],
    ("sglang_radix_default", "sliding"),
    *[("sglang_unified", each) for each in ("full", "hybrid")],
    *[("sglang_unified_rust", each) for each in ("full", "hybrid")],
    *[("sglang_unified_twins", each) for each in ("full", "hybrid")],
    *[("sglang_unified_ngram", each) for each in ("full", "hybrid")],
    *[("sglang_unified_eagle", each) for each in ("full", "hybrid")],
    ("sglang_unified_states", "hybrid"),
    ("sglang_unified_rust_states", "hybrid"),
    ("sglang_unified_twins_states", "hybrid"),
]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_it_agrees(peers: Any, name: str, kind: str) -> None:
    backend = getattr(peers, name)()
    assert find(backend, f"paged-{kind}", PROGRAMS // 4) == (PROGRAMS // 4, "")


def test_every_kind_is_run(peers: Any) -> None:
    kinds = {
        (name, kind.removeprefix("paged-"))
        for name in {name for name, _ in PAIRS}
        for kind in getattr(peers, name)().contracts["paged"]
    }
    assert kinds == set(PAIRS)


# --- mistakes ---------------------------------------------------------------------------


def lock_once(lock: Any) -> Any:
    """A hit does not raise the locks of what somebody holds."""

    def change(self: Any, node: Any, *fields: Any) -> Any:
        receipt = lock(self, node, *fields)
        told = node if hasattr(node, "lock_ref") else self.node_by_id(node)
        for one in [told] if hasattr(told, "lock_ref") else told.component_data:
            one.lock_ref -= one.lock_ref > 1
        return receipt

    return change


def unlock_nothing(unlock: Any) -> Any:
    """A request that is ended or retracted keeps its locks."""
    return lambda self, node, *fields, **more: None


def stay_in_tree(delete: Any) -> Any:
    """A node that is evicted stays in the tree."""

    def change(self: Any, node: Any) -> None:
        delete(self, node)
        node.parent.children[node.key.child_key(self.page_size)] = node

    return change


def free_twice(free: Any) -> Any:
    """What a tree has already, and a request has, too, is freed twice."""

    def change(self: Any, places: Any, *, start_pos: int) -> None:
        free(self, places, start_pos=start_pos)
        free(self, places[: len(places) * (start_pos > 0)], start_pos=start_pos)

    return change


def free_one_early(free: Any) -> Any:
    """A sliding token is freed one early."""
    return lambda req, pre_len, **fields: free(req, pre_len + 1, **fields)


def leave_no_token(limit: Any) -> Any:
    """A hit may have all tokens of a request."""
    return lambda self, length: length


def find_one_more(match: Any) -> Any:
    """A hit ends with a page of something else."""

    def change(self: Any, other: Any, page_size: int = 1) -> int:
        found = int(match(self, other, page_size))
        rest = min(len(self), len(other)) - found
        return found + page_size * (found > 0 and page_size <= rest)

    return change


def keep_own_row(write: Any) -> Any:
    """A request goes on with pages of its own, which are freed since the tree has them
    already."""
    return lambda self, indices, values: (
        None if len(values) > 2 else write(self, indices, values)
    )


def ignore_window(validator: Any) -> Any:
    """A hit does not need the window before it."""
    return lambda self, match_device_only=False: lambda node: True


def lose_state(copy: Any) -> Any:
    """A state that is hit is not copied."""
    return lambda self, params, result: result


def say_nothing(record: Any) -> Any:
    """No event tells of a node that is evicted."""
    return lambda self, node, medium=None: None


def publish_behind(owned: Any) -> Any:
    """The sampled token counts as written, in whose slot there may be a draft that was
    rejected."""
    return lambda self: owned(self) + 1


def match_less(match: Any) -> Any:
    """A hit is a token shorter than it could be, which is allowed."""

    def change(self: Any, params: Any) -> Any:
        params.key.limit = max(0, len(params.key) - 1)
        return match(self, params)

    return change


MEM, TREE = "sglang.srt.mem_cache", "sglang.srt.mem_cache.unified_cache"
PARTS = f"{TREE}.components"
MISTAKES: list[tuple[str, str, str, str, Change]] = [
    ("radix", "full", f"{MEM}.radix_cache", "RadixCache.inc_lock_ref", lock_once),
    ("radix", "full", f"{MEM}.radix_cache", "RadixCache.dec_lock_ref", unlock_nothing),
    ("radix", "full", f"{MEM}.radix_cache", "RadixCache._delete_leaf", stay_in_tree),
    ("radix", "full", f"{MEM}.radix_cache", "RadixKey.match", find_one_more),
    ("radix", "full", f"{MEM}.allocator.paged",
     "PagedTokenToKVPoolAllocator.free_segment", free_twice),
    ("radix", "full", "sglang.srt.managers.schedule_batch", "Req._compute_max_prefix_len",
     leave_no_token),
    ("radix", "full", f"{MEM}.events", "KVCacheEventRecorder.record_remove", say_nothing),
    ("radix", "full", f"{MEM}.memory_pool", "ReqToTokenPool.write", keep_own_row),
    ("radix", "sliding", f"{MEM}.common", "free_swa_out_of_window_slots", free_one_early),
    ("unified", "full", f"{TREE}.unified_tree_core", "UnifiedTreeCore.inc_lock_ref",
     lock_once),
    ("unified", "full", f"{MEM}.unified_radix_cache", "UnifiedRadixCache.dec_lock_ref",
     unlock_nothing),
    ("unified", "hybrid", f"{MEM}.allocator.paged",
     "PagedTokenToKVPoolAllocator.free_segment", free_twice),
    ("unified", "hybrid", f"{MEM}.common", "free_swa_out_of_window_slots",
     free_one_early),
    ("unified", "hybrid", f"{PARTS}.swa", "SWAComponent.create_match_validator",
     ignore_window),
    ("unified-rust", "hybrid", f"{MEM}.common", "free_swa_out_of_window_slots",
     free_one_early),
    ("unified-rust", "full", f"{MEM}.allocator.paged",
     "PagedTokenToKVPoolAllocator.free_segment", free_twice),
    ("unified-states", "hybrid", f"{PARTS}.mamba",
     "MambaComponent.finalize_match_result_in_cache", lose_state),
    ("unified-states", "hybrid", f"{TREE}.unified_tree_core",
     "UnifiedTreeCore.inc_lock_ref", lock_once),
    ("unified-ngram", "full", "sglang.srt.managers.schedule_batch", "Req.owned_kv_len",
     publish_behind),
    ("unified-eagle", "hybrid", f"{MEM}.common", "free_swa_out_of_window_slots",
     free_one_early),
    ("unified-twins", "full", f"{TREE}.unified_tree_core", "UnifiedTreeCore.match_prefix",
     match_less),
]  # fmt: skip
"""(backend, kind, module, name in it, how it is changed)."""


def plant(place: pytest.MonkeyPatch, module: str, name: str, change: Change) -> None:
    from lockstep.impl.peers.engines.sglang import open_sglang

    owner, _, own = name.rpartition(".")
    library = open_sglang().load(module)
    target = getattr(library, owner) if owner else library
    place.setattr(target, own, change(getattr(target, own)))


@pytest.mark.parametrize(
    ("backend", "kind", "module", "name", "change"),
    MISTAKES,
    ids=[f"{name}-{kind}-{change.__name__}" for name, kind, _, _, change in MISTAKES],
)
def test_a_mistake_is_found(
    peers: Any,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    kind: str,
    module: str,
    name: str,
    change: Change,
) -> None:
    plant(monkeypatch, module, name, change)
    factory = getattr(peers, f"sglang_{backend.replace('-', '_')}")
    assert find(factory(), f"paged-{kind}", PROGRAMS)[1]


def test_only_twins_find_a_shorter_hit(
    peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"{TREE}.unified_tree_core"
    plant(monkeypatch, module, "UnifiedTreeCore.match_prefix", match_less)
    assert find(peers.sglang_unified(), "paged-full", PROGRAMS // 4)[1] == ""


# --- divergences ------------------------------------------------------------------------


def run_on(backend: Backend, config: dict[str, Any], *ops: dict[str, Any]) -> str | None:
    """The signature of a program, or None."""
    document = {"contract": "paged", "config": config, "ops": list(ops)}
    program = parse_program({"format": "lockstep/1", **document}, "a program")
    divergence = run(program, backend).divergence
    return divergence and divergence.get_signature(program)


def ask(op: str, request: str = "a", **fields: Any) -> dict[str, Any]:
    return {"op": op, "request": request, **fields}


RUN = {"op": "run"}
DECODE = ask("schedule"), RUN, ask("accept", sampled=1)
WINDOW = {"type": "sliding", "block": 1, "width": 2, "layers": 1}
CONFIG = {"kind": "paged-sliding", "groups": [WINDOW]}


def test_a_window_that_slid_is_published_without_full_layers(peers: Any) -> None:
    """Not before it has slid, nor where the model keeps the prompt."""
    begun = ask("open", tokens=[1]), *DECODE, *DECODE, ask("schedule"), RUN
    slid = *begun, ask("accept", sampled=1), ask("schedule"), RUN, ask("free")
    radix, default = peers.sglang_radix(), peers.sglang_radix_default()
    assert run_on(radix, CONFIG, *slid) is None
    assert run_on(default, CONFIG, *begun, ask("free")) is None
    assert run_on(default, CONFIG, *slid) == "paged-paged-sliding-free-references"
    assert run_on(default, {**CONFIG, "prefix_cache": False}, *slid) is None


def test_its_slots_are_then_written_by_another_and_hit(peers: Any) -> None:
    """As is seen where the pool is not told."""
    default = peers.sglang_radix_default()
    kinds = {"paged-sliding": default.contracts["paged"]["paged-sliding"]}
    untold = replace(default, contracts={"paged": peers.declare_untold(kinds)})
    slid = ask("open", tokens=[1]), *DECODE, *DECODE, *DECODE, *DECODE[:2], ask("free")
    other = ask("open", "b", tokens=[2, 2, 2]), ask("schedule", "b"), RUN
    again = ask("open", "c", tokens=[1, 1, 2]), ask("schedule", "c"), RUN
    config = {**CONFIG, "blocks": 3, "max_length": 4}  # six slots
    found = "paged-paged-sliding-run-contents"
    assert run_on(untold, config, *slid, *other, ask("free", "b"), *again) == found
    assert run_on(untold, config, *slid, *again) is None


def test_events_do_not_tell_an_extra_key(peers: Any) -> None:
    """So they are told of requests with a salt, and with another key not compared."""
    ops = ask("open", tokens=[1, 1], namespace="x"), ask("schedule", count=2), RUN
    declared = peers.sglang_radix().contracts["paged"]["paged-full"]
    options = peers.Options(core=None)
    for salts, tells, found in (
        (True, declared.tells, None),
        (False, declared.tells, "paged-paged-full-accept-events"),
        (False, declared.tells - {"events"}, None),
    ):
        kinds = {"paged-full": replace(declared, tells=tells)}
        backend = peers._backend("radix", kinds, options._replace(salts=salts))
        done = run_on(backend, {"kind": "paged-full"}, *ops, ask("accept", sampled=1))
        assert done == found
