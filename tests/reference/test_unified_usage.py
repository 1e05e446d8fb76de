"""A call that breaks a rule of usage is refused, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from unified_program import (
    ABSENT,
    DONE,
    FULL,
    NO,
    USAGE,
    Answer,
    Case,
    Op,
    caches,
    case,
    check_case,
    check_command,
    copy,
    each,
    forward,
    get,
    has,
    put,
    reads,
    remove,
    resume,
    sees,
)

CAUSAL = {"kind": "causal"}

Wrong = tuple[Op, int]
"""An operation that must be refused, and how many tags it burns."""

FORWARD: Mapping[str, Wrong] = {
    "more positions than sequences": (forward([2, 3], [0]), 2),
    "more sequences than positions": (forward([2], [0, 0]), 1),
    "no rows": (forward([]), 0),
    "more rows than announced": (forward([2, 3, 4, 5, 6]), 5),
    "a negative position": (forward([2, -1]), 2),
    "a sequence too many": (forward([2, 1], [0, 2]), 2),
    "a negative sequence": (forward([2, 1], [0, -1]), 2),
    "an exception behind the rows": (forward([2, 3], except_=[0, 2]), 2),
    "a negative exception": (forward([2], except_=[-1]), 1),
    "an image behind the rows": (forward([2], multimodal=[1]), 4),
    "a negative image": (forward([2], multimodal=[-1]), 4),
    "no rows to reserve for": (forward([], reserve=True), 0),
    "too many to reserve for": (forward([2, 3, 4, 5, 6], reserve=True), 5),
}
COPY: Mapping[str, Wrong] = {
    "a copy onto itself": (copy(0, 0, 1), 0),
    "a copy onto itself of nothing": (copy(1, 1, 0), 0),
    "a copy from a sequence too many": (copy(2, 0, 1), 0),
    "a copy to a sequence too many": (copy(0, 2, 1), 0),
    "a copy from a negative sequence": (copy(-1, 0, 1), 0),
    "a copy to a negative sequence": (copy(0, -1, 1), 0),
    "a copy of a negative length": (copy(0, 1, -1), 0),
}
REMOVE: Mapping[str, Wrong] = {
    "a removal from a sequence too many": (remove(2, 0, None), 0),
    "a removal from a negative sequence": (remove(-1, 0, None), 0),
    "a removal from a negative position": (remove(0, -1, None), 0),
    "a removal from behind its end": (remove(0, 2, 1), 0),
    "a removal from behind its end, of nothing": (remove(1, 9, 8), 0),
}
ASK: Mapping[str, Wrong] = {
    "to resume a sequence too many": (resume(2, 0), 0),
    "to resume a negative sequence": (resume(-1, 0), 0),
    "to resume at a negative position": (resume(0, -1), 0),
}
LAYER: Mapping[str, Wrong] = {
    "a layer that is never written": (get(layer=1), 0),
    "K and V of more rows": (put(rows=4), 0),
    "K and V of fewer rows": (put(rows=2), 0),
    "K and V of more heads": (put(heads=2), 0),
    "K of another size": (put(key_dim=6), 0),
    "V of another size": (put(value_dim=5), 0),
    "K and V of a layer too many": (put(layer=1), 0),
}
WRONG = {**FORWARD, **COPY, **REMOVE, **ASK, **LAYER}

FIRST = sees("0:0", "0:0 1:1", "0:2")


def make_case(name: str, wrong: Wrong) -> Case:
    """One misuse in the middle of an innocent program."""
    op, burnt = wrong
    tag = 3 + burnt
    return case(
        name,
        {"kind": "causal", "sequences": 2, "capacity": 3},
        (forward([0, 1, 0], [0, 0, 1]), FIRST),
        (op, USAGE),
        (get(), FIRST),
        (put(), DONE),
        (
            forward([1, 2], [1, 0]),
            sees(f"0:2 1:{tag}", f"0:0 1:1 2:{tag + 1}"),
        ),
        (forward([3, 4]), FULL),
        (
            forward([3]),
            sees(f"0:0 1:1 2:{tag + 1} 3:{tag + 4}"),
        ),
    )


CASES = [make_case(name, wrong) for name, wrong in WRONG.items()]


def make_sliding_case(name: str, wrong: Wrong) -> Case:
    """Nor does it evict: memory 2, and the rows would stand far behind it."""
    op, burnt = wrong
    far = {"positions": [9 if at == 2 else at for at in op["positions"]]}
    return case(
        f"{name}, with a window",
        {"kind": "swa", "window": 1, "sequences": 2},
        (forward([0, 1, 0], [0, 0, 1]), FIRST),
        ({**op, **far}, USAGE),
        (get(), FIRST),
        (forward([1]), sees(f"0:0 1:1 1:{3 + burnt}")),
    )


CASES += [make_sliding_case(name, wrong) for name, wrong in FORWARD.items()]

KINDS: Mapping[str, tuple[Any, Answer, Answer]] = {
    "encoder": (
        {"kind": "encoder"},
        has(2, 3, 4),
        has(2, 3, 4),
    ),
    "recurrent": (
        {"kind": "recurrent", "interval": 1},
        reads(sees("0:0", "0:1"), [0], [1]),
        sees("0:0", "0:1"),
    ),
    "wrapper": (
        {"kind": "wrapper", "caches": [{"kind": "encoder"}, {"kind": "causal"}]},
        caches(has(2, 3, 4), sees("0:0", "0:1")),
        has(2, 3, 4),
    ),
}
"""The config of a kind; what a pass with two rows and an image answers, and `get`."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*FORWARD, *COPY, *REMOVE, *ASK])
def test_every_kind_refuses_and_keeps_its_pass(kind: str, name: str) -> None:
    config, answer, again = KINDS[kind]
    op, _ = WRONG[name]
    check_case(
        case(
            name,
            {**config, "sequences": 2},
            (forward([0, 0], [0, 1], multimodal=[1]), answer),
            (op, USAGE),
            (get(), again),
        )
    )


CASES += [
    case(
        "before the first pass there is nothing to get and nowhere to put",
        CAUSAL,
        (get(), USAGE),
        (put(), USAGE),
        (forward([0]), sees("0:0")),
        (get(), sees("0:0")),
        (put(), DONE),
    ),
    case(
        "an image is not to be had before a pass either",
        {"kind": "encoder"},
        (get(), USAGE),
        (forward([0]), ABSENT),
        (get(), ABSENT),
    ),
    case(
        "nor a layer that is never written, in a wrapper and with a state",
        {"kind": "wrapper", "layers": 2, "caches": [CAUSAL, {"kind": "recurrent"}]},
        (forward([0]), caches(sees("0:0"), reads(sees("0:0"), [0]))),
        (get(type=1, layer=1), sees("0:0")),
        (get(type=0, layer=2), USAGE),
        (get(type=1, layer=2), USAGE),
        (get(type=1), sees("0:0")),
    ),
    case(
        "where the cache was full there is no pass until the next",
        {"kind": "causal", "capacity": 1},
        (forward([0]), sees("0:0")),
        (forward([1]), FULL),
        (get(), USAGE),
        (put(), USAGE),
        (forward([], reserve=True), USAGE),
        (get(), USAGE),
        (remove(0, 0, None), DONE),
        (forward([0]), sees("0:2")),
        (get(), sees("0:2")),
    ),
    case(
        "a question does not end a pass",
        {"kind": "swa", "window": 1},
        (forward([0]), sees("0:0")),
        (resume(0, 2), NO),
        (get(), sees("0:0")),
    ),
]


@each(CASES)
def test_case(one: Case) -> None:
    check_case(one)


def test_the_command_says_the_same(tmp_path: Path) -> None:
    check_command(CASES, tmp_path)
