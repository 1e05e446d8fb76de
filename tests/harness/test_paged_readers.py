"""Layers that read another layer: configs, by hand on our cache, and simpler configs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from lockstep.harness.contracts.paged import PAGED
from lockstep.harness.contracts.paged.rewrites import propose_configs
from lockstep.harness.execution.executor import run
from lockstep.harness.workers.registry import load
from lockstep.impl.faults.torch import list_faults
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.torch.backend import cpu
from tests.harness.paging import ask, make, open_request

FULL = {"type": "full", "block": 2, "layers": 1}
SLIDING = {"type": "sliding", "block": 2, "width": 3, "layers": 2}
STATE = {"type": "state", "block": 2, "layers": 1}
STORES = {"data": "backend", "dtype": "float32", "key_dim": 4, "value_dim": 4}

GROUPS = [FULL, SLIDING, STATE]
"""Layer 0 sees all tokens, layers 1 and 2 three; layer 3 has states."""

WRONG = [
    ([4], "layer 4 reads itself"),
    ([0, 6], "layer 5 reads layer 6, which does not exist"),
    ([5, 0], "layer 4 reads layer 5, which computes later"),
    ([0, 4], "layer 5 reads layer 4, which only reads layer 0; name it"),
    ([3], "layer 4 reads layer 3, which has no K and V"),
]


@pytest.mark.parametrize(("reads", "why"), WRONG)
def test_a_layer_reads_an_earlier_layer_with_k_and_v(
    reads: Sequence[int], why: str
) -> None:
    config = make(groups=GROUPS, **STORES).config
    assert PAGED.why_illegal({**config, "reads": [0, 1]}) is None
    assert PAGED.why_illegal({**config, "reads": reads}) == f"reads: {why}"


def test_the_harness_holds_no_k_and_v_for_layers_that_read() -> None:
    config = make(groups=GROUPS).config
    why = "reads needs K and V in the backend; set data to backend"
    assert PAGED.why_illegal({**config, "reads": [0]}) == why


@pytest.mark.parametrize(
    ("reads", "why"),
    [
        ([4], "layer 4 reads itself"),
        ([5, 0], "layer 4 reads layer 5, but 0 … 3 are before it"),
        ([0, 4], "layer 5 reads layer 4, which only reads another layer"),
        ([-1], "layer 4 reads layer -1, but 0 … 3 are before it"),
        ([3], "layer 4 reads layer 3, which has states"),
    ],
)
def test_our_cache_refuses_such_layers(reads: Sequence[int], why: str) -> None:
    config = make(groups=GROUPS, **STORES).config
    with pytest.raises(MisuseError, match=f"^{why}$"):
        cpu().open({**config, "reads": reads, "poison": False})


# --- by hand ----------------------------------------------------------------------------


def test_a_reading_layer_writes_nothing_and_sees_what_the_other_sees() -> None:
    """V of token n is n; K and the queries are 0, so attention is the mean of V."""
    groups = [{**FULL, "block": 4}, {**SLIDING, "layers": 1}]
    config = make(groups=groups, **STORES).config
    cache = cpu().open({**config, "reads": [1, 0], "poison": True})
    cache.open("a", [1, 2, 3, 4, 5], None)

    def compute(*tokens: int) -> tuple[list[list[float]], list[list[float]]]:
        cache.schedule("a", len(tokens))
        zeros = torch.zeros(1, 1, len(tokens), 4)
        written = zeros + torch.tensor([*map(float, tokens)])[None, None, :, None]
        seen, attended = [], []
        for layer in range(4):
            values = written if layer < 2 else written + 90
            [[_, read]] = cache.update(layer, zeros, values)
            seen.append(read[0, 0, :, 0].tolist())
            attended.append(cache.attend(layer, zeros)[0, 0, :, 0].tolist())
        cache.run()
        return seen, attended

    seen, attended = compute(1, 2, 3)
    assert seen == [[1, 2, 3]] * 4
    assert attended == [pytest.approx([1, 1.5, 2])] * 4
    seen, attended = compute(4, 5)
    full, window = [1, 2, 3, 4, 5], [2, 3, 4, 5]  # token 4 attends to 2 … 4
    assert seen == [full, window, window, full]
    means = pytest.approx([2.5, 3]), pytest.approx([3, 4])
    assert attended == [means[0], means[1], means[1], means[0]]


STEP = (open_request("a", 1, 2), ask("schedule", "a", count=2), {"op": "run"})


@pytest.mark.parametrize(
    ("mistake", "width", "what"),
    [
        ("paged-reader-writes", None, "contents"),
        ("paged-reader-is-late", 2, "attention"),
        ("paged-reader-without-mask", None, "attention"),
    ],
)
def test_a_mistake_is_found_only_with_a_reading_layer(
    mistake: str, width: int | None, what: str
) -> None:
    group = {**SLIDING, "layers": 1, "width": width} if width else FULL
    (planted,) = (fault for fault in list_faults() if fault.id == mistake)
    backend = load(planted.backend)
    for reads in ([], [0]):
        program = make(*STEP, groups=[group], **STORES, reads=reads)
        divergence = run(program, backend, every=True).divergence
        assert (divergence is not None) == bool(reads)
    assert divergence is not None
    assert divergence.what == what
    assert "layer 1, which reads layer 0" in divergence.message


# --- simpler configs --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "reads", "simpler"),
    [
        # the layers of each group, and the layers that are read
        ([1], [0, 0], []),
        ([1, 2], [0, 2, 1], ["2 reads 1 0", "1 reads 0", "1 1 reads 0 1 1"]),
        ([2, 1], [0, 1, 2], ["1 reads 0", "2 reads 0 1", "1 1 reads 0 0 1"]),
    ],
)
def test_simpler_configs_keep_the_layers_that_read(
    groups: Sequence[int], reads: Sequence[int], simpler: Sequence[str]
) -> None:
    config = make(groups=[{**FULL, "layers": count} for count in groups], **STORES).config
    proposed = propose_configs({**config, "reads": reads}, ())
    found = [
        f"{' '.join(str(group['layers']) for group in changed['groups'])} reads"
        f" {' '.join(map(str, changed['reads']))}"
        for changed, _ in proposed
        if all(group["block"] == 2 for group in changed["groups"])
    ]
    singles = [[*reads[:at], *reads[at + 1 :]] for at in range(len(reads))]
    counts = " ".join(map(str, groups))
    shorter = [f"{counts} reads {' '.join(map(str, each))}" for each in singles]
    assert found == [*shorter, *simpler]
