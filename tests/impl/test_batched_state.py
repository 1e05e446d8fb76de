"""Batches of recurrent states on each framework: whose memory it is, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from frameworks import Framework

from lockstep.impl.shared.errors import MisuseError


def fill(on: Framework) -> Any:
    """Two rows of three tokens, with the states 5 and 6."""
    batch = on.batch_states(2)
    batch.write(*on.states(5, 6), 3)
    return batch


def test_what_was_read_on_mlx_stays(on: Framework) -> None:
    batch = fill(on)
    held = batch.read()
    if on.name == "mlx":
        on.backend.overwrite(batch.read()[0])
        batch.write(*on.states(7, 8), 1)
        assert [on.numpy(held[0])[row, 0, 0] for row in (0, 1)] == [5, 6]
    else:
        pointers = [array.data_ptr() for array in held]
        batch.write(*on.states(7, 8), 1)
        assert [array.data_ptr() for array in batch.read()] == pointers
    assert on.hold(batch.state()[1]) == [8]


def test_bad_input_is_refused(on: Framework) -> None:
    batch = fill(on)
    conv, delta = on.states(1, 2)
    float16 = on.array(on.numpy(conv), "float16")
    narrow = type(batch)((conv[:, :1], delta))
    for call, words in (
        (lambda: batch.write(float16, delta, 1), "conv is .*float16"),
        (lambda: batch.write(conv[:1], delta, 1), "conv is"),
        (lambda: batch.write(conv, delta[:, :1], 1), "delta is"),
        (lambda: batch.extend(on.batch(1)), "cannot get the rows of a BatchedCache"),
        (lambda: batch.extend(narrow), "extend: the states are"),
        (lambda: batch.load(batch.save()), "has tokens"),
        (lambda: on.batch_states(1).load(narrow.save()), "load: the states are"),
        (
            lambda: on.batch_states(1).load({**batch.save(), "lengths": [1]}),
            "must have 1, as many",
        ),
        (lambda: type(batch).stack([on.layer("kv")]), "same class, .* not KVCache"),
    ):
        with pytest.raises(MisuseError, match=words):
            call()
        assert (batch.offsets, on.hold(batch.state()[1])) == ((3, 3), [6])
    assert batch.held() == {"bytes": 2 * 4 * (2 * 5 + 2 * 4 * 3)}
