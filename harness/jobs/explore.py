"""The job of `lockstep explore`: every program over a small domain, on all cores."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert, structs

from lockstep.harness.contracts.operation import Op
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.failures import describe_stop, slug
from lockstep.harness.jobs.fold import declare, finishing, list_asked, require_kinds
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.related import compare_backends, number_causes
from lockstep.harness.jobs.shards import Shards
from lockstep.harness.workers import messages
from lockstep.harness.workers.messages import Natural, SliceDone, unfold
from lockstep.harness.workers.pool import Pool

# --- the journal: finished slices on disk, so that another run can go on ----------------


FORMAT = "lockstep-explored/1"
FOLDER = "explored"
MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class Line:
    """A slice that is over, as a line of a journal."""

    part: Natural
    done: SliceDone


class Journal:
    """The journal of one backend and kind.

    A file of lines: the exploration, then each finished shard. A last line without an
    end, from a killed process, is ignored.

    Args:
        folder: of failures.
        name: of the file.
        about: the exploration; a run can continue another with an equal one.
        parts: number of shards.
    """

    def __init__(
        self, folder: Path, name: str, about: Mapping[str, Any], parts: int
    ) -> None:
        self.path = folder / FOLDER / f"{slug(name)}.journal"
        self.header = {"format": FORMAT, **about}
        self.parts = parts

    def begin(self) -> None:
        """Starts a new file, or replaces an older one."""
        self.write(json.dumps(self.header) + "\n", "w")

    def add(self, part: int, done: SliceDone) -> None:
        counts = replace(done.counts, seconds=0.0)  # all runs write the same lines
        entry = Line(part, structs.replace(done, counts=counts))
        self.write(json.dumps(entry, default=unfold) + "\n", "a")

    def write(self, text: str, mode: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode) as file:
                file.write(text)
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be written ({error.strerror}); choose another"
                " folder with --failures"
            ) from None

    def load(self) -> dict[int, SliceDone]:
        """The slices that are over, by number; none if there is no such file.

        Raises:
            UsageError: the file cannot be read, or is about something else.
        """
        try:
            if self.path.stat().st_size > MAX_BYTES:
                raise UsageError(f"{self.path}: larger than {MAX_BYTES >> 20} MiB")
            lines = self.path.read_text().split("\n")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{self.path}: cannot be read ({error})") from None
        is_cut = bool(lines.pop())
        if not lines or self.parse(lines[0], 1) != self.header:
            raise UsageError(
                f"{self.path}: is about something else (other code, another version of a"
                " package, other operations); start anew without --resume"
            )
        entries = [self.read(line, number) for number, line in enumerate(lines[1:], 2)]
        if is_cut:  # what comes next must not be added to half a line
            self.write("".join(f"{line}\n" for line in lines), "w")
        return {entry.part: entry.done for entry in entries}

    def read(self, line: str, number: int) -> Line:
        document = self.parse(line, number)
        try:
            entry = convert(document, type=Line)
            if entry.part >= self.parts:
                raise ValidationError(f"there is no slice {entry.part}")
        except ValidationError as error:
            raise UsageError(
                f"{self.path}:{number}: {error}; start without --resume"
            ) from None
        return entry

    def parse(self, line: str, number: int) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{self.path}:{number}: not JSON ({error}); start without --resume"
            ) from None


# --- the job ----------------------------------------------------------------------------


@dataclass
class Survey:
    """The programs of one pair; see `harness.workers.messages.Surveyed`.

    Attributes:
        done: how many slices are over.
        resumed: programs that an earlier run has covered.
    """

    pair: Pair
    moves: Sequence[Op]
    symmetries: int
    config: Mapping[str, Any]
    parts: Sequence[tuple[list[int], int]]
    journal: Journal
    done: int = 0
    resumed: int = 0

    @property
    def is_complete(self) -> bool:
        return self.done == len(self.parts)

    @property
    def covered(self) -> int:
        """Programs of all lengths so far, including unfinished shards."""
        return self.pair.covered + sum(n.covered for n in self.pair.running.values())


@dataclass
class Exploration:
    """The state of an exploration."""

    size: str
    depth: int
    outcome: Outcome
    surveys: list[Survey] = field(default_factory=list)


def explore(
    exploration: Exploration,
    names: Sequence[str],
    resume: bool,
    watch: Callable[[Exploration], None],
) -> Exploration:
    """Runs all programs of the domain, until time is up or Ctrl-C.

    Args:
        exploration: the domain; gets the result.
        names: the registered backends, if the settings name none.
        resume: skip the shards that an earlier run has finished.
        watch: called with the exploration whenever it may have changed.

    Raises:
        UsageError: nothing can be run.
    """
    outcome = exploration.outcome
    with finishing(outcome), open_pool(outcome.settings) as pool:
        explore_in(pool, exploration, names, resume, watch)
    return exploration


def explore_in(
    pool: Pool,
    exploration: Exploration,
    names: Sequence[str] = (),
    resume: bool = False,
    watch: Callable[[Exploration], None] = lambda _: None,
) -> Exploration:
    """Does the same in a pool that is open already."""
    outcome = exploration.outcome
    declare(pool, outcome, names, lambda _: watch(exploration))
    require_kinds(outcome, list_asked(outcome, names))
    groups = [[pair] for pair in outcome.pairs]
    shards = Shards(outcome, groups, lambda _: watch(exploration))
    survey_all(pool, exploration, shards.tick)
    surveys = {survey.pair.key: survey for survey in exploration.surveys}
    waiting = [list_tasks(exploration, survey, resume) for survey in surveys.values()]
    shards.tasks.extend(filter(None, chain.from_iterable(zip_longest(*waiting))))
    shards.tick()  # time may be up once all backends are imported
    for task, event in pool.run(shards.tasks, shards.tick):
        assert isinstance(task, messages.ExhaustiveTask)
        shards.take(task, event)
        if isinstance(event, messages.SliceDone):
            finish_slice(surveys[task.backend, task.contract, task.kind], task, event)
    number_causes(pool, outcome.pairs)
    compare_backends(pool, outcome.pairs, shards.tick)
    return exploration


def survey_all(pool: Pool, exploration: Exploration, watch: Callable[[], None]) -> None:
    """Asks each backend for the programs of its domain.

    Raises:
        UsageError: there are too many.
    """
    outcome, size, depth = exploration.outcome, exploration.size, exploration.depth
    for pair in outcome.pairs:
        event = pool.call(messages.SurveyDomain(*pair.key, size, depth))
        if isinstance(event, messages.Surveyed):
            pair.avoided = event.avoided
            exploration.surveys.append(make_survey(exploration, pair, event))
        elif isinstance(event, messages.Refused):
            raise UsageError(f"{pair.name}: {event.why}")
        elif isinstance(event, messages.Stopped):
            failures = outcome.settings.failures
            pair.errors.append(describe_stop(failures, event, pair.backend))
        watch()


def make_survey(exploration: Exploration, pair: Pair, event: messages.Surveyed) -> Survey:
    size, depth = exploration.size, exploration.depth
    about = {
        "backend": pair.backend,
        "kind": pair.kind,
        "size": size,
        "depth": depth,
        "domain": event.digest,
        "code": event.code,
        "versions": event.versions,
    }
    name = f"{pair.backend}-{pair.kind}-{size}-{depth}"
    failures = exploration.outcome.settings.failures
    journal = Journal(failures, name, about, len(event.parts))
    return Survey(pair, event.moves, event.symmetries, event.config, event.parts, journal)


def list_tasks(
    exploration: Exploration, survey: Survey, resume: bool
) -> list[messages.ExhaustiveTask]:
    """Lists the shards of a pair that are not finished yet."""
    done = survey.journal.load() if resume else {}
    if not done:
        survey.journal.begin()
    for number, slice_done in done.items():
        survey.pair.add(number, slice_done)
    survey.done, survey.resumed = len(done), survey.pair.covered
    return [
        messages.ExhaustiveTask(
            *survey.pair.key,
            number,
            size=exploration.size,
            depth=exploration.depth,
            path=path,
            covered=covered,
        )
        for number, (path, covered) in enumerate(survey.parts)
        if number not in done
    ]


def finish_slice(
    survey: Survey, task: messages.ExhaustiveTask, event: messages.SliceDone
) -> None:
    survey.done += 1
    # What is wrong or not written is found anew by every run.
    is_clean = not event.counts.signatures and not event.counts.missing
    if is_clean and not survey.pair.agreed:
        survey.journal.add(task.number, event)
