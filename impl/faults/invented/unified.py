"""Mistakes of caches of many sequences that we thought up."""

from __future__ import annotations

from impl.faults.fault import Inventor

invent = Inventor("unified")
FAULTS = invent.faults
