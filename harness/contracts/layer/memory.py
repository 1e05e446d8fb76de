"""What the layer caches of one program hold, beside what the reference's tokens need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.harness.contracts.memory import (
    Config,
    Need,
    ask_held,
    check_released,
    count_state_bytes,
    count_token_bytes,
)
from lockstep.reference.snapshot import Snapshot
from lockstep.reference.token import Token


@dataclass
class Owned:
    """A cache of the backend.

    Attributes:
        cache: the cache.
        peak: the most tokens that it had to hold at once since it was opened or freed.
        tokens: how many it holds now.
        captured: the tokens in each of its captures that were not taken.
    """

    cache: Any
    peak: int
    tokens: int
    captured: tuple[int, ...] = ()


class LayerMemory:
    """All caches that one program has opened, also those whose name another one has got.

    A cache may keep room for as many tokens as it had to hold at once: for those that an
    update returns, too. A state counts as one token of its size.

    Args:
        config: a complete config.
        factor: see `Kind.held`; None if caches do not tell.
        is_exact: whether every token takes its bytes, see `Need.least`.
    """

    def __init__(self, config: Config, factor: float | None, is_exact: bool) -> None:
        self.factor, self.is_exact = factor, is_exact
        self.is_state = config["kind"] == "state"
        count = count_state_bytes if self.is_state else count_token_bytes
        self.unit = count(config)
        self.step = 0 if self.is_state else config["step"]
        self.least = int(self.is_state)
        self.is_window = config["kind"] == "rotating"
        self.owned: dict[int, Owned] = {}
        self.fresh: Mapping[str, int] = {}
        self.need: Need | None = None

    def own(self, cache: Any, like: Any = None) -> Owned:
        """Finds a cache, or notes a new one.

        Args:
            cache: the cache.
            like: the cache that it was cloned from, whose room it may have.
        """
        if self.factor is not None and not self.owned:
            self.fresh = ask_held([cache])
        owned = self.owned.get(id(cache))
        if owned is None:
            owned = self.owned[id(cache)] = Owned(cache, self.least, self.least)
        if like is not None:
            owned.peak = self.own(like).peak
        return owned

    def note(self, cache: Any, right: Any, length: int) -> None:
        """Notes the content of a cache after an operation.

        Args:
            cache: the cache.
            right: its reference.
            length: the number of tokens that the operation wrote.
        """
        owned = self.own(cache)
        owned.tokens = 1 if self.is_state else right.size()
        owned.peak = max(owned.peak, owned.tokens)
        if length and self.is_window:
            # An update returns, with all new tokens, the old ones that the first sees.
            seen = right.visible(right.offset - length)
            owned.peak = max(owned.peak, len(seen) - 1 + length)
        captures = right.captures.captured.values()
        owned.captured = tuple(self.count_tokens(one.tokens) for one in captures)

    def count_tokens(self, tokens: Sequence[Token]) -> int:
        return 1 if self.is_state else len(tokens)

    def reset(self, cache: Any) -> None:
        """Notes that a cache was freed."""
        self.own(cache).peak = self.least

    def weigh(self, snapshots: Iterable[Snapshot]) -> None:
        """Counts what is needed for all caches, and for the open snapshots."""
        kept = [self.count_tokens(snapshot.tokens) for snapshot in snapshots]
        kept += [tokens for owned in self.owned.values() for tokens in owned.captured]
        self.weigh_stored(self.unit * sum(kept), len(kept))

    def weigh_stored(self, size: int, count: int) -> None:
        """Counts the same, with `count` snapshots of `size` bytes together."""
        caches = self.owned.values()
        self.need = Need(
            self.unit * sum(owned.peak for owned in caches) + size,
            self.unit * self.step * len(caches),
            self.unit * sum(owned.tokens for owned in caches) * self.is_exact,
            {"snapshots": count},
        )

    def check(self) -> None:
        """Raises Broken("memory") if the caches hold too much."""
        if self.factor is not None and self.need is not None:
            self.need.check(self.ask(), self.factor)

    def check_released(self) -> None:
        """The same, after everything was closed and freed."""
        count = len(self.owned)
        if count:
            fresh = {name: number * count for name, number in self.fresh.items()}
            check_released(self.ask(), fresh)

    def ask(self) -> dict[str, int]:
        return ask_held(owned.cache for owned in self.owned.values())
