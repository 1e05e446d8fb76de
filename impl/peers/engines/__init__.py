"""Imports the block managers of third-party engines, without a GPU and most of their
dependencies."""
