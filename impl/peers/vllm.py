"""Declares the backends for vLLM's `KVCacheManager`.

`vllm_blocks` has the adapter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockstep.harness.backends import Backend, Duty, Kind
from lockstep.impl.peers.vllm_blocks import Options, open_blocks
from lockstep.impl.torch.arrays import TorchArrays

LEDGER = Path(__file__).parent / "ledger"
SHARE = 4
DEFAULT = Options()

OPERATIONS = frozenset(
    {
        *("open", "match", "schedule", "run", "accept", "preempt", "free", "evict"),
        "reset",
    }
)
"""No `fork` and `rewind`: several answers to a prompt are requests that hit it."""

TELLS = frozenset({"pool", "entries", "events"})

WITHDRAW = Duty(
    {"op": "free", "reuse": [0, 0]}, "free with reuse false: there is no such call"
)
ABORT = Duty(
    {"op": "free", "scheduled": [1, None]},
    "free of a scheduled request: EngineCore.step aborts requests when the step has run",
)
VICTIM = Duty(
    {"op": "preempt", "scheduled": [1, None]},
    "preempt of a scheduled request: policy fcfs preempts the last running one, which is"
    " not scheduled yet",
)
PRIORITY = (WITHDRAW, ABORT)
"""The duties with the policy priority, which also preempts scheduled requests."""
DUTIES = (*PRIORITY, VICTIM)

Groups = Sequence[Sequence[Mapping[str, Any]]]


def declare_group(type: str, block: int, width: int = 0) -> dict[str, Any]:
    sizes = {"width": width} if width else {}
    return {"type": type, "block": block, **sizes, "layers": 1}


def _full(block: int) -> dict[str, Any]:
    return declare_group("full", block)


def _sliding(block: int, width: int) -> dict[str, Any]:
    return declare_group("sliding", block, width)


def _chunked(block: int, width: int) -> dict[str, Any]:
    return declare_group("chunked", block, width)


def _state(block: int) -> dict[str, Any]:
    return declare_group("state", block)


FULL: Groups = (
    [_full(2)], [_full(1)], [_full(4)], [_full(3)], [_full(2), _full(2)],
    [_full(4), _full(2)],
)  # fmt: skip
SLIDING: Groups = (
    [_sliding(2, 3)], [_sliding(2, 4)], [_sliding(4, 3)], [_sliding(1, 2)],
    [_sliding(2, 1)], [_sliding(3, 8)], [_sliding(2, 3), _sliding(2, 5)],
    [_sliding(4, 6), _sliding(2, 3)],
)  # fmt: skip
CHUNKED: Groups = (
    [_chunked(2, 4)], [_chunked(1, 3)], [_chunked(2, 6)], [_chunked(4, 4)],
    [_chunked(2, 4), _chunked(2, 8)],
)  # fmt: skip
INSIDE: Groups = ([_chunked(2, 3)], [_chunked(4, 6)])
"""Chunks that begin inside a block."""
HYBRID: Groups = (
    [_full(2), _sliding(2, 3)],
    [_full(2), _chunked(2, 4)],
    [_full(2), _chunked(2, 4), _sliding(2, 3)],
    [_full(4), _sliding(2, 5)],
    [_full(2), _sliding(4, 5)],
    [_sliding(2, 3), _full(2), _sliding(2, 6)],
    [_full(3), _sliding(2, 4)],
    [_full(1), _sliding(1, 1)],
)
STATE: Groups = ([_state(2)], [_state(1)], [_state(4)], [_state(3)])
WITH_STATES: Groups = (
    [_full(2), _state(2)],
    [_full(4), _state(4)],
    [_full(1), _state(1)],
    [_full(2), _sliding(2, 3), _state(2)],
    [_full(4), _state(4), _state(4)],
)
"""States have blocks of the same size as the other layers, as in an engine."""


def _kind(groups: Groups, **config: tuple[Any, ...]) -> Kind:
    return Kind(
        OPERATIONS, {"groups": tuple(groups), **config}, duties=DUTIES, tells=TELLS
    )


def _kind_with_states(groups: Groups, **config: tuple[Any, ...]) -> Kind:
    """Declares a kind with states.

    `match` is not declared: it can return a state of the current step, which the
    allocation then refuses. Prefix caching is on, because vLLM otherwise does not keep
    states at the ends of blocks.
    """
    kind = _kind(groups, prefix_cache=(True,), lookahead=(0,), aligned=(True,), **config)
    return replace(kind, operations=OPERATIONS - {"match"})


FINER: Mapping[str, tuple[Any, ...]] = {"hash_block": (None, None, 1, 2)}
"""Hits inside a block occur only in models with states."""

PLAIN = {
    "paged-full": _kind(FULL),
    "paged-sliding": _kind(SLIDING),
    "paged-chunked": _kind(CHUNKED),
    "paged-hybrid": _kind(HYBRID),
}
STATES = {
    "paged-state": _kind_with_states(STATE),
    "paged-hybrid": _kind_with_states(WITH_STATES, **FINER),
}


def declare_without_chunks(groups: Groups) -> Groups:
    return [
        layout for layout in groups if all(group["type"] != "chunked" for group in layout)
    ]


def declare_alike(groups: Groups) -> Groups:
    return [layout for layout in groups if len({group["block"] for group in layout}) == 1]


SPARSE = {
    "paged-sliding": _kind(SLIDING),
    "paged-state": STATES["paged-state"],
    "paged-hybrid": _kind_with_states(
        [*declare_without_chunks(HYBRID), *WITH_STATES], **FINER
    ),
}


def vllm() -> Backend:
    """Declares `KVCacheManager` with the policy fcfs and a draft model."""
    chunked = _kind([*CHUNKED, *INSIDE])
    return _backend("vllm", {**PLAIN, "paged-chunked": chunked})


def vllm_priority() -> Backend:
    """Declares `KVCacheManager` with the policy priority. All blocks have the same size,
    so that each full block has a hash."""
    declared = {
        "paged-full": _kind(declare_alike(FULL)),
        "paged-state": STATES["paged-state"],
        "paged-hybrid": _kind(declare_alike(HYBRID)),
    }
    kinds = {name: replace(kind, duties=PRIORITY) for name, kind in declared.items()}
    return _backend("vllm-priority", kinds, share=SHARE)


def vllm_states() -> Backend:
    """Declares `KVCacheManager` for models with recurrent states, in the mode "align"."""
    return _backend("vllm-states", STATES)


def vllm_states_budget() -> Backend:
    """Declares `vllm_states` with at most three tokens in a step, so that a block of
    states may need several steps."""
    return _backend("vllm-states-budget", STATES, Options(budget=3), SHARE)


def vllm_ngram() -> Backend:
    """Declares `KVCacheManager` with drafts that are looked up, not computed by a model.
    These drafts need no slots after them."""
    kinds = {kind: declare_drafting(group) for kind, group in PLAIN.items()}
    return _backend("vllm-ngram", kinds, Options(has_draft_model=False), SHARE)


def vllm_eagle() -> Backend:
    """Declares `KVCacheManager` with EAGLE.

    The draft model's data for the last token of a block depends on the next token, so the
    hash of the block includes the next token.
    """
    kinds = {kind: declare_drafting(group) for kind, group in PLAIN.items()}
    return _backend("vllm-eagle", kinds, Options(covers_next=True), SHARE)


def vllm_eagle_drop() -> Backend:
    """Declares `vllm_eagle` with `disable_lookahead_block_hashes`: the last block of a
    hit is computed again. The manager then refuses chunked layers."""
    kinds = {
        "paged-full": declare_drafting(_kind(FULL)),
        "paged-sliding": declare_drafting(_kind(SLIDING)),
        "paged-hybrid": declare_drafting(_kind(declare_without_chunks(HYBRID))),
    }
    return _backend("vllm-eagle-drop", kinds, Options(drops_last=True), SHARE)


def vllm_sparse() -> Backend:
    """Declares `KVCacheManager` with `prefix_cache_retention_interval` 0: it keeps
    windows and states only at the ends of prompts and of shared prefixes."""
    return _backend("vllm-sparse", SPARSE, Options(retention=0), SHARE)


def vllm_interval() -> Backend:
    """Declares `KVCacheManager` with a `prefix_cache_retention_interval` of two
    blocks."""
    return _backend("vllm-interval", SPARSE, Options(retention=2), SHARE)


def declare_drafting(kind: Kind) -> Kind:
    return replace(kind, config={**kind.config, "lookahead": (2, 1, 3)})


def _backend(
    name: str, kinds: Mapping[str, Kind], options: Options = DEFAULT, share: int = 1
) -> Backend:
    return Backend(
        name=name,
        device="cpu",
        contracts={"paged": kinds},
        arrays=TorchArrays("cpu"),
        open=lambda config: open_blocks(config, options),
        ledger=LEDGER,
        versions={package: version(package) for package in ("vllm", "torch")},
        share=share,
    )
