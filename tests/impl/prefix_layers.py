"""A prefix cache of ours beside the reference: its layers, under watch, and requests."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from frameworks import Framework

from lockstep.reference.kv import KVCache
from lockstep.reference.layers import Layer, Tokens
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.state import StateCache

HEADS, KEY_DIM, VALUE_DIM = 2, 4, 3
CONV, DELTA = (1, 2, 5), (1, 2, 4, 3)
TOKEN_BYTES = HEADS * (KEY_DIM + VALUE_DIM) * 4
STATE_BYTES = (2 * 5 + 2 * 4 * 3) * 4

PROGRAMS = int(os.environ.get("PREFIX_PROGRAMS", "50"))
FIRST = int(os.environ.get("PREFIX_FIRST", "0"))
SEEDS = range(FIRST, FIRST + PROGRAMS)

Spec = str | int | None
"""A layer: "kv", "state", the window of a rotating one; None for one without a cache."""

SPECS: Sequence[Spec] = ("kv", "kv", "state", 1, 2, 3, 5, 8, None)


class Watched:
    """A layer of ours that knows its open snapshots, and refuses or fails if told so."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.open: list[Any] = []
        self.refuses = self.fails = False
        self.restored: list[tuple[Any, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def note(self, snapshot: Any) -> Any:
        if snapshot is not None:
            assert not any(snapshot is one for one in self.open)
            self.open.append(snapshot)
        return snapshot

    def consume(self, snapshot: Any) -> None:
        if snapshot is not None:
            (place,) = [i for i, one in enumerate(self.open) if one is snapshot]
            del self.open[place]

    def snapshot(self, begin: int) -> Any:
        return self.note(self.cache.snapshot(begin))

    def take(self) -> list[Any]:
        return [self.note(one) for one in self.cache.take()]

    def close(self, snapshot: Any) -> None:
        self.consume(snapshot)
        self.cache.close(snapshot)

    def split(self, snapshot: Any, at: int) -> Any:
        self.consume(snapshot)
        parts = self.cache.split(snapshot, at)
        return self.note(parts[0]), self.note(parts[1])

    def merge(self, parent: Any, child: Any) -> Any:
        self.consume(parent)
        self.consume(child)
        return self.note(self.cache.merge(parent, child))

    def restore(self, snapshot: Any, target: int) -> bool:
        assert target > 0, "free is what goes back to nothing"
        assert snapshot is None or any(snapshot is one for one in self.open)
        self.restored.append((snapshot, target))
        if self.fails:
            raise RuntimeError("no memory is left")
        return not self.refuses and bool(self.cache.restore(snapshot, target))


class Tags:
    """A number for each conversation: the tag of its last token."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, ...], int] = {}

    def __call__(self, tokens: Tokens) -> list[int]:
        paths = (tuple(tokens[: end + 1]) for end in range(len(tokens)))
        return [self.numbers.setdefault(path, len(self.numbers) + 1) for path in paths]


class World:
    """Layers of ours, what they hold, and the same layers for the reference."""

    def __init__(self, on: Framework, specs: Sequence[Spec]) -> None:
        self.on, self.specs, self.tags = on, specs, Tags()
        self.layers = [None if s is None else Watched(self.make(s)) for s in specs]
        self.cached = [layer for layer in self.layers if layer is not None]

    def make(self, spec: Spec) -> Any:
        def get(part: str, name: str) -> Any:
            return getattr(import_module(f"lockstep.impl.{self.on.name}.{part}"), name)

        if spec == "state":
            return get("state", "StateCache")(CONV, DELTA)
        if spec == "kv":
            return get("kv", "KVCache")(step=4)
        return get("rotating", "RotatingCache")(spec, step=4)

    def make_reference(self) -> list[Layer | None]:
        return [None if spec is None else refer(spec) for spec in self.specs]

    # --- what an engine does ------------------------------------------------------------

    def feed(
        self, tokens: Tokens, begin: int, end: int, layers: int | None = None
    ) -> None:
        """Computes the tokens [begin, end) of a request in the first `layers` layers."""
        for layer in self.layers[:layers]:
            if layer is not None:
                self.write(layer, self.tags(tokens[:end])[begin:])

    def write(self, layer: Watched, tags: list[int]) -> None:
        if not hasattr(layer.cache, "boundaries"):
            layer.update(*self.on.feed(tags, HEADS, KEY_DIM, VALUE_DIM))
            return
        for length in layer.boundaries(len(tags)):
            last, tags = tags[length - 1], tags[length:]
            conv, delta = np.full(CONV, last), np.full(DELTA, last)
            layer.write(self.on.array(conv), self.on.array(delta), length)

    # --- what layers and snapshots hold -------------------------------------------------

    def see(self, pair: Any) -> list[int]:
        """The tags in K and V, or in a state."""
        first, second = (self.on.numpy(array) for array in pair)
        if first.ndim == 3:
            assert (first == first[0, 0, 0]).all()
            assert (second == first[0, 0, 0]).all()
            return [int(first[0, 0, 0])]
        tags = first[0, 0, :, 0]
        assert (first == tags[:, None]).all()
        assert (second == -tags[:, None]).all()
        return [int(tag) for tag in tags]

    def hold(self, layer: Watched) -> list[int]:
        return self.see(layer.view()) if layer.offset else []

    def list_due(self, spec: Spec, tokens: Tokens, begin: int) -> list[int]:
        """The tags that a layer must hold of a conversation (of [begin, end), if it can
        be cut)."""
        tags = self.tags(tokens)
        if spec == "kv":
            return tags[begin:]
        return tags[-1:] if spec == "state" else tags[-int(str(spec)) :]

    def check_layers(self, tokens: Tokens) -> None:
        """Every layer holds exactly what computing the tokens from scratch would give."""
        for spec, layer in zip(self.specs, self.layers, strict=True):
            if layer is not None:
                assert layer.offset == len(tokens)
                assert self.hold(layer) == self.list_due(spec, tokens, 0)


def refer(spec: Spec) -> Layer:
    if spec == "kv":
        return Layer(KVCache(), TOKEN_BYTES)
    if spec == "state":
        return Layer(StateCache(), state_bytes=STATE_BYTES)
    return Layer(RotatingCache(int(str(spec))), TOKEN_BYTES)


class Drawing:
    """Random requests over a small alphabet, most of them near to earlier ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seen: list[list[int]] = []

    def specs(self) -> list[Spec]:
        return [self.random.choice(SPECS) for _ in range(self.random.randint(1, 4))]

    def tokens(self, most: int) -> list[int]:
        alphabet = self.random.choice((1, 2, 2, 3))
        return [
            self.random.randrange(alphabet) for _ in range(self.random.randint(1, most))
        ]

    def request(self, most: int = 14) -> list[int]:
        tokens = self.tokens(most)
        if self.seen and self.random.random() < 0.8:
            earlier = self.random.choice(self.seen)
            kept = self.random.randint(0, len(earlier))
            tokens = earlier[:kept] + self.random.choice(([], tokens, tokens[:2]))
        self.seen.append(tokens or [0])
        return list(self.seen[-1])

    def generated(self, tokens: list[int]) -> list[int]:
        """What may follow: as in an earlier request, or something else."""
        longer = [one for one in self.seen if one[: len(tokens)] == tokens != one]
        if longer and self.random.random() < 0.6:
            follow = self.random.choice(longer)[len(tokens) :]
            return follow[: self.random.randint(1, len(follow))]
        return self.tokens(3)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability


class Beside:
    """A session or trie of ours and one of the reference, which see the same requests."""

    ours: Any
    right: Any

    def __init__(self, on: Framework, specs: Sequence[Spec]) -> None:
        self.world = World(on, specs)

    def begin(
        self,
        tokens: list[int],
        *checkpoints: Sequence[int],
        refusing: Sequence[int] = (),
        failing: bool = False,
    ) -> list[int]:
        for number in refusing:
            layer = self.world.layers[number]
            if layer is not None:
                layer.refuses, layer.fails = not failing, failing
        left: list[int] = self.ours.begin(tokens, *checkpoints)
        for one in self.world.cached:
            one.refuses = one.fails = False
        assert left == self.right.begin(tokens, *checkpoints, refusing=refusing)
        self.world.check_layers(tokens[: len(tokens) - len(left)])
        self.check()
        return left

    def feed(self, count: int, layers: int | None = None) -> None:
        request, begin = self.right.get_request(), self.right.computed
        self.world.feed(request, begin, begin + count, layers)
        self.right.feed(count, layers)
        self.check()

    def extend(self, tokens: list[int]) -> None:
        self.ours.extend(tokens)
        self.right.extend(tokens)

    def close(self, cancel: bool = False) -> None:
        stored = self.ours.cancel() if cancel else self.ours.close()
        assert stored == self.right.close()
        self.check_stored()

    def free(self) -> None:
        self.ours.free()
        self.right.free()
        assert not any(layer.open for layer in self.world.cached)
        self.check_stored()

    def run(self, tokens: list[int], *checkpoints: Sequence[int]) -> int:
        """A whole request; how much was reused."""
        left = self.begin(tokens, *checkpoints)
        self.feed(len(left))
        self.close()
        return len(tokens) - len(left)

    def draw_request(self, draw: Drawing, *checkpoints: Sequence[int]) -> None:
        """One request, in updates of any length, which may break off anywhere."""
        pick, numbers = draw.random, range(len(self.world.layers))
        refusing = [n for n in numbers if draw.chance(0.3)] if draw.chance(0.15) else []
        failing = draw.chance(0.5)
        self.begin(draw.request(), *checkpoints, refusing=refusing, failing=failing)
        for _ in range(pick.randint(0, 5)):
            self.disturb(draw)
            request = self.right.get_request()
            left = len(request) - self.right.computed
            if left:
                self.feed(left if draw.chance(0.5) else pick.randint(1, left))
            if draw.chance(0.4):
                self.extend(draw.generated(request) if draw.chance(0.9) else [])
        left = len(self.right.get_request()) - self.right.computed
        if left and draw.chance(0.25):
            self.feed(pick.randint(1, left), pick.choice(numbers))
            if draw.chance(0.1):
                self.extend(draw.generated(self.right.get_request()))
            self.disturb(draw)
        draw.seen.append(list(self.right.get_request()))
        self.close(cancel=draw.chance(0.3))

    def disturb(self, draw: Drawing) -> None:
        """What may come at any time."""

    # --- checks -------------------------------------------------------------------------

    def check(self) -> None:
        offsets = [layer and layer.offset for layer in self.world.layers]
        assert offsets == [layer and layer.offset for layer in self.right.layers]

    def check_stored(self) -> None:
        """Between two requests."""
        self.check()

    def check_mistakes(self) -> None:
        """Neither a wrong token nor a call at the wrong time changes anything."""
        self.run([1, 2, 3])
        ours = self.ours
        for tokens in ([], [1, True], [1, 2.0], [None], ["a"]):
            refuses(r"token|empty", ours.begin, tokens)
        for call, *given in ((ours.close,), (ours.cancel,), (ours.extend, [1])):
            refuses("no request is open", call, *given)
        self.check_stored()
        self.begin([1, 2, 3, 4])
        refuses("a request is open", ours.free)
        refuses("a request is open", ours.begin, [1])
        refuses("'x' at place 1", ours.extend, [5, "x"])
        self.feed(1)
        self.close()
        assert self.run([1, 2, 3, 4, 5]) == 4


def refuses(words: str, call: Callable[..., Any], *arguments: Any, **more: Any) -> None:
    """The call is a mistake of usage, and is told so in these words."""
    with pytest.raises(ValueError, match=words):
        call(*arguments, **more)
