"""Our own caches with one planted mistake each: the harness must find them all.

Most faults are mistakes that real caches had, or are constructed after them. The others
are those that took the harness more than 100 programs to find, out of 173 constructed
ones; `ci/mutants.py` makes the easier ones mechanically. Each is planted in a correct
cache by replacing a method or two, on torch and on MLX alike.
"""

from importlib import import_module

from lockstep.impl.faults.fault import FAULTS, Fault

LAYER = "buffers", "windows", "snapshots", "chunks", "quantized"
UNIFIED = "passes", "changes", "defragment"
for name in (*LAYER, *UNIFIED, "prefix", "slots"):
    import_module(f"{__name__}.{name}")  # each registers its faults

__all__ = ["FAULTS", "Fault"]
