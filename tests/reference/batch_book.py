"""The notation for cases of batches.

`kv rows=2 | …` opens an empty batch of two rows. `add 3` writes three columns to each
row, with tags that count up from 0 over the whole case, row by row; padding takes none.
`see ROW POSITION` answers with the tokens that a query sees, `holds` with the offset and
the state of each row, "-" for nothing. `batch c 2` opens another batch and goes on with
it, `use b` goes back to the first one, which is called b. `single x` opens a single
cache; `put x 2` writes to it, and `cut x 1` trims it.

`kv+rotating:2 rows=2 | …` makes lists of a full cache and a window of 2; what a token
sees, and what a row holds, is told of each part: "0 1 2 & 1 2".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cases import read_table, read_words
from layer_book import KINDS, say

from lockstep.reference.batched import BatchedCache
from lockstep.reference.list import ListCache


@dataclass(frozen=True)
class Case:
    name: str
    head: str
    steps: Sequence[str]

    def check(self) -> None:
        desk = Desk(self.head)
        for number, step in enumerate(self.steps):
            call, _, expected = step.partition(" > ")
            answer = desk.run(*read_words(call))
            assert answer == expected, f"step {number}, {call}: {answer}"


def read_cases(text: str) -> list[Case]:
    return [Case(*case) for case in read_table(text)]


class Desk:
    """The batches and single caches of one case, by name."""

    def __init__(self, head: str) -> None:
        [kinds], self.options = read_words(head)
        self.kinds = kinds.split("+")
        self.batches: dict[str, BatchedCache] = {}
        self.singles: dict[str, Any] = {}
        self.tag = 0
        self.open("b", self.options["rows"])

    def make(self) -> Any:
        options = {name: self.options[name] for name in self.options if name != "rows"}
        if len(self.kinds) == 1:
            return KINDS[self.kinds[0]](**options)
        kinds = [kind.partition(":") for kind in self.kinds]
        return ListCache(
            [KINDS[kind](*([int(size)] if size else [])) for kind, _, size in kinds]
        )

    def open(self, name: str, rows: int) -> None:
        self.batches[name] = BatchedCache([self.make() for _ in range(rows)])
        self.current = name

    def take_tags(self, count: int) -> range:
        self.tag += count
        return range(self.tag - count, self.tag)

    def run(self, words: list[str], named: dict[str, Any]) -> str:
        """Does one step; returns its answer in words."""
        word, *rest = words
        numbers = [int(each) for each in rest if each.isdigit()]
        names = [each for each in rest if not each.isdigit()]
        try:
            return self.do(word, numbers, names, named)
        except ValueError as error:
            return f"error: {error}"

    def do(
        self, word: str, numbers: list[int], names: list[str], named: dict[str, Any]
    ) -> str:
        batch = self.batches[self.current]
        match word:
            case "add":
                counts = batch.count_tokens(numbers[0], **named)
                batch.update(numbers[0], [self.take_tags(count) for count in counts])
            case "see":
                row, position = numbers
                return say_parts(batch.rows[row], lambda part: part.visible(position))
            case "holds":
                return " / ".join(map(say_held, batch.rows))
            case "pad":
                batch.pad_right(numbers)
            case "trim":
                return {True: "yes", False: "no"}[batch.trim(numbers)]
            case "filter" | "select":
                getattr(batch, word)(numbers)
            case "finalize" | "free":
                getattr(batch, word)()
            case "extend":
                batch.extend(self.batches[names[0]])
            case "extract":
                self.singles[names[0]] = batch.extract(*numbers)
            case "stack":
                self.batches[self.current] = BatchedCache(
                    [self.singles.pop(name) for name in names]
                )
            case "single":
                self.singles[names[0]] = self.make()
            case "put":
                self.singles[names[0]].update(self.take_tags(*numbers))
            case "says":
                return say_held(self.singles[names[0]])
            case "cut":
                return str(self.singles[names[0]].trim(*numbers))
            case "batch":
                self.open(names[0], *numbers)
            case "use":
                [self.current] = names
            case "clone":
                self.batches[names[0]] = batch.clone()
            case _:
                raise KeyError(word)
        return ""


def say_held(cache: Any) -> str:
    return f"{cache.offset}: {say_parts(cache, lambda part: part.state())}"


def say_parts(cache: Any, read: Callable[[Any], Any]) -> str:
    """Says what is read of a cache, or of each part of a list."""
    parts = cache.parts if isinstance(cache, ListCache) else [cache]
    return " & ".join(say(read(part)) for part in parts)
