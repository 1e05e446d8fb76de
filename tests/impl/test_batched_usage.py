"""Batches on each framework: what they refuse and no program gets wrong, which changes
nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from batches import BOTH, fill
from frameworks import Framework

from lockstep.impl.shared.errors import MisuseError


def refuse(on: Framework, batch: Any, call: Any, words: str) -> None:
    """Expects a refusal that changes nothing."""
    states = [on.numpy(pair[0]).copy() for pair in batch.state() if pair]
    before = batch.offsets, batch.size(), batch.left, batch.coming, batch.held()
    with pytest.raises(MisuseError, match=words):
        call()
    assert (batch.offsets, batch.size(), batch.left, batch.coming, batch.held()) == before
    after = [on.numpy(pair[0]) for pair in batch.state() if pair]
    assert all(map(np.array_equal, states, after))


@BOTH
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda on, batch: batch.repeat(0), "at least 1, not 0"),
        (lambda on, batch: batch.trim(4), r"\[4, 4\] tokens from rows of \[5, 3\]"),
        (lambda on, batch: batch.rollback([1]), r"\[1\] tokens from rows of \[5, 3\]"),
        (lambda on, batch: batch.update(*on.feed_wide(1, rows=2, heads=3)), "heads"),
        (lambda on, batch: batch.load(batch.save()), "has tokens"),
        (lambda on, batch: batch.extend(fill(on, [2], 5)), "extend: the window of"),
    ],
)
def test_bad_input_is_refused(
    on: Framework, window: int | None, call: Any, words: str
) -> None:
    batch = fill(on, [5, 3], window)
    refuse(on, batch, lambda: call(on, batch), words)


def test_what_is_no_batch_is_not_opened(on: Framework) -> None:
    full, ring = on.layer("kv"), on.layer("rotating")
    state = on.layer("state")
    for call, words in (
        (lambda: on.batch(1, 0), "at least 1 token, not 0"),
        (lambda: on.stack([full, ring]), "same class, .*KVCache, RotatingCache"),
        (lambda: on.stack([state]), "same class, .*not StateCache"),
        (lambda: on.stack([full, full]), "twice"),
        (lambda: on.stack([ring, on.layer("rotating", window=5)]), r"\[4, 5\]"),
    ):
        with pytest.raises(MisuseError, match=words):
            call()
    on.append(full, [1])
    other = on.layer("kv")
    other.update(*on.feed([2], heads=3))
    with pytest.raises(MisuseError, match="the same heads"):
        on.stack([full, other])
    assert full.offset == other.offset == 1
    half = on.layer("kv")
    half.update(*(on.array(on.numpy(array), "float16") for array in on.feed([2])))
    with pytest.raises(MisuseError, match="the same heads"):
        on.stack([full, half])
    wide = on.stack([other])
    batch = on.stack([full])
    refuse(on, batch, lambda: batch.extend(wide), "extend: heads, key_dim")
    assert wide.offsets == (1,)


def test_what_was_saved_of_others_is_not_loaded(on: Framework) -> None:
    saved = fill(on, [2, 1], 4).save()
    for batch, change, words in (
        (on.batch(2), {}, "window is 4, but must be None"),
        (on.batch(2, 4), {"lengths": [2]}, "do not fit rows of"),
        (on.batch(2, 4), {"lengths": [3, 1]}, "do not fit rows of"),
    ):
        refuse(on, batch, lambda b=batch, c=change: b.load({**saved, **c}), words)
