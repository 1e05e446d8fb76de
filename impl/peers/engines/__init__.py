"""Imports the block managers of released engines, without a GPU and without most of their
dependencies."""
