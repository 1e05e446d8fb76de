"""The faults on torch, such as `lockstep.impl.faults.torch:clone_shares`."""

from lockstep.impl.faults.fault import Place
from lockstep.impl.torch.backend import cpu
from lockstep.impl.torch.masks import make_band

PLACE = Place(__name__, "torch-cpu", cpu, make_band)
list_faults = PLACE.list_faults
__getattr__, __dir__ = PLACE.get_factory, PLACE.list_names
