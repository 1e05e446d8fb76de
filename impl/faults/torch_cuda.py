"""The faults on torch with CUDA, as `lockstep.impl.faults.torch_cuda:clone_shares`."""

from lockstep.impl.faults.fault import FaultedBackend
from lockstep.impl.torch.backend import cuda
from lockstep.impl.torch.memory import make_band

FAULTED = FaultedBackend(__name__, "torch-cuda", cuda, make_band)
list_faults = FAULTED.list_faults
__getattr__, __dir__ = FAULTED.get_factory, FAULTED.list_names
