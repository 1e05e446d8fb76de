"""A cache is full exactly when the reference says so, over a long random life: what is
evicted, removed and shared is counted right, whatever the fragments."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from lockstep.impl.shared.causal import Sizes
from lockstep.impl.shared.errors import CacheFullError, NotSupportedError, SharedError
from lockstep.impl.torch.causal import CausalCache
from lockstep.reference.batch import Batch
from lockstep.reference.causal import CausalCache as Reference
from lockstep.reference.errors import CacheFull, NotSupported, Shared

STEPS, LIVES = 40_000, 40
REFUSALS = {
    CacheFullError: CacheFull,
    NotSupportedError: NotSupported,
    SharedError: Shared,
}


def draw_sizes(random: Random) -> dict[str, Any]:
    window = random.choice([None, 1, 2, 5])
    memory = window and window + random.choice([0, 0, 1, 3])
    return {
        "sequences": random.randint(1, 4),
        "capacity": random.randint(3, 12),
        "batch": random.randint(1, 5),
        "window": window,
        "memory": memory,
        "chunk": None if window else random.choice([None, 3]),
        "padding": random.choice([1, 2, 4]),
    }


def draw_call(random: Random, reference: Reference) -> tuple[str, tuple[Any, ...]]:
    """The name of a method, and its arguments."""
    owner = random.randrange(reference.sequences)
    end = reference.get_end(owner)
    choice = random.random()
    if choice < 0.7:
        rows = random.randint(1, reference.batch)
        owners = [owner] * rows
        if random.random() < 0.4:
            owners = [random.randrange(reference.sequences) for _ in range(rows)]
        ends = {each: reference.get_end(each) for each in owners}
        positions = []
        for each in owners:
            positions.append(max(0, ends[each] + random.choice([0, 0, 0, 0, 0, -1, 2])))
            ends[each] += 1
        return "forward", (positions, owners)
    if choice < 0.8 and reference.sequences > 1:
        target = (owner + random.randrange(1, reference.sequences)) % reference.sequences
        return "copy_prefix", (owner, target, random.randint(0, end + 1))
    if choice < 0.85:
        return "remove", (owner, 0, None)
    begin = random.randint(0, end)
    stop = None if random.random() < 0.5 else begin + random.randint(0, 3)
    return "remove", (owner, begin, stop)


def ask(call: Any, *arguments: Any) -> type[Exception] | None:
    """The class of what is refused, as the reference calls it."""
    try:
        call(*arguments)
    except (*REFUSALS, *REFUSALS.values()) as error:
        return REFUSALS.get(type(error), type(error))
    return None


@pytest.mark.parametrize("part", range(4))
def test_a_cache_is_full_exactly_when_the_reference_is(part: int) -> None:
    full = 0
    for life in range(LIVES // 4):
        random = Random(1000 * part + life)
        sizes = draw_sizes(random)
        reference = Reference(**sizes)
        padding = sizes.pop("padding")
        cache = CausalCache(Sizes(**sizes, cache_padding=padding))
        for step in range(STEPS // LIVES):
            name, arguments = draw_call(random, reference)
            own: Any = arguments
            if name == "forward":
                batch = Batch(*arguments)
                own = batch, range(len(batch))
            wanted = ask(getattr(reference, name), *own)
            got = ask(getattr(cache, name), *arguments)
            assert got is wanted, f"{sizes}, step {step}: {name}{arguments}"
            assert cache.cells.free == reference.room - len(reference.tokens)
            full += wanted is CacheFull
    assert full > STEPS / LIVES / 10
