"""Finds the failures of earlier runs, which a check runs before its new programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISREG
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.shrink import get_rank
from lockstep.harness.jobs.failures import Failure, make_failure, slug
from lockstep.harness.jobs.outcome import Pair, Rerun
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.files import iterate_saved
from lockstep.harness.programs.program import (
    Divergence,
    Flaky,
    Program,
    find_states,
    read_flaky,
)
from lockstep.harness.workers.messages import Ran, RunProgram, Shown, Stopped

MAX_SAVED = 100
"""The maximum number of saved programs per backend and kind that run again."""

SHOWN_BEFORE = 64
"""The assumed number of earlier programs with the signature of a saved failure."""

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
        """The signature of the earlier failure, from the name of its folder."""
        return self.path.parent.name

    @property
    def is_short(self) -> bool:
        """Whether the program was shrunk, or could not be shrunk because it is flaky."""
        is_shrunk = isinstance(self.program.meta.get("states"), list)
        return is_shrunk or self.flaky is not None

    def get_shown(self, divergence: Divergence) -> Shown:
        """Returns the states in which a saved failure occurs, so that shards do not
        shrink it again."""
        saved = self.program.meta.get("states") or []
        states = find_states(self.program, divergence)
        # None of them, if another version has named others.
        states = {state for state in states if state in saved} or states
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
        signature, backend = divergence.get_signature(self.program), self.pair.backend
        if signature == self.signature:
            file = signature, self.path
            return Failure(
                *(self.program, divergence, backend, *file), flaky=flaky, options=options
            )
        program = replace(self.program, ops=self.program.ops[: divergence.step + 1])
        meta: dict[str, Any] = {"found": {"saved": str(self.path)}}
        meta |= {} if flaky is None else {"flaky": str(flaky)}
        about = program, divergence, backend
        return make_failure(
            settings.failures, *about, self.pair.environment, meta, options
        )


def find_saved(folder: Path, pair: Pair, rerun: Rerun) -> list[Saved]:
    """The failures of a backend and a kind in a folder, the simplest programs first.

    Args:
        folder: of all failures; it need not exist.
        pair: the backend and the kind.
        rerun: gets the files that are broken or too many.
    """
    files, saved = list_files(folder, pair), []
    rerun.left_out += max(0, len(files) - MAX_SAVED)
    for path, program in iterate_saved(files[:MAX_SAVED]):
        if isinstance(program, UsageError):
            rerun.broken.append(str(program))
            continue
        key = program.meta.get("backend"), program.contract, program.kind
        if key == pair.key:
            flaky = read_flaky(program.meta)
            runs = 1 if flaky is None else flaky.runs
            task = RunProgram(pair.backend, program.to_json(), runs, spares_known=True)
            saved.append(Saved(pair, path, program, task))
    return sorted(saved, key=lambda failure: (get_rank(failure.program), failure.path))


def list_files(folder: Path, pair: Pair) -> list[Path]:
    """The files whose names are those of failures of a pair, the smallest first. Files of
    others are not opened: there may be thousands."""
    begin = f"{pair.contract}-{pair.kind}-"
    paths = folder.glob(f"{begin}*/{DIGEST}-{slug(pair.backend)}.json")
    sizes = {path: get_size(path) for path in paths if is_of_kind(path.parent.name, pair)}
    files = [path for path, size in sizes.items() if size is not None]
    return sorted(files, key=lambda path: (sizes[path], path))


def is_of_kind(signature: str, pair: Pair) -> bool:
    """Returns whether a signature belongs to a pair's kind, and not to a kind with a
    longer name: "swa-memory" starts with "swa"."""
    kinds = CONTRACTS[pair.contract].kinds
    matching = [
        kind for kind in kinds if signature.startswith(f"{pair.contract}-{kind}-")
    ]
    return max(matching, key=len) == pair.kind


def get_size(path: Path) -> int | None:
    """Returns the bytes of a file; None if it is no regular file or does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if S_ISREG(status.st_mode) else None
