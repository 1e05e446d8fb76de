"""Mistakes that no real cache is known to have made: for every operation of every
contract at least two, of different natures."""

from impl.faults.invented import layer, prefix, unified

FAULTS = {**layer.FAULTS, **unified.FAULTS, **prefix.FAULTS}
