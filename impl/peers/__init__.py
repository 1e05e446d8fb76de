"""Thin adapters to released caches, with their declarations."""
