"""The Triton kernels beside plain torch operations and beside loops."""

from __future__ import annotations

import inspect
import itertools
import json
import time
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from gpu import DEVICE, DTYPES, HAS_GPU, import_kernels, run
from torch.nn.functional import scaled_dot_product_attention

from ci.bench.kernels import LAUNCHES, Form, list_cases, measure_steps
from lockstep.harness.core.errors import DeviceLost
from lockstep.harness.execution.executor import run as execute
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import draw_some
from lockstep.impl.shared.causal import FAR
from lockstep.impl.torch.arrays import TorchArrays
from lockstep.impl.torch.backend import cpu, cuda, declare, is_fatal, warm_up
from lockstep.impl.torch.kernels import Kernels, Spans, Table, choose
from lockstep.impl.torch.kernels.host import HostKernels
from lockstep.impl.torch.kernels.plain import PlainKernels
from lockstep.impl.torch.rope import Rope
from tests.harness.building import make as make_program

FUSED = import_kernels()
masks = import_module("lockstep.impl.torch.kernels.masks")
PLAIN = PlainKernels()
LAYERS, CELLS = 2, 90


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    content = torch.randn(shape, generator=torch.Generator().manual_seed(7))
    return content.to(DEVICE, dtype)


def shuffle(rows: int) -> Any:
    return np.random.default_rng(rows).permutation(CELLS)[:rows]


def make_pools(
    heads: int, dims: tuple[int, int], dtype: torch.dtype, permuted: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Full of numbers of their own, so that a stray access shows."""
    pool = (LAYERS, 1, heads)
    values = (dims[1], CELLS) if permuted else (CELLS, dims[1])
    keys = draw(*pool, CELLS, dims[0], dtype=dtype)
    return keys + 10, draw(*pool, *values, dtype=dtype) - 10


def take_row(values: torch.Tensor, cell: int, permuted: bool) -> torch.Tensor:
    return values[..., cell] if permuted else values[:, :, :, cell]


def check_same(pairs: Any, others: Any) -> None:
    for one, other in zip(pairs, others, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert (one == other).all()


# --- scatter and gather -----------------------------------------------------------------

SHAPES = [
    (1, 1, (1, 1)),
    (3, 2, (5, 3)),
    (33, 1, (128, 96)),  # more rows than a program has
    (70, 3, (40, 48)),
    (0, 2, (4, 4)),
]
"""rows, heads, dims of keys and values"""


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize(("rows", "heads", "dims"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_go_into_their_cells_and_come_back(
    dtype: torch.dtype, rows: int, heads: int, dims: tuple[int, int], permuted: bool
) -> None:
    pools = make_pools(heads, dims, dtype, permuted)
    keys, values = (draw(LAYERS, 1, heads, rows, dim, dtype=dtype) for dim in dims)
    expected = pools[0].clone(), pools[1].clone()
    cells = shuffle(rows)
    for row, cell in enumerate(cells.tolist()):
        expected[0][:, :, :, cell] = keys[:, :, :, row]
        take_row(expected[1], cell, permuted).copy_(values[:, :, :, row])
    places = FUSED.place(cells, DEVICE)
    FUSED.scatter(pools, (keys, values), places, permuted)
    check_same(pools, expected)
    copied = FUSED.gather(pools, places, permuted)
    check_same(copied, (keys, values.mT if permuted else values))


def list_views(array: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same numbers, or one head of them, in other strides."""
    wide = array.new_full((*array.shape[:4], 3 * array.shape[4]), torch.nan)
    far = array.new_full((*array.shape[:3], 40 * array.shape[3], array.shape[4]), 9)
    wide[..., ::3], far[:, :, :, ::40] = array, array
    return {
        "rows before heads": array.transpose(2, 3).contiguous().transpose(2, 3),
        "every third number": wide[..., ::3],
        "rows far apart": far[:, :, :, ::40],
        "one head for all": array[:, :, :1].expand(-1, -1, array.shape[2], -1, -1),
        "transposed": array.mT.contiguous().mT,
    }


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("name", list(list_views(torch.zeros(1, 1, 1, 1, 1))))
def test_tokens_may_have_any_strides(name: str, permuted: bool) -> None:
    keys = list_views(draw(LAYERS, 1, 3, 9, 6))[name]
    values = list_views(draw(LAYERS, 1, 3, 9, 5))[name]
    pools = make_pools(3, (6, 5), torch.float32, permuted)
    expected = pools[0].clone(), pools[1].clone()
    index = torch.from_numpy(shuffle(9)).to(DEVICE)
    FUSED.scatter(pools, (keys, values), index, permuted)
    PLAIN.scatter(expected, (keys, values), index, permuted)
    check_same(pools, expected)


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("kernels", [FUSED, PLAIN], ids=["triton", "plain"])
def test_a_cell_below_zero_is_none(kernels: Any, permuted: bool) -> None:
    pools = make_pools(2, (4, 3), torch.float32, permuted)
    expected = pools[0].clone(), pools[1].clone()
    tokens = draw(LAYERS, 1, 2, 4, 4), draw(LAYERS, 1, 2, 4, 3)
    cells = torch.tensor([7, -1, 0, -1], device=DEVICE)
    some = tokens[0][:, :, :, [0, 2]], tokens[1][:, :, :, [0, 2]]
    PLAIN.scatter(expected, some, torch.tensor([7, 0], device=DEVICE), permuted)
    kernels.scatter(pools, tokens, kernels.place_fixed(cells), permuted)
    check_same(pools, expected)


@pytest.mark.parametrize("permuted", [False, True])
def test_a_cell_beyond_the_pool_is_none(permuted: bool) -> None:
    """Memory behind a pool belongs to others; an access beyond all of it would end the
    process."""
    whole = make_pools(2, (5, 3), torch.float32, permuted)
    pools = tuple(pool[:1] for pool in whole)  # of a layer that others follow
    before = [pool.clone() for pool in whole]
    index = torch.tensor([CELLS, CELLS + 7], device=DEVICE)
    tokens = tuple(draw(1, 1, 2, 2, dim) for dim in (5, 3))
    FUSED.scatter(pools, tokens, index, permuted)
    FUSED.gather(pools, index, permuted)
    keys = draw(3, 1, 2, CELLS, 4)
    turned = keys.clone()
    FUSED.turn(turned[:1], index, Rope((1e4,), 1, 4, DEVICE), -3)
    check_same((*whole, turned), (*before, keys))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_of_another_type_are_converted(dtype: torch.dtype) -> None:
    pools = make_pools(1, (8, 8), dtype, False)
    expected = pools[0].clone(), pools[1].clone()
    tokens = draw(LAYERS, 1, 1, 5, 8), draw(LAYERS, 1, 1, 5, 8)
    index = torch.from_numpy(shuffle(5)).to(DEVICE)
    FUSED.scatter(pools, tokens, index, False)
    PLAIN.scatter(expected, tokens, index, False)
    check_same(pools, expected)


@pytest.mark.parametrize(
    ("layers", "dims", "cells", "permuted"),
    [(3, (1024, 1), 700_000, False), (1, (1, 1024), 2_100_000, True)],
)
def test_pools_and_tokens_may_be_large(
    layers: int, dims: tuple[int, int], cells: int, permuted: bool
) -> None:
    """More numbers than 32 bits count, of which only a few are touched."""
    assert layers * max(dims) * cells > 1 << 31

    def make(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int8, device=DEVICE)

    pool = (layers, 1, 1)
    values = (dims[1], cells) if permuted else (cells, dims[1])
    pools = make(*pool, cells, dims[0]), make(*pool, *values)
    tokens = []
    for dim in dims:
        far = make((layers - 1 << 30) + 2 * dim)
        far = far.as_strided((*pool, 2, dim), (1 << 30, 1, 1, dim, 1))
        numbers = torch.arange(layers * 2 * dim, device=DEVICE) % 101
        tokens.append(far.copy_(numbers.view(*pool, 2, dim)))
    index = FUSED.place(np.array([cells - 1, 0]), DEVICE)
    FUSED.scatter(pools, tokens, index, permuted)
    for pool, put, across in zip(pools, tokens, (False, permuted), strict=True):
        for row, cell in enumerate(index.tolist()):
            assert (take_row(pool, cell, across) == put[:, :, :, row]).all()
    keys, values = FUSED.gather(pools, index, permuted)
    check_same((keys, values.mT if permuted else values), tokens)


# --- turn -------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", [-1, 3, -100_000])
@pytest.mark.parametrize(("rows", "heads", "dim"), [(1, 1, 2), (70, 2, 12), (20, 3, 128)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_turn_in_place(
    dtype: torch.dtype, rows: int, heads: int, dim: int, distance: int
) -> None:
    keys = draw(LAYERS, 1, heads, CELLS, dim, dtype=dtype)
    before = keys.clone()
    rope = Rope((10_000.0, 50.0), LAYERS, dim, DEVICE)
    cells = shuffle(rows)
    FUSED.turn(keys, FUSED.place(cells, DEVICE), rope, distance)
    others = np.setdiff1d(np.arange(CELLS), cells)
    assert (keys[:, :, :, others] == before[:, :, :, others]).all()
    angles = (rope.rates * distance)[:, None, None, None]
    x, y = before[:, :, :, cells].double().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    ideal = torch.cat((x * cos - y * sin, x * sin + y * cos), dim=-1)
    error = (keys[:, :, :, cells].double() - ideal).abs() / ideal.abs().clamp(min=1)
    assert error.max() <= 0.51 * torch.finfo(dtype).eps + 1e-6
    PLAIN.turn(before, PLAIN.place(cells, DEVICE), rope, distance)
    assert (keys == before).all()


# --- attention through tables -----------------------------------------------------------


@pytest.mark.parametrize("kernels", [FUSED, PLAIN], ids=["fused", "plain"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "group", "dims", "block", "size"),
    [
        (2, 1, (4, 6), 2, 4),  # smaller blocks than the memory has
        (1, 3, (20, 32), 3, 3),
        (1, 8, (64, 64), 16, 16),
    ],
)
def test_each_request_attends_to_its_own_positions(
    kernels: Any,
    dtype: torch.dtype,
    heads: int,
    group: int,
    dims: tuple[int, int],
    block: int,
    size: int,
) -> None:
    """Beside double precision. What is not in a table, or outside of a window, is NaN."""
    ends, firsts = [1, 7, block * 6 - 1], [0, 3, block + 1]
    blocks = 20
    order = np.random.default_rng(3).permutation(blocks)
    tables = np.full((3, 6), -7, np.int32)
    pools = [
        torch.full((1, heads, blocks * size, dim), torch.nan, dtype=dtype, device=DEVICE)
        for dim in dims
    ]
    queries = draw(1, heads * group, 3, dims[0], dtype=dtype)
    wanted, taken = [], 0
    for row, (first, end) in enumerate(zip(firsts, ends, strict=True)):
        places = -(-end // block)
        tables[row, :places] = order[taken : taken + places]
        taken += places
        at = np.arange(first, end)
        slots = torch.from_numpy(tables[row, at // block] * size + at % block)
        pair = [draw(1, heads, len(at), dim, dtype=dtype) for dim in dims]
        for pool, own in zip(pools, pair, strict=True):
            pool[:, :, slots.long().to(DEVICE)] = own
        double = [array.double() for array in (queries[:, :, row : row + 1], *pair)]
        wanted.append(scaled_dot_product_attention(*double, enable_gqa=True))
    limits = (
        torch.tensor(one, dtype=torch.int32, device=DEVICE) for one in (firsts, ends)
    )
    spans = Spans(torch.from_numpy(tables).to(DEVICE), *limits, block, size, block * 6)
    attended = kernels.attend(queries, tuple(pools), spans)
    assert attended.dtype == dtype
    largest = (attended.double() - torch.cat(wanted, dim=2)).abs().max()
    assert largest < {torch.float32: 1e-5, torch.float16: 4e-3}.get(dtype, 3e-2)


def test_slots_beyond_the_memory_are_not_read() -> None:
    pools = (draw(3, 1, 8, 16)[1:2],) * 2  # with memory of others on both sides
    first = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    queries = draw(1, 1, 1, 16)
    tables = torch.tensor([[1, 4, 5, -1]], dtype=torch.int32, device=DEVICE)
    attended = [
        FUSED.attend(queries, pools, Spans(tables, first, first + end, 2, 2, 8))
        for end in (2, 8)
    ]
    assert torch.equal(*attended)


# --- masks of batches -------------------------------------------------------------------


def see_slowly(
    first: int, start: int, length: int, span: tuple[int, int], window: int | None
) -> list[list[bool]]:
    """What the queries of one row see, position by position."""
    seen = []
    for query in (max(first + number, 0) for number in range(length)):
        held = range(query + 1) if window is None else range(query + 1)[-window:]
        columns = {start + p if window is None else (start + p) % window for p in held}
        seen.append([column in columns for column in range(*span)])
    return seen


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("firsts", "starts", "length", "span", "window", "cursor"),
    [
        ([5, 3, 0], [0, 2, 5], 1, (0, 6), None, 5),
        ([5, 3, 0], [0, 2, 5], 1, (0, 6), None, None),
        ([5, 3, 1], [1, 1, 6], 3, (1, 9), None, None),
        ([-2, 0, -1], [2, 0, 1], 4, (0, 4), None, None),  # padding on the left
        ([70, 3, 65], [5, 0, 2], 1, (0, 8), 8, None),
        ([12, 10, 1], [0, 2, 3], 1, (0, 8), 8, 4),
        ([2000, 2], [0, 1998], 2, (0, 2002), None, 2000),  # more than a block
    ],
)
def test_queries_of_rows_see_their_own_columns(
    dtype: torch.dtype,
    firsts: list[int],
    starts: list[int],
    length: int,
    span: tuple[int, int],
    window: int | None,
    cursor: int | None,
) -> None:
    pairs = zip(firsts, starts, strict=True)
    right = torch.tensor([see_slowly(*pair, length, span, window) for pair in pairs])
    like = torch.empty(0, dtype=dtype, device=DEVICE)
    given = (torch.tensor(each, device=DEVICE) for each in (firsts, starts))
    where = (*given, length, span, window, like, cursor)
    for kernels in (FUSED, PLAIN):
        mask = kernels.see(*where)
        assert mask.dtype == dtype and mask.shape == (
            len(firsts),
            1,
            length,
            right.shape[2],
        )
        seen = mask if dtype == torch.bool else mask == 0
        assert torch.equal(seen[:, 0].cpu(), right)
        assert dtype == torch.bool or (mask[~seen] == -torch.inf).all()


# --- mask -------------------------------------------------------------------------------


def sees(position: int, bits: int, owner: int, low: int, high: int) -> bool:
    return bool(bits & owner) and low <= position <= high


def make_table(count: int, sequences: int, furthest: int) -> torch.Tensor:
    source = np.random.default_rng(count)
    positions = source.integers(0, furthest, count)
    bits = source.integers(0, 1 << sequences, count, np.uint64).view(np.int64)
    bits[:: 1 + count // 9] = 0
    return torch.from_numpy(np.stack((positions, bits))).to(DEVICE)


def make_limits(rows: int, sequences: int, furthest: int) -> torch.Tensor:
    source = np.random.default_rng(rows)
    owners = np.left_shift(1, source.integers(0, sequences, rows))
    high = source.integers(0, furthest, rows)
    low = np.maximum(0, high - source.integers(0, furthest, rows))
    high[::3] = FAR
    return torch.from_numpy(np.stack((owners, low, high))).to(DEVICE)


@pytest.mark.parametrize(
    ("rows", "padded", "width", "begin", "sequences", "furthest"),
    [
        (1, 1, 1, 0, 1, 4),
        (1, 4, 15, 1, 2, 9),
        (5, 5, 16, 3, 31, 9),
        (3, 32, 17, 0, 32, 1 << 31),
        (6, 7, 1025, 5, 64, 40),
        (4, 4, 50, 0, 63, 1 << 40),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_sees_what_is_its_own_and_within_its_limits(
    dtype: torch.dtype,
    rows: int,
    padded: int,
    width: int,
    begin: int,
    sequences: int,
    furthest: int,
) -> None:
    table = make_table(begin + width + 2, sequences, furthest)
    limits = make_limits(rows, sequences, furthest)
    whole = torch.full((padded + 1, width + 40), 7, dtype=dtype, device=DEVICE)
    out = whole[:padded, : (width + 15) // 16 * 16][:, :width]
    facts = table[:, begin : begin + width].T.tolist()
    expected = [
        [0.0 if sees(*fact, *limit) else -torch.inf for fact in facts]
        for limit in limits.T.tolist()
    ]
    expected += [[-torch.inf] * width] * (padded - rows)
    short = furthest <= 1 << 31, sequences <= 32
    for flags in itertools.product(*({False, each} for each in short)):
        whole[:] = 7
        FUSED.mask(Table(table, *flags), limits, begin, out)
        assert out.tolist() == expected
        assert (whole[padded:] == 7).all()
    for kernels in (PLAIN, choose(DEVICE)):
        out.fill_(7)
        kernels.mask(Table(table), limits, begin, out)
        assert out.tolist() == expected


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("short", [False, True])
def test_the_edges_of_a_window_are_seen(short: bool, alone: bool) -> None:
    """Every pair of positions and limits around each other."""
    table = torch.tensor([range(8), [3, 1] * 3 + [2, 0]], device=DEVICE)
    pairs = list(itertools.product(range(-1, 9), repeat=2))
    low, high = (torch.tensor(each, device=DEVICE) for each in zip(*pairs, strict=True))
    limits = torch.stack((torch.ones_like(low), low, high))
    out = torch.empty((len(pairs), 8), device=DEVICE)
    FUSED.mask(Table(table, short, short), limits, 0, out, alone)
    for row, (low, high) in zip(out.tolist(), pairs, strict=True):
        assert [n for n, each in enumerate(row) if each == 0] == [
            n for n in range(6) if low <= n <= high
        ]


@pytest.mark.parametrize("sequences", [1, 3])
def test_a_program_fills_many_rows(
    sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "PROGRAMS", 4)
    assert masks.count_tiles(3, 18) == 13
    table, limits = make_table(2100, 3, 50), make_limits(70, sequences, 50)
    outs = [torch.empty((71, 2096), device=DEVICE, dtype=torch.float16) for _ in "ab"]
    FUSED.mask(Table(table, True, True), limits, 1, outs[0], sequences == 1)
    PLAIN.mask(Table(table), limits, 1, outs[1])
    assert (outs[0] == outs[1]).all()


# --- table ------------------------------------------------------------------------------


def test_columns_beyond_the_table_are_not_seen() -> None:
    table = torch.ones((2, 8), dtype=torch.int64, device=DEVICE)
    limits = torch.tensor([[1], [0], [9]], device=DEVICE)
    out = torch.empty((1, 12), device=DEVICE)
    FUSED.mask(Table(table, True, True), limits, 4, out)
    assert (out[0] == 0).tolist() == [True] * 4 + [False] * 8


def test_a_change_of_a_cell_beyond_the_table_is_none() -> None:
    whole = torch.zeros((6, 8), dtype=torch.int64, device=DEVICE)
    changes = torch.ones((3, 2), dtype=torch.int64, device=DEVICE)
    changes[0] = torch.tensor([8, 21])
    FUSED.update(whole[:2], changes)
    assert not whole.any()


@pytest.mark.parametrize("number", [0, 1, 300])
@pytest.mark.parametrize("kernels", [FUSED, PLAIN], ids=["triton", "plain"])
def test_changes_reach_the_table(kernels: Any, number: int) -> None:
    source = np.random.default_rng(number)
    table = torch.from_numpy(source.integers(0, 9, (2, 400))).to(DEVICE)
    changes = source.integers(1 << 40, 1 << 62, (3, number))
    changes[0] = source.permutation(400)[:number]
    changes[0, 1::7] = -1
    expected = table.clone()
    for cell, *content in changes.T.tolist():
        if cell >= 0:
            expected[:, cell] = torch.tensor(content)
    kernels.update(table, torch.from_numpy(changes).to(DEVICE))
    assert (table == expected).all()


def test_the_kernels_suit_the_device() -> None:
    assert isinstance(choose(torch.device("cpu")), HostKernels)
    assert type(choose(torch.device("cuda"))) is type(FUSED)


def test_plain_operations_do_where_triton_is_missing() -> None:
    code = (
        "import sys, torch; sys.modules['triton'] = None\n"
        "from lockstep.impl.torch.kernels import choose\n"
        "print(type(choose(torch.device('cuda'))).__name__)"
    )
    assert run("-c", code).stdout == "PlainKernels\n"


# --- as a whole -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("contract", "kind"),
    [("unified", "swa-memory"), ("unified", "recurrent"), ("batched", "batch-kv")],
)
def test_caches_with_the_kernels_agree_with_the_reference(
    contract: str, kind: str
) -> None:
    backend = declare("torch-triton", DEVICE.type, FUSED)
    count, longest = (40, None) if HAS_GPU else (3, 10)
    declared = backend.contracts[contract][kind]
    drawer = Drawer(contract, kind, declared, backend.dtypes, longest=longest)
    for program in draw_some(count, 3, drawer.draw):
        divergence = execute(program, backend).divergence
        assert divergence is None, (program.to_json(), divergence)


def test_the_work_that_is_timed_can_be_done() -> None:
    """A launch for each layer, or a graph."""
    form = Form(
        2, 2, 16, cells=128, chunk=20, rows=5, columns=40, sequences=4, visible=64
    )
    like = torch.empty(0, dtype=torch.bfloat16, device=DEVICE)
    cases = list(list_cases(form, FUSED, like))
    for case in cases:
        case.ours()
        case.limit()
        assert case.moved > 0
    assert len({case.name for case in cases}) == len(cases) == 7
    assert {case.limited_by for case in cases} == {"memory", LAUNCHES}
    wait = partial(time.sleep, 0.01)
    rows = measure_steps(form, FUSED, like, wait, (1, 4), rounds=1, repeats=1)
    ways = [(row["sequences"], row["way"]) for row in rows]
    assert ways == [(1, "eager"), (1, "graph"), (4, "eager"), (4, "graph")]
    assert all(0 < row["host_us"] < row["us"] - 4_000 for row in rows), "it waits"


def test_what_a_program_may_launch_first_is_launched_by_the_factory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each kernel of each family: a program's first step would seem to hang."""
    launched: set[str] = set()

    def note(name: str) -> Any:
        own = getattr(FUSED, name)
        return lambda *given: launched.add(name) or own(*given)

    names = {name for name, member in vars(Kernels).items() if inspect.isfunction(member)}
    launches = {name for name in names if name[0] != "_"} - {"place", "place_fixed"}
    for name in launches:
        monkeypatch.setattr(FUSED, name, note(name))
    for module in ("causal", "batched", "paged"):
        place = f"lockstep.impl.torch.{module}.choose"
        monkeypatch.setattr(place, lambda device: FUSED)
    waits = Mock()
    monkeypatch.setattr(torch.cuda, "synchronize", waits)
    arrays = TorchArrays(DEVICE.type)
    monkeypatch.setattr(arrays, "attend", Mock(wraps=arrays.attend))
    warm_up(arrays)
    assert launched == launches and waits.called and arrays.attend.called


def test_an_error_of_the_last_kernel_is_told_of_its_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever it runs in; the process ends, and the record names this program."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("lockstep.impl.torch.backend.warm_up", lambda arrays: None)
    declared = cuda()
    lost = Mock(side_effect=RuntimeError("CUDA error: illegal address"))
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    program, own = make_program({"op": "size"}), cpu()
    for number in range(4):
        backend = replace(own, scope=declared.get_scope(number), is_fatal=is_fatal)
        with pytest.raises(DeviceLost, match="illegal address"):
            execute(program, backend)
    assert lost.call_count == 4


def test_the_kernels_stand_among_the_versions() -> None:
    """Plain operations take their place where Triton is missing."""
    kernels = {kernels: declare("x", DEVICE.type, kernels) for kernels in (FUSED, PLAIN)}
    named = {one: backend.versions["kernels"] for one, backend in kernels.items()}
    assert named == {FUSED: "TritonKernels", PLAIN: "PlainKernels"}


def test_the_interpreter_must_be_asked_for() -> None:
    code = "from lockstep.impl.torch.backend import triton; triton()"
    done = run("-c", code, TRITON_INTERPRET="0")
    assert done.returncode == 1
    assert "Unavailable: set TRITON_INTERPRET=1" in done.stderr


def test_every_kernel_compiles_for_an_h200(tmp_path: Path) -> None:
    """No spilled register; accesses of 16 bytes where the work allows it."""
    path = tmp_path / "compiled.json"
    done = run("ci/ptx.py", "--target", "90", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["launch"]: row for row in json.loads(path.read_text())["rows"]}
    named = {"put", "gather", "mask", "see", "turn", "update", "attend", "attend, 2"}
    assert named <= set(rows)
    assert not any(row["spills"] for row in rows.values())
    assert set(rows["put"]["accesses"]) == {"load 8", "load 16", "store 16"}
    assert rows["mask"]["shared"] == 0


@pytest.mark.parametrize("by", ["CUDA error", "CUDA driver error", "Triton Error [CUDA]"])
def test_an_error_of_cuda_ends_its_process(by: str) -> None:
    """Whoever calls CUDA next tells of it: torch or Triton."""
    lost = f"{by}: an illegal memory access was encountered"
    assert is_fatal(RuntimeError(lost))
    assert not is_fatal(RuntimeError("The size of tensor a (3) must match"))
    if hasattr(torch, "AcceleratorError"):
        assert is_fatal(torch.AcceleratorError(lost))
