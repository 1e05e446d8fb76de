"""Writes the numbers of K, V and states in a script: tables of tokens for each layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np

from lockstep.harness.contracts.recurrence import Recurrence
from lockstep.harness.contracts.system import PairReader
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.payload import F32, split_tokens

MAX_NUMBERS = 20_000
"""The maximum number of numbers in a script; a longer script is not readable."""

WIDTH = 80
"""The maximum length of a line that can be broken."""

HUGE = 1e4
"""The number in padding that is not NaN."""

Name = Any
"""A tag, or (position, tag) for a key that is rotated to its position."""


@dataclass(frozen=True, eq=False)
class MadeArray:
    """An array that was made for the backend.

    Attributes:
        variable: the variable in the script.
        readers: the readers of the layers whose tokens the array may hold.
    """

    variable: str
    content: F32
    dtype: str
    readers: Sequence[PairReader]


class Tables:
    """The tables of the tokens that a script names.

    Attributes:
        keys: layer → name → the key [heads, dim].
        values: layer → tag → the value [heads, dim].
        states: recurrent layer → tokens → the two arrays of the state.
        tolerance: the largest error of a correct number.
        count: the number of numbers in the script so far.
    """

    def __init__(self) -> None:
        self.keys: dict[PairReader, dict[Name, F32]] = {}
        self.values: dict[PairReader, dict[Name, F32]] = {}
        self.states: dict[Recurrence, dict[tuple[int, ...], tuple[F32, F32]]] = {}
        self.tolerance, self.count = 0.0, 0

    def add_state(self, owner: Recurrence, tokens: Sequence[int]) -> str:
        """Adds the state of a layer that has read tokens; returns the table's name."""
        read = tuple(tokens)
        states = self.states.setdefault(owner, {})
        states[read] = owner.compute_conv(read), owner.compute_delta(read)
        return name_table("STATES", list(self.states).index(owner))

    def add(
        self, reader: PairReader, names: Sequence[Name], tags: Sequence[int] = ()
    ) -> tuple[str, str]:
        """Adds keys with their names, the values of the same tokens, and the values of
        further tags. Returns the names of the tables of keys and of values."""
        keys, values = (
            table.setdefault(reader, {}) for table in (self.keys, self.values)
        )
        for name in names:
            keys.setdefault(name, reader.get_key(name))
        named = [name[1] if isinstance(name, tuple) else name for name in names]
        for tag in (*named, *tags):
            values.setdefault(tag, reader.values.get_vectors([tag])[0, :, 0])
        self.tolerance = max(self.tolerance, reader.get_tolerance())
        number = list(self.keys).index(reader)
        return name_table("KEYS", number), name_table("VALUES", number)

    # --- as code ------------------------------------------------------------------------

    def write_array(self, noted: MadeArray) -> str:
        """Returns the code of an array; names the tokens if the array holds tokens."""
        array, shape = noted.content, list(noted.content.shape)
        first = array.flat[0] if array.size else 0.0
        if np.array_equal(array, np.full_like(array, first), equal_nan=True):
            return f"np.full({shape}, {write_numbers(first)}, np.float32)"
        for reader in noted.readers if array.ndim == 4 else ():
            for is_key in (True, False):
                rows = spell(reader, array, is_key)
                if rows is not None:
                    return self.write_tokens(reader, rows, array, is_key)
        return f"np.array({self.write_counted(array)}, np.float32)"

    def write_tokens(
        self,
        reader: PairReader,
        rows: Sequence[Sequence[Name | None]],
        array: F32,
        is_key: bool,
    ) -> str:
        names = [name for row in rows for name in row if name is not None]
        keys, values = self.add(reader, *((names,) if is_key else ((), names)))
        is_huge = any(None in row for row in rows) and not np.isnan(array).any()
        padding = f", {HUGE}" if is_huge else ""
        listed = [list(row) for row in rows]
        return f"stack({keys if is_key else values}, {listed}{padding})"

    def write_counted(self, array: F32) -> str:
        """Returns the numbers of an array as a list."""
        self.count += array.size
        if self.count > MAX_NUMBERS:
            raise UsageError(
                f"a script would hold more than {MAX_NUMBERS} numbers; lockstep shrink"
                " may make the program shorter"
            )
        return write_numbers(array.tolist())

    def write(self) -> Iterator[str]:
        """Yields the lines of all tables."""
        for word, tables in (("KEYS", self.keys), ("VALUES", self.values)):
            for number, table in enumerate(tables.values()):
                arrays = {name: [table[name]] for name in sorted(table)}
                yield from self.write_table(name_table(word, number), arrays, "{}")
        for number, states in enumerate(self.states.values()):
            yield from self.write_table(name_table("STATES", number), states, "({})")

    def write_table(
        self, variable: str, table: Mapping[Name, Sequence[F32]], form: str
    ) -> Iterator[str]:
        yield f"{variable} = {{"
        for name, arrays in table.items():
            numbers = form.format(", ".join(map(self.write_counted, arrays)))
            yield f"    {fold(f'{name!r}: {numbers},', indent=8)}"
        yield "}"


def name_table(word: str, number: int) -> str:
    return f"{word}_{number}" if number else word


def spell(reader: PairReader, array: F32, is_key: bool) -> list[list[Name | None]] | None:
    """Returns the names of the tokens in each row, and None for padding. Returns None if
    the array contains anything else."""
    table = reader.keys if is_key else reader.values
    if array.shape[1] != table.heads or array.shape[3] != table.dim:
        return None
    known = reader.name_keys() if is_key else table.known
    rows = []
    for row in range(len(array)):
        names = [known.get(column) for column in split_tokens(array[row : row + 1])]
        for number, name in enumerate(names):
            if name is None and not is_padding(array[row, :, number]):
                return None
        rows.append(names)
    return rows


def is_padding(column: F32) -> bool:
    return bool(np.isnan(column).all() or (column == HUGE).all())


def write_numbers(numbers: Any) -> str:
    """Returns a number, or nested lists of numbers, as code."""
    if isinstance(numbers, Sequence):
        return f"[{', '.join(map(write_numbers, numbers))}]"
    if np.isnan(numbers):
        return "np.nan"
    if np.isinf(numbers):
        return "np.inf" if numbers > 0 else "-np.inf"
    return str(np.float32(numbers))


def fold(code: str, indent: int = 4) -> str:
    """Breaks a long expression after spaces."""
    if len(code) <= WIDTH:
        return code
    lines = wrap(code, WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)
