"""The failures of a campaign: of all programs that were found, which ones have a file.

That is a function of what was found, in whatever order: of each signature the simplest
programs of different forms. A program that diverges gets its file at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.harness.core.document import decode
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import Folder
from lockstep.harness.jobs.outcome import (
    HARNESS_FAILED,
    MOST_KEPT,
    OUTDATED,
    Failure,
    get_order,
    slug,
)
from lockstep.harness.programs.files import RUNNING, format_program
from lockstep.harness.programs.program import (
    Divergence,
    Program,
    parse_programs,
    read_flaky,
)

FAILURES = "failures"
OTHERS = (OUTDATED, HARNESS_FAILED, RUNNING)
"""Folders in there with other files."""


@dataclass
class Group:
    """The failures of one backend with one signature.

    Attributes:
        simplest: of each form.
        waiting: digest → a program that is being made shorter.
        left: digest → a file of a shard that did not end; it may be the only one.
    """

    simplest: dict[str, Failure] = field(default_factory=dict)
    waiting: dict[str, Failure] = field(default_factory=dict)
    left: dict[str, Failure] = field(default_factory=dict)

    def choose(self) -> list[Failure]:
        """The failures that have a file."""
        chosen = sorted(self.simplest.values(), key=get_order)[:MOST_KEPT]
        chosen = chosen or sorted(self.waiting.values(), key=get_order)[:1]
        return [*chosen, *sorted(self.left.values(), key=get_order)]


class Failures:
    """The folder `failures` of a campaign."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.groups: defaultdict[tuple[str, str], Group] = defaultdict(Group)
        self.met: set[tuple[str, str]] = set()
        self.written: set[str] = set()

    def add(self, failure: Failure, original: str | None) -> None:
        """Adds a failure. original: the digest of the program that was made shorter."""
        backend, digest = failure.backend, failure.program.digest()
        group = self.groups[backend, failure.signature]
        own = slug(backend)
        if original is None:
            if (own, digest) not in self.met:
                group.waiting[digest] = failure
        else:
            form = " ".join(failure.form)
            before = group.simplest.get(form, failure)
            group.simplest[form] = min(before, failure, key=get_order)
        for each in (digest, original or digest):
            self.met.add((own, each))
            group.left.pop(each, None)

    def list_chosen(self, backend: str, contract: str, kind: str) -> list[Failure]:
        """The failures of a pair that have a file, each signature in turn."""
        return [
            failure
            for (name, _), group in sorted(self.groups.items())
            for failure in group.choose()
            if name == backend
            and (failure.program.contract, failure.program.kind) == (contract, kind)
        ]

    def read_left(self) -> None:
        """Takes in the files of programs that no shard has told of: they are kept."""
        for name, content in self.folder.read_all(self.list_names()):
            self.written.add(name)
            try:
                if isinstance(content, UsageError):
                    raise content
                (program,) = parse_programs(decode(content, name), name).values()
                failure = read_failure(self.folder, name, program)
            except (UsageError, ValueError):
                continue  # somebody else's, or half a file
            digest = program.digest()
            if (slug(failure.backend), digest) not in self.met:
                self.groups[failure.backend, failure.signature].left[digest] = failure

    def list_names(self) -> Iterator[str]:
        for name in self.folder.list(FAILURES):
            parts = name.split("/")
            if len(parts) == 3 and parts[1] not in OTHERS and name.endswith(".json"):
                yield name

    def write(self) -> None:
        """Writes the files that are chosen, and removes those that were.

        Raises:
            OSError: one cannot be written.
        """
        chosen = {
            get_name(failure): failure
            for group in self.groups.values()
            for failure in group.choose()
        }
        for name in sorted(chosen.keys() - self.written):
            content = format_program(chosen[name].program).encode()
            self.folder.replace(name, content)
            self.written.add(name)
        known = {name for name in self.written if self.is_known(name)}
        for name in sorted(known - chosen.keys()):
            self.folder.take(name)
            self.written.discard(name)

    def has_file(self, failure: Failure) -> bool:
        return get_name(failure) in self.written

    def is_known(self, name: str) -> bool:
        """Whether a file is of a program that some shard has told of."""
        digest, _, backend = Path(name).stem.partition("-")
        return (backend, digest) in self.met


def get_name(failure: Failure) -> str:
    return f"{FAILURES}/{failure.signature}/{failure.path.name}"


def read_failure(folder: Folder, name: str, program: Program) -> Failure:
    """A failure from its file. Raises ValueError if its `meta` is not that of one."""
    meta = program.meta
    signature, backend, step = (meta.get(key) for key in ("signature", "backend", "step"))
    if not (isinstance(signature, str) and isinstance(backend, str)):
        raise ValueError("it does not say how it fails")
    if not (isinstance(step, int) and 0 <= step < len(program.ops)):
        raise ValueError("it does not say where it fails")
    what, message = signature.rpartition("-")[2], str(meta.get("what"))
    divergence = Divergence(what, step, program.ops[step]["op"], message)
    path = Path(folder.path / name)
    return Failure(
        *(program, divergence, backend, signature, path), flaky=read_flaky(meta)
    )
