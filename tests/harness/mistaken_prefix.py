"""Mistakes in the reference of prefix caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lockstep.reference.session
import lockstep.reference.trie
from lockstep.reference.layers import Layer, Model
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.session import Session
from lockstep.reference.trie import Path, Trie

Replace = Callable[[Any, str, Any], None]


def compares_three_tokens(replace: Replace) -> None:
    """What follows the first three tokens is never reused: always, and the same."""
    count_common = lockstep.reference.session.count_common

    def wrong(left: Sequence[int], right: Sequence[int]) -> int:
        return min(3, count_common(left, right))

    replace(lockstep.reference.session, "count_common", wrong)


def windows_come_back_short(replace: Replace) -> None:
    hold = Layer.hold

    def wrong(self: Layer, tags: Sequence[int]) -> None:
        hold(self, tags)
        if isinstance(self.cache, RotatingCache) and len(tags) > 1:
            self.cache.tokens = self.cache.tokens[-self.cache.window :][1:]

    replace(Layer, "hold", wrong)


def later_layers_miss_one(replace: Replace) -> None:
    """A pass of three tokens and more hands the second layer its first token twice."""

    def feed(self: Model, count: int, layers: int | None = None) -> None:
        end = self.computed + count
        tags = list(self.get_tags(self.get_request()[:end]))[self.computed :]
        for layer in self.layers[:layers]:
            if layer is not None:
                layer.cache.update(tags)
            if len(tags) > 2:
                tags[1] = tags[0]
        self.computed = end

    replace(Model, "feed", feed)


def nothing_is_left(replace: Replace) -> None:
    """An exact repeat reuses all but two tokens."""

    def begin(self: Session, tokens: Sequence[int], refusing: Any = ()) -> list[int]:
        self.check_begin(tokens)
        common = lockstep.reference.session.count_common(tokens, self.stored)
        reuse = common if common < len(tokens) else max(0, common - 2)
        for layer in self.cached:
            if not layer.cache.can_restore(None, reuse):
                reuse = 0
        self.stored = list(tokens[:reuse])
        return self.open(tokens, reuse)

    replace(Session, "begin", begin)


def newest_goes_first(replace: Replace) -> None:
    list_victims = Trie.list_victims

    def wrong(self: Trie, parents: Mapping[Path, Path]) -> list[Path]:
        victims = list_victims(self, parents)
        return sorted(victims, key=lambda path: -self.points[path].used)[:1]

    replace(Trie, "list_victims", wrong)


def use_is_not_noted(replace: Replace) -> None:
    """A conversation that is told again is as old as before."""

    def touch(self: Trie, tokens: Sequence[int]) -> None:
        point = self.points.get(tuple(tokens))
        if point is not None and not point.used:
            self.clock += 1
            point.used = self.clock

    replace(Trie, "touch", touch)


def the_live_path_goes(replace: Replace) -> None:
    def list_victims(self: Trie, parents: Mapping[Path, Path]) -> list[Path]:
        inner = set(parents.values())
        return [
            path for path in parents if path not in inner or self.points[path].captured
        ]

    replace(Trie, "list_victims", list_victims)


def checkpoints_are_one_late(replace: Replace) -> None:
    is_wanted = Trie.is_wanted
    replace(Trie, "is_wanted", lambda self, end: is_wanted(self, end - 1))


def parting_captures_nothing(replace: Replace) -> None:
    begin = Trie.begin

    def wrong(self: Trie, tokens: Any, checkpoints: Any = (), refusing: Any = ()) -> Any:
        left = begin(self, tokens, checkpoints, refusing)
        self.wanted = set(checkpoints)
        return left

    replace(Trie, "begin", wrong)


def shared_tokens_count_twice(replace: Replace) -> None:
    def count_tokens(self: Trie) -> int:
        ends = set(self.points) - set(self.get_parents().values())
        return sum(len(path) for path in ends)

    replace(Trie, "count_tokens", count_tokens)


MISTAKES = {
    "compares-three-tokens": ("session", compares_three_tokens),
    "windows-come-back-short": ("session", windows_come_back_short),
    "later-layers-miss-one": ("session", later_layers_miss_one),
    "nothing-is-left": ("session", nothing_is_left),
    "newest-goes-first": ("trie", newest_goes_first),
    "use-is-not-noted": ("trie", use_is_not_noted),
    "the-live-path-goes": ("trie", the_live_path_goes),
    "checkpoints-are-one-late": ("trie", checkpoints_are_one_late),
    "parting-captures-nothing": ("trie", parting_captures_nothing),
    "shared-tokens-count-twice": ("trie", shared_tokens_count_twice),
}
