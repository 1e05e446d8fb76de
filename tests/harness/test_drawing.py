"""Single draws: which values there are, and how frequent they are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Op, Source, advance
from lockstep.harness.contracts.unified.forward import draw_size
from lockstep.harness.programs.generate.sources import RandomSource
from lockstep.harness.programs.vectors.selection import list_levels
from tests.harness.building import KINDS, forward, make, update
from tests.harness.paging import RUN, ask, open_request

DRAWS = 400

# --- the fields of operations -----------------------------------------------------------

SNAPSHOTS = [{"op": "snapshot", "from": begin, "into": f"s{begin}"} for begin in (1, 3)]
BEGIN = {"op": "begin", "user": "a", "tokens": [1, 2, 3, 4, 5, 6]}
FED: list[Op] = [BEGIN, {"op": "feed", "user": "a", "count": 4}]
ACCEPTED: list[Op] = [ask("schedule", "a"), RUN, ask("accept", "a", sampled=1)]
GROUPS = [{"type": "full", "block": 2, "layers": 1}]
PREPARED: dict[tuple[str, str], tuple[Sequence[Op], dict[str, Any]]] = {
    ("layer", "rotating"): (
        [update(3), SNAPSHOTS[0], update(6), SNAPSHOTS[1], {"op": "clone", "into": "b"}],
        {"window": 5},
    ),
    ("layer", "kv"): ([update(3), SNAPSHOTS[0], update(6), SNAPSHOTS[1]], {}),
    ("batched", "batch-kv"): (
        [
            *({"op": "open", "rows": 3}, update(4), {"op": "save", "into": "s"}),
            {"op": "extract", "row": 0, "into": "x"},
        ],
        {},
    ),
    ("batched", "batch-rotating"): (
        [{"op": "open", "rows": 2}],
        {"pads_left": False, "window": 3},
    ),
    ("unified", "causal"): (
        [forward([*range(6), 6, 7], [0] * 5 + [1] * 3), {"op": "save", "into": "x"}],
        {"sequences": 3, "capacity": 16, "batch": 16, "layers": 2},
    ),
    ("unified", "wrapper"): (
        [forward([0, 1, 0], [0, 0, 1])],
        {"caches": [{"kind": "swa", "window": 2}, {"kind": "recurrent"}], "sequences": 2},
    ),
    ("prefix", "trie"): (FED, {"layers": ["kv", "kv"]}),
    ("prefix", "slots"): (FED, {"layers": ["causal"]}),
    ("paged", "paged-full"): (
        [open_request("a", *range(8)), *ACCEPTED, open_request("b", 1, 2)],
        {"groups": GROUPS, "host": 8, "lookahead": 2},
    ),
}
"""Operations that leave much to draw from, and the config."""


def draw_fields(draw: Callable[[Source, Any], Op | None], model: Any) -> dict[str, str]:
    """Returns field → all values that were drawn; of a list, the items and lengths."""
    drawn = defaultdict(set)
    source = RandomSource(1)
    for _ in range(4 * DRAWS):
        for name, value in (draw(source, model) or {}).items():
            if isinstance(value, list):
                drawn[f"len({name})"].add(len(value))
            drawn[name].update(value if isinstance(value, list) else [value])
    return {name: fold(values) for name, values in sorted(drawn.items()) if name != "op"}


def fold(values: set[Any]) -> str:
    texts = sorted(map(str, values), key=lambda text: (len(text), text))
    return ", ".join(texts if len(texts) < 30 else [*texts[:9], "...", texts[-1]])


@pytest.mark.parametrize(("contract", "kind"), PREPARED)
def test_values_of_fields(contract: str, kind: str, snapshot: SnapshotAssertion) -> None:
    """Offsets, counts and numbers at each limit of a cache, below it and above it."""
    ops, config = PREPARED[contract, kind]
    program = make(*ops, contract=contract, kind=kind, **config)
    rules = program.rules
    model = rules.open_model(program.config, rows=False)
    for op in program.ops:
        assert rules.operations[op["op"]].why_illegal(op, model) is None
        advance(rules.operations, op, model)
    drawn = {}
    for name in rules.list_operations(kind):
        operation = rules.operations[name]
        for how in ("draw", "draw_misuse"):
            drawn[f"{how} {name}"] = draw_fields(getattr(operation, how), model)
    assert {name: fields for name, fields in drawn.items() if fields} == snapshot


# --- other choices ----------------------------------------------------------------------


def test_sizes_of_passes() -> None:
    """Most passes have one row; some fill the batch, the cells, or need one more cell."""
    config: dict[str, Any] = {"kind": "causal", "capacity": 9, "batch": 16}
    model = CONTRACTS["unified"].open_model(make(contract="unified", **config).config)
    room, source = model.get_room(), RandomSource(1)
    drawn = Counter(draw_size(source, model) for _ in range(DRAWS))
    assert {*drawn} == {*range(1, 9), 15, 16, room, room + 1}
    assert DRAWS // 4 < drawn[1] < DRAWS // 2


@pytest.mark.parametrize(("goes_far", "wanted"), [(True, {"loaded"}), (False, {"hit"})])
def test_programs_aim_at_cells_of_transfers_or_at_the_others(
    goes_far: bool, wanted: set[str]
) -> None:
    """And at no cell that their config rules out."""
    rules = CONTRACTS["paged"]
    program = make(contract="paged", kind="paged-full", groups=GROUPS, lookahead=0)
    model = rules.open_model(program.config)
    model.goes_far = goes_far
    cells = [(state, "schedule") for state in ("loaded", "hit", "drafted")]
    assert {state for state, _ in rules.choose_cells(model, cells)} == wanted


@pytest.mark.parametrize(("contract", "kind"), KINDS)
def test_only_the_last_level_of_vectors_has_settings(contract: str, kind: str) -> None:
    """A backend without settings can run all programs of the other levels."""
    rules = CONTRACTS[contract]
    *levels, last = list_levels(contract, kind).values()
    config = rules.get_plain_config(kind, last, ("float32",))
    for name in rules.settings:
        default = rules.config[name]["default"]
        for declared in levels:
            assert {*rules.list_options(name, config, declared)} <= {default}
    for name in rules.settings.keys() & last.config:
        assert len({*last.config[name]}) > 1
