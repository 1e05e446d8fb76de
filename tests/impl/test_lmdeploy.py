"""LMDeploy's scheduler: mistakes that are made in it are found, and its divergence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Divergence
from lockstep.impl.peers.engines.lean import open_engine
from lockstep.impl.peers.engines.lmdeploy import LMDEPLOY
from tests.harness.building import make
from tests.impl.released import find, load

Change = Callable[[Any], Any]
PAGING = "lmdeploy.pytorch.paging"


def own_nothing(commit: Any) -> Any:
    """The trie takes no reference to a block that it publishes."""
    return lambda self, node, ref_blocks, free_blocks: commit(
        self, node, ref_blocks=[], free_blocks=free_blocks
    )


def drop_more(count: Any) -> Any:
    """A window drops one block more than it may."""
    return lambda sequence, width: count(sequence, width) + (sequence.num_blocks > 2)


def match_all(limit: Any) -> Any:
    """A hit may contain all tokens of the request."""
    return lambda self: self.num_valid_ids


def ignore_tokens(matches: Any) -> Any:
    """A block is hit whatever its tokens are."""
    return staticmethod(lambda node, token_ids, extra_identity: True)


def hash_nothing(compute: Any) -> Any:
    return staticmethod(lambda token_ids, extra_identity: 0)


def save_nothing(reserve: Any) -> Any:
    """A checkpoint is published, but no state is copied to it."""

    def reserve_only(self: Any, *arguments: Any) -> Any:
        plan = reserve(self, *arguments)
        return replace(plan, state_pairs=())

    return reserve_only


def restore_no_blocks(prepare: Any) -> Any:
    """The beginning of a block is not copied from its checkpoint."""
    return lambda self, seqs: replace(prepare(self, seqs), kv_block_pairs=())


TRIE, WINDOW = f"{PAGING}.block_trie", f"{PAGING}.block_manager.window_block_manager"
CHECKPOINTS = f"{TRIE}.checkpoint_lifecycle", "StateCheckpointLifecycle"


@pytest.mark.parametrize(
    ("kind", "module", "owner", "changes"),
    [
        (
            *("paged-full", f"{TRIE}.kv_lifecycle", "KVBlockLifecycle"),
            {"commit_path_extension": own_nothing},
        ),
        (
            *("paged-full", f"{TRIE}.trie", "BlockTrie"),
            {"_node_matches_block": ignore_tokens, "_hash_block": hash_nothing},
        ),
        ("paged-sliding", WINDOW, None, {"_num_blocks_to_drop": drop_more}),
        ("paged-hybrid", *CHECKPOINTS, {"reserve_prefill_save_batch": save_nothing}),
        ("paged-hybrid", *CHECKPOINTS, {"prepare_restore_batch": restore_no_blocks}),
    ],
)
def test_a_mistake_is_found(
    kind: str, module: str, owner: str | None, changes: dict[str, Change]
) -> None:
    backend = load("lmdeploy")
    target = open_engine(LMDEPLOY).load(module)
    target = getattr(target, owner) if owner else target
    with pytest.MonkeyPatch.context() as patch:
        for name, change in changes.items():
            patch.setattr(target, name, change(getattr(target, name)))
        program = find("lmdeploy", kind)
    assert program is not None
    assert run(program, backend).divergence is None


def ask(op: str, request: str, **fields: Any) -> dict[str, Any]:
    return {"op": op, "request": request, **fields}


def diverge(name: str, *ops: Any, **config: Any) -> Divergence | None:
    backend = load(f"lockstep.impl.peers.lmdeploy:{name}")
    fixed = {"contract": "paged", "kind": "paged-full", "preempts": True}
    return run(make(*ops, **fixed, **config), backend).divergence


def step(request: str, *sampled: int) -> list[dict[str, Any]]:
    """Computes a step of a request, then a step after each sampled token."""
    first, *more = [[ask("schedule", request), {"op": "run"}]] * (1 + len(sampled))
    ops = list(first)
    for token, later in zip(sampled, more, strict=True):
        ops += [ask("accept", request, sampled=token), *later]
    return ops


def test_a_request_that_waits_again_gets_a_block_twice() -> None:
    load("lmdeploy")  # skips without it
    ops = [
        *(ask("open", "a", tokens=[1]), *step("a", 1, 2), ask("accept", "a", sampled=3)),
        *(ask("open", "b", tokens=[1, 1, 5]), *step("b"), ask("schedule", "a")),
        *(ask("free", "b"), ask("schedule", "a")),
    ]
    config: dict[str, Any] = {"ahead": 3, "max_length": 10, "blocks": 5}
    divergence = diverge("interval", *ops, **config)
    assert divergence is not None
    assert divergence.step == len(ops) - 1
    assert divergence.message == "start is 2, not 3"
