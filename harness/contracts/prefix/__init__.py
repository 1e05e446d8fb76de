"""The prefix contract: token lists above the caches of a model; session, trie, slots.

To add an operation, write its class in `operations`, put it in the table there, and add a
method of that name to the model and to the system. README.md lists the modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts.contract import Contract, Domain, Renaming, join
from lockstep.harness.contracts.operation import Config, Op, Source, iter_steps
from lockstep.harness.contracts.prefix.conversations import (
    ConversationModel,
    ConversationSystem,
)
from lockstep.harness.contracts.prefix.drawing import draw_misuse, draw_reach
from lockstep.harness.contracts.prefix.model import (
    CHOICES,
    CONFIG,
    KINDS,
    LIMITS,
    MODELS,
    OWNERS,
    POOLS,
    PrefixModel,
    PrefixSystem,
    count_path_bytes,
    why_illegal_config,
)
from lockstep.harness.contracts.prefix.operations import OPERATIONS
from lockstep.harness.contracts.prefix.shrinking import (
    merge_feeds,
    rename,
    rename_token,
    simplify,
    simplify_config,
)
from lockstep.harness.contracts.prefix.slots import SlotsModel, SlotsSystem
from lockstep.harness.contracts.prefix.states import (
    STATES,
    get_states,
    list_states,
    list_unreachable,
)

# --- small worlds: two tokens, two layers, two users ------------------------------------


ALL = 8
"""More tokens than any request has, so that a pass computes all that remain."""

Choices = Mapping[str, Sequence[Any]]

CONVERSATION: Choices = {"layers": [["kv", "rotating:2"]], "step": [2]}
DEEP: Choices = {"layers": [["rotating:3", None, "kv", "state"]], "step": [2]}

CONFIGS: Mapping[str, Choices] = {
    "session": CONVERSATION,
    "trie": CONVERSATION,
    "slots": {"layers": [["causal"]], "slots": [2], "context": [4]},
}
LARGER: Mapping[str, Choices] = {
    "session": {**DEEP, "heads": [2]},
    "trie": {**DEEP, "interval": [2]},
    "slots": {"layers": [["causal", "swa:3"]], "slots": [2], "context": [5], "keep": [1]},
}


def begin(*tokens: int) -> Op:
    return {"op": "begin", "tokens": [*tokens], "user": "a"}


def feed(count: int, *generated: int) -> Op:
    return {"op": "feed", "count": count, "generate": [*generated], "user": "a"}


def break_off(count: int, layers: int) -> Op:
    return {"op": "break", "count": count, "layers": layers, "user": "a"}


def refuse(*layers: int, raising: bool = False) -> Op:
    return {"op": "refuse", "layers": [*layers], "raising": raising}


def checkpoint(*offsets: int) -> Op:
    return {"op": "checkpoint", "offsets": [*offsets]}


def limit(size: int | None) -> Op:
    return {"op": "limit", "bytes": size}


def for_both(*moves: Op) -> tuple[Op, ...]:
    """Lists each move of user a, and the same of user b."""
    return join(moves, [{**move, "user": "b"} for move in moves])


CLOSE: Op = {"op": "close", "user": "a"}
CANCEL: Op = {"op": "cancel", "user": "a"}
SHORT = begin(1, 2), begin(2, 1)
LONG = begin(1, 2, 1), begin(2, 1, 2)
OTHERS = begin(1), begin(2), begin(1, 1, 2, 2), begin(2, 2, 1, 1)

TINY: Sequence[Op] = join(
    SHORT, LONG, (feed(1), feed(ALL), feed(ALL, 1), feed(ALL, 2), CLOSE)
)
SMALL: Sequence[Op] = join(
    TINY,
    (CANCEL, break_off(1, 0), break_off(2, 1), refuse(0), refuse(0, 1, raising=True)),
    ({"op": "count"}, {"op": "free"}, checkpoint(1), checkpoint(2)),
    (limit(128), limit(None)),
)
STANDARD: Sequence[Op] = join(
    SMALL,
    OTHERS,
    (feed(0, 1), feed(0, 2), feed(2), break_off(1, 2), refuse(2), checkpoint(1, 3)),
    (limit(0), limit(256)),
)
"""A session keeps one path and has no limit: `fit` leaves out the moves that a kind does
not have."""

TINY_SLOTS: Sequence[Op] = for_both(*SHORT, feed(ALL), CLOSE)
SMALL_SLOTS: Sequence[Op] = join(
    TINY_SLOTS,
    for_both(*LONG, feed(1), feed(ALL, 1), feed(ALL, 2)),
    for_both(CANCEL, break_off(1, 0)),
    (refuse(),),
)
MORE_FEEDS = feed(2, 1, 2), feed(2, 2, 1), feed(0, 1), feed(0, 2)
STANDARD_SLOTS: Sequence[Op] = join(
    SMALL_SLOTS, for_both(*OTHERS, *MORE_FEEDS, break_off(2, 1))
)
MOVES = {"tiny": TINY, "small": SMALL, "standard": STANDARD}
SLOTS_MOVES = {"tiny": TINY_SLOTS, "small": SMALL_SLOTS, "standard": STANDARD_SLOTS}

USERS = {"a": "b", "b": "a"}


def exchange_tokens(op: Op) -> Op:
    return rename_token(op, {1: 2, 2: 1})


def exchange_users(op: Op) -> Op:
    return {**op, "user": USERS[op["user"]]} if "user" in op else op


RENAMINGS: Sequence[Renaming] = (
    exchange_tokens,
    exchange_users,
    lambda op: exchange_tokens(exchange_users(op)),
)


def get_domain(kind: str, size: str) -> Domain:
    config = LARGER if size == "standard" else CONFIGS
    moves = SLOTS_MOVES if kind == "slots" else MOVES
    return Domain(config[kind], moves[size], RENAMINGS)


# --- the contract -----------------------------------------------------------------------


SLOTS_METHODS = ("get_tokens", "get_remaining", "reserve", "commit")
"""The methods that slots always need, whatever is declared."""

BETWEEN = ("begin", "refuse", "checkpoint", "free")
"""The operations that a session or a trie runs between two requests only."""


class PrefixContract(Contract):
    name = "prefix"
    kinds = KINDS
    config = CONFIG
    choices = CHOICES
    operations = OPERATIONS
    required = ("begin", "feed", "close")
    states = tuple(STATES)
    errors = ("cache-full", "not-supported", "shared", "no-slot")
    opt_in = frozenset({"interval", "scope"})
    rare = ("freed",)
    depth = 3
    facts: ClassVar[Mapping[str, str]] = {
        "beyond": "tokens that the conversation which was closed last, of those that"
        " begin with the request, has behind it; null if there is none",
    }
    why_illegal = staticmethod(why_illegal_config)
    draw_reach = staticmethod(draw_reach)
    propose_misuse = staticmethod(draw_misuse)
    get_domain = staticmethod(get_domain)
    get_states = staticmethod(get_states)
    list_states = staticmethod(list_states)
    list_unreachable = staticmethod(list_unreachable)
    merge_operations = staticmethod(merge_feeds)
    simplify = staticmethod(simplify)
    rename = staticmethod(rename)

    def list_errors(self, kinds: Iterable[str]) -> Sequence[str]:
        """Lists the refusals of slots: of their cache, and no-slot. Others have none."""
        return self.errors if "slots" in kinds else ()

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        own = SLOTS_METHODS if kind == "slots" else ()
        return list(dict.fromkeys((*super().list_methods(kind, operations), *own)))

    def list_options(self, name: str, config: Config, declared: Kind) -> Sequence[Any]:
        kind = config["kind"]
        if kind not in OWNERS.get(name, KINDS):
            return ()
        if name == "layers":
            return declared.config.get(name, POOLS if kind == "slots" else MODELS)
        options = super().list_options(name, config, declared)
        if name == "keep":
            return [keep for keep in options if keep < config["context"]]
        return options

    def draw_config(self, source: Source, kind: str, declared: Kind) -> dict[str, Any]:
        config = super().draw_config(source, kind, declared)
        if kind == "slots" and "recurrent" not in config["layers"]:
            config["interval"] = None
        if kind == "trie" and "limit" in declared.operations:
            tokens = source.pick(LIMITS)
            config["limit"] = None if tokens is None else count_path_bytes(config, tokens)
        return config

    def open_model(self, config: Config, rows: bool = True) -> PrefixModel:
        is_slots = config["kind"] == "slots"
        return SlotsModel(config, rows) if is_slots else ConversationModel(config, rows)

    def open_cache(self, backend: Backend, config: Config) -> Any:
        return self.open_system(backend, config, (), False).cache

    def open_system(
        self, backend: Backend, config: Config, ops: Sequence[Op], every: bool
    ) -> PrefixSystem:
        is_slots = config["kind"] == "slots"
        system = SlotsSystem if is_slots else ConversationSystem
        return system(backend, config, self.count_tags(ops), every)

    def get_tag_dimension(self, config: Config) -> int:
        return int(min(config["key_dim"], config["value_dim"]))

    def count_layers(self, config: Config) -> int:
        return len(config["layers"])

    def propose_configs(
        self, config: Config, ops: Sequence[Op]
    ) -> Iterator[tuple[Config, Sequence[Op]]]:
        return simplify_config(config, ops, count_stored)

    def complete_move(self, move: Op, model: PrefixModel) -> Op | None:
        """Returns None where a request must be open and is not, or the reverse."""
        wrong = BETWEEN if model.is_open("a") else ("close", "cancel")
        if not model.has_users and move["op"] in wrong:
            return None
        return super().complete_move(move, model)


def count_stored(config: Config, ops: Sequence[Op]) -> int:
    """Counts the bytes that a trie stores after these operations."""
    model = ConversationModel(config, rows=False)
    for step in iter_steps(OPERATIONS, model, ops):
        step.finish()
    return int(model.describe_store()["bytes"])


PREFIX = PrefixContract()
