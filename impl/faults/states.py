"""Mistakes of the states of recurrent caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.impl.faults.fault import mistake
from lockstep.impl.shared.batch import as_slice


def are_adjacent(slots: Sequence[int]) -> bool:
    return isinstance(as_slice(np.array(slots)), slice)


@mistake("recurrent", 4, "Lockstep's own cache on torch, which raised an error there")
def states_copied_in_place(cache: Any) -> None:
    """States in adjacent slots are read as a view and written through an index. If a pass
    copies several states to slots that are not adjacent, only the first copy is right."""
    copy_slots = cache.copy_slots

    def copy_in_place(sources: Sequence[int], targets: Sequence[int]) -> None:
        if are_adjacent(sources) and not are_adjacent(targets):
            sources = [sources[0]] * len(sources)
        copy_slots(sources, targets)

    cache.copy_slots = copy_in_place


@mistake("recurrent", 4, "llama.cpp#27813, #25913")
def states_saved_alone(cache: Any) -> None:
    """The states are saved without their checkpoints, so nothing before their end can be
    reused."""
    save = cache.save

    def save_alone() -> Any:
        saved = save()
        states = [state._replace(checkpoints=()) for state in saved.states]
        return replace(saved, states=states)

    cache.save = save_alone


@mistake("recurrent", 5)
def states_loaded_apart(cache: Any) -> None:
    """Of sequences that share a state, only the first gets it back."""
    load = cache.slots.load
    cache.slots.load = lambda states: load(
        [state._replace(owners=state.owners[:1]) for state in states]
    )
