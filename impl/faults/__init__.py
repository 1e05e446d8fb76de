"""Our own caches with one planted mistake each; the harness must find them all.

Most faults are mistakes of real caches, or are constructed after them. The others are
those of 173 constructed ones that the harness needed more than 100 programs to find;
`ci/mutants.py` makes the easier ones mechanically. Each is planted in a correct cache by
replacing one or two methods, on torch and on MLX alike.
"""

from importlib import import_module

from lockstep.impl.faults.fault import FAULTS, Fault

LAYER = "buffers", "windows", "snapshots", "chunks", "quantized", "memory"
UNIFIED = "passes", "changes", "defragment", "states"
for name in (*LAYER, *UNIFIED, "prefix", "slots", "batches", "paged", "transfers"):
    import_module(f"{__name__}.{name}")  # each registers its faults

__all__ = ["FAULTS", "Fault"]
