"""The caches of the unified contract, in a driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.backends.driver.arrays import Tensor
from lockstep.harness.backends.driver.client import Driver
from lockstep.harness.backends.driver.fields import Answer, find_bool, find_number
from lockstep.harness.backends.driver.proxy import Cache, Pair, Saved

Triple = tuple[Tensor, Tensor, Tensor]


class UnifiedCache(Cache):
    """Any kind but a wrapper; or one of the caches that a wrapper is made of.

    place: {"type": its number} in a wrapper. open: the layers that were not yet put in
    the open pass.
    """

    contract = "unified"

    def __init__(
        self,
        driver: Driver,
        number: int,
        config: Mapping[str, Any],
        place: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(driver, number, config)
        self.place = place or {}
        self.open: set[int] = set()

    # --- a pass -------------------------------------------------------------------------

    def forward(
        self,
        positions: Sequence[int],
        sequences: Sequence[int],
        exceptions: Sequence[int],
        multimodal: Sequence[int],
        reserve: bool,
    ) -> None:
        self.open = set()
        self.ask(
            "forward",
            positions=list(positions),
            sequences=list(sequences),
            exceptions=list(exceptions),
            multimodal=list(multimodal),
            reserve=reserve,
        )
        self.expect_layers()

    def expect_layers(self) -> None:
        """A pass is open. An image may not be put where there is one: that is never
        expected."""
        count = 0 if self.config["kind"] == "encoder" else self.config["layers"]
        self.open = set(range(count))

    def put(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """The first of a layer in a pass goes with the message that comes next: all there
        is to answer is that it is done. Any other is one that may be refused."""
        fields = {**self.place, "layer": layer, "keys": keys, "values": values}
        if layer in self.open:
            self.open.remove(layer)
            self.check()
            self.driver.post(self.contract, "put", cache=self.number, **fields)
        else:
            self.ask("put", **fields)

    def get(self, layer: int) -> Triple | Pair | None:
        is_image = self.config["kind"] == "encoder"
        look = self.find_pair if is_image else self.find_triple
        return self.ask_for("get", look, layer=layer, **self.place)

    def find_triple(self, answer: Answer) -> Triple:
        mask = self.find_array(answer, "mask", self.config["mask_dtype"])
        return self.find_array(answer, "keys"), self.find_array(answer, "values"), mask

    @property
    def cached(self) -> bool:
        return self.ask_for("cached", find_cached, **self.place)

    def read_states(self, layer: int) -> Pair:
        return self.ask_for("read_states", self.find_states, layer=layer, **self.place)

    def write_states(self, layer: int, conv: Tensor, delta: Tensor) -> None:
        self.ask("write_states", layer=layer, conv=conv, delta=delta, **self.place)

    # --- between passes -----------------------------------------------------------------

    def change(self, operation: str, **fields: Any) -> Answer:
        """An operation that may end the pass."""
        self.open = set()
        return self.ask(operation, **fields)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.change("copy_prefix", source=source, target=target, length=length)

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        self.change("remove", sequence=sequence, begin=begin, end=end)

    def can_resume(self, sequence: int, position: int) -> bool:
        fields = {"sequence": sequence, "position": position}
        return self.ask_for("can_resume", find_result, **fields)

    def save(self) -> Saved:
        number = self.ask_for("save", lambda answer: find_number(answer, "saved"))
        return Saved(self.driver, number)

    def load(self, saved: Saved) -> None:
        self.change("load", saved=saved.number)


def find_cached(answer: Answer) -> bool:
    return find_bool(answer, "cached")


def find_result(answer: Answer) -> bool:
    return find_bool(answer, "result")


class WrapperCache(UnifiedCache):
    """Several caches as one: what is told to it goes to each; a pass is put and got by
    their types."""

    def __init__(self, driver: Driver, number: int, config: Mapping[str, Any]) -> None:
        super().__init__(driver, number, config)
        self.parts = [
            UnifiedCache(driver, number, {**config, **part}, {"type": which})
            for which, part in enumerate(config["caches"])
        ]
        for part in self.parts:
            part.release()  # each is dropped with the wrapper

    def of(self, layer_type: int) -> UnifiedCache:
        return self.parts[layer_type]

    def forward(
        self,
        positions: Sequence[int],
        sequences: Sequence[int],
        exceptions: Sequence[int],
        multimodal: Sequence[int],
        reserve: bool,
    ) -> None:
        super().forward(positions, sequences, exceptions, multimodal, reserve)
        for part in self.parts:
            part.expect_layers()

    def change(self, operation: str, **fields: Any) -> Answer:
        for part in self.parts:
            part.open = set()
        return super().change(operation, **fields)


def open_unified(driver: Driver, number: int, config: Mapping[str, Any]) -> UnifiedCache:
    kind = WrapperCache if config["kind"] == "wrapper" else UnifiedCache
    return kind(driver, number, config)
