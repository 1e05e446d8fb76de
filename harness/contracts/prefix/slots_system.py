"""A backend's slots as one program sees them, and the cache under them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.prefix.config import Config, get_unified_config
from lockstep.harness.contracts.prefix.sides import PrefixSystem
from lockstep.harness.contracts.prefix.slots import SlotsModel, make_forward
from lockstep.harness.contracts.types import Answer, Op
from lockstep.harness.contracts.unified.system import UnifiedSystem
from lockstep.harness.core.errors import Broken


class WatchedPool:
    """A unified cache of the backend.

    Attributes:
        refusing: it refuses to be cut once, as a cache may that cannot do it.
    """

    def __init__(self, cache: Any, errors: Mapping[str, type[Exception]]) -> None:
        self.cache, self.errors = cache, errors
        self.refusing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        if self.refusing and begin > 0:
            self.refusing = False
            raise self.errors["not-supported"]("it could, but refuses")
        self.cache.remove(sequence, begin, end)


class SlotsSystem(PrefixSystem):
    """The slots of one program in a backend.

    Attributes:
        unified: the cache under the slots; pool: the same, watched.
        users: the slot of each open request, by the name of its user.
    """

    def __init__(self, backend: Backend, config: Config, tags: int, every: bool) -> None:
        super().__init__(backend, config)
        unified = get_unified_config(config)
        self.unified = UnifiedSystem(backend, unified, tags, every)
        self.pool = WatchedPool(self.unified.cache, backend.errors)
        self.open([self.pool], [unified])
        if not self.builds_on:
            self.unified.cache = self.cache.cache
        self.users: dict[str, int] = {}

    def tell_layout(self) -> None:
        self.unified.tell_layout()

    @property
    def margin(self) -> float:
        return self.unified.margin

    def ask(self, call: Callable[[], Any]) -> Answer:
        return self.unified.ask(call)

    # --- operations ---------------------------------------------------------------------

    def begin(self, op: Op, model: SlotsModel) -> Answer:
        self.pool.refusing = model.pool.refused
        answer = self.lend(self.cache.begin, op["tokens"])
        if "error" in answer:
            return answer
        slot = answer.get("result")
        if not isinstance(slot, int):
            raise Broken(
                "malformed", f"begin returned {slot!r}, not the number of a slot"
            )
        self.users[op["user"]] = slot
        return {"slot": slot, **self.describe_slot(slot)}

    def feed(self, op: Op, model: SlotsModel) -> Answer:
        self.pool.refusing = model.pool.refused
        slot, count = self.users[op["user"]], len(model.fed)
        answer: Answer = {}
        if count:
            positions = list(self.cache.reserve(slot, count))
            answer = {"positions": positions}
            forward = make_forward(positions, slot)
            if "layers" in op:
                answer |= self.break_off(forward, op["layers"], model)
            elif positions != self.get_expected_positions(model, slot, count):
                return answer
            else:
                answer |= self.unified.forward(forward, model.unified)
                if "error" not in answer:
                    self.cache.commit(slot, count)
        if op.get("generate") and "error" not in answer:
            answer |= self.lend(partial(self.cache.extend, slot), op["generate"])
        return {**answer, **self.describe_slot(slot)}

    def get_expected_positions(
        self, model: SlotsModel, slot: int, count: int
    ) -> Sequence[int]:
        """Those of the pass that the reference has just had, or refused."""
        batch = model.unified.batch
        if batch is not None:
            return list(batch.positions)
        held = len(model.slots.slots[slot].tokens)
        return list(range(held, held + count))

    def break_off(self, forward: Op, layers: int, model: SlotsModel) -> Answer:
        """Announces a pass, and puts it in the first layers only."""
        announced = [value for name, value in forward.items() if name != "op"]
        answer = self.ask(lambda: self.unified.cache.forward(*announced))
        if not answer and model.unified.batch is not None:
            self.unified.put_some(layers, model.unified)
        return answer

    def close(self, op: Op, model: SlotsModel) -> Answer:
        self.pool.refusing = model.pool.refused
        slot = self.users.pop(op["user"])
        stored = getattr(self.cache, op["op"])(slot)
        return {"stored": stored, **self.describe_slot(slot)}

    def refuse(self, op: Op, model: SlotsModel) -> Answer:
        return {}  # the pool refuses where the reference did; see `begin`

    def describe_slot(self, slot: int) -> Answer:
        tokens, remaining = self.cache.get_tokens(slot), self.cache.get_remaining(slot)
        held = {"tokens": list(tokens), "remaining": list(remaining)}
        answer = {"offsets": [len(tokens)], **held}
        for handed_out in (tokens, remaining):
            if isinstance(handed_out, list):
                handed_out.clear()  # it is the caller's
        return answer

    # --- checks beside the answer -------------------------------------------------------

    def verify_attention(self, model: SlotsModel) -> None:
        if model.unified.batch is not None:  # no pass was refused
            self.unified.verify_attention(model.unified)

    def settle(self, op: Op) -> None:
        self.unified.settle({"op": "forward"})

    def finish(self) -> None:
        self.unified.finish()
