"""Operations that break a rule of usage: each must be refused, and change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.types import Op, Source
from lockstep.harness.contracts.unified.model import UnifiedModel
from lockstep.harness.contracts.unified.operations import OPERATIONS


def draw_misuse(source: Source, model: UnifiedModel, names: Sequence[str]) -> Op | None:
    """One of the operations `names`, wrong in one thing."""
    known = [name for name in names if name in WRONG]
    return WRONG[source.pick(known)](source, model) if known else None


def draw_wrong_forward(source: Source, model: UnifiedModel) -> Op | None:
    op = OPERATIONS["forward"].draw(source, model)
    if op is None:
        return None
    positions, sequences = list(op["positions"]), list(op["sequences"])
    rows, count = len(positions), model.config["sequences"]
    row = source.below(rows)
    batch = model.config["batch"]
    wrong: Sequence[Mapping[str, Any]] = (
        {"positions": [*positions, 0]},
        {"sequences": sequences[:-1]},
        {"positions": put_at(positions, row, -1 - source.below(3))},
        {"positions": [], "sequences": [], "except": [], "multimodal": []},
        {
            "positions": list(range(batch + 1 + source.below(3))),
            "sequences": [0] * (batch + 1),
        },
        {"positions": list(range(batch + 1)), "sequences": [0] * (batch + 1)},
        {"sequences": put_at(sequences, row, count + source.below(2))},
        {"sequences": put_at(sequences, row, -1)},
        {"except": [rows + source.below(2)]},
        {"except": [-1]},
        {"multimodal": [rows]},
    )
    return {**op, **source.pick(wrong)}


def draw_wrong_copy(source: Source, model: UnifiedModel) -> Op | None:
    count = model.config["sequences"]
    one, far = source.below(count), count + source.below(2)
    wrong = ((one, one, 1), (far, one, 1), (one, far, 1), (-1, one, 1), (one, -1, 1))
    origin, target, length = source.pick((*wrong, (0, count - 1, -1)))
    return {
        "op": "copy_prefix",
        "source": origin,
        "target": target,
        "length": length,
    }


def draw_wrong_remove(source: Source, model: UnifiedModel) -> Op | None:
    count = model.config["sequences"]
    one, end = source.below(count), model.get_end(0)
    wrong = (
        (one, end + 1, end),
        (one, 2, 1),
        (count, 0, None),
        (-1, 0, None),
        (one, -1, None),
        (one, -1, 1),
    )
    sequence, begin, stop = source.pick(wrong)
    return {"op": "remove", "sequence": sequence, "begin": begin, "end": stop}


def draw_wrong_resume(source: Source, model: UnifiedModel) -> Op | None:
    count = model.config["sequences"]
    sequence, position = source.pick(((count, 0), (-1, 0), (0, -1)))
    return {"op": "can_resume", "sequence": sequence, "position": position}


def draw_wrong_get(source: Source, model: UnifiedModel) -> Op | None:
    """Of a layer that is never written; or of any, which is wrong if no pass is open."""
    layers = model.config["layers"]
    layer = source.pick((0, layers, layers - 1, layers + 3, -1))
    return {"op": "get", "layer": layer, "type": source.below(len(model.parts))}


def draw_wrong_put(source: Source, model: UnifiedModel) -> Op | None:
    config = model.config
    rows = len(model.batch) if model.batch else 1
    wrong: Sequence[Mapping[str, int]] = (
        {"rows": rows + 1},
        {"rows": rows - 1},
        {"heads": config["heads"] + 1},
        {"heads": max(1, config["heads"] - 1)},
        {"key_dim": config["key_dim"] + 2},
        {"value_dim": config["value_dim"] + 1},
        {"layer": config["layers"]},
        {"layer": -1},
        {},
    )
    layer, which = source.below(config["layers"]), source.below(len(model.parts))
    return {"op": "put", "layer": layer, "type": which, **source.pick(wrong)}


def draw_wrong_open(source: Source, model: UnifiedModel) -> Op | None:
    window = source.between(2, 8)
    memory = source.between(1, window)
    return {"op": "open", "window": window, "memory": memory}


WRONG = {
    "forward": draw_wrong_forward,
    "copy_prefix": draw_wrong_copy,
    "remove": draw_wrong_remove,
    "can_resume": draw_wrong_resume,
    "get": draw_wrong_get,
    "put": draw_wrong_put,
    "open": draw_wrong_open,
}


def put_at(items: Sequence[int], place: int, item: int) -> list[int]:
    return [*items[:place], item, *items[place + 1 :]]
