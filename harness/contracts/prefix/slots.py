"""The reference of slots as one program sees it: users over a unified cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.harness.contracts.prefix.config import Config, get_unified_config
from lockstep.harness.contracts.prefix.sides import PrefixModel, ask
from lockstep.harness.contracts.types import Answer, Held, Op, Source
from lockstep.harness.contracts.unified.model import UnifiedModel
from lockstep.reference.errors import NotSupported
from lockstep.reference.slots import REFUSALS, Slot, Slots

USERS = ("a", "b", "c", "d")


class WatchedReference:
    """The reference cache under the slots, which notes what it is asked.

    Attributes:
        refusing: it refuses the next time that something is to be cut off.
        refused: it has done so in the last operation.
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


class SlotsModel(PrefixModel):
    """The reference of one program.

    Attributes:
        unified: the cache under the slots; pool: the same, watched.
        users: the slot of each open request, by the name of its user.
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
        before = [list(slot.tokens) for slot in self.slots.slots]
        answer = ask(lambda: self.slots.begin(tokens))
        if "error" in answer:
            return answer
        number = self.users[op["user"]] = answer["result"]
        self.note_begin(tokens, before, number)
        self.told.append(list(tokens))
        return {"slot": number, **self.describe_slot(number)}

    def note_begin(
        self, tokens: Sequence[int], before: Sequence[Sequence[int]], number: int
    ) -> None:
        """Notes what became of what the slots held before."""
        kept, own = len(self.slots.slots[number].tokens), before[number]
        if kept and tokens[:kept] != own[:kept]:
            self.past.add("forked")
            in_use = {slot for slot in self.users.values() if slot != number}
            if any(before[slot][:kept] == tokens[:kept] for slot in in_use):
                self.past.add("forked-from-in-use")
        if own and not kept:
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
        """The most tokens that a slot can compute in one pass."""
        remaining = len(self.slots.slots[number].remaining)
        return min(remaining, self.slots.context - self.slots.keep)

    def announce(self, number: int) -> Answer:
        """The positions of the pass, and what its rows see."""
        held = len(self.slots.slots[number].tokens)
        positions = list(self.slots.reserve(number, len(self.fed)))
        if positions[0] < held:
            self.past.add("moved-up" if positions[0] else "computed-again")
        self.unified.tag = self.tag
        answer = self.unified.forward(make_forward(positions, number))
        return {"positions": positions, **answer}

    def close(self, op: Op) -> Answer:
        number, self.pool.refused = self.users.pop(op["user"]), False
        self.broken.discard(op["user"])
        slot = self.slots.slots[number]
        self.told.append([*slot.tokens, *slot.remaining])
        return {"stored": self.slots.close(number), **self.describe_slot(number)}

    def refuse(self, op: Op) -> Answer:
        self.pool.refusing = True
        return {}

    def describe_slot(self, number: int) -> Answer:
        slot = self.slots.slots[number]
        held = {"tokens": list(slot.tokens), "remaining": list(slot.remaining)}
        return {"offsets": [len(slot.tokens)], **held}

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
        """Seldom one for whom no slot is left."""
        users = [user for user in USERS if user not in self.users]
        free = self.config["slots"] - len(self.users)
        if not users or free < 0 or (free == 0 and source.below(4)):
            return None
        return name_user(users[0])

    # --- what is held -------------------------------------------------------------------

    def list_stored(self) -> list[list[int]]:
        return [slot.tokens for slot in self.slots.slots if slot.tokens]

    def get_oldest(self) -> list[int]:
        held = [slot for slot in self.slots.slots if slot.tokens]
        oldest = min(held, key=self.slots.history.index, default=None)
        return oldest.tokens if oldest else self.told[0]

    def list_held(self) -> Sequence[Held]:
        return self.unified.list_held()

    def list_live(self) -> Mapping[int, int]:
        return self.unified.list_live()


def name_user(user: str) -> dict[str, str]:
    """The field of an operation, which may be left out for the first user."""
    return {} if user == "a" else {"user": user}


def make_forward(positions: Sequence[int], sequence: int) -> Op:
    """The pass of the unified contract."""
    rows = {"positions": list(positions), "sequences": [sequence] * len(positions)}
    return {"op": "forward", **rows, "except": [], "multimodal": [], "reserve": False}
