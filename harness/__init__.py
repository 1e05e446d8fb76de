"""The harness: runs a backend beside the reference and says where they part."""

__version__ = "0.1.0"
