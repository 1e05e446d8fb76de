"""A shard: a task as JSON in, its events as JSON out; and its file."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
from msgspec import Struct, ValidationError

from lockstep.harness.core.document import decode, parse_json
from lockstep.harness.core.errors import UsageError, shorten
from lockstep.harness.workers import messages
from lockstep.harness.workers.counts import Natural, NonNegative

# --- on its way -------------------------------------------------------------------------


class Abandoned(messages.Stopped, frozen=True):
    """The worker ended, and the rest of the shard was left out.

    Attributes:
        crashes: programs that ended it; without one, nothing is known of the shard.
    """

    crashes: Natural = 0


SHARDS = messages.RandomTask | messages.RunLedger
ENDS = messages.SliceDone | messages.LedgerRun | Abandoned


def decode_event(data: bytes, task: messages.Task[Any]) -> messages.Event:
    """An event of a shard. Raises ValueError."""
    return messages.decode_event(data, task, Abandoned)


# --- on disk ----------------------------------------------------------------------------


class Shard(Struct, frozen=True, forbid_unknown_fields=True):
    """A shard that is done.

    Attributes:
        environment: where it ran; see `get_environment`.
        seconds: how long the campaign had run.
        events: what was found; what was kept, and is new to the campaign; the last one.
    """

    task: SHARDS
    environment: dict[str, Any]
    seconds: NonNegative
    events: list[messages.Found | messages.Agreed | messages.Kept | ENDS]
    format: Literal["lockstep-shard/1"] = "lockstep-shard/1"

    def encode(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return json.dumps(fields, default=messages.unfold).encode() + b"\n"

    @property
    def end(self) -> messages.Event:
        return self.events[-1]


def decode_shard(content: bytes, where: str) -> Shard:
    """Raises UsageError for what is not the file of a shard."""
    document = parse_json(decode(content, where), where)
    try:
        shard = msgspec.convert(document, Shard)
        for event in shard.events:
            event.check()
        if not isinstance(shard.end, ENDS):
            raise ValueError("it has no end")
    except (ValidationError, ValueError, IndexError, RecursionError) as error:
        why = shorten(str(error))
        raise UsageError(f"{where}: is not a shard of a campaign: {why}") from None
    return shard
