"""A driver of batches that misbehaves, in one way that its first argument names.

    python -m tests.harness.exec.batch_driver WAY

It relays to the correct batches of `tests.harness.batching`, and changes one answer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.harness.exec.relay import Answer, Message, Relay, serve

sys.path.insert(0, str(Path(__file__).parents[1]))

Change = Callable[[Answer], Any]


def put(**fields: Any) -> Change:
    return lambda answer: answer | fields


def drop_row(name: str) -> Change:
    """An array without its last row."""

    def change(answer: Answer) -> Answer:
        array = answer[name]
        rows, *shape = array["shape"]
        data = array["data"][: len(array["data"]) // rows * (rows - 1)]
        return answer | {name: {**array, "shape": [rows - 1, *shape], "data": data}}

    return change


def drop_last(name: str) -> Change:
    return lambda answer: answer | {name: answer[name][:-1]}


def fill(*shape: int, value: Any = 1, dtype: str = "bool") -> dict[str, Any]:
    return {"shape": list(shape), "data": [value] * math.prod(shape), "dtype": dtype}


def change_offsets(change: Callable[[list[int]], Any]) -> Change:
    """Of batches that are not empty, whose offsets are not all 0."""

    def act(answer: Answer) -> Answer:
        offsets = answer["offsets"]
        return answer | {"offsets": change(offsets)} if any(offsets) else answer

    return act


def change_list(change: Callable[[list[int]], Any]) -> Change:
    """Of the offsets of single lists."""

    def act(answer: Answer) -> Answer:
        told = "offsets" in answer
        return answer | {"offsets": change(answer["offsets"])} if told else answer

    return act


WAYS: Mapping[str, tuple[str, Change]] = {
    "well": ("", put()),
    "keys-of-one-row": ("update", drop_row("keys")),
    "offsets-of-one-row": ("offsets", change_offsets(lambda offsets: offsets[:-1])),
    "offsets-of-three-rows": ("offsets", change_offsets(lambda offsets: [*offsets, 0])),
    "many-offsets": ("offsets", change_offsets(lambda offsets: [1] * 100_000)),
    "many-sizes": ("size", put(sizes=[3] * 100_000)),
    "offsets-in-words": ("offsets", change_offsets(lambda offsets: ["0", "0"])),
    "half-an-offset": ("offsets", change_offsets(lambda offsets: [0.5, 0])),
    "wrong-offsets": (
        "offsets",
        change_offsets(lambda offsets: [n + 1 for n in offsets]),
    ),
    "mask-in-words": ("make_mask", put(mask="triangular")),
    "mask-of-no-axes": ("make_mask", put(mask=fill())),
    "mask-of-one-axis": ("make_mask", put(mask=fill(5))),
    "mask-of-three-rows": ("make_mask", put(mask=fill(3, 1, 2, 2))),
    "mask-of-halves": ("make_mask", put(mask=fill(3, 3, value=0.5))),
    "mask-of-floats": ("make_mask", put(mask=fill(3, 3, value=0.5, dtype="float32"))),
    "mask-of-nothing": ("make_mask", put(mask=fill(2, 1, 3, 0))),
    "mask-is-null": ("make_mask", put(mask=None)),
    "mask-is-causal": ("make_mask", put(mask="causal")),
    "state-of-one-row": ("state", drop_last("rows")),
    "state-of-null": ("state", put(rows=[None, None])),
    "state-without-values": ("state", put(rows=[{"keys": fill(1)}] * 2)),
    "sizes-of-one-row": ("size", drop_last("sizes")),
    "read-of-one-row": ("read", drop_row("conv")),
    "extract-short": ("extract", put(offset=1)),
    "extract-unknown": ("extract", put(cache=99)),
    "rollback-of-one": ("rollback", put(done=1)),
    "save-nothing": ("save", put(saved=None)),
    "open-the-same": ("open", put(cache=0)),
    "extract-one-part": ("extract", change_list(lambda offsets: offsets[:-1])),
    "extract-three-parts": ("extract", change_list(lambda offsets: [*offsets, 0])),
    "extract-no-parts": ("extract", lambda answer: {"cache": answer["cache"]}),
    "extract-a-short-part": ("extract", change_list(lambda offsets: [*offsets[:-1], 1])),
    "trim-one-part": ("trim", change_list(lambda offsets: offsets[:-1])),
    "free-one-part": ("free", change_list(lambda offsets: offsets[:-1])),
    "unknown-part": ("update 1", put(error="failed", message="there is no part 1")),
    "part-that-refuses": ("state 1", put(error="usage", message="there is no part 1")),
    "part-of-one-row": ("offsets 1", change_offsets(lambda offsets: offsets[:-1])),
    "keys-of-a-part": ("update 1", drop_row("keys")),
}
"""Way → the operation whose answers are wrong, with the part of a list if it is only one,
and the change."""


class Misbehaving(Relay):
    """Changes the answers to one operation."""

    def __init__(self, backend: Any, way: tuple[str, Change]) -> None:
        super().__init__(backend)
        self.operation, self.change = way

    def answer(self, message: Message) -> Answer:
        answer = super().answer(message)
        of_part = f"{message['op']} {message.get('part')}"
        if self.operation not in (message["op"], of_part):
            return answer
        return self.change(answer)  # type: ignore[no-any-return]


def main() -> None:
    from tests.harness.batching import make

    serve(Misbehaving(make(), WAYS[sys.argv[1]]))


if __name__ == "__main__":
    main()
