"""The notation for cases of the prefix caches, and the contents their layers must have.

A letter is a token, a word a conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from cases import read_table, read_value, read_words

from lockstep.reference.batch import Batch
from lockstep.reference.causal import CausalCache
from lockstep.reference.kv import KVCache
from lockstep.reference.layers import Layer
from lockstep.reference.recurrent import RecurrentCache
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.session import Session
from lockstep.reference.slots import NoSlot, Slots
from lockstep.reference.state import StateCache
from lockstep.reference.token import Token
from lockstep.reference.trie import Trie

Cache = TypeVar("Cache")
Step = Callable[[Any], tuple[str, object, object]]
"""Does something with a cache: says what, what came out, and what must come out."""

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


def make_layers(specs: str) -> list[Layer | None]:
    return [make_layer(spec) for spec in specs.split()]


def get_window(layer: Layer, word: str) -> list[Token]:
    """The tokens of a layer that has read the word and nothing else."""
    tokens = [Token(tag, at) for at, tag in enumerate(get_tags(spell(word)))]
    if isinstance(layer.cache, RotatingCache):
        return tokens[-layer.cache.window :]
    return tokens


def see_layers(cache: Session | Trie) -> list[list[Token]]:
    return [layer.cache.state() for layer in cache.cached]


def get_windows(cache: Session | Trie, word: str) -> list[list[Token]]:
    return [get_window(layer, word) for layer in cache.cached]


@dataclass(frozen=True)
class Case:
    """A case.

    Attributes:
        name: the rule that it shows.
        layers: the layers under a session or trie, or the cache under slots.
        steps: run in order, each with its expected answer.
        options: further arguments of the cache.
    """

    name: str
    layers: str
    steps: Sequence[Step]
    options: Mapping[str, Any]


def read_cases(text: str, words: Mapping[str, Callable[..., Step]]) -> list[Case]:
    """Reads a table of cases (`cases.py`), each of which looks like this:

        the end of a path goes, back to the point before
            kv limit=7 | ask abcd > abcd; ask abxy > xy;
            points ab abxy  # a comment

    Layers and options stand before the bar. A step is a word, its arguments, and behind
    ">" the answer; "-" is the empty word.

    Args:
        text: the table.
        words: the steps that it may have.
    """
    cases = []
    for name, head, steps in read_table(text):
        layers, options = read_words(head)
        for size in SIZES.keys() & layers:
            layers.remove(size)
            options |= SIZES[size]
        read = [read_step(step, words) for step in steps]
        cases.append(Case(name, " ".join(layers), read, options))
    return cases


def read_step(step: str, words: Mapping[str, Callable[..., Step]]) -> Step:
    word, _, rest = step.replace(" > ", " ").partition(" ")
    arguments, named = read_words(rest)
    return words[word](*map(read_value, arguments), **named)


def check_steps(name: str, cache: object, steps: Sequence[Step]) -> None:
    for number, step in enumerate(steps):
        what, got, expected = step(cache)
        assert got == expected, (
            f"{name}\nstep {number}, {what}: {got!r}, not {expected!r}"
        )


# --- steps of sessions and tries --------------------------------------------------------


def begin(
    request: str, left: str, refusing: Collection[int] = (), **more: Collection[int]
) -> Step:
    """A request, and what of it must be left to compute; the layers must hold the rest.
    more: checkpoints."""

    def step(cache: Session | Trie) -> tuple[str, object, object]:
        got = cache.begin(spell(request), refusing=refusing, **more)
        reused = request[: len(request) - len(left)]
        return (
            f"begin {request}",
            (read(got), see_layers(cache)),
            (left, get_windows(cache, reused)),
        )

    return step


def feed(count: int, *offsets: int, layers: int | None = None) -> Step:
    """Tokens are computed, and the layers then stand at `offsets`. layers: the pass
    breaks off after so many."""

    def step(cache: Session | Trie) -> tuple[str, object, object]:
        cache.feed(count, layers)
        got = [layer.offset for layer in cache.cached]
        word = read(cache.get_request())
        held = [get_window(layer, word[: layer.offset]) for layer in cache.cached]
        return f"feed {count}", (got, see_layers(cache)), (list(offsets), held)

    return step


def say(word: str) -> Step:
    """Tokens are generated."""

    def step(cache: Session | Trie) -> tuple[str, object, object]:
        cache.extend(spell(word))
        return f"say {word}", None, None

    return step


def close(stored: int) -> Step:
    def step(cache: Session | Trie) -> tuple[str, object, object]:
        return "close", cache.close(), stored

    return step


def ask(request: str, left: str, said: str = "", **more: Collection[int]) -> Step:
    """A whole request, all of it computed, and what was generated too."""

    def step(cache: Session | Trie) -> tuple[str, object, object]:
        what, got, expected = begin(request, left, **more)(cache)
        cache.feed(len(left))
        for letter in said:
            cache.extend(spell(letter))
            cache.feed(1)
        number = len(request + said)
        return what, (got, cache.close()), (expected, number)

    return step


def free() -> Step:
    def step(cache: Session | Trie) -> tuple[str, object, object]:
        cache.free()
        return "free", see_layers(cache), get_windows(cache, "")

    return step


# --- steps of tries ---------------------------------------------------------------------


def points(*words: str) -> Step:
    """The stored points, as ab:12 abc: the ends of the edges, and behind a colon the
    layers that are captured there."""

    def step(cache: Trie) -> tuple[str, object, object]:
        got = {
            read(path): "".join(map(str, sorted(point.captured)))
            for path, point in cache.points.items()
        }
        pairs = [word.partition(":") for word in words]
        return "points", got, {word: numbers for word, _, numbers in pairs}

    return step


def count(tokens: int, bytes: int) -> Step:
    def step(cache: Trie) -> tuple[str, object, object]:
        return "count", (cache.count_tokens(), cache.count_bytes()), (tokens, bytes)

    return step


def limit(bytes: int | None) -> Step:
    def step(cache: Trie) -> tuple[str, object, object]:
        cache.set_limit(bytes)
        return f"limit {bytes}", cache.limit, bytes

    return step


# --- slots, and their steps -------------------------------------------------------------

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
    "recurrent:2 of one": lambda count, context: RecurrentCache(
        count, context, context, slots=1, interval=2, checkpoints=9
    ),
}


def make_slots(cache: str, count: int = 1, context: int = 16, **options: Any) -> Slots:
    return Slots(CACHES[cache](count, context), count, context, **options)


def see_slot(slots: Slots, number: int) -> str:
    """The tokens of a slot in the cache, "." at a position that holds none."""
    assert isinstance(slots.cache, CausalCache)
    held = {at: chr(tag) for tag, at, _ in slots.cache.get_tokens(number)}
    assert len(held) == len(slots.cache.get_tokens(number)), "two at one position"
    return "".join(held.get(at, ".") for at in range(max(held, default=-1) + 1))


def compute(slots: Slots, number: int, count: int) -> range:
    """A pass, of which the slot is not told."""
    assert isinstance(slots.cache, CausalCache)
    positions = slots.reserve(number, count)
    tags = slots.slots[number].remaining[:count]
    slots.cache.forward(Batch(positions, [number] * count), tags)
    return positions


def slot_begin(request: str, slot: int | None, left: str = "") -> Step:
    """A request, the slot that it must get, and what of it must be left. slot: None if
    none is free."""

    def step(slots: Slots) -> tuple[str, object, object]:
        if slot is None:
            with pytest.raises(NoSlot):
                slots.begin(spell(request))
            return f"begin {request}", None, None
        number = slots.begin(spell(request))
        opened = slots.slots[number]
        got = number, read(opened.remaining), read(opened.tokens)
        reused = request[: len(request) - len(left)]
        return f"begin {request}", got, (slot, left, reused)

    return step


def slot_feed(slot: int, count: int, first: int) -> Step:
    """A pass, and the first position that it must be given."""

    def step(slots: Slots) -> tuple[str, object, object]:
        positions = compute(slots, slot, count)
        slots.commit(slot, count)
        return f"feed {count}", positions, range(first, first + count)

    return step


def fail(slot: int, count: int, first: int) -> Step:
    """A pass that breaks off when the cache has already stored its tokens."""

    def step(slots: Slots) -> tuple[str, object, object]:
        positions = compute(slots, slot, count)
        return f"fail {count}", positions, range(first, first + count)

    return step


def slot_say(slot: int, word: str) -> Step:
    def step(slots: Slots) -> tuple[str, object, object]:
        slots.extend(slot, spell(word))
        return f"say {word}", None, None

    return step


def slot_close(slot: int, stored: int) -> Step:
    def step(slots: Slots) -> tuple[str, object, object]:
        return f"close {slot}", slots.close(slot), stored

    return step


def holds(slot: int, tokens: str, cached: str | None = None, left: str = "") -> Step:
    """The tokens that a slot says it holds, those in the cache (the same, if not given),
    and those that are left of the open request."""

    def step(slots: Slots) -> tuple[str, object, object]:
        held = slots.slots[slot]
        got = read(held.tokens), see_slot(slots, slot), read(held.remaining)
        return f"slot {slot}", got, (tokens, tokens if cached is None else cached, left)

    return step


def slot_ask(request: str, slot: int, left: str) -> Step:
    """A whole request, computed token by token."""

    def step(slots: Slots) -> tuple[str, object, object]:
        what, got, expected = slot_begin(request, slot, left)(slots)
        for _ in left:
            compute(slots, slot, 1)
            slots.commit(slot, 1)
        number = len(request)
        return what, (got, slots.close(slot)), (expected, number)

    return step


# --- the words of the tables ------------------------------------------------------------

CONVERSATIONS: Mapping[str, Callable[..., Step]] = {
    "begin": begin,
    "feed": feed,
    "say": say,
    "close": close,
    "ask": ask,
    "free": free,
    "points": points,
    "count": count,
    "limit": limit,
}
SLOTS: Mapping[str, Callable[..., Step]] = {
    "begin": slot_begin,
    "feed": slot_feed,
    "fail": fail,
    "say": slot_say,
    "close": slot_close,
    "holds": holds,
    "ask": slot_ask,
}


def tell(cache: Session | Trie | Slots, script: str) -> None:
    """Checks the steps of a script, without a case."""
    words = SLOTS if isinstance(cache, Slots) else CONVERSATIONS
    check_steps(script, cache, [read_step(step, words) for step in script.split("; ")])
