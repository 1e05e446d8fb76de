"""The schemas of answers of the prefix contract."""

from __future__ import annotations

from lockstep.harness.contracts.answer_schemas import (
    NOTHING,
    NUMBER,
    OFFSETS,
    TAG_ROWS,
    TAGS,
    TOKENS,
    USAGE,
    any_of,
    error,
    extend,
    list_of,
    record,
)
from lockstep.harness.contracts.unified.forward import PASSES, REFUSAL, ROWS, STATES

WRONG = USAGE["properties"]["error"]
"""A generated token that is not a token is refused after the pass."""

CONTENTS = {"offsets": OFFSETS, "caches": list_of(record(tags=TAGS), NOTHING)}
READ = record(offsets=OFFSETS, caches=list_of(record(visible=TAG_ROWS), NOTHING))
FED = record(offsets=OFFSETS)
FEED = any_of(READ, FED, *(extend(done, error=WRONG) for done in (READ, FED)))

SLOT = record(offsets=OFFSETS, tokens=TOKENS, remaining=TOKENS)
SLOT_ENDED = extend(SLOT, stored=NUMBER)
SLOT_BEGUN = any_of(extend(SLOT, slot=NUMBER), error("usage", "no-slot"))
SLOT_BROKEN = extend(SLOT, positions=TAGS)
SLOT_FULL = extend(SLOT_BROKEN, error=REFUSAL["properties"]["error"])
SLOT_PASSES = [
    SLOT,
    *(
        extend(SLOT_BROKEN, **shown["properties"])
        for shown in (ROWS, STATES, PASSES["wrapper"])
    ),
]
SLOT_FED = any_of(
    *SLOT_PASSES, SLOT_FULL, *(extend(done, error=WRONG) for done in SLOT_PASSES)
)
