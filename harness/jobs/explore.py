"""Runs the job of `lockstep explore`: every program over a small domain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.failures import describe_stop
from lockstep.harness.jobs.fold import declare, finishing, list_asked, require_kinds
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.related import compare_backends, number_causes
from lockstep.harness.jobs.shards import Shards
from lockstep.harness.workers import messages
from lockstep.harness.workers.messages import SliceDone
from lockstep.harness.workers.pool import Pool


@dataclass
class Survey:
    """The programs of one pair.

    Attributes:
        done: the number of finished slices.
    """

    pair: Pair
    domain: messages.Surveyed
    done: int = 0

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
    watch: Callable[[Exploration], None],
) -> Exploration:
    """Runs all programs of the domain, until the time is over or Ctrl-C.

    Args:
        exploration: the domain; gets the result.
        names: the registered backends, if the settings name none.
        watch: called with the exploration whenever it may have changed.

    Raises:
        UsageError: nothing can be run.
    """
    outcome = exploration.outcome
    with finishing(outcome), open_pool(outcome.settings) as pool:
        explore_in(pool, exploration, names, watch)
    return exploration


def explore_in(
    pool: Pool,
    exploration: Exploration,
    names: Sequence[str] = (),
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
    waiting = [list_tasks(exploration, survey) for survey in surveys.values()]
    shards.tasks.extend(filter(None, chain.from_iterable(zip_longest(*waiting))))
    shards.tick()  # time may be up once all backends are imported
    for task, event in pool.run(shards.tasks, shards.tick):
        assert isinstance(task, messages.ExhaustiveTask)
        shards.take(task, event)
        if isinstance(event, SliceDone):
            surveys[task.backend, task.contract, task.kind].done += 1
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
    pair.avoided = event.avoided
    exploration.surveys.append(Survey(pair, event))


def list_tasks(exploration: Exploration, survey: Survey) -> list[messages.ExhaustiveTask]:
    """Lists the slices of a pair."""
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
    ]
