"""Defines the settings of a campaign, and the specs of its shards."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal
from zlib import crc32

import msgspec
from msgspec import Meta, Struct, ValidationError, structs

from lockstep.harness import __version__
from lockstep.harness.backends.driver.client import START_SECONDS, STEP_SECONDS, Limits
from lockstep.harness.core.document import decode, parse_json, show
from lockstep.harness.core.errors import UsageError, clean, shorten
from lockstep.harness.core.folder import Folder
from lockstep.harness.jobs.failures import slug
from lockstep.harness.jobs.outcome import Pair
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.workers import messages
from lockstep.harness.workers.registry import list_names

CAMPAIGN = "campaign.json"
SHARDS = "shards"

SLICE = 500
"""The number of programs in a shard: a few seconds of work, which are lost with a
machine."""

Positive = Annotated[int, Meta(ge=1, le=1 << 53)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
MOST_NAMED = 1000
"""The number of characters of backends that a message names."""

PYTHON = ".".join(platform.python_version_tuple()[:2])


class Versions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The versions that determine the result of a shard, together with task and backend.

    Attributes:
        lockstep: the version of Lockstep, which determines the drawn programs.
        python: the version of Python, which also determines the drawn programs.
        probe, allow_host, rate: see `Limits`.
    """

    lockstep: str = __version__
    python: str = PYTHON
    step_seconds: Seconds = STEP_SECONDS
    start_seconds: Seconds = START_SECONDS
    strict: bool = False
    probe: str | None = None
    allow_host: str | None = None
    rate: Seconds | None = None

    def get_limits(self) -> Limits:
        return Limits(
            self.step_seconds / 2,
            self.start_seconds,
            strict=self.strict,
            probe=self.probe,
            allow_host=self.allow_host,
            rate=self.rate,
        )


class Spec(Versions, frozen=True, kw_only=True):
    """The spec of a shard. The spec and the backend together determine the shard's
    events."""

    task: messages.Declare | messages.RunLedger | messages.RandomTask

    @property
    def name(self) -> str:
        """The file of the shard."""
        document = json.dumps(msgspec.to_builtins(self), sort_keys=True)
        digest = hashlib.sha256(document.encode()).hexdigest()[:12]
        task, labels = self.task, [type(self.task).__name__.lower()]
        if isinstance(task, messages.RandomTask):
            labels = [task.contract, task.kind, f"{task.number:06}"]
        return f"{SHARDS}/{'-'.join([*labels, slug(task.backend), digest])}.json"


class Terms(Versions, frozen=True, kw_only=True):
    """The settings of a campaign.

    Attributes:
        programs: the number of programs for each pair; None if `seconds` is the budget.
        seconds: the time budget of the campaign, in seconds in which it runs; pauses do
            not count.
        slice: the number of programs in a shard.
        shard: (part number from 1, number of parts): the part of the shards that runs
            here.
    """

    format: Literal["lockstep-campaign/2"] = "lockstep-campaign/2"
    seed: int = 0
    backends: list[str] = []
    kinds: list[str] = []
    programs: Positive | None = None
    seconds: Seconds | None = None
    slice: Positive = SLICE
    shard: tuple[Positive, Positive] | None = None

    def get_settings(self, folder: Path) -> Settings:
        """Returns the settings as settings of a check. folder: the folder for
        failures."""
        fields = structs.asdict(self)
        for name in ("format", "lockstep", "python", "shard", "programs"):
            del fields[name]
        fields["probe"] = self.probe and Path(self.probe)
        return Settings(programs=self.programs or 0, failures=folder, **fields)

    def make_spec(self, task: Any) -> Spec:
        names = Versions.__struct_fields__
        return Spec(task=task, **{name: getattr(self, name) for name in names})

    def make_task(
        self, key: tuple[str, str, str], number: int, share: int
    ) -> messages.RandomTask | None:
        """Returns the task of shard `number` of the pair with this key; None after the
        last shard."""
        programs = self.slice
        if self.programs is not None:
            programs = min(self.slice, self.programs - number * self.slice)
        if programs <= 0:
            return None
        drawn = -(-programs // share)
        return messages.RandomTask(*key, number, seed=self.seed, programs=drawn)

    def owns(self, spec: Spec, share: int) -> bool:
        """Returns whether a shard belongs to this campaign, on this or another machine.

        share: the share of the backend, see `Backend`.
        """
        task: Any = spec.task
        if self.backends and task.backend not in self.backends:
            return False
        if isinstance(task, messages.RandomTask):
            key = task.backend, task.contract, task.kind
            task = self.make_task(key, task.number, share)
        return task is not None and spec == self.make_spec(task)

    def has(self, key: Sequence[str], number: int) -> bool:
        """Returns whether shard `number` of the pair with this key runs here."""
        if self.shard is None:
            return True
        index, total = self.shard
        return (number + crc32("/".join(key).encode())) % total == index - 1

    def iter_specs(self, pairs: Sequence[Pair], ledgers: Sequence[str]) -> Iterator[Spec]:
        """Iterates over the shards that run here; the pairs take turns. If the
        campaign has a time budget, the iteration is endless."""
        for backend in ledgers:
            if self.has([backend], 0):
                yield self.make_spec(messages.RunLedger(backend))
        for number in count():
            tasks = [self.make_task(pair.key, number, pair.share) for pair in pairs]
            if not pairs or None in tasks:
                return
            for pair, task in zip(pairs, tasks, strict=True):
                if self.has(pair.key, number):
                    yield self.make_spec(task)


def compare(first: Terms, second: Terms) -> str | None:
    """Describes the first setting that differs between two campaigns; None if all
    settings are equal."""
    old, new = structs.asdict(first), structs.asdict(second)
    differing = (name for name in Terms.__struct_fields__ if old[name] != new[name])
    name = next(differing, None)
    return name and f"its {name} is {show(old[name])}, not {show(new[name])}"


def read_terms(folder: Folder) -> Terms | None:
    """Reads the settings of the campaign in a folder; None if there is none.

    Raises:
        UsageError: the file is damaged, or of another version of the format.
    """
    content = folder.read(CAMPAIGN)
    if content is None:
        return None
    path = f"{folder.location}/{CAMPAIGN}"
    document = parse_json(decode(content, path), path)
    try:
        return msgspec.convert(document, Terms)
    except ValidationError as error:
        reason = shorten(str(error))
        raise UsageError(
            f"{path}: is not the settings of a campaign of this version: {reason};"
            " start a campaign in another folder"
        ) from None


def require_terms(folder: Folder) -> Terms:
    """Reads campaign.json. Raises UsageError if the file is missing."""
    terms = read_terms(folder)
    if terms is None:
        raise UsageError(
            f"{folder.location}: holds no campaign; `lockstep campaign start` makes one"
        )
    return terms


def require_named(location: str, terms: Terms, settings: Settings) -> None:
    """Raises UsageError unless every backend of a campaign is registered, or in the
    options or the project's settings. A folder is not trusted: no code runs merely
    because a file names it."""
    known = {*list_names(), *settings.trusted, *settings.backends}
    missing = [f"--backend {quote(name)}" for name in terms.backends if name not in known]
    if missing:
        raise UsageError(
            f"{location}: names backends that are not registered; if you trust them,"
            f" add {clean(' '.join(missing), MOST_NAMED)}"
        )


def require_version(location: str, begun: Versions) -> None:
    """Raises UsageError unless the versions equal the versions of this process. Other
    versions may draw other programs."""
    for name, version in (("lockstep", __version__), ("python", PYTHON)):
        if getattr(begun, name) != version:
            raise UsageError(
                f"{location}: was started with {name} {getattr(begun, name)}, but"
                f" {version} is installed, which may draw other programs; install the"
                " version that started it"
            )


def describe_unwritable(folder: Folder, error: OSError) -> str:
    reason = error.strerror or error
    return (
        f"{folder.location}: cannot be written: {reason}; nothing that was done is lost"
    )
