"""What the operations of the paged contract have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.contracts.operation import Answer, Op, Operation, Source
from lockstep.harness.contracts.paged.model import (
    MOST_LENGTH,
    PagedModel,
)
from lockstep.harness.core.document import NAME, NAMES, Schema, integer
from lockstep.reference.paged import Request

REQUEST: Schema = {**NAME, NAMES: "request"}
TOKEN: Schema = integer(0, 1 << 20)
TOKENS: Schema = {"type": "array", "items": TOKEN, "maxItems": MOST_LENGTH + 1}
NAMESPACE: Schema = {
    "type": ["string", "null"],
    "pattern": r"^[A-Za-z0-9_.-]{0,32}(?![\s\S])",
    "default": None,
}
"""What K and V depend on beside the tokens: an adapter, an image, a salt."""

ALPHABET = (1, 2, 1, 1, 2, 1, 0, 65_537)
LETTERS = "abcdefgh"

Fields = dict[str, Any] | None
"""Drawn fields of an operation, or None if nothing can be asked."""


def draw_tokens(source: Source, count: int) -> list[int]:
    return [source.pick(ALPHABET) for _ in range(count)]


def leave(values: Sequence[Any]) -> Any:
    """Leaves the choice to the backend, if there is one; the likeliest comes first."""
    return values[0] if len(values) == 1 else {"one_of": list(values)}


class PagedOperation(Operation):
    """An operation of a scheduler.

    Attributes:
        happens: the abstract state of the request that it leads to.
        changes: the same of all requests.
    """

    has_misuse = True
    happens: ClassVar[str] = ""
    changes: ClassVar[str] = ""

    def draw(self, source: Source, model: PagedModel) -> Op | None:
        fields = self.draw_fields(source, model)
        return None if fields is None else {"op": self.name, **fields}

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        return {}

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = getattr(system, self.name)(op)
        return answer

    def note(self, op: Op, model: PagedModel) -> None:
        """Notes that it has happened."""
        if self.happens:
            model.past[op["request"]].add(self.happens)
        if self.changes:
            model.happened.add(self.changes)


class OnRequest(PagedOperation):
    """An operation on one request."""

    fields: ClassVar[Mapping[str, Schema]] = {"request": REQUEST}

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        request = model.cache.requests.get(op["request"])
        if request is None:  # a misuse, where that must be refused
            return None
        return self.why_illegal_here(op, model, request)

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        """Says why it cannot be asked of a request that exists."""
        return None

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        """Says whether it must be refused for a request that exists."""
        return False

    def suits(self, model: PagedModel, name: str, request: Request) -> bool:
        """Says whether it can be asked of a request now."""
        op = self.complete({"op": self.name, "request": name})
        illegal = self.why_illegal_here(op, model, request)
        return illegal is None and not self.is_misuse(model, request)

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        requests = model.cache.requests.items()
        names = [name for name, item in requests if self.suits(model, name, item)]
        if not names:
            return None
        name = source.pick(self.prefer(names, model))
        extra = self.draw_more(source, model, model.cache.requests[name])
        return None if extra is None else {"request": name, **extra}

    def prefer(self, names: Sequence[str], model: PagedModel) -> Sequence[str]:
        """Returns those of the names that are the most interesting ones."""
        return names

    def draw_more(self, source: Source, model: PagedModel, request: Request) -> Fields:
        return {}

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        """Draws the same of a request that does not exist, beside one that does, or of
        one for which it must be refused."""
        requests = model.cache.requests
        if not requests:
            return None
        wrong = [name for name, item in requests.items() if self.is_misuse(model, item)]
        loading = [name for name in wrong if requests[name].awaited]
        name = next(item for item in LETTERS if item not in requests)
        if wrong and (loading or source.below(2)):
            name = source.pick(loading or wrong)
        return {"op": self.name, "request": name, **self.get_anything()}

    def get_anything(self) -> Mapping[str, Any]:
        """Returns the other fields that have no default."""
        return {}
