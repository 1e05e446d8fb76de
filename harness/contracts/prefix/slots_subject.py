"""A backend's slots as one program sees them, and the cache under them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.broken import Broken
from lockstep.harness.contracts.prefix.config import get_unified_config
from lockstep.harness.contracts.prefix.slots import FORWARD, SlotsModel, make_forward
from lockstep.harness.contracts.prefix.subject import NO_TOKEN
from lockstep.harness.contracts.types import Answer, Op
from lockstep.harness.contracts.unified.system import UnifiedSubject


class WatchedPool:
    """A unified cache of the backend. refusing: it refuses to be cut once, as a cache may
    that cannot do what it should."""

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


class SlotsSubject:
    """The slots of one program in a backend. unified: the cache under them."""

    unified_type = UnifiedSubject

    def __init__(
        self, backend: Backend, config: Mapping[str, Any], tags: int, every: bool
    ) -> None:
        unified = get_unified_config(config)
        self.unified = self.unified_type(backend, unified, tags, every)
        builds_on = backend.contracts["prefix"][config["kind"]].builds_on
        self.pool = WatchedPool(self.unified.cache, backend.errors)
        caches = [self.pool] if builds_on else None
        self.backend = backend
        own = {"poison": backend.poison, "caches": caches, "below": [unified]}
        self.given = {**config, **own}
        self.cache = backend.open(self.given)
        if not builds_on:
            self.unified.cache = self.cache.cache
        self.users: dict[str, int] = {}

    def tell_layout(self) -> None:
        self.unified.tell_layout()

    @property
    def margin(self) -> float:
        return self.unified.margin

    def ask(self, call: Callable[[], Any]) -> Answer:
        """{"error": name, "why": in its words} if it is refused; else what the call
        answers."""
        return self.unified.ask(call)

    def describe_slot(self, slot: int) -> Answer:
        tokens, remaining = self.cache.get_tokens(slot), self.cache.get_remaining(slot)
        answer = {
            "offsets": [len(tokens)],
            "tokens": list(tokens),
            "remaining": list(remaining),
        }
        for handed_out in (tokens, remaining):
            if isinstance(handed_out, list):
                handed_out.clear()  # it is the caller's
        return answer

    def begin(self, op: Op, model: SlotsModel) -> Answer:
        self.pool.refusing = model.pool.refused
        tokens = list(op["tokens"])
        answer = self.ask(lambda: self.cache.begin(tokens))
        tokens[:] = [NO_TOKEN] * len(tokens)  # they are the caller's
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
        slot, count = self.users[op["user"]], model.fed
        answer: Answer = {}
        if count:
            positions = self.reserve(slot, count)
            answer = {"positions": positions}
            if positions != self.get_expected_positions(model, slot, count):
                return answer
            forward = make_forward(positions, slot)
            answer |= self.unified.forward(forward, model.unified)
            if "error" in answer:
                return {**answer, **self.describe_slot(slot)}
            self.cache.commit(slot, count)
        if op["generate"] and "error" not in answer:
            tokens = list(op["generate"])
            answer |= self.ask(lambda: self.cache.extend(slot, tokens))
            tokens[:] = [NO_TOKEN] * len(tokens)
        return {**answer, **self.describe_slot(slot)}

    def reserve(self, slot: int, count: int) -> list[int]:
        return list(self.cache.reserve(slot, count))

    def get_expected_positions(
        self, model: SlotsModel, slot: int, count: int
    ) -> Sequence[int]:
        """Of the pass that the reference has just had, or refused."""
        batch = model.unified.batch
        if batch is None:
            held = len(model.slots.slots[slot].tokens)
            return list(range(held, held + count))
        return list(batch.positions)

    def break_off(self, op: Op, model: SlotsModel) -> Answer:
        """Announces the pass, and puts it in the first layers only."""
        self.pool.refusing = model.pool.refused
        slot = self.users[op["user"]]
        positions = self.reserve(slot, model.fed)
        forward = make_forward(positions, slot)
        announced = {name: forward[name] for name in FORWARD.fields}
        answer = self.unified.ask(lambda: self.unified.cache.forward(*announced.values()))
        if not answer and model.unified.batch is not None:
            self.unified.put_some(op["layers"], model.unified)
        return {"positions": positions, **answer, **self.describe_slot(slot)}

    def close(self, user: str, name: str, model: SlotsModel) -> Answer:
        self.pool.refusing = model.pool.refused
        slot = self.users.pop(user)
        call = self.cache.close if name == "close" else self.cache.cancel
        stored = call(slot)
        return {"stored": stored, **self.describe_slot(slot)}

    # --- checks beside the answer -------------------------------------------------------

    def verify_attention(self, model: SlotsModel) -> None:
        if model.unified.batch is not None:  # no pass was refused
            self.unified.verify_attention(model.unified)

    def settle(self, op: Op) -> None:
        self.unified.settle(FORWARD.get_defaults())

    def finish(self) -> None:
        self.unified.finish()
