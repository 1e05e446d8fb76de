"""What the operations of the layer contract share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lockstep.harness.contracts.base import Operation
from lockstep.harness.contracts.layer.model import LayerModel
from lockstep.harness.contracts.types import Answer, Op, Source
from lockstep.harness.core.fields import NAME, Schema

CACHE: Mapping[str, Schema] = {"cache": {**NAME, "default": "a"}}
MAX_CACHES = 16

USAGE: Answer = {"error": "usage"}
"""What a usage error answers: a ValueError, and nothing has changed."""


class LayerOperation(Operation):
    """What the operations share: all but a few name the cache they work on."""

    fields: ClassVar[Mapping[str, Schema]] = CACHE

    def illegal(self, op: Op, model: LayerModel) -> str | None:
        for name in (op.get("cache", "a"), self.get_new_cache(op)):
            if name not in model.caches and len(model.caches) >= MAX_CACHES:
                return f"there are {MAX_CACHES} caches already"
        return self.illegal_here(op, model)

    def get_new_cache(self, op: Op) -> str:
        return "a"

    def illegal_here(self, op: Op, model: LayerModel) -> str | None:
        return None

    def draw(self, source: Source, model: LayerModel) -> Op | None:
        cache = source.pick(("a", *model.caches))
        op = self.draw_fields(source, model, cache)
        if op is None:
            return None
        return {"op": self.name, **op} | ({"cache": cache} if cache != "a" else {})

    def draw_fields(
        self, source: Source, model: LayerModel, cache: str
    ) -> dict[str, Any] | None:
        return {}

    def describe(self, op: Op) -> str:
        name = op.get("cache", "a")
        return self.describe_here(op) + ("" if name == "a" else f" in cache {name}")

    def describe_here(self, op: Op) -> str:
        return self.name


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
