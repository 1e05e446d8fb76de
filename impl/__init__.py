"""Our caches on torch and MLX, adapters to third-party caches, and their backends."""
