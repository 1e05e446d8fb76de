"""Runs the job of `lockstep explore`: every program over a small domain."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert, structs

from lockstep.harness.core.document import decode, parse_json, read_bytes
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.failures import describe_stop, name_file
from lockstep.harness.jobs.fold import declare, finishing, list_asked, require_kinds
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.related import compare_backends, number_causes
from lockstep.harness.jobs.shards import Shards
from lockstep.harness.workers import messages
from lockstep.harness.workers.messages import Natural, SliceDone, unfold
from lockstep.harness.workers.pool import Pool

# --- the journal: finished slices on disk, from which another run continues -------------


FORMAT = "lockstep-explored/1"
FOLDER = "explored"
MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class Line:
    """A line of a journal: a finished slice."""

    part: Natural
    done: SliceDone


class Journal:
    """The journal of one backend and kind.

    The first line describes the exploration; each further line is a finished slice. If a
    killed process left half a line at the end, this line is ignored.

    Args:
        folder: the folder of failures.
        name: the name of the file.
        about: the description of the exploration; a run can continue an earlier run with
            an equal description.
        parts: the number of slices.
    """

    def __init__(
        self, folder: Path, name: str, about: Mapping[str, Any], parts: int
    ) -> None:
        self.path = folder / FOLDER / f"{name}.journal"
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
        """Returns the finished slices by number; an empty result if the file is missing.

        Raises:
            UsageError: the file cannot be read, or describes another exploration.
        """
        if not self.path.exists():
            return {}
        lines = decode(read_bytes(self.path, MAX_BYTES), str(self.path)).split("\n")
        is_cut = bool(lines.pop())
        if not lines or parse_json(lines[0], f"{self.path}:1") != self.header:
            raise UsageError(
                f"{self.path}: belongs to a run with other code, other versions of"
                " packages or other operations; start anew without --resume"
            )
        entries = [self.read(line, number) for number, line in enumerate(lines[1:], 2)]
        if is_cut:  # the next line must not continue half a line
            self.write("".join(f"{line}\n" for line in lines), "w")
        return {entry.part: entry.done for entry in entries}

    def read(self, line: str, number: int) -> Line:
        where = f"{self.path}:{number}"
        try:
            entry = convert(parse_json(line, where), Line)
            if entry.part >= self.parts:
                raise ValidationError(f"there is no slice {entry.part}")
        except UsageError as error:
            raise UsageError(f"{error}; start without --resume") from None
        except ValidationError as error:
            raise UsageError(f"{where}: {error}; start without --resume") from None
        return entry


# --- the job ----------------------------------------------------------------------------


@dataclass
class Survey:
    """The programs of one pair.

    Attributes:
        done: the number of finished slices.
        resumed: the number of programs that an earlier run has covered.
    """

    pair: Pair
    domain: messages.Surveyed
    journal: Journal
    done: int = 0
    resumed: int = 0

    @property
    def is_complete(self) -> bool:
        return self.done == len(self.domain.parts)

    @property
    def covered(self) -> int:
        """The number of programs of all lengths so far, also in unfinished slices."""
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
    """Runs all programs of the domain, until the time is over or Ctrl-C.

    Args:
        exploration: the domain; gets the result.
        names: the registered backends, if the settings name none.
        resume: skip the slices that an earlier run has finished.
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
    """Explores in an open pool; see `explore`."""
    outcome = exploration.outcome
    declare(pool, outcome, names, lambda _: watch(exploration))
    require_kinds(outcome, list_asked(outcome, names))
    groups = [[pair] for pair in outcome.pairs]
    shards = Shards(outcome, groups, lambda _: watch(exploration))
    for pair in outcome.pairs:
        survey_pair(pool, exploration, pair)
        shards.tick()
    surveys = {survey.pair.key: survey for survey in exploration.surveys}
    waiting = [list_tasks(exploration, survey, resume) for survey in surveys.values()]
    shards.tasks.extend(filter(None, chain.from_iterable(zip_longest(*waiting))))
    shards.tick()  # time may be up once all backends are imported
    for task, event in pool.run(shards.tasks, shards.tick):
        assert isinstance(task, messages.ExhaustiveTask)
        shards.take(task, event)
        if isinstance(event, SliceDone):
            survey = surveys[task.backend, task.contract, task.kind]
            survey.done += 1
            # Divergences and unwritten functions must be found anew by every run.
            is_clean = not event.counts.signatures and not event.counts.missing
            if is_clean and not survey.pair.agreed:
                survey.journal.add(task.number, event)
    for survey in exploration.surveys:
        if survey.is_complete:  # only then is it known how many programs can run
            survey.pair.wanted = survey.pair.programs
    number_causes(pool, outcome.pairs)
    compare_backends(pool, outcome.pairs, shards.tick)
    return exploration


def survey_pair(pool: Pool, exploration: Exploration, pair: Pair) -> None:
    """Requests the slices of the domain from a backend, and adds a survey of the pair.

    Raises:
        UsageError: the domain has too many programs.
    """
    size, depth = exploration.size, exploration.depth
    failures = exploration.outcome.settings.failures
    event = pool.call(messages.SurveyDomain(*pair.key, size, depth))
    if isinstance(event, messages.Refused):
        raise UsageError(f"{pair.name}: {event.why}")
    if isinstance(event, messages.Stopped):
        pair.errors.append(describe_stop(failures, event, pair.backend))
        return
    about = {
        "backend": pair.backend,
        "kind": pair.kind,
        "size": size,
        "depth": depth,
        "domain": event.digest,
        "code": event.code,
        "versions": event.versions,
    }
    name = f"{name_file(pair.backend)}-{pair.kind}-{size}-{depth}"
    journal = Journal(failures, name, about, len(event.parts))
    pair.avoided = event.avoided
    exploration.surveys.append(Survey(pair, event, journal))


def list_tasks(
    exploration: Exploration, survey: Survey, resume: bool
) -> list[messages.ExhaustiveTask]:
    """Lists the unfinished slices of a pair."""
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
        for number, (path, covered) in enumerate(survey.domain.parts)
        if number not in done
    ]
