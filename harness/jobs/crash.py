"""Reproduces and shrinks programs that crash or hang their process, in separate
processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

from lockstep.harness.execution.shrink import Clock, Shrinker, Shrunk
from lockstep.harness.jobs.failures import UNNAMED, Failure, make_failure, save
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.programs.program import Divergence, Flaky, Program
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool, get_running
from lockstep.harness.workers.registry import list_names

MAX_CRASHES = 2
"""The number of crashes after which the remaining programs of a pair or shard are
skipped."""

SHRINK_SECONDS = 10.0

BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1"}
"""The environment for replaying crashes: a kernel error appears in the step that
launched the kernel."""


def report_crash(
    backend: str,
    died: messages.Died,
    is_known: Callable[[str], bool],
    open_pool: Callable[[], Pool],
    seconds: float = SHRINK_SECONDS,
    clock: Clock = time.monotonic,
) -> Iterator[messages.Found]:
    """Yields a program that ends its process: first as it was found, then shrunk.

    Args:
        backend: the backend that ran the program.
        died: the end of the process, with the running program.
        is_known: returns whether a program with this signature was shrunk already.
        open_pool: opens a pool of one worker, with the variables of `BLOCKING`.
        seconds, clock: see `shrink_crash`.
    """
    blamed = died.blame()
    assert blamed is not None
    program, divergence = blamed
    if is_known(divergence.get_signature(program)):
        return
    yield messages.Found(program.to_json(), divergence)
    with open_pool() as pool:
        shrunk = shrink_crash(pool, backend, program, divergence, seconds, clock)
    yield messages.Found(
        shrunk.program.to_json(),
        shrunk.divergence,
        original=program.digest(),
        **shrunk.get_meta(),
    )


def shrink_crash(
    pool: Pool,
    backend: str,
    program: Program,
    divergence: Divergence,
    seconds: float = SHRINK_SECONDS,
    clock: Clock = time.monotonic,
) -> Shrunk:
    """Shrinks a program that crashes or hangs, in new processes.

    First, the program runs alone, and the result of this run counts. When it ran among
    other programs, an error in a kernel (see `BLOCKING`) may have appeared in a later
    step or in a later program.

    Args:
        pool: one worker, with the variables of `BLOCKING`.
        backend: runs the candidates.
        program: the program that crashed or hung.
        divergence: the crash or hang; the program runs alone, then beside the backends
            beside which it occurred.
        seconds: the time limit.
        clock: the clock that measures `seconds`.

    Returns:
        The shortest program; the given one, as flaky, if it does not crash again.
    """
    beside = divergence.beside
    event = run_again(pool, backend, program, beside)
    first = get_end(event)
    if first is None and isinstance(event, messages.Stopped):
        reason = f"it cannot run again: {event.why}"
        return Shrunk(program, divergence, unshrunk=reason)
    if first is None:
        return Shrunk(program, divergence, flaky=Flaky(0, 1))
    signature = first.get_signature(program)
    latest = shown = first

    def fails(candidate: Program) -> bool:
        nonlocal latest
        divergence = find_end(pool, backend, candidate, beside)
        if divergence is None or divergence.get_signature(candidate) != signature:
            return False
        latest = divergence
        return True

    def cut(failing: Program) -> Program:
        nonlocal shown
        shown = latest  # the divergence of the new best program
        return replace(failing, ops=failing.ops[: latest.step + 1])

    shrinker = Shrinker(cut(program), fails, seconds, cut=cut, clock=clock)
    best = shrinker.shrink()
    return Shrunk(best, shown, unshrunk=shrinker.why_unshrunk())


def find_end(
    pool: Pool, backend: str, program: Program, beside: Sequence[str] = ()
) -> Divergence | None:
    """Runs a program in a worker. Returns the crash or hang, if there is one."""
    return get_end(run_again(pool, backend, program, beside))


def run_again(
    pool: Pool, backend: str, program: Program, beside: Sequence[str]
) -> messages.Event:
    return pool.call(messages.RunProgram(backend, program.to_json(), beside=[*beside]))


def get_end(event: messages.Event) -> Divergence | None:
    blamed = event.blame() if isinstance(event, messages.Died) else None
    return None if blamed is None else blamed[1]


# --- in the processes of tests ----------------------------------------------------------


RECORD = "test-{}-{}-{}.json"
"""The name of a test's write-ahead record, with its session, its process and random
digits. The process locks the file."""


def recover(folder: Path, session: str = "") -> list[Failure]:
    """Saves the programs during which processes of tests have ended.

    Args:
        folder: the folder for failures.
        session: a session whose records stay; "" for none.
    """
    failures = []
    for path in sorted((folder / RUNNING).glob(RECORD.format("*", "*", "*"))):
        if path.match(RECORD.format(session, "*", "*")):
            continue
        with suppress(OSError), path.open("r+b") as file:
            flock(file, LOCK_EX | LOCK_NB)  # raises while the process lives
            running, step = get_running(file.read())
            reason = "the process of a test ended in this step"
            died = messages.Died(reason, "crash", running, step, "")
            if running is not None and (blamed := died.blame()) is not None:
                name = str(running.meta.get("backend"))
                target = name if ":" in name or name in list_names() else UNNAMED
                meta: dict[str, Any] = {"found": {"front": "strategy"}}
                failure = make_failure(folder, *blamed, name, {}, meta, asked=target)
                failures.append(save(failure))
            if not (failures and failures[-1].unsaved):
                path.unlink()
                path.parent.rmdir()  # raises if another record is in it
    return failures
