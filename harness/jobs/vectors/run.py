"""Runs tasks that need the reference alone."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lockstep.harness.programs.files import RUNNING
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool


def run_tasks(
    tasks: Iterable[messages.Task[Any]],
    jobs: int,
    handle: Callable[[Any, messages.Event], None],
    watch: Callable[[], None],
) -> None:
    """Runs tasks that need the reference alone.

    The results do not depend on which worker runs a task.
    """
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-") as records,
        Pool(jobs, Path(records) / RUNNING) as pool,
    ):
        for task, event in pool.run(deque(tasks), watch):
            handle(task, event)
