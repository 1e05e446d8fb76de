"""Our block manager without a framework, for mistakes that are planted in it, and the
operations of programs that show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Op
from lockstep.harness.programs.program import Program
from lockstep.impl.shared.operations import PAGED_OPERATIONS
from lockstep.impl.shared.paged_facts import Telling, share_out
from tests.harness.building import make as make_program
from tests.harness.misbehaving import correct

TOLD = frozenset({"pool", "entries", "events", "slots"})
FULL = {"type": "full", "layers": 1}
GROUPS = (
    [{**FULL, "block": 2}],
    [{**FULL, "block": 3}],
    [{**FULL, "block": 2}, {**FULL, "block": 2}],
)

RUN: Op = {"op": "run"}


def open_request(name: str, *tokens: int, **fields: Any) -> Op:
    return {"op": "open", "request": name, "tokens": list(tokens), **fields}


def ask(op: str, name: str, **fields: Any) -> Op:
    return {"op": op, "request": name, **fields}


def fork(source: str, target: str, *tokens: int) -> Op:
    return {"op": "fork", "source": source, "target": target, "tokens": list(tokens)}


def make(*ops: Op, **config: Any) -> Program:
    """A program; its kind is that of its groups, or paged-full."""
    types = {group["type"] for group in config.get("groups", [FULL])}
    kind = f"paged-{types.pop()}" if len(types) == 1 else "paged-hybrid"
    return make_program(*ops, contract="paged", **{"kind": kind, **config})


class Manager(Telling):
    """Opened with a config, as by a backend."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        names = (
            "blocks",
            "max_length",
            "hash_block",
            "prefix_cache",
            "drop_last",
            "overlap",
        )
        options = [config[name] for name in names]
        super().__init__(share_out(config), *options, host=config["host"])


def declare(cache: Any = Manager, name: str = "paging", **promises: Any) -> Backend:
    """A backend of all paged kinds."""
    promises = {"refuses": True, "tells": TOLD, **promises}
    kind = Kind(PAGED_OPERATIONS, **promises)
    kinds = dict.fromkeys(CONTRACTS["paged"].kinds, kind)
    return replace(correct(), name=name, contracts={"paged": kinds}, open=cache)
