"""A step of many sequences as an engine runs it, the work of the host included.

A step's kernels are small, so that the host, which launches them, may take longer than
the device. Three ways are measured: each launch by itself, one CUDA graph a step, and
either for several caches in turns, each on a stream of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch

from ci.bench.speed.kernels import Decoding, Form, Work
from lockstep.impl.torch.kernels import Kernels

STREAMS = 4

Stream = Callable[[], AbstractContextManager[Any]]
"""Makes what a step runs in."""


def make_streams() -> list[Stream]:
    return [partial(torch.cuda.stream, torch.cuda.Stream()) for _ in range(STREAMS)]


def list_ways(
    form: Form, kernels: Kernels, like: torch.Tensor, streams: Sequence[Stream]
) -> Iterator[tuple[str, Mapping[Stream, Work]]]:
    """Yields the name of each way, and the step of each stream."""
    own = replace(form, cells=form.visible)  # as small as they can be: there are several
    decodings = {}
    for stream in streams:
        with stream():
            decodings[stream] = decoding = Decoding(own, kernels, like)
            decoding.step.capture(decoding.put_each)
    eager = {stream: each.run_eagerly for stream, each in decodings.items()}
    graph = {stream: each.run for stream, each in decodings.items()}
    first = streams[0]
    yield "eager", {first: eager[first]}
    yield "CUDA graph", {first: graph[first]}
    yield f"eager, {len(streams)} streams in turns", eager
    yield f"CUDA graph, {len(streams)} streams in turns", graph


def time_steps(
    steps: Mapping[Stream, Work], repeats: int, wait: Callable[[], object]
) -> tuple[float, float]:
    """Returns microseconds of a step: until the host is done, and the device, too."""
    wait()
    begin = time.perf_counter()
    for _ in range(repeats):
        for stream, step in steps.items():
            with stream():
                step()
    issued = time.perf_counter()
    wait()
    count = repeats * len(steps)
    return (issued - begin) / count * 1e6, (time.perf_counter() - begin) / count * 1e6


def measure_steps(
    ways: Sequence[tuple[str, Mapping[Stream, Work]]],
    rounds: int,
    repeats: int,
    wait: Callable[[], object],
) -> list[dict[str, Any]]:
    """Returns a row for each way; all take turns, and the first round does not count."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in ways}
    for _ in range(rounds + 1):
        for name, steps in ways:
            times[name].append(time_steps(steps, repeats, wait))
    return [
        {
            "way": name,
            "host_us": median(host for host, _ in own[1:]),
            "us": median(whole for _, whole in own[1:]),
        }
        for name, own in times.items()
    ]
