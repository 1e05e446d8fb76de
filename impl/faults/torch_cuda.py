"""The faults on torch on CUDA, such as `lockstep.impl.faults.torch_cuda:clone_shares`."""

from lockstep.impl.faults.fault import Place
from lockstep.impl.torch.backend import cuda
from lockstep.impl.torch.masks import make_band

PLACE = Place(__name__, "torch-cuda", cuda, make_band)
list_faults = PLACE.list_faults
__getattr__, __dir__ = PLACE.get_factory, PLACE.list_names
