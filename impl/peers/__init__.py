"""Adapters to released caches, and their declarations; see README.md."""
