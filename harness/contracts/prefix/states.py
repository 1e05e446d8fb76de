"""Defines the abstract states of prefix caches."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.prefix.conversations import ConversationModel
from lockstep.harness.contracts.prefix.model import PrefixModel
from lockstep.harness.contracts.states import (
    State,
    StateTable,
    list_true,
    make_states,
    never,
    only,
)
from lockstep.reference.layers import count_common
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.trie import Trie

MET = (
    # A request compared with the stored paths.
    *make_states("nothing-stored repeat shorter extension divergence no-match"),
    # A request in the layers, in a trie, or in slots.
    State("one-token-left", needs="layers"),
    State("shortened", needs="layers captures"),
    State("ran-ahead", needs="layers break"),
    State("wrapped", needs="layers windows"),
    State("refusing", needs="layers refuse"),
    *make_states("inside-edge leaves-live-path enters-another-path", "trie"),
    State("checkpoints", needs="trie checkpoint"),
    State("captured-in-part", needs="trie break captures"),
    State("no-slot", needs="slots"),
)
"""The states that occur only before `begin`."""

NOTED = (
    State("broken-off", needs="break"),
    *make_states("overran all-computed", "layers overrun"),
    State("closed-untouched", needs="layers"),
    State("freed", needs="layers free"),
    State("refused", needs="trie refuse"),  # and nothing is computed since
    *make_states("limit-while-open evicted", "trie limit"),
    State("capture-evicted", needs="trie limit captures"),
    State("over-the-limit", needs="trie limit"),
    *make_states("several-open forked forked-from-in-use began-anew", "slots"),
    *make_states("moved-up computed-again", "slots"),
)
STATES = (*MET, *NOTED)
RULES = (
    only(
        "tells what a request meets as it begins",
        *(" ".join(state.name for state in MET), "begin"),
    ),
    only(
        "tells how far a request got before its end",
        *("all-computed", "overrun close cancel"),
    ),
    only("tells when a limit comes", "limit-while-open", "limit"),
    never("all tokens of the request remain", "refused", "overrun"),
    never(
        "is asked only to break a rule of usage",
        *(" ".join(state.name for state in STATES), "open reserve commit"),
        unless="refuses",
    ),
    never(
        "is followed by the end of the request; no other one is open beside it",
        *("broken-off overran", "feed break overrun"),
        needs="layers",
    ),
    never(
        "lies between two requests, and there is nothing to compute",
        *("closed-untouched freed", "feed break overrun"),
        needs="layers",
    ),
    never(
        "lies between two requests, and to close none breaks a rule of usage",
        *("closed-untouched freed", "close cancel"),
        needs="layers",
        unless="refuses",
    ),
)
TABLE = StateTable(STATES, RULES)


def list_features(kind: str, declared: Kind) -> set[str]:
    """Lists the features of a kind.

    "layers": a session or a trie; "captures": a layer that cannot go back to every
    offset; "windows": a layer with a window.
    """
    models = declared.config.get("layers", ())
    specs = {spec for layers in models for spec in layers}
    features = {
        "layers": kind != "slots",
        "captures": not specs or not specs <= {"kv", None},
        "windows": not specs or any(spec and "rotating" in spec for spec in specs),
    }
    return set(list_true(features))


# --- judging ----------------------------------------------------------------------------


def get_states(op: Op, model: PrefixModel) -> Sequence[str]:
    """Returns the names of the abstract states that the cache has before `op` runs."""
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
    users = len(model.users)
    states += ["several-open"] if users > 1 else []
    if begins and users >= model.config["slots"]:
        states.append("no-slot")
    elif begins:
        states.append(judge_match(tokens, *match(tokens, model)))
    return states


def match(tokens: list[int], model: PrefixModel) -> tuple[int, Sequence[list[int]]]:
    """Returns the length of the longest stored prefix of the tokens, and all stored
    conversations."""
    stored = model.list_stored()
    return max([count_common(tokens, path) for path in stored], default=0), stored


def judge_match(tokens: list[int], matched: int, stored: Sequence[list[int]]) -> str:
    """Returns the state of a request, from the result of `match`."""
    if not stored:
        return "nothing-stored"
    if matched == 0:
        return "no-match"
    if matched < len(tokens):
        return "extension" if tokens[:matched] in stored else "divergence"
    return "repeat" if tokens in stored else "shorter"


def get_begin_states(tokens: list[int], model: ConversationModel) -> list[str]:
    """Returns the names of the states of the layers before a request begins."""
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
    """Returns the names of the states of a trie before a request begins.

    Args:
        tokens: the tokens of the request.
        most: how many of these tokens the layers could reuse if each layer could go back
            to any offset.
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
    """Tells whether a path has a capture of one layer, but lacks a capture of another
    layer that needs one."""
    needing = sum(not layer.can_be_cut for layer in trie.cached)
    return any(0 < len(point.captured) < needing for point in trie.points.values())
