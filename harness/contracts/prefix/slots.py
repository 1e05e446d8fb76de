"""Defines model and system of slots, in which users share one unified cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lockstep.harness.contracts.answers import read_index, read_list
from lockstep.harness.contracts.operation import Answer, Config, Held, Op, Source, ask
from lockstep.harness.contracts.prefix.model import (
    CHANGES,
    RequestModel,
    RequestSystem,
    get_unified_config,
)
from lockstep.harness.contracts.system import Setup
from lockstep.harness.contracts.unified.model import UnifiedModel
from lockstep.harness.contracts.unified.system import UnifiedSystem
from lockstep.harness.core.errors import Broken, format_plain
from lockstep.reference.errors import NotSupported
from lockstep.reference.slots import REFUSALS, Slot, Slots

USERS = ("a", "b", "c", "d")


class WatchedReference:
    """The reference cache under the slots. The harness can make it refuse a removal.

    Attributes:
        refusing: whether the cache refuses the next removal of a tail.
        refused: whether the cache refused a removal in the last operation.
    """

    def __init__(self, model: UnifiedModel) -> None:
        self.model = model
        self.refusing = self.refused = False

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.model.close()  # in a wrapper, some caches may copy before one refuses
        self.model.cache.copy_prefix(source, target, length)

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        if self.refusing and begin > 0 and self.model.get_end(sequence) > begin:
            self.refusing, self.refused = False, True
            raise NotSupported("refused on purpose, by the harness")
        refused = None
        earlier = self.model.list_keys()
        try:
            self.model.cache.remove(sequence, begin, end)
        except REFUSALS as error:  # in a wrapper, some caches may have changed
            refused = error
        self.model.note_turns(sequence, earlier)
        self.model.close()
        if refused:
            raise refused

    def can_resume(self, sequence: int, position: int) -> bool:
        return self.model.cache.can_resume(sequence, position)


class SlotsModel(RequestModel):
    """The reference slots of one program.

    Attributes:
        unified: the cache under the slots.
        pool: the same cache in a wrapper that can refuse removals.
        users: user → slot of the open request.
    """

    has_users = True

    def __init__(self, config: Config, rows: bool = True) -> None:
        super().__init__(config, rows)
        self.unified = UnifiedModel(get_unified_config(config), rows)
        self.pool = WatchedReference(self.unified)
        sizes = config["slots"], config["context"], config["keep"]
        self.slots = Slots(self.pool, *sizes, config["several_users"])
        self.users: dict[str, int] = {}

    # --- operations ---------------------------------------------------------------------

    def begin(self, op: Op) -> Answer:
        self.past, self.pool.refused = set(), False
        tokens = op["tokens"]
        earlier = [list(slot.tokens) for slot in self.slots.slots]
        answer = ask(lambda: self.slots.begin(tokens))
        if "error" in answer:
            return answer
        number = self.users[op["user"]] = answer["result"]
        self.note_begin(tokens, earlier, number)
        self.count_request(len(tokens), len(self.slots.slots[number].remaining))
        self.told.append(list(tokens))
        return {"slot": number, **self.describe_slot(number)}

    def note_begin(
        self, tokens: Sequence[int], earlier: Sequence[Sequence[int]], number: int
    ) -> None:
        """Records whether a request copied another slot or dropped its own slot's tokens.

        Args:
            tokens: the tokens of the request.
            earlier: the tokens of each slot before the request.
            number: the slot of the request.
        """
        kept = len(self.slots.slots[number].tokens)
        if kept and tokens[:kept] != earlier[number][:kept]:
            self.past.add("forked")
            in_use = {slot for slot in self.users.values() if slot != number}
            if any(earlier[slot][:kept] == tokens[:kept] for slot in in_use):
                self.past.add("forked-from-in-use")
        if earlier[number] and not kept:
            self.past.add("began-anew")

    def feed(self, op: Op) -> Answer:
        user, self.pool.refused = op["user"], False
        number = self.users[user]
        count = min(op["count"], self.count_next(number))
        self.fed = range(self.tag, self.tag + count)
        answer = self.announce(number) if count else {}
        if "layers" in op:
            self.broken.add(user)
            self.past.add("broken-off")
            answer = {key: answer[key] for key in answer if key in ("positions", "error")}
        elif "error" not in answer:
            if count:
                self.slots.commit(number, count)
            if op["generate"]:
                answer |= ask(lambda: self.slots.extend(number, op["generate"]))
        return {**answer, **self.describe_slot(number)}

    def count_next(self, number: int) -> int:
        """Returns the maximum number of tokens that a slot can compute in one pass."""
        remaining = len(self.slots.slots[number].remaining)
        return min(remaining, self.slots.context - self.slots.keep)

    def announce(self, number: int) -> Answer:
        """Announces a pass in a slot.

        Returns:
            The answer: `positions`, and the tokens that each row sees.
        """
        length = len(self.slots.slots[number].tokens)
        positions = list(self.slots.reserve(number, len(self.fed)))
        if positions[0] < length:
            self.past.add("moved-up" if positions[0] else "computed-again")
        self.unified.tag = self.tag
        answer = self.unified.forward(make_forward(positions, number))
        return {"positions": positions, **answer}

    def close(self, op: Op) -> Answer:
        number, self.pool.refused = self.users.pop(op["user"]), False
        self.broken.discard(op["user"])
        slot = self.slots.slots[number]
        self.told.append([*slot.tokens, *slot.remaining])
        stored = self.slots.close(number)
        self.closed.appendleft(list(slot.tokens[:stored]))
        return {"stored": stored, **self.describe_slot(number)}

    def refuse(self, op: Op) -> Answer:
        self.pool.refusing = True
        return {}

    def describe_store(self) -> Answer:
        return {"tokens": sum(len(slot.tokens) for slot in self.slots.slots)}

    def statistics(self, op: Op) -> Answer:
        return {**self.counts, "bytes": 0, **self.describe_store()}

    def describe_slot(self, number: int) -> Answer:
        slot = self.slots.slots[number]
        length = {"tokens": list(slot.tokens), "remaining": list(slot.remaining)}
        return {"offsets": [len(slot.tokens)], **length}

    # --- the open requests --------------------------------------------------------------

    def get_slot(self, user: str) -> Slot:
        return self.slots.slots[self.users[user]]

    def is_open(self, user: str) -> bool:
        return user in self.users

    def get_request(self, user: str) -> list[int]:
        slot = self.get_slot(user)
        return [*slot.tokens, *slot.remaining]

    def get_remaining(self, user: str) -> list[int]:
        return list(self.get_slot(user).remaining) if user in self.users else []

    def draw_user(self, source: Source) -> dict[str, str]:
        return name_user(source.pick(sorted(self.users))) if self.users else {}

    def draw_new_user(self, source: Source) -> dict[str, str] | None:
        """Draws a user without a request; rarely, a user although no slot is free."""
        users = [user for user in USERS if user not in self.users]
        free = self.config["slots"] - len(self.users)
        if not users or free < 0 or (free == 0 and source.below(4)):
            return None
        return name_user(users[0])

    # --- what is held -------------------------------------------------------------------

    def list_stored(self) -> list[list[int]]:
        return [slot.tokens for slot in self.slots.slots if slot.tokens]

    def get_oldest(self) -> list[int]:
        length = [slot for slot in self.slots.slots if slot.tokens]
        oldest = min(length, key=self.slots.history.index, default=None)
        return oldest.tokens if oldest else self.told[0]

    def list_held(self, op: Op) -> Sequence[Held]:
        return self.unified.list_held(op)

    def list_live(self) -> Mapping[int, int]:
        return self.unified.list_live()


def name_user(user: str) -> dict[str, str]:
    """Returns the field `user` of an operation; {} for the first user."""
    return {} if user == "a" else {"user": user}


def make_forward(positions: Sequence[int], sequence: int) -> Op:
    """Makes a pass of the unified contract with a row at each position."""
    rows = {"positions": list(positions), "sequences": [sequence] * len(positions)}
    return {"op": "forward", **rows, "except": [], "multimodal": [], "reserve": False}


# --- the system under test --------------------------------------------------------------


class WatchedPool:
    """A unified cache of the backend. The harness can make it refuse a removal.

    Attributes:
        refusing: whether the cache refuses the next removal; a cache that cannot remove a
            tail may refuse.
    """

    def __init__(self, cache: Any, errors: Mapping[str, type[Exception]]) -> None:
        self.cache, self.errors = cache, errors
        self.refusing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        if self.refusing and begin > 0:
            self.refusing = False
            raise self.errors["not-supported"]("refused on purpose, by the harness")
        self.cache.remove(sequence, begin, end)


class SlotsSystem(RequestSystem):
    """The slots of one program in a backend.

    Attributes:
        unified: the cache under the slots.
        pool: the same cache in a wrapper that can refuse removals.
        users: user → slot of the open request.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        unified = get_unified_config(self.config)
        self.unified = UnifiedSystem(replace(setup, config=unified, writes=CHANGES))
        self.below = [self.unified]
        self.pool = WatchedPool(self.unified.cache, self.backend.errors)
        self.open([self.pool], [unified])
        if not self.builds_on:
            self.unified.cache = self.cache.cache
        self.users: dict[str, int] = {}

    # --- operations ---------------------------------------------------------------------

    def begin(self, op: Op, model: SlotsModel) -> Answer:
        self.pool.refusing = model.pool.refused
        answer = self.lend(self.cache.begin, op["tokens"])
        if "error" in answer:
            return answer
        slot = read_index(answer.get("result"))
        if slot is None:
            got = format_plain(answer.get("result"))
            raise Broken("malformed", f"begin returned {got}, not the number of a slot")
        self.users[op["user"]] = slot
        return {"slot": slot, **self.describe_slot(slot)}

    def feed(self, op: Op, model: SlotsModel) -> Answer:
        self.pool.refusing = model.pool.refused
        slot, count = self.users[op["user"]], len(model.fed)
        answer: Answer = {}
        if count:
            positions = read_list(self.cache.reserve(slot, count), "reserve")
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
        """Returns the positions of the pass that the reference just ran or refused."""
        batch = model.unified.batch
        if batch is not None:
            return list(batch.positions)
        length = len(model.slots.slots[slot].tokens)
        return list(range(length, length + count))

    def break_off(self, forward: Op, layers: int, model: SlotsModel) -> Answer:
        """Announces a pass, but puts K and V only in the first `layers` caches."""
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
        return {}  # the pool refuses if the reference refused; see `begin`

    def describe_slot(self, slot: int) -> Answer:
        tokens, remaining = self.cache.get_tokens(slot), self.cache.get_remaining(slot)
        length = {
            "tokens": read_list(tokens, "get_tokens"),
            "remaining": read_list(remaining, "get_remaining"),
        }
        answer = {"offsets": [len(tokens)], **length}
        for handed_out in (tokens, remaining):
            if isinstance(handed_out, list):
                handed_out.clear()  # the list belongs to the caller
        return answer

    # --- checks beside the answer -------------------------------------------------------

    def verify_attention(self, model: SlotsModel) -> None:
        if model.unified.batch is not None:  # no pass was refused
            self.unified.verify_attention(model.unified)

    def verify_memory(self, op: Op, model: SlotsModel) -> None:
        self.unified.verify_memory(op, model.unified)

    def finish(self) -> None:
        self.unified.finish()
