"""What authors of backends import: declarations here, protocols in `interface`."""

from lockstep.harness.backends.backend import Alignment, Backend, Kind, Lifetime, Planted

__all__ = ["Alignment", "Backend", "Kind", "Lifetime", "Planted"]
