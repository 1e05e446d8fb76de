"""Declares the backends for vLLM's `KVCacheManager`.

`vllm_blocks` has the adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lockstep.harness.backends import Backend, Duty, Kind
from lockstep.impl.peers.paged import (
    OPERATIONS,
    SHARE,
    WITHDRAW,
    Groups,
    chunked,
    declare_drafting,
    declare_engine,
    full,
    sliding,
    state,
)
from lockstep.impl.peers.vllm_blocks import Options, open_blocks

DEFAULT = Options()

TELLS = frozenset({"pool", "entries", "events"})

ABORT = Duty(
    {"op": "free", "scheduled": [1, None]},
    "free of a scheduled request: EngineCore.step aborts requests when the step has run",
)
VICTIM = Duty(
    {"op": "preempt", "scheduled": [1, None]},
    "preempt of a scheduled request: policy fcfs preempts the last running one, which is"
    " not scheduled yet",
)
AFTER_SEND = {"states": ["sent"]}, "a request that was sent: only ended ones are"
NEVER_CALLED = (
    ("preempt", {"awaited": [1, None]}, "a request that waits to receive tokens"),
    ("preempt", {"states": ["loaded", "begun"]}, "one that has received, not yet run"),
    ("send", {"states": ["begun"]}, "a request before its known tokens are computed"),
    ("send", {"computed - length": [1, None]}, "drafts whose outputs are not processed"),
    *((name, *AFTER_SEND) for name in ("schedule", "send", "preempt")),
)
HANDED_OVER = [
    Duty({"op": op, **when}, f"{op} of {what}") for op, when, what in NEVER_CALLED
]
PRIORITY = (WITHDRAW, ABORT, *HANDED_OVER)
"""The duties with the policy priority, which also preempts scheduled requests."""
DUTIES = (*PRIORITY, VICTIM)

FULL: Groups = (
    [full(2)], [full(1)], [full(4)], [full(3)], [full(2), full(2)],
    [full(4), full(2)],
)  # fmt: skip
SLIDING: Groups = (
    [sliding(2, 3)], [sliding(2, 4)], [sliding(4, 3)], [sliding(1, 2)],
    [sliding(2, 1)], [sliding(3, 8)], [sliding(2, 3), sliding(2, 5)],
    [sliding(4, 6), sliding(2, 3)],
)  # fmt: skip
CHUNKED: Groups = (
    [chunked(2, 4)], [chunked(1, 3)], [chunked(2, 6)], [chunked(4, 4)],
    [chunked(2, 4), chunked(2, 8)],
)  # fmt: skip
INSIDE: Groups = ([chunked(2, 3)], [chunked(4, 6)])
"""Chunks that begin inside a block."""
HYBRID: Groups = (
    [full(2), sliding(2, 3)],
    [full(2), chunked(2, 4)],
    [full(2), chunked(2, 4), sliding(2, 3)],
    [full(4), sliding(2, 5)],
    [full(2), sliding(4, 5)],
    [sliding(2, 3), full(2), sliding(2, 6)],
    [full(3), sliding(2, 4)],
    [full(1), sliding(1, 1)],
)
STATE: Groups = ([state(2)], [state(1)], [state(4)], [state(3)])
WITH_STATES: Groups = (
    [full(2), state(2)],
    [full(4), state(4)],
    [full(1), state(1)],
    [full(4), state(4), state(4)],
    [full(2), sliding(2, 3), state(2)],
)
"""States have blocks of the same size as the other layers, as in an engine."""


LOCAL_OPERATIONS = OPERATIONS | {"launch", "finish"}
ALL_OPERATIONS = LOCAL_OPERATIONS | {"send", "receive", "landed", "failed"}
ASYNCHRONOUS = {"flight": (0, 1, 2), "overlap": (False, True), "remote": (False, True)}
RANKS = {"ranks": (1, 1, 2, 4), "interleave": (1, 2)}
"""Beside full groups, only states: the coordinator refuses other groups."""


def _kind(groups: Groups, **config: tuple[Any, ...]) -> Kind:
    drawn = {"groups": tuple(groups), "extra_keys": (False, True)}
    settings = {**drawn, **ASYNCHRONOUS, **config}
    return Kind(ALL_OPERATIONS, settings, duties=DUTIES, tells=TELLS)


def _kind_with_states(groups: Groups, **config: tuple[Any, ...]) -> Kind:
    """Declares a kind with states.

    `match` is not declared: it can return a state of the current step, which the
    allocation then refuses. Prefix caching is on, because vLLM otherwise does not keep
    states at the ends of blocks.
    """
    kind = _kind(groups, prefix_cache=(True,), lookahead=(0,), aligned=(True,), **config)
    return replace(kind, operations=ALL_OPERATIONS - {"match"})


FINER: Mapping[str, tuple[Any, ...]] = {"hash_block": (None, None, 1, 2)}
"""Hits inside a block occur only in models with states."""


def _without_failures(kind: Kind) -> Kind:
    """Declares a kind whose transfers do not fail. In models with only sliding layers or
    only states, failed transfers diverge; `vllm` shows this for sliding layers."""
    return replace(kind, operations=kind.operations - {"failed"})


PLAIN = {
    "paged-full": _kind(FULL, **RANKS),
    "paged-sliding": _without_failures(_kind(SLIDING)),
    "paged-chunked": _kind(CHUNKED),
    "paged-hybrid": _kind(HYBRID),
}
STATES = {
    "paged-state": _without_failures(_kind_with_states(STATE)),
    "paged-hybrid": _kind_with_states(WITH_STATES, **FINER),
}


def declare_without_chunks(groups: Groups) -> Groups:
    return [
        layout for layout in groups if all(group["type"] != "chunked" for group in layout)
    ]


def declare_alike(groups: Groups) -> Groups:
    return [layout for layout in groups if len({group["block"] for group in layout}) == 1]


SPARSE = {
    "paged-sliding": PLAIN["paged-sliding"],
    "paged-state": STATES["paged-state"],
    "paged-hybrid": _kind_with_states(
        [*declare_without_chunks(HYBRID), *WITH_STATES], **FINER
    ),
}


def vllm() -> Backend:
    """Declares `KVCacheManager` with the policy fcfs and a draft model."""
    more = _kind([*CHUNKED, *INSIDE], remote=(False,))
    more = replace(more, operations=LOCAL_OPERATIONS, duties=(WITHDRAW, ABORT, VICTIM))
    kinds = {**PLAIN, "paged-sliding": _kind(SLIDING), "paged-chunked": more}
    return _backend("vllm", kinds)


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
    states may need several steps, and with several ranks."""
    kind = _kind_with_states(WITH_STATES[:-1], **FINER, **RANKS)
    kinds = {**STATES, "paged-hybrid": kind}
    return _backend("vllm-states-budget", kinds, Options(budget=3), SHARE)


def vllm_ngram() -> Backend:
    """Declares `KVCacheManager` with drafts that are looked up, not computed by a model.
    These drafts need no slots after them."""
    kinds = declare_drafting(PLAIN)
    return _backend("vllm-ngram", kinds, Options(has_draft_model=False), SHARE)


def vllm_eagle() -> Backend:
    """Declares `KVCacheManager` with EAGLE.

    The draft model's data for the last token of a block depends on the next token, so the
    hash of the block includes the next token.
    """
    kinds = declare_drafting(PLAIN)
    return _backend("vllm-eagle", kinds, Options(covers_next=True), SHARE)


def vllm_eagle_drop() -> Backend:
    """Declares `vllm_eagle` with `disable_lookahead_block_hashes`: the last block of a
    hit is computed again. The manager then refuses chunked layers."""
    kinds = {
        "paged-full": _kind(FULL),
        "paged-sliding": PLAIN["paged-sliding"],
        "paged-hybrid": _kind(declare_without_chunks(HYBRID)),
    }
    options = Options(drops_last=True)
    return _backend("vllm-eagle-drop", declare_drafting(kinds), options, SHARE)


def vllm_sparse() -> Backend:
    """Declares `KVCacheManager` with `prefix_cache_retention_interval` 0: it keeps
    windows and states only at the ends of prompts and of shared prefixes."""
    return _backend("vllm-sparse", SPARSE, Options(retention=0), SHARE)


def vllm_interval() -> Backend:
    """Declares `KVCacheManager` with a `prefix_cache_retention_interval` of two
    blocks."""
    return _backend("vllm-interval", SPARSE, Options(retention=2), SHARE)


def _backend(
    name: str, kinds: Mapping[str, Kind], options: Options = DEFAULT, share: int = 1
) -> Backend:
    return declare_engine(
        "vllm", name, kinds, lambda config: open_blocks(config, options), share
    )
