"""The caches of the layer contract, in a driver."""

from __future__ import annotations

from typing import Any

from lockstep.harness.backends.driver.arrays import PromisedMask, Tensor, make_mask
from lockstep.harness.backends.driver.decoding import Malformed
from lockstep.harness.backends.driver.proxy import Cache, Snapshot, method


class LayerCache(Cache):
    """The part that kv, rotating and state share."""

    contract = "layer"
    offset = 0

    size = method("size")
    trim = method("trim")
    free = method("free")
    snapshot = method("snapshot")
    restore = method("restore")
    split = method("split")
    merge = method("merge")
    close = method("close")
    prepare = method("prepare")
    take = method("take")

    def ask(self, message: str, **fields: Any) -> Any:
        answer = super().ask(message, **fields)
        if "offset" in answer.__struct_fields__:
            self.offset = answer.offset
        return answer

    def call(self, message: str, *arguments: Any) -> Any:
        """Some messages use up the snapshots that they name."""
        got = super().call(message, *arguments)
        for argument in arguments:
            if isinstance(argument, Snapshot) and message in ("split", "merge", "close"):
                argument.release()
        return got

    def clone(self) -> LayerCache:
        copy = type(self)(self.driver, self.ask("clone").cache, self.config)
        copy.offset = self.offset
        return copy


class TokenCache(LayerCache):
    """kv and rotating."""

    promised = PromisedMask(0, 0)
    state = method("state")
    view = method("view")

    def make_mask(self, length: int, rows: int) -> PromisedMask:
        """It comes with the update, in one message."""
        self.promised = PromisedMask(length, rows)
        return self.promised

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        promised = self.promised
        answer = self.ask("update", rows=promised.rows, keys=keys, values=values)
        pair = [self.make_tensor(name, getattr(answer, name)) for name in KV]
        shape = pair[0].content.shape
        columns = shape[2] if len(shape) == 4 else 0
        is_additive = self.config["mask_form"] == "additive"
        dtype = self.config["dtype"] if is_additive else "bool"
        causal = self.driver.causal
        try:
            promised.tensor = make_mask(answer.mask, promised, columns, dtype, causal)
        except Malformed as malformed:
            self.driver.reject(malformed)
        return pair[0], pair[1]


KV = ("keys", "values")


class StateCache(LayerCache):
    """The state of a recurrent layer."""

    read = method("read")
    state = method("state.states")
    view = method("view.states")
    boundaries = method("boundaries")
    write = method("write")


KINDS = {"kv": TokenCache, "rotating": TokenCache, "state": StateCache}
