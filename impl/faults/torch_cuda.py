"""The faults on torch on CUDA: `impl.faults.torch_cuda:clone_shares` and so on."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.harness.backends import Backend, Planted
from lockstep.impl.faults import FAULTS
from lockstep.impl.faults.fault import describe, find
from lockstep.impl.faults.torch import plant_in
from lockstep.impl.torch.backend import cuda


def list_faults() -> list[Planted]:
    return describe(FAULTS.values(), "torch_cuda")


def __getattr__(name: str) -> Callable[[], Backend]:
    fault = find(FAULTS, name)
    return lambda: plant_in(cuda(), fault)
