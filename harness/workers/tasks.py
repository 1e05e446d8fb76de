"""What a worker can be asked to do, by name, and what it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.core.errors import Unavailable
from lockstep.harness.execution.cluster import find_likely
from lockstep.harness.execution.recording.picture import Bounds
from lockstep.harness.execution.recording.recorder import record
from lockstep.harness.execution.snippet import write_snippet
from lockstep.harness.programs.ledger import load_ledger
from lockstep.harness.programs.program import Program, parse_program, why_too_large
from lockstep.harness.programs.supported import why_unsupported
from lockstep.harness.programs.vectors.audit import audit
from lockstep.harness.programs.vectors.coverage import describe
from lockstep.harness.programs.vectors.selection import SIZES, Selection
from lockstep.harness.workers.exhaustive_slice import Part
from lockstep.harness.workers.given_slice import Batch
from lockstep.harness.workers.random_slice import PROGRESS_SECONDS, Shard
from lockstep.harness.workers.registry import load_faults
from lockstep.harness.workers.runner import Runner

RELATE_SECONDS = 10.0


def do_check(worker: Runner, backend: Backend, task: Mapping[str, Any]) -> dict[str, Any]:
    return Shard(worker, backend, task).check()


def do_survey(
    worker: Runner, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    """What there is to explore."""
    return Part(worker, backend, task).survey()


def do_explore(
    worker: Runner, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    return Part(worker, backend, task).check()


def do_declare(
    worker: Runner, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    """The declaration, as far as planning and reports need it."""
    return {
        "name": backend.name,
        "device": backend.device,
        "contracts": {
            contract: {
                kind: {
                    "operations": sorted(declared.operations),
                    "config": {name: list(v) for name, v in declared.config.items()},
                    "refuses": declared.refuses,
                }
                for kind, declared in kinds.items()
            }
            for contract, kinds in backend.contracts.items()
        },
        "dtypes": list(backend.dtypes),
        "lifetime": backend.lifetime,
        "poison": backend.poison,
        "versions": dict(backend.versions),
        "notes": backend.notes,
        "share": backend.share,
    }


def do_list_faults(
    worker: Runner, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    """The mistakes that are planted in a backend."""
    if backend.faults is None:
        return {"faults": []}
    return {"faults": [asdict(planted) for planted in load_faults(backend.faults)]}


def do_run(worker: Runner, backend: Backend, task: Mapping[str, Any]) -> dict[str, Any]:
    """One program: does it diverge?"""
    program = parse_program(task["program"], "program")
    supported = why_unsupported(program, backend)
    if supported:
        raise Unavailable(supported)
    result = worker.run_both(program, backend)
    divergence = result.divergence
    return {
        "divergence": divergence and divergence.to_json(),
        "versions": dict(backend.versions),
        "device": backend.device,
        "steps": result.steps,
        "skipped": result.skipped,
        "why_skipped": result.why_skipped,
    }


def do_record(
    worker: Runner, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    """Both sides of a program, step by step; see `record`.

    task: "program", "bounds" (fields of `Bounds`), "until" and "wanted".
    """
    program = parse_program(task["program"], "program")
    if backend.execute is None and (why := why_unsupported(program, backend)):
        raise Unavailable(why)
    bounds = Bounds(**task["bounds"])
    own = worker.note, worker.record.step
    return record(program, backend, bounds, task["until"], task["wanted"], *own)


def do_shrink(
    worker: Runner, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    """Continues to shrink a program that diverges."""
    program = parse_program(task["program"], "program")
    divergence = worker.run_both(program, backend).divergence
    if divergence is None:
        return {"divergence": None}
    small = worker.shrink(program, divergence, backend, task["seconds"])
    return {
        "program": small.program.to_json(),
        "divergence": small.divergence.to_json(),
    }


def do_snippet(
    worker: Runner, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    """A program as code in the framework's own API."""
    return {"snippet": write_snippet(parse_program(task["program"], "program"), backend)}


def do_ledger(
    worker: Runner, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    """Runs the program of each known divergence: does it still fail in the same way?"""
    answers = []
    for entry in load_ledger(backend.ledger, backend.name):
        divergence = worker.run_both(entry.program, backend).divergence
        got = divergence and divergence.get_signature(entry.program)
        answers.append(
            {
                "id": entry.id,
                "kind": entry.program.kind,
                "verdict": entry.verdict,
                "reason": entry.reason,
                "signature": entry.signature,
                "got": got,
            }
        )
    return {"entries": answers}


def do_relate(
    worker: Runner, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    """Which of several failures are likely one bug; see `find_likely`. When time is up,
    nothing more is said."""
    deadline = time.monotonic() + RELATE_SECONDS

    def find(program: Program) -> str | None:
        if time.monotonic() > deadline:
            return None
        if why_too_large(program) or why_unsupported(program, backend):
            return None
        divergence = worker.run_both(program, backend).divergence
        return divergence.get_signature(program) if divergence else None

    programs = [parse_program(each, "program") for each in task["programs"]]
    failing = list(zip(programs, task["signatures"], strict=True))
    return {"likely": list(find_likely(failing, find).items())}


def do_batch(worker: Runner, backend: Backend, task: Mapping[str, Any]) -> dict[str, Any]:
    """Programs that were drawn elsewhere."""
    return Batch(worker, backend, task).check()


def do_audit(worker: Runner, backend: Backend, task: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a file of a set of vectors says what the reference expects."""
    programs, problems = audit(Path(task["path"]), task["holds"], worker.note)
    return {
        "programs": [program.to_json() for program in programs],
        "problems": [asdict(problem) for problem in problems],
    }


def do_draw(worker: Runner, backend: Backend, task: Mapping[str, Any]) -> dict[str, Any]:
    """The programs of one kind for a set of vectors."""
    selection = Selection(task["contract"], task["kind"], SIZES[task["size"]])
    reported = time.monotonic()

    def on_draw(program: Program) -> None:
        nonlocal reported
        worker.note(program)
        if time.monotonic() - reported > PROGRESS_SECONDS:
            reported = time.monotonic()
            worker.emit({"event": "progress", "drawn": selection.drawn})

    selection.select(on_draw)
    return {"lines": selection.get_lines(), "holds": describe(selection)}


TASKS: Mapping[str, Callable[[Runner, Backend, Mapping[str, Any]], dict[str, Any]]] = {
    "check": do_check,
    "survey": do_survey,
    "explore": do_explore,
    "declare": do_declare,
    "run": do_run,
    "record": do_record,
    "shrink": do_shrink,
    "relate": do_relate,
    "snippet": do_snippet,
    "batch": do_batch,
    "audit": do_audit,
    "draw": do_draw,
    "ledger": do_ledger,
    "faults": do_list_faults,
}
