"""The prefix contract: token lists above the caches of a model; session, trie, slots.

A new operation is one class in `operations`, a row in its table, and a method of the
model and of the system that carry it out. README.md says what each module holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Config, Op, Operation, iter_steps
from lockstep.harness.contracts.prefix import config as configs
from lockstep.harness.contracts.prefix import domain, drawing, shrinking
from lockstep.harness.contracts.prefix import states as situations
from lockstep.harness.contracts.prefix.conversations import (
    ConversationModel,
    ConversationSystem,
)
from lockstep.harness.contracts.prefix.operations import OPERATIONS
from lockstep.harness.contracts.prefix.sides import PrefixModel, PrefixSystem
from lockstep.harness.contracts.prefix.slots import SlotsModel, SlotsSystem
from lockstep.harness.core.document import Schema

SLOTS_METHODS = ("get_tokens", "get_remaining", "reserve", "commit")
"""The methods that slots need whatever is declared."""

BETWEEN = ("begin", "refuse", "checkpoint", "free")
"""The operations of conversations that are asked between two requests."""


class PrefixContract(Contract):
    name = "prefix"
    kinds = configs.KINDS
    config: ClassVar[Mapping[str, Schema]] = configs.CONFIG
    operations: ClassVar[Mapping[str, Operation]] = OPERATIONS
    weights: ClassVar[Mapping[str, int]] = {
        name: operation.weight for name, operation in OPERATIONS.items()
    }
    required = ("begin", "feed", "close")
    states = tuple(situations.STATES)
    opt_in = frozenset({"interval"})
    facts = ("whole",)

    why_not = staticmethod(configs.why_not_config)
    draw_config = staticmethod(configs.draw_config)
    draw_reach = staticmethod(drawing.draw_reach)
    propose_misuse = staticmethod(drawing.draw_misuse)
    get_domain = staticmethod(domain.get_domain)
    get_states = staticmethod(situations.get_states)
    list_states = staticmethod(situations.list_states)
    list_unreachable = staticmethod(situations.list_unreachable)
    merge_operations = staticmethod(shrinking.merge_feeds)
    simplify = staticmethod(shrinking.simplify)
    rename = staticmethod(shrinking.rename)

    def list_errors(self, kinds: Iterable[str]) -> Sequence[str]:
        """Only slots refuse anything: what their cache refuses, and a lack of slots."""
        refusals = ("cache-full", "not-supported", "shared", "no-slot")
        return refusals if "slots" in kinds else ()

    def list_operations(self, kind: str) -> Sequence[str]:
        return [name for name, each in OPERATIONS.items() if kind in each.kinds]

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        methods = [OPERATIONS[name].get_method() for name in operations]
        own = SLOTS_METHODS if kind == "slots" else ()
        return [method for method in dict.fromkeys((*methods, *own)) if method]

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
        return shrinking.simplify_config(config, ops, count_stored)

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
