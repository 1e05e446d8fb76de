"""The reference of slots as one program sees it: users over a unified cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.prefix.config import get_unified_config
from lockstep.harness.contracts.prefix.drawing import MOST_TOLD
from lockstep.harness.contracts.types import Answer, Held, Op
from lockstep.harness.contracts.unified.forward import Forward
from lockstep.harness.contracts.unified.model import UnifiedModel
from lockstep.reference.errors import NotSupported
from lockstep.reference.slots import REFUSALS, NoSlot, Slot, Slots

FORWARD = Forward()


class WatchedReference:
    """The reference cache of a unified model, which learns of all that is asked of it.

    refusing: the next time that something is to be cut off, it refuses. refused: it has
    done so in the last operation.
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
            raise NotSupported("it could, but refuses")
        refused = None
        before = self.model.list_keys()
        try:
            self.model.cache.remove(sequence, begin, end)
        except REFUSALS as error:  # in a wrapper, some caches may have changed
            refused = error
        self.model.note_turns(sequence, before)
        self.model.close()
        if refused:
            raise refused

    def can_resume(self, sequence: int, position: int) -> bool:
        return self.model.cache.can_resume(sequence, position)


class SlotsModel:
    """The reference of one program.

    unified: the cache under the slots. users: the slot of each open request, by the name
    of its user. broken: the users whose pass broke off. fed: tokens of the last pass.
    told, alphabet, reach, past: as in `conversations`.
    """

    def __init__(self, config: Mapping[str, Any], rows: bool = True) -> None:
        self.config, self.rows = config, rows
        self.tag = 0
        self.unified = UnifiedModel(get_unified_config(config), rows)
        self.pool = WatchedReference(self.unified)
        self.slots = Slots(
            self.pool,
            config["slots"],
            config["context"],
            config["keep"],
            config["several_users"],
        )
        self.users: dict[str, int] = {}
        self.broken: set[str] = set()
        self.fed = 0
        self.told: deque[list[int]] = deque(maxlen=MOST_TOLD)
        self.alphabet, self.reach = (1, 2, 3), 12
        self.past: set[str] = set()

    def get_slot(self, user: str) -> Slot:
        return self.slots.slots[self.users[user]]

    def get_remaining(self, user: str) -> list[int]:
        return list(self.get_slot(user).remaining) if user in self.users else []

    def list_stored(self) -> list[list[int]]:
        return [slot.tokens for slot in self.slots.slots if slot.tokens]

    def list_partings(self) -> Mapping[Sequence[int], Sequence[Sequence[int]]]:
        """None: nothing is captured in a slot."""
        return {}

    def get_oldest(self) -> list[int]:
        """What the slot holds that was not used for the longest time."""
        held = [slot for slot in self.slots.slots if slot.tokens]
        oldest = min(held, key=lambda slot: slot.used, default=None)
        return oldest.tokens if oldest else self.told[0]

    def describe_slot(self, slot: Slot) -> Answer:
        return {
            "offsets": [len(slot.tokens)],
            "tokens": list(slot.tokens),
            "remaining": list(slot.remaining),
        }

    def begin(self, op: Op) -> Answer:
        self.past, self.pool.refused = set(), False
        tokens = op["tokens"]
        before = {number: list(slot.tokens) for number, slot in enumerate(self.list())}
        try:
            number = self.slots.begin(tokens)
        except NoSlot:
            return {"error": "no-slot"}
        except ValueError:
            return {"error": "usage"}
        self.users[op["user"]] = number
        slot = self.get_slot(op["user"])
        self.note_begin(tokens, before, number)
        self.told.append(list(tokens))
        return {"slot": number, **self.describe_slot(slot)}

    def list(self) -> Sequence[Slot]:
        return self.slots.slots

    def note_begin(
        self, tokens: Sequence[int], before: Mapping[int, Sequence[int]], number: int
    ) -> None:
        kept = len(self.list()[number].tokens)
        own = before[number]
        if kept and list(tokens[:kept]) != list(own[:kept]):
            self.past.add("forked")
            in_use = {slot for slot in self.users.values() if slot != number}
            if any(before[slot][:kept] == list(tokens[:kept]) for slot in in_use):
                self.past.add("forked-from-in-use")
        if own and not kept:
            self.past.add("began-anew")

    def feed(self, op: Op) -> Answer:
        """A pass with the next tokens of one user; {"error": name} if it is refused."""
        user, self.pool.refused = op["user"], False
        answer = self.reserve(user, op["count"])
        if "error" not in answer:
            if self.fed:
                self.slots.commit(self.users[user], self.fed)
            if op["generate"]:
                answer |= self.extend(self.users[user], op["generate"])
        return {**answer, **self.describe_slot(self.get_slot(user))}

    def extend(self, number: int, tokens: Sequence[int]) -> Answer:
        try:
            self.slots.extend(number, tokens)
        except ValueError:
            return {"error": "usage"}
        return {}

    def reserve(self, user: str, count: int) -> Answer:
        """The positions of a pass of up to `count` tokens, and what its rows see; nothing
        if none remains."""
        number, slot = self.users[user], self.get_slot(user)
        room = self.slots.context - self.slots.keep
        self.fed = min(count, len(slot.remaining), room)
        if not self.fed:
            return {}
        held = len(slot.tokens)
        positions = list(self.slots.reserve(number, self.fed))
        if positions[0] < held:
            self.past.add("moved-up" if positions[0] else "computed-again")
        self.unified.tag = self.tag
        answer = FORWARD.expect(make_forward(positions, number), self.unified)
        return {"positions": positions, **answer}

    def break_off(self, op: Op) -> Answer:
        """A pass that is announced, and never computed to its end."""
        user, self.pool.refused = op["user"], False
        answer = self.reserve(user, op["count"])
        self.broken.add(user)
        self.past.add("broken-off")
        told = {name: answer[name] for name in answer if name in ("positions", "error")}
        return {**told, **self.describe_slot(self.get_slot(user))}

    def close(self, user: str) -> Answer:
        number, self.pool.refused = self.users.pop(user), False
        self.broken.discard(user)
        slot = self.list()[number]
        self.told.append([*slot.tokens, *slot.remaining])
        stored = self.slots.close(number)
        return {"stored": stored, **self.describe_slot(slot)}

    def list_held(self) -> Sequence[Held]:
        return self.unified.list_held()

    def list_live(self) -> Mapping[int, int]:
        return self.unified.list_live()


def make_forward(positions: Sequence[int], sequence: int) -> Op:
    """The pass of the unified contract."""
    rows = {"positions": list(positions), "sequences": [sequence] * len(positions)}
    return {**FORWARD.get_defaults(), **rows}
