"""The numbers of K and V in a script: a table of tokens for each layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.contracts.recurrence import Recurrence
from lockstep.harness.contracts.system import System
from lockstep.harness.contracts.unified.model import Turns
from lockstep.harness.contracts.unified.reader import PositionReader
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.payload import (
    F32,
    ExpectedPayloads,
    Table,
    get_key_tolerance,
    split_tokens,
)

MOST_NUMBERS = 20_000
"""Of a script; a longer one helps nobody."""

HUGE = 1e4
"""What padding holds beside NaN."""

Name = Any
"""A tag, or (position, tag) of a key that is turned to its position."""


class Tables:
    """The tokens that a script names.

    Args:
        system: of the run.

    Attributes:
        tolerance: the largest error of a number that is right.
    """

    def __init__(self, system: Any) -> None:
        self.readers = find_readers(system)
        self.keys: list[dict[Name, F32]] = [{} for _ in self.readers]
        self.values: list[dict[Name, F32]] = [{} for _ in self.readers]
        self.states: list[tuple[Recurrence, dict[tuple[int, ...], tuple[F32, F32]]]] = []
        self.numbers = 0
        self.named: set[int] = set()
        self.tolerance = max(
            (float(getattr(reader, "tolerance", 0.0)) for reader in self.readers),
            default=0.0,
        )

    # --- what a script names ------------------------------------------------------------

    def add_state(self, recurrence: Recurrence, tokens: tuple[int, ...]) -> str:
        """The variable with the states of a layer, which gets that of these tokens. The
        same tokens make another state in another layer."""
        owners = [owner for owner, _ in self.states]
        if recurrence not in owners:
            owners.append(recurrence)
            self.states.append((recurrence, {}))
        number = owners.index(recurrence)
        pair = recurrence.compute_conv(tokens), recurrence.compute_delta(tokens)
        self.states[number][1][tokens] = pair
        return name_states(number)

    def get_names(self, reader: ExpectedPayloads) -> tuple[str, str]:
        """The variables with the tokens of a layer."""
        number = self.readers.index(reader)
        self.named.add(number)
        more = f"_{number}" if len(self.readers) > 1 else ""
        return f"KEYS{more}", f"VALUES{more}"

    def add(
        self, reader: ExpectedPayloads, name: Name, turns: Mapping[int, Turns]
    ) -> None:
        """Names a token, which may have been turned since it was stored."""
        number = self.readers.index(reader)
        tag = name[1] if isinstance(name, tuple) else name
        self.values[number][tag] = reader.values.get_vectors([tag])[0, :, 0]
        if not isinstance(reader, PositionReader) or not isinstance(name, tuple):
            self.keys[number].setdefault(name, reader.keys.get_vectors([tag])[0, :, 0])
            return
        ideal, turn = reader.compute_keys([tag], [name[0]]), turns.get(tag)
        if turn is not None and turn.count:
            allowed = get_key_tolerance(reader.dtype, turn.count, turn.distance)
            self.tolerance = max(self.tolerance, allowed)
        self.keys[number].setdefault(name, reader.store(ideal)[0, :, 0])

    # --- arrays -------------------------------------------------------------------------

    def write_array(self, array: npt.NDArray[np.float32]) -> str:
        """The code of an array that a backend is given: of tokens, if it holds such."""
        if array.size == 0:
            return f"np.zeros({list(array.shape)}, np.float32)"
        first = array.reshape(-1)[0]
        if np.array_equal(array, np.full_like(array, first), equal_nan=True):
            return f"np.full({list(array.shape)}, {write_number(first)}, np.float32)"
        if array.ndim == 4:
            for number, reader in enumerate(self.readers):
                for is_key in (True, False):
                    rows = self.spell(reader, array, is_key)
                    if rows is not None:
                        return self.write_rows(number, rows, array, is_key)
        self.count(array.size)
        return f"np.array({write_numbers(array.tolist())}, np.float32)"

    def spell(
        self, reader: ExpectedPayloads, array: F32, is_key: bool
    ) -> list[list[Name | None]] | None:
        """The tokens of each row; None if there is another column."""
        table = reader.keys if is_key else reader.values
        if array.shape[1] != table.heads or array.shape[3] != table.dim:
            return None
        known = get_known(reader, table, is_key)
        rows = []
        for row in range(len(array)):
            found = [known.get(each) for each in split_tokens(array[row : row + 1])]
            for column, name in enumerate(found):
                if name is None and not is_padding(array[row, :, column]):
                    return None
            rows.append(found)
        return rows

    def write_rows(
        self, number: int, rows: list[list[Name | None]], array: F32, is_key: bool
    ) -> str:
        reader, table = self.readers[number], (self.values, self.keys)[is_key][number]
        for row, names in enumerate(rows):
            for column, name in enumerate(names):
                if name is not None:
                    table[name] = array[row, :, column]
        variable = self.get_names(reader)[0 if is_key else 1]
        listed = ", ".join(f"[{', '.join(map(write_name, names))}]" for names in rows)
        huge = any(None in names for names in rows) and not np.isnan(array).any()
        return f"stack({variable}, [{listed}]{f', {HUGE}' if huge else ''})"

    # --- as code ------------------------------------------------------------------------

    def count(self, numbers: int) -> None:
        self.numbers += numbers
        if self.numbers > MOST_NUMBERS:
            raise UsageError(
                f"a script would hold more than {MOST_NUMBERS} numbers; lockstep shrink"
                " may make the program shorter"
            )

    def write(self) -> Iterator[str]:
        """The tables. Each token that has a key has a value."""
        for number in sorted(self.named):
            reader = self.readers[number]
            for name in list(self.keys[number]):
                tag = name[1] if isinstance(name, tuple) else name
                own = reader.values.get_vectors([tag])[0, :, 0]
                self.values[number].setdefault(tag, own)
            names = self.get_names(reader)
            tables = self.keys[number], self.values[number]
            for variable, table in zip(names, tables, strict=True):
                yield from self.write_table(variable, table)
        for number, (_, states) in enumerate(self.states):
            yield f"{name_states(number)} = {{"
            for read, pair in states.items():
                self.count(sum(each.size for each in pair))
                conv, delta = (write_numbers(each.tolist()) for each in pair)
                yield from wrap_numbers(f"    {write_name(read)}: ({conv}, {delta}),")
            yield "}"

    def write_table(self, variable: str, table: Mapping[Name, F32]) -> Iterator[str]:
        yield f"{variable} = {{"
        for name in sorted(table):
            self.count(table[name].size)
            numbers = write_numbers(table[name].tolist())
            yield from wrap_numbers(f"    {write_name(name)}: {numbers},")
        yield "}"


def name_states(number: int) -> str:
    return f"STATES_{number}" if number else "STATES"


def wrap_numbers(line: str) -> Iterator[str]:
    """A line of numbers, as several where it is long."""
    while len(line) > 88:
        place = line.rfind(" ", 8, 88)
        if place < 0:
            break
        yield line[:place]
        line = f"        {line[place + 1 :]}"
    yield line


def write_name(name: Name | None) -> str:
    if isinstance(name, tuple):
        inside = ", ".join(map(str, name))
        return f"({inside},)" if len(name) == 1 else f"({inside})"
    return str(name)


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


def is_padding(column: F32) -> bool:
    return bool(np.isnan(column).all() or (column == HUGE).all())


def get_known(
    reader: ExpectedPayloads, table: Table, is_key: bool
) -> Mapping[bytes, Name]:
    """Bytes of a column → its token."""
    if is_key and isinstance(reader, PositionReader):
        return {content: place for place, content in reader.stored.items()}
    return table.known


def find_readers(system: Any) -> list[ExpectedPayloads]:
    """The layers that make K and V, in a system and in those that it is made of."""
    found: list[ExpectedPayloads] = []
    waiting, seen = [system], set[int]()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, ExpectedPayloads):
            found.append(one)
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, System) or type(one).__name__.endswith("System"):
            waiting += vars(one).values()
    return found
