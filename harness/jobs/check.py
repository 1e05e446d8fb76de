"""The main job: every chosen backend and kind against the reference, on all cores."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.backends.environment import get_surroundings
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.shrink import Shrinker
from lockstep.harness.jobs.failures import save
from lockstep.harness.jobs.outcome import Outcome, Pair, Settings
from lockstep.harness.programs.complexity import get_rank
from lockstep.harness.programs.divergence import Divergence
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.workers.pool import Event, Pool, Task

CRASHES = 2
"""After so many, the remaining shards of a pair are left out."""

CRASH_SHRINK_SECONDS = 10.0


Watch = Callable[[Outcome], None]


class Campaign:
    """Plans the shards, hands them to a pool, and gathers what comes back.

    names: the registered backends to choose from if the settings name none.
    watch: is called with the outcome whenever it may have changed.
    """

    def __init__(
        self, settings: Settings, names: Sequence[str], watch: Watch = lambda _: None
    ) -> None:
        self.settings, self.watch = settings, watch
        self.names = list(dict.fromkeys(settings.backends or names))
        self.outcome = Outcome(settings)
        self.tasks: deque[Task] = deque()

    def run(self) -> Outcome:
        """Until all is done, time is up, or Ctrl-C: what was found is kept then."""
        settings = self.settings
        folder = settings.failures / RUNNING
        try:
            limits = settings.step_seconds, settings.strict
            with Pool(settings.jobs, folder, *limits) as pool:
                self.run_in(pool)
        except KeyboardInterrupt:
            self.outcome.is_cut = self.outcome.is_interrupted = True
            for pair in self.outcome.pairs:
                pair.stop()
        self.outcome.seconds = time.monotonic() - self.outcome.started
        return self.outcome

    def run_in(self, pool: Pool) -> Outcome:
        """The same in a pool that is there already."""
        self.declare(pool)
        self.plan()
        for task, event in pool.run(self.tasks):
            self.handle(task, event)
        for pair in self.outcome.pairs:
            self.relate(pool, pair)
        return self.outcome

    def declare(self, pool: Pool) -> None:
        """Asks each backend what it has."""
        declared: dict[str, Event] = {}
        tasks: deque[Task] = deque(
            {"do": "declare", "backend": name} for name in self.names
        )
        for task, event in pool.run(tasks):
            if event["event"] == "done":
                declared[task["backend"]] = event
            elif event["event"] == "unavailable":
                self.outcome.unavailable[task["backend"]] = event["why"]
            elif event["event"] != "tick":
                self.outcome.dead[task["backend"]] = say_unavailable(event)
            self.watch(self.outcome)
        for name in self.names:
            if name in declared:
                self.outcome.versions.update(declared[name]["versions"])
                self.outcome.pairs += list_pairs(name, declared[name], self.settings)

    def plan(self) -> None:
        """Known divergences first, then the shards of all pairs in turn."""
        settings, pairs = self.settings, self.outcome.pairs
        if settings.part[0] == 0:
            for backend in dict.fromkeys(pair.backend for pair in pairs):
                self.tasks.append({"do": "ledger", "backend": backend})
        for shard, programs in settings.list_shards():
            for pair in pairs:
                own = pair.backend, pair.contract, pair.kind
                count = -(-programs // pair.share)
                pair.wanted += count
                self.tasks.append(make_task(settings, *own, shard, count))

    def handle(self, task: Task, event: Event) -> None:
        outcome, seconds = self.outcome, self.settings.seconds
        if seconds is not None and time.monotonic() - outcome.started > seconds:
            outcome.is_cut = outcome.is_cut or bool(self.tasks)
            self.tasks.clear()
        if task.get("do") == "ledger":
            self.handle_ledger(task, event)
        elif task:
            self.handle_shard(task, event)
        self.watch(outcome)

    def handle_ledger(self, task: Task, event: Event) -> None:
        for pair in self.outcome.pairs:
            if pair.backend != task["backend"]:
                continue
            if event["event"] != "done":
                pair.errors.append(f"its ledger could not be run: {event['why']}")
                continue
            for entry in event["entries"]:
                if entry["kind"] == pair.kind:
                    self.compare_entry(pair, entry)

    def compare_entry(self, pair: Pair, entry: Mapping[str, Any]) -> None:
        """A known divergence must still be there, and be the same."""
        if entry["got"] == entry["signature"]:
            pair.known += 1
        else:
            got = entry["got"] or "its program agrees now"
            pair.outdated.append(f"{entry['id']}: expected {entry['signature']}; {got}")

    def handle_shard(self, task: Task, event: Event) -> None:
        pair = self.find_pair(task)
        kind = event["event"]
        if kind == "progress":
            pair.running[task["shard"]] = event
            pair.reached.update(map(tuple, event.get("reached", ())))
            return
        if kind == "found":
            self.keep(pair, task, event)
            return
        counts = pair.running.pop(task["shard"], None)
        if kind == "done":
            pair.add(event)
            pair.digests[task["shard"]] = event["digest"]
        elif counts is not None:
            pair.add({**counts, "coverage": []})
        if kind in ("crash", "hang") and event["running"]:
            self.keep_crash(pair, task, event)
        elif kind != "done":
            pair.errors.append(say_unavailable(event))
        if pair.crashes >= CRASHES or pair.errors or pair.is_unwritten:
            self.leave_out(pair)

    def relate(self, pool: Pool, pair: Pair) -> None:
        """Notes which failures of a pair are likely one bug."""
        related = [one for one in pair.failures if not one.divergence.is_error]
        if len(related) < 2:
            return
        task = {
            "do": "relate",
            "backend": pair.backend,
            "programs": [failure.program.to_json() for failure in related],
            "signatures": [failure.signature for failure in related],
        }
        for place, first in pool.call(task).get("likely", ()):
            later = pair.failures.index(related[place])
            likely = related[first].signature
            pair.failures[later] = replace(related[place], likely=likely)

    def find_pair(self, task: Task) -> Pair:
        return next(
            pair
            for pair in self.outcome.pairs
            if (pair.backend, pair.contract, pair.kind)
            == (task["backend"], task["contract"], task["kind"])
        )

    def leave_out(self, pair: Pair) -> None:
        """No more shards of a pair whose backend does not answer."""
        own = {"backend": pair.backend, "kind": pair.kind}
        rest = [t for t in self.tasks if any(t.get(k) != v for k, v in own.items())]
        self.tasks.clear()
        self.tasks.extend(rest)

    def keep(self, pair: Pair, task: Task, event: Event) -> None:
        """Saves what a shard found, unless another shard found it before."""
        try:
            program = parse_program(event["program"], "a failing program")
        except UsageError as error:
            pair.errors.append(str(error))
            return
        divergence = Divergence.from_json(event["divergence"])
        self.save(pair, task, program, divergence, event["found"])
        for waiting in self.tasks:
            if waiting.get("backend") == pair.backend and "known" in waiting:
                waiting["known"].append(divergence.get_signature(program))

    def save(
        self,
        pair: Pair,
        task: Task,
        program: Program,
        divergence: Divergence,
        after: Mapping[str, int],
    ) -> None:
        """Saves a failure, in the place of one with the same signature that ranks worse.

        after: how many programs of the shard had run when it was found.
        """
        signature = divergence.get_signature(program)
        before = [failure for failure in pair.failures if failure.signature == signature]
        rank = get_rank(program)
        if any(get_rank(failure.program) <= rank for failure in before):
            return
        found = {name: task[name] for name in ("front", "seed", "shard")} | dict(after)
        place = self.settings.failures, program, divergence, pair.backend
        try:
            saved = save(*place, pair.surroundings, {"found": found})
        except OSError as error:
            words = f"step {divergence.step}: {divergence.message}"
            pair.errors.append(f"{signature} could not be saved ({error}): {words}")
            return
        for failure in before:
            pair.failures.remove(failure)
            failure.path.unlink(missing_ok=True)
        pair.failures.append(saved)

    def keep_crash(self, pair: Pair, task: Task, event: Event) -> None:
        """Saves the program at which the worker ended or stood still, and shortens it in
        processes of its own."""
        pair.crashes += 1
        program, divergence = get_crash(event)
        program = replace(program, ops=program.ops[: divergence.step + 1])
        signature = divergence.get_signature(program)
        if any(failure.signature == signature for failure in pair.failures):
            return
        self.save(pair, task, program, divergence, {})
        settings = self.settings
        seconds = min(5.0, settings.step_seconds)
        folder = settings.failures / RUNNING
        with Pool(1, folder, seconds, settings.strict) as pool:

            def fails(candidate: Program) -> bool:
                task = {"do": "run", "backend": pair.backend}
                event = pool.call({**task, "program": candidate.to_json()})
                return bool(event["event"] == divergence.what)

            if fails(program):
                program = Shrinker(program, fails, CRASH_SHRINK_SECONDS).shrink()
        last = max(0, len(program.ops) - 1)
        operation = program.ops[last]["op"] if program.ops else "open"
        divergence = replace(divergence, step=last, operation=operation)
        self.save(pair, task, program, divergence, {})


def make_task(
    settings: Settings, backend: str, contract: str, kind: str, shard: int, programs: int
) -> Task:
    """One shard of programs for a worker."""
    return {
        "do": "check",
        "backend": backend,
        "contract": contract,
        "kind": kind,
        "front": settings.front,
        "seed": settings.seed,
        "shard": shard,
        "programs": programs,
        "known": [],
    }


def get_crash(event: Event) -> tuple[Program, Divergence]:
    """The program that was running when a worker ended or stood still."""
    step = event["running"]["meta"]["step"]
    program = parse_program(event["running"], "record")
    message = event["why"]
    if event["last_words"]:
        message += f"; its last words: {event['last_words']}"
    operation = program.ops[step]["op"] if program.ops else "open"
    return program, Divergence(event["event"], step, operation, message)


def list_pairs(name: str, declared: Event, settings: Settings) -> Iterator[Pair]:
    for contract, kinds in declared["contracts"].items():
        for kind, promised in kinds.items():
            if not settings.kinds or kind in settings.kinds:
                config = {field: tuple(v) for field, v in promised["config"].items()}
                operations = frozenset(promised["operations"])
                own = Kind(operations, config, refuses=promised["refuses"])
                place = get_surroundings(declared)
                yield Pair(name, contract, kind, own, place, declared["share"])


def say_unavailable(event: Event) -> str:
    words = event.get("last_words")
    return str(event["why"]) + (f"; its last words: {words}" if words else "")
