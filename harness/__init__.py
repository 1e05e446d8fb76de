"""The harness runs a backend and the reference on the same programs, and reports where
their answers differ."""

__version__ = "0.1.0"
