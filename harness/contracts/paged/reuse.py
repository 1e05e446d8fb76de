"""Checks that all reusable content can be hit, and that each hit is the longest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lockstep.harness.backends.paged import Entry
from lockstep.harness.contracts.paged.checks import Slot
from lockstep.harness.contracts.paged.model import PagedModel, name_group
from lockstep.harness.core.errors import Broken
from lockstep.reference.paged import Request

Prefix = tuple[int, str | None, tuple[int, ...]]
"""The content of an entry: (group, namespace, tokens)."""


def list_prefixes(entries: Iterable[Entry]) -> set[Prefix]:
    return {(entry.group, entry.namespace, tuple(entry.tokens)) for entry in entries}


def find_longest(model: PagedModel, request: Request, entries: Sequence[Entry]) -> int:
    """Returns the longest hit that a waiting request can have over these entries."""
    if not model.cache.prefix_cache:
        return 0
    prefixes = list_prefixes(entries)
    most = len(request.tokens) - 1
    hits = range(most - most % model.unit, 0, -model.unit)
    covered = [hit for hit in hits if covers(model, request, hit, prefixes)]
    if not covered or not model.cache.dropped:
        return max(covered, default=0)
    last = covered[0] - model.cache.dropped
    return max((hit for hit in covered if hit <= last), default=0)


def covers(model: PagedModel, request: Request, hit: int, prefixes: set[Prefix]) -> bool:
    """Tells whether each block that a request holds after a hit has an entry.

    For a block that the hit fills partly, the entry must cover the filled tokens.
    """
    for number, group in enumerate(model.cache.groups):
        block = model.config["groups"][number]["block"]
        first = max(0, hit - 1) if group.type == "state" else group.first(hit)
        for number_of_block in range(first // block, -(-hit // block)):
            end = min(hit, (number_of_block + 1) * block)
            if (number, request.namespace, tuple(request.tokens[:end])) not in prefixes:
                return False
    return True


def check_longest(answer: Mapping[str, Any], name: str, longest: int) -> None:
    """Raises Broken if a request's hit is shorter than the longest possible hit."""
    hit = answer.get("start", answer.get("hit"))
    if isinstance(hit, int) and hit < longest:
        raise Broken(
            "reuse",
            f"request {name} reuses {hit} tokens; there are entries for {longest}",
        )


def check_published(
    model: PagedModel, settled: Sequence[tuple[str, int, int]], entries: Sequence[Entry]
) -> None:
    """Raises Broken if tokens that have just become known and computed cannot be hit.

    Args:
        model: the reference, after the operation.
        settled: (request, begin, end) of these tokens; drafts of the step are excluded,
            since they are not known yet.
        entries: the entries after the operation.
    """
    if not model.cache.prefix_cache:
        return
    prefixes = list_prefixes(entries)
    for name, begin, end in settled:
        request = model.cache.requests[name]
        for number, stop in list_ends(model, begin, min(end, len(request.tokens))):
            if (number, request.namespace, tuple(request.tokens[:stop])) not in prefixes:
                raise Broken(
                    "reuse",
                    f"request {name} has computed {end} tokens, and there is no entry"
                    f" for its first {stop} in {name_group(model.config, number)}",
                )


def check_landed(
    model: PagedModel,
    blocks: Sequence[int],
    memory: Mapping[Slot, tuple[int, int]],
    entries: Sequence[Entry],
) -> None:
    """Raises Broken if content has landed in host memory but cannot be loaded.

    Args:
        model: the reference, after the operation.
        blocks: the host blocks that the transfer has written; they are full.
        memory: the content of host memory: slot → (group, tag).
        entries: the host entries after the operation.
    """
    listed = {
        (entry.group, model.tags.get((entry.namespace, tuple(entry.tokens))))
        for entry in entries
    }
    for block in blocks:
        group, _ = memory[block, 0]
        settings = model.config["groups"][group]
        last = 0 if settings["type"] == "state" else settings["block"] - 1
        if memory[block, last] not in listed:
            raise Broken(
                "reuse",
                f"block {block} of other memory has landed, with token"
                f" {memory[block, last][1]} of {name_group(model.config, group)} at its"
                " end, and no entry names it",
            )


def list_ends(model: PagedModel, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Lists where a prefix ends that can be hit once the tokens [begin, end) are
    computed, with the number of the group: each unit that is still needed; of states the
    last one at the end of a block."""
    for number, group in enumerate(model.cache.groups):
        block = model.config["groups"][number]["block"]
        if group.type == "state":
            last = end - end % block
            ends = range(last, end + 1, block) if last > begin else range(0)
        else:
            unit = model.unit
            ends = range(begin - begin % unit + unit, end + 1, unit)
        for stop in ends:
            if group.type == "state" or stop > group.first(end):
                yield number, stop
