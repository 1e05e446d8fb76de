"""A worker: a process of its own in which backends are imported and run.

Started as ``python -m harness.worker FD RECORD``. It reads tasks from the connection at
file descriptor FD, answers with events, and keeps its write-ahead record at RECORD. A
backend can end or hang this process; the pool that started it is then none the worse.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from harness.backend import Backend
from harness.errors import UsageError
from harness.ledger import Entry, load_ledger
from harness.others import Others, Shrunk
from harness.pages.recorder import record
from harness.part import Part
from harness.program import Program, parse_program, why_too_large
from harness.record import Record
from harness.registry import Unavailable, load, load_faults
from harness.related import find_likely
from harness.relations.reference import REFERENCE, run_any
from harness.run import Divergence, Result, breaks_usage
from harness.shard import Shard
from harness.shrink import Clock, Shrinker
from harness.supported import is_known, why_unsupported
from harness.text import say_error

RELATE_SECONDS = 10.0

Emit = Callable[[dict[str, Any]], None]


class Worker:
    """Carries out tasks, one after the other."""

    def __init__(self, record: Record, emit: Emit) -> None:
        self.record, self.emit = record, emit
        self.backends: dict[str, Backend] = {}
        self.asked = ""

    def do(self, task: Mapping[str, Any]) -> None:
        """One task; it ends with an event that says "done" or "unavailable"."""
        try:
            self.asked = task["backend"]
            backend = self.get_backend(self.asked)
            answer = TASKS[task["do"]](self, backend, task)
            self.emit({"event": "done", **answer})
        except (Unavailable, UsageError) as error:
            self.emit({"event": "unavailable", "why": str(error)})
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            why = f"the harness itself failed at {where}: {say_error(error)}"
            self.emit({"event": "broken", "why": why})
        self.record.clear()

    def get_backend(self, name: str) -> Backend:
        if name not in self.backends:
            self.backends[name] = load(name)
        return self.backends[name]

    def run(
        self, program: Program, backend: Backend, every: bool, wanted: str | None = None
    ) -> Result:
        """Runs a program with the record kept. wanted: see `run_any`."""
        self.record.begin(program, self.asked)
        step = self.record.step
        return run_any(program, backend, every=every, on_step=step, wanted=wanted)

    def run_both(self, program: Program, backend: Backend) -> Result:
        """With every check at every step and, if that agrees, with the costly ones at
        some steps, as it ran among others: to watch an array can hide a bug in it. If the
        program says how it failed, that is looked for first."""
        said = program.meta.get("signature")
        wanted = said if isinstance(said, str) else None
        result = self.run(program, backend, True, wanted)
        if result.divergence is None and backend is REFERENCE:
            return self.run(program, backend, every=True)
        return result if result.divergence else self.run(program, backend, every=False)

    def shrink(
        self,
        program: Program,
        divergence: Divergence,
        backend: Backend,
        seconds: float,
        avoid: Sequence[Entry] = (),
        clock: Clock = time.monotonic,
    ) -> Shrunk:
        """The shortest program with the same signature, and how it diverges; it breaks a
        rule of usage only if the longer one does. avoid: known divergences, which no
        program that is tried may meet."""
        signature = divergence.get_signature(program)
        program = replace(program, ops=program.ops[: divergence.step + 1])
        others = Others()
        is_misuse = backend is REFERENCE or breaks_usage(program)

        def find(candidate: Program, every: bool) -> Divergence | None:
            found = self.run(candidate, backend, every, signature).divergence
            if found is not None and not is_misuse and breaks_usage(candidate):
                return None
            if found is None or found.get_signature(candidate) == signature:
                return found
            others.add(candidate, found)
            return None

        # The costly checks only where the others do not show it, or may not any more when
        # the program is another one.
        every = backend is REFERENCE or find(program, every=False) is None

        latest = divergence

        def fails(candidate: Program) -> bool:
            nonlocal latest
            found = find(candidate, every)
            latest = found or latest
            return found is not None

        def cut(failing: Program) -> Program:
            return replace(failing, ops=failing.ops[: latest.step + 1])

        if not fails(program):
            return Shrunk(program, divergence)

        def is_declared(candidate: Program) -> bool:
            if why_too_large(candidate) or why_unsupported(candidate, backend):
                return False
            return not (avoid and is_known(candidate, avoid))

        best = Shrinker(program, fails, seconds, is_declared, cut, clock).shrink()
        return Shrunk(best, find(best, every) or divergence, others.shortest)


def do_check(worker: Worker, backend: Backend, task: Mapping[str, Any]) -> dict[str, Any]:
    return Shard(worker, backend, task).check()


def do_survey(
    worker: Worker, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    """What there is to explore."""
    return Part(worker, backend, task).survey()


def do_explore(
    worker: Worker, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    return Part(worker, backend, task).check()


def do_declare(
    worker: Worker, backend: Backend, task: Mapping[str, Any]
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
    }


def do_list_faults(
    worker: Worker, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    """The mistakes that are planted in a backend."""
    if backend.faults is None:
        return {"faults": []}
    return {"faults": [asdict(planted) for planted in load_faults(backend.faults)]}


def do_run(worker: Worker, backend: Backend, task: Mapping[str, Any]) -> dict[str, Any]:
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
    worker: Worker, backend: Backend, task: Mapping[str, Any]
) -> dict[str, Any]:
    """Both sides of a program, step by step."""
    return record(worker, backend, task)


def do_shrink(
    worker: Worker, backend: Backend, task: Mapping[str, Any]
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


def do_ledger(
    worker: Worker, backend: Backend, task: Mapping[str, Any]
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
    worker: Worker, backend: Backend, task: Mapping[str, Any]
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


TASKS: Mapping[str, Callable[[Worker, Backend, Mapping[str, Any]], dict[str, Any]]] = {
    "check": do_check,
    "survey": do_survey,
    "explore": do_explore,
    "declare": do_declare,
    "run": do_run,
    "record": do_record,
    "shrink": do_shrink,
    "relate": do_relate,
    "ledger": do_ledger,
    "faults": do_list_faults,
}


def follow(parent: int) -> None:
    """Ends this process when its parent is gone, even if a backend hangs."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    record = Record(Path(sys.argv[2]))
    sys.path.append(os.getcwd())

    def emit(event: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(event).encode())

    Thread(target=follow, args=[os.getppid()], daemon=True).start()
    worker = Worker(record, emit)
    try:
        while True:
            worker.do(json.loads(connection.recv_bytes()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the pool has gone, and nobody is left to report to
    finally:
        record.close()


if __name__ == "__main__":
    main()
