"""The serving contract: an inference engine as its users see it.

The engine serves a probe model, whose answers name the tokens that its caches hold.

* `model` defines the config and the reference model.
* `system` runs programs on an engine.
* `operations` defines one class for each operation; `drawing` draws requests.
* `states` defines the abstract states.
* `rewrites` yields simpler programs for shrinking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.probe import KINDS, WINDOWED, get_probe
from lockstep.harness.contracts.answers import read_object
from lockstep.harness.contracts.contract import Contract, Domain, read_moves
from lockstep.harness.contracts.operation import Config, Op
from lockstep.harness.contracts.rewrites import name_letter
from lockstep.harness.contracts.serving.drawing import complete
from lockstep.harness.contracts.serving.model import (
    CHOICES,
    CONFIG,
    ServingModel,
    why_illegal_config,
)
from lockstep.harness.contracts.serving.operations import OPERATIONS
from lockstep.harness.contracts.serving.rewrites import REWRITES, propose_configs
from lockstep.harness.contracts.serving.states import TABLE, get_states, list_features
from lockstep.harness.contracts.serving.system import ServingSystem

MOVES = read_moves(
    "complete request=a new=4 head=0 back=2; complete request=b new=3 head=0 back=3;"
    " complete request=b of=a pieces=[[0,3]] new=1 head=0 back=1; run;"
    " queue request=c of=a pieces=[[0,2],[3,4]] head=1 back=2;"
    " begin request=d new=5 count=3; read request=d count=2; abort request=d; flush"
)
SIZES = {"tiny": 3, "small": len(MOVES)}


class ServingContract(Contract):
    name = "serving"
    kinds = KINDS
    config = CONFIG
    choices = CHOICES
    opt_in = frozenset({"slots", "keep", "scope"})
    operations = OPERATIONS
    required = ("complete",)
    table = TABLE
    next: ClassVar[Mapping[str, Sequence[str]]] = {
        "queue": ("queue", "run"),
        "begin": ("read", "complete", "abort", "begin"),
        "abort": ("complete",),
        "flush": ("complete",),
        "save": ("complete", "restore"),
        "restore": ("complete",),
    }
    letters: ClassVar[Mapping[str, Any]] = {"request": name_letter, "saved": "s{}".format}
    counted: ClassVar[Mapping[str, tuple[Any, ...]]] = {"slots": (2,)}
    facts: ClassVar[Mapping[str, str]] = {
        "shared": "first tokens of the prompt that an earlier request has, too",
        "length": "tokens of the prompt, with the ask",
    }
    rewrites = REWRITES
    has_arrays = tells_memory = False
    without_attention = KINDS
    model = staticmethod(ServingModel)
    system = staticmethod(ServingSystem)
    why_illegal = staticmethod(why_illegal_config)
    get_states = staticmethod(get_states)
    propose_configs = staticmethod(propose_configs)

    def list_options(self, name: str, config: Config, declared: Kind) -> Sequence[Any]:
        if name == "window" and config["kind"] not in WINDOWED:
            return ()
        return super().list_options(name, config, declared)

    def open_cache(self, backend: Backend, config: Config) -> Any:
        engine = backend.open({**config, "poison": backend.poison})
        return read_object(engine, ("complete", "close"), "open", "an engine")

    def get_tag_dimension(self, config: Config) -> int:
        return 0  # tags are ids of tokens

    def count_numbers(self, config: Config) -> int:
        return 1

    def list_features(self, kind: str, declared: Kind) -> set[str]:
        config = self.get_plain_config(kind, declared, ("float32",))
        return list_features(get_probe(config), declared)

    def merge_operations(self, first: Op, second: Op) -> Op | None:
        return None

    def get_domain(self, kind: str, size: str) -> Domain:
        moves = [
            {**move, **complete(move)} if "new" in move or "of" in move else move
            for move in MOVES[: SIZES[size]]
        ]
        return Domain({"context": [32], "content": [64]}, moves)


SERVING = ServingContract()
