"""What only a GPU is asked: all layers at once, graphs, and how near to its bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ci.bench.speed.measure import Case, Contender
from ci.bench.speed.on_torch import TorchSide
from ci.bench.speed.unified import open_filled
from ci.bench.speed.workloads import CHUNK, DIM, SEQUENCES, K, Make
from impl.shared.causal import Sizes
from impl.torch.causal import CausalCache
from impl.torch.graphs import FixedStep

LAYERS = 32
COLUMNS = 64 * K


class CUDASide(TorchSide):
    """As `TorchSide`, with a cache of many layers."""

    def open_layers(self, sizes: Sizes, layers: int) -> CausalCache:
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        return CausalCache(sizes, layers, like=like, mask=like)

    def make_layers(self, layers: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [layers, 1, heads, rows, dim]."""
        keys = torch.randn(
            (layers, 1, self.heads, rows, DIM), dtype=self.dtype, device=self.device
        )
        return keys, keys + 1

    def chunk_layers(self, tokens: int, layers: int, cells: str) -> Make:
        """K and V of all layers for one long chunk, beside a plain copy of as many bytes.
        cells: neighbours, or every other one of the pool."""
        sizes = Sizes(2, 2 * tokens, 2 * tokens)
        cache = self.open_layers(sizes, layers)
        if cells == "scattered":
            # Two sequences take turns; then one of them leaves its cells.
            positions = [row // 2 for row in range(2 * tokens)]
            cache.forward(positions, [row % 2 for row in range(2 * tokens)])
            cache.remove(0, 0, None)
        cache.forward(range(tokens), [0] * tokens)
        pair = self.make_layers(layers, tokens)
        places = torch.empty_like(pair[0]), torch.empty_like(pair[1])

        def copy_plain() -> None:
            places[0].copy_(pair[0])
            places[1].copy_(pair[1])

        return [
            Contender("ours", "ours", lambda: cache.put_all(*pair)),
            Contender("plain copy", "limit", copy_plain),
        ]

    def step_layers(self, layers: int, columns: int, put: str) -> Make:
        """A graph of a token for each of SEQUENCES sequences: mask, K and V of all
        layers; beside a graph of one index_copy_ for each tensor. put: all layers at
        once, or one by one, as a model does."""
        capacity = columns // SEQUENCES
        sizes = Sizes(SEQUENCES, capacity, columns)
        cache = self.open_layers(sizes, layers)
        held = capacity - 1
        rows = SEQUENCES * held
        cache.forward(
            [row // SEQUENCES for row in range(rows)],
            [row % SEQUENCES for row in range(rows)],
        )
        cache.put_all(*self.make_layers(layers, rows))
        keys, values = self.make_layers(layers, SEQUENCES)
        step = FixedStep(cache, SEQUENCES, columns)

        def put_each() -> None:
            for layer in range(layers):
                step.put(layer, keys[layer], values[layer])

        step.capture(put_each if put == "each" else lambda: step.put_all(keys, values))
        cache.forward([held] * SEQUENCES, range(SEQUENCES))
        step.run()
        index = torch.arange(SEQUENCES, device=self.device) * (columns // SEQUENCES)

        def write() -> None:
            for layer in range(layers):
                cache.keys[layer].index_copy_(2, index, keys[layer])
                cache.values[layer].index_copy_(2, index, values[layer])

        replay = step.graph.replay if step.graph else step.run
        return [
            Contender("ours", "ours", replay),
            Contender("index_copy_ for each tensor", "limit", capture(write)),
        ]

    def mask_wide(self, rows: int, width: int) -> Make:
        """From the table of cells, beside a bare write of as many bytes."""
        cache = self.open_layers(Sizes(1, width, width), 1)
        open_filled(cache, width - rows, rows)
        current = cache.get_pass()
        out = torch.empty((rows, width), dtype=self.dtype, device=self.device)
        return [
            Contender("ours", "ours", lambda: cache.make_mask(current)),
            Contender("bare write", "limit", lambda: out.fill_(0)),
        ]


def capture(work: Callable[[], None]) -> Callable[[], object]:
    """The same as a graph; without a GPU as it is."""
    work()
    if not torch.cuda.is_available():
        return work
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def list_cuda_cases(
    dtype: str,
    heads: int,
    side: CUDASide,
    tokens: int = 8 * K,
    layers: int = LAYERS,
    columns: int = COLUMNS,
) -> Iterator[Case]:
    """The cases in one dtype and form."""

    def make(workload: str, work: Callable[..., Make], **place: int | str) -> Case:
        fields = tuple(place.items())
        arguments = place.values()
        return Case(
            workload, "torch", dtype, heads, fields, lambda: work(*arguments), side.wait
        )

    for cells in ("neighbours", "scattered"):
        place = {"tokens": tokens, "layers": layers, "cells": cells}
        yield make("chunk of all layers", side.chunk_layers, **place)
    for put in ("all", "each"):
        place = {"layers": layers, "columns": min(columns, SEQUENCES * CHUNK)}
        yield make("graph of a step", side.step_layers, **place, put=put)
    yield make("wide mask", side.mask_wide, rows=min(CHUNK, columns), width=columns)
