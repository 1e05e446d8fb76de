"""Opens pools of workers with the settings of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.harness.backends.backend import is_server
from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.workers.pool import Pool


def open_pool(
    settings: Settings, jobs: int | None = None, variables: Mapping[str, str] = {}
) -> Pool:
    """Opens a pool of workers.

    Args:
        settings: the settings of the job.
        jobs: the number of workers; None for the number in the settings.
        variables: environment variables of the workers.
    """
    limits = Limits(
        settings.step_seconds / 2,
        settings.start_seconds,
        strict=settings.strict,
        unsupported=settings.unsupported,
        probe=str(settings.probe) if settings.probe else None,
        allow_host=settings.allow_host,
        rate=settings.rate,
    )
    jobs = count_workers(settings.backends, jobs or settings.jobs)
    return Pool(jobs, settings.failures / RUNNING, limits, variables)


def count_workers(backends: Sequence[str], jobs: int) -> int:
    """Returns the number of workers. A server runs one program at a time: the flush of
    one program must not meet the requests of another program."""
    return 1 if any(map(is_server, backends)) else jobs
