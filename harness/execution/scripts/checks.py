"""What a script compares at its last step: expressions beside what is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.batched.parts_system import ListSystem
from lockstep.harness.contracts.batched.system import BatchedSystem
from lockstep.harness.contracts.operation import Answer, Step
from lockstep.harness.contracts.paged.system import PagedSystem
from lockstep.harness.contracts.prefix.conversations import ConversationSystem
from lockstep.harness.contracts.prefix.slots import SlotsSystem
from lockstep.harness.contracts.unified.system import UnifiedSystem
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.scripts.calls import LOOKS, CallNotes, Noted
from lockstep.harness.execution.scripts.tables import Tables
from lockstep.harness.execution.scripts.tokens import Check, TokenChecks
from lockstep.harness.execution.snippet import list_right

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
        yield from checks.list_all(expected[0])
        yield from checks.list_references()
    elif len(names) == len(expected):
        yield from list_refusal(notes, names, calls)


def list_refusal(
    notes: CallNotes, names: Sequence[str], calls: Sequence[Noted]
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


class Checks(TokenChecks):
    """The comparisons with one answer."""

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

    def list_all(self, answer: Answer) -> Iterator[Check]:
        for name, right in answer.items():
            if name == "caches":
                for number, part in enumerate(right):
                    yield from self.choose(number).list_all(part)
            elif name in READ:
                yield from getattr(self, READ[name])(right)
            elif name == "stored" and isinstance(self.side, UnifiedSystem):
                yield from self.list_image(right)
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
            name = self.side.cache.expression
            got = ", ".join(
                f"getattr({name}.layers[{number}], 'offset', None)"
                for number in range(len(self.side.layers))
            )
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
            yield Check(
                f"{name} {int(number)}" if name == "ranges" else name, code, [one]
            )


READ = {
    "visible": "list_visible",
    "tags": "list_tags",
    "states": "list_states",
}
"""Field of an answer → the method that lists its comparisons."""
