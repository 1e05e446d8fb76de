"""Imports the scheduler of LMDeploy 0.18.0's PyTorch engine."""

from __future__ import annotations

import logging
from functools import cache
from types import SimpleNamespace

from lockstep.impl.peers.engines.engine import Engine, StandIn
from lockstep.impl.peers.engines.lean import open_engine, take

LMDEPLOY = Engine(
    package="lmdeploy",
    version="0.18.0",
    pins="ci/engines/lmdeploy.txt",
    needs=("torch", "numpy", "pydantic"),
    bare=(
        "lmdeploy",
        "lmdeploy.pytorch",
        "lmdeploy.pytorch.engine",
        "lmdeploy.pytorch.strategies",
        "lmdeploy.vl",
    ),
    stand_ins=(
        StandIn("lmdeploy.tokenizer", "text; a request here is tokens"),
        StandIn("lmdeploy.pytorch.engine.model_agent", "annotations only"),
        StandIn("lmdeploy.pytorch.model_inputs", "annotations only"),
        StandIn(
            "lmdeploy.pytorch.utils",
            "serializes configs for other processes",
            {"maybe_register_config_serialize_by_value": lambda *arguments: None},
        ),
        StandIn(
            "lmdeploy.utils",
            "sets up logging of the whole process",
            {"get_logger": logging.getLogger},
        ),
    ),
)

NAMES = {
    "lmdeploy.pytorch.config": ("CacheConfig", "SchedulerConfig"),
    "lmdeploy.pytorch.messages": ("MessageStatus", "SequenceMeta", "UpdateTokenMode"),
    "lmdeploy.pytorch.paging.prefill_scheduler": ("_TentativePrefixMatch",),
    "lmdeploy.pytorch.paging.scheduler": ("Scheduler",),
    "lmdeploy.pytorch.strategies.ar.sequence": ("ARSequenceStrategy",),
}
"""Module → the names that `load_lmdeploy` takes from it."""


@cache
def load_lmdeploy() -> SimpleNamespace:
    """Returns the classes in `NAMES`.

    Raises:
        Unavailable: LMDeploy 0.18.0, or a package that it needs, is not installed.
    """
    return take(open_engine(LMDEPLOY), NAMES)
