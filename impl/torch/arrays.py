"""torch tensors behind the array interface of the harness."""

from __future__ import annotations

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


class TorchArrays:
    """Implements `harness.backends.interface.Arrays` on one device."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.is_cpu = self.device.type == "cpu"

    def from_numpy(self, array: npt.NDArray[np.float32], dtype: str) -> torch.Tensor:
        array = np.asarray(array, np.float32)
        # torch shares the memory, and the receiver may write to the tensor.
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        if dtype == "float32" and self.is_cpu:
            return tensor
        return tensor.to(self.device, DTYPES[dtype])

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
        """Calls `scaled_dot_product_attention`; its is_causal is upper-left aligned."""
        if isinstance(mask, str):
            return scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
