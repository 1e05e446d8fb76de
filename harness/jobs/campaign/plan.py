"""The settings of a campaign, its shards, and who gets the next one."""

from __future__ import annotations

import hashlib
import json
import platform
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from zlib import crc32

import msgspec
from msgspec import Meta, Struct, ValidationError

from lockstep.harness import __version__
from lockstep.harness.backends.driver.client import START_SECONDS, STEP_SECONDS
from lockstep.harness.core.document import decode, parse_json, show
from lockstep.harness.core.errors import UsageError, shorten
from lockstep.harness.core.folder import Folder
from lockstep.harness.jobs.outcome import Pair, Settings, slug
from lockstep.harness.workers import messages

FORMAT = "lockstep-campaign/1"
CAMPAIGN = "campaign.json"
SLICE = 500
"""Programs in a shard: some seconds of work, which is what a lost machine costs."""

Positive = Annotated[int, Meta(ge=1, le=1 << 53)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{12}$")]


class Terms(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a campaign.

    Attributes:
        lockstep: its version; another one draws other programs.
        python: the same.
        programs: for each pair; or None, and one of the next two is the budget.
        seconds: of the campaign while it runs.
        steps: of all pairs together.
        slice: programs in a shard.
        corpus: digest of the programs that its shards start from; None if none are given.
        share_corpus: whether they also start from what earlier ones have kept.
        parts: (number from 1, of how many) of the shards that are run here; none for all.
    """

    format: Literal["lockstep-campaign/1"] = "lockstep-campaign/1"
    lockstep: str = __version__
    python: str = ".".join(platform.python_version_tuple()[:2])
    seed: int = 0
    generator: str = "plain"
    backends: list[str] = []
    kinds: list[str] = []
    programs: Positive | None = None
    seconds: Seconds | None = None
    steps: Positive | None = None
    slice: Positive = SLICE
    step_seconds: Seconds = STEP_SECONDS
    start_seconds: Seconds = START_SECONDS
    strict: bool = False
    corpus: Digest | None = None
    share_corpus: bool = False
    parts: list[tuple[Positive, Positive]] = []

    @property
    def has_corpus(self) -> bool:
        return self.corpus is not None or self.share_corpus

    def has(self, key: Sequence[Any], number: int) -> bool:
        """Whether the shard of this number, of what has the key, is run here."""
        place = number + crc32("/".join(map(str, key)).encode())
        return not self.parts or any(place % of == part - 1 for part, of in self.parts)

    def get_settings(self, folder: Path, jobs: int) -> Settings:
        """The same for the job of a check. folder: for failures."""
        return Settings(
            backends=self.backends,
            kinds=self.kinds,
            programs=self.programs or 0,
            generator=self.generator,
            seed=self.seed,
            seconds=self.seconds,
            jobs=jobs,
            failures=folder,
            step_seconds=self.step_seconds,
            start_seconds=self.start_seconds,
            strict=self.strict,
            slice=self.slice,
        )


def compare(before: Terms, now: Terms) -> str | None:
    """The first setting in which two campaigns differ, in words; None if none does."""
    for name in Terms.__struct_fields__:
        old, new = getattr(before, name), getattr(now, name)
        if name == "corpus" and old != new:
            return "it starts from another corpus"
        if name != "parts" and old != new:
            return f"its {name} is {show(old)}, not {show(new)}"
    return None


def read_terms(folder: Folder) -> Terms | None:
    """The settings of the campaign in a folder; None if there is none.

    Raises:
        UsageError: the file is damaged, or of a version that this one does not know.
    """
    content = folder.read(CAMPAIGN)
    if content is None:
        return None
    where = f"{folder.place}/{CAMPAIGN}"
    try:
        return msgspec.convert(parse_json(decode(content, where), where), Terms)
    except ValidationError as error:
        why = shorten(str(error))
        raise UsageError(f"{where}: is not the settings of a campaign: {why}") from None


def require_terms(folder: Folder) -> Terms:
    """The same; raises UsageError if there is none."""
    terms = read_terms(folder)
    if terms is None:
        raise UsageError(
            f"{folder.place}: holds no campaign; `lockstep campaign start` makes one"
        )
    return terms


def require_version(folder: Folder, terms: Terms) -> None:
    """Raises UsageError if another version has begun the campaign."""
    for name, own in (("lockstep", Terms().lockstep), ("python", Terms().python)):
        begun = getattr(terms, name)
        if begun != own:
            raise UsageError(
                f"{folder.place}: was begun with {name} {begun}, and this is {own},"
                " which may draw other programs; use that version, or start another"
                " campaign"
            )


def write_terms(folder: Folder, terms: Terms) -> None:
    """Raises OSError."""
    fields = json.loads(msgspec.json.encode(terms))
    folder.replace(CAMPAIGN, (json.dumps(fields, indent=1) + "\n").encode())


# --- shards -----------------------------------------------------------------------------


def make_task(
    terms: Terms, pair: Pair, number: int, programs: int
) -> messages.RandomTask:
    return messages.RandomTask(
        *pair.key,
        number,
        generator=terms.generator,
        seed=terms.seed,
        programs=-(-programs // pair.share),
        corpus=[] if terms.has_corpus else None,
    )


def get_name(task: messages.Task[Any]) -> str:
    """The file of a shard: the same for the same programs on the same backend, but for
    what the corpus that it starts from makes of them."""
    own: list[Any] = [type(task).__name__, task.backend]
    words = ["ledger", slug(task.backend)]
    if isinstance(task, messages.RandomTask):
        own += [task.contract, task.kind, task.number]
        own += [task.generator, task.seed, task.programs]
        words = [task.contract, task.kind, slug(task.backend), f"{task.number:06}"]
    digest = hashlib.sha256(json.dumps(own).encode()).hexdigest()[:12]
    return f"shards/{'-'.join(words)}-{digest}.json"


# --- who gets the next shard ------------------------------------------------------------

RECENT = 8
"""Shards of a pair that tell how much it still yields."""

FLOOR = 4
"""Of n pairs, each gets at least one part in 4n of the time."""


@dataclass
class Yield:
    """What a pair has yielded. recent: (new cells and signatures, seconds) of shards."""

    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT))
    credit: float = 0.0

    @property
    def rate(self) -> float:
        """What is new in a second of one core."""
        seconds = sum(seconds for _, seconds in self.recent)
        return sum(new for new, _ in self.recent) / max(seconds, 1e-3)

    @property
    def cost(self) -> float:
        """Seconds of a shard; 1 as long as that is not known."""
        seconds = sum(seconds for _, seconds in self.recent)
        return max(seconds / len(self.recent), 1e-3) if self.recent else 1.0


class Shares:
    """Hands out shards to the pairs that find something new, and some to all.

    A quarter of the time goes to all pairs alike, the rest to each by what its latest
    shards have found in a second. The same history leads to the same choices.
    """

    def __init__(self, count: int) -> None:
        self.pairs = [Yield() for _ in range(count)]

    def learn(self, pair: int, new: int, seconds: float) -> None:
        """A shard is done. new: cells and signatures that no shard had before."""
        self.pairs[pair].recent.append((new, seconds))

    def get_weights(self) -> list[float]:
        """The share of the time of each pair; their sum is 1."""
        rates = [pair.rate if pair.recent else None for pair in self.pairs]
        best = max((rate for rate in rates if rate is not None), default=0.0)
        # A pair that has not run is as promising as the best one.
        known = [best if rate is None else rate for rate in rates]
        if not sum(known):
            return [1 / len(known)] * len(known)
        floor = 1 / (FLOOR * len(known))
        rest = 1 - floor * len(known)
        return [floor + rest * rate / sum(known) for rate in known]

    def choose(self, able: Sequence[int]) -> int:
        """The pair that gets the next shard: of those that can run now, the one that is
        furthest behind its share."""
        weights = self.get_weights()
        shards = {each: weights[each] / self.pairs[each].cost for each in able}
        for each, share in shards.items():
            self.pairs[each].credit += share / sum(shards.values())
        chosen = max(able, key=lambda each: self.pairs[each].credit)
        self.pairs[chosen].credit -= 1
        return chosen


def iter_fixed(terms: Terms, pairs: Sequence[Pair]) -> Iterator[messages.RandomTask]:
    """The shards of a campaign with a number of programs, all pairs in turn."""
    for number, programs in terms.get_settings(Path(), 1).list_slices():
        for pair in pairs:
            if terms.has(pair.key, number):
                yield make_task(terms, pair, number, programs)
