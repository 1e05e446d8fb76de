"""What a script compares of returned arrays: the tokens that they hold and show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.harness.contracts.layer.sides import LayerSystem
from lockstep.harness.contracts.operation import Step
from lockstep.harness.contracts.prefix.slots import SlotsSystem
from lockstep.harness.contracts.recurrence import Recurrence
from lockstep.harness.contracts.unified.system import UnifiedSystem
from lockstep.harness.core.payload import ExpectedPayloads
from lockstep.harness.execution.scripts.calls import CallNotes, Noted
from lockstep.harness.execution.scripts.tables import Tables


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        what: in words.
        got: the expression.
        right: the values that are right.
        before: lines before it.
        asks: the call that it makes itself.
        behind: the call behind which `got` is computed at once, since the result may
            change later.
    """

    what: str
    got: str
    right: Sequence[Any]
    before: Sequence[str] = ()
    asks: Noted | None = None
    behind: Noted | None = None


class TokenChecks:
    """The comparisons with the tokens of one answer.

    Args:
        notes: of the step.
        step: the step.
        tables: of the script.
        side: the system under test; or that of a part of the answer.
        inside: ends the expressions for the caches of that part.
        row: of a batch.
        where: begins the words.
    """

    def __init__(
        self,
        notes: CallNotes,
        step: Step,
        tables: Tables,
        side: Any,
        inside: str = "",
        row: int | None = None,
        where: str = "",
    ) -> None:
        self.notes, self.step, self.tables = notes, step, tables
        self.side, self.inside, self.row, self.where = side, inside, row, where

    def find(self, *names: str, last: bool = True) -> Noted | None:
        """The last call or attribute of one of these names."""
        found = [
            noted
            for noted in self.notes.read
            if noted.name in names and noted.receiver.endswith(self.inside)
        ]
        return found[-1 if last else 0] if found else None

    # --- tokens -------------------------------------------------------------------------

    def list_visible(self, rows: Sequence[Any]) -> Iterator[Check]:
        if not rows:
            return
        if isinstance(self.side, UnifiedSystem):
            yield from self.list_passes(rows)
        elif isinstance(self.side, SlotsSystem):
            own = self.notes, self.step, self.tables, self.side.unified
            yield from TokenChecks(*own).list_passes(rows)
        elif self.side.config["kind"].endswith("state"):
            first = self.find("read", last=False)
            if first is not None:
                before = self.check_state("before", first.variable, rows[0][:-1])
                yield replace(before, behind=first)
                yield from self.list_taken(len(rows))
                self.correct(self.find("write"), self.row or 0, self.recurrence, rows[-1])
            yield from self.list_read("read", rows[-1])
        else:
            begin, length = 0, len(rows)
            if self.row is not None:
                begin = (self.step.op["left"] or [0] * 99)[self.row]
                length = self.step.op["length"]
            reader = self.side.reader
            yield from self.list_seen("update", "make_mask", reader, rows, begin, length)

    def list_taken(self, count: int) -> Iterator[Check]:
        """The columns that a batch of states takes for tokens of a row."""
        noted, op = self.find("make_mask"), self.step.op
        if noted is not None and self.row is not None:
            begin = (op["left"] or [0] * 99)[self.row]
            own = f"{noted.variable}, {op['length']}, {self.row}"
            wanted = [*range(begin, begin + count)]
            what = f"{self.where}columns taken"
            yield Check(what, f"list_taken(backend, {own})", [wanted])

    def list_seen(
        self,
        update: str,
        mask: str,
        reader: ExpectedPayloads,
        rows: Sequence[Any],
        begin: int,
        length: int,
        **more: Any,
    ) -> Iterator[Check]:
        """What each new row sees."""
        pair, made = self.find(update), self.find(mask)
        if pair is None or made is None:
            return
        padded = made.arguments[1] if len(made.arguments) == 2 else length
        seen = f"seen_{pair.variable.removeprefix('got_')}"
        seen += "" if self.row is None else f"_{self.row}"
        shown = f"{made.variable}" if update != "get" else f"{pair.variable}[2]"
        row = "" if self.row is None else f", {self.row}"
        name = self.name_tokens(pair.variable, reader, rows, row, **more)
        line = f"{seen} = see(backend, {shown}, {name}, {padded}{row})"
        wanted = [*rows, *([()] * (padded - length))]
        for number, right in enumerate(wanted):
            at = begin + number
            yield Check(
                f"{self.where}row {at} sees",
                f"{seen}[{at}]",
                [[*map(plain, sorted(right))]],
                [line] if not number else (),
            )

    def name_tokens(
        self,
        variable: str,
        reader: ExpectedPayloads,
        rows: Sequence[Any],
        row: str = "",
        turns: Any = None,
    ) -> str:
        for right in rows:
            for token in right:
                name = tuple(token) if isinstance(token, list | tuple) else token
                self.tables.add(reader, name, turns or {})
        keys, values = self.tables.get_names(reader)
        return f"name_tokens(backend, {variable}, {keys}, {values}{row})"

    def list_tags(self, right: Sequence[int]) -> Iterator[Check]:
        """What is held, less older tokens that may come along."""
        kind = self.side.config["kind"]
        if kind.endswith("state"):
            if right:
                yield from self.list_read(self.step.op["op"], right)
            return
        noted = self.find("state", "view")
        if noted is None:
            return
        variable, row = noted.variable, ""
        if self.row is not None:
            variable = f"{variable}[{self.row}]"
        name = self.name_tokens(variable, self.side.reader, [right], row)
        older = f" if n not in {self.list_older()}" if self.list_older() else ""
        got = f"sort([n for n in {name}{older}])"
        yield Check(f"{self.where}tokens held", got, [sorted(right)])

    def list_older(self) -> list[int]:
        """Tags that a cache may return beside those of its window."""
        model, op = self.step.model, self.step.op
        if isinstance(self.side, LayerSystem) and hasattr(model, "get"):
            cache = model.get(op["cache"])
            parts = getattr(cache, "parts", None)
            if parts is None:
                return sorted(token.tag for token in cache.older())
        if self.row is not None:
            row = model.batches[op["cache"]].rows[self.row]
            if not hasattr(row, "parts"):
                return sorted(token.tag for token in row.older())
        return []

    def list_read(self, method: str, right: Sequence[Any]) -> Iterator[Check]:
        """The tokens that a state has read."""
        noted = self.find(method, "read")
        if noted is None:
            return
        variable = noted.variable
        if self.row is not None and method == "state":
            variable = f"{variable}[{self.row}]"
        yield self.check_state("tokens", variable, right, method != "state")

    def correct(
        self,
        noted: Noted | None,
        row: int,
        recurrence: Recurrence,
        tokens: Sequence[Any],
    ) -> None:
        """Lets the script write the right state, whatever was read before: what follows
        from a wrong one would stay when the mistake is gone."""
        if noted is None:
            return
        arrays = [self.notes.find_made(one) for one in noted.arguments]
        made = [one for one in arrays if one is not None]
        right = tuple(tokens)
        pair = recurrence.compute_conv(right), recurrence.compute_delta(right)
        for content, state in zip(made, pair, strict=True):
            content[row] = state[0]

    @property
    def recurrence(self) -> Recurrence:
        single = self.side if isinstance(self.side, LayerSystem) else self.side.singles
        found: Recurrence = single.recurrence
        return found

    def check_state(
        self, what: str, variable: str, right: Sequence[Any], has_rows: bool = True
    ) -> Check:
        """That a state has read these tokens."""
        tokens = tuple(right)
        states = self.tables.add_state(self.recurrence, tokens)
        row = f", {self.row}" if has_rows and self.row is not None else ""
        got = f"name_state(backend, {variable}, {states}{row})"
        return Check(f"{self.where}{what} read", got, [list(tokens)])

    def list_image(self, right: Any) -> Iterator[Check]:
        """The tokens of the image of an encoder cache."""
        noted = self.find("get")
        if noted is None:
            return
        reader = self.side.readers[self.row or 0, noted.arguments[0]]
        tokens = [[(0, tag) for tag in right or ()]]
        name = self.name_tokens(noted.variable, reader, tokens)
        wanted = [list(token) for token in tokens[0]]
        yield Check(f"{self.where}image", f"sort({name})", [wanted])

    # --- passes of the unified contract -------------------------------------------------

    def list_passes(self, rows: Sequence[Any]) -> Iterator[Check]:
        """What the rows see in each layer."""
        which, side, model = self.row or 0, self.side, self.get_model()
        for (part, layer), reader in sorted(side.readers.items()):
            found = self.find_of_layer("get", layer)
            if part != which or not found:
                continue
            turns, variable = model.turns[which], found[-1].variable
            name = self.name_tokens(variable, reader, rows, turns=turns)
            padded = side.count_rows(len(rows))
            seen = f"seen_{variable.removeprefix('got_')}"
            line = f"{seen} = see(backend, {variable}[2], {name}, {padded})"
            wanted = [*rows, *([()] * (padded - len(rows)))]
            for number, right in enumerate(wanted):
                where = f"{self.where}layer {layer}, row {number} sees"
                tokens = [[*map(plain, sorted(right))]]
                before = () if number else [line]
                yield Check(where, f"{seen}[{number}]", tokens, before)

    def get_model(self) -> Any:
        model = self.step.model
        return getattr(model, "unified", model)

    def list_states(self, right: Sequence[Sequence[int]]) -> Iterator[Check]:
        """What the states of a pass have read, sequence by sequence."""
        which, side, new = self.row or 0, self.side, self.get_model().tags
        for (part, layer), recurrence in sorted(side.recurrences.items()):
            if part != which:
                continue
            reads = self.find_of_layer("read_states", layer)
            writes = self.find_of_layer("write_states", layer)
            for row, read in enumerate(right) if reads else ():
                before = tuple([tag for tag in read if tag not in new])
                for what, noted, tokens, behind in (
                    ("had", reads[0], before, reads[0]),
                    ("has", reads[-1], tuple(read), None),
                ):
                    states = self.tables.add_state(recurrence, tokens)
                    got = f"name_state(backend, {noted.variable}, {states}, {row})"
                    words = f"layer {layer}, state {row} {what} read"
                    yield Check(words, got, [list(tokens)], behind=behind)
                self.correct(writes[-1] if writes else None, row, recurrence, read)

    def find_of_layer(self, name: str, layer: int) -> list[Noted]:
        """The calls of a method for one layer."""
        return [
            noted
            for noted in self.notes.read
            if noted.name == name
            and noted.receiver.endswith(self.inside)
            and noted.arguments[0] == layer
        ]


def plain(token: Any) -> Any:
    return list(token) if isinstance(token, tuple) else token
