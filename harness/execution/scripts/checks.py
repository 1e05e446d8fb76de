"""What a script compares at its last step: expressions beside the values that are right.

Nothing is known of families here. What a call returned is compared with the field of the
answer that was read from it, and what arrays hold by the reader that read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Answer, Step
from lockstep.harness.contracts.recurrence import Recurrence
from lockstep.harness.execution.scripts import plain
from lockstep.harness.execution.scripts.calls import (
    INSIDE,
    LOOKS,
    CallNotes,
    MadeArray,
    NotedCall,
    NotedRead,
)
from lockstep.harness.execution.scripts.tables import Tables

SPAN = "get_span({0})"
FORMS: Mapping[str, Sequence[str]] = {
    "range": (SPAN,),
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
        right: the values that are right.
        before: lines before it.
        asks: the call that it makes itself.
        behind: the call behind which `got` is computed at once, since the result may
            change later.
    """

    label: str
    got: str
    right: Sequence[Any]
    before: Sequence[str] = ()
    asks: NotedCall | None = None
    behind: NotedCall | None = None


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

    def list_all(self, right: Answer, got: Answer) -> Iterator[Check]:
        yield from self.list_answer(right, got, Scope())
        yield from self.list_references()

    def list_answer(self, right: Answer, got: Answer, scope: Scope) -> Iterator[Check]:
        for name, value in right.items():
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
                yield from self.list_value(name, value, got.get(name), scope)

    def list_parts(
        self, right: Sequence[Answer], got: Sequence[Answer] | None, scope: Scope
    ) -> Iterator[Check]:
        """The parts of a list, by the caches that were asked; or the rows of a batch."""
        receivers = [call.receiver for call in self.notes.calls]
        base = scope.ending
        forms = [f"{base}.{name}{form}" for name in INSIDE for form in ("[{}]", "({})")]
        endings = [
            form
            for form in forms
            for number in range(len(right))
            if any(one.endswith(form.format(number)) for one in receivers)
        ]
        for number, part in enumerate(right):
            if endings:
                ending = endings[0].format(number)
                own = replace(scope, ending=ending, label=f"{scope.label}part {number}: ")
            else:
                label = f"{scope.label}row {number}: "
                own = replace(scope, row=number, rows=len(right), label=label)
            yield from self.list_answer(part, got[number] if got else {}, own)

    # --- values -------------------------------------------------------------------------

    def list_value(
        self, name: str, right: Any, got: Any, scope: Scope
    ) -> Iterator[Check]:
        """That the call from which a field was read returns the right value."""
        allowed = list_right(right)
        code = self.find_value(name, got, scope) if allowed else None
        if code is not None:
            yield Check(f"{scope.label}{name}", code, allowed)

    def find_value(self, name: str, got: Any, scope: Scope) -> str | None:
        """The expression that has given `got`, of the call that is likeliest the one."""
        operation, calls = str(self.step.op["op"]), self.list_calls(scope)
        known = (name, operation, f"get_{name}", f"count_{name}")
        named = [call for word in known for call in reversed(calls) if call.name == word]
        others = [call for call in calls if isinstance(got, list) and call not in named]
        forms = FORMS.get(name, USUAL_FORMS)
        if scope.row is not None:
            forms = tuple(f"{form}[{scope.row}]" for form in USUAL_FORMS)
            named = [call for call in calls[::-1] if call.name in (name, f"{name}s")]
            others = []
        for call in [*named, *others]:
            for form in forms:
                if is_value(form, call.value, got, self.notes.backend):
                    return form.format(call.variable)
        return self.find_each(name, got, calls)

    def find_each(self, name: str, got: Any, calls: Sequence[NotedCall]) -> str | None:
        """The same of a list with one number of each layer; None where one has none."""
        singular = name.removesuffix("s")
        codes = dict.fromkeys(call.code for call in calls if call.name == singular)
        found = isinstance(got, list) and len([n for n in got if n is not None])
        if not codes or found != len(codes):
            return None
        numbers = iter(codes)
        listed = [str(None) if number is None else next(numbers) for number in got]
        return f"[{', '.join(listed)}]"

    def list_calls(self, scope: Scope, *names: str) -> list[NotedCall]:
        """The calls and attributes of a scope, of these names if there are any."""
        return [
            call
            for call in self.notes.calls
            if call.receiver.endswith(scope.ending) and (not names or call.name in names)
        ]

    def list_references(self) -> Iterator[Check]:
        """(paged) That each block is held as often as tables and copies hold it."""
        pools, tables = (self.list_calls(Scope(), name) for name in ("pool", "tables"))
        if pools:
            held = {call.arguments: call.variable for call in tables}
            got = f"list_miscounted({pools[-1].variable}, [{', '.join(held.values())}])"
            yield Check("blocks whose references are wrong", got, [[]])

    # --- tokens -------------------------------------------------------------------------

    def list_reads(self, scope: Scope) -> list[NotedRead]:
        return [
            read
            for read in self.notes.list_reads()
            if read.call.receiver.endswith(scope.ending)
        ]

    def list_visible(self, rows: Sequence[Any], scope: Scope) -> Iterator[Check]:
        reads = {read.pair: read for read in self.list_reads(scope)}.values()
        for number, read in enumerate(reads) if rows else ():
            if isinstance(read.owner, Recurrence):
                if number == 0:
                    yield from self.list_states(rows[-1], scope)
                    yield from self.list_taken(len(rows), scope)
                if scope.row == 0:
                    got = f"len({read.pair}[0])"
                    yield Check(f"{scope.label}states", got, [scope.rows])
            else:
                yield from self.list_seen(read, rows, scope)

    def list_seen(
        self, read: NotedRead, rows: Sequence[Any], scope: Scope
    ) -> Iterator[Check]:
        """What each new row sees in one layer."""
        call, begin = read.call, self.get_begin(scope)
        if isinstance(call.value, Sequence) and len(call.value) > 2:
            mask, shape = f"{read.pair}[2]", (1, *getattr(call.value[2], "shape", ()))
            count = shape[-2] if len(shape) > 2 else len(rows)
            layer = f"layer {call.arguments[0]}, "
        else:
            masks = self.list_calls(scope, "make_mask")
            if not masks:
                return
            mask, count, layer = masks[-1].variable, masks[-1].arguments[-1], ""
        row = "" if scope.row is None else f", {scope.row}"
        variable = f"seen_{call.variable.removeprefix('got_')}{row.replace(', ', '_')}"
        names = self.name_tokens(read, [name for right in rows for name in right], row)
        line = f"{variable} = see(backend, {mask}, {names}, {count}{row})"
        padding = 0 if row else count - len(rows)
        for number, right in enumerate([*rows, *([()] * padding)], begin):
            before = [line] if number == begin else []
            wanted = [to_list(name) for name in sorted(right)]
            label = f"{scope.label}{layer}row {number} sees"
            yield Check(label, f"{variable}[{number}]", [wanted], before)

    def get_begin(self, scope: Scope) -> int:
        """The first column of a row that is not padding."""
        left = self.step.op.get("left") if scope.row is not None else None
        return int(left[scope.row]) if left else 0

    def name_tokens(self, read: NotedRead, names: Sequence[Any], row: str = "") -> str:
        assert not isinstance(read.owner, Recurrence)
        tokens = [tuple(n) if isinstance(n, list) else n for n in names]
        tables = self.tables.add(read.owner, tokens)
        return f"name_tokens(backend, {read.pair}, {tables}{row})"

    def list_tags(self, right: Sequence[int], scope: Scope) -> Iterator[Check]:
        """What is held, less older tokens that may come along."""
        reads = self.list_reads(scope)
        if scope.row is not None:
            reads = [read for read in reads if read.pair.endswith(f"[{scope.row}]")]
        if reads and isinstance(reads[-1].owner, Recurrence):
            yield self.check_state("tokens read", reads[-1], right, scope)
        elif reads:
            held = self.step.model.list_held(self.step.op)
            old = {token.tag for _, tokens in held for token in tokens if token.is_old}
            older = f" if n not in {sorted(old - {*right})}" if old - {*right} else ""
            got = f"sort([n for n in {self.name_tokens(reads[-1], right)}{older}])"
            yield Check(f"{scope.label}tokens held", got, [sorted(right)])
        else:
            for call in self.list_calls(scope, "state", "view")[-1:]:
                row = "" if scope.row is None else f"[{scope.row}]"
                got = f"{call.variable}{row} is None"
                yield Check(f"{scope.label}holds nothing", got, [not right])

    def list_image(self, right: Sequence[int] | None, scope: Scope) -> Iterator[Check]:
        """The tokens of the image of an encoder cache, each at position 0."""
        for read in self.list_reads(scope)[:1]:
            names = [(0, tag) for tag in right or ()]
            got = f"sort({self.name_tokens(read, names)})"
            yield Check(f"{scope.label}image", got, [[*map(list, names)]])
        for call in self.list_calls(scope, "get")[-1:]:
            got = f"{call.variable} is None"
            yield Check(f"{scope.label}has no image", got, [right is None])

    # --- states -------------------------------------------------------------------------

    def list_states(self, tokens: Sequence[int], scope: Scope) -> Iterator[Check]:
        """What the states of a row had read before, and have read now."""
        old = [tag for tag in tokens if tag < self.first]
        reads = self.list_reads(scope)
        owners = dict.fromkeys(read.owner for read in reads)
        for owner in owners:
            if not isinstance(owner, Recurrence):
                continue
            first, *_, last = [read for read in reads * 2 if read.owner is owner]
            before = self.check_state("tokens read before", first, old, scope)
            yield replace(before, behind=first.call)
            yield self.check_state("tokens read", last, tokens, scope)
            self.correct(owner, first.after, last.after, tokens, scope)

    def check_state(
        self, label: str, read: NotedRead, tokens: Sequence[int], scope: Scope
    ) -> Check:
        assert isinstance(read.owner, Recurrence)
        states = self.tables.add_state(read.owner, tokens)
        is_one = scope.row is None or read.pair.endswith(f"[{scope.row}]")
        row = "" if is_one else f", {scope.row}"
        got = f"name_state(backend, {read.pair}, {states}{row})"
        return Check(f"{scope.label}{label}", got, [list(tokens)])

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
            made = [self.notes.made.get(id(value)) for value in call.arguments]
            arrays = [array for array in made if isinstance(array, MadeArray)]
            if call.name.startswith("write") and len(arrays) == len(states):
                for array, state in zip(arrays, states, strict=True):
                    array.content[scope.row or 0] = state[0]

    def list_taken(self, count: int, scope: Scope) -> Iterator[Check]:
        """The columns that a batch of states takes for tokens of a row."""
        masks = self.list_calls(scope, "make_mask")
        if masks and scope.row is not None:
            begin, length = self.get_begin(scope), self.step.op["length"]
            got = f"list_taken(backend, {masks[-1].variable}, {length}, {scope.row})"
            yield Check(
                f"{scope.label}columns taken", got, [[*range(begin, begin + count)]]
            )


def list_refusal(
    notes: CallNotes, names: Sequence[str], calls: Sequence[NotedCall]
) -> Iterator[Check]:
    """That the call of the operation is refused: not one that only looks at the cache
    afterwards."""
    found = [call for call in calls if call.refused]
    found += [call for call in reversed(calls) if call.name not in LOOKS]
    if found:
        kinds = [
            f'backend.errors["{name}"]' if name in notes.backend.errors else "ValueError"
            for name in names
        ]
        got = f"refuses([{', '.join(kinds)}], lambda: {found[0].code})"
        yield Check(f"refused ({' or '.join(names)})", got, [True], asks=found[0])


def list_right(right: Any) -> list[Any]:
    """The values that are right; none if any in a range is. See `Operation.resolve`."""
    if not isinstance(right, Mapping):
        return [right]
    return list(right.get("one_of", ()))


def is_value(form: str, value: Any, got: Any, backend: Backend) -> bool:
    """Whether an expression of a returned value gives what was read from it."""
    names = {**vars(plain), "backend": backend, "value": value}
    try:
        return bool(eval(form.format("value"), names) == got)
    except Exception:
        return False


def to_list(name: Any) -> Any:
    return list(name) if isinstance(name, tuple) else name
