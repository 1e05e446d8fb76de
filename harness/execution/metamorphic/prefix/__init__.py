"""The relations of prefix caches.

`book`: what was told. `conversations`: how a program of requests is put together. Of
sessions and tries, `requests`: recompute, cut, rename; `reused`: best; `kept`: keep,
store. Of slots, `slots`: pool, rename, cut; `chosen`: best, oldest.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.harness.execution.metamorphic.prefix import chosen, slots
from lockstep.harness.execution.metamorphic.prefix.kept import Keep, Store
from lockstep.harness.execution.metamorphic.prefix.requests import Cut, Recompute, Rename
from lockstep.harness.execution.metamorphic.prefix.reused import Best
from lockstep.harness.execution.metamorphic.relation import Relation

RELATIONS: Sequence[Relation] = (
    Recompute(),
    Cut(),
    Rename(),
    Best(),
    Store(),
    Keep(),
    slots.Pool(),
    slots.Rename(),
    slots.Cut(),
    chosen.Best(),
    chosen.Oldest(),
)
