"""What a script compares at its last step: expressions beside the values that are right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


from lockstep.harness.contracts.batched.parts_system import ListSystem
from lockstep.harness.contracts.batched.system import BatchedSystem
from lockstep.harness.contracts.layer.sides import LayerSystem
from lockstep.harness.contracts.operation import Answer, Step
from lockstep.harness.contracts.paged.system import PagedSystem
from lockstep.harness.contracts.prefix.conversations import ConversationSystem
from lockstep.harness.contracts.prefix.slots import SlotsSystem
from lockstep.harness.contracts.recurrence import Recurrence
from lockstep.harness.contracts.unified.system import UnifiedSystem
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.payload import ExpectedPayloads
from lockstep.harness.execution.calls import CallNotes, Noted
from lockstep.harness.execution.snippet import list_right
from lockstep.harness.execution.tables import Tables

CALLS: Mapping[str, Sequence[str]] = {
    "trimmed": ("trim",),
    "sizes": ("size",),
    "ok": ("restore", "rollback", "fork", "rewind", "reset"),
    "range": ("snapshot", "merge"),
    "stored": ("close", "cancel"),
    "slot": ("begin",),
    "positions": ("reserve",),
    "remaining": ("begin", "get_remaining"),
    "tokens": ("get_tokens", "count_tokens"),
    "bytes": ("count_bytes",),
    "hit": ("match",),
    "start": ("schedule",),
    "loaded": ("load",),
    "evicted": ("evict",),
}
"""Field of an answer → the methods that may answer it. Others have their own name, or
that of the operation."""

RANGES = "[{0}.begin, {0}.end]"


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


def list_checks(
    notes: CallNotes,
    step: Step,
    expected: Sequence[Answer],
    tables: Tables,
    system: Any,
) -> Iterator[Check]:
    """The comparisons of the last step.

    Args:
        notes: the calls of the run.
        step: the last one.
        expected: the answers that are allowed. Of several that are no refusals, the
            first counts.
        tables: gets the tokens that are named.
        system: of the run.
    """
    names = [answer["error"] for answer in expected if "error" in answer]
    calls = [line for line in notes.steps[-1] if isinstance(line, Noted)]
    if not names and any(call.refused for call in calls):
        return  # the step has not come to its answer
    if not names:
        checks = Checks(notes, step, tables, system)
        yield from checks.list(expected[0])
        yield from checks.list_references()
    elif len(names) == len(expected):
        yield from list_refusal(notes, names, calls)


def list_refusal(
    notes: CallNotes, names: Sequence[str], calls: Sequence[Noted]
) -> Iterator[Check]:
    """That the last call is refused."""
    if calls:
        kinds = [
            f'backend.errors["{name}"]' if name in notes.backend.errors else "ValueError"
            for name in names
        ]
        got = f"refuses([{', '.join(kinds)}], lambda: {calls[-1].code})"
        yield Check(f"refused ({' or '.join(names)})", got, [True], asks=calls[-1])


class Checks:
    """The comparisons with one answer.

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

    def list_references(self) -> Iterator[Check]:
        """(paged) That each block is held as often as tables and copies hold it."""
        pools = [noted for noted in self.notes.read if noted.name == "pool"]
        if not isinstance(self.side, PagedSystem) or not pools:
            return
        tables = [one.variable for one in self.notes.read if one.name == "tables"]
        held = len({n.arguments for n in self.notes.read if n.name == "tables"})
        listed = ", ".join(tables[-held:] if held else [])
        got = f"list_miscounted({pools[-1].variable}, [{listed}])"
        yield Check("blocks whose references are wrong", got, [[]])

    def list(self, answer: Answer) -> Iterator[Check]:
        for name, right in answer.items():
            if name == "caches":
                for number, part in enumerate(right):
                    yield from self.choose(number).list(part)
            elif name in READ:
                yield from getattr(self, READ[name])(right)
            else:
                yield from self.list_plain(name, right)

    def choose(self, number: int) -> Checks:
        """The comparisons with one part of an answer."""
        side, own = self.side, (self.notes, self.step, self.tables)
        if isinstance(side, ListSystem):
            return Checks(*own, side.parts[number], f".parts[{number}]")
        if isinstance(side, ConversationSystem):
            where = f"layer {number}: "
            inside = f".layers[{number}]"
            return Checks(*own, side.layers[number], inside, where=where)
        if isinstance(side, BatchedSystem):
            where = f"{self.where}row {number}: "
            return Checks(*own, side, self.inside, number, where)
        if isinstance(side, UnifiedSystem | SlotsSystem):
            where, inside = f"type {number}: ", f".of({number})"
            side = side.unified if isinstance(side, SlotsSystem) else side
            return Checks(*own, side, inside, number, where)
        if hasattr(side, "parts"):  # a list of single caches
            return Checks(*own, side.parts[number], f".parts[{number}]")
        return Checks(*own, side)

    def find(self, *names: str, last: bool = True) -> Noted | None:
        """The last call or attribute of one of these names."""
        found = [
            noted
            for noted in self.notes.read
            if noted.name in names and noted.receiver.endswith(self.inside)
        ]
        return found[-1 if last else 0] if found else None

    # --- numbers ------------------------------------------------------------------------

    def list_plain(self, name: str, right: Any) -> Iterator[Check]:
        try:
            allowed = list_right(right)
        except UsageError:
            return  # any number in a range
        if name in ("offset", "position") and self.row is not None:
            noted = self.find("offsets", last=name == "offset")
            if noted is not None and name == "offset":
                got = f"list_numbers(backend, {noted.code})[{self.row}]"
                yield Check(f"{self.where}offset", got, allowed)
            return
        if name == "offsets":
            yield from self.list_offsets(allowed)
        elif name in ("ranges", "parent", "child"):
            yield from self.list_ranges(name, right)
        else:
            yield from self.list_called(name, allowed)

    def list_called(self, name: str, allowed: Sequence[Any]) -> Iterator[Check]:
        own = (self.step.op["op"],) if name == "result" else ()
        noted = self.find(*CALLS.get(name, own), name)
        if noted is None:
            return
        got = noted.variable if noted.is_call else noted.code
        if name == "sizes":
            got = f"list_numbers(backend, {got})"
        if name == "range" and allowed != [None]:
            got = f"{got} and {RANGES.format(got)}"
        if isinstance(allowed[0], list) and name != "range":
            got = f"list({got})"
        if name == "loaded" and allowed != [None]:
            got = f"{got} and {got}[0]"
        if name == "start" and isinstance(noted.value, list | tuple):
            got = f"{got}[0]"
        yield Check(f"{self.where}{name}", got, allowed)

    def list_offsets(self, allowed: Sequence[Any]) -> Iterator[Check]:
        if isinstance(self.side, ConversationSystem):
            layers = range(len(self.side.layers))
            listed = [f"getattr(cache.layers[{n}], 'offset', None)" for n in layers]
            name = next(
                (n.receiver for n in self.notes.read if n.name in CONVERSING), "cache"
            )
            got = ", ".join(one.replace("cache.", f"{name}.") for one in listed)
            yield Check("offsets", f"[{got}]", allowed)
        elif isinstance(self.side, SlotsSystem):
            noted = self.find("get_tokens")
            if noted is not None:
                yield Check("offsets", f"[len({noted.variable})]", allowed)
        else:
            noted = self.find("offsets")
            if noted is not None:
                got = f"list_numbers(backend, {noted.code})"
                yield Check(f"{self.where}offsets", got, allowed)

    def list_ranges(self, name: str, right: Any) -> Iterator[Check]:
        noted = self.find("split", "take")
        if noted is None:
            return
        wanted = enumerate(right) if name == "ranges" else [(name == "child", right)]
        for number, one in wanted:
            got = f"{noted.variable}[{int(number)}]"
            code = got if one is None else f"{got} and {RANGES.format(got)}"
            yield Check(f"{name} {int(number)}" if name == "ranges" else name, code, [one])

    # --- tokens -------------------------------------------------------------------------

    def list_visible(self, rows: Sequence[Any]) -> Iterator[Check]:
        if not rows:
            return
        if isinstance(self.side, UnifiedSystem):
            yield from self.list_passes(rows)
        elif isinstance(self.side, SlotsSystem):
            yield from Checks(
                self.notes, self.step, self.tables, self.side.unified
            ).list_passes(rows)
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
        blank = [[] for _ in range(padded - length)]
        wanted = [*rows, *blank]
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

    def list_stored(self, right: Any) -> Iterator[Check]:
        """The image of an encoder cache; or a number of tokens."""
        noted = self.find("get")
        if noted is None or not isinstance(self.side, UnifiedSystem):
            yield from self.list_plain("stored", right)
            return
        reader = self.side.readers[self.row or 0, noted.arguments[0]]
        tokens = [[(0, tag) for tag in right or ()]]
        name = self.name_tokens(noted.variable, reader, tokens)
        wanted = [list(token) for token in tokens[0]]
        yield Check(f"{self.where}image", f"sort({name})", [wanted])

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
        recurrence = self.recurrence
        pair = recurrence.compute_conv(tokens), recurrence.compute_delta(tokens)
        self.tables.states[tokens] = pair
        row = f", {self.row}" if has_rows and self.row is not None else ""
        got = f"name_state(backend, {variable}, STATES{row})"
        return Check(f"{self.where}{what} read", got, [list(tokens)])

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
            wanted = [*rows, *([[]] * (padded - len(rows)))]
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
                    pair = recurrence.compute_conv, recurrence.compute_delta
                    self.tables.states[tokens] = pair[0](tokens), pair[1](tokens)
                    got = f"name_state(backend, {noted.variable}, STATES, {row})"
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


READ = {
    "visible": "list_visible", 
    "tags": "list_tags",
    "states": "list_states",
    "stored": "list_stored",
}
"""Field of an answer → the method that lists its comparisons."""

CONVERSING = ("begin", "extend", "close", "cancel", "free", "set_limit", "layers")


def plain(token: Any) -> Any:
    return list(token) if isinstance(token, tuple) else token


