"""Thin adapters to released caches, which declare what those caches promise."""
