"""The job of `lockstep explore`: every program over a small domain, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.harness.contracts.types import Op
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.check import Campaign, make_task, say_unavailable
from lockstep.harness.jobs.journal import Journal
from lockstep.harness.jobs.outcome import Outcome, Pair, Settings
from lockstep.harness.workers.pool import Event, Pool, Task


@dataclass
class Survey:
    """What there is to run for one pair, and how far that is.

    moves: operations of the domain. config: its fields that are not at their default.
    parts: [path, covered] of each; see `harness.workers.exhaustive_slice`. done: how many
    are over. resumed: programs that an earlier run has covered.
    """

    pair: Pair
    moves: Sequence[Op]
    symmetries: int
    config: Mapping[str, Any]
    parts: Sequence[Sequence[Any]]
    journal: Journal
    done: int = 0
    resumed: int = 0

    @property
    def is_complete(self) -> bool:
        return self.done == len(self.parts)

    @property
    def covered(self) -> int:
        """Programs of all lengths so far, those of unfinished parts included."""
        running = self.pair.running.values()
        covered: int = sum(shard["covered"] for shard in running)
        return self.pair.covered + covered


@dataclass
class Exploration:
    """What an explorer knows so far."""

    size: str
    depth: int
    outcome: Outcome
    surveys: list[Survey] = field(default_factory=list)


class Explorer(Campaign):
    """Splits the tree of programs into parts, hands them to a pool, and keeps a journal
    of those that are over.

    size: of the domains. depth: operations of the longest programs. resume: leave out
    the parts that an earlier run has done. watch: is called now and then.
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
        self.resume = resume

    def explore(self) -> Exploration:
        """Until all is done, time is up, or Ctrl-C: what was found is kept then."""
        self.run()
        return self.exploration

    def declare(self, pool: Pool) -> None:
        """Asks each backend what it has, and what there is to run."""
        super().declare(pool)
        for pair in self.outcome.pairs:
            event = pool.call({**self.make_task(pair, 0), "do": "survey"})
            if event["event"] == "done":
                self.exploration.surveys.append(self.make_survey(pair, event))
            elif event["event"] == "unavailable":
                raise UsageError(f"{pair.name}: {event['why']}")
            else:
                pair.errors.append(say_unavailable(event))
            self.watch(self.outcome)

    def make_survey(self, pair: Pair, event: Event) -> Survey:
        size, depth, parts = self.exploration.size, self.exploration.depth, event["parts"]
        about = {
            "backend": pair.backend,
            "kind": pair.kind,
            "size": size,
            "depth": depth,
            "domain": event["digest"],
            "code": event["code"],
            "versions": event["versions"],
        }
        name = f"{pair.backend}-{pair.kind}-{size}-{depth}"
        journal = Journal(self.settings.failures, name, about, len(parts))
        pair.avoided = event["avoided"]
        own = event["moves"], event["symmetries"], event["config"], parts, journal
        return Survey(pair, *own)

    def make_task(self, pair: Pair, part: int) -> Task:
        own = pair.backend, pair.contract, pair.kind
        task = make_task(self.settings, *own, part, 0)
        size, depth = self.exploration.size, self.exploration.depth
        return {**task, "do": "explore", "front": "every", "size": size, "depth": depth}

    def plan(self) -> None:
        """The parts of all pairs in turn, but for those that were done before."""
        waiting: list[list[Task]] = []
        for survey in self.exploration.surveys:
            done = survey.journal.load() if self.resume else {}
            if not done:
                survey.journal.begin()
            for part, counts in done.items():
                survey.pair.add(counts)
                survey.pair.digests[part] = counts["digest"]
            survey.done, survey.resumed = len(done), survey.pair.covered
            tasks: list[Task] = [
                {**self.make_task(survey.pair, part), "path": path, "covered": covered}
                for part, (path, covered) in enumerate(survey.parts)
                if part not in done
            ]
            waiting.append(tasks)
        for place in range(max(map(len, waiting), default=0)):
            self.tasks.extend(tasks[place] for tasks in waiting if place < len(tasks))

    def handle_shard(self, task: Task, event: Event) -> None:
        super().handle_shard(task, event)
        if event["event"] == "done":
            survey = self.find_survey(task)
            survey.done += 1
            # What is wrong or not written is found anew by every run.
            if not event["signatures"] and not event["missing"]:
                survey.journal.add(task["shard"], event)

    def find_survey(self, task: Task) -> Survey:
        pair = self.find_pair(task)
        return next(each for each in self.exploration.surveys if each.pair is pair)
