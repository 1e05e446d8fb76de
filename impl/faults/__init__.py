"""Our own caches with one planted mistake each; the harness must find them all.

Most faults are mistakes of real caches, or are modelled on them. The others are
constructed: those that the first programs do not find, and some that are the only ones of
their sort. `ci/mutants.py` makes the easier ones mechanically. A fault replaces one or
two methods of a correct cache, in the same way on torch and on MLX.
"""

from importlib import import_module

from lockstep.impl.faults.fault import FAULTS, Fault

LAYER = "buffers", "windows", "snapshots", "chunks", "quantized", "memory", "pooled"
UNIFIED = "passes", "changes", "defragment", "states", "axes"
for name in (*LAYER, *UNIFIED, "prefix", "slots", "batches", "paged", "transfers"):
    import_module(f"{__name__}.{name}")  # each registers its faults

__all__ = ["FAULTS", "Fault"]
