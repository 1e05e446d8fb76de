"""The notation for cases of the prefix caches, and the contents their layers must have.

A letter is a token, a word a conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cases import Desk, read_words

from lockstep.reference.batch import Batch
from lockstep.reference.causal import CausalCache
from lockstep.reference.kv import KVCache
from lockstep.reference.layers import GetTags, Layer
from lockstep.reference.recurrent import RecurrentCache
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.session import Session
from lockstep.reference.slots import NoSlot, Slots
from lockstep.reference.state import StateCache
from lockstep.reference.token import Token
from lockstep.reference.trie import Trie

NUMBERS: dict[str, int] = {}
"""Every conversation that was ever computed; the number is the tag of its last token."""


def spell(word: str) -> list[int]:
    return [ord(letter) for letter in word]


def read(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def get_tags(tokens: Sequence[int]) -> list[int]:
    word = read(tokens)
    beginnings = [word[:length] for length in range(1, len(word) + 1)]
    return [NUMBERS.setdefault(word, len(NUMBERS)) for word in beginnings]


def make_layer(spec: str) -> Layer | None:
    """kv, rotating:WINDOW, state, or - for none. Bytes can be read off the digits: a
    token of kv takes 1, one of rotating 10, a state 100."""
    kind, _, size = spec.partition(":")
    if kind == "-":
        return None
    if kind == "kv":
        return Layer(KVCache(), token_bytes=1)
    if kind == "rotating":
        return Layer(RotatingCache(int(size)), token_bytes=10)
    return Layer(StateCache(), state_bytes=100)


class ConversationDesk(Desk):
    """A session or a trie over some layers.

    Args:
        make: Session or Trie.
        head: the layers, and options of the cache.
    """

    def __init__(
        self, make: Callable[..., Session | Trie], head: str, get_tags: GetTags = get_tags
    ) -> None:
        layers, options = read_words(head)
        self.cache = make([make_layer(layer) for layer in layers], get_tags, **options)

    def check_layers(self) -> None:
        """Each layer holds what it has read of the request, and nothing else."""
        for layer in self.cache.cached:
            request = self.cache.request or []
            tags = get_tags(request[: layer.offset])
            held = [Token(tag, position) for position, tag in enumerate(tags)]
            if isinstance(layer.cache, RotatingCache):
                held = held[-layer.cache.window :]
            assert layer.cache.state() == held

    def do_begin(self, request: str, **more: Collection[int]) -> str:
        """A request: what of it is left to compute. more: checkpoints, refusing."""
        left = self.cache.begin(spell(request), **more)
        reused = len(request) - len(left)
        assert all(layer.offset == reused for layer in self.cache.cached)
        self.check_layers()
        return read(left)

    def do_feed(self, count: int, layers: int | None = None) -> str:
        """Tokens are computed: where the layers then stand. layers: the pass breaks off
        after so many."""
        self.cache.feed(count, layers)
        self.check_layers()
        return " ".join(str(layer.offset) for layer in self.cache.cached)

    def do_say(self, word: str) -> None:
        """Tokens are generated."""
        self.cache.extend(spell(word))

    def do_ask(self, request: str, said: str = "", **more: Collection[int]) -> str:
        """A whole request, all of it computed, and what was generated too."""
        left = self.do_begin(request, **more)
        self.cache.feed(len(left))
        for letter in said:
            self.do_say(letter)
            self.cache.feed(1)
        assert self.cache.close() == len(request + said)
        return left

    def do_free(self) -> None:
        self.cache.free()
        assert not any(layer.offset for layer in self.cache.cached)

    def do_points(self, *words: str) -> None:
        """The points of a trie are these, as ab:12 abc: the ends of the edges, and behind
        a colon the layers that are captured there."""
        points = {
            read(path): "".join(map(str, sorted(point.captured)))
            for path, point in self.cache.points.items()
        }
        pairs = [word.partition(":") for word in words]
        assert points == {word: numbers for word, _, numbers in pairs}

    def do_count(self) -> Any:
        return [self.cache.count_tokens(), self.cache.count_bytes()]

    def do_limit(self, limit: int | None) -> None:
        self.cache.set_limit(limit)


SIZES: Mapping[str, Mapping[str, Any]] = {
    "several": {"count": 2, "several_users": True},
    "three": {"count": 3, "several_users": True},
    "eight": {"context": 8, "keep": 2},
}
"""Options of slots by one word."""

CACHES: Mapping[str, Callable[[int, int], CausalCache]] = {
    "causal": lambda count, context: CausalCache(count, context, context),
    "no-shift": lambda count, context: CausalCache(count, context, context, shift=False),
    "swa:2": lambda count, context: CausalCache(count, context, context, 2, 2),
    "swa-memory:2:4": lambda count, context: CausalCache(count, context, context, 2, 4),
    "recurrent": lambda count, context: RecurrentCache(count, context, context),
    "recurrent:2": lambda count, context: RecurrentCache(
        count, context, context, interval=2, checkpoints=9
    ),
    "recurrent:2:one": lambda count, context: RecurrentCache(
        count, context, context, slots=1, interval=2, checkpoints=9
    ),
}


class SlotsDesk(Desk):
    """Slots over one of `CACHES`, with the options of `SIZES` that are named."""

    def __init__(self, head: str) -> None:
        (cache, *sizes), options = read_words(head)
        for size in sizes:
            options |= SIZES[size]
        count, context = options.pop("count", 1), options.pop("context", 16)
        self.cache = Slots(CACHES[cache](count, context), count, context, **options)

    def do_begin(self, request: str) -> str:
        """A request: its slot, and what of it is left to compute; or busy, if none is
        free."""
        try:
            number = self.cache.begin(spell(request))
        except NoSlot:
            return "busy"
        slot = self.cache.slots[number]
        assert read(slot.tokens + slot.remaining) == request
        return f"{number} {read(slot.remaining)}"

    def do_fail(self, slot: int, count: int) -> int:
        """A pass that breaks off when the cache has already stored its tokens: the first
        position that it was given."""
        positions = self.cache.reserve(slot, count)
        assert positions == range(positions[0], positions[0] + count)
        tags = self.cache.slots[slot].remaining[:count]
        self.cache.cache.forward(Batch(positions, [slot] * count), tags)
        return positions[0]

    def do_feed(self, slot: int, count: int) -> int:
        """A pass, and the first position that it was given."""
        first = self.do_fail(slot, count)
        self.cache.commit(slot, count)
        return first

    def do_say(self, slot: int, word: str) -> None:
        self.cache.extend(slot, spell(word))

    def do_ask(self, request: str) -> str:
        """A whole request, computed token by token."""
        answer = self.do_begin(request)
        slot, left = answer.split()
        for _ in left:
            self.do_feed(int(slot), 1)
        assert self.cache.close(int(slot)) == len(request)
        return answer

    def do_holds(self, slot: int) -> str:
        """The tokens that a slot says it holds; those in the cache, if these are others,
        with "." at a position that holds none; and those that are left to compute."""
        held = self.cache.slots[slot]
        tokens = {at: chr(tag) for tag, at, *_ in self.cache.cache.get_tokens(slot)}
        assert len(tokens) == len(self.cache.cache.get_tokens(slot)), "two at a position"
        stored = "".join(tokens.get(at, ".") for at in range(max(tokens, default=-1) + 1))
        answer = read(held.tokens) or "-"
        answer += f" cached={stored}" * (stored != read(held.tokens))
        return answer + f" left={read(held.remaining)}" * bool(held.remaining)
