"""Caches that run beside the reference, and their backends."""
