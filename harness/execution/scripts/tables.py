"""The numbers of K, V and states in a script: tables of tokens for each layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.harness.contracts.recurrence import Recurrence
from lockstep.harness.contracts.system import PairReader
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.payload import F32, split_tokens

MAX_NUMBERS = 20_000
"""Of a script; a longer one helps nobody."""

MAX_LINE = 88

HUGE = 1e4
"""What padding holds beside NaN."""

Name = Any
"""A tag, or (position, tag) of a key that is turned to its position."""


@dataclass(frozen=True, eq=False)
class MadeArray:
    """An array that was made for the backend; the readers may know its tokens."""

    variable: str
    content: F32
    dtype: str
    readers: Sequence[PairReader]


class Tables:
    """The tokens that a script names.

    Attributes:
        keys, values: of each layer, name → [heads, dim]. Each token that has a key has a
            value, by its tag.
        states: of each recurrent layer, tokens → the two arrays.
        tolerance: the largest error of a number that is right.
    """

    def __init__(self) -> None:
        self.keys: dict[PairReader, dict[Name, F32]] = {}
        self.values: dict[PairReader, dict[Name, F32]] = {}
        self.states: dict[Recurrence, dict[tuple[int, ...], tuple[F32, F32]]] = {}
        self.tolerance, self.numbers = 0.0, 0

    def add_state(self, owner: Recurrence, tokens: Sequence[int]) -> str:
        """The variable with the states of a layer, which gets that of these tokens."""
        read = tuple(tokens)
        states = self.states.setdefault(owner, {})
        states[read] = owner.compute_conv(read), owner.compute_delta(read)
        return name_table("STATES", list(self.states).index(owner))

    def add(self, reader: PairReader, names: Sequence[Name]) -> str:
        """The variables with the tokens of a layer, which get these."""
        keys, values = (
            table.setdefault(reader, {}) for table in (self.keys, self.values)
        )
        for name in names:
            keys.setdefault(name, reader.get_key(name))
            tag = name[1] if isinstance(name, tuple) else name
            values.setdefault(tag, reader.values.get_vectors([tag])[0, :, 0])
        self.tolerance = max(self.tolerance, reader.get_tolerance())
        number = list(self.keys).index(reader)
        return f"{name_table('KEYS', number)}, {name_table('VALUES', number)}"

    # --- arrays -------------------------------------------------------------------------

    def write_array(self, noted: MadeArray) -> str:
        """The code of an array that a backend is given: of tokens, if it holds such."""
        array, shape = noted.content, list(noted.content.shape)
        if array.size == 0:
            return f"np.zeros({shape}, np.float32)"
        first = array.reshape(-1)[0]
        if np.array_equal(array, np.full_like(array, first), equal_nan=True):
            return f"np.full({shape}, {write_number(first)}, np.float32)"
        for reader in noted.readers if array.ndim == 4 else ():
            for is_key in (True, False):
                rows = spell(reader, array, is_key)
                if rows is not None:
                    return self.write_tokens(reader, rows, array, is_key)
        self.count(array.size)
        return f"np.array({write_numbers(array.tolist())}, np.float32)"

    def write_tokens(
        self,
        reader: PairReader,
        rows: Sequence[Sequence[Name | None]],
        array: F32,
        is_key: bool,
    ) -> str:
        names = [name for row in rows for name in row if name is not None]
        keys, values = self.add(reader, names if is_key else []).split(", ")
        if not is_key:
            table = self.values[reader]
            table.update(
                {tag: reader.values.get_vectors([tag])[0, :, 0] for tag in names}
            )
        listed = ", ".join(f"[{', '.join(map(write_name, row))}]" for row in rows)
        is_huge = any(None in row for row in rows) and not np.isnan(array).any()
        filling = f", {HUGE}" if is_huge else ""
        return f"stack({keys if is_key else values}, [{listed}]{filling})"

    def count(self, numbers: int) -> None:
        self.numbers += numbers
        if self.numbers > MAX_NUMBERS:
            raise UsageError(
                f"a script would hold more than {MAX_NUMBERS} numbers; lockstep shrink"
                " may make the program shorter"
            )

    def write(self) -> Iterator[str]:
        """The lines of the tables."""
        for word, tables in (("KEYS", self.keys), ("VALUES", self.values)):
            for number, table in enumerate(tables.values()):
                items = {name: (table[name],) for name in sorted(table)}
                yield from self.write_table(name_table(word, number), items, "{}")
        for number, states in enumerate(self.states.values()):
            yield from self.write_table(name_table("STATES", number), states, "({})")

    def write_table(
        self, variable: str, table: Mapping[Name, Sequence[F32]], form: str
    ) -> Iterator[str]:
        yield f"{variable} = {{"
        for name, arrays in table.items():
            self.count(sum(array.size for array in arrays))
            numbers = ", ".join(write_numbers(array.tolist()) for array in arrays)
            yield from wrap_numbers(f"    {write_name(name)}: {form.format(numbers)},")
        yield "}"


def name_table(word: str, number: int) -> str:
    return f"{word}_{number}" if number else word


def spell(reader: PairReader, array: F32, is_key: bool) -> list[list[Name | None]] | None:
    """The tokens of each row; None for padding, or in place of all if there is another
    column."""
    table = reader.keys if is_key else reader.values
    if array.shape[1] != table.heads or array.shape[3] != table.dim:
        return None
    names_known = reader.name_keys() if is_key else table.known
    rows = []
    for row in range(len(array)):
        names = [names_known.get(column) for column in split_tokens(array[row : row + 1])]
        for number, name in enumerate(names):
            if name is None and not is_padding(array[row, :, number]):
                return None
        rows.append(names)
    return rows


def is_padding(column: F32) -> bool:
    return bool(np.isnan(column).all() or (column == HUGE).all())


def wrap_numbers(line: str) -> Iterator[str]:
    """A line of numbers, as several where it is long."""
    while len(line) > MAX_LINE and (end := line.rfind(" ", 8, MAX_LINE)) >= 0:
        yield line[:end]
        line = f"        {line[end + 1 :]}"
    yield line


def write_name(name: Name | None) -> str:
    return repr(name)


def write_number(number: float) -> str:
    if np.isnan(number):
        return "np.nan"
    if np.isinf(number):
        return "np.inf" if number > 0 else "-np.inf"
    return str(np.float32(number))


def write_numbers(numbers: Any) -> str:
    if isinstance(numbers, Sequence):
        return f"[{', '.join(map(write_numbers, numbers))}]"
    return write_number(numbers)
