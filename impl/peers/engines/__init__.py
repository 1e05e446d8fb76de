"""Block managers of released engines, imported without a GPU and without most of their
dependencies."""
