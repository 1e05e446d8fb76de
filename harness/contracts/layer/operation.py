"""The base of all operations of the layer contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from lockstep.harness.contracts.layer.model import LayerModel
from lockstep.harness.contracts.operation import Operation, say_fields
from lockstep.harness.contracts.types import Op, Source
from lockstep.harness.core.document import NAME, NAMES, Schema

CACHE_NAME: Schema = {**NAME, NAMES: "cache"}
SNAPSHOT: Schema = {**NAME, NAMES: "snapshot"}
CACHE: Mapping[str, Schema] = {"cache": {**CACHE_NAME, "default": "a"}}
MAX_CACHES = 16

Fields = dict[str, Any] | None
"""Drawn fields of an operation, or None if nothing can be asked."""


class Side(Protocol):
    """The caches and snapshots of a program by name: the reference's or a backend's."""

    def get(self, name: str) -> Any: ...

    def put_cache(self, name: str, cache: Any) -> None: ...

    def find_snapshot(self, name: str | None) -> Any: ...

    def consume(self, name: str | None) -> Any: ...

    def put_snapshot(self, name: str | None, snapshot: Any) -> list[int] | None: ...


class LayerOperation(Operation):
    """An operation on the cache that it names."""

    fields: ClassVar[Mapping[str, Schema]] = CACHE

    def illegal(self, op: Op, model: LayerModel) -> str | None:
        why = why_no_cache(op["cache"], model)
        return why or self.illegal_here(op, model)

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        return None

    def draw(self, source: Source, model: LayerModel) -> Op | None:
        cache = source.pick(("a", *model.caches))
        op = self.draw_fields(source, model, cache)
        return None if op is None else {"op": self.name, **op, "cache": cache}

    def draw_fields(self, source: Source, model: LayerModel, cache: str) -> Fields:
        """Draws all fields but the cache; None if there is nothing to ask of it."""
        return {}

    def describe(self, op: Op) -> str:
        name = op.get("cache", "a")
        return self.describe_here(op) + ("" if name == "a" else f" in cache {name}")

    def describe_here(self, op: Op) -> str:
        others = [name for name in self.fields if name != "cache"]
        return f"{self.name} {say_fields(op, others)}".rstrip()


def why_no_cache(name: str, model: LayerModel) -> str | None:
    if name in model.caches or len(model.caches) < MAX_CACHES:
        return None
    return f"there are {MAX_CACHES} caches already"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
