"""Passes in a CUDA graph beside ordinary passes; the table on the device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu import DEVICE, HAS_GPU, INTERPRETER, import_kernels, run

from lockstep.impl.shared.causal import Sizes
from lockstep.impl.shared.errors import CacheFullError, SharedError
from lockstep.impl.shared.slots import Slots
from lockstep.impl.torch.causal import CausalCache
from lockstep.impl.torch.graphs import DoesNotFitError, FixedStep
from lockstep.impl.torch.kernels.plain import PlainKernels
from lockstep.impl.torch.mirror import Mirror
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


def check_same(cache: CausalCache, other: CausalCache) -> None:
    for layer in range(LAYERS):
        for one, two in zip(cache.get(layer), other.get(layer), strict=True):
            assert one.shape == two.shape and (one == two).all()


# --- all layers at once -----------------------------------------------------------------


@pytest.mark.parametrize("permuted", [False, True])
@both
def test_all_layers_at_once_are_as_one_by_one(kernels: Any, permuted: bool) -> None:
    at_once, each = make(kernels, permuted), make(PlainKernels(), permuted)
    for cache in (at_once, each):
        cache.forward([0, 0, 1, 1, 2], [0, 1, 0, 1, 0])
    at_once.put_all(*draw(5))
    put_each(each, *draw(5))
    check_same(at_once, each)
    for cache in (at_once, each):
        cache.remove(0, 1, 2)  # leaves a hole, and turns a key
        cache.forward([2, 3], [1, 1])
    at_once.put_all(*draw(2, 1))
    put_each(each, *draw(2, 1))
    check_same(at_once, each)


@both
def test_all_layers_at_once_are_checked_as_one(kernels: Any) -> None:
    cache = make(kernels)
    keys, values = draw(2)
    with pytest.raises(ValueError, match="no pass is open"):
        cache.put_all(keys, values)
    cache.forward([0, 1], [0, 0])
    with pytest.raises(ValueError, match=r"there are 2 layers, so \[2, 1, heads, rows"):
        cache.put_all(keys[:1], values[:1])
    with pytest.raises(ValueError, match=r"the pass has 2 rows, so \[1, heads, 2, dim\]"):
        cache.put_all(keys[:, :, :, :1], values[:, :, :, :1])
    assert cache.written == [False, False]
    cache.put_all(keys, values)
    with pytest.raises(ValueError, match="the first put had"):
        cache.put_all(keys[..., :4], values)


@both
def test_a_pass_that_reserves_stores_no_layer(kernels: Any) -> None:
    cache = make(kernels)
    cache.forward([0, 1], [0, 0], reserve=True)
    cache.put_all(*draw(2))
    assert (cache.keys == 0).all() and (cache.values == 0).all()


# --- the table on the device ------------------------------------------------------------


class Life:
    """Random operations on caches that are to stay the same."""

    def __init__(self, seed: int, *caches: CausalCache) -> None:
        self.source, self.caches = np.random.default_rng(seed), caches
        self.saved: list[Any] = []

    def pick(self, below: int) -> int:
        return int(self.source.integers(below))

    def draw_rows(self, most: int) -> tuple[list[int], list[int]]:
        """New tokens at the ends of sequences, now and then farther on."""
        indexes = self.caches[0].cells.indexes
        ends = [track.last + 1 if len(track) else self.pick(3) for track in indexes]
        owners = [self.pick(SEQUENCES) for _ in range(1 + self.pick(most))]
        positions = []
        for owner in owners:
            positions.append(ends[owner])
            ends[owner] += 1 + (self.pick(6) == 0)
        return positions, owners

    def disturb(self) -> None:
        """One of the operations between passes."""
        kind, one, other = self.pick(8), self.pick(SEQUENCES), self.pick(SEQUENCES)
        begin = self.pick(CAPACITY)
        if kind == 0:
            self.do(lambda cache: cache.remove(one, begin, None))
        elif kind == 1:
            self.do(lambda cache: cache.remove(one, begin, begin + 1 + other))
        elif kind == 2 and one != other:
            self.do(lambda cache: cache.copy_prefix(one, other, begin))
        elif kind == 3:
            self.saved = [cache.save() for cache in self.caches]
        elif kind == 4 and self.saved:
            for cache, saved in zip(self.caches, self.saved, strict=True):
                cache.load(saved)

    def do(self, change: Callable[[Any], Any]) -> bool:
        """Whether none of the caches refused."""
        refused = 0
        for cache in self.caches:
            try:
                change(cache)
            except (SharedError, CacheFullError):
                refused += 1
        assert refused in (0, len(self.caches))
        return not refused


@pytest.mark.parametrize("sizes", [{}, {"window": 3, "memory": 5}])
def test_the_table_on_the_device_follows_that_of_the_host(sizes: Any) -> None:
    cache = make(FUSED, **sizes)
    assert isinstance(cache.table, Mirror)
    life = Life(1, cache)
    most = 0
    for _ in range(150):
        life.disturb()
        rows = life.draw_rows(BATCH)
        life.do(lambda cache, rows=rows: cache.forward(*rows))
        if life.pick(3) == 0:  # else changes gather
            table = cache.table.read(cache.cells)
            assert (table.array.cpu().numpy() == cache.cells.table).all()
            assert table.short_positions and table.short_sets
        most = max(most, len(cache.cells.list_used()))
    assert most > CAPACITY


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


def check_step(result: Any, cache: CausalCache) -> None:
    """The tensors of the step show what those of an ordinary pass do."""
    begin, end = cache.get_pass().begin, cache.get_pass().end
    for layer, (keys, values, mask) in enumerate(result):
        ordinary = cache.get(layer)
        rows = len(cache.get_pass().batch)
        assert (mask[:rows, begin:end] == ordinary[2][:rows]).all()
        assert (mask[rows:] == -torch.inf).all()
        assert (mask[:, :begin] == -torch.inf).all()
        assert (mask[:, end:] == -torch.inf).all()
        if cache.permuted:
            values = values.mT
            ordinary = (ordinary[0], ordinary[1].mT, ordinary[2])
        assert (keys[:, :, begin:end] == ordinary[0]).all()
        assert (values[:, :, begin:end] == ordinary[1]).all()


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("sizes", [{"mask_padding": 4}, {"window": 3, "memory": 5}])
@both
def test_steps_are_as_ordinary_passes(kernels: Any, sizes: Any, permuted: bool) -> None:
    """Whatever happens between them; some passes go the ordinary way."""
    cache, other = (
        make(kernels, permuted, **sizes),
        make(PlainKernels(), permuted, **sizes),
    )
    decoding = Decoding(cache, 4, columns=cache.cells.count, changes=5)
    life, steps = Life(2, cache, other), 0
    for number in range(36):
        life.disturb()
        rows = life.draw_rows(4)
        if not life.do(lambda cache, rows=rows: cache.forward(*rows)):
            life.do(lambda cache: cache.remove(0, 0, None))
            continue
        tokens = draw(len(rows[0]), number)
        put_each(other, *tokens)
        if life.pick(4):
            check_step(decoding.run(*tokens), other)
            steps += 1
        else:
            put_each(cache, *tokens)
            check_same(cache, other)
    assert steps > 18


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
    with pytest.raises(DoesNotFitError, match="a pass of 3 rows; 2 were captured"):
        decoding.step.run()
    put_each(cache, *draw(3))  # the pass is open all the same
    for position in range(3, 8):
        cache.forward([position], [0])
        decoding.run(*draw(1, position))
    cache.forward([8], [0])
    with pytest.raises(DoesNotFitError, match="sees cells up to 12; 8 columns were"):
        decoding.run(*draw(1))
    with pytest.raises(DoesNotFitError, match="sees cells up to 12; 11 columns were"):
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
    with pytest.raises(ValueError, match=r"0 rows; 1 … 6 are possible"):
        FixedStep(cache, 0, 8)
    with pytest.raises(ValueError, match=r"99 columns; 1 … 36 are possible"):
        FixedStep(cache, 2, 99)
    step = FixedStep(cache, 2, 8)
    cache.forward([0], [0])
    with pytest.raises(ValueError, match="nothing was captured"):
        step.run()
    keys, values = draw(2)
    with pytest.raises(ValueError, match="layer 0 was never put"):
        step.get(0)
    with pytest.raises(ValueError, match="layer 2 is none of"):
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


def test_steps_agree_with_the_reference(tmp_path: Path) -> None:
    done = run(
        *("-m", "lockstep.harness.cli.main", "check", "--backend", "stepping:backend"),
        *("--kind", "causal", "--kind", "swa-memory", "--programs", "4"),
        *("--jobs", "1", "--json", "--failures", str(tmp_path)),
        **INTERPRETER,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [pair["programs"] for pair in json.loads(done.stdout)["pairs"]] == [4, 4]
