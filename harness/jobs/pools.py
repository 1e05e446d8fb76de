"""Opens pools of workers as the user of a job asked for them."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.workers.pool import Pool


def open_pool(
    settings: Settings, jobs: int | None = None, variables: Mapping[str, str] = {}
) -> Pool:
    """Opens a pool as the user asked for it.

    Args:
        settings: what the user chose.
        jobs: workers; None for as many as the user chose.
        variables: environment variables of the workers.
    """
    limits = Limits(
        settings.step_seconds / 2,
        settings.start_seconds,
        strict=settings.strict,
        unsupported=settings.unsupported,
    )
    return Pool(jobs or settings.jobs, settings.failures / RUNNING, limits, variables)
