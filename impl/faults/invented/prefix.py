"""Mistakes of prefix caches that we thought up."""

from __future__ import annotations

from impl.faults.fault import Inventor

invent = Inventor("prefix")
FAULTS = invent.faults
