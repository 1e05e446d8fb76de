"""The job of `lockstep check`, which first runs again what earlier runs have saved."""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from stat import S_ISREG
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.shrink import get_rank
from lockstep.harness.jobs.check import Check
from lockstep.harness.jobs.outcome import (
    Failure,
    Pair,
    Rerun,
    Settings,
    make_failure,
    save,
    slug,
)
from lockstep.harness.jobs.replay import AGREEING, get_divergence, judge
from lockstep.harness.programs.files import iterate_saved
from lockstep.harness.programs.program import (
    Divergence,
    Flaky,
    Program,
    find_states,
    read_flaky,
)
from lockstep.harness.workers import messages
from lockstep.harness.workers.counts import Shown
from lockstep.harness.workers.messages import Ran, RunProgram, Stopped

MOST_SAVED = 100
"""Programs that run again of one backend and kind."""

SHOWN_BEFORE = 64
"""Programs that an earlier run is taken to have met with the signature of a failure."""

DIGEST = "[0-9a-f]" * 12
"""The beginning of a file's name, as a pattern of `glob`."""


@dataclass(frozen=True)
class Saved:
    """A failure of an earlier run, and the task that runs it again."""

    pair: Pair
    path: Path
    program: Program
    task: RunProgram

    @property
    def flaky(self) -> Flaky | None:
        return read_flaky(self.program.meta)

    @property
    def signature(self) -> str:
        """The signature that it had, as its folder says."""
        return self.path.parent.name

    @property
    def is_short(self) -> bool:
        """Whether the run that found it has shortened it, or could not."""
        is_shrunk = isinstance(self.program.meta.get("states"), list)
        return is_shrunk or self.flaky is not None

    def get_shown(self, divergence: Divergence) -> Shown:
        """What slices are told, so that they do not shorten it again: in which states
        its step fails, of those that the run which found it has met each time."""
        said = self.program.meta.get("states") or []
        states = find_states(self.program, divergence)
        # None of them, if another version has named others.
        states = {state for state in states if state in said} or states
        return Shown(SHOWN_BEFORE, {self.program.digest(): sorted(states)})

    def make_failure(
        self, divergence: Divergence, event: Ran | Stopped, settings: Settings
    ) -> Failure:
        """The failure of this run: with the file that there is, or a new one if the
        program diverges in another way now.

        Args:
            divergence: the first one of the program now.
            event: the result that has it.
            settings: of this run.
        """
        flaky, options = self.flaky, settings.get_options()
        if flaky is not None and isinstance(event, Ran):
            flaky = Flaky(event.failed, flaky.runs)
        signature = divergence.get_signature(self.program)
        own = divergence, self.pair.backend
        if signature == self.signature:
            place = signature, self.path
            return Failure(self.program, *own, *place, flaky=flaky, options=options)
        program = replace(self.program, ops=self.program.ops[: divergence.step + 1])
        found = {"found": {"saved": str(self.path)}}
        more = {} if flaky is None else {"flaky": str(flaky)}
        about = self.pair.environment, {**found, **more}, options
        return save(make_failure(settings.failures, program, *own, *about))


def find_saved(folder: Path, pair: Pair, rerun: Rerun) -> list[Saved]:
    """The failures of a backend and a kind in a folder, the simplest programs first.

    Args:
        folder: of all failures; it need not exist.
        pair: the backend and the kind.
        rerun: gets the files that are broken or too many.
    """
    files, found = list_files(folder, pair), []
    rerun.left_out += max(0, len(files) - MOST_SAVED)
    for path, program in iterate_saved(files[:MOST_SAVED]):
        if isinstance(program, UsageError):
            rerun.broken.append(str(program))
            continue
        own = program.contract, program.kind, program.meta.get("backend")
        if own == (pair.contract, pair.kind, pair.backend):
            flaky = read_flaky(program.meta)
            runs = 1 if flaky is None else flaky.runs
            task = RunProgram(pair.backend, program.to_json(), runs, spares_known=True)
            found.append(Saved(pair, path, program, task))
    return sorted(found, key=lambda one: (get_rank(one.program), one.path))


def list_files(folder: Path, pair: Pair) -> list[Path]:
    """The files whose names are those of failures of a pair, the smallest first. Files of
    others are not opened: there may be thousands."""
    begin = f"{pair.contract}-{pair.kind}-"
    found = folder.glob(f"{begin}*/{DIGEST}-{slug(pair.backend)}.json")
    sizes = {path: get_size(path) for path in found if is_of_kind(path.parent.name, pair)}
    files = [path for path, size in sizes.items() if size is not None]
    return sorted(files, key=lambda path: (sizes[path], path))


def is_of_kind(signature: str, pair: Pair) -> bool:
    """Whether a signature is one of a pair's kind, and not of a kind with a longer name:
    "swa-memory" begins like "swa"."""
    kinds = CONTRACTS[pair.contract].kinds
    own = [kind for kind in kinds if signature.startswith(f"{pair.contract}-{kind}-")]
    return max(own, key=len) == pair.kind


def get_size(path: Path) -> int | None:
    """The bytes of a file; None for what is not one, or has gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if S_ISREG(status.st_mode) else None


class Recheck(Check):
    """A check that runs the failures of earlier runs before its own programs.

    A failure that still diverges is one of this run, too. Its file stays, whatever comes
    of it.

    Attributes:
        saved: these failures, of all pairs.
        earlier: the files of earlier runs, those that are too many included.
    """

    saved: Sequence[Saved] = ()
    earlier: Container[Path] = ()

    def plan(self) -> None:
        """Known divergences first, then failures of earlier runs, then the slices."""
        self.plan_ledgers()
        outcome, folder = self.outcome, self.settings.failures
        found = [find_saved(folder, pair, outcome.saved) for pair in outcome.pairs]
        files = [list_files(folder, pair) for pair in outcome.pairs]
        self.earlier = {*chain.from_iterable(files)}
        self.saved = list(chain.from_iterable(found))
        self.tasks.extend(saved.task for saved in self.saved)
        self.plan_slices()

    def handle_event(self, task: messages.Task[Any], event: messages.Event) -> None:
        if isinstance(task, RunProgram):
            self.handle_saved(task, event)
        else:
            super().handle_event(task, event)

    def handle_saved(self, task: RunProgram, event: messages.Event) -> None:
        """Takes in the result of a failure of an earlier run.

        One that cannot run any more, as the backend does not declare it, is passed over.
        """
        assert isinstance(event, Ran | Stopped)
        saved = next(one for one in self.saved if one.task is task)
        status, _ = judge(event, saved.program, saved.flaky)
        rerun, path = self.outcome.saved, str(saved.path)
        rerun.ran += status != "ERROR"
        if status == "FAILED":
            self.keep_saved(saved, event)
        elif status in AGREEING:
            insort(rerun.agreeing, path)
        elif status == "FLAKY":
            insort(rerun.absent, path)
        elif not isinstance(event, Ran | messages.Refused):
            saved.pair.errors.append(self.describe(event, task.backend))
            self.leave_out(saved.pair)

    def keep_saved(self, saved: Saved, event: Ran | Stopped) -> None:
        """Takes in a failure of an earlier run that still diverges."""
        divergence, pair = get_divergence(event), saved.pair
        assert divergence is not None
        failure = saved.make_failure(divergence, event, self.settings)
        self.choose_files(pair, failure, None)
        if saved.is_short:
            self.tell(pair, {failure.signature: saved.get_shown(divergence)})
        if divergence.is_fatal:  # each costs a process, and maybe the time of a hang
            self.leave_out_saved(pair, saved.signature)

    def leave_out(self, pair: Pair) -> None:
        self.leave_out_saved(pair)
        super().leave_out(pair)

    def leave_out_saved(self, pair: Pair, signature: str | None = None) -> None:
        """Takes failures of a pair from the tasks that wait. signature: None for all."""
        chosen = {
            id(one.task)
            for one in self.saved
            if one.pair is pair and signature in (None, one.signature)
        }
        rest = [task for task in self.tasks if id(task) not in chosen]
        self.outcome.saved.left_out += len(self.tasks) - len(rest)
        self.tasks.clear()
        self.tasks.extend(rest)

    def remove_file(self, path: Path) -> None:
        if path not in self.earlier:
            super().remove_file(path)
