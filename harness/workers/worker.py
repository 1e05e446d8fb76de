"""Defines the worker process, which imports and runs backends.

`harness.workers.guard` starts the worker with the arguments FD RECORD LIMITS. The worker
reads tasks from the connection at file descriptor FD, sends events back, and writes its
write-ahead record to the file RECORD. LIMITS is `harness.backends.driver.client.Limits`
as JSON. A backend can crash or hang this process, and the loss of a device ends it. The
pool that started the process then reads the record and continues with another worker.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Union

import msgspec
from msgspec import convert, structs

from lockstep.harness.backends.backend import Backend, is_driver, list_unchecked
from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.core.document import show
from lockstep.harness.core.errors import (
    DeviceLost,
    Excluded,
    HarnessError,
    Unavailable,
    Unloadable,
    UsageError,
    clean,
    format_error,
)
from lockstep.harness.execution.causes import find_likely
from lockstep.harness.execution.record import Record
from lockstep.harness.execution.recording.recorder import record
from lockstep.harness.execution.scripts.conversation import write_conversation
from lockstep.harness.execution.scripts.requests import write_requests
from lockstep.harness.execution.scripts.script import write_script
from lockstep.harness.programs.ledger import (
    find_known,
    leave_out,
    load_ledger,
    why_excluded,
    why_unsupported,
)
from lockstep.harness.programs.program import (
    Divergence,
    Program,
    parse_program,
    why_too_large,
)
from lockstep.harness.programs.vectors.selection import SIZES, Selection
from lockstep.harness.workers import messages as m
from lockstep.harness.workers.backend_run import BackendRun
from lockstep.harness.workers.channel import Channel
from lockstep.harness.workers.describing import find_description
from lockstep.harness.workers.messages import (
    HarnessFailed,
    LoadFailed,
    Refused,
    Task,
    encode,
)
from lockstep.harness.workers.registry import (
    get_target,
    list_names,
    load,
    load_faults,
)
from lockstep.harness.workers.runner import Emit, Runner
from lockstep.harness.workers.slices import ExhaustiveSlice, RandomSlice, survey

# --- the tasks --------------------------------------------------------------------------


CLUSTER_SECONDS = 10.0


def parse(document: m.Document) -> Program:
    return parse_program(document, "program")


def require_supported(program: Program, backend: Backend) -> None:
    if reason := why_unsupported(program, backend):
        is_excluded = reason == why_excluded(program, backend)
        raise Excluded(reason) if is_excluded else Unavailable(reason)


def require_unknown(
    worker: Runner, program: Program, divergence: Divergence, backend: Backend
) -> None:
    """Raises Unavailable if the divergence of a program is in the ledger: an entry has
    its signature, and without the operations that the entry describes, the program no
    longer shows it."""
    signature = divergence.get_signature(program)
    entries = load_ledger(backend.ledger, backend.name, program.kind)
    avoid = [entry for entry in entries if entry.signature == signature]
    if not avoid:
        return
    beginning = replace(program, ops=program.ops[: divergence.step + 1])
    stripped = beginning
    while (match := find_known(stripped, avoid)) is not None:
        stripped = leave_out(stripped, {match.step: match.entry})
    result = worker.run_both(stripped, backend, avoid)
    is_other = result.divergence is None or (
        result.divergence.get_signature(stripped) != signature
    )
    if is_other and (stripped is not beginning or result.left_out):
        raise Unavailable(f"{signature} is a known divergence")


def declare(worker: Runner, backend: Backend, task: m.Declare) -> m.Declared:
    return m.Declared(
        versions=get_versions(backend),
        device=backend.device,
        contracts={name: dict(kinds) for name, kinds in backend.contracts.items()},
        dtypes=list(backend.dtypes),
        share=backend.share,
        unchecked={
            kind: list_unchecked(backend, declared)
            for kinds in backend.contracts.values()
            for kind, declared in kinds.items()
        },
        has_ledger=backend.ledger is not None,
        name=clean(backend.name) if is_driver(task.backend) else "",
    )


def get_versions(backend: Backend) -> dict[str, str]:
    return {str(name): str(version) for name, version in backend.versions.items()}


def list_faults(worker: Runner, backend: Backend, task: m.ListFaults) -> m.FaultsListed:
    return m.FaultsListed(load_faults(backend.faults) if backend.faults else [])


def list_ways(
    worker: Worker, backend: Backend, task: m.RunProgram | m.RecordProgram | m.Shrink
) -> Iterator[Backend]:
    """Yields a backend alone, then beside the other backends of the task, if any.

    Raises:
        Unavailable: one of them cannot run the program beside another backend.
    """
    yield backend
    beside = {name: worker.get_backend(name) for name in task.beside}
    for name, companion in beside.items():
        if companion.execute is not None:
            raise Unavailable(f"{name} runs in a process of its own, never beside others")
        require_supported(parse(task.program), companion)
    if beside and backend.execute is None:
        yield replace(backend, beside=beside)


def run_program(worker: Worker, backend: Backend, task: m.RunProgram) -> m.Ran:
    program = parse(task.program)
    require_supported(program, backend)
    for way in list_ways(worker, backend, task):
        results = [worker.run_both(program, way) for _ in range(task.runs)]
        failing = [result for result in results if result.divergence is not None]
        if failing:
            break
    if results[0].excluded and not failing:
        raise Excluded(results[0].excluded)
    result = (failing or results)[0]
    if task.spares_known and result.divergence is not None:
        require_unknown(worker, program, result.divergence, backend)
    return m.Ran(
        versions=get_versions(backend),
        device=backend.device,
        divergence=result.divergence,
        steps=result.steps,
        skipped=result.skipped,
        why_skipped=result.why_skipped,
        failed=len(failing),
    )


def record_program(worker: Worker, backend: Backend, task: m.RecordProgram) -> m.Recorded:
    program = parse(task.program)
    if backend.execute is None:
        require_supported(program, backend)
    limits = task.bounds, task.until, task.wanted
    for way in list_ways(worker, backend, task):
        watch = partial(worker.note, beside=way.beside), worker.record.step
        recorded = record(program, way, *limits, *watch)
        if recorded["divergence"]:
            break
    return m.Recorded(**{**recorded, "versions": get_versions(backend)})


def shrink(worker: Worker, backend: Backend, task: m.Shrink) -> m.Shrunk:
    program = parse(task.program)
    if reason := why_excluded(program, backend):
        raise Excluded(reason)
    for way in list_ways(worker, backend, task):
        divergence = worker.run_both(program, way).divergence
        if divergence is not None:
            break
    else:
        return m.Shrunk(None)
    small = worker.shrink(program, divergence, way, task.seconds)
    event = m.Found(small.program.to_json(), small.divergence, **small.get_meta())
    return m.Shrunk(event)


def describe(worker: Runner, backend: Backend, task: m.Describe) -> m.Described:
    program = parse(task.program)
    require_supported(program, backend)
    divergence = worker.run_both(program, backend).divergence
    if divergence is None:
        raise Unavailable("the program agrees with the reference")
    require_unknown(worker, program, divergence, backend)
    program = replace(program, ops=program.ops[: divergence.step + 1], meta={})
    failing = program, divergence
    described = find_description(worker, backend, *failing, task.count, task.seed)
    facts = {"name": clean(backend.name), "versions": get_versions(backend)}
    return structs.replace(described, **facts)


def make_snippet(worker: Runner, backend: Backend, task: m.WriteSnippet) -> m.Snippet:
    program = parse(task.program)
    if not program.rules.has_arrays:
        return m.Snippet(write_requests(program))
    if is_driver(task.backend):
        return m.Snippet(write_conversation(program, backend, task.backend))
    return m.Snippet(write_script(program, backend, get_target(task.backend)))


def run_ledger(worker: Runner, backend: Backend, task: m.RunLedger) -> m.LedgerRun:
    results = []
    known, strays = {backend.name, *list_names()}, []
    kinds = {kind for declared in backend.contracts.values() for kind in declared}
    for entry in load_ledger(backend.ledger, None):
        document = entry.document
        if document.backend not in known:
            name = show(document.backend)
            strays.append(f"ledger entry {entry.id}, as there is no backend {name}")
        if document.backend != backend.name:
            continue
        if document.kind not in kinds:
            reason = f"as {backend.name} declares no kind {document.kind}"
            strays.append(f"ledger entry {entry.id}, {reason}")
            continue
        divergence = worker.run_both(entry.program, backend).divergence
        got = divergence.get_signature(entry.program) if divergence else None
        kind, signature = entry.program.kind, entry.signature
        results.append(m.LedgerResult(entry.id, kind, signature, got))
    return m.LedgerRun(results, strays)


def cluster(worker: Runner, backend: Backend, task: m.Cluster) -> m.Clustered:
    """Finds failures with the same cause by running combinations of their programs. Stops
    after CLUSTER_SECONDS."""
    deadline = time.monotonic() + CLUSTER_SECONDS

    def find(program: Program) -> str | None:
        if time.monotonic() > deadline:
            return None
        if why_too_large(program) or why_unsupported(program, backend):
            return None
        divergence = worker.run_both(program, backend).divergence
        return divergence.get_signature(program) if divergence else None

    failing = list(zip(map(parse, task.programs), task.signatures, strict=True))
    return m.Clustered(list(find_likely(failing, find, task.known).items()))


def draw_vectors(worker: Runner, backend: Backend, task: m.DrawVectors) -> m.Drawn:
    selection = Selection(task.contract, task.kind, SIZES[task.size])
    selection.select(worker.note)
    lines = [line for _, line in selection.chosen]
    return m.Drawn(lines, selection.describe())


def draw_programs(worker: Worker, backend: Backend, task: m.RandomTask) -> m.SliceDone:
    followers = [
        BackendRun(worker, worker.get_backend(name), task, shown, number)
        for number, (name, shown) in enumerate(task.group.items(), 1)
    ]
    return RandomSlice(worker, backend, task, followers).check()


def decode_task(data: bytes) -> m.Task[Any]:
    task: m.Task[Any] = convert(json.loads(data), type=Union[tuple(TASKS)])  # noqa: UP007
    return task


TASKS: Mapping[type[m.Task[Any]], Callable[[Worker, Backend, Any], m.Answer]] = {
    m.Declare: declare,
    m.RandomTask: draw_programs,
    m.ExhaustiveTask: lambda *arguments: ExhaustiveSlice(*arguments).check(),
    m.SurveyDomain: survey,
    m.RunProgram: run_program,
    m.RecordProgram: record_program,
    m.Shrink: shrink,
    m.WriteSnippet: make_snippet,
    m.Describe: describe,
    m.RunLedger: run_ledger,
    m.Cluster: cluster,
    m.ListFaults: list_faults,
    m.DrawVectors: draw_vectors,
}


# --- the process ------------------------------------------------------------------------


class Worker(Runner):
    """Runs tasks one after the other."""

    def __init__(self, record: Record, emit: Emit, limits: Limits) -> None:
        super().__init__(record, emit)
        self.limits = limits
        self.backends: dict[str, Backend] = {}

    def do(self, task: Task[Any]) -> None:
        """Runs one task. The last event is the result, or the reason for its absence."""
        try:
            self.backend_name = task.backend
            self.emit(TASKS[type(task)](self, self.get_backend(task.backend), task))
        except Excluded as error:
            self.emit(m.Excluded(str(error)))
        except (Unavailable, UsageError) as error:
            self.emit(Refused(str(error)))
        except Unloadable as error:
            self.emit(LoadFailed(str(error)))
        except (BrokenPipeError, ConnectionResetError):
            raise
        except HarnessError as error:
            self.emit(HarnessFailed(str(error), error.program.to_json()))
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})"
            self.emit(HarnessFailed(f"{format_error(error)}, in {where}"))
        self.record.clear()

    def get_backend(self, name: str) -> Backend:
        if name not in self.backends:
            self.backends[name] = load(name, self.limits)
            gc.freeze()  # the objects of imported frameworks are never garbage
        return self.backends[name]


def main() -> None:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    os.set_inheritable(channel.fileno(), False)  # drivers must not write to it
    sys.path.append(os.getcwd())

    def emit(event: m.Event) -> None:
        try:
            channel.send(encode(event))
        except OSError:
            if isinstance(event, m.Found):
                os._exit(1)  # the record still names the program that was not reported
            raise

    try:
        record = Record(Path(sys.argv[2]))
        limits = msgspec.json.decode(sys.argv[3], type=Limits)
        worker = Worker(record, emit, limits)
        while True:
            worker.do(decode_task(channel.wait()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        record.close()  # the pool has ended, so no process can receive a report
    except (DeviceLost, UsageError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)  # skips the cleanup, which may wait for the device
