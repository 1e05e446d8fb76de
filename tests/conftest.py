"""For all tests."""

import os

from lockstep.harness.workers.pool import THREADS

# One thread for each process, before a framework is imported: the processes of
# `pytest -n auto` have all cores busy as it is.
for name, value in THREADS.items():
    os.environ.setdefault(name, value)
