"""The relations of layer caches.

`book`: what caches and snapshots hold. `updates`: recompute, cut. `independent`: alone,
swap, rename. `detours`: return. `sight`: mask, edge.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.harness.execution.metamorphic.layer.detours import Return
from lockstep.harness.execution.metamorphic.layer.independent import Alone, Rename, Swap
from lockstep.harness.execution.metamorphic.layer.sight import Edge, Mask
from lockstep.harness.execution.metamorphic.layer.updates import Cut, Recompute
from lockstep.harness.execution.metamorphic.relation import Relation

RELATIONS: Sequence[Relation] = (
    Recompute(),
    Cut(),
    Alone(),
    Swap(),
    Rename(),
    Return(),
    Mask(),
    Edge(),
)
