"""What the caches of a backend hold, beside what their contents need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.harness.core.errors import Broken, clean

Config = Mapping[str, Any]
"""The complete config of a program."""

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
STATE_ITEM_BYTES = 4
"""The delta state is always float32."""

HELD = ("bytes", "snapshots", "blocks")
"""What a cache can tell of; the first it must."""

OPERATION = "held"
"""Stands for an operation in the signature of a divergence in memory: it does not depend
on the step at which memory was looked at."""


def count_token_bytes(config: Config) -> int:
    """Counts the bytes of K and V of one token in one layer."""
    dims = config["key_dim"] + config["value_dim"]
    return int(config["heads"] * dims * ITEM_BYTES[config["dtype"]])


def count_state_bytes(config: Config) -> int:
    """Counts the bytes of conv and delta of one state in one layer."""
    heads, key_dim = config["heads"], config["key_dim"]
    conv = (config["conv_width"] - 1) * heads * key_dim * ITEM_BYTES[config["dtype"]]
    delta = heads * key_dim * config["value_dim"] * STATE_ITEM_BYTES
    return int(conv + delta)


def ask_held(caches: Iterable[Any]) -> dict[str, int]:
    """Asks caches what they hold, and adds it up."""
    total: Counter[str] = Counter(bytes=0)
    for cache in caches:
        told = cache.held()
        if not is_held(told):
            raise Broken(
                "malformed",
                f"held returned {clean(repr(told))}, not numbers of {', '.join(HELD)}",
                OPERATION,
            )
        total.update(told)
    return dict(total)


def is_held(told: Any) -> bool:
    return (
        isinstance(told, Mapping)
        and "bytes" in told
        and all(name in HELD for name in told)
        and all(type(number) is int and number >= 0 for number in told.values())
    )


@dataclass(frozen=True)
class Need:
    """What the contents of some caches need.

    Attributes:
        contents: bytes of the tokens and states that are held, each once for each cache
            and snapshot that holds it.
        growth: bytes of what may be allocated ahead.
        least: bytes that are held at least.
        counts: "snapshots" or "blocks" → how many there are.
    """

    contents: int
    growth: int = 0
    least: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)

    def check(self, told: Mapping[str, int], factor: float) -> None:
        """Raises Broken("memory") if caches hold more than `factor` times this allows, or
        tell something else than what there is."""
        held, most = told["bytes"], factor * (self.contents + self.growth)
        message = None
        if held > most:
            message = (
                f"the caches hold {held:,} bytes, allowed {most:,.0f}: {factor:g} times"
                f" the {self.contents:,} of their contents and {self.growth:,} for growth"
            )
        elif held < self.least:
            message = f"the caches tell {held:,} bytes, but contain {self.least:,}"
        for name, number in self.counts.items():
            if told.get(name, number) != number:
                message = f"the caches hold {told[name]} {name}, not {number}"
        if message is not None:
            raise Broken("memory", message, OPERATION)


def check_released(told: Mapping[str, int], fresh: Mapping[str, int]) -> None:
    """Raises Broken("memory") if caches without content hold more than fresh ones."""
    for name, number in told.items():
        if number != fresh[name]:
            raise Broken(
                "memory",
                f"the caches hold {number:,} {name} after everything was closed and"
                f" freed; as many fresh ones hold {fresh[name]:,}",
                OPERATION,
            )
