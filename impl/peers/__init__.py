"""Adapters to third-party caches, and their declarations; see README.md."""
