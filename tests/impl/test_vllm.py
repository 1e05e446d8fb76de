"""vLLM's block manager: it agrees, and mistakes that are made in it are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    return load_peers("vllm")


PAIRS = [
    *[("vllm", each) for each in ("full", "sliding", "chunked", "hybrid")],
    *[("vllm_priority", each) for each in ("full", "state", "hybrid")],
    *[("vllm_ngram", each) for each in ("full", "sliding", "chunked", "hybrid")],
    *[("vllm_eagle", each) for each in ("full", "sliding", "chunked", "hybrid")],
    *[("vllm_eagle_drop", each) for each in ("full", "sliding", "hybrid")],
    *[("vllm_states", each) for each in ("state", "hybrid")],
    *[("vllm_states_budget", each) for each in ("state", "hybrid")],
    *[("vllm_sparse", each) for each in ("sliding", "state", "hybrid")],
    *[("vllm_interval", each) for each in ("sliding", "state", "hybrid")],
]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_it_agrees(peers: Any, name: str, kind: str) -> None:
    backend = getattr(peers, name)()
    assert find(backend, f"paged-{kind}", PROGRAMS // 3) == (PROGRAMS // 3, "")


def test_every_kind_is_run(peers: Any) -> None:
    kinds = {
        (name, kind.removeprefix("paged-"))
        for name in {name for name, _ in PAIRS}
        for kind in getattr(peers, name)().contracts["paged"]
    }
    assert kinds == set(PAIRS)


# --- mistakes ---------------------------------------------------------------------------


def keep_hash(evict: Any) -> Any:
    """A block that is taken for something else keeps its hash."""
    return lambda self, block: False


def raise_once(touch: Any) -> Any:
    """A hit does not raise the references of a block that somebody holds."""

    def change(self: Any, blocks: Iterable[Any]) -> None:
        touch(self, [block for block in blocks if block.ref_cnt == 0])

    return change


def free_twice(free: Any) -> Any:
    """The last block that is freed is freed twice, if another request holds it."""

    def change(self: Any, blocks: Iterable[Any]) -> None:
        listed = list(blocks)
        free(self, listed)
        free(self, [block for block in listed[-1:] if block.ref_cnt > 0])

    return change


def skip_one_more(skipped: Any) -> Any:
    """What a layer attends to begins one token later, so a block is freed early."""
    return lambda self, computed: skipped(self, computed) + 1


def leave_no_token(match: Any) -> Any:
    """A hit may have all tokens of a request."""
    return lambda self, request, most=None: match(self, request, request.num_tokens)


def find_one_more(find: Any) -> Any:
    """A hit ends with a block of something else."""

    def change(cls: Any, hashes: Any, max_length: int, **fields: Any) -> Any:
        blocks, hit = find(hashes, max_length, **fields)
        size = fields["kv_cache_spec"].block_size
        other = fields["block_pool"].blocks[-1]
        if hit + size > max_length or hit % size:
            return blocks, hit
        return tuple([*each, other] for each in blocks), hit + size

    return classmethod(change)


def hash_behind(cache_blocks: Any) -> Any:
    """A block counts as written up to the sampled token, in whose slot there may be a
    draft that was rejected."""
    return lambda self, request, computed: cache_blocks(self, request, computed + 1)


def lose_copies(take: Any) -> Any:
    """A block that is hit in part is not copied."""

    def change(self: Any) -> Any:
        _, retained = take(self)
        return [], retained

    return change


def allow_states_of_step(new_step: Any) -> Any:
    """A state is hit before it is computed."""

    def change(self: Any, *fields: Any, **more: Any) -> Any:
        self.cached_blocks_this_step.clear()
        return new_step(self, *fields, **more)

    return change


def say_nothing(emit: Any) -> Any:
    """No event tells of a block that is taken."""
    return lambda self, hashes: None


MISTAKES: list[tuple[str, str, str, str, Change]] = [
    ("vllm", "full", "BlockPool", "_maybe_evict_cached_block", keep_hash),
    ("vllm", "full", "BlockPool", "touch", raise_once),
    ("vllm", "full", "BlockPool", "free_blocks", free_twice),
    ("vllm", "full", "KVCacheManager", "get_computed_blocks", leave_no_token),
    ("vllm", "full", "KVCacheManager", "cache_blocks", hash_behind),
    ("vllm", "full", "BlockPool", "_emit_block_removed_events", say_nothing),
    ("vllm", "full", "FullAttentionManager", "find_longest_cache_hit", find_one_more),
    ("vllm", "sliding", "SlidingWindowManager", "get_num_skipped_tokens", skip_one_more),
    ("vllm", "sliding", "SlidingWindowManager", "find_longest_cache_hit", find_one_more),
    ("vllm", "chunked", "ChunkedLocalAttentionManager", "get_num_skipped_tokens",
     skip_one_more),
    ("vllm", "hybrid", "SlidingWindowManager", "get_num_skipped_tokens", skip_one_more),
    ("vllm-ngram", "hybrid", "KVCacheManager", "cache_blocks", hash_behind),
    ("vllm-eagle", "full", "BlockPool", "touch", raise_once),
    ("vllm-eagle-drop", "full", "BlockPool", "free_blocks", free_twice),
    ("vllm-sparse", "sliding", "BlockPool", "free_blocks", free_twice),
    ("vllm-interval", "hybrid", "BlockPool", "touch", raise_once),
    ("vllm-states", "hybrid", "KVCacheManager", "take_kv_cache_block_copies",
     lose_copies),
    ("vllm-states", "state", "MambaManager", "get_num_blocks_to_allocate",
     allow_states_of_step),
]  # fmt: skip
"""(backend, kind, class, method, how it is changed)."""


def plant(place: pytest.MonkeyPatch, owner: str, method: str, change: Change) -> None:
    from lockstep.impl.peers.engines.vllm import load_vllm

    library = getattr(load_vllm(), owner)
    place.setattr(library, method, change(getattr(library, method)))


@pytest.mark.parametrize(
    ("name", "kind", "owner", "method", "change"),
    MISTAKES,
    ids=[f"{name}-{kind}-{change.__name__}" for name, kind, _, _, change in MISTAKES],
)
def test_a_mistake_is_found(
    peers: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: str,
    owner: str,
    method: str,
    change: Change,
) -> None:
    plant(monkeypatch, owner, method, change)
    backend = getattr(peers, name.replace("-", "_"))()
    assert find(backend, f"paged-{kind}", PROGRAMS)[1]


# --- divergences ------------------------------------------------------------------------


def run_on(backend: Backend, config: dict[str, Any], *ops: dict[str, Any]) -> str | None:
    """The signature of a program, or None."""
    document = {"contract": "paged", "config": config, "ops": list(ops)}
    program = parse_program({"format": "lockstep/1", **document}, "a program")
    divergence = run(program, backend).divergence
    return divergence and divergence.get_signature(program)


def ask(op: str, **fields: Any) -> dict[str, Any]:
    return {"op": op, "request": "a", **fields}


def test_a_request_of_the_step_that_is_preempted_leaves_its_hash(peers: Any) -> None:
    """By the policy priority; by fcfs it is not preempted."""
    ops = ask("open", tokens=[1, 1, 1]), ask("schedule", count=3), ask("preempt")
    config = {"kind": "paged-full"}
    assert run_on(peers.vllm(), config, *ops) is None
    signature = "paged-paged-full-preempt-hash"
    assert run_on(peers.vllm_priority(), config, *ops) == signature
    count = ask("schedule", count=1)  # no block is full
    assert run_on(peers.vllm_priority(), config, ops[0], count, ops[2]) is None


def test_an_empty_cache_is_hit_where_a_chunk_begins_inside_a_block(peers: Any) -> None:
    """Not where one block, or several, are a chunk."""
    ops = ask("open", tokens=[1, 1, 1, 1]), ask("schedule", count=1)
    signature = "paged-paged-chunked-schedule-result"
    for block, width, found in ((2, 3, signature), (2, 4, None), (3, 3, None)):
        groups = [{"type": "chunked", "block": block, "width": width, "layers": 1}]
        config = {"kind": "paged-chunked", "groups": groups}
        assert run_on(peers.vllm(), config, *ops) == found
