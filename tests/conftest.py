"""For all tests."""

import os
import sys
from typing import Any

import pytest

from lockstep.harness.workers.guard import spare_garbage
from lockstep.harness.workers.pool import THREADS

# One thread for each process, before a framework is imported: the processes of
# `pytest -n auto` have all cores busy as it is.
for name, value in THREADS.items():
    os.environ.setdefault(name, value)

spare_garbage()  # as workers do: here some run in this process

# Otherwise each of hundreds of processes would compile the project: a third of the time
# that a worker needs to come up.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(optionalhook=True)  # there may be no pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`: one more than there are cores, since many tests wait for a process
    to end or to be found hanging."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Lets a process that has nothing left take tests of another one: some take half a
    minute, and several of them in a row would be waited for at the end."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.option.dist == "load" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the tests of conformance to the end: they take about the same time each.
    pytest-xdist hands out long runs of tests, and a run of slow ones must not be last."""
    items.sort(key=lambda item: "conformance" in item.path.parts)
