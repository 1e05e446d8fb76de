"""A slice of all programs over a domain: those with one beginning."""

from __future__ import annotations

import hashlib
import json
import math

from lockstep.harness.backends.backend import Backend
from lockstep.harness.core.document import drop_defaults
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.exhaustive import ROOT, Walk, fit
from lockstep.harness.workers.messages import ExhaustiveTask, SurveyDomain, Surveyed
from lockstep.harness.workers.registry import get_target, hash_code
from lockstep.harness.workers.runner import Runner
from lockstep.harness.workers.slice import Slice, make_drawer

MAX_PROGRAMS = 10**10
"""Programs of an exploration, illegal ones included: that takes weeks."""

BEHIND, LONGEST = 3, 4
"""Operations after the common beginning of a slice; and in it, at most."""


def make_walk(drawer: Drawer, size: str, backend: Backend) -> Walk:
    """The tree over the domain of this size, as far as the backend declares it."""
    rules = drawer.rules
    domain = rules.get_domain(drawer.kind, size)
    world = fit(domain, rules, drawer.kind, drawer.declared, backend.dtypes)
    return Walk(rules, world, drawer.is_known)


class ExhaustiveSlice(Slice[ExhaustiveTask]):
    """The programs with one beginning."""

    def generate(self) -> None:
        task = self.task
        walk = make_walk(make_drawer(self.backend, task), task.size, self.backend)
        start = walk.follow(tuple(task.path), task.covered)
        for branch in walk.find_longest(start, task.depth):
            self.count(walk.make_program(branch))
            self.counts.covered += branch.covered
            self.counts.avoided = walk.avoided
        self.counts.avoided = walk.avoided


def survey(worker: Runner, backend: Backend, task: SurveyDomain) -> Surveyed:
    """The domain, and where its slices begin.

    Raises:
        UsageError: there are too many programs.
    """
    drawer = make_drawer(backend, task)
    walk = make_walk(drawer, task.size, backend)
    world, depth, moves = walk.world, task.depth, len(walk.world.moves)
    if moves**depth > MAX_PROGRAMS:
        raise UsageError(
            f"--depth {depth}: {moves} operations make up to {moves**depth:.0e} programs;"
            f" choose at most {int(math.log(MAX_PROGRAMS, moves))}, or a smaller --size"
        )
    length = min(LONGEST, max(1, depth - BEHIND))
    branches = list(walk.find_longest(ROOT, length))
    known = [[entry.id, dict(entry.when)] for entry in drawer.avoid]
    content = [dict(world.config), list(world.moves), known]
    text = json.dumps(content, sort_keys=True)
    return Surveyed(
        moves=list(world.moves),
        symmetries=len(world.symmetries),
        config=drop_defaults(world.config, walk.rules.config),
        parts=[(list(branch.path), branch.covered) for branch in branches],
        avoided=walk.avoided,
        digest=hashlib.sha256(text.encode()).hexdigest()[:12],
        code=hash_code(get_target(task.backend)),
        versions={str(name): str(own) for name, own in backend.versions.items()},
    )
