"""Slots on our unified caches, beside the reference, and what they promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from frameworks import INSTALLED, Framework
from prefix_layers import SEEDS, Drawing, refuses

from lockstep.impl.prefix.slots import REFUSALS, NoSlotError, Slots
from lockstep.impl.shared.wrapper import WrapperCache
from lockstep.reference import slots as reference
from lockstep.reference.batch import Batch
from lockstep.reference.causal import CausalCache
from lockstep.reference.recurrent import RecurrentCache
from lockstep.reference.wrapper import WrapperCache as ReferenceWrapper

BATCH = 16

KINDS: dict[str, dict[str, int]] = {
    "causal": {},
    "fixed": {},
    "swa": {"window": 3, "memory": 3},
    "swa-memory": {"window": 2, "memory": 6},
    "chunked": {"chunk": 4},
    "recurrent": {},
    "wrapper": {},
}
"""Of "fixed" no key can be turned."""


@pytest.fixture(scope="module", params=INSTALLED)
def on(request: pytest.FixtureRequest) -> Framework:
    return Framework(request.param)


class Place:
    """One cache of ours and one of the reference, which take the same passes."""

    def __init__(self, on: Framework, kind: str, sequences: int, capacity: int) -> None:
        self.on, self.kind = on, kind
        self.sizes = {"sequences": sequences, "capacity": capacity, "batch": BATCH}
        self.parts = ["swa-memory", "causal"] if kind == "wrapper" else [kind]
        pairs = [self.make(part) for part in self.parts]
        self.ours, self.right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self.cache: Any = self.ours[0]
        self.other: Any = self.right[0]
        if kind == "wrapper":
            self.cache = WrapperCache(self.ours, sequences)
            self.other = ReferenceWrapper(self.right)

    def make(self, kind: str) -> tuple[Any, Any]:
        options: dict[str, int] = {**self.sizes, **KINDS[kind]}
        if kind == "recurrent":
            ours = self.on.recurrent(slots=options["sequences"], interval=3, **options)
            return ours, RecurrentCache(**options, interval=3, checkpoints=2, shift=False)
        fixed = {"rope": None} if kind == "fixed" else {}
        ours = self.on.causal(**options, **fixed)
        return ours, CausalCache(**options, shift=not fixed)

    def step(
        self, positions: Sequence[int], sequences: Sequence[int], tags: Sequence[int]
    ) -> bool:
        """A pass; whether there was room for it."""
        try:
            self.other.forward(Batch(positions, sequences), tags)
        except reference.REFUSALS:
            with pytest.raises(REFUSALS):
                self.cache.forward(positions, sequences)
            return False
        self.cache.forward(positions, sequences)
        for ours, right in zip(self.ours, self.right, strict=True):
            ours.put(0, *self.on.feed(tags))
            rows = range(len(tags))
            due = [sorted(token.tag for token in right.visible(row)) for row in rows]
            assert self.see(ours) == due
        if self.kind == "recurrent":
            self.write_states(sequences, tags)
        return True

    def see(self, cache: Any) -> list[list[int]]:
        """What each row sees, from V: K may have been turned."""
        _, values, mask = (self.on.numpy(array) for array in cache.get(0))
        return [sorted(int(-tag) for tag in values[0, 0, row == 0, 0]) for row in mask]

    def write_states(self, sequences: Sequence[int], tags: Sequence[int]) -> None:
        """A state is the tag of the last token read."""
        own = list(dict.fromkeys(sequences))
        lasts = dict(zip(sequences, tags, strict=True))
        counts = {owner: list(sequences).count(owner) for owner in own}
        reads = [self.other.get_read(owner)[: -counts[owner]] for owner in own]
        before = [read[-1].tag if read else 0 for read in reads]
        assert self.on.read(self.cache) == before
        states = self.on.states(*(lasts[owner] for owner in own))
        self.cache.write_states(0, *states)


class Pair:
    """Slots of ours and of the reference, which see the same requests."""

    def __init__(
        self,
        on: Framework,
        kind: str = "causal",
        count: int = 2,
        context: int = 16,
        keep: int = 0,
        several_users: bool = True,
        capacity: int = 16,
    ) -> None:
        self.place = Place(on, kind, count, capacity)
        rest = count, context, keep, several_users
        self.ours = Slots(self.place.cache, *rest)
        self.right = reference.Slots(self.place.other, *rest)
        self.tag = 0

    def begin(self, tokens: list[int]) -> int | None:
        """The number of the slot; None if none is free."""
        try:
            number = self.right.begin(tokens)
        except reference.NoSlot:
            with pytest.raises(NoSlotError, match="slots are in use"):
                self.ours.begin(tokens)
            return None
        assert self.ours.begin(tokens) == number
        self.check()
        return number

    def extend(self, slot: int, tokens: list[int]) -> None:
        self.ours.extend(slot, tokens)
        self.right.extend(slot, tokens)

    def step(self, slots: Sequence[int], count: int) -> bool:
        """The next `count` tokens of each of these slots; whether there was room."""
        positions, sequences, tags = list[int](), list[int](), list[int]()
        for slot in slots:
            reserved = self.right.reserve(slot, count)
            assert self.ours.reserve(slot, count) == reserved
            self.check()
            positions += reserved
            sequences += [slot] * count
            tags += range(self.tag + 1, self.tag + 1 + count)
            self.tag += count
        if not self.place.step(positions, sequences, tags):
            return False
        for slot in slots:
            self.ours.commit(slot, count)
            self.right.commit(slot, count)
        self.check()
        return True

    def close(self, slot: int, cancel: bool = False) -> int:
        stored = self.ours.cancel(slot) if cancel else self.ours.close(slot)
        assert stored == self.right.close(slot)
        self.check()
        return stored

    def run(self, tokens: list[int]) -> tuple[int, int]:
        """A whole request: its slot, and how much was reused."""
        slot = self.begin(tokens)
        assert slot is not None
        left = len(self.ours.get_remaining(slot))
        while self.ours.get_remaining(slot):
            assert self.step([slot], min(4, len(self.ours.get_remaining(slot))))
        self.close(slot)
        return slot, len(tokens) - left

    def check(self) -> None:
        for number, slot in enumerate(self.right.slots):
            assert self.ours.get_tokens(number) == slot.tokens
            assert self.ours.get_remaining(number) == slot.remaining
            ours = self.ours.slots[number]
            begun = self.right.history.index(slot) + 1 - len(self.right.slots)
            assert (ours.in_use, ours.used) == (slot.in_use, max(0, begun))

    def list_open(self) -> list[int]:
        return [n for n, slot in enumerate(self.right.slots) if slot.in_use]


# --- beside the reference ---------------------------------------------------------------


def draw_pass(draw: Drawing, pair: Pair) -> None:
    """A pass of as many tokens of some open slots as may be; or a cancel, if the cache
    has no room for it."""
    every = pair.right.slots
    slots = [n for n in pair.list_open() if every[n].remaining and draw.chance(0.7)]
    if not slots:
        return
    room = min(pair.right.context - pair.right.keep, BATCH // len(slots))
    most = min(room, *(len(every[number].remaining) for number in slots))
    count = most if draw.chance(0.5) else draw.random.randint(1, most)
    if not pair.step(slots, count):
        for number in slots:
            pair.close(number, cancel=True)


def draw_step(draw: Drawing, pair: Pair) -> None:
    pick, opened = draw.random, pair.list_open()
    action = pick.choice(("begin", "pass", "pass", "pass", "extend", "close"))
    if action == "begin":
        pair.begin(draw.request(18))
    elif action == "pass":
        draw_pass(draw, pair)
    elif opened:
        number = pick.choice(opened)
        slot = pair.right.slots[number]
        tokens = [*slot.tokens, *slot.remaining]
        if action == "extend":
            pair.extend(number, draw.generated(tokens))
        else:
            draw.seen.append(tokens)
            pair.close(number, cancel=draw.chance(0.3))


@pytest.mark.parametrize("seed", SEEDS)
def test_they_answer_what_the_reference_answers(on: Framework, seed: int) -> None:
    draw = Drawing(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    context = draw.random.choice((4, 8, 12, 16))
    keep = draw.random.choice((0, 0, 1, 3))
    count, capacity = draw.random.choice((1, 2, 3)), draw.random.choice((12, 16))
    pair = Pair(on, kind, count, context, keep, draw.chance(0.6), capacity)
    for _ in range(80):
        draw_step(draw, pair)


# --- what they promise ------------------------------------------------------------------


def test_one_user_continues_in_the_best_free_slot(on: Framework) -> None:
    pair = Pair(on, several_users=False)
    assert pair.run([1, 2, 3]) == (0, 0)
    assert pair.run([1, 2, 4]) == (0, 2)
    assert pair.run([1, 2, 4]) == (0, 2)
    pair.begin([1, 2, 4, 5])
    assert pair.begin([1, 2]) == 1
    assert pair.begin([1]) is None


def test_a_user_who_leaves_a_conversation_gets_a_copy(on: Framework) -> None:
    pair = Pair(on)
    assert pair.run([1, 2, 3]) == (0, 0)
    assert pair.run([1, 2, 4]) == (1, 2)
    assert pair.run([1, 2, 3, 5]) == (0, 3)


def test_what_cannot_be_cut_is_computed_again(on: Framework) -> None:
    pair = Pair(on, "recurrent", count=1)
    pair.run([1, 2, 3, 4, 5])
    assert pair.run([1, 2, 7]) == (0, 0)
    reason = pair.ours.get_statistics().reason
    assert reason == "the cache cannot resume at position 2"


@pytest.mark.parametrize(("kind", "left"), [("causal", 4), ("fixed", 0)])
def test_the_middle_of_a_long_conversation_goes(
    on: Framework, kind: str, left: int
) -> None:
    pair = Pair(on, kind, count=1, context=8, keep=2)
    slot = pair.begin([1, 2, 3, 4, 5, 6, 7, 8])
    assert slot == 0
    pair.step([0], 4)
    pair.step([0], 4)
    pair.extend(0, [9])
    assert pair.ours.reserve(0, 1) == range(*((5, 6) if left else (0, 1)))
    pair.right.reserve(0, 1)
    pair.check()
    kept = [1, 2, 6, 7, 8]
    tokens, remaining = (kept, [9]) if left else ([], [*kept, 9])
    assert pair.ours.get_tokens(0) == tokens
    assert pair.ours.get_remaining(0) == remaining


class Foreign:
    """A cache of somebody else, with an exception of its own, that can cut nothing."""

    class RefusedError(Exception):
        pass

    def copy_prefix(self, source: int, target: int, length: int) -> None: ...

    def can_resume(self, sequence: int, position: int) -> bool:
        return True

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        if begin > 0:
            raise self.RefusedError


def test_which_exceptions_refuse_is_a_parameter() -> None:
    slots = Slots(Foreign(), 1, 8, refusals=(Foreign.RefusedError,))
    slots.begin([1, 2, 3])
    slots.commit(0, len(slots.reserve(0, 3)))
    assert slots.close(0) == 0
    other = Slots(Foreign(), 1, 8)
    other.begin([1, 2, 3])
    other.commit(0, len(other.reserve(0, 3)))
    with pytest.raises(Foreign.RefusedError):
        other.close(0)


def test_statistics_count_requests_and_tokens(on: Framework) -> None:
    pair = Pair(on)
    assert pair.ours.get_statistics().reason is None
    pair.run([1, 2, 3])
    assert pair.ours.get_statistics().reason == "nothing is stored"
    pair.run([1, 2, 4])
    found = pair.ours.get_statistics()
    assert (found.requests, found.hits, found.asked, found.reused) == (2, 1, 6, 2)
    assert found.tokens == 6


def test_mistakes_change_nothing(on: Framework) -> None:
    pair = Pair(on)
    pair.run([1, 2, 3])
    ours: Any = pair.ours
    for tokens in ([], [True], [1, "x"]):
        refuses("token", ours.begin, tokens)
    for slot, why in ((0, "open in slot 0"), (2, "slot 2 is none"), (-1, "-1 is none")):
        for call, *given in ((ours.close,), (ours.cancel,), (ours.extend, [1])):
            refuses(why, call, slot, *given)
    pair.begin([1, 2, 3, 4])
    assert ours.reserve(0, 1) == pair.right.reserve(0, 1) == range(3, 4)
    pair.close(0)
    pair.begin([1, 2, 3, 4])
    refuses("1 tokens, but 0 were reserved", ours.commit, 0, 1)  # it is another request
    for count in (0, -1, 2):
        refuses("cannot be computed now", ours.reserve, 0, count)
    refuses("2 tokens, but 0 were reserved", ours.commit, 0, 2)
    refuses("not an integer", ours.extend, 0, [None])
    pair.check()
    for sizes in ((0, 8), (1, 8, 8), (1, 8, -1), (1, 0)):
        refuses(r"keep|count", Slots, Foreign(), *sizes)
