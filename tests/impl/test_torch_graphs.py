"""Passes in a CUDA graph beside ordinary passes; the table on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu import DEVICE, HAS_GPU, import_kernels
from stepping import step_over

from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import draw_some
from lockstep.impl.shared.causal import Sizes
from lockstep.impl.shared.slots import Slots
from lockstep.impl.torch.backend import declare
from lockstep.impl.torch.causal import CausalCache
from lockstep.impl.torch.graphs import DoesNotFitError, FixedStep
from lockstep.impl.torch.kernels.plain import PlainKernels
from lockstep.impl.torch.recurrent import RecurrentCache

FUSED = import_kernels()
SEQUENCES, CAPACITY, BATCH, LAYERS = 3, 12, 6, 2
KERNELS = [FUSED] if HAS_GPU else [FUSED, PlainKernels()]

both = pytest.mark.parametrize("kernels", KERNELS, ids=lambda each: type(each).__name__)


def make(kernels: Any, permuted: bool = False, **sizes: Any) -> CausalCache:
    return CausalCache(
        Sizes(SEQUENCES, CAPACITY, BATCH, **sizes),
        LAYERS,
        like=torch.empty(0, device=DEVICE),
        mask=torch.empty(0, device=DEVICE, dtype=torch.float16),
        permuted=permuted,
        kernels=kernels,
    )


def draw(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    pool = (LAYERS, 1, 2, rows)
    keys, values = (torch.randn((*pool, dim), generator=source) for dim in (6, 5))
    return keys.to(DEVICE), values.to(DEVICE)


def put_each(cache: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
    for layer in range(LAYERS):
        cache.put(layer, keys[layer], values[layer])


# --- all layers at once -----------------------------------------------------------------


@both
def test_a_pass_that_reserves_stores_no_layer(kernels: Any) -> None:
    cache = make(kernels)
    cache.forward([0, 1], [0, 0], reserve=True)
    cache.put_all(*draw(2))
    assert (cache.keys == 0).all() and (cache.values == 0).all()


# --- the table on the device ------------------------------------------------------------


def test_far_positions_and_many_sequences_are_long() -> None:
    sizes = Sizes(40, 4, 4)
    cache = CausalCache(sizes, like=torch.empty(0, device=DEVICE), kernels=FUSED)
    cache.forward([(1 << 31) - 2], [39])
    table = cache.table.read(cache.cells)
    assert (table.short_positions, table.short_sets) == (True, False)
    cache.forward([(1 << 31) - 1], [39])
    assert not cache.table.read(cache.cells).short_positions


# --- the same work in each step ---------------------------------------------------------


class Decoding:
    """A step whose work puts all layers, from buffers of its own."""

    def __init__(self, cache: CausalCache, rows: int, **options: Any) -> None:
        self.step = FixedStep(cache, rows, **options)
        self.tokens = draw(rows)
        self.calls = 0
        self.step.capture(self.work)

    def work(self) -> Any:
        self.calls += 1
        if self.calls % 2:
            put_each(self.step, *self.tokens)
        else:
            self.step.put_all(*self.tokens)
        return [self.step.get(layer) for layer in range(LAYERS)]

    def run(self, keys: torch.Tensor, values: torch.Tensor) -> Any:
        rows = keys.shape[3]
        for buffer, content in zip(self.tokens, (keys, values), strict=True):
            buffer[:] = torch.nan
            buffer[:, :, :, :rows] = content
        return self.step.run()


@both
def test_nothing_moves_from_step_to_step(kernels: Any) -> None:
    cache = make(kernels)
    decoding = Decoding(cache, 2, columns=16)
    places = set()
    for position in range(6):
        cache.forward([position, position], [0, 1])
        result = decoding.run(*draw(2, position))
        places.add(tuple(part.data_ptr() for layer in result for part in layer))
    assert len(places) == 1
    assert result[0][2].shape == (2, 16)


@both
def test_a_pass_that_no_longer_fits_is_refused(kernels: Any) -> None:
    cache = make(kernels, cache_padding=4)
    decoding = Decoding(cache, 2, columns=8)
    with pytest.raises(ValueError, match="no pass is open"):
        decoding.step.run()
    cache.forward([0, 1, 2], [0, 0, 0])
    with pytest.raises(
        DoesNotFitError, match=r"the pass has 3 rows, but the graph .* for 2;"
    ):
        decoding.step.run()
    put_each(cache, *draw(3))  # the pass is open all the same
    for position in range(3, 8):
        cache.forward([position], [0])
        decoding.run(*draw(1, position))
    cache.forward([8], [0])
    with pytest.raises(DoesNotFitError, match=r"cells up to 12, .* for 8 columns"):
        decoding.run(*draw(1))
    with pytest.raises(DoesNotFitError, match=r"cells up to 12, .* for 11 columns"):
        Decoding(cache, 2, columns=11).run(*draw(1))
    wider = Decoding(cache, 2, columns=16)
    _, _, mask = wider.run(*draw(1))[0]
    assert (mask[0] == 0).sum() == 9
    cache.forward([0], [1], reserve=True)
    with pytest.raises(ValueError, match="only reserves"):
        wider.step.run()


@both
def test_a_step_sees_positions_that_were_far_away_when_it_was_captured(
    kernels: Any,
) -> None:
    cache = make(kernels, window=3, memory=5)
    decoding = Decoding(cache, 2, columns=4)
    for position in ((1 << 31) - 1, 1 << 31):  # the second needs more than 32 bits
        cache.forward([position], [0])
        [(_, _, mask), *_] = decoding.run(*draw(1))
    assert (mask[0] == 0).sum() == 2


@both
def test_steps_are_checked(kernels: Any) -> None:
    cache = make(kernels)
    with pytest.raises(ValueError, match="number of rows must be 1 … 6, not 0"):
        FixedStep(cache, 0, 8)
    with pytest.raises(ValueError, match="number of columns must be 1 … 36, not 99"):
        FixedStep(cache, 2, 99)
    step = FixedStep(cache, 2, 8)
    cache.forward([0], [0])
    with pytest.raises(ValueError, match="nothing was captured"):
        step.run()
    keys, values = draw(2)
    with pytest.raises(ValueError, match="layer 0 has no content"):
        step.get(0)
    with pytest.raises(ValueError, match="there is no layer 2"):
        step.put(2, keys[0], values[0])
    with pytest.raises(ValueError, match="the pass has 2 rows"):
        step.put(0, keys[0, :, :, :1], values[0, :, :, :1])
    with pytest.raises(ValueError, match="there are 2 layers"):
        step.put_all(keys[:1], values[:1])
    step.put_all(keys, values)
    assert step.get(1)[2] is step.mask


def test_states_have_no_fixed_places() -> None:
    sizes, slots = Sizes(SEQUENCES, CAPACITY, BATCH), Slots(3, None, 0)
    cache = RecurrentCache(sizes, slots, (2, 5), (2, 4, 3), rope=None)
    with pytest.raises(ValueError, match="no fixed places"):
        FixedStep(cache, 1, 4)


@both
def test_steps_agree_with_the_reference(kernels: Any) -> None:
    """Passes of any size, with any operation between them."""
    backend = step_over(declare("torch-steps", DEVICE.type, kernels))
    is_slow = kernels is FUSED and not HAS_GPU
    count, longest = (2, 8) if is_slow else (20, None)
    for kind, declared in backend.contracts["unified"].items():
        drawer = Drawer("unified", kind, declared, backend.dtypes, longest=longest)
        for program in draw_some(count, 3, drawer.draw):
            divergence = run(program, backend).divergence
            assert divergence is None, (program.to_json(), divergence)
