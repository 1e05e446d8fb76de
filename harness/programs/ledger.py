"""Chooses which programs a backend runs: by its declaration, and by known divergences.

An entry of the ledger is a known divergence of a third-party cache, with its reason and a
program as proof. README.md describes the format. An entry has three effects. First,
generated programs skip the operations that the entry describes, so that they can explore
later operations. Second, some programs run such an operation, and must then show the
entry's signature. Third, the program of the entry runs in each check, and must still fail
with this signature.

If the answers of a backend decide the state, entries and duties are evaluated while the
program runs; see `execution.executor`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, ValidationError, convert, structs

from lockstep.harness.backends.backend import Backend, Duty, Kind
from lockstep.harness.contracts.contract import WITHOUT_EFFECT, Contract
from lockstep.harness.contracts.operation import Config, Op, list_names, rename
from lockstep.harness.core.document import NAMES, name_type, parse_json, read_text, show
from lockstep.harness.core.errors import Problems, UsageError
from lockstep.harness.programs.condition import (
    Condition,
    ParsedDuty,
    find_duty,
    parse_condition,
    parse_duties,
)
from lockstep.harness.programs.program import Program, parse_program, walk

# --- known divergences ------------------------------------------------------------------


class Document(Struct, forbid_unknown_fields=True):
    """The fields of a ledger entry's file.

    Attributes:
        kind: the kind of cache.
        operation: the operation that diverges; it is part of the signature.
        signature: the signature of the divergence, which the program must show.
        verdict: "bug"; "limit" if the authors of the cache document the divergence; or
            "misuse" if the call is invalid, but no document or error says so.
        versions: package → the version in which the divergence was seen.
        when: a condition on the operations that lead to the divergence; see `condition`.
        program: the shortest program that shows the divergence.
        expected, got: the expected and the actual result, for people.
    """

    id: str
    backend: str
    kind: str
    operation: str
    signature: str
    verdict: Literal["bug", "limit", "misuse"]
    reason: str
    link: str | None
    when: dict[str, Any]
    program: dict[str, Any]
    versions: dict[str, str] = {}
    expected: str = ""
    got: str = ""


@dataclass(frozen=True)
class Entry:
    """A known divergence of a backend, for a single kind of cache.

    Attributes:
        document: the fields of the entry's file.
        program: the shortest program that shows the divergence.
        condition: the condition on the operations that lead to the divergence.
        step: the first step of the program that meets the condition.
    """

    document: Document
    program: Program
    condition: Condition
    step: int

    @property
    def id(self) -> str:
        return self.document.id

    @property
    def signature(self) -> str:
        return self.document.signature

    @property
    def what(self) -> str:
        """The type of the difference; see `Divergence.what`."""
        return self.signature.rpartition("-")[2]


def load_ledger(
    folder: Path | str | None, backend: str | None, kind: str | None = None
) -> list[Entry]:
    """Loads the entries of a backend, in the order of their file names.

    Args:
        folder: see `Backend.ledger`.
        backend: the name of the backend; None for the entries of all backends.
        kind: the kind of the entries; None for all kinds.

    Raises:
        UsageError: the folder does not exist, or a file in it is not a ledger entry.
    """
    if folder is None:
        return []
    if not Path(folder).is_dir():
        raise UsageError(f"{folder}: is not a folder; set `Backend.ledger` to the ledger")
    entries = [load_entry(path) for path in sorted(Path(folder).glob("*.json"))]
    entries = [entry for entry in entries if backend in (None, entry.document.backend)]
    return [entry for entry in entries if kind in (None, entry.program.kind)]


def load_entry(path: Path) -> Entry:
    return parse_entry(read_text(path), path)


@cache
def parse_entry(text: str, path: Path) -> Entry:
    """Parses the text of an entry's file.

    The result is cached, since each slice of programs loads the ledger."""
    document = parse_json(text, str(path))
    problems, where = Problems(), f"{path}: is not a ledger entry: "
    if not isinstance(document, dict):
        raise UsageError(f"{where}it is {name_type(document)}, not an object")
    entry = read_fields(document, problems)
    program = condition = None
    with problems.collecting():
        if "program" in entry:
            program = parse_program(document, "program")
            problems.messages += list_contradictions(entry, program)
    with problems.collecting():
        if program is not None and "when" in entry:
            rules, config = program.rules, program.config
            condition = parse_condition(entry["when"], rules, config, "when")
    problems.check(where)
    assert program is not None and condition is not None
    for step in walk(program, rows=False):
        if step.skipped is None and condition.holds(step.op, step.model):
            return Entry(Document(**entry), program, condition, step.number)
    raise UsageError(
        f"{where}when: no operation of the entry's own program meets this condition"
    )


def read_fields(document: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Returns the valid fields of an entry. Notes unknown, missing and invalid fields as
    problems."""
    entry, fields = {}, {field.name: field for field in structs.fields(Document)}
    for name in sorted(document.keys() - fields.keys()):
        problems.messages.append(f"unknown field {show(name)}")
    for name, field in fields.items():
        try:
            if name in document:
                entry[name] = convert(document[name], type=field.type)
            elif field.required:
                problems.messages.append(f"{name} is missing")
        except ValidationError as error:
            problems.messages.append(f"{name}: {error}")
    return entry


def list_contradictions(entry: Mapping[str, Any], program: Program) -> Iterator[str]:
    """Describes contradictions between an entry's program and its kind or signature."""
    kind, signature = entry.get("kind", program.kind), entry.get("signature", "")
    if kind != program.kind:
        yield f"kind is {show(kind)}, but the program has the kind {show(program.kind)}"
    start = f"{program.contract}-{kind}-{entry.get('operation')}-"
    is_given = {"signature", "operation"} <= entry.keys()
    if is_given and (not signature.startswith(start) or signature == start):
        yield (
            f"signature is {show(signature)}, but must begin with contract, kind and"
            f" operation: {show(start + '…')}"
        )


# --- skipped operations -----------------------------------------------------------------


def find_reason(
    op: Op, model: Any, duties: Sequence[ParsedDuty], avoid: Sequence[Entry]
) -> Duty | Entry | None:
    """Returns the duty or the entry for which a legal operation is skipped, or None.

    Args:
        op: the operation, with all defaults filled in.
        model: the reference before the operation.
        duties: the duties of the model's kind.
        avoid: the known divergences of the model's kind.
    """
    return find_duty(op, model, duties) or find_entry(op, model, avoid)


# --- programs that lead to known divergences --------------------------------------------


@dataclass(frozen=True)
class KnownProgram:
    """A program that leads to a known divergence and ends where the divergence shows.

    Attributes:
        entry: the entry, which describes an operation of the program.
        step: the number of the first operation that an entry describes.
    """

    entry: Entry
    program: Program
    step: int


def find_entry(op: Op, model: Any, avoid: Sequence[Entry]) -> Entry | None:
    """Returns the first entry that describes an operation on the model, or None.

    Args:
        op: the operation, with all defaults filled in.
        model: the reference before the operation.
        avoid: the entries about the model's kind.
    """
    return next((entry for entry in avoid if entry.condition.holds(op, model)), None)


def make_known(entry: Entry, config: Config, ops: Sequence[Op], op: Op) -> KnownProgram:
    """Makes a program that runs `op` and then shows the known divergence.

    Args:
        entry: the entry that describes `op`.
        config: the config of the program.
        ops: the operations before `op`.
        op: the operation, with all defaults filled in.
    """
    following = follow(entry.program, entry.step, op)
    program = Program(entry.program.contract, config, [*ops, op, *following])
    return KnownProgram(entry, program, len(ops))


def follow(program: Program, number: int, op: Op) -> list[Op]:
    """Returns the operations after step `number` of a program, renamed to the caches and
    sequences of `op`. `op` and this step are the same operation."""
    operations = program.rules.operations
    first, *following = program.ops[number:]
    schemas = (s for defined in operations.values() for s in defined.fields.values())
    for sort in dict.fromkeys(str(s[NAMES]) for s in schemas if NAMES in s):
        pairs = (list_names(operation, operations, sort) for operation in (first, op))
        names = dict(zip(*pairs, strict=False))
        following = [rename(later, operations, sort, names) for later in following]
    return following


def find_known(program: Program, avoid: Sequence[Entry]) -> KnownProgram | None:
    """Returns the beginning of a program that leads to a known divergence, or None.

    Also returns None if the state depends on the answers of the backend: then a run must
    show whether the program leads to the divergence.
    """
    entries = [entry for entry in avoid if entry.program.kind == program.kind]
    judged = entries and not program.rules.leaves_choices
    for step in walk(program, rows=False) if judged else ():
        if step.skipped is None:
            entry = find_entry(step.op, step.model, entries)
            if entry is not None:
                earlier = program.ops[: step.number]
                return make_known(entry, program.config, earlier, step.op)
    return None


LeftOut = Mapping[int, Entry]
"""Number of a skipped step → the entry for which the step was skipped."""


def leave_out(program: Program, left_out: LeftOut) -> Program:
    """Returns the program without the operations that a run has skipped."""
    ops = [op for number, op in enumerate(program.ops) if number not in left_out]
    return replace(program, ops=ops)


def list_known(program: Program, left_out: LeftOut) -> list[KnownProgram]:
    """Lists a program for each operation that a run has skipped.

    Each program leads to the known divergence for which the operation was skipped.
    """
    programs = []
    for number, entry in left_out.items():
        earlier = leave_out(replace(program, ops=program.ops[:number]), left_out).ops
        programs.append(make_known(entry, program.config, earlier, program.ops[number]))
    return programs


# --- programs of a backend --------------------------------------------------------------


def why_unsupported(program: Program, backend: Backend) -> str | None:
    """Returns why a program is not covered by a backend's declaration, or None."""
    kinds = backend.contracts.get(program.contract, {})
    if program.kind not in kinds:
        has = ", ".join(kinds) or "none"
        return (
            f"{backend.name} declares no {program.contract} cache of kind"
            f" {program.kind} (it has: {has})"
        )
    for field, schema in program.rules.config.items():
        default = [schema["default"]] if field in program.rules.opt_in else None
        allowed = kinds[program.kind].config.get(field, default)
        value = program.config[field]
        if allowed is not None and value not in allowed:
            return f"{backend.name} does not declare {field} {value}"
    missing = {op["op"] for op in program.ops} - kinds[program.kind].operations
    if missing:
        return f"{backend.name} does not declare {', '.join(sorted(missing))}"
    if program.config["dtype"] not in backend.dtypes:
        return f"{backend.name} does not declare dtype {program.config['dtype']}"
    if not kinds[program.kind].atomic and (step := find_unclear(program)) is not None:
        return (
            f"{backend.name} does not declare that a refused remove is atomic, and step"
            f" {step} does not clear the sequence"
        )
    return why_excluded(program, backend)


def drop_undeclared(program: Program, declared: Kind) -> Program:
    """Returns a program with the fields of `list_undeclared` at their defaults."""
    undeclared = list_undeclared(program.rules, declared)
    if all(program.config[name] == value for name, value in undeclared.items()):
        return program
    return replace(program, config={**program.config, **undeclared})


def list_undeclared(rules: Contract, declared: Kind) -> dict[str, Any]:
    """Returns field → default, for undeclared config fields that change no answer.

    No answer depends on these fields, so they can stay at their defaults if the backend
    does not declare them.
    """
    return {
        name: rules.config[name]["default"]
        for name in WITHOUT_EFFECT
        if name in rules.opt_in and name not in declared.config
    }


def why_excluded(program: Program, backend: Backend) -> str | None:
    """Describes the first call of a program that breaks a duty of callers, or None. If
    the answers of the backend decide the state, only a run shows this."""
    declared = backend.contracts.get(program.contract, {}).get(program.kind)
    if declared is None or not declared.duties or program.rules.leaves_choices:
        return None
    duties = parse_duties(declared, program.rules, program.kind)
    for step in walk(program, rows=False):
        if step.skipped is None and (duty := find_duty(step.op, step.model, duties)):
            return (
                f"callers of {backend.name} must not make the call of step {step.number}:"
                f" {duty.rule}"
            )
    return None


def find_unclear(program: Program) -> int | None:
    """Returns the number of a step that should clear a sequence but does not, or None.

    Unless `Kind.atomic` is True, a program must clear a sequence after a refused removal.
    """
    clearing: Op | None = None
    for step in walk(program, rows=False):
        if step.skipped is None:
            if clearing is not None and clearing != step.op:
                return step.number
            step.finish()
            clearing = program.rules.get_clearing(step.model)
    return None
