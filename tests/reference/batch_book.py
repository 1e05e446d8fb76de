"""The notation for cases of batches.

`kv rows=2 | …` opens an empty batch of two rows. `add 3` writes three columns to each
row, with tags that count up from 0 over the whole case, row by row; padding takes none.
`see ROW POSITION` answers with the tokens that a query sees, `holds` with the offset and
the state of each row. `batch c 2` opens another batch and goes on with it, `use b` goes
back to the first one, which is called b. `single x` opens a single cache; `put x 2`
writes to it, and `cut x 1` trims it.

`kv+rotating:2 rows=2 | …` makes lists of a full cache and a window of 2; what a token
sees, and what a row holds, is told of each part: "0 1 2 & 1 2".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases import Desk, read_words, say
from layer_book import KINDS

from lockstep.reference.batched import BatchedCache
from lockstep.reference.list import ListCache


class BatchDesk(Desk):
    """The batches and single caches of one case, by name."""

    def __init__(self, head: str) -> None:
        [kinds], self.options = read_words(head)
        self.kinds = [kind.partition(":") for kind in kinds.split("+")]
        rows = self.options.pop("rows")
        self.batches: dict[str, BatchedCache] = {}
        self.singles: dict[str, Any] = {}
        self.tag = 0
        self.do_batch("b", rows)

    def make(self) -> Any:
        if len(self.kinds) == 1:
            return KINDS[self.kinds[0][0]](**self.options)
        return ListCache(
            [KINDS[kind](*([int(size)] if size else [])) for kind, _, size in self.kinds]
        )

    def take_tags(self, count: int) -> range:
        self.tag += count
        return range(self.tag - count, self.tag)

    def do_batch(self, name: str, rows: int) -> None:
        self.batches[name] = BatchedCache([self.make() for _ in range(rows)])
        self.do_use(name)

    def do_use(self, name: str) -> None:
        self.name, self.cache = name, self.batches[name]

    def do_add(self, length: int, **padding: Any) -> None:
        counts = self.cache.count_tokens(length, **padding)
        self.cache.update(length, [self.take_tags(count) for count in counts])

    def do_see(self, row: int, position: int) -> str:
        return say_parts(self.cache.rows[row], lambda part: part.visible(position))

    def do_holds(self) -> str:
        return " / ".join(map(say_held, self.cache.rows))

    def do_pad(self, *lengths: int) -> None:
        self.cache.pad_right(list(lengths))

    def do_trim(self, *counts: int) -> Any:
        return self.cache.trim(counts)

    def do_filter(self, *rows: int) -> None:
        self.cache.filter(list(rows))

    def do_select(self, *rows: int) -> None:
        self.cache.select(list(rows))

    def do_extend(self, name: str) -> None:
        self.cache.extend(self.batches[name])

    def do_clone(self, name: str) -> None:
        self.batches[name] = self.cache.clone()

    def do_extract(self, row: int, name: str) -> None:
        self.singles[name] = self.cache.extract(row)

    def do_stack(self, *names: str) -> None:
        singles = [self.singles.pop(name) for name in names]
        self.batches[self.name] = self.cache = BatchedCache(singles)

    def do_single(self, name: str) -> None:
        self.singles[name] = self.make()

    def do_put(self, name: str, count: int) -> None:
        self.singles[name].update(self.take_tags(count))

    def do_says(self, name: str) -> str:
        return say_held(self.singles[name])

    def do_cut(self, name: str, count: int) -> Any:
        return self.singles[name].trim(count)


def say_held(cache: Any) -> str:
    return f"{cache.offset}: {say_parts(cache, lambda part: part.state())}"


def say_parts(cache: Any, read: Callable[[Any], Any]) -> str:
    """Says what is read of a cache, or of each part of a list."""
    parts = cache.parts if isinstance(cache, ListCache) else [cache]
    return " & ".join(say(read(part)) for part in parts)
