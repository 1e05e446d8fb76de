"""Runs a batched program on a backend: its batches and single caches, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.interface import Array, Mask
from lockstep.harness.contracts.answers import read_list, read_object, require_index
from lockstep.harness.contracts.batched.model import (
    BatchedModel,
    get_open_config,
    get_single_config,
)
from lockstep.harness.contracts.layer.model import Cache, get_tags
from lockstep.harness.contracts.layer.system import (
    LayerSystem,
    call_aside,
    leave_out_older,
)
from lockstep.harness.contracts.memory import BatchMemory
from lockstep.harness.contracts.naming import PADDING
from lockstep.harness.contracts.operation import Answer, Op
from lockstep.harness.contracts.system import (
    Column,
    Setup,
    System,
    explain_nan,
    get_rows,
    read_mask,
    sort_columns,
    split_pair,
    to_numpy,
)
from lockstep.harness.core.errors import Broken
from lockstep.harness.core.payload import Margins, Table, lay_out
from lockstep.reference.batched import BatchedCache

HUGE = 1e4
"""The content of padding where NaN would make attention invalid."""

MOST_ATTENDING = 4

R = TypeVar("R")


class Written(NamedTuple):
    """The columns of an update.

    Attributes:
        length: the number of columns.
        begins: for each row, the number of padding columns before the tokens.
        tags: for each row, the tags of the tokens.
    """

    length: int
    begins: Sequence[int]
    tags: Sequence[range]

    def list_queries(self, row: int) -> range:
        """Returns the columns that hold a row's tokens."""
        return range(self.begins[row], self.begins[row] + len(self.tags[row]))


PartCall = Callable[["BatchedSystem", Sequence[Any]], R]
"""A function of the system of one cache of a layer, and of that cache's rows of the
reference."""


class Batches(System):
    """The batches and single caches of one program in a backend, by name.

    Attributes:
        singles: runs the operations on single caches, like the system of a layer program.
        saved: name → the saved content of a batch.
        needed: the attributes that a batch must have.
        parts: the systems that write and read the caches of the layer: several for a
            list, one for other kinds.
    """

    singles: Any
    needed: Sequence[str]
    parts: Sequence[BatchedSystem]

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        # A batch also returns columns that only other rows have. If these columns go
        # through attention, they must be finite: 0 · NaN is NaN.
        self.config["poison"] = self.backend.poison and not self.attends
        self.batches: dict[str, Any] = {}
        self.saved: dict[str, Any] = {}

    @property
    def margins(self) -> Margins:  # type: ignore[override]  # read only
        margins: Margins = self.singles.margins
        return margins

    # --- batches and single caches by name ----------------------------------------------

    def open(self, rows: int | None = None, caches: Sequence[Any] | None = None) -> Any:
        return self.backend.open(get_open_config(self.config, rows, caches))

    def open_batch(
        self, name: str, rows: int | None = None, caches: Sequence[Any] | None = None
    ) -> None:
        self.put_batch(name, self.open(rows, caches))

    def put_batch(self, name: str, batch: Any) -> None:
        self.drop(name)
        self.batches[name] = read_object(batch, self.needed, "open", "a batch")

    def put_single(self, name: str, cache: Any) -> None:
        self.drop(name)
        self.singles.put_cache(name, cache)

    def drop(self, name: str) -> None:
        """Removes the name of a batch or single cache that an operation has consumed."""
        if self.backend.lifetime == "until-write":
            self.watch.drop(name)
        self.batches.pop(name, None)
        self.singles.drop(name)

    def save(self, name: str, into: str) -> None:
        self.saved[into] = self.batches[name].save()

    def load(self, name: str, saved: str, rows: int) -> None:
        self.open_batch(name, rows)
        self.batches[name].load(self.saved[saved])

    def load_other(self, sizes: Mapping[str, int], rows: int) -> Answer:
        """Loads content that a batch with other sizes saved; it must be refused."""
        if not self.declares(sizes):
            return {"error": "usage"}  # there is no such batch
        config = get_open_config({**self.config, **sizes}, rows, None)
        saved, batch = self.backend.open(config).save(), self.open(rows)
        return self.ask(lambda: batch.load(saved))

    def ask_for(self, name: str, call: Callable[[], Any]) -> Answer:
        """Calls the backend; returns the offsets of a batch, or the refusal."""
        answer = self.ask(call)
        return answer if "error" in answer else self.say_offsets(name)

    def say_offsets(self, name: str) -> Answer:
        return self.ask_parts(lambda part, _: part.read_offsets(name))

    def pad_left(self, name: str, padding: Sequence[int]) -> None:
        """Announces padding on the left."""
        lengths = list(padding)
        self.batches[name].pad_left(lengths)
        lengths.clear()  # the caller owns the list: a cache must not keep a reference

    # --- the caches of a layer ----------------------------------------------------------

    def ask_parts(self, call: PartCall[Answer], rows: Sequence[Any] = ()) -> Answer:
        """Returns the answer of the batch; for a list, the answers of all parts.

        Args:
            call: gets the answer of a part; its arguments are the part and the part's
                rows.
            rows: the rows of the reference.
        """
        return call(self.parts[0], rows)

    def visit_parts(self, call: PartCall[Any], rows: Sequence[Any]) -> None:
        """Calls a function with each part; see `ask_parts`."""
        call(self.parts[0], rows)


class BatchedSystem(Batches):
    """Batches of one cache for each layer."""

    singles: LayerSystem

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        backend = replace(self.backend, open=lambda _: self.open())
        single = get_single_config(setup.config)
        self.singles = LayerSystem(replace(setup, backend=backend, config=single))
        self.reader, self.parts = self.singles.reader, [self]
        self.singles.watch = self.watch
        self.needed = ["make_mask"] + ["pad_left"] * self.config["pads_left"]
        self.tells_offsets = self.config["offsets"] == "rows"
        self.needed += ["offsets"] * self.tells_offsets
        self.memory = BatchMemory(setup.config, self.declared.held, self.batches)
        self.references: Mapping[str, BatchedCache] = {}
        self.last: tuple[Array, Array, Mask, int] | None = None

    # --- offsets ------------------------------------------------------------------------

    def read_offsets(self, name: str) -> Answer:
        if not self.tells_offsets:
            return {}
        return {"offsets": self.read_numbers(self.batches[name].offsets, "offsets")}

    def read_numbers(self, arrays: Any, name: str, rows: int | None = None) -> list[int]:
        """Returns integers from a list or an array, one for each row; `rows` is the
        required number of integers, or None for any number."""
        if isinstance(arrays, list | tuple):
            numbers = read_list(arrays, name, rows)
            return [require_index(number, f"a number of {name}") for number in numbers]
        content = to_numpy(self.arrays, arrays, name)  # may have become floats
        if "int" not in (dtype := self.arrays.dtype(arrays)):
            raise Broken("malformed", f"{name} is an array of {dtype}, not of integers")
        return list(map(int, read_list(content.tolist(), name, rows)))

    # --- columns ------------------------------------------------------------------------

    def write(self, name: str, written: Written, rows: Sequence[Cache]) -> Answer:
        """Appends columns, and lists the tokens that each new token sees.

        Args:
            name: the name of the batch.
            written: the columns.
            rows: the reference rows after the update.
        """
        batch, count, previous, after = self.batches[name], len(rows), [0], [0]
        if self.tells_offsets:
            offsets = batch.offsets
            previous = self.read_numbers(offsets, "offsets", count)
        if self.config["kind"] == "batch-state":
            shown = self.advance_states(name, written)
        else:
            shown = self.append(name, written, rows)
        if self.tells_offsets:
            if (now := self.read_numbers(offsets, "offsets")) != previous:
                raise Broken(
                    "alias",
                    "the offsets that were returned before the update have changed"
                    f" from {previous} to {now}; return a copy",
                )
            after = self.read_numbers(batch.offsets, "offsets", count)
        for row, answer in enumerate(shown):
            answer["where"] = f"row {row}"
            queries = written.list_queries(row)
            answer["visible"] = [answer["visible"][query] for query in queries]
            if self.tells_offsets:
                position = previous[row] + queries.start
                answer |= {"position": position, "offset": after[row]}
        return {"caches": shown}

    def append(self, name: str, written: Written, rows: Sequence[Cache]) -> list[Answer]:
        """Appends columns of K and V; lists the tokens that each query of a row sees."""
        batch, length = self.batches[name], written.length
        mask, arrays = batch.make_mask(length), self.feed(written)
        with self.lend(name, "update", arrays):
            pair = batch.update(*arrays)
            columns = self.read_columns(pair, rows)
            if self.every:
                self.watch.keep(name, "update", pair)
            if self.attends:
                self.last = (*split_pair(pair, "update"), mask, length)
        shown = self.show(mask, length, columns)
        return [
            {"visible": visible, "columns": row_columns}
            for visible, row_columns in zip(shown, columns, strict=True)
        ]

    def advance_states(self, name: str, written: Written) -> list[Answer]:
        """Reads the states, adds the new columns to them, and writes them.

        Only the columns that the cache's mask marks as tokens are added. Each padding
        column has an unused tag. If a mask marks padding as a token, the state has read
        this tag, which the comparison finds.

        Returns:
            For each row and each column, the tokens that the state has read.
        """
        batch, recurrence = self.batches[name], self.singles.recurrence
        length, begins, tags = written
        count, mask = len(tags), batch.make_mask(length)
        taken = np.ones((count, length), np.bool_)
        if mask is not None:
            content = to_numpy(self.arrays, mask, "the mask")
            taken = spread_mask(content, (count, length)) != 0
        shown, states = [], []
        for row, state in enumerate(recurrence.read_all(batch.read(), count, "read")):
            first, read = tags[row].start - begins[row], [*state]
            visible: list[list[Column]] = []
            for column in range(length):
                read += [first + column] if taken[row, column] else []
                visible.append([*read])
            known = tuple([seen for seen in read if isinstance(seen, int)])
            states.append(
                (recurrence.compute_conv(known), recurrence.compute_delta(known))
            )
            shown.append(visible)
        convs, deltas = map(np.concatenate, zip(*states, strict=True))
        arrays = (
            self.arrays.from_numpy(convs, self.config["dtype"]),
            self.arrays.from_numpy(deltas, "float32"),
        )
        with self.lend(name, "update", arrays):
            batch.write(*arrays, length)
        after = recurrence.read_all(batch.read(), count, "read")
        for row, visible in enumerate(shown):
            last = begins[row] + len(tags[row]) - 1
            visible[max(0, last)] = after[row]
            first = tags[row].start - begins[row]
            names: dict[Column, Column] = {
                first + column: f"{PADDING} {row}.{column}"
                for column in range(length)
                if first + column not in tags[row]
            }
            visible[:] = [[names.get(seen, seen) for seen in item] for item in visible]
        return [{"visible": visible} for visible in shown]

    def feed(self, written: Written) -> tuple[Array, Array]:
        """Makes K and V [rows, heads, length, dim] of tokens and padding.

        Padding is NaN, or huge numbers if the arrays are used for attention.
        """
        filling = HUGE if self.attends else np.nan
        keys, values = (
            self.spread(table, written, filling)
            for table in (self.reader.keys, self.reader.values)
        )
        return keys, values

    def spread(self, table: Table, written: Written, filling: float) -> Array:
        """Makes an array [rows, heads, length, dim] of tokens and a fill value."""
        shape = len(written.tags), table.heads, written.length, table.dim
        array = np.full(shape, filling, np.float32)
        for row, tags in enumerate(written.tags):
            queries = written.list_queries(row)
            array[row, :, queries.start : queries.stop] = table.get_vectors(tags)[0]
        first = next((tags[0] for tags in written.tags if tags), 0)
        return self.arrays.from_numpy(lay_out(array, first), self.config["dtype"])

    def read_columns(self, pair: Any, rows: Sequence[Cache]) -> list[list[Column]]:
        """Identifies the token in each column of each row."""
        keys, values = self.reader.check_forms(
            *split_pair(pair, "update"), "update", len(rows)
        )
        read, filling = self.reader.read_floats, "no token" if self.attends else "NaN"
        columns = [
            read(keys[at : at + 1], values[at : at + 1], row.tokens)
            for at, row in enumerate(rows)
        ]
        return [
            [
                f"{PADDING} {row}.{column}" if content == filling else content
                for column, content in enumerate(row_columns)
            ]
            for row, row_columns in enumerate(columns)
        ]

    def show(
        self, mask: Mask, length: int, columns: Sequence[list[Column]]
    ) -> list[list[list[Column]]]:
        """Lists, for each row, the tokens that each of its queries sees."""
        width, rows = len(columns[0]), len(columns)
        masks: list[Any] = [mask] * rows
        if mask is not None and not isinstance(mask, str):
            content = read_mask(mask, self.arrays, self.singles.additive)
            masks = list(spread_mask(content, (rows, 1, length, width))[:, 0])
        return [
            get_rows(row_columns, column, length, length, self.backend.causal)
            for row_columns, column in zip(columns, masks, strict=True)
        ]

    def write_wrongly(self, name: str, rows: int, length: int, wrong: str | None) -> None:
        """Makes an update that the backend must refuse; `wrong`: see `Update`."""
        batch, single = self.batches[name], self.singles.config
        batch.make_mask(length)
        pair = self.singles.make_wrong(single, wrong, rows, length)
        if single["kind"] == "state":
            batch.write(*pair, length)
        else:
            batch.update(*pair)

    def read_state(self, name: str, rows: Sequence[Cache]) -> Answer:
        """Reads the tokens of each row; leaves out tokens that the backend need not
        keep."""
        answer = self.ask(lambda: self.batches[name].state())
        if "error" in answer:
            return answer
        pairs = read_list(answer.get("result"), "state", len(rows))
        answers = []
        for number, (pair, row) in enumerate(zip(pairs, rows, strict=True)):
            columns = self.read_row(pair, row)
            if pair is not None:
                self.watch.keep(name, "state", pair)
            columns_held = leave_out_older(columns, row)
            answers.append({"where": f"row {number}", "tags": sort_columns(columns_held)})
        return {"caches": answers}

    def read_sizes(self, name: str) -> Answer:
        answer = self.ask(lambda: self.batches[name].size())
        if "error" in answer:
            return answer
        return {"sizes": self.read_numbers(answer.get("result"), "size")}

    def read_row(self, pair: Any, row: Cache) -> list[Column]:
        """Reads the tokens that one row holds."""
        if self.config["kind"] == "batch-state":
            return self.singles.recurrence.read(pair, "state")
        return [] if pair is None else self.reader.read(pair, "state", row.tokens)

    # --- checks beside the answer -------------------------------------------------------

    def verify_memory(self, op: Op, model: BatchedModel) -> None:
        if self.declared.held is None:
            return
        name, self.references = op["cache"], model.batches
        if name not in model.batches:
            if name not in model.singles.caches:
                return  # nothing was opened; a lookup would create the single cache
            single = {**op, "length": op.get("length", 0)}
            self.singles.verify_memory(single, model.singles)
            return
        memory = self.memory
        is_done = model.batches[name].coming is None
        if op["op"] == "free" and is_done:
            memory.reset(name)
        if op["op"] == "extend" and op["other"] not in model.batches:
            memory.join(name, memory.rooms[op["other"]])
        if op["op"] == "extract" and op["into"] in self.singles.caches:
            cache, of_singles = self.singles.caches[op["into"]], self.singles.memory
            of_singles.note(cache, model.singles.get(op["into"]), 0)
            # A row may keep the space that it had allocated.
            of_singles.open(cache).grow(1, memory.get(name).columns)
        if op["op"] == "clone" and is_done:
            room = memory.get(name)
            memory.get(op["into"]).grow(room.rows, room.columns)
        memory.note(model.batches, op.get("length", 0), name)
        if self.is_weighed():
            memory.check()

    def finish(self) -> None:
        """Checks arrays and memory at the end of the program.

        If the backend reports its memory and declares `free`, also frees all batches and
        checks that their memory is released.
        """
        self.singles.finish()
        self.memory.check()
        if self.declared.held is not None and "free" in self.declared.operations:
            self.check_released()

    def check_released(self) -> None:
        """Frees all batches and checks that their memory is released, unless a batch
        waits for announced columns."""
        references = self.references.values()
        if any(reference.coming is not None for reference in references):
            return
        for name, batch in self.batches.items():
            call_aside(batch.free, "free", f"freeing {name}, at the end")
        rows = [len(reference.rows) for reference in references]
        self.memory.check_released(self.open, rows)

    def verify_attention(self, written: Written, rows: Sequence[Cache]) -> None:
        """Runs the framework's attention on the last update, and checks the result.

        Compares the last query of at most four rows with attention in double precision.
        """
        if self.last is None or not self.config["value_dim"]:
            return
        keys, values, mask, _ = self.last
        self.last = None
        queries = self.spread(self.reader.queries, written, 0.0)
        got = self.arrays.to_numpy(self.arrays.attend(queries, keys, values, mask))
        filled = [row for row, tags in enumerate(written.tags) if tags]
        self.compared["attention"] += bool(filled)
        for row in filled[:MOST_ATTENDING]:
            seen = get_tags(rows[row].visible(rows[row].offset - 1))
            query, tag = written.list_queries(row)[-1], written.tags[row][-1]
            explain = partial(explain_nan, self.arrays, keys, values, row)
            self.reader.judge(got[row, :, query], tag, seen, row, "update", explain)


def spread_mask(content: npt.NDArray[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
    """Broadcasts a mask to a shape, as attention does; raises Broken if this is
    impossible."""
    try:
        return np.broadcast_to(content, shape)
    except ValueError:
        form = f"{list(content.shape)}, which does not broadcast to {list(shape)}"
        raise Broken("mask", f"the mask has shape {form}") from None
