"""Our caches on torch and MLX, adapters to released caches, and the backends of both."""
