"""The prefix contract: session, trie and slots, which store token lists and create the
caches of a model's layers.

To add an operation, write its class in `operations`, add an instance to `OPERATIONS`, and
add a method with the operation's name to the model and to the system. README.md lists the
modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Config, Op, Source, iter_steps
from lockstep.harness.contracts.prefix.conversations import (
    ConversationModel,
    ConversationSystem,
)
from lockstep.harness.contracts.prefix.domain import get_domain
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
from lockstep.harness.contracts.prefix.rewrites import (
    REWRITES,
    merge_feeds,
    rename,
    simplify_config,
)
from lockstep.harness.contracts.prefix.slots import SlotsModel, SlotsSystem
from lockstep.harness.contracts.prefix.states import TABLE, get_states, list_features
from lockstep.harness.contracts.system import Setup

SLOTS_METHODS = ("get_tokens", "get_remaining", "reserve", "commit")
"""The methods that slots always need, independently of declared operations."""

BETWEEN = ("begin", "refuse", "checkpoint", "free")
"""The operations that a session or a trie runs only between two requests."""


def open_model(config: Config, rows: bool) -> PrefixModel:
    return (SlotsModel if config["kind"] == "slots" else ConversationModel)(config, rows)


def open_system(setup: Setup) -> PrefixSystem:
    is_slots = setup.config["kind"] == "slots"
    return (SlotsSystem if is_slots else ConversationSystem)(setup)


class PrefixContract(Contract):
    name = "prefix"
    kinds = KINDS
    config = CONFIG
    choices = CHOICES
    operations = OPERATIONS
    required = ("begin", "feed", "close")
    table = TABLE
    model = staticmethod(open_model)
    system = staticmethod(open_system)
    rewrites = REWRITES
    errors = ("cache-full", "not-supported", "shared", "no-slot")
    opt_in = frozenset({"interval", "scope"})
    rare = ("freed",)
    depth = 3
    tells_memory = False
    settings: ClassVar[Mapping[str, tuple[Any, ...]]] = {"interval": (None, 1, 2, 3)}
    facts: ClassVar[Mapping[str, str]] = {
        "beyond": "tokens that the conversation which was closed last, of those that"
        " begin with the request, has behind it; null if there is none",
        "matched": "tokens that the request has in common with a closed conversation, at"
        " most; null if a closed conversation begins with the request",
        "whole": "tokens of the longest closed conversation that begins the request",
        "asked": "tokens of the request",
    }
    why_illegal = staticmethod(why_illegal_config)
    draw_reach = staticmethod(draw_reach)
    propose_misuse = staticmethod(draw_misuse)
    get_domain = staticmethod(get_domain)
    get_states = staticmethod(get_states)
    list_features = staticmethod(list_features)
    merge_operations = staticmethod(merge_feeds)
    rename = staticmethod(rename)

    def list_errors(self, kinds: Iterable[str]) -> Sequence[str]:
        """Lists the names of the errors that a kind may answer.

        Slots have "no-slot" and the errors of the unified cache; other kinds have none.
        """
        return self.errors if "slots" in kinds else ()

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        methods = super().list_methods(kind, operations)
        return list(
            dict.fromkeys((*methods, *(SLOTS_METHODS if kind == "slots" else ())))
        )

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

    def open_cache(self, backend: Backend, config: Config) -> Any:
        return self.open_system(backend, config, (), False).cache

    def get_tag_dimension(self, config: Config) -> int:
        return int(min(config["key_dim"], config["value_dim"]))

    def count_layers(self, config: Config) -> int:
        return len(config["layers"])

    def propose_configs(
        self, config: Config, ops: Sequence[Op]
    ) -> Iterator[tuple[Config, Sequence[Op]]]:
        return simplify_config(config, ops, count_stored)

    def draw_operation(
        self, source: Source, model: PrefixModel, operations: Sequence[str]
    ) -> Op | None:
        """Draws an operation. After a refusal of layers, half of the draws set a limit or
        end the request, because the refusal changes the order of eviction only until the
        request computes tokens.
        """
        if "refused" in model.past and source.below(2):
            ending = [name for name in ("limit", "cancel", "close") if name in operations]
            operations = ending or operations
        return super().draw_operation(source, model, operations)

    def complete_move(self, move: Op, model: PrefixModel) -> Op | None:
        """Completes a move; see `Contract.complete_move`.

        Also returns None if the move needs an open request and none is open, or must not
        run during a request and one is open.
        """
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
