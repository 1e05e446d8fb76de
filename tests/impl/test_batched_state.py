"""Batches of recurrent states on each framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from batches import Tags
from frameworks import Framework
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.impl.shared.errors import MisuseError
from lockstep.reference.batched import BatchedCache
from lockstep.reference.state import StateCache

MODULUS = 65_521


def summarize(tags: Sequence[int]) -> float:
    """A number that tells which tokens a state has read, in which order."""
    total = 0
    for tag in tags:
        total = (31 * total + tag) % MODULUS
    return float(total)


def get_right(reference: BatchedCache) -> list[float]:
    return [summarize([token.tag for token in row.tokens]) for row in reference.rows]


def check(on: Framework, batch: Any, reference: BatchedCache) -> None:
    """Compares the states of all rows, together and one by one."""
    if reference.coming is None:
        assert list(batch.offsets) == reference.offsets
    conv, delta = (on.numpy(array) for array in batch.read())
    right = np.array(get_right(reference), np.float32)
    assert (conv == right[:, None, None]).all() and conv.shape[0] == len(right)
    assert (delta == right[:, None, None, None]).all()
    assert [on.hold(pair) for pair in batch.state()] == [[number] for number in right]


def update(
    on: Framework,
    batch: Any,
    reference: BatchedCache,
    tags: Tags,
    length: int,
    left: Sequence[int] | None = None,
) -> None:
    """Reads columns with both, as a layer does that goes by the mask."""
    counts = reference.count_tokens(length, left)
    own = [tags.take(count) for count in counts]
    if left is not None:
        batch.pad_left(left)
    offsets, told = batch.offsets, list(batch.offsets)
    mask = batch.make_mask(length)
    seen = np.ones((len(counts), length), bool) if mask is None else on.numpy(mask)
    before = left or [0] * len(counts)
    for row, (begin, count) in enumerate(zip(before, counts, strict=True)):
        assert np.flatnonzero(seen[row]).tolist() == [*range(begin, begin + count)]
    assert mask is not None or min(counts) == length
    reference.update(length, own)
    given = on.states(*get_right(reference))
    batch.write(*given, length)
    for array in given:  # the caller's from now on
        on.backend.overwrite(array)
    assert list(offsets) == told
    check(on, batch, reference)


def prefill(
    on: Framework,
    batch: Any,
    reference: BatchedCache,
    tags: Tags,
    lengths: Sequence[int],
    chunks: Sequence[int],
) -> None:
    batch.pad_right(lengths)
    reference.pad_right(lengths)
    for chunk in chunks:
        update(on, batch, reference, tags, chunk)
    batch.finalize()
    reference.finalize()
    check(on, batch, reference)


def make(on: Framework, rows: int) -> Any:
    return (
        on.batch_states(rows),
        BatchedCache([StateCache() for _ in range(rows)]),
        Tags(),
    )


def fill(on: Framework, lengths: Sequence[int]) -> Any:
    batch, reference, tags = make(on, len(lengths))
    prefill(on, batch, reference, tags, lengths, [max(lengths)])
    return batch, reference, tags


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_every_row_is_the_state_of_its_own_tokens(
    on: Framework, data: st.DataObject
) -> None:
    batch, reference, tags = make(on, data.draw(st.integers(1, 3)))
    for _ in range(data.draw(st.integers(1, 8))):
        rows = len(reference.rows)
        numbers = st.integers(0, rows - 1)
        match data.draw(st.integers(0, 7)):
            case 0:
                update(on, batch, reference, tags, data.draw(st.integers(1, 4)))
            case 1 if not reference.width:
                left = data.draw(
                    st.lists(st.integers(0, 2), min_size=rows, max_size=rows)
                )
                update(on, batch, reference, tags, 3, [0, *left[1:]])
            case 1 | 2:
                each = st.lists(st.integers(1, 4), min_size=rows, max_size=rows)
                lengths = data.draw(each)
                chunks = [1, max(lengths) - 1] if max(lengths) > 1 else [1]
                prefill(on, batch, reference, tags, lengths, chunks)
            case 3:
                chosen = data.draw(st.lists(numbers, min_size=1, max_size=4))
                batch.select(chosen)
                reference.select(chosen)
            case 4:
                other, right = make(on, 2)[:2]
                update(on, other, right, tags, 2, [1, 0])
                batch.extend(other)
                reference.extend(right)
                assert other.offsets == (0, 0) and not on.numpy(other.read()[0]).any()
            case 5:
                singles = [batch.extract(row) for row in range(rows)]
                singles.append(batch.make_single())
                right = [reference.extract(row) for row in range(rows)]
                batch = type(batch).stack(singles)
                reference = BatchedCache([*right, StateCache()])
                assert {cache.offset for cache in singles} == {0}
            case 6:
                saved, kept = batch.save(), reference.clone()
                update(on, batch, reference, tags, 1)
                batch, reference = on.batch_states(data.draw(st.integers(1, 3))), kept
                batch.load(saved)
                for array in (saved["conv"], saved["delta"]):
                    on.backend.overwrite(array)
            case 7:
                copy, right = batch.clone(), reference.clone()
                update(on, batch, reference, tags, 1)
                check(on, copy, right)
                batch.free()
                reference.free()
                check(on, batch, reference)
                batch, reference = copy, right
        check(on, batch, reference)
    update(on, batch, reference, tags, 1)


def test_a_row_goes_on_alone(on: Framework) -> None:
    batch, reference, tags = fill(on, [3, 1])
    cache = batch.extract(0)
    assert (cache.offset, on.hold(cache.read())) == (3, get_right(reference)[:1])
    cache.write(*on.states(8), 2)
    assert (cache.offset, on.hold(cache.read())) == (5, [8])
    check(on, batch, reference)
    update(on, batch, reference, tags, 1)
    assert on.hold(cache.read()) == [8]


def test_what_was_read_on_mlx_stays(on: Framework) -> None:
    batch, reference, tags = fill(on, [3, 1])
    held, right = batch.read(), get_right(reference)
    if on.name == "mlx":
        on.backend.overwrite(batch.read()[0])
        update(on, batch, reference, tags, 1)
        assert [on.numpy(held[0])[row, 0, 0] for row in (0, 1)] == right
    else:
        places = [array.data_ptr() for array in held]
        update(on, batch, reference, tags, 1)
        assert [array.data_ptr() for array in batch.read()] == places


def test_bad_input_is_refused(on: Framework) -> None:
    batch, reference, _ = fill(on, [3, 1])
    conv, delta = on.states(1, 2)
    float16 = on.array(on.numpy(conv), "float16")
    narrow = type(batch)((conv[:, :1], delta))
    for call, words in (
        (lambda: batch.write(float16, delta, 1), "conv is .*float16"),
        (lambda: batch.write(conv[:1], delta, 1), "conv is"),
        (lambda: batch.write(conv, delta[:, :1], 1), "delta is"),
        (lambda: batch.write(conv, delta, 0), "0 columns"),
        (lambda: batch.extend(batch), "by itself"),
        (lambda: batch.extend(on.batch(1)), "a BatchedCache has other rows"),
        (lambda: batch.extend(narrow), "extend: states"),
        (lambda: batch.filter([1, 1]), "a row twice"),
        (lambda: batch.load(batch.save()), "has tokens"),
        (lambda: on.batch_states(1).load(narrow.save()), "load: states"),
        (lambda: on.batch_states(1).load({**batch.save(), "lengths": [1]}), "of 1 rows"),
        (lambda: type(batch).stack([on.layer("kv")]), "KVCache; all are of one kind"),
        (lambda: type(batch).stack([]), "no cache"),
    ):
        with pytest.raises(MisuseError, match=words):
            call()
        check(on, batch, reference)
    batch.pad_right([2, 1])
    with pytest.raises(MisuseError, match="2 are still announced"):
        batch.write(conv, delta, 3)
    assert batch.held() == {"bytes": 2 * 4 * (2 * 5 + 2 * 4 * 3)}
