"""Our own caches with one planted mistake each: the harness must find them all.

Most faults are mistakes that real caches had, or are constructed after them. The others
are those that took the harness more than 100 programs to find, out of 173 constructed
ones; `ci/mutants.py` makes the easier ones mechanically. Each is planted in a correct
cache by replacing a method or two, on torch and on MLX alike.
"""

from lockstep.impl.faults import (
    buffers,
    changes,
    chunks,
    defragment,
    passes,
    prefix,
    quantized,
    slots,
    snapshots,
    windows,
)
from lockstep.impl.faults.fault import FAULTS, Fault

__all__ = [
    "FAULTS",
    "Fault",
    "buffers",
    "changes",
    "chunks",
    "defragment",
    "passes",
    "prefix",
    "quantized",
    "slots",
    "snapshots",
    "windows",
]
