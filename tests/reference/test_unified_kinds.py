"""The encoder, the wrapper and the recurrent cache, by cases worked out by hand."""

from __future__ import annotations

from pathlib import Path

from unified_program import (
    ABSENT,
    DONE,
    FULL,
    NO,
    REFUSED,
    USAGE,
    YES,
    Case,
    caches,
    case,
    check_case,
    check_command,
    copy,
    each,
    forward,
    get,
    has,
    reads,
    remove,
    resume,
    sees,
)

CAUSAL = {"kind": "causal"}
ENCODER = {"kind": "encoder"}
IMAGES = {"kind": "encoder", "sequences": 2, "capacity": 1}
STATE = {"kind": "recurrent"}


def wrapper(*parts: dict[str, object], **more: object) -> dict[str, object]:
    return {"kind": "wrapper", "caches": list(parts), **more}


def sliding(window: int) -> dict[str, object]:
    return {"kind": "swa", "window": window}


def state(**more: object) -> dict[str, object]:
    return {**STATE, **more}


ENCODERS = [
    case(
        "an image has the tags behind those of the rows, and stays until the next",
        ENCODER,
        (forward([0]), ABSENT),
        (forward([1, 2, 3], multimodal=[1]), has(4, 5, 6)),
        (forward([4]), has(4, 5, 6)),
        (forward([5, 6], multimodal=[0]), has(10, 11, 12)),
        (get(), has(10, 11, 12)),
    ),
    case(
        "of several images the last row's counts, not the highest position's",
        ENCODER,
        (forward([7, 3, 9], multimodal=[1, 0]), has(3, 4, 5)),
        (remove(0, 4, 20), DONE),
        (forward([10]), has(3, 4, 5)),
        (remove(0, 3, 4), DONE),
        (forward([11]), ABSENT),
    ),
    case(
        "a removal that ends at the image leaves it",
        ENCODER,
        (forward([4, 5], multimodal=[1]), has(2, 3, 4)),
        (remove(0, 4, 5), DONE),
        (remove(0, 6, 9), DONE),
        (remove(0, 6, None), DONE),
        (remove(0, 5, 5), DONE),
        (forward([6]), has(2, 3, 4)),
    ),
    case(
        "one that begins at it does not",
        ENCODER,
        (forward([4, 5], multimodal=[1]), has(2, 3, 4)),
        (remove(0, 5, 6), DONE),
        (forward([6]), ABSENT),
        (forward([7], multimodal=[0]), has(7, 8, 9)),
        (remove(0, 7, None), DONE),
        (forward([8]), ABSENT),
    ),
    case(
        "there is one place, whatever the sequence",
        IMAGES,
        (forward([0, 4], [0, 1], multimodal=[1]), has(2, 3, 4)),
        (forward([1]), has(2, 3, 4)),
        (remove(0, 4, 5), DONE),
        (forward([5], 1), ABSENT),
    ),
    case(
        "it is never full, can always resume, and cannot be copied",
        IMAGES,
        (forward([0, 1, 2, 3], multimodal=[3]), has(4, 5, 6)),
        (forward([4, 5, 6, 7]), has(4, 5, 6)),
        (resume(0, 50), YES),
        (resume(1, 0), YES),
        (copy(0, 1, 2), REFUSED),
        (forward([8]), has(4, 5, 6)),
    ),
    case(
        "to reserve stores nothing",
        ENCODER,
        (forward([0], multimodal=[0], reserve=True), DONE),
        (forward([0]), ABSENT),
        (forward([1], multimodal=[0]), has(6, 7, 8)),
        (forward([2], multimodal=[0], reserve=True), DONE),
        (remove(0, 2, 3), DONE),
        (forward([3]), has(6, 7, 8)),
    ),
]

SHORT = {"kind": "causal", "capacity": 2}

WRAPPERS = [
    case(
        "each cache answers as it would alone",
        wrapper(CAUSAL, sliding(1), {"kind": "chunked", "chunk": 2}),
        (
            forward([0, 1, 2]),
            caches(
                sees("0:0", "0:0 1:1", "0:0 1:1 2:2"),
                sees("0:0", "0:0 1:1", "1:1 2:2"),
                sees("0:0", "0:0 1:1", "2:2"),
            ),
        ),
        (
            forward([3], except_=[0]),
            caches(sees("0:0 1:1 2:2 3:3"), sees("2:2 3:3"), sees("2:2 3:3")),
        ),
        (get(type=0), sees("0:0 1:1 2:2 3:3")),
        (get(type=2), sees("2:2 3:3")),
    ),
    case(
        "all take a batch or none",
        wrapper(CAUSAL, SHORT),
        (forward([0, 1, 2]), FULL),
        (get(), USAGE),
        (
            forward([0, 1]),
            caches(sees("0:3", "0:3 1:4"), sees("0:3", "0:3 1:4")),
        ),
        (forward([2]), FULL),
        (remove(0, 1, None), DONE),
        (forward([1]), caches(sees("0:3 1:6"), sees("0:3 1:6"))),
    ),
    case(
        "a batch that is refused takes nothing that stood at its positions",
        wrapper(CAUSAL, SHORT),
        (forward([0, 1]), caches(sees("0:0", "0:0 1:1"), sees("0:0", "0:0 1:1"))),
        (forward([0]), FULL),
        (forward([1], reserve=True), DONE),
        (remove(0, 1, None), DONE),
        (forward([1]), caches(sees("0:0 1:4"), sees("0:0 1:4"))),
    ),
    case(
        "what was evicted for a batch that another cache refused stays gone",
        wrapper(sliding(1), {"kind": "causal", "capacity": 4}),
        (
            forward([0, 1, 2, 3]),
            caches(
                sees("0:0", "0:0 1:1", "1:1 2:2", "2:2 3:3"),
                sees("0:0", "0:0 1:1", "0:0 1:1 2:2", "0:0 1:1 2:2 3:3"),
            ),
        ),
        (resume(0, 2), YES),
        (forward([4]), FULL),
        (resume(0, 2), NO),
        (resume(0, 4), YES),
        (remove(0, 2, None), DONE),
        (forward([2]), caches(sees("2:5"), sees("0:0 1:1 2:5"))),
    ),
    case(
        "a removal ends with the first cache that refuses it",
        wrapper(CAUSAL, STATE),
        (
            forward([0, 1, 2]),
            caches(
                sees("0:0", "0:0 1:1", "0:0 1:1 2:2"),
                reads(sees("0:0", "0:0 1:1", "0:0 1:1 2:2"), [0, 1, 2]),
            ),
        ),
        (remove(0, 0, 1), REFUSED),
        (
            forward([3]),
            caches(sees("0:1 1:2 3:3"), reads(sees("0:0 1:1 2:2 3:3"), [0, 1, 2, 3])),
        ),
    ),
    case(
        "those behind it keep what they have",
        wrapper(STATE, CAUSAL),
        (
            forward([0, 1]),
            caches(reads(sees("0:0", "0:0 1:1"), [0, 1]), sees("0:0", "0:0 1:1")),
        ),
        (remove(0, 0, 1), REFUSED),
        (
            forward([2]),
            caches(reads(sees("0:0 1:1 2:2"), [0, 1, 2]), sees("0:0 1:1 2:2")),
        ),
        (remove(0, 0, None), DONE),
        (forward([0]), caches(reads(sees("0:3"), [3]), sees("0:3"))),
    ),
    case(
        "it can resume where all can",
        wrapper(CAUSAL, sliding(1), ENCODER),
        (resume(0, 0), NO),
        (
            forward([0, 1]),
            caches(sees("0:0", "0:0 1:1"), sees("0:0", "0:0 1:1"), ABSENT),
        ),
        (resume(0, 0), YES),
        (resume(0, 2), YES),
        (resume(0, 3), NO),
        (forward([2]), caches(sees("0:0 1:1 2:2"), sees("1:1 2:2"), ABSENT)),
        (resume(0, 1), NO),
        (resume(0, 2), YES),
    ),
    case(
        "an image is stored only if the batch is",
        wrapper(ENCODER, SHORT),
        (
            forward([0, 1], multimodal=[0]),
            caches(has(2, 3, 4), sees("0:0", "0:0 1:1")),
        ),
        (forward([2], multimodal=[0]), FULL),
        (remove(0, 1, None), DONE),  # the image stands at 0 still, not at 2
        (forward([1]), caches(has(2, 3, 4), sees("0:0 1:9"))),
        (get(type=0), has(2, 3, 4)),
        (remove(0, 0, 1), DONE),
        (forward([1]), caches(ABSENT, sees("0:9 1:10"))),
    ),
    case(
        "an image in it cannot be copied, and what stands behind is not",
        wrapper(ENCODER, CAUSAL, sequences=2),
        (forward([0]), caches(ABSENT, sees("0:0"))),
        (copy(0, 1, 1), REFUSED),
        (forward([1], 1), caches(ABSENT, sees("1:1"))),
        (forward([1]), caches(ABSENT, sees("0:0 1:2"))),
    ),
    case(
        "a copied prefix is in all of them",
        wrapper(CAUSAL, sliding(1), sequences=2),
        (
            forward([0, 1, 2]),
            caches(
                sees("0:0", "0:0 1:1", "0:0 1:1 2:2"),
                sees("0:0", "0:0 1:1", "1:1 2:2"),
            ),
        ),
        (copy(0, 1, 2), DONE),
        (forward([2], 1), caches(sees("0:0 1:1 2:3"), sees("1:1 2:3"))),
    ),
    case(
        "an uneven batch is refused for all",
        wrapper(CAUSAL, STATE, sequences=2),
        (forward([0, 1, 0], [0, 0, 1]), REFUSED),
        (get(), USAGE),
        (
            forward([0, 0], [0, 1]),
            caches(sees("0:3", "0:4"), reads(sees("0:3", "0:4"), [3], [4])),
        ),
    ),
]

STATES = [
    case(
        "a state reads on, and begins with nothing",
        STATE,
        (forward([0, 1]), reads(sees("0:0", "0:0 1:1"), [0, 1])),
        (forward([2]), reads(sees("0:0 1:1 2:2"), [0, 1, 2])),
        (get(), sees("0:0 1:1 2:2")),
    ),
    case(
        "sequences come with as many rows each, or nothing is added",
        state(sequences=2),
        (forward([0, 1, 0], [0, 0, 1]), REFUSED),
        (get(), USAGE),
        (
            forward([0, 0, 1, 1], [1, 0, 1, 0]),
            reads(sees("0:3", "0:4", "0:3 1:5", "0:4 1:6"), [3, 5], [4, 6]),
        ),
        (forward([2, 2, 3], [0, 1, 0]), REFUSED),
        (forward([2]), reads(sees("0:4 1:6 2:10"), [4, 6, 10])),
        (forward([2], 1), reads(sees("0:3 1:5 2:11"), [3, 5, 11])),
    ),
    case(
        "without a slot for it a sequence finds the cache full",
        state(sequences=2, slots=1),
        (forward([0]), reads(sees("0:0"), [0])),
        (forward([0], 1), FULL),
        (forward([1, 0], [0, 1]), FULL),
        (get(), USAGE),
        (forward([1]), reads(sees("0:0 1:4"), [0, 4])),
        (remove(0, 0, None), DONE),
        (forward([0], 1), reads(sees("0:5"), [5])),
        (forward([0]), FULL),
    ),
    case(
        "without room for its tokens a state stays as it was",
        state(capacity=2),
        (forward([0]), reads(sees("0:0"), [0])),
        (forward([1, 2]), FULL),
        (forward([1]), reads(sees("0:0 1:3"), [0, 3])),
        (forward([2]), FULL),
    ),
    case(
        "a shared state parts when one goes on",
        state(sequences=2),
        (forward([0, 1]), reads(sees("0:0", "0:0 1:1"), [0, 1])),
        (copy(0, 1, 2), DONE),
        (forward([2], 1), reads(sees("0:0 1:1 2:2"), [0, 1, 2])),
        (forward([2]), reads(sees("0:0 1:1 2:3"), [0, 1, 3])),
        (
            forward([3, 3], [0, 1]),
            reads(sees("0:0 1:1 2:3 3:4", "0:0 1:1 2:2 3:5"), [0, 1, 3, 4], [0, 1, 2, 5]),
        ),
    ),
    case(
        "or when both do in one batch",
        state(sequences=2),
        (forward([0]), reads(sees("0:0"), [0])),
        (copy(0, 1, 1), DONE),
        (
            forward([1, 1], [1, 0]),
            reads(sees("0:0 1:1", "0:0 1:2"), [0, 1], [0, 2]),
        ),
    ),
    case(
        "to share takes no slot, to part takes one",
        state(sequences=3, slots=2),
        (forward([0]), reads(sees("0:0"), [0])),
        (copy(0, 1, 1), DONE),
        (copy(1, 2, 1), DONE),
        (forward([1]), reads(sees("0:0 1:1"), [0, 1])),
        (forward([1], 1), FULL),
        (remove(2, 0, None), DONE),
        (forward([1], 1), reads(sees("0:0 1:3"), [0, 3])),
        (forward([1], 2), FULL),
    ),
    case(
        "a state is shared whole, however short the prefix",
        state(sequences=2),
        (forward([0, 1]), reads(sees("0:0", "0:0 1:1"), [0, 1])),
        (copy(0, 1, 1), DONE),
        (forward([2], 1), reads(sees("0:0 2:2"), [0, 1, 2])),
    ),
    case(
        "the target of a copy gives its own state up",
        state(sequences=2, slots=2),
        (forward([0, 0], [0, 1]), reads(sees("0:0", "0:1"), [0], [1])),
        (copy(0, 1, 1), DONE),
        (forward([1], 1), reads(sees("0:0 1:2"), [0, 2])),
        (remove(0, 0, None), DONE),
        (copy(0, 1, 1), DONE),
        (forward([0], 1), reads(sees("0:3"), [3])),
    ),
    case(
        "without checkpoints only all of a sequence can go",
        STATE,
        (forward([0, 1, 2]), reads(sees("0:0", "0:0 1:1", "0:0 1:1 2:2"), [0, 1, 2])),
        (remove(0, 2, None), REFUSED),
        (remove(0, 1, 2), REFUSED),
        (get(), sees("0:0", "0:0 1:1", "0:0 1:1 2:2")),
        (remove(0, 3, None), DONE),
        (forward([3]), reads(sees("0:0 1:1 2:2 3:3"), [0, 1, 2, 3])),
        (remove(0, 0, None), DONE),
        (forward([0]), reads(sees("0:4"), [4])),
    ),
    case(
        "with them the end can go where one stands, exactly",
        state(interval=1, checkpoints=2),
        (forward([0, 1]), reads(sees("0:0", "0:0 1:1"), [0, 1])),
        (forward([2]), reads(sees("0:0 1:1 2:2"), [0, 1, 2])),
        (
            forward([3, 4]),
            reads(
                sees("0:0 1:1 2:2 3:3", "0:0 1:1 2:2 3:3 4:4"),
                [0, 1, 2, 3, 4],
            ),
        ),
        (remove(0, 4, None), REFUSED),  # a pass went on over 3
        (remove(0, 2, None), REFUSED),  # the checkpoint at 1 was the third last
        (remove(0, 2, 3), REFUSED),
        (remove(0, 3, None), DONE),
        (forward([3]), reads(sees("0:0 1:1 2:2 3:5"), [0, 1, 2, 5])),
        (remove(0, 3, None), DONE),
        (forward([3]), reads(sees("0:0 1:1 2:2 3:6"), [0, 1, 2, 6])),
    ),
    case(
        "a checkpoint stands the interval behind the last, or further",
        state(interval=3, checkpoints=8),
        (forward([0]), reads(sees("0:0"), [0])),
        (forward([1, 2]), reads(sees("0:0 1:1", "0:0 1:1 2:2"), [0, 1, 2])),
        (remove(0, 3, None), DONE),
        (remove(0, 2, None), REFUSED),
        (
            forward([3, 4]),
            reads(
                sees("0:0 1:1 2:2 3:3", "0:0 1:1 2:2 3:3 4:4"),
                [0, 1, 2, 3, 4],
            ),
        ),
        (
            forward([5]),
            reads(sees("0:0 1:1 2:2 3:3 4:4 5:5"), [0, 1, 2, 3, 4, 5]),
        ),
        (remove(0, 3, None), REFUSED),
        (remove(0, 5, None), DONE),
        (
            forward([5]),
            reads(sees("0:0 1:1 2:2 3:3 4:4 5:6"), [0, 1, 2, 3, 4, 6]),
        ),
        (remove(0, 1, None), DONE),
        (forward([1]), reads(sees("0:0 1:7"), [0, 7])),
    ),
    case(
        "to go back to a checkpoint leaves a shared state to the other",
        state(sequences=2, interval=1, checkpoints=2),
        (forward([0]), reads(sees("0:0"), [0])),
        (forward([1]), reads(sees("0:0 1:1"), [0, 1])),
        (copy(0, 1, 2), DONE),
        (remove(1, 1, None), DONE),
        (forward([1], 1), reads(sees("0:0 1:2"), [0, 2])),
        (forward([2]), reads(sees("0:0 1:1 2:3"), [0, 1, 3])),
    ),
    case(
        "to go back alone takes a slot, as to go on alone does",
        state(sequences=2, slots=1, interval=1, checkpoints=4),
        (forward([0]), reads(sees("0:0"), [0])),
        (forward([1]), reads(sees("0:0 1:1"), [0, 1])),
        (copy(0, 1, 2), DONE),
        (remove(1, 1, None), FULL),
        (get(), USAGE),
        (remove(0, 0, None), DONE),
        (remove(1, 1, None), DONE),
        (forward([1], 1), reads(sees("0:0 1:2"), [0, 2])),
    ),
    case(
        "to reserve reads nothing",
        state(sequences=2, slots=1),
        (forward([0]), reads(sees("0:0"), [0])),
        (forward([0], 1, reserve=True), DONE),
        (forward([1]), reads(sees("0:0 1:2"), [0, 2])),
    ),
    case(
        "it can resume at its begin and where it stands",
        STATE,
        (resume(0, 0), YES),
        (forward([0, 1]), reads(sees("0:0", "0:0 1:1"), [0, 1])),
        (resume(0, 0), YES),
        (resume(0, 2), YES),
    ),
]

ALL: list[Case] = [*ENCODERS, *WRAPPERS, *STATES]


@each(ALL)
def test_case(one: Case) -> None:
    check_case(one)


def test_the_command_says_the_same(tmp_path: Path) -> None:
    check_command(ALL, tmp_path)
