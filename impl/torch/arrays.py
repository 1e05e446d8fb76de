"""Implements the harness's interface of arrays for torch tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


Prepare = Callable[[torch.Tensor], torch.Tensor]


class TorchArrays:
    """Implements `harness.backends.interface.Arrays` on one device.

    Attributes:
        prepare: converts each new tensor to an input of a cache; see `list_scopes`.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.prepare: Prepare | None = None
        self.device = torch.device(device)
        self.is_cpu = self.device.type == "cpu"

    def from_numpy(self, array: npt.NDArray[np.float32], dtype: str) -> torch.Tensor:
        array = np.asarray(array, np.float32)
        # torch shares the memory, and the receiver may write to the tensor.
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        if dtype != "float32" or not self.is_cpu:
            tensor = tensor.to(self.device, DTYPES[dtype])
        return tensor if self.prepare is None else self.prepare(tensor)

    def to_numpy(self, array: torch.Tensor) -> npt.NDArray[Any]:
        if array.dtype not in (torch.float32, torch.bool):
            array = array.float()
        content: npt.NDArray[Any] = array.numpy(force=True)
        return content

    def dtype(self, array: torch.Tensor) -> str:
        return str(array.dtype).removeprefix("torch.")

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: Any
    ) -> torch.Tensor:
        """Calls `scaled_dot_product_attention`, whose is_causal is aligned to the upper
        left."""
        if isinstance(mask, str):
            return scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return scaled_dot_product_attention(queries, keys, values, attn_mask=mask)

    # --- scopes of programs -------------------------------------------------------------

    def list_scopes(self) -> tuple[Callable[[], AbstractContextManager[None]], ...]:
        """Lists alternatives to inference mode.

        The alternatives are: without gradients; with gradients and with inputs that
        require gradients; without gradients and with inputs that were made in inference
        mode.
        """
        return (
            torch.no_grad,
            lambda: self.enable_gradients(torch.Tensor.requires_grad_),
            lambda: self.enable_gradients(freeze),
        )

    @contextmanager
    def enable_gradients(self, prepare: Prepare) -> Iterator[None]:
        self.prepare = prepare
        try:
            with torch.enable_grad():
                yield
        finally:
            self.prepare = None


def freeze(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of the tensor, made in inference mode."""
    with torch.inference_mode():
        return tensor.clone()


def overwrite(tensor: torch.Tensor) -> None:
    """Overwrites an input of a cache; inference mode allows this for every tensor.

    Entering inference mode takes three times as long as filling a small tensor.
    """
    if torch.is_inference_mode_enabled():
        tensor.fill_(math.nan)
        return
    with torch.inference_mode():
        tensor.fill_(math.nan)
