"""Mistakes of layer caches that we thought up."""

from __future__ import annotations

from impl.faults.fault import Inventor

invent = Inventor("layer")
FAULTS = invent.faults
