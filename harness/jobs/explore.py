"""The job of `lockstep explore`: every program over a small domain, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

from lockstep.harness.contracts.operation import Op
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.check import Campaign
from lockstep.harness.jobs.journal import Journal
from lockstep.harness.jobs.outcome import Outcome, Pair, Settings
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool


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
        """Programs of all lengths so far, those of unfinished slices included."""
        return self.pair.covered + sum(n.covered for n in self.pair.running.values())


@dataclass
class Exploration:
    """The state of an exploration."""

    size: str
    depth: int
    outcome: Outcome
    surveys: list[Survey] = field(default_factory=list)


class Explorer(Campaign):
    """Cuts the tree of programs into slices, hands them to a pool, and keeps a journal
    of those that are over.

    Args:
        settings: what the user chose.
        names: the registered backends, if the settings name none.
        size: of the domains.
        depth: operations of the longest programs.
        resume: leave out the slices that an earlier run has done.
        watch: is called with the exploration whenever it may have changed.
    """

    def __init__(
        self,
        settings: Settings,
        names: Sequence[str],
        size: str,
        depth: int,
        resume: bool = False,
        watch: Callable[[Exploration], None] = lambda _: None,
    ) -> None:
        super().__init__(settings, names, lambda _: watch(self.exploration))
        self.exploration = Exploration(size, depth, self.outcome)
        self.generator, self.resume = "every", resume

    def explore(self) -> Exploration:
        """Until all is done, time is up, or Ctrl-C: what was found is kept then."""
        self.run()
        return self.exploration

    def declare(self, pool: Pool) -> None:
        """Asks each backend for its declaration, and for the programs of its domain."""
        super().declare(pool)
        size, depth = self.exploration.size, self.exploration.depth
        for pair in self.outcome.pairs:
            event = pool.call(messages.SurveyDomain(*pair.key, size, depth))
            if isinstance(event, messages.Surveyed):
                pair.avoided = event.avoided
                self.exploration.surveys.append(self.make_survey(pair, event))
            elif isinstance(event, messages.Refused):
                raise UsageError(f"{pair.name}: {event.why}")
            elif isinstance(event, messages.Stopped):
                pair.errors.append(event.describe())
            self.tick()

    def make_survey(self, pair: Pair, found: messages.Surveyed) -> Survey:
        size, depth = self.exploration.size, self.exploration.depth
        about = {
            "backend": pair.backend,
            "kind": pair.kind,
            "size": size,
            "depth": depth,
            "domain": found.digest,
            "code": found.code,
            "versions": found.versions,
        }
        name = f"{pair.backend}-{pair.kind}-{size}-{depth}"
        journal = Journal(self.settings.failures, name, about, len(found.parts))
        domain = found.moves, found.symmetries, found.config, found.parts
        return Survey(pair, *domain, journal)

    def plan(self) -> None:
        """The slices of all pairs in turn, but for those that were done before."""
        waiting = [self.list_tasks(survey) for survey in self.exploration.surveys]
        self.tasks.extend(filter(None, chain.from_iterable(zip_longest(*waiting))))

    def list_tasks(self, survey: Survey) -> list[messages.ExhaustiveTask]:
        done = survey.journal.load() if self.resume else {}
        if not done:
            survey.journal.begin()
        for number, slice_done in done.items():
            survey.pair.add(number, slice_done)
        survey.done, survey.resumed = len(done), survey.pair.covered
        return [
            messages.ExhaustiveTask(
                *survey.pair.key,
                number,
                size=self.exploration.size,
                depth=self.exploration.depth,
                path=path,
                covered=covered,
            )
            for number, (path, covered) in enumerate(survey.parts)
            if number not in done
        ]

    def handle_slice(self, task: messages.SliceTask, event: messages.Event) -> None:
        super().handle_slice(task, event)
        if isinstance(event, messages.SliceDone):
            pair = self.find_pair(task)
            survey = next(each for each in self.exploration.surveys if each.pair is pair)
            survey.done += 1
            # What is wrong or not written is found anew by every run.
            if not event.counts.signatures and not event.counts.missing:
                survey.journal.add(task.number, event)
