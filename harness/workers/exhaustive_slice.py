"""One part of all programs over a domain, as a worker runs it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.fields import drop_defaults
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.exhaustive import ROOT, Walk
from lockstep.harness.programs.generate.world import fit
from lockstep.harness.workers.random_slice import Shard
from lockstep.harness.workers.registry import get_target, hash_code
from lockstep.harness.workers.runner import Runner

MOST = 10**10
"""Programs, before those that are not legal are left out: weeks."""

BEHIND, LONGEST = 3, 4
"""Operations behind the beginning that a part has in common; and in it, at most."""


def make_walk(drawer: Drawer, size: str, backend: Backend) -> Walk:
    """The tree over the domain of this size, as far as the backend declares it."""
    rules = drawer.rules
    domain = rules.get_domain(drawer.kind, size)
    world = fit(domain, rules, drawer.kind, drawer.declared, backend.dtypes)
    return Walk(rules, world, drawer.is_known)


class Part(Shard):
    """The programs with one beginning.

    covered: programs of all lengths that were run, each on its own or as the beginning of
    others. avoided: see `Walk`.
    """

    def __init__(self, worker: Runner, backend: Backend, task: Mapping[str, Any]) -> None:
        super().__init__(worker, backend, task)
        self.covered = self.avoided = 0

    def generate(self, drawer: Drawer) -> None:
        walk = make_walk(drawer, self.task["size"], self.backend)
        start = walk.follow(tuple(self.task["path"]), self.task["covered"])
        for branch in walk.find_longest(start, self.task["depth"]):
            self.count(walk.make_program(branch))
            self.covered += branch.covered
            self.avoided = walk.avoided
        self.avoided = walk.avoided

    def get_counts(self) -> dict[str, Any]:
        more = {"covered": self.covered, "avoided": self.avoided}
        return super().get_counts() | more

    def survey(self) -> dict[str, Any]:
        """What there is to run: the domain, and where its parts begin."""
        drawer = self.make_drawer()
        walk = make_walk(drawer, self.task["size"], self.backend)
        world, depth = walk.world, self.task["depth"]
        moves = len(world.moves)
        if moves**depth > MOST:
            raise UsageError(
                f"--depth {depth}: {moves} operations make up to {moves**depth:.0e}"
                f" programs; choose at most {int(math.log(MOST, moves))}, or a smaller"
                " --size"
            )
        length = min(LONGEST, max(1, depth - BEHIND))
        parts = [
            [list(branch.path), branch.covered]
            for branch in walk.find_longest(ROOT, length)
        ]
        known = [[entry.id, dict(entry.when)] for entry in drawer.avoid]
        content = [dict(world.config), list(world.moves), known]
        text = json.dumps(content, sort_keys=True)
        return {
            "moves": list(world.moves),
            "symmetries": len(world.symmetries),
            "config": drop_defaults(world.config, walk.rules.config),
            "parts": parts,
            "avoided": walk.avoided,
            "digest": hashlib.sha256(text.encode()).hexdigest()[:12],
            "code": hash_code(get_target(self.task["backend"])),
            "versions": dict(self.backend.versions),
        }
