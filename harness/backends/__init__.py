"""The declarations that authors of backends import; protocols are in `interface`."""

from lockstep.harness.backends.backend import Alignment, Backend, Kind, Lifetime, Planted

__all__ = ["Alignment", "Backend", "Kind", "Lifetime", "Planted"]
