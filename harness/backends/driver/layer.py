"""The caches of the layer contract, in a driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.backends.backend import Alignment
from lockstep.harness.backends.driver.arrays import PromisedMask, Tensor, parse_mask
from lockstep.harness.backends.driver.client import Driver
from lockstep.harness.backends.driver.fields import (
    Answer,
    find,
    find_bool,
    find_list,
    find_number,
    find_numbers,
)
from lockstep.harness.backends.driver.proxy import Cache, Pair, Snapshot, get_number


class LayerCache(Cache):
    """What kv, rotating and state have in common. causal: how a mask "causal" is
    aligned."""

    contract = "layer"

    def __init__(
        self,
        driver: Driver,
        number: int,
        config: Mapping[str, Any],
        causal: Alignment = "lower-right",
    ) -> None:
        super().__init__(driver, number, config)
        self.causal = causal
        self.offset = 0

    def move(self, operation: str, **fields: Any) -> Answer:
        """An operation that may move the cache: its answer has the offset."""
        answer = self.ask(operation, **fields)
        self.offset = self.look(operation, lambda: find_number(answer, "offset"))
        return answer

    def size(self) -> int:
        return self.ask_for("size", lambda answer: find_number(answer, "size"))

    def trim(self, count: int) -> int:
        answer = self.move("trim", count=count)
        return self.look("trim", lambda: find_number(answer, "trimmed"))

    def clone(self) -> LayerCache:
        number = self.ask_for("clone", lambda answer: find_number(answer, "cache"))
        copy = type(self)(self.driver, number, self.config, self.causal)
        copy.offset = self.offset
        return copy

    def free(self) -> None:
        self.move("free")

    def snapshot(self, begin: int) -> Snapshot | None:
        return self.ask_for("snapshot", self.find_snapshot, begin=begin)

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        answer = self.move("restore", snapshot=get_number(snapshot), target=target)
        return self.look("restore", lambda: find_bool(answer, "ok"))

    def split(
        self, snapshot: Snapshot, at: int
    ) -> tuple[Snapshot | None, Snapshot | None]:
        answer = self.ask("split", snapshot=snapshot.number, at=at)
        snapshot.release()
        return self.look(
            "split",
            lambda: (
                self.find_snapshot(answer, "parent"),
                self.find_snapshot(answer, "child"),
            ),
        )

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        sides = {"parent": get_number(parent), "child": get_number(child)}
        merged = self.ask_for("merge", self.find_snapshot, **sides)
        for side in (parent, child):
            if side is not None:
                side.release()
        return merged

    def close(self, snapshot: Snapshot) -> None:
        self.ask("close", snapshot=snapshot.number)
        snapshot.release()

    def prepare(self, offsets: Sequence[int]) -> None:
        self.ask("prepare", offsets=list(offsets))

    def take(self) -> list[Snapshot | None]:
        return self.ask_for("take", self.find_captures)

    def find_captures(self, answer: Answer) -> list[Snapshot | None]:
        captures = find_list(answer, "snapshots")
        return [self.make_snapshot(value, "a snapshot") for value in captures]


class TokenCache(LayerCache):
    """kv and rotating."""

    promised = PromisedMask(0, 0)

    def make_mask(self, length: int, rows: int) -> PromisedMask:
        """It comes with the update, in one message."""
        self.promised = PromisedMask(length, rows)
        return self.promised

    def update(self, keys: Tensor, values: Tensor) -> Pair:
        rows = self.promised.rows
        answer = self.move("update", rows=rows, keys=keys, values=values)
        return self.look("update", lambda: self.find_update(answer, self.promised))

    def find_update(self, answer: Answer, promised: PromisedMask) -> Pair:
        keys, values = self.find_array(answer, "keys"), self.find_array(answer, "values")
        columns = keys.content.shape[2] if keys.content.ndim == 4 else 0
        is_additive = self.config["mask_form"] == "additive"
        dtype = self.config["dtype"] if is_additive else "bool"
        mask = find(answer, "mask")
        promised.tensor = parse_mask(mask, promised, columns, dtype, self.causal)
        return keys, values

    def state(self) -> Pair | None:
        return self.ask_for("state", self.find_pair)

    def view(self) -> Pair | None:
        return self.ask_for("view", self.find_pair)


class StateCache(LayerCache):
    """The state of a recurrent layer."""

    def read(self) -> Pair:
        return self.ask_for("read", self.find_states)

    def state(self) -> Pair:
        return self.ask_for("state", self.find_states)

    def view(self) -> Pair:
        return self.ask_for("view", self.find_states)

    def boundaries(self, length: int) -> list[int]:
        return self.ask_for("boundaries", find_lengths, length=length)

    def write(self, conv: Tensor, delta: Tensor, length: int) -> None:
        self.move("write", conv=conv, delta=delta, length=length)


def find_lengths(answer: Answer) -> list[int]:
    return find_numbers(answer, "lengths")


KINDS = {"kv": TokenCache, "rotating": TokenCache, "state": StateCache}
