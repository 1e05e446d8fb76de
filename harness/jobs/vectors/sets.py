"""Makes, writes and replays sets of vectors.

`manual.md` is the template of the README of a set.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from lockstep.harness import __version__
from lockstep.harness.backends.backend import REFERENCE_NAME
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.tables import format_operations
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.crash import MAX_CRASHES
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.replay import AGREEING, Replayed, make_replayed
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.vectors.files import (
    MANIFEST,
    make_manifest,
    read_lines,
    write_pretty,
)
from lockstep.harness.programs.vectors.schema import make_schema
from lockstep.harness.programs.vectors.selection import SIZES
from lockstep.harness.workers import messages

Done = Mapping[str, messages.Drawn]
"""File → its programs, and its entry in the manifest."""


def export(
    folder: Path, size: str, settings: Settings, watch: Callable[[Done], None]
) -> Done:
    """Makes a set of vectors for the chosen kinds, or for all kinds, and writes it to a
    folder.

    Raises:
        UsageError: the folder is not empty, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is not an empty folder; choose another with -o")
    done: dict[str, messages.Drawn] = {}
    tasks: deque[messages.Task[messages.Drawn]] = deque(
        messages.DrawVectors(REFERENCE_NAME, rules.name, kind, size)
        for rules in CONTRACTS.values()
        for kind in rules.kinds
        if not settings.kinds or kind in settings.kinds
    )
    with open_pool(settings) as pool:
        for task, event in pool.run(tasks, lambda: watch(done)):
            assert isinstance(task, messages.DrawVectors)
            name = f"{task.contract}-{task.kind}.jsonl"
            if isinstance(event, messages.Drawn):
                done[name] = event
            elif isinstance(event, messages.Stopped):
                raise UsageError(f"{name}: programs could not be drawn: {event.why}")
    holds = {name: done[name].holds for name in sorted(done)}  # ended in any order
    contents = {
        "README.md": make_manual(size, holds).encode(),
        "schema.json": write_pretty(make_schema()),
        **{name: "\n".join([*done[name].lines, ""]).encode() for name in holds},
    }
    contents[MANIFEST] = write_pretty(make_manifest(size, contents, holds))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with (folder / name).open("xb") as file:  # never follows a link
                file.write(content)
    except OSError as error:
        path = error.filename or folder
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return done


# --- the README of a set ----------------------------------------------------------------


def make_manual(size: str, holds: Mapping[str, Mapping[str, Any]]) -> str:
    """Fills in the @NAMES@ of the README's template.

    Args:
        size: the name of the set's size.
        holds: file → its entry in the manifest.
    """
    sections = {
        "VERSION": [__version__],
        "SIZE": [size],
        "ABOUT": [SIZES[size].about],
        "FILES": [
            f"| `{name}` | {entry['programs']} | {entry['contract']}, {entry['kind']} |"
            for name, entry in sorted(holds.items())
        ],
        **{name: format_operations(rules) for name, rules in CONTRACTS.items()},
    }
    text = Path(__file__).with_name("manual.md").read_text(encoding="utf-8")
    for name, lines in sections.items():
        text = text.replace(f"@{name}@", "\n".join(lines))
    return text


# --- replayed ---------------------------------------------------------------------------


@dataclass
class Verified:
    """The results of a set on one backend.

    Attributes:
        not_run: reason → the number of programs that were skipped.
        wrong: the programs that diverge or could not run.
    """

    backend: str
    agreed: int = 0
    not_run: Counter[str] = field(default_factory=Counter)
    wrong: list[Replayed] = field(default_factory=list)

    def get_exit_status(self) -> int:
        statuses = {result.status for result in self.wrong}
        return 1 if "FAILED" in statuses else 0 if self.agreed and not statuses else 2


def replay_set(files: Iterable[Path], settings: Settings) -> Iterator[Verified]:
    """Yields the results on each backend of the settings. A backend that cannot run, or
    that crashes twice, is skipped."""
    with open_pool(settings, 1) as pool:
        for backend in settings.backends:
            verified, crashes = Verified(backend), 0
            programs = chain.from_iterable(map(read_lines, files))
            for location, program, _ in programs:
                event = pool.call(
                    messages.RunProgram(backend, program.to_json(), adapts=True)
                )
                if (
                    isinstance(event, messages.Ran)
                    and event.why_skipped
                    and not event.steps
                ):
                    verified.not_run[event.why_skipped] += 1
                    continue
                result = make_replayed(Path(location), program, backend, event)
                if result.status in AGREEING:
                    verified.agreed += 1
                    continue
                verified.wrong.append(result)
                if isinstance(event, messages.Stopped):
                    crashes += 1 if event.blame() else MAX_CRASHES
                if crashes >= MAX_CRASHES:
                    break
            yield verified
