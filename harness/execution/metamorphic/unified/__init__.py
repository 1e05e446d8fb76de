"""The relations of unified caches.

`book`: who holds which tokens. `passes`: passes, and parts of their answers. `recompute`:
recompute. `rows`: cut, order. `independent`: alone, swap, rename. `parts`: part, image.
`detours`: return. `sight`: mask. `room`: room. `removal`: pieces.
`resume`: resume.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.harness.execution.metamorphic.relation import Relation
from lockstep.harness.execution.metamorphic.unified.detours import Return
from lockstep.harness.execution.metamorphic.unified.independent import Alone, Rename, Swap
from lockstep.harness.execution.metamorphic.unified.parts import Image, Part
from lockstep.harness.execution.metamorphic.unified.recompute import Recompute
from lockstep.harness.execution.metamorphic.unified.removal import Pieces
from lockstep.harness.execution.metamorphic.unified.resume import Resume
from lockstep.harness.execution.metamorphic.unified.room import Room
from lockstep.harness.execution.metamorphic.unified.rows import Cut, Order
from lockstep.harness.execution.metamorphic.unified.sight import Mask

RELATIONS: Sequence[Relation] = (
    Recompute(),
    Cut(),
    Order(),
    Alone(),
    Swap(),
    Rename(),
    Part(),
    Return(),
    Mask(),
    Room(),
    Pieces(),
    Resume(),
    Image(),
)
