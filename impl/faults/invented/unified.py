"""Mistakes of caches of many sequences that we thought up. They stand in the modules
beside this one: `unified_rows` (what a row sees), `unified_room` (what leaves, what is
refused), `unified_changes` (between passes), `unified_content` (content as a whole, and
layer by layer), `unified_states` (recurrent caches), `unified_several` (encoder and
wrapper), `unified_usage` (what must be refused).

Every nature occurs. "wrong dtype" is one of integers, or of how often a key is rounded:
to cast an array is a matter of the framework.
"""

from __future__ import annotations

from lockstep.impl.faults.fault import Inventor

invent = Inventor("unified")
FAULTS = invent.faults
