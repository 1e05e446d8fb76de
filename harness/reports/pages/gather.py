"""Gathers outcomes of checks and programs that failed."""

from __future__ import annotations

from collections.abc import Sequence
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
from lockstep.harness.programs.program import parse_program
from lockstep.harness.reports.outcome_file import is_outcome, read_outcome
from lockstep.harness.reports.pages.view import Material, Saved, check_step, read_saved


def gather(paths: Sequence[Path]) -> Material:
    """Gathers from files, and from the files of folders. Raises UsageError if that is
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
