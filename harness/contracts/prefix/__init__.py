"""The prefix contract: token lists above the caches of a model; session, trie, slots.

`config`: the config, and those of the caches below. `conversations`, `slots`: the
reference of sessions and tries, and of slots. `requests`, `store`, `wrong`: one class for
each operation. `drawing`, `misuse`: how requests are drawn. `states`: what generation
should reach. `domain`: small worlds. `subject`, `slots_subject`, `watch`: a backend's
side. `simpler`: what makes a program simpler. Here: how they make a contract, and how
programs are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts.base import Contract, Operation
from lockstep.harness.contracts.domain import Domain
from lockstep.harness.contracts.prefix import config as configs
from lockstep.harness.contracts.prefix import (
    domain,
    drawing,
    misuse,
    operations,
    simpler,
    states,
)
from lockstep.harness.contracts.prefix.conversations import ConversationModel, open_layer
from lockstep.harness.contracts.prefix.operation import ABSENT
from lockstep.harness.contracts.prefix.slots import SlotsModel
from lockstep.harness.contracts.prefix.slots_subject import SlotsSubject
from lockstep.harness.contracts.prefix.subject import ConversationSubject
from lockstep.harness.contracts.types import Held, Op, Source, Unreachable
from lockstep.harness.core.fields import Schema
from lockstep.reference.layers import Layer

Model = ConversationModel | SlotsModel

WEIGHTS = {
    "begin": 9,
    "feed": 12,
    "close": 9,
    "cancel": 2,
    "checkpoint": 2,
    "limit": 3,
    "break": 2,
}
"""How often an operation is drawn against the others, which have 1."""

MODELS: Sequence[Sequence[str | None]] = (
    ["kv"],
    ["kv", "rotating:4"],
    ["kv", "state"],
    ["rotating:2"],
    ["kv", None, "rotating:3", "state"],
    ["state"],
    ["kv", "kv"],
    ["rotating:8", "kv"],
    ["state", "rotating:1"],
    ["rotating:5", "rotating:2"],
    ["rotating:2", "state"],
    [None],
)
"""The layers of a model under a session or a trie, as models combine them."""

POOLS: Sequence[Sequence[str]] = (
    ["causal"],
    ["swa:2"],
    ["causal", "swa:3"],
    ["swa-memory:2:5"],
    ["recurrent"],
    ["chunked:3"],
    ["causal", "recurrent"],
    ["causal", "encoder"],
    ["swa:6"],
)
"""The layers of a model under slots."""

CHOICES: Mapping[str, Sequence[Any]] = {
    "interval": (None, None, 1, 2, 3, 5),
    "slots": (1, 2, 3, 2, 4),
    "context": (8, 4, 5, 6, 12, 16, 3),
    "keep": (0, 1, 2, 3, 0),
    "several_users": (False, True),
    "step": (4, 1, 2, 256),
    "heads": (1, 2, 1),
    "key_dim": (4, 6),
    "value_dim": (4, 6),
    "conv_width": (4, 2),
    "dtype": ("float32", "float16", "bfloat16"),
    "shift": (True, True, True, False),
}
"""What is drawn for a field of the config, the simplest first."""

LIMITS = (None, None, None, 24, 8, 14, 40, 3, 24, 14, 0)
"""Of the bytes that a trie may store: as many as so many tokens take, stored as one path
in all layers."""

TOKENS_A_CAPTURE = 6
"""Captures are so far apart where conversations end and part."""

METHODS = {
    "feed": "extend",
    "limit": "set_limit",
    "count": "count_tokens",
    **dict.fromkeys(("break", "refuse", "checkpoint", "open"), ""),
}
"""What a backend needs for an operation, if it is not a method of the same name."""

OWN = {
    "slots": (*configs.SLOTS_ONLY, "interval"),
    "trie": (*configs.TRIE_ONLY, "interval"),
    "session": (),
}
"""The fields that do not belong to every kind."""


class PrefixContract(Contract):
    name = "prefix"
    kinds = (*configs.CONVERSATIONS, "slots")
    config: ClassVar[Mapping[str, Schema]] = configs.CONFIG
    operations: ClassVar[Mapping[str, Operation]] = operations.OPERATIONS
    weights = WEIGHTS
    required = ("begin", "feed", "close")
    states = states.STATES
    opt_in = frozenset({"interval"})
    facts = ("whole",)

    def list_errors(self, kinds: Iterable[str]) -> Sequence[str]:
        """Only slots refuse anything: what their cache refuses, and a lack of slots."""
        refusals = ("cache-full", "not-supported", "shared", "no-slot")
        return refusals if "slots" in kinds else ()

    def why_not(self, config: Mapping[str, Any]) -> str | None:
        return configs.why_not_config(config)

    def list_operations(self, kind: str) -> Sequence[str]:
        absent = ABSENT[kind]
        return [name for name in self.operations if name not in absent]

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        methods = [METHODS.get(name, name) for name in operations]
        if kind == "slots":
            methods += ["get_tokens", "get_remaining", "reserve", "commit"]
        return [method for method in dict.fromkeys(methods) if method]

    def draw_config(self, source: Source, kind: str, declared: Kind) -> dict[str, Any]:
        """Fields that a backend does not name take any value of CHOICES, or their
        default if they are not in it."""
        config: dict[str, Any] = {
            name: schema.get("default") for name, schema in self.config.items()
        }
        config["kind"] = kind
        others = {name for own in OWN.values() for name in own} - set(OWN[kind])
        for name in self.config:
            if name in others:
                continue
            chosen = () if name in self.opt_in else CHOICES.get(name, ())
            if name == "layers":
                chosen = POOLS if kind == "slots" else MODELS
            options = declared.config.get(name, chosen)
            if name == "keep":
                options = [keep for keep in options if keep < config["context"]]
            if options:
                config[name] = source.pick(list(options))
        if kind == "slots" and "recurrent" not in config["layers"]:
            config["interval"] = None
        if kind == "trie" and "limit" in declared.operations:
            config["limit"] = draw_limit(source, config)
        return config

    def draw_reach(self, source: Source, model: Model) -> None:
        drawing.draw_reach(source, model)

    def propose_misuse(
        self, source: Source, model: Model, operations: Sequence[str]
    ) -> Op | None:
        return misuse.draw_misuse(source, model, operations)

    def open_model(self, config: Mapping[str, Any], rows: bool = True) -> Model:
        is_slots = config["kind"] == "slots"
        return SlotsModel(config, rows) if is_slots else ConversationModel(config, rows)

    def open_cache(self, backend: Backend, config: Mapping[str, Any]) -> Any:
        return self.open_subject(backend, config, (), False).cache

    def open_subject(
        self, backend: Backend, config: Mapping[str, Any], ops: Sequence[Op], every: bool
    ) -> ConversationSubject | SlotsSubject:
        tags = self.count_tokens(ops)
        if config["kind"] == "slots":
            return SlotsSubject(backend, config, tags, every)
        return ConversationSubject(backend, config, tags, every)

    def get_states(self, op: Op, model: Model) -> Sequence[str]:
        return states.get_prefix_states(op, model)

    def get_facts(self, op: Op, model: Model) -> Mapping[str, int]:
        """whole: 1 if something is stored that ends with
        the last of these: a request did, or was captured, or parted there."""
        return {"whole": int(op.get("tokens") in model.list_stored())}

    def list_live(self, model: Model) -> Mapping[int, int]:
        return model.list_live()

    def list_held(self, op: Op, model: Model) -> Sequence[Held]:
        return model.list_held()

    def list_states(self, kind: str, declared: Kind) -> Sequence[str]:
        return states.list_prefix_states(kind, declared)

    def list_unreachable(self, kind: str, declared: Kind) -> Sequence[Unreachable]:
        return states.list_unreachable(kind, declared)

    def get_tag_dimension(self, config: Mapping[str, Any]) -> int:
        return int(min(config["key_dim"], config["value_dim"]))

    def count_layers(self, config: Mapping[str, Any]) -> int:
        return len(config["layers"])

    def merge_operations(self, first: Op, second: Op) -> Op | None:
        return simpler.merge_feeds(first, second)

    def simplify(self, ops: Sequence[Op]) -> Iterator[list[Op]]:
        return simpler.simplify(ops)

    def propose_configs(
        self, config: Mapping[str, Any], ops: Sequence[Op]
    ) -> Iterator[tuple[Mapping[str, Any], Sequence[Op]]]:
        return simpler.simplify_config(config, ops)

    def rename(self, ops: Sequence[Op]) -> list[Op]:
        return simpler.rename(ops)

    def get_domain(self, kind: str, size: str) -> Domain:
        return domain.get_domain(kind, size)

    def complete_move(self, move: Op, model: Model) -> Op | None:
        """None where a request must be open and is not, or the other way round."""
        name = move["op"]
        if isinstance(model, ConversationModel):
            is_open = model.cache.request is not None
            if name in ("close", "cancel") if not is_open else name in BETWEEN:
                return None
        return {**self.operations[name].get_defaults(), **move}


BETWEEN = ("begin", "refuse", "checkpoint", "free")
"""The operations of conversations that are asked between two requests."""


def draw_limit(source: Source, config: Mapping[str, Any]) -> int | None:
    """Tiny limits, for much to be evicted."""
    tokens = source.pick(LIMITS)
    if tokens is None:
        return None
    layers = [layer for spec in config["layers"] if (layer := open_layer(config, spec))]
    return sum(count_bytes(layer, tokens) for layer in layers)


def count_bytes(layer: Layer, tokens: int) -> int:
    """Of a path of so many tokens; if the layer cannot be cut, of some captures on it."""
    captures = 1 if layer.can_be_cut else 1 + tokens // TOKENS_A_CAPTURE
    return layer.count_bytes(0, tokens) * captures


PREFIX = PrefixContract()
