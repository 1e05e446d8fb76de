"""The base of all operations of the unified contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from lockstep.harness.contracts.operation import Operation
from lockstep.harness.contracts.types import Answer, Op
from lockstep.harness.contracts.unified.model import UnifiedModel
from lockstep.harness.core.document import MAX_POSITION, NAMES, Schema, integer

ANY = integer(-MAX_POSITION, MAX_POSITION)
"""Any position or length: one that is out of range is a usage error, not a fault of the
file."""

SEQUENCE: Schema = {**ANY, NAMES: "sequence"}


class Side(Protocol):
    """The cache of a program: the reference's or a backend's."""

    config: Mapping[str, Any]
    cache: Any
    saved: dict[str, Any]

    def ask(self, call: Callable[[], Any]) -> Answer: ...

    def open(self, config: Mapping[str, Any]) -> None: ...

    def save(self) -> Any: ...

    def load(self, saved: Any, fresh: bool) -> None: ...


class System(Side, Protocol):
    """The backend's side, which `contracts.unified.system` implements."""

    def forward(self, op: Op, model: UnifiedModel) -> Answer: ...

    def get(self, which: int, layer: int, model: UnifiedModel) -> Answer: ...

    def put_again(self, op: Op, model: UnifiedModel) -> Answer: ...

    def verify_attention(self, model: UnifiedModel) -> None: ...


class UnifiedOperation(Operation):
    """An operation on the one cache of a program.

    Unless it says otherwise, it is the method of its name with its fields as arguments.

    Attributes:
        changes: it changes the cache, and so ends the open pass.
    """

    changes: ClassVar[bool] = False

    def run(self, op: Op, side: Side) -> Answer:
        call, fields = getattr(side.cache, self.name), [op[name] for name in self.fields]
        return side.ask(lambda: call(*fields))

    def expect(self, op: Op, model: UnifiedModel) -> Answer:
        answer = self.run(op, model)
        if self.changes:
            model.close(answer.get("error"))
        return answer
