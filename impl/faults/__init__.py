"""Our own caches with one planted mistake each: what the harness must find.

Most faults are mistakes that a real cache had; those in `invented` are not known from
any. Each is planted in a correct cache by replacing a method or two, on torch and on MLX
alike.
"""

from lockstep.impl.faults import invented, layer, prefix, unified
from lockstep.impl.faults.fault import Fault, plant

FAULTS = {**layer.FAULTS, **unified.FAULTS, **prefix.FAULTS, **invented.FAULTS}

__all__ = ["FAULTS", "Fault", "plant"]
