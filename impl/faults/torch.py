"""The faults on torch, for example `lockstep.impl.faults.torch:clone_shares`."""

from lockstep.impl.faults.fault import FaultedBackend
from lockstep.impl.torch.backend import cpu
from lockstep.impl.torch.memory import make_band

FAULTED = FaultedBackend(__name__, "torch-cpu", cpu, make_band)
list_faults = FAULTED.list_faults
__getattr__, __dir__ = FAULTED.get_factory, FAULTED.list_names
