"""The abstract states of prefix caches: situations in which bugs were found, by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.operation import Op, Unreachable, list_true
from lockstep.harness.contracts.prefix.conversations import ConversationModel
from lockstep.harness.contracts.prefix.model import CONVERSATIONS, KINDS, PrefixModel
from lockstep.harness.contracts.prefix.slots import SlotsModel
from lockstep.reference.layers import count_common
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.trie import Trie


class State(NamedTuple):
    """The conditions under which a state can be reached.

    Attributes:
        kinds: the kinds that have it.
        needs: operations that must be declared; or "captures", a layer that cannot be cut
            at every place; or "windows", a layer with a window.
        met: whether a request meets it as it begins; then only `begin` finds it.
    """

    kinds: Collection[str] = KINDS
    needs: Collection[str] = ()
    met: bool = False


TRIE, SLOTS = ("trie",), ("slots",)

STATES: Mapping[str, State] = {
    # A request compared with what is stored.
    "nothing-stored": State(met=True),
    "repeat": State(met=True),
    "shorter": State(met=True),
    "extension": State(met=True),
    "divergence": State(met=True),
    "no-match": State(met=True),
    # Sessions and tries.
    "one-token-left": State(CONVERSATIONS, met=True),
    "shortened": State(CONVERSATIONS, ["captures"], met=True),
    "ran-ahead": State(CONVERSATIONS, ["break"], met=True),
    "wrapped": State(CONVERSATIONS, ["windows"], met=True),
    "refusing": State(CONVERSATIONS, ["refuse"], met=True),
    "broken-off": State(KINDS, ["break"]),
    "overran": State(CONVERSATIONS, ["overrun"]),
    "all-computed": State(CONVERSATIONS, ["overrun"]),
    "closed-untouched": State(CONVERSATIONS),
    "freed": State(CONVERSATIONS, ["free"]),
    "inside-edge": State(TRIE, met=True),
    "leaves-live-path": State(TRIE, met=True),
    "enters-another-path": State(TRIE, met=True),
    "checkpoints": State(TRIE, ["checkpoint"], met=True),
    "limit-while-open": State(TRIE, ["limit"]),
    "evicted": State(TRIE, ["limit"]),
    "capture-evicted": State(TRIE, ["limit", "captures"]),
    "over-the-limit": State(TRIE, ["limit"]),
    "captured-in-part": State(TRIE, ["break", "captures"], met=True),
    "several-open": State(SLOTS),
    "no-slot": State(SLOTS, met=True),
    "forked": State(SLOTS),
    "forked-from-in-use": State(SLOTS),
    "began-anew": State(SLOTS),
    "moved-up": State(SLOTS),
    "computed-again": State(SLOTS),
}

CUT = ("kv", None)
"""Layers that can be cut anywhere; None has no cache."""


def list_states(kind: str, declared: Kind) -> Sequence[str]:
    """Lists the states that generation must reach for a kind as it is declared."""
    models = declared.config.get("layers", ())
    specs = {spec for layers in models for spec in layers}
    has = set(declared.operations)
    if not specs or any(spec not in CUT for spec in specs):
        has.add("captures")
    if not specs or any(spec and spec.startswith("rotating") for spec in specs):
        has.add("windows")
    return [
        name
        for name, state in STATES.items()
        if kind in state.kinds and has.issuperset(state.needs)
    ]


# --- cells ------------------------------------------------------------------------------

MET = Unreachable(
    "tells what a request meets as it begins",
    [name for name, state in STATES.items() if state.met],
    only=("begin",),
)
COMPUTED = Unreachable(
    "tells how far a request got before its end",
    ("all-computed",),
    only=("overrun", "close", "cancel"),
)
LIMITED = Unreachable("tells when a limit comes", ("limit-while-open",), only=("limit",))
BROKEN = Unreachable(
    "is followed by the end of the request; no other one is open beside it",
    ("broken-off", "overran"),
    never=("feed", "break", "overrun"),
)
BETWEEN = Unreachable(
    "lies between two requests, and there is nothing to compute",
    ("closed-untouched", "freed"),
    never=("feed", "break", "overrun"),
)
MISUSE_ONLY = Unreachable(
    "is asked only to break a rule of usage",
    tuple(STATES),
    never=("open", "reserve", "commit"),
)
NOTHING_TO_CLOSE = Unreachable(
    "lies between two requests, and to close none breaks a rule of usage",
    ("closed-untouched", "freed"),
    never=("close", "cancel"),
)


def list_unreachable(kind: str, declared: Kind) -> Sequence[Unreachable]:
    """Lists the states that some operations never find."""
    rules = [MET, COMPUTED, LIMITED]
    rules += [] if declared.refuses else [MISUSE_ONLY]
    if kind != "slots":
        rules += [BROKEN, BETWEEN, *([] if declared.refuses else [NOTHING_TO_CLOSE])]
    return rules


# --- judging ----------------------------------------------------------------------------


def get_states(op: Op, model: PrefixModel) -> Sequence[str]:
    """Names the states that `op` is about to run in."""
    states, tokens = list(model.past), list(op.get("tokens", ()))
    begins = bool(tokens) and set(map(type, tokens)) <= {int}
    if isinstance(model, ConversationModel):
        ends = op["op"] in ("overrun", "close", "cancel")
        if ends and model.is_open() and not model.get_remaining():
            states.append("all-computed")
        if op["op"] == "limit" and model.is_open():
            states.append("limit-while-open")
        if begins and not model.is_open():
            states += get_begin_states(tokens, model)
        return states
    assert isinstance(model, SlotsModel)
    users = len(model.users)
    states += ["several-open"] if users > 1 else []
    if begins and users >= model.config["slots"]:
        states.append("no-slot")
    elif begins:
        states.append(judge_match(tokens, *match(tokens, model)))
    return states


def match(tokens: list[int], model: PrefixModel) -> tuple[int, Sequence[list[int]]]:
    """Returns the length of the longest stored match, and all that is stored."""
    stored = model.list_stored()
    return max([count_common(tokens, path) for path in stored], default=0), stored


def judge_match(tokens: list[int], matched: int, stored: Sequence[list[int]]) -> str:
    """Names the state of a request by its match with what is stored; see `match`."""
    if not stored:
        return "nothing-stored"
    if matched == 0:
        return "no-match"
    if matched < len(tokens):
        return "extension" if tokens[:matched] in stored else "divergence"
    return "repeat" if tokens in stored else "shorter"


def get_begin_states(tokens: list[int], model: ConversationModel) -> list[str]:
    """Names the states that a request is about to meet in the layers."""
    matched, stored = match(tokens, model)
    layers, trie, most = model.cache.cached, model.trie, min(matched, len(tokens) - 1)
    windows = [layer.cache for layer in layers if isinstance(layer.cache, RotatingCache)]
    states = {
        judge_match(tokens, matched, stored): True,
        "one-token-left": matched == len(tokens),
        "ran-ahead": len({layer.offset for layer in layers}) > 1,
        "wrapped": any(window.offset > window.window for window in windows),
        "refusing": model.refusing,
        "checkpoints": trie and model.checkpoints,
    }
    if trie:
        return [*list_true(states), *get_trie_states(tokens, most, trie)]
    can_restore = all(layer.cache.can_restore(None, most) for layer in layers)
    return list_true({**states, "shortened": most and not can_restore})


def get_trie_states(tokens: list[int], most: int, trie: Trie) -> list[str]:
    """Names the states that a request is about to meet in a trie.

    Args:
        tokens: the request.
        most: the number of its tokens that layers could reuse if they could be cut there.
        trie: the reference.
    """
    reuse = next(p for p in range(most, -1, -1) if trie.can_reach(tokens, p))
    live = count_common(tokens, trie.live)
    states = {
        "captured-in-part": is_captured_in_part(trie),
        "shortened": reuse < most,
        "inside-edge": reuse and tuple(tokens[:reuse]) not in trie.points,
        "leaves-live-path": live < len(trie.live),
        "enters-another-path": reuse > live,
    }
    return list_true(states)


def is_captured_in_part(trie: Trie) -> bool:
    """Returns whether a path has captures of some, but not all, layers that need them."""
    needing = sum(not layer.can_be_cut for layer in trie.cached)
    return any(0 < len(point.captured) < needing for point in trie.points.values())
