"""Declares the backends for SGLang's prefix caches.

`sglang_trees` has the adapter without drafts, `sglang_drafts` the adapter with drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lockstep.harness.backends import Backend, Duty, Kind
from lockstep.harness.backends.twins import Twins
from lockstep.impl.peers.paged import (
    OPERATIONS,
    SHARE,
    WITHDRAW,
    Groups,
    declare_drafting,
    declare_engine,
    full,
    sliding,
    state,
)
from lockstep.impl.peers.sglang_drafts import DraftingTrees
from lockstep.impl.peers.sglang_facts import Layout
from lockstep.impl.peers.sglang_pools import Options
from lockstep.impl.peers.sglang_trees import Trees

DEFAULT = Options()
RUST = Options(core="rust")

ABORT = Duty(
    {"op": "free", "scheduled": [1, None]},
    "free of a scheduled request: one is aborted when the step has run",
)
VICTIM = Duty(
    {"op": "preempt", "scheduled": [1, None]},
    "preempt of a scheduled request: requests are retracted before the step is made",
)
PARTLY = Duty(
    {"op": "evict", "count": [1, 255]},
    "eviction of some of the blocks: `evict` takes whole nodes, and may exceed",
)
DUTIES = (WITHDRAW, ABORT, VICTIM, PARTLY)

STATE = state(16)
"""A request has one state, so all its tokens lie in one block."""

FULL: Groups = ([full(2)], [full(1)], [full(4)], [full(3)])
SLIDING: Groups = ([sliding(1, 3)], [sliding(1, 2)], [sliding(1, 5)], [sliding(1, 8)])
HYBRID: Groups = (
    [full(2), sliding(2, 3)],
    [full(1), sliding(1, 2)],
    [full(1), sliding(1, 4)],
    [full(2), sliding(2, 2)],
    [full(2), sliding(2, 6)],
    [full(4), sliding(4, 3)],
    [full(3), sliding(3, 8)],
)
WITH_STATES: Groups = (
    [full(1), STATE],
    [full(1), sliding(1, 3), STATE],
    [full(1), sliding(1, 6), STATE],
)


def _kind(groups: Groups, tells: Sequence[str]) -> Kind:
    config = {"groups": tuple(groups), "lookahead": (0,)}
    return Kind(OPERATIONS, config, duties=DUTIES, tells=frozenset(tells))


def _kind_with_states() -> Kind:
    """Declares a kind with states.

    `match` is not declared, because it allocates a state. A block of states is at least
    as long as a request.
    """
    kind = _kind(WITH_STATES, ("pool", "entries"))
    config = {**kind.config, "max_length": (16, 12)}
    return replace(kind, operations=OPERATIONS - {"match"}, config=config)


PAGED = {
    "paged-full": _kind(FULL, ("pool", "entries", "events")),
    "paged-hybrid": _kind(HYBRID, ("pool", "entries")),
}
STATES = {"paged-hybrid": _kind_with_states()}


def declare_untold(kinds: Mapping[str, Kind]) -> Mapping[str, Kind]:
    """Removes the optional reports (`tells`) from declarations, because the nodes of a
    Rust tree cannot be read."""
    return {name: replace(kind, tells=frozenset()) for name, kind in kinds.items()}


def sglang_radix() -> Backend:
    """Declares `RadixCache` for models with full attention, and its variant for models
    with only sliding layers."""
    kinds = {
        "paged-full": PAGED["paged-full"],
        "paged-sliding": _kind(SLIDING, ("pool", "entries")),
    }
    return _backend("sglang-radix", kinds, Options(core=None))


def sglang_radix_default() -> Backend:
    """Declares the variant of `RadixCache` for models in which all layers slide, also
    over the prompt."""
    kinds = {"paged-sliding": _kind(SLIDING, ("pool", "entries"))}
    options = Options(core=None, keeps_prompt=False)
    return _backend("sglang-radix-default", kinds, options, SHARE)


def sglang_unified() -> Backend:
    """Declares `UnifiedRadixCache` with its Python tree."""
    return _backend("sglang-unified", PAGED)


def sglang_unified_states() -> Backend:
    """Declares `UnifiedRadixCache` for models with recurrent states."""
    return _backend("sglang-unified-states", STATES)


def sglang_unified_ngram() -> Backend:
    """Declares `UnifiedRadixCache` with drafts that are looked up, not computed by a
    model."""
    kinds = declare_drafting(PAGED)
    return _backend("sglang-unified-ngram", kinds, Options(drafts="NGRAM"), SHARE)


def sglang_unified_eagle() -> Backend:
    """Declares `UnifiedRadixCache` with EAGLE, where a key is a pair of a token and the
    next token."""
    kinds = declare_drafting(PAGED)
    return _backend("sglang-unified-eagle", kinds, Options(drafts="EAGLE"), SHARE)


def sglang_unified_rust() -> Backend:
    """Declares `UnifiedRadixCache` with its Rust tree, which servers use."""
    return _backend("sglang-unified-rust", declare_untold(PAGED), RUST, SHARE)


def sglang_unified_rust_states() -> Backend:
    return _backend("sglang-unified-rust-states", declare_untold(STATES), RUST, SHARE)


def sglang_unified_twins() -> Backend:
    """Declares the Python and the Rust tree of `UnifiedRadixCache` as twins, which must
    make the same choices."""
    return _backend("sglang-unified-twins", PAGED, share=SHARE, opens=_open_twins)


def sglang_unified_twins_states() -> Backend:
    return _backend("sglang-unified-twins-states", STATES, share=SHARE, opens=_open_twins)


def _open_trees(config: Mapping[str, Any], options: Options) -> Trees:
    """Opens pools, a tree and their adapter for a complete config of the paged
    contract."""
    kind = Trees if options.drafts is None else DraftingTrees
    return kind(config, Layout.read(config["groups"]), options)


def _open_twins(config: Mapping[str, Any], options: Options) -> Twins:
    """Opens a Python tree and its twin, a Rust tree."""
    cores = "python", "rust"
    pair = [_open_trees(config, options._replace(core=core)) for core in cores]
    return Twins(*pair, counts=lambda trees: trees.facts.count())


def _backend(
    name: str,
    kinds: Mapping[str, Kind],
    options: Options = DEFAULT,
    share: int = 1,
    opens: Callable[[Mapping[str, Any], Options], Any] = _open_trees,
) -> Backend:
    return declare_engine(
        "sglang", name, kinds, lambda config: opens(config, options), share
    )
