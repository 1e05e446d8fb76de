"""The prefix contract: token lists above the caches of a model; session, trie, slots.

A new operation is one class in `operations`, a row in its table, and a method of the
model and of the system that carry it out. README.md says what each module holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Config, Op, Source, iter_steps
from lockstep.harness.contracts.prefix.config import (
    CHOICES,
    CONFIG,
    KINDS,
    LIMITS,
    MODELS,
    OWNERS,
    POOLS,
    count_path_bytes,
    why_not_config,
)
from lockstep.harness.contracts.prefix.conversations import (
    ConversationModel,
    ConversationSystem,
)
from lockstep.harness.contracts.prefix.domain import get_domain
from lockstep.harness.contracts.prefix.drawing import draw_misuse, draw_reach
from lockstep.harness.contracts.prefix.operations import OPERATIONS
from lockstep.harness.contracts.prefix.shrinking import (
    merge_feeds,
    rename,
    simplify,
    simplify_config,
)
from lockstep.harness.contracts.prefix.sides import PrefixModel, PrefixSystem
from lockstep.harness.contracts.prefix.slots import SlotsModel, SlotsSystem
from lockstep.harness.contracts.prefix.states import (
    STATES,
    get_states,
    list_states,
    list_unreachable,
)

SLOTS_METHODS = ("get_tokens", "get_remaining", "reserve", "commit")
"""The methods that slots need whatever is declared."""

BETWEEN = ("begin", "refuse", "checkpoint", "free")
"""The operations of conversations that are asked between two requests."""


class PrefixContract(Contract):
    name = "prefix"
    kinds = KINDS
    config = CONFIG
    choices = CHOICES
    operations = OPERATIONS
    required = ("begin", "feed", "close")
    states = tuple(STATES)
    opt_in = frozenset({"interval"})
    facts = ("whole",)
    why_not = staticmethod(why_not_config)
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
        """Only slots refuse anything: what their cache refuses, and a lack of slots."""
        refusals = ("cache-full", "not-supported", "shared", "no-slot")
        return refusals if "slots" in kinds else ()

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        methods = [OPERATIONS[name].get_method() for name in operations]
        own = SLOTS_METHODS if kind == "slots" else ()
        return [method for method in dict.fromkeys((*methods, *own)) if method]

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
        return system(backend, config, self.count_tokens(ops), every)

    def get_tag_dimension(self, config: Config) -> int:
        return int(min(config["key_dim"], config["value_dim"]))

    def count_layers(self, config: Config) -> int:
        return len(config["layers"])

    def propose_configs(
        self, config: Config, ops: Sequence[Op]
    ) -> Iterator[tuple[Config, Sequence[Op]]]:
        return simplify_config(config, ops, count_stored)

    def complete_move(self, move: Op, model: PrefixModel) -> Op | None:
        """None where a request must be open and is not, or the other way round."""
        wrong = BETWEEN if model.is_open("a") else ("close", "cancel")
        if not model.has_users and move["op"] in wrong:
            return None
        return super().complete_move(move, model)


def count_stored(config: Config, ops: Sequence[Op]) -> int:
    """The bytes that a trie stores after these operations."""
    model = ConversationModel(config, rows=False)
    for step in iter_steps(OPERATIONS, model, ops):
        step.finish()
    return int(model.describe_store()["bytes"])


PREFIX = PrefixContract()
