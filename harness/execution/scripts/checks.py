"""What a script compares at its last step: expressions beside the values that are right.

Nothing is known of families here. What a call returned is compared with the field of the
answer that was read from it, and what arrays hold by the reader that read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.harness.contracts.operation import Answer, Step
from lockstep.harness.contracts.recurrence import Recurrence
from lockstep.harness.execution.scripts import plain
from lockstep.harness.execution.scripts.calls import (
    INSIDE,
    CallNotes,
    NotedCall,
    NotedRead,
)
from lockstep.harness.execution.scripts.tables import MadeArray, Tables

FORMS: Mapping[str, Sequence[str]] = {
    "range": ("get_span({0})",),
    "ranges": ("[get_span(part) for part in {0}]",),
    "parent": ("get_span({0}[0])",),
    "child": ("get_span({0}[1])",),
    "loaded": ("get_first({0})",),
    "start": ("get_first({0})",),
}
"""Field of an answer that is read in another way than most → from what."""

USUAL_FORMS = ("{0}", "list({0})", "list_numbers(backend, {0})", "[len({0})]")


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        label: in words.
        got: the expression.
        allowed: the values that are right.
        call: the call behind which it is made at once, since the result may change
            later; None for the end of the script.
    """

    label: str
    got: str
    allowed: Sequence[Any]
    call: NotedCall | None = None


@dataclass(frozen=True)
class Scope:
    """What a part of an answer is about.

    Attributes:
        ending: of the expressions for the caches.
        row: of a batch.
        rows: how many the batch has.
        label: begins the words.
    """

    ending: str = ""
    row: int | None = None
    rows: int = 1
    label: str = ""


@dataclass(frozen=True)
class Checks:
    """The comparisons of the last step.

    Attributes:
        first: the first tag of the step.
    """

    notes: CallNotes
    step: Step
    tables: Tables
    first: int

    def list_all(self, wanted: Answer, got: Answer) -> Iterator[Check]:
        yield from self.list_answer(wanted, got, Scope())
        pools, tables = (self.list_calls(Scope(), name) for name in ("pool", "tables"))
        if pools:  # each block is held as often as tables and copies hold it
            holders = {call.arguments: call.variable for call in tables}
            code = (
                f"list_miscounted({pools[-1].variable}, [{', '.join(holders.values())}])"
            )
            yield Check("blocks whose references are wrong", code, [[]])

    def list_answer(self, wanted: Answer, got: Answer, scope: Scope) -> Iterator[Check]:
        for name, value in wanted.items():
            if name == "caches":
                yield from self.list_parts(value, got.get(name), scope)
            elif name == "visible":
                yield from self.list_visible(value, scope)
            elif name == "tags":
                yield from self.list_tags(value, scope)
            elif name == "states":
                for row, tokens in enumerate(value):
                    yield from self.list_states(tokens, replace(scope, row=row))
            elif name == "stored" and not isinstance(value, int):
                yield from self.list_image(value, scope)
            else:
                code = self.find_value(name, got.get(name), scope)
                if code is not None and (allowed := list_right(value)):
                    yield Check(scope.label + name, code, allowed)

    def list_parts(
        self, wanted: Sequence[Answer], got: Sequence[Answer] | None, scope: Scope
    ) -> Iterator[Check]:
        """The parts of a list, by the caches that were asked; or the rows of a batch."""
        base, scopes = scope.ending, []
        for name in INSIDE:
            for form in (f"{base}.{name}[{{}}]", f"{base}.{name}({{}})"):
                endings = [form.format(number) for number in range(len(wanted))]
                if any(self.list_calls(Scope(ending)) for ending in endings):
                    scopes = [replace(scope, ending=ending) for ending in endings]
        word = "part" if scopes else "row"
        scopes = scopes or [
            replace(scope, row=row, rows=len(wanted)) for row in range(len(wanted))
        ]
        for number, answer_part in enumerate(wanted):
            label = f"{scope.label}{word} {number}: "
            answer = got[number] if got else {}
            yield from self.list_answer(
                answer_part, answer, replace(scopes[number], label=label)
            )

    def list_calls(self, scope: Scope, *names: str) -> list[NotedCall]:
        """The calls and attributes of a scope, of these names if there are any."""
        return [
            call
            for call in self.notes.calls
            if call.receiver.endswith(scope.ending) and (not names or call.name in names)
        ]

    # --- values -------------------------------------------------------------------------

    def find_value(self, name: str, got: Any, scope: Scope) -> str | None:
        """The expression that has given `got`, of the call that is likeliest the one."""
        operation, calls = str(self.step.op["op"]), self.list_calls(scope)
        names = [name, operation, f"get_{name}", f"count_{name}"]
        forms = FORMS.get(name, USUAL_FORMS)
        if scope.row is not None:
            names = [name, f"{name}s"]
            forms = [f"{form}[{scope.row}]" for form in USUAL_FORMS]
        likely = [call for word in names for call in reversed(calls) if call.name == word]
        if isinstance(got, list) and scope.row is None:
            likely += calls
        for call in likely:
            for form in forms:
                if self.is_value(form, call.value, got):
                    return form.format(call.variable)
        codes = dict.fromkeys(c.code for c in calls if c.name == name.removesuffix("s"))
        if codes and isinstance(got, list) and len(got) - got.count(None) == len(codes):
            numbers = iter(codes)  # a number of each layer; None where one has none
            listed = ["None" if number is None else next(numbers) for number in got]
            return f"[{', '.join(listed)}]"
        return None

    def is_value(self, form: str, value: Any, got: Any) -> bool:
        """Whether an expression of a returned value gives what was read from it."""
        names = {**vars(plain), "backend": self.notes.backend, "value": value}
        try:
            return bool(eval(form.format("value"), names) == got)
        except Exception:
            return False

    # --- tokens -------------------------------------------------------------------------

    def list_reads(self, scope: Scope) -> list[NotedRead]:
        reads = self.notes.list_reads()
        return [read for read in reads if read.call.receiver.endswith(scope.ending)]

    def list_visible(self, rows: Sequence[Any], scope: Scope) -> Iterator[Check]:
        reads = {read.pair: read for read in self.list_reads(scope)} if rows else {}
        for number, read in enumerate(reads.values()):
            if not isinstance(read.owner, Recurrence):
                yield from self.list_seen(read, rows, scope)
                continue
            if number == 0:
                yield from self.list_states(rows[-1], scope)
                yield from self.list_taken(len(rows), scope)
            if scope.row == 0:
                yield Check("states", f"len({read.pair}[0])", [scope.rows])

    def list_seen(
        self, read: NotedRead, rows: Sequence[Any], scope: Scope
    ) -> Iterator[Check]:
        """What the new rows see in one layer."""
        value, masks = read.call.value, self.list_calls(scope, "make_mask")
        if isinstance(value, Sequence) and len(value) > 2:
            mask, shape = f"{read.pair}[2]", (1, *getattr(value[2], "shape", ()))
            count = shape[-2] if len(shape) > 2 else len(rows)
        elif masks:
            mask, count = masks[-1].variable, masks[-1].arguments[-1]
        else:
            return
        row, rows_shown = "", ""
        padding: list[Any] = [()] * (count - len(rows))
        if scope.row is not None:
            begin = self.get_begin(scope)
            row, rows_shown, padding = (
                f", {scope.row}",
                f"[{begin}:{begin + len(rows)}]",
                [],
            )
        names = self.name_tokens(
            read, [name for row_names in rows for name in row_names], row
        )
        wanted = [[*map(to_list, sorted(row_names))] for row_names in [*rows, *padding]]
        code = f"see(backend, {mask}, {names}, {count}{row}){rows_shown}"
        yield Check(f"{scope.label}rows of {read.pair} see", code, [wanted])

    def get_begin(self, scope: Scope) -> int:
        """The first column of a row that is not padding."""
        padding = self.step.op.get("left")
        return int(padding[scope.row]) if padding else 0

    def name_tokens(self, read: NotedRead, names: Sequence[Any], row: str = "") -> str:
        assert not isinstance(read.owner, Recurrence)
        tokens = [tuple(n) if isinstance(n, list) else n for n in names]
        tables = self.tables.add(read.owner, tokens)
        form = ", is_permuted=True" if read.owner.permuted else ""
        return f"name_tokens(backend, {read.pair}, {tables}{row}{form})"

    def list_tags(self, wanted: Sequence[int], scope: Scope) -> Iterator[Check]:
        """What is held, less older tokens that may come along."""
        row = "" if scope.row is None else f"[{scope.row}]"
        reads = [read for read in self.list_reads(scope) if read.pair.endswith(row)]
        if not reads:
            for call in self.list_calls(scope, "state", "view")[-1:]:
                label = f"{scope.label}holds nothing"
                yield Check(label, f"{call.variable}{row} is None", [not wanted])
        elif isinstance(reads[-1].owner, Recurrence):
            yield self.check_state("tokens read", reads[-1], wanted, scope)
        else:
            contents = self.step.model.list_held(self.step.op)
            older = {
                token.tag for _, tokens in contents for token in tokens if token.is_old
            }
            names = self.name_tokens(reads[-1], wanted)
            code = f"[n for n in {names} if n not in {sorted(older - {*wanted})}]"
            yield Check(f"{scope.label}tokens held", f"sort({code})", [sorted(wanted)])

    def list_image(self, wanted: Sequence[int] | None, scope: Scope) -> Iterator[Check]:
        """The tokens of the image of an encoder cache, each at position 0."""
        for call in self.list_calls(scope, "get")[-1:]:
            code = f"{call.variable} is None"
            yield Check(f"{scope.label}has no image", code, [wanted is None])
        for read in self.list_reads(scope)[:1]:
            names = [(0, tag) for tag in wanted or ()]
            code = f"sort({self.name_tokens(read, names)})"
            yield Check(f"{scope.label}image", code, [[*map(list, names)]])

    # --- states -------------------------------------------------------------------------

    def list_states(self, tokens: Sequence[int], scope: Scope) -> Iterator[Check]:
        """What the states of a row had read before, and have read now."""
        old = [tag for tag in tokens if tag < self.first]
        reads = self.list_reads(scope)
        for owner in dict.fromkeys(read.owner for read in reads):
            if isinstance(owner, Recurrence):
                first, *_, last = [read for read in reads * 2 if read.owner is owner]
                first_check = self.check_state("tokens read before", first, old, scope)
                yield replace(first_check, call=first.call)
                yield self.check_state("tokens read", last, tokens, scope)
                self.correct(owner, first.after, last.after, tokens, scope)

    def check_state(
        self, label: str, read: NotedRead, tokens: Sequence[int], scope: Scope
    ) -> Check:
        assert isinstance(read.owner, Recurrence)
        states = self.tables.add_state(read.owner, tokens)
        is_one = scope.row is None or read.pair.endswith(f"[{scope.row}]")
        row = "" if is_one else f", {scope.row}"
        code = f"name_state(backend, {read.pair}, {states}{row})"
        return Check(f"{scope.label}{label}", code, [list(tokens)])

    def correct(
        self,
        owner: Recurrence,
        begin: int,
        end: int,
        tokens: Sequence[int],
        scope: Scope,
    ) -> None:
        """Lets the script write the right state, whatever was read before: what follows
        from a wrong one would stay when the mistake is gone."""
        states = owner.compute_conv(tuple(tokens)), owner.compute_delta(tuple(tokens))
        for call in self.notes.calls[begin:end]:
            notes_made = [
                self.notes.arrays_made.get(id(value)) for value in call.arguments
            ]
            arrays = [array for array in notes_made if isinstance(array, MadeArray)]
            if call.name.startswith("write") and len(arrays) == len(states):
                for array, state in zip(arrays, states, strict=True):
                    array.content[scope.row or 0] = state[0]

    def list_taken(self, count: int, scope: Scope) -> Iterator[Check]:
        """The columns that a batch of states takes for tokens of a row."""
        masks = self.list_calls(scope, "make_mask")
        if masks and scope.row is not None:
            begin, length = self.get_begin(scope), self.step.op["length"]
            code = f"list_taken(backend, {masks[-1].variable}, {length}, {scope.row})"
            wanted = [*range(begin, begin + count)]
            yield Check(f"{scope.label}columns taken", code, [wanted])


def list_right(wanted: Any) -> list[Any]:
    """The values that are right; none if any in a range is. See `Operation.resolve`."""
    return list(wanted.get("one_of", ())) if isinstance(wanted, Mapping) else [wanted]


def to_list(name: Any) -> Any:
    return list(name) if isinstance(name, tuple) else name
