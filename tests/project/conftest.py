"""What a benchmark measures must be installed for its tests."""

from importlib.util import find_spec

PEERS = ("torch", "mlx", "mlx_lm", "transformers")

collect_ignore = [] if all(map(find_spec, PEERS)) else ["test_caches_bench.py"]
