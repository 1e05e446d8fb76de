"""The caches of the unified contract, in a driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.harness.backends.driver.arrays import Tensor
from lockstep.harness.backends.driver.client import Driver
from lockstep.harness.backends.driver.proxy import Cache, method


class UnifiedCache(Cache):
    """Any kind but a wrapper; or one of the caches that a wrapper is made of.

    place: {"type": its number} in a wrapper. unput: the layers that were not yet put in
    the open pass.
    """

    contract = "unified"
    unput: frozenset[int] = frozenset()

    forward = method("forward")
    write_states = method("write_states")
    read_states = method("read_states")
    copy_prefix = method("copy_prefix")
    remove = method("remove")
    can_resume = method("can_resume")
    save = method("save")
    load = method("load")

    def call(self, message: str, *arguments: Any) -> Any:
        """Some messages end the pass, `forward` begins one."""
        if message in ("forward", "copy_prefix", "remove", "load"):
            self.expect_layers(0)
        got = super().call(message, *arguments)
        if message == "forward":
            self.expect_layers(self.config["layers"])
        return got

    def expect_layers(self, count: int) -> None:
        """A pass with so many layers is open. An image may not be put where there is one:
        that is never expected."""
        is_image = self.config["kind"] == "encoder"
        self.unput = frozenset(() if is_image else range(count))

    def put(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """The first of a layer in a pass goes with the message that comes next: all there
        is to answer is that it is done. Any other is one that may be refused."""
        if layer not in self.unput:
            self.call("put", layer, keys, values)
            return
        self.unput -= {layer}
        self.check()
        fields = {"layer": layer, "keys": keys, "values": values}
        self.driver.post(self.contract, "put", cache=self.number, **self.place, **fields)

    def get(self, layer: int) -> Any:
        is_image = self.config["kind"] == "encoder"
        return self.call("get.image" if is_image else "get", layer)

    @property
    def cached(self) -> bool:
        return bool(self.call("cached"))


class WrapperCache(UnifiedCache):
    """Several caches as one: what is told to it goes to each; a pass is put and got by
    their types."""

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number, config)
        self.parts = [
            UnifiedCache(driver, number, {**config, **part}) for part in config["caches"]
        ]
        for which, part in enumerate(self.parts):
            part.place = {"type": which}
            part.release()  # each is dropped with the wrapper

    def of(self, layer_type: int) -> UnifiedCache:
        return self.parts[layer_type]

    def expect_layers(self, count: int) -> None:
        for part in self.parts:
            part.expect_layers(count and part.config["layers"])


def open_unified(driver: Driver, number: int, config: Mapping[str, Any]) -> UnifiedCache:
    kind = WrapperCache if config["kind"] == "wrapper" else UnifiedCache
    return kind(driver, number, config)
