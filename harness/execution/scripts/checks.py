"""Makes the comparisons at the end of a script: expressions and their expected values.

This module knows no family of caches. The result of a call is compared with the field of
the answer that was read from it; arrays are compared by the reader that read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
from lockstep.harness.execution.scripts.tables import Tables

FORMS: Mapping[str, Sequence[str]] = {
    "range": ("get_span({0})",),
    "ranges": ("[get_span(part) for part in {0}]",),
    "parent": ("get_span({0}[0])",),
    "child": ("get_span({0}[1])",),
    "loaded": ("get_first({0})",),
    "start": ("get_first({0})",),
}
"""Field of an answer → the forms in which it may be read from the result of a call."""

USUAL_FORMS = ("{0}", "list({0})", "list_numbers(backend, {0})", "[len({0})]")


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        label: a description of the compared value.
        got: the expression.
        allowed: the correct values.
        call: the script makes the comparison directly after this call, because the result
            may change later; None: at the end of the script.
    """

    label: str
    got: str
    allowed: Sequence[Any]
    call: NotedCall | None = None


@dataclass(frozen=True)
class Scope:
    """The caches, or the row of a batch, that an answer is about.

    Attributes:
        ending: the end of the expressions for the caches, such as ".parts[0]"; "" for all
            caches.
        row: the number of the row in a batch; None for the whole cache.
        rows: the number of rows of the batch.
        label: the beginning of labels.
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
        if pools:
            variables = {call.arguments: call.variable for call in tables}
            listed = f"[{', '.join(variables.values())}]"
            code = f"list_miscounted({pools[-1].variable}, {listed})"
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
        """Compares the caches of a list, or the rows of a batch."""
        numbers, scopes = range(len(wanted)), []
        for name in INSIDE:
            for form in (f"{scope.ending}.{name}[{{}}]", f"{scope.ending}.{name}({{}})"):
                endings = [form.format(number) for number in numbers]
                if any(self.list_calls(Scope(ending)) for ending in endings):
                    scopes = [replace(scope, ending=ending) for ending in endings]
        noun = "part" if scopes else "row"
        if not scopes:
            scopes = [replace(scope, row=row, rows=len(wanted)) for row in numbers]
        for number, answer in enumerate(wanted):
            label = f"{scope.label}{noun} {number}: "
            member = replace(scopes[number], label=label)
            yield from self.list_answer(answer, got[number] if got else {}, member)

    def list_calls(self, scope: Scope, *names: str) -> list[NotedCall]:
        """Lists the calls and attributes of a scope. If names are given, lists the calls
        with these names."""
        return [
            call
            for call in self.notes.calls
            if call.receiver.endswith(scope.ending) and (not names or call.name in names)
        ]

    # --- values -------------------------------------------------------------------------

    def find_value(self, name: str, got: Any, scope: Scope) -> str | None:
        """Returns an expression for the call that most likely returned the value
        `got`."""
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
            layers = iter(codes)  # a number for each layer; None for layers without one
            listed = ["None" if number is None else next(layers) for number in got]
            return f"[{', '.join(listed)}]"
        return None

    def is_value(self, form: str, value: Any, got: Any) -> bool:
        """Returns whether an expression with a returned value evaluates to `got`."""
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
        """Compares the tokens that the new rows see in one layer."""
        value, masks = read.call.value, self.list_calls(scope, "make_mask")
        if isinstance(value, Sequence) and len(value) > 2:
            mask, shape = f"{read.pair}[2]", (1, *getattr(value[2], "shape", ()))
            count = shape[-2] if len(shape) > 2 else len(rows)
        elif masks:
            mask, count = masks[-1].variable, masks[-1].arguments[-1]
        else:
            return
        row = shown = ""
        padded = [*rows, *([()] * (count - len(rows)))]
        if scope.row is not None:
            begin = self.get_begin(scope)
            row, shown = f", {scope.row}", f"[{begin}:{begin + len(rows)}]"
            padded = list(rows)
        names = self.name_tokens(read, list(chain.from_iterable(rows)), row)
        wanted = [[*map(to_list, sorted(tokens))] for tokens in padded]
        code = f"see(backend, {mask}, {names}, {count}{row}){shown}"
        yield Check(f"{scope.label}rows of {read.pair} see", code, [wanted])

    def get_begin(self, scope: Scope) -> int:
        """Returns the first column of a row that is not padding."""
        padding = self.step.op.get("left")
        return int(padding[scope.row]) if padding else 0

    def name_tokens(self, read: NotedRead, names: Sequence[Any], row: str = "") -> str:
        assert not isinstance(read.owner, Recurrence)
        tokens = [tuple(n) if isinstance(n, list) else n for n in names]
        tables = ", ".join(self.tables.add(read.owner, tokens))
        form = ", is_permuted=True" if read.owner.permuted else ""
        return f"name_tokens(backend, {read.pair}, {tables}{row}{form})"

    def list_tags(self, wanted: Sequence[int], scope: Scope) -> Iterator[Check]:
        """Compares the held tokens, except older tokens that need not be held."""
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
            tokens = [token for _, held in contents for token in held]
            older = {token.tag for token in tokens if token.is_old} - {*wanted}
            names = self.name_tokens(reads[-1], wanted)
            code = f"[n for n in {names} if n not in {sorted(older)}]"
            yield Check(f"{scope.label}tokens held", f"sort({code})", [sorted(wanted)])

    def list_image(self, wanted: Sequence[int] | None, scope: Scope) -> Iterator[Check]:
        """Compares the tokens of the image of an encoder cache, all at position 0."""
        for call in self.list_calls(scope, "get")[-1:]:
            code = f"{call.variable} is None"
            yield Check(f"{scope.label}has no image", code, [wanted is None])
        for read in self.list_reads(scope)[:1]:
            names = [(0, tag) for tag in wanted or ()]
            code = f"sort({self.name_tokens(read, names)})"
            yield Check(f"{scope.label}image", code, [[*map(list, names)]])

    # --- states -------------------------------------------------------------------------

    def list_states(self, tokens: Sequence[int], scope: Scope) -> Iterator[Check]:
        """Compares the tokens that the states of a row have read: before this step, and
        after it."""
        # A prompt that is computed again has the tags of the earlier request.
        fed = getattr(self.step.model, "fed", None)
        is_new = self.first.__le__ if fed is None else {*fed}.__contains__
        previous = [tag for tag in tokens if not is_new(tag)]
        reads = self.list_reads(scope)
        for owner in dict.fromkeys(read.owner for read in reads):
            if isinstance(owner, Recurrence):
                first, *_, last = [read for read in reads * 2 if read.owner is owner]
                check = self.check_state("tokens read before", first, previous, scope)
                yield replace(check, call=first.call)
                yield self.check_state("tokens read", last, tokens, scope)
                calls = self.notes.calls[first.after : last.after]
                self.correct(owner, calls, tokens, scope)

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
        calls: Sequence[NotedCall],
        tokens: Sequence[int],
        scope: Scope,
    ) -> None:
        """Makes the script write the correct state, even if this run has read a wrong
        state. Otherwise, the script would still report a difference after the bug is
        fixed."""
        states = owner.compute_conv(tuple(tokens)), owner.compute_delta(tuple(tokens))
        for call in calls:
            made = map(self.notes.arrays_made.get, map(id, call.arguments))
            arrays = [array for array in made if array is not None]
            if call.name.startswith("write") and len(arrays) == len(states):
                for array, state in zip(arrays, states, strict=True):
                    array.content[scope.row or 0] = state[0]

    def list_taken(self, count: int, scope: Scope) -> Iterator[Check]:
        """Compares the columns of a row that a batch of states counts as tokens, not as
        padding."""
        masks = self.list_calls(scope, "make_mask")
        if masks and scope.row is not None:
            begin, length = self.get_begin(scope), self.step.op["length"]
            code = f"list_taken(backend, {masks[-1].variable}, {length}, {scope.row})"
            wanted = [*range(begin, begin + count)]
            yield Check(f"{scope.label}columns taken", code, [wanted])


def list_right(wanted: Any) -> list[Any]:
    """Lists the correct values; [] if a range is correct. See `Operation.resolve`."""
    return list(wanted.get("one_of", ())) if isinstance(wanted, Mapping) else [wanted]


def to_list(name: Any) -> Any:
    return list(name) if isinstance(name, tuple) else name
