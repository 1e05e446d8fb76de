"""The faults on MLX on a GPU, for example `lockstep.impl.faults.mlx_gpu:clone_shares`."""

from lockstep.impl.faults.fault import FaultedBackend
from lockstep.impl.faults.mlx import change_cache
from lockstep.impl.mlx.backend import gpu
from lockstep.impl.mlx.memory import make_band

FAULTED = FaultedBackend(__name__, "mlx-gpu", gpu, make_band, change_cache)
list_faults = FAULTED.list_faults
__getattr__, __dir__ = FAULTED.get_factory, FAULTED.list_names
