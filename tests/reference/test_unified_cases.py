"""The causal family, by cases that were worked out by hand from the rule of visibility.

Tags count from 0 in each program, whether or not what they belong to was refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from unified_program import (
    DONE,
    FULL,
    NO,
    REFUSED,
    SHARED,
    USAGE,
    YES,
    Case,
    case,
    check_case,
    check_command,
    copy,
    each,
    forward,
    get,
    remove,
    resume,
    sees,
)

from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import parse_program

ONE = {"kind": "causal"}
TWO = {"kind": "causal", "sequences": 2}
FOUR = (forward([0, 1, 2, 3]), sees("0:0", "0:0 1:1", "0:0 1:1 2:2", "0:0 1:1 2:2 3:3"))
"""The first four tokens of sequence 0, where nothing hides one from another."""

PAIR = (forward([0, 1]), sees("0:0", "0:0 1:1"))
NARROW = (forward([0, 1, 2, 3]), sees("0:0", "0:0 1:1", "1:1 2:2", "2:2 3:3"))
"""The same with a window of 1."""


def sliding(window: int, **more: int) -> dict[str, object]:
    return {"kind": "swa", "window": window, **more}


def memory(window: int, memory: int, **more: int) -> dict[str, object]:
    return {"kind": "swa-memory", "window": window, "memory": memory, **more}


WINDOWS = [
    case("a row sees all before it and itself", ONE, FOUR),
    case(
        "a row sees itself and as many before as the window says",
        sliding(2),
        (forward([0, 1, 2, 3]), sees("0:0", "0:0 1:1", "0:0 1:1 2:2", "1:1 2:2 3:3")),
        (forward([4]), sees("2:2 3:3 4:4")),
        (forward([5, 6]), sees("3:3 4:4 5:5", "4:4 5:5 6:6")),
    ),
    case(
        "a window of 1 is two tokens",
        sliding(1),
        (forward([0, 1, 2]), sees("0:0", "0:0 1:1", "1:1 2:2")),
        (forward([3]), sees("2:2 3:3")),
    ),
    case(
        "a window of 0 is none",
        sliding(0, capacity=5),
        FOUR,
        (forward([4]), sees("0:0 1:1 2:2 3:3 4:4")),
        (forward([5]), FULL),
    ),
    case(
        "a chunk begins at a multiple of its size",
        {"kind": "chunked", "chunk": 3},
        (forward([0, 1, 2, 3]), sees("0:0", "0:0 1:1", "0:0 1:1 2:2", "3:3")),
        (forward([4, 5, 6, 7]), sees("3:3 4:4", "3:3 4:4 5:5", "6:6", "6:6 7:7")),
    ),
    case(
        "in a chunk of 1 a row sees what stands where it stands",
        {"kind": "chunked", "chunk": 1},
        (forward([0, 1, 1, 2]), sees("0:0", "1:1 1:2", "1:1 1:2", "2:3")),
    ),
    case(
        "chunks hold nothing back: what lies before one is seen from there again",
        {"kind": "chunked", "chunk": 2, "capacity": 5},
        (forward([0, 1, 2, 3]), sees("0:0", "0:0 1:1", "2:2", "2:2 3:3")),
        (forward([1]), sees("0:0 1:1 1:4")),
        (resume(0, 9), YES),
        (forward([4]), FULL),
    ),
]

EXCEPTIONS = [
    case(
        "an exception frees its row, for its own sequence, and for this pass only",
        TWO,
        (
            forward([0, 1, 0, 1], [0, 0, 1, 1], except_=[0]),
            sees("0:0 1:1", "0:0 1:1", "0:2", "0:2 1:3"),
        ),
        (forward([2, 2], [0, 1]), sees("0:0 1:1 2:4", "0:2 1:3 2:5")),
        (forward([0]), sees("0:0 0:6")),
    ),
    case(
        "of two rows at one position only the one that is named looks ahead",
        ONE,
        (forward([0, 1, 2]), sees("0:0", "0:0 1:1", "0:0 1:1 2:2")),
        (
            forward([1, 1], except_=[1]),
            sees("0:0 1:1 1:3 1:4", "0:0 1:1 1:3 1:4 2:2"),
        ),
    ),
    case(
        "an exception does not widen the window behind a row",
        sliding(1),
        (
            forward([0, 1, 2, 3], except_=[0, 2]),
            sees("0:0 1:1 2:2 3:3", "0:0 1:1", "1:1 2:2 3:3", "2:2 3:3"),
        ),
    ),
    case(
        "an exception sees on past the end of its chunk, but not before its begin",
        {"kind": "chunked", "chunk": 2},
        (
            forward([0, 1, 2, 3], except_=[1, 2]),
            sees("0:0", "0:0 1:1 2:2 3:3", "2:2 3:3", "2:2 3:3"),
        ),
    ),
]

EVICTION = [
    case(
        "what lies exactly the memory before the lowest row stays, one before it goes",
        memory(1, 3),
        NARROW,
        (resume(0, 1), YES),
        (forward([4]), sees("3:3 4:4")),
        (resume(0, 1), NO),
        (resume(0, 2), YES),
        (forward([2]), sees("1:1 2:2 2:5")),
        (forward([1]), sees("1:1 1:6")),
    ),
    case(
        "the lowest row of a batch counts, wherever it stands in it",
        sliding(1),
        (forward([0, 1, 2]), sees("0:0", "0:0 1:1", "1:1 2:2")),
        (forward([4, 2]), sees("4:3", "1:1 2:2 2:4")),
        (resume(0, 2), YES),
        (resume(0, 1), NO),
    ),
    case(
        "the rows of another sequence do not count",
        sliding(1, sequences=2),  # memory 2, for there are two sequences
        (forward([0, 1, 2]), sees("0:0", "0:0 1:1", "1:1 2:2")),
        (forward([3, 0], [0, 1]), sees("2:2 3:3", "0:4")),
        (resume(0, 2), YES),
        (resume(0, 1), NO),
    ),
    case(
        "an idle sequence is evicted up to the memory before its end",
        sliding(2, sequences=2),  # memory 3
        (forward([0, 1, 2, 3], 1), sees("0:0", "0:0 1:1", "0:0 1:1 2:2", "1:1 2:2 3:3")),
        (resume(1, 2), YES),
        (forward([0]), sees("0:4")),
        (resume(1, 2), NO),
        (resume(1, 3), YES),
        (resume(1, 4), YES),
        (resume(1, 5), NO),
    ),
    case(
        "what an idle sequence lets go of makes room for another",
        sliding(1, sequences=2),  # memory 2, room for 2 × 2 + 4
        NARROW,
        (forward([0, 1, 2, 3], 1), sees("0:4", "0:4 1:5", "1:5 2:6", "2:6 3:7")),
        (
            forward([4, 5, 6, 7]),
            sees("3:3 4:8", "4:8 5:9", "5:9 6:10", "6:10 7:11"),
        ),
    ),
    case(
        "one sequence may have a memory as small as the window",
        memory(2, 2),
        (forward([0, 1, 2, 3]), sees("0:0", "0:0 1:1", "0:0 1:1 2:2", "1:1 2:2 3:3")),
        (forward([4]), sees("2:2 3:3 4:4")),
        (resume(0, 3), NO),
        (resume(0, 4), YES),
    ),
    case(
        "several need one more, for a token to stop at",
        memory(2, 2, sequences=2),
        (forward([0, 1, 2, 3]), sees("0:0", "0:0 1:1", "0:0 1:1 2:2", "1:1 2:2 3:3")),
        (forward([4]), sees("2:2 3:3 4:4")),
        (resume(0, 3), YES),
        (resume(0, 2), NO),
    ),
    case(
        "a memory of the capacity evicts nothing, and the window still hides",
        memory(1, 4, capacity=4),
        NARROW,
        (forward([4]), FULL),
        (resume(0, 1), YES),
        (resume(0, 99), YES),
        (remove(0, 3, None), DONE),
        (forward([1]), sees("0:0 1:1 1:5")),
    ),
    case(
        "a memory that only several sequences bring up to the capacity does so too",
        sliding(3, capacity=4, sequences=2),
        FOUR,
        (
            forward([4, 5, 6, 7]),
            sees(
                "1:1 2:2 3:3 4:4",
                "2:2 3:3 4:4 5:5",
                "3:3 4:4 5:5 6:6",
                "4:4 5:5 6:6 7:7",
            ),
        ),
        (forward([0], 1), FULL),
        (resume(1, 5), YES),
    ),
    case(
        "the same memory below the capacity evicts",
        sliding(3, capacity=4),
        FOUR,
        (forward([4]), sees("1:1 2:2 3:3 4:4")),
        (resume(0, 3), NO),
    ),
    case(
        "after a shift a window may hold fewer tokens than it could",
        sliding(2),
        (forward([0, 1, 2, 3]), sees("0:0", "0:0 1:1", "0:0 1:1 2:2", "1:1 2:2 3:3")),
        (forward([4]), sees("2:2 3:3 4:4")),
        (remove(0, 2, 4), DONE),
        (forward([3]), sees("2:4 3:5")),
    ),
]

ROOM = [
    case(
        "full is: fewer places than rows, not fewer or as many",
        {"kind": "causal", "capacity": 5},
        (forward([0, 1, 2]), sees("0:0", "0:0 1:1", "0:0 1:1 2:2")),
        (forward([3, 4, 5]), FULL),
        (get(), USAGE),
        (forward([3, 4]), sees("0:0 1:1 2:2 3:6", "0:0 1:1 2:2 3:6 4:7")),
        (get(), sees("0:0 1:1 2:2 3:6", "0:0 1:1 2:2 3:6 4:7")),
        (forward([5]), FULL),
    ),
    case(
        "one sequence may take the room of all",
        {"kind": "causal", "capacity": 2, "sequences": 2},
        FOUR,
        (forward([0], 1), FULL),
    ),
    case(
        "with a memory there is room for it and a batch",
        memory(1, 2, batch=3),
        (forward([0, 1, 2]), sees("0:0", "0:0 1:1", "1:1 2:2")),
        (forward([0, 1]), sees("0:0 0:3", "0:0 0:3 1:1 1:4")),
        (forward([0]), FULL),
    ),
    case(
        "rounded up by the padding there is room for one more",
        memory(1, 2, batch=3, cache_padding=2),
        (forward([0, 1, 2]), sees("0:0", "0:0 1:1", "1:1 2:2")),
        (forward([0, 1]), sees("0:0 0:3", "0:0 0:3 1:1 1:4")),
        (forward([0]), sees("0:0 0:3 0:5")),
        (forward([0]), FULL),
    ),
    case(
        "the padding rounds a capacity up too",
        {"kind": "causal", "capacity": 3, "cache_padding": 4},
        FOUR,
        (forward([4]), FULL),
    ),
    case(
        "each sequence has a memory, and all have one batch",
        sliding(1, sequences=2, batch=2),  # memory 2, room for 2 × 2 + 2
        (forward([0, 0], [0, 1]), sees("0:0", "0:1")),
        (forward([0, 0], [0, 1]), sees("0:0 0:2", "0:1 0:3")),
        (forward([0, 0], [0, 1]), sees("0:0 0:2 0:4", "0:1 0:3 0:5")),
        (forward([0]), FULL),
    ),
    case(
        "what was evicted for a batch that then did not fit stays gone",
        memory(1, 2),  # room for 6
        NARROW,
        (forward([3, 3]), sees("2:2 3:3 3:4 3:5", "2:2 3:3 3:4 3:5")),
        (resume(0, 2), YES),
        (forward([4, 4, 4, 4]), FULL),
        (resume(0, 2), NO),
        (get(), USAGE),
        (forward([1]), sees("1:10")),
    ),
    case(
        "holes among the tokens are room like any other",
        {"kind": "causal", "capacity": 3, "sequences": 2},
        (
            forward([0, 0, 1, 1], [0, 1, 0, 1]),
            sees("0:0", "0:1", "0:0 1:2", "0:1 1:3"),
        ),
        (forward([2, 2], [0, 1]), sees("0:0 1:2 2:4", "0:1 1:3 2:5")),
        (remove(0, 0, None), DONE),
        (
            forward([3, 4, 5], 1),
            sees("0:1 1:3 2:5 3:6", "0:1 1:3 2:5 3:6 4:7", "0:1 1:3 2:5 3:6 4:7 5:8"),
        ),
        (forward([6], 1), FULL),
    ),
    case(
        "to reserve changes nothing and needs no room",
        {"kind": "causal", "capacity": 2},
        PAIR,
        (forward([2, 3, 4, 5], reserve=True), DONE),
        (forward([2]), FULL),
        (remove(0, 1, None), DONE),
        (forward([1]), sees("0:0 1:7")),
    ),
    case(
        "to reserve evicts nothing",
        sliding(1),
        (forward([0, 1, 2]), sees("0:0", "0:0 1:1", "1:1 2:2")),
        (forward([9], reserve=True), DONE),
        (resume(0, 1), YES),
        (forward([1]), sees("0:0 1:1 1:4")),
    ),
]

POSITIONS = [
    case(
        "a position that is taken twice is seen twice",
        ONE,
        (forward([0, 0]), sees("0:0 0:1", "0:0 0:1")),
        (forward([0, 1]), sees("0:0 0:1 0:2", "0:0 0:1 0:2 1:3")),
    ),
    case(
        "gaps and steps back are the caller's",
        ONE,
        (forward([0, 5]), sees("0:0", "0:0 5:1")),
        (forward([3]), sees("0:0 3:2")),
        (forward([9]), sees("0:0 3:2 5:1 9:3")),
    ),
    case(
        "the order of the rows does not count",
        ONE,
        (forward([2, 0, 1]), sees("0:1 1:2 2:0", "0:1", "0:1 1:2")),
    ),
    case(
        "behind a gap a window is empty but for the row itself",
        sliding(2),
        PAIR,
        (forward([10]), sees("10:2")),
        (forward([1]), sees("1:3")),
        (forward([11]), sees("10:2 11:4")),
    ),
]

COPIES = [
    case(
        "a copied prefix is seen by both, what follows by one",
        TWO,
        (forward([0, 1, 2]), sees("0:0", "0:0 1:1", "0:0 1:1 2:2")),
        (copy(0, 1, 2), DONE),
        (forward([2, 3], [1, 0]), sees("0:0 1:1 2:3", "0:0 1:1 2:2 3:4")),
    ),
    case(
        "what is shared takes no room of its own",
        {"kind": "causal", "capacity": 2, "sequences": 2},
        PAIR,
        (copy(0, 1, 2), DONE),
        (forward([2, 2], [0, 1]), sees("0:0 1:1 2:2", "0:0 1:1 2:3")),
        (forward([3]), FULL),
    ),
    case(
        "the target lets go of what it had",
        {"kind": "causal", "capacity": 1, "sequences": 2},
        (forward([0, 0], [0, 1]), sees("0:0", "0:1")),
        (copy(0, 1, 1), DONE),
        (forward([1], 1), sees("0:0 1:2")),
        (forward([1]), FULL),
    ),
    case(
        "a prefix of nothing leaves the target with nothing",
        TWO,
        (forward([0, 0], [0, 1]), sees("0:0", "0:1")),
        (copy(0, 1, 0), DONE),
        (forward([1, 1], [0, 1]), sees("0:0 1:2", "1:3")),
    ),
    case(
        "a prefix longer than the source is all of it",
        TWO,
        PAIR,
        (copy(0, 1, 9), DONE),
        (forward([2], 1), sees("0:0 1:1 2:2")),
    ),
    case(
        "from an empty source comes nothing, and the target still lets go",
        TWO,
        (forward([0], 1), sees("0:0")),
        (copy(0, 1, 5), DONE),
        (forward([1], 1), sees("1:1")),
    ),
    case(
        "a shorter copy of the same leaves what it shared before",
        TWO,
        (forward([0, 1, 2]), sees("0:0", "0:0 1:1", "0:0 1:1 2:2")),
        (copy(0, 1, 3), DONE),
        (copy(0, 1, 1), DONE),
        (forward([1, 3], [1, 0]), sees("0:0 1:3", "0:0 1:1 2:2 3:4")),
    ),
    case(
        "length counts positions, not tokens",
        TWO,
        (forward([0, 4, 2]), sees("0:0", "0:0 2:2 4:1", "0:0 2:2")),
        (copy(0, 1, 3), DONE),
        (forward([5], 1), sees("0:0 2:2 5:3")),
    ),
    case(
        "one sequence may evict what another still has",
        sliding(1, sequences=2),  # memory 2
        NARROW,
        (copy(0, 1, 2), DONE),  # the target has 0 and 1
        (forward([4]), sees("3:3 4:4")),  # sequence 0 keeps 2 and later
        (resume(0, 2), NO),
        (resume(0, 3), YES),
        (resume(1, 1), YES),
        (forward([2], 1), sees("1:1 2:5")),
    ),
]

REMOVALS = [
    case(
        "to the end",
        ONE,
        FOUR,
        (remove(0, 2, None), DONE),
        (forward([2]), sees("0:0 1:1 2:4")),
    ),
    case(
        "what is not there may be removed",
        TWO,
        FOUR,
        (remove(0, 9, None), DONE),
        (remove(0, 9, 12), DONE),
        (remove(1, 0, None), DONE),
        (remove(1, 0, 3), DONE),
        (forward([4]), sees("0:0 1:1 2:2 3:3 4:4")),
    ),
    case(
        "what follows moves up, once and again",
        ONE,
        FOUR,
        (remove(0, 1, 3), DONE),
        (forward([2]), sees("0:0 1:3 2:4")),
        (remove(0, 0, 1), DONE),
        (forward([2]), sees("0:3 1:4 2:5")),
    ),
    case(
        "a finite end behind all of it moves nothing",
        {"kind": "causal", "shift": False},
        FOUR,
        (remove(0, 2, 4), DONE),
        (forward([2]), sees("0:0 1:1 2:4")),
    ),
    case(
        "a gap closes by the length of the range, whatever stood there",
        ONE,
        (forward([0, 5]), sees("0:0", "0:0 5:1")),
        (remove(0, 1, 4), DONE),
        (forward([3]), sees("0:0 2:1 3:2")),
    ),
    case(
        "an empty range leaves all where it is",
        ONE,
        FOUR,
        (remove(0, 1, 1), DONE),
        (forward([4]), sees("0:0 1:1 2:2 3:3 4:4")),
    ),
    case(
        "what is shared cannot move, and then nothing changes",
        TWO,
        FOUR,
        (copy(0, 1, 4), DONE),
        (remove(0, 1, 2), SHARED),
        (forward([4, 4], [0, 1]), sees("0:0 1:1 2:2 3:3 4:4", "0:0 1:1 2:2 3:3 4:5")),
        (remove(1, 0, 3), SHARED),
        (get(), sees("0:0 1:1 2:2 3:3 4:4", "0:0 1:1 2:2 3:3 4:5")),
        (remove(0, 0, None), DONE),
        (remove(1, 0, 3), DONE),
        (forward([2], 1), sees("0:3 1:5 2:6")),
    ),
    case(
        "nor over an empty range",
        TWO,
        PAIR,
        (copy(0, 1, 2), DONE),
        (remove(0, 1, 1), SHARED),
        (remove(0, 2, 2), DONE),
        (forward([2]), sees("0:0 1:1 2:2")),
    ),
    case(
        "one shared token among those behind is enough",
        TWO,
        FOUR,
        (copy(0, 1, 3), DONE),
        (remove(0, 0, 2), SHARED),
        (forward([4]), sees("0:0 1:1 2:2 3:3 4:4")),
    ),
    case(
        "a prefix shared below the range is fine",
        TWO,
        FOUR,
        (copy(0, 1, 2), DONE),
        (remove(0, 2, 3), DONE),
        (forward([3, 2], [0, 1]), sees("0:0 1:1 2:3 3:4", "0:0 1:1 2:5")),
    ),
    case(
        "so is one that the range itself cuts",
        TWO,
        FOUR,
        (copy(0, 1, 2), DONE),
        (remove(0, 1, 2), DONE),
        (forward([3, 2], [0, 1]), sees("0:0 1:2 2:3 3:4", "0:0 1:1 2:5")),
    ),
    case(
        "without a shift the middle stays, and the end may go",
        {"kind": "causal", "shift": False},
        FOUR,
        (remove(0, 1, 2), REFUSED),
        (get(), FOUR[1]),
        (remove(0, 1, 1), REFUSED),
        (forward([4]), sees("0:0 1:1 2:2 3:3 4:4")),
        (remove(0, 1, None), DONE),
        (forward([1]), sees("0:0 1:5")),
    ),
    case(
        "a sequence of which nothing is left starts anew",
        sliding(2, capacity=8),
        (forward([0, 1, 2, 3]), sees("0:0", "0:0 1:1", "0:0 1:1 2:2", "1:1 2:2 3:3")),
        (remove(0, 0, None), DONE),
        (resume(0, 0), NO),
        (forward([0]), sees("0:4")),
        (resume(0, 0), YES),
    ),
    case(
        "a step back leaves what lies ahead unseen, and its removal is real",
        ONE,
        (forward([0, 1, 2]), sees("0:0", "0:0 1:1", "0:0 1:1 2:2")),
        (forward([1]), sees("0:0 1:1 1:3")),
        (remove(0, 1, 2), DONE),
        (forward([2]), sees("0:0 1:2 2:4")),
    ),
]

RESUMING = [
    case(
        "without a limit always, whatever is stored",
        TWO,
        (resume(1, 0), YES),
        (resume(0, 100), YES),
        PAIR,
        (resume(0, 100), YES),
    ),
    case(
        "with one, if the window before it is stored and it is at most the next",
        sliding(2, batch=5),
        (resume(0, 0), NO),
        (
            forward([0, 1, 2, 3, 4]),
            sees("0:0", "0:0 1:1", "0:0 1:1 2:2", "1:1 2:2 3:3", "2:2 3:3 4:4"),
        ),
        (resume(0, 0), YES),
        (resume(0, 5), YES),
        (resume(0, 6), NO),
        (forward([5]), sees("3:3 4:4 5:5")),
        (resume(0, 0), NO),
        (resume(0, 4), NO),
        (resume(0, 5), YES),
        (resume(0, 6), YES),
        (resume(0, 7), NO),
    ),
    case(
        "holes are not looked at",
        memory(2, 8),
        (forward([0, 3]), sees("0:0", "3:1")),
        (resume(0, 3), YES),
        (resume(0, 4), YES),
        (resume(0, 5), NO),
    ),
    case(
        "what begins later cannot resume before",
        memory(2, 8),
        (forward([4, 5]), sees("4:0", "4:0 5:1")),
        (resume(0, 5), NO),
        (resume(0, 6), YES),
    ),
]

SAVING = [
    case(
        "what was saved comes back, as often as it is loaded",
        TWO,
        PAIR,
        (copy(0, 1, 1), DONE),
        ({"op": "save", "into": "x"}, DONE),
        (forward([2]), sees("0:0 1:1 2:2")),
        (remove(0, 1, 2), DONE),
        (remove(1, 0, None), DONE),
        ({"op": "load", "from": "x"}, DONE),
        (forward([2, 1], [0, 1]), sees("0:0 1:1 2:3", "0:0 1:4")),
        ({"op": "load", "from": "x"}, DONE),
        (remove(1, 0, 0), SHARED),
        (forward([2]), sees("0:0 1:1 2:5")),
        (
            {"op": "load", "from": "y"},
            {"skipped": "nothing was saved as y"},
        ),
        (forward([3]), sees("0:0 1:1 2:5 3:6")),
    ),
]


def opened(window: int, memory: int) -> dict[str, object]:
    return {"op": "open", "window": window, "memory": memory}


SIZES = [
    case(
        "the memory must hold the window, unless it holds the capacity",
        memory(1, 2, capacity=8),
        (opened(4, 2), USAGE),
        (opened(4, 3), USAGE),
        (opened(4, 4), DONE),
        (opened(4, 0), DONE),
        (opened(0, 3), USAGE),
        (opened(0, 8), DONE),
        (opened(9, 7), USAGE),
        (opened(9, 8), DONE),
    ),
    case(
        "for several sequences it grows to hold the window",
        memory(1, 2, capacity=8, sequences=2),
        (opened(4, 2), DONE),
        (opened(0, 3), DONE),
        (opened(9, 1), DONE),
    ),
]

ALL: list[Case] = [
    *WINDOWS,
    *EXCEPTIONS,
    *EVICTION,
    *ROOM,
    *POSITIONS,
    *COPIES,
    *REMOVALS,
    *RESUMING,
    *SAVING,
    *SIZES,
]


@each(ALL)
def test_case(one: Case) -> None:
    check_case(one)


def test_the_command_says_the_same(tmp_path: Path) -> None:
    check_command(ALL, tmp_path)


def test_a_program_cannot_have_a_memory_smaller_than_its_window() -> None:
    one = case("", memory(4, 3))
    with pytest.raises(UsageError, match="window"):
        parse_program(one.get_program(), "here")
