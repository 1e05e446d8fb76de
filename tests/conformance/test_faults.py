"""The planted faults: each is found, shrunk, saved, replayed as FAILED (as ERROR, if what
it answers is malformed), and as FIXED on the same backend without the mistake.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lockstep.harness.jobs.fold import declare
from lockstep.harness.jobs.outcome import Outcome
from lockstep.harness.jobs.replay import judge
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.jobs.shards import Shards, group_pairs
from lockstep.harness.programs.program import load_programs
from lockstep.harness.workers.messages import RandomTask, RunProgram
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.registry import load_faults
from lockstep.impl.faults import FAULTS, Fault
from tests.harness.building import choose_frameworks

PROGRAMS = 2000

SLICE = 10
"""Programs that are run before it is seen whether they were enough."""

EXCESS = 2
"""By how many operations a shrunk program may exceed the shortest one."""


def search(pool: Pool, settings: Settings, most: int) -> Outcome:
    """Checks a backend until a program of at most `most` operations was found."""
    outcome = Outcome(settings)
    declared = declare(pool, outcome, ())
    shards = Shards(outcome, group_pairs(outcome.pairs, declared), lambda _: None)
    shards.plan()
    for index, task in enumerate(shards.tasks):
        assert isinstance(task, RandomTask)
        shards.tasks[index] = structs.replace(task, enough=most)
    for task, event in pool.run(shards.tasks):
        shards.take(task, event)
        if any(len(failure.program.ops) <= most for failure in outcome.failures):
            shards.tasks.clear()
    return outcome


def list_cases() -> Iterator[Any]:
    """Each fault on the frameworks that its turn chooses."""
    for number, fault in enumerate(FAULTS.values()):
        for framework in choose_frameworks(fault.contract, number):
            yield pytest.param(fault, framework, id=f"{fault.id}-{framework}")


@pytest.mark.parametrize(("fault", "framework"), [*list_cases()])
def test_fault_is_found_shrunk_saved_and_replayed(
    fault: Fault, framework: str, tmp_path: Path, lockstep_pool: Pool
) -> None:
    faults = load_faults(f"lockstep.impl.faults.{framework}:list_faults")
    (planted,) = (each for each in faults if each.id == fault.id)
    backend = planted.backend
    settings = Settings((backend,), programs=PROGRAMS, failures=tmp_path, slice=SLICE)
    most = fault.shortest + EXCESS
    outcome = search(lockstep_pool, settings, most)
    assert outcome.get_exit_status() == 1
    shortest = min(outcome.failures, key=lambda failure: len(failure.program.ops))
    assert len(shortest.program.ops) <= most

    for failure in outcome.failures:
        assert failure.path.parent == tmp_path / failure.signature
        (saved,) = load_programs(failure.path)
        event = lockstep_pool.call(RunProgram(backend, saved.to_json()))
        assert judge(event, saved)[0] == "FAILED"
        event = lockstep_pool.call(RunProgram(planted.correct, saved.to_json()))
        status, message = judge(event, saved)
        assert status == "FIXED", f"on the correct cache: {message}; {saved.to_json()}"
