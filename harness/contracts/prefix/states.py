"""The abstract states of prefix caches: where bugs were, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.prefix.conversations import ConversationModel
from lockstep.harness.contracts.prefix.slots import SlotsModel
from lockstep.harness.contracts.types import Op, Unreachable
from lockstep.reference.layers import count_common
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.trie import Trie

MATCHES = ("nothing-stored", "repeat", "shorter", "extension", "divergence", "no-match")

CONVERSATION_STATES = (
    "one-token-left",
    "shortened",
    "ran-ahead",
    "wrapped",
    "refusing",
    "broken-off",
    "closed-untouched",
    "freed",
)

TRIE_STATES = (
    "inside-edge",
    "leaves-live-path",
    "enters-another-path",
    "checkpoints",
    "limit-while-open",
    "evicted",
    "capture-evicted",
    "over-the-limit",
    "captured-in-part",
)

SLOTS_STATES = (
    "several-open",
    "no-slot",
    "forked",
    "forked-from-in-use",
    "began-anew",
    "moved-up",
    "computed-again",
    "broken-off",
)

STATES = tuple(
    dict.fromkeys((*MATCHES, *CONVERSATION_STATES, *TRIE_STATES, *SLOTS_STATES))
)


def get_prefix_states(op: Op, model: ConversationModel | SlotsModel) -> Sequence[str]:
    """The states that `op` is about to run in."""
    states = list(model.past)
    if isinstance(model, SlotsModel):
        return [*states, *get_slots_states(op, model)]
    if op["op"] == "limit" and model.cache.request is not None:
        states.append("limit-while-open")
    tokens = list(op.get("tokens", ()))
    if not tokens or model.cache.request is not None or not is_plain(tokens):
        return states
    stored = model.list_stored()
    matched = count_matched(tokens, stored)
    states.append(judge_match(tokens, matched, stored))
    return [*states, *get_begin_states(tokens, matched, model)]


def is_plain(tokens: Sequence[object]) -> bool:
    return set(map(type, tokens)) <= {int}


def count_matched(tokens: Sequence[int], stored: Sequence[Sequence[int]]) -> int:
    """How many tokens are the same as those of something stored."""
    return max([count_common(tokens, path) for path in stored], default=0)


def judge_match(tokens: list[int], matched: int, stored: Sequence[list[int]]) -> str:
    """How a request goes with what is stored. matched: see `count_matched`."""
    if not stored:
        return "nothing-stored"
    if matched == 0:
        return "no-match"
    if matched < len(tokens):
        return "extension" if tokens[:matched] in stored else "divergence"
    return "repeat" if tokens in stored else "shorter"


def get_begin_states(
    tokens: list[int], matched: int, model: ConversationModel
) -> list[str]:
    """What a request is about to meet in the layers."""
    states, cache = [], model.cache
    layers = cache.cached
    offsets = [layer.offset for layer in layers]
    if matched == len(tokens):
        states.append("one-token-left")
    if len(set(offsets)) > 1:
        states.append("ran-ahead")
    windows = [layer.cache for layer in layers if isinstance(layer.cache, RotatingCache)]
    if any(window.offset > window.window for window in windows):
        states.append("wrapped")
    if model.refusing:
        states.append("refusing")
    if not isinstance(cache, Trie):
        most = min(matched, len(tokens) - 1)
        if most and any(not layer.cache.can_restore(None, most) for layer in layers):
            states.append("shortened")
        return states
    return [*states, *get_trie_states(tokens, matched, model, cache)]


def get_trie_states(
    tokens: list[int], matched: int, model: ConversationModel, trie: Trie
) -> list[str]:
    states = ["checkpoints"] if model.checkpoints else []
    most = min(matched, len(tokens) - 1)
    reuse = next(p for p in range(most, -1, -1) if trie.can_reach(tokens, p))
    live = count_common(tokens, trie.live)
    if is_captured_in_part(trie):
        states.append("captured-in-part")
    if reuse < most:
        states.append("shortened")
    if reuse and tuple(tokens[:reuse]) not in trie.points:
        states.append("inside-edge")
    if live < len(trie.live):
        states.append("leaves-live-path")
    if reuse > live:
        states.append("enters-another-path")
    return states


def is_captured_in_part(trie: Trie) -> bool:
    """Somewhere some layers were captured, but not all that need it."""
    needing = sum(not layer.can_be_cut for layer in trie.cached)
    return any(0 < len(point.captured) < needing for point in trie.points.values())


def get_slots_states(op: Op, model: SlotsModel) -> list[str]:
    states = ["several-open"] if len(model.users) > 1 else []
    tokens = list(op.get("tokens", ()))
    if not tokens or not is_plain(tokens):
        return states
    if len(model.users) >= model.config["slots"]:
        return [*states, "no-slot"]
    stored = model.list_stored()
    return [*states, judge_match(tokens, count_matched(tokens, stored), stored)]


CUT = ("kv", None)
"""Layers that can go back to any place."""


def list_prefix_states(kind: str, declared: Kind) -> Sequence[str]:
    """The states that generation must reach for a kind as it is declared."""
    has = declared.operations
    if kind == "slots":
        states: Mapping[str, bool] = dict.fromkeys((*MATCHES, *SLOTS_STATES), True)
        states = {**states, "broken-off": "break" in has}
    else:
        names = [*MATCHES, *CONVERSATION_STATES, *(TRIE_STATES if kind == "trie" else ())]
        models = declared.config.get("layers", ())
        specs = {spec for layers in models for spec in layers}
        captures = any(spec not in CUT for spec in specs) or not specs
        windows = any(spec and spec.startswith("rotating") for spec in specs)
        limits = "limit" in has
        states = dict.fromkeys(names, True) | {
            "shortened": captures,
            "ran-ahead": "break" in has,
            "wrapped": windows or not specs,
            "refusing": "refuse" in has,
            "broken-off": "break" in has,
            "freed": "free" in has,
            "inside-edge": kind == "trie",
            "checkpoints": "checkpoint" in has,
            "limit-while-open": limits,
            "evicted": limits,
            "capture-evicted": limits and captures,
            "captured-in-part": "break" in has and captures,
            "over-the-limit": limits,
        }
        states = {name: can for name, can in states.items() if name in names}
    return [state for state in STATES if states.get(state)]


MET = Unreachable(
    "tells what a request meets as it begins",
    (
        *MATCHES,
        *("one-token-left", "shortened", "ran-ahead", "wrapped", "refusing", "no-slot"),
        *("inside-edge", "leaves-live-path", "enters-another-path", "checkpoints"),
        "captured-in-part",
    ),
    only=("begin",),
)
LIMITED = Unreachable("tells when a limit comes", ("limit-while-open",), only=("limit",))
BROKEN = Unreachable(
    "is followed by the end of the request; no other one is open beside it",
    ("broken-off",),
    never=("feed", "break"),
)
BETWEEN = Unreachable(
    "lies between two requests, and there is nothing to compute",
    ("closed-untouched", "freed"),
    never=("feed", "break"),
)
MISUSE_ONLY = Unreachable(
    "is asked only to break a rule of usage", STATES, never=("open", "reserve", "commit")
)
NOTHING_TO_CLOSE = Unreachable(
    "lies between two requests, and to close none breaks a rule of usage",
    ("closed-untouched", "freed"),
    never=("close", "cancel"),
)


def list_unreachable(kind: str, declared: Kind) -> Sequence[Unreachable]:
    """Which of the states some operations never find."""
    rules = [MET, LIMITED]
    rules += [] if declared.refuses else [MISUSE_ONLY]
    if kind != "slots":
        rules += [BROKEN, BETWEEN, *([] if declared.refuses else [NOTHING_TO_CLOSE])]
    return rules
