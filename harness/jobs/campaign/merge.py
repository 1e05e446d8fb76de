"""Puts the parts of a campaign together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from lockstep.harness.core.document import show
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import Folder
from lockstep.harness.jobs.campaign.history import DECLARED, GIVEN, SHARDS, History
from lockstep.harness.jobs.campaign.kept import Failures
from lockstep.harness.jobs.campaign.lock import describe_unwritable, held
from lockstep.harness.jobs.campaign.plan import (
    Terms,
    compare,
    read_terms,
    require_terms,
    require_version,
    write_terms,
)


def merge(target: Folder, sources: Sequence[Folder]) -> History:
    """Adds to a campaign what others with the same settings have done, and returns it.

    A shard that several have counts once: its first file stands. The target may be a
    folder that is not there yet.

    Raises:
        UsageError: a folder is not a campaign, or one with other settings.
    """
    terms = join_terms(target, sources)
    with held(target):
        try:
            write_terms(target, terms)
            for source in sources:
                copy(source, target)
            history = History(target, terms, [])
            history.open_corpus()
            history.load()
            history.failures.write()
            history.save_corpus()
        except OSError as error:
            raise UsageError(describe_unwritable(target, error)) from None
    return history


def join_terms(target: Folder, sources: Sequence[Folder]) -> Terms:
    """The settings of all of them, with the parts of each."""
    before = read_terms(target)
    if before is None and target.list():
        raise UsageError(f"{target.place}: has files, and no campaign")
    found = [require_terms(source) for source in sources]
    first, *rest = found if before is None else [before, *found]
    for folder, terms in zip([target, *sources], [first, *found], strict=True):
        require_version(folder, terms)
        why = compare(first, terms)
        if why is not None:
            raise UsageError(f"{folder.place}: is of another campaign: {why}")
    parts = [first.parts, *(terms.parts for terms in rest)]
    is_whole = not all(parts)
    joined = [] if is_whole else sorted({tuple(part) for own in parts for part in own})
    if len({of for _, of in joined}) > 1:
        raise UsageError(
            f"{target.place}: these are parts of different cuts: {show(joined)}"
        )
    return msgspec.structs.replace(first, parts=joined)


def copy(source: Folder, target: Folder) -> None:
    """Copies the files that the target does not have. Raises OSError."""
    there = {*target.list()}
    theirs = source.list()
    failures = [*Failures(source).list_names()]
    wanted = [
        name
        for name in theirs
        if name.partition("/")[0] in (DECLARED, SHARDS, GIVEN) or name in failures
    ]
    for name, content in source.read_all(name for name in wanted if name not in there):
        if isinstance(content, UsageError):
            raise content
        with suppress(FileExistsError):
            target.put(name, content)
