"""Our own caches with one planted mistake each: what the harness must find.

Each fault is a mistake that a real cache had. It is planted in a correct cache by
replacing a method or two, on torch and on MLX alike.
"""

from impl.faults import layer, prefix, unified
from impl.faults.fault import Fault, plant

FAULTS = {**layer.FAULTS, **unified.FAULTS, **prefix.FAULTS}

__all__ = ["FAULTS", "Fault", "plant"]
