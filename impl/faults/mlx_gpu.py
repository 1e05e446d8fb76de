"""The faults on MLX on a GPU, such as `lockstep.impl.faults.mlx_gpu:clone_shares`."""

from lockstep.impl.faults.fault import Place
from lockstep.impl.faults.mlx import change_cache
from lockstep.impl.mlx.backend import gpu
from lockstep.impl.mlx.masks import make_band

PLACE = Place(__name__, "mlx-gpu", gpu, make_band, change_cache)
list_faults = PLACE.list_faults
__getattr__, __dir__ = PLACE.get_factory, PLACE.list_names
