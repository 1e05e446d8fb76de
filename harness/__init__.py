"""The harness: runs a backend side by side with the reference and says where they part."""

__version__ = "0.1.0"
