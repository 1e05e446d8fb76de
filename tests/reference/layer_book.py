"""The notation for cases of the caches of one sequence.

`fill 4` writes the tags 10, 11, 12 and 13, `add 30 31` these; `new` goes on with a fresh
cache, whose snapshots are still there. `see 2` answers with what a query at position 2
sees, `holds` with the offset and the state, "-" for nothing. `keep s 1` takes a snapshot
from position 1 on; it is said as `1 4: 11 12 13`, which are its label and its tags; of a
window, those that a cache holds into which it is restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cases import read_table, read_words

from lockstep.reference.kv import KVCache
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.snapshot import Snapshot
from lockstep.reference.state import StateCache
from lockstep.reference.token import Token

KINDS = {"kv": KVCache, "rotating": RotatingCache, "state": StateCache}


@dataclass(frozen=True)
class Case:
    name: str
    head: str
    steps: Sequence[str]

    def check(self) -> None:
        desk = Desk(self.head)
        for number, step in enumerate(self.steps):
            call, _, expected = step.partition(" > ")
            answer = desk.run(*call.split())
            assert answer == expected, f"step {number}, {call}: {answer}"


def read_cases(text: str) -> list[Case]:
    return [Case(*case) for case in read_table(text)]


class Desk:
    """A cache and all snapshots that were taken, by name."""

    def __init__(self, head: str) -> None:
        [self.kind], self.options = read_words(head)
        self.snapshots: dict[str, Snapshot | None] = {"none": None}
        self.cache: Any = None
        self.run("new")

    def run(self, word: str, *words: str) -> str:
        """Does one step; returns its answer in words."""
        numbers = [int(each) for each in words if each.lstrip("-").isdigit()]
        names = [each for each in words if not each.lstrip("-").isdigit()]
        try:
            return self.do(word, numbers, names)
        except ValueError as error:
            return f"error: {error}"

    def do(self, word: str, numbers: list[int], names: list[str]) -> str:
        cache = self.cache
        match word:
            case "new":
                self.cache = KINDS[self.kind](**self.options)
            case "fill":
                cache.update(range(10, 10 + numbers[0]))
            case "add":
                cache.update(numbers)
            case "see":
                return say(cache.visible(*numbers))
            case "holds":
                assert self.kind == "state" or cache.size() == len(cache.state())
                return f"{cache.offset}: {say(cache.state())}"
            case "older":
                return say(cache.older())
            case "trim":
                return str(cache.trim(*numbers))
            case "restore":
                restored = cache.restore(self.snapshots[names[0]], *numbers)
                return {True: "yes", False: "no"}[restored]
            case "keep":
                return self.name(names, [cache.snapshot(*numbers)])
            case "says":
                return self.name(names, [self.snapshots[names[0]]])
            case "split":
                return self.name(
                    names[1:], cache.split(self.snapshots[names[0]], *numbers)
                )
            case "merge":
                parts = [self.snapshots[name] for name in names[:2]]
                return self.name(names[2:], [cache.merge(*parts)])
            case "prepare":
                cache.prepare(numbers)
            case "take":
                taken = cache.take()
                return self.name([f"t{place}" for place in range(len(taken))], taken)
            case "clone":
                self.cache = cache.clone()
            case "free":
                cache.free()
            case _:
                raise KeyError(word)
        return ""

    def name(self, names: Sequence[str], snapshots: Sequence[Snapshot | None]) -> str:
        self.snapshots |= dict(zip(names, snapshots, strict=True))
        return " / ".join(map(self.format_snapshot, snapshots)) or "-"

    def format_snapshot(self, snapshot: Snapshot | None) -> str:
        if snapshot is None:
            return "none"
        tokens: Sequence[Token] = snapshot.tokens
        if self.kind == "rotating":
            restored = RotatingCache(**self.options)
            restored.restore(snapshot, snapshot.end)
            tokens = restored.state()
        return f"{snapshot.begin} {snapshot.end}: {say(tokens)}"


def say(tokens: Sequence[Token]) -> str:
    return " ".join(str(token.tag) for token in tokens) or "-"
