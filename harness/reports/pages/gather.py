"""What there is to show: outcomes of checks, and programs that failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep.harness.core.document import decode, parse_json
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.files import (
    is_several,
    iterate_saved,
    list_files,
    list_outcomes,
)
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.reports.model import OutcomeSummary
from lockstep.harness.reports.outcome_file import is_outcome, read_outcome


@dataclass(frozen=True)
class Saved:
    """A program, and what its file says of how it failed, which is not trusted.

    Attributes:
        path: of its file.
        what, step, message: of the divergence.
        likely: a line about the failure that is likely the same bug.
    """

    program: Program
    path: str
    backend: str | None = None
    signature: str | None = None
    what: str | None = None
    step: int | None = None
    message: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    likely: str | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """The same for the same failure, wherever it was found."""
        return self.program.digest(), self.backend


@dataclass
class Material:
    """What was gathered. broken: files that cannot be read, a line each."""

    outcomes: list[OutcomeSummary] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def add(self, saved: Saved) -> None:
        """Adds a failure once, however many files and outcomes have it: what a file says
        counts more."""
        for place, before in enumerate(self.saved):
            if before.key == saved.key:
                fuller = saved if saved.message is not None else before
                likely = before.likely or saved.likely
                self.saved[place] = replace(fuller, likely=likely)
                return
        self.saved.append(saved)


def gather(paths: Sequence[Path]) -> Material:
    """What is in files, and in the files of folders. Raises UsageError if that is
    nothing."""
    material = Material()
    for path in paths:
        gather_from(path, material)
    if not material.outcomes and not material.saved:
        if len(material.broken) == 1:
            raise UsageError(material.broken[0])
        listed = ", ".join(map(str, paths))
        more = f"; {len(material.broken)} files cannot be read" if material.broken else ""
        raise UsageError(f"{listed}: nothing to report{more}")
    return material


def gather_from(path: Path, material: Material) -> None:
    if not is_several(path):
        document = read_document(path)
        if is_outcome(document):
            add_outcome(document, str(path), material)
        else:
            add_programs(path, material)
        return
    outcomes = list_outcomes(path)
    for file, read in outcomes:
        try:
            document = parse_json(decode(read(), str(file)), str(file))
            add_outcome(document, str(file), material)
        except UsageError as error:
            material.broken.append(str(error))
    try:
        add_programs(path, material)
    except UsageError:
        if not outcomes:
            raise


def read_document(path: Path) -> Any:
    """The JSON in a file that may be an outcome; None for what holds programs only."""
    if path.suffix != ".json":
        return None
    ((file, read),) = list_files(path)
    return parse_json(decode(read(), str(file)), str(file))


def add_outcome(document: Any, where: str, material: Material) -> None:
    outcome = read_outcome(document, where)
    material.outcomes.append(outcome)
    for pair in document["pairs"]:
        for failure in pair["failures"]:
            try:
                program = parse_program(failure["program"], where)
            except UsageError as error:
                material.broken.append(str(error))
                continue
            divergence = failure["divergence"]
            material.add(
                Saved(
                    program,
                    failure["path"],
                    pair["backend"],
                    failure["signature"],
                    divergence["what"],
                    check_step(divergence["step"], program),
                    divergence["message"],
                    outcome.versions,
                    failure.get("why_likely"),
                )
            )


def add_programs(path: Path, material: Material) -> None:
    for file, program in iterate_saved([path]):
        if isinstance(program, UsageError):
            material.broken.append(str(program))
        else:
            material.add(read_saved(program, str(file)))


def read_saved(program: Program, path: str) -> Saved:
    """What the file of a program says in `meta`, where it has the form that it should."""
    meta = program.meta
    signature, versions = get_text(meta, "signature"), meta.get("versions")
    return Saved(
        program,
        path,
        get_text(meta, "backend"),
        signature,
        signature.rpartition("-")[2] if signature else None,
        check_step(meta.get("step"), program),
        get_text(meta, "what"),
        dict(list_texts(versions)) if isinstance(versions, Mapping) else {},
    )


def check_step(step: Any, program: Program) -> int | None:
    """The number of a step, if it is one of the program's."""
    return step if isinstance(step, int) and 0 <= step < len(program.ops) else None


def get_text(meta: Mapping[str, Any], name: str) -> str | None:
    value = meta.get(name)
    return value if isinstance(value, str) and value else None


def list_texts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, str):
            yield name, value
