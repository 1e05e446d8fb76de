"""Imports the page table and the jobs of ExLlamaV3 1.6.5."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

from lockstep.impl.peers.engines.engine import Engine, StandIn
from lockstep.impl.peers.engines.lean import open_engine, take

GPU = "kernels of a GPU"
TEXT = "of text; a request here is tokens"
IMAGES = "FIRST_MM_EMBEDDING_INDEX"


def _count_match(tokens: Any, others: Any, most: int) -> int:
    """Replaces `count_match_tensor` of the extension: counts equal first tokens."""
    pairs = zip(tokens[0, :most].tolist(), others[0].tolist(), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


EXLLAMAV3 = Engine(
    package="exllamav3",
    version="1.6.5",
    pins="ci/engines/exllamav3.txt",
    needs=("torch", "numpy"),
    bare=("exllamav3", "exllamav3.generator", "exllamav3.util"),
    stand_ins=(
        StandIn("exllamav3.cache", GPU),
        StandIn(
            "exllamav3.ext",
            GPU,
            {"exllamav3_ext": SimpleNamespace(count_match_tensor=_count_match)},
        ),
        StandIn("exllamav3.generator.filter", TEXT),
        StandIn("exllamav3.generator.loop_detect", TEXT),
        StandIn("exllamav3.generator.sampler", TEXT),
        StandIn("exllamav3.tokenizer", TEXT),
        StandIn(
            "exllamav3.tokenizer.mm_embedding",
            TEXT,
            {"FIRST_MM_EMBEDDING_INDEX": 1 << 40},
        ),
    ),
)


@cache
def load_exllamav3(page: int) -> SimpleNamespace:
    """Returns `PageTable` and `Job` for pages of `page` tokens, instead of 256.

    Raises:
        Unavailable: ExLlamaV3 1.6.5, torch or numpy is not installed.
    """
    size = StandIn("exllamav3.constants", "the size of a page", {"PAGE_SIZE": page})
    engine = replace(EXLLAMAV3, stand_ins=(*EXLLAMAV3.stand_ins, size))
    modules = {
        "exllamav3.generator.pagetable": ("PageTable", "is_content_hash"),
        "exllamav3.generator.job": ("Job",),
    }
    return take(open_engine(engine), modules)
