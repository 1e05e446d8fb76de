"""Backends that are whole inference engines, in this process."""
