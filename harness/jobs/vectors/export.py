"""The jobs of `lockstep vectors`: make a set on all cores; audit it, and run it."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.harness import __version__
from lockstep.harness.backends.backend import REFERENCE_NAME
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.payload import BITS, Role, compute_vectors
from lockstep.harness.jobs.crash import MAX_CRASHES
from lockstep.harness.jobs.fold import declare, finishing, require_kinds
from lockstep.harness.jobs.outcome import Outcome
from lockstep.harness.jobs.pools import (
    open_pool,
)
from lockstep.harness.jobs.related import compare_backends, number_causes
from lockstep.harness.jobs.shards import Shards
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.programs.vectors import Problem
from lockstep.harness.programs.vectors.manifest import (
    MANIFEST,
    check_files,
    make_manifest,
    read_manifest,
    write_lines,
    write_pretty,
)
from lockstep.harness.programs.vectors.schema import make_schema
from lockstep.harness.programs.vectors.selection import ADDED, SIZES
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool

# --- a set is made ----------------------------------------------------------------------


MANUAL, SCHEMA = "README.md", "schema.json"


@dataclass
class Export:
    """A set that is being made.

    Attributes:
        size: the name of its size.
        kinds: (contract, kind) of its files.
        drawn: file → the number of programs drawn so far.
        done: finished file → its entry in the manifest.
        contents: finished file → its content.
        started: the time of the start, in seconds of `time.monotonic`.
    """

    size: str
    kinds: Sequence[tuple[str, str]]
    drawn: dict[str, int] = field(default_factory=dict)
    done: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def bytes(self) -> int:
        return sum(map(len, self.contents.values()))


Watch = Callable[[Export], None]


def list_kinds(chosen: Sequence[str]) -> list[tuple[str, str]]:
    """Lists (contract, kind) of the chosen kinds, or of all if none is chosen."""
    return [
        (rules.name, kind)
        for rules in CONTRACTS.values()
        for kind in rules.kinds
        if not chosen or kind in chosen
    ]


def export(
    folder: Path, size: str, kinds: Sequence[str], jobs: int, watch: Watch
) -> Export:
    """Makes a set and writes it to a folder.

    Raises:
        UsageError: the folder holds anything but a former set.
    """
    replaced = list_replaced(folder)
    work = Export(size, list_kinds(kinds))
    tasks = [messages.DrawVectors(REFERENCE_NAME, *own, size) for own in work.kinds]
    run_tasks(tasks, jobs, partial(keep_drawn, work), lambda: watch(work))
    # Workers end in any order.
    names = [get_name(*own) for own in work.kinds]
    work.contents = {
        MANUAL: make_manual(size, work.done).encode(),
        SCHEMA: write_pretty(make_schema()),
        **{name: work.contents[name] for name in names},
    }
    manifest = write_pretty(make_manifest(size, work.contents, work.done))
    write_set(folder, replaced, work.contents, manifest)
    return work


def run_tasks(
    tasks: Iterable[messages.Task[Any]],
    jobs: int,
    handle: Callable[[Any, messages.Event], None],
    watch: Callable[[], None],
) -> None:
    """Runs tasks that need the reference alone.

    The results do not depend on which worker runs a task.
    """
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-") as records,
        Pool(jobs, Path(records) / RUNNING) as pool,
    ):
        for task, event in pool.run(deque(tasks), watch):
            handle(task, event)


def get_name(contract: str, kind: str) -> str:
    return f"{contract}-{kind}.jsonl"


def keep_drawn(work: Export, task: messages.DrawVectors, event: messages.Event) -> None:
    name = get_name(task.contract, task.kind)
    if isinstance(event, messages.Progress):
        work.drawn[name] = event.counts.programs
    elif isinstance(event, messages.Drawn):
        work.drawn[name] = event.holds["drawn"]
        work.done[name] = event.holds
        work.contents[name] = write_lines(event.lines)
    elif isinstance(event, messages.Stopped):
        raise UsageError(f"{name}: programs could not be drawn: {event.why}")


# --- the README of a set ----------------------------------------------------------------


TEMPLATE = Path(__file__).with_name("manual.md")

# (tag, layer, head, role, dim, dtype) of the vectors that the README lists.
EXAMPLES: tuple[tuple[int, int, int, Role, int, str], ...] = (
    (0, 0, 0, "key", 4, "float32"),
    (1, 0, 0, "key", 4, "float32"),
    (1, 0, 0, "value", 4, "float32"),
    (1, 0, 1, "key", 4, "float32"),
    (1, 1, 0, "key", 4, "float32"),
    (77, 2, 1, "query", 8, "float32"),
    (4095, 0, 0, "key", 6, "float16"),
    (5, 0, 0, "value", 4, "bfloat16"),
)

LEVELS = {
    "core": "update; forward; begin, feed, close",
    **{
        name: "also " + "; ".join(map(", ".join, added.values()))
        for name, added in ADDED.items()
    },
    "full": "all operations",
    "usage": "calls that must be refused",
    "settings": "settings that are not at their default: chunk, keep, mask_padding,"
    " mask_form, layers, cache_padding, mask_dtype, permuted_values, interval",
}


def make_manual(size: str, holds: Mapping[str, Mapping[str, Any]]) -> str:
    """Fills in the @NAMES@ of the README's template.

    Args:
        size: the name of the set's size.
        holds: file → its entry in the manifest.
    """
    parts = {
        "VERSION": __version__,
        "SIZE": size,
        "ABOUT": SIZES[size].about,
        "FILES": "\n".join(list_files(holds)),
        "LEVELS": "\n".join(f"* `{name}`: {about}" for name, about in LEVELS.items()),
        "PAYLOAD": "\n".join(list_examples()),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def list_files(holds: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, own in sorted(holds.items()):
        yield f"| `{name}` | {own['programs']} | {own['contract']}, kind {own['kind']} |"


def list_examples() -> Iterator[str]:
    """Iterates over the rows of a table of vectors, in exact integers."""
    yield "| tag | layer | head | role | dim | dtype | x(0) … x(dim − 1), times 2 ** b |"
    yield "|" + "---|" * 7
    for tag, layer, head, role, dim, dtype in EXAMPLES:
        vectors = compute_vectors(np.array([tag]), layer, head, role, dim, dtype)
        numbers = [int(number * 2 ** BITS[dtype]) for number in vectors[0].tolist()]
        words = ", ".join(map(str, numbers))
        yield f"| {tag} | {layer} | {head} | {role} | {dim} | {dtype} | {words} |"


# --- the folder of a set ----------------------------------------------------------------


DRAFT = f"{MANIFEST}.draft"


def list_replaced(folder: Path) -> list[Path]:
    """Lists the files of a former set in the folder, which a new set replaces.

    Raises:
        UsageError: the folder holds anything else.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: is not a folder; choose another with -o")
    if not folder.exists():
        return []
    try:
        present = sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror}") from None
    if not present:
        return []
    try:
        former = {MANIFEST, DRAFT, *read_manifest(folder)}
    except UsageError as error:
        raise UsageError(
            f"{folder}: is not empty, and holds no set of vectors that could be replaced"
            f" ({error}); choose another folder with -o"
        ) from None
    for path in present:
        if path.name not in former or (path.is_dir() and not path.is_symlink()):
            raise UsageError(
                f"{path}: does not belong to the set of vectors in this folder; move it,"
                " or choose another folder with -o"
            )
    return present


def write_set(
    folder: Path, replaced: list[Path], contents: Mapping[str, bytes], manifest: bytes
) -> None:
    """Writes the files of a set, the manifest first.

    If this breaks off, the manifest names the files that are there, so that the next set
    can replace them.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in replaced:
            if path.name != MANIFEST:
                path.unlink(missing_ok=True)
        draft = folder / DRAFT
        create(draft, manifest)
        draft.replace(folder / MANIFEST)
        for name, content in contents.items():
            create(folder / name, content)
    except OSError as error:
        place = error.filename or folder
        raise UsageError(f"{place}: cannot be written: {error.strerror}") from None


def create(path: Path, content: bytes) -> None:
    """Creates a file; never follows a link, never replaces a file that exists by now."""
    with path.open("xb") as file:
        file.write(content)


# --- a set is checked that others may have made -----------------------------------------


SLICE = 25
"""Number of programs that a worker gets at a time."""

GENERATOR = "vectors"


@dataclass
class Audit:
    """The content of a set.

    Attributes:
        files: the number of files with programs.
        done: the number of files that are audited.
        programs: (contract, kind) → its programs as JSON.
        problems: of all files.
        started: the time of the start, in seconds of `time.monotonic`.
    """

    folder: Path
    files: int = 0
    done: int = 0
    programs: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def count(self) -> int:
        return sum(map(len, self.programs.values()))

    def get_exit_status(self) -> int:
        """Returns 0 without problems, 1 if the reference expects other answers, 2 for an
        invalid set."""
        if not self.problems:
            return 0
        return 1 if all(problem.differs for problem in self.problems) else 2


def audit_set(folder: Path, jobs: int, watch: Callable[[Audit], None]) -> Audit:
    """Checks that all files of a set are unchanged, and audits their programs.

    Raises:
        UsageError: it is not a set.
    """
    files = read_manifest(folder)
    check_files(folder, files)
    tasks = [
        messages.AuditFile(
            REFERENCE_NAME, str((folder / name).absolute()), dict(file.holds)
        )
        for name, file in sorted(files.items())
        if file.holds is not None
    ]
    work = Audit(folder, len(tasks))
    run_tasks(tasks, jobs, partial(keep_audited, work), lambda: watch(work))
    return work


def keep_audited(work: Audit, task: messages.AuditFile, event: messages.Event) -> None:
    work.done += 1
    if isinstance(event, messages.Stopped):
        # This includes a program that takes the reference too long.
        work.problems.append(Problem(f"{task.path}: {event.why}"))
    elif isinstance(event, messages.Audited):
        own = task.holds["contract"], task.holds["kind"]
        work.programs.setdefault(own, []).extend(event.programs)
        work.problems += event.problems


def verify(
    outcome: Outcome,
    programs: Mapping[tuple[str, str], Sequence[Any]],
    watch: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:
    """Runs the programs of a set on each chosen backend, as far as it declares them.

    Args:
        outcome: with the settings; gets the result.
        programs: (contract, kind) → its programs as JSON.
        watch: is called with the outcome whenever it may have changed.
    """
    with finishing(outcome), open_pool(outcome.settings) as pool:
        declare(pool, outcome, (), watch)
        require_kinds(outcome, outcome.settings.backends)
        pairs = outcome.pairs
        pairs[:] = [pair for pair in pairs if pair.key[1:] in programs]
        shards = Shards(outcome, [[pair] for pair in pairs], watch)
        for pair in pairs:
            pair.wanted = len(programs[pair.key[1:]])
        most = max((pair.wanted for pair in pairs), default=0)
        numbers = count()
        for begin in range(0, most, SLICE):
            for pair in pairs:
                chosen = list(programs[pair.key[1:]][begin : begin + SLICE])
                if chosen:
                    task = messages.GivenTask(*pair.key, next(numbers), programs=chosen)
                    shards.tasks.append(task)
        shards.tick()
        for given, event in pool.run(shards.tasks, shards.tick):
            assert isinstance(given, messages.GivenTask)
            take(shards, given, event, numbers)
        number_causes(pool, pairs)
        compare_backends(pool, pairs, shards.tick)
    return outcome


def take(
    shards: Shards,
    task: messages.GivenTask,
    event: messages.Event,
    numbers: Iterator[int],
) -> None:
    """Adds an event; after a crash, another process gets the programs that follow the one
    that was running."""
    (pair,) = shards.list_pairs(task)
    counts = pair.running.get(task.number, messages.Counts())
    over = counts.programs + counts.avoided + sum(counts.undeclared.values())
    shards.take(task, event)
    remaining = task.programs[over + 1 :]
    has_ended = isinstance(event, messages.Stopped) and event.blame()
    if has_ended and remaining and pair.crashes < MAX_CRASHES:
        number = next(numbers)
        shards.tasks.append(messages.GivenTask(*pair.key, number, programs=remaining))
