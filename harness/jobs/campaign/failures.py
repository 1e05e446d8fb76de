"""Which failing programs of a campaign have a file: a function of all that were found, in
whatever order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lockstep.harness.core.document import decode
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import Folder
from lockstep.harness.execution.shrink import get_rank
from lockstep.harness.jobs.outcome import (
    HARNESS_FAILED,
    MAX_KEPT,
    OUTDATED,
    Failure,
    Outcome,
    get_order,
    slug,
)
from lockstep.harness.programs.files import format_program
from lockstep.harness.programs.program import (
    Divergence,
    Program,
    parse_program,
    parse_programs,
    read_flaky,
)
from lockstep.harness.workers import messages

FAILURES = "failures"


class Failures:
    """The folder `failures` of a campaign.

    Attributes:
        shrunk: (backend, signature) → form → the simplest failure.
        unshrunk: (backend, signature) → digest → a program that was not made shorter.
        left: file → a failure of a shard that did not end; it may be the only one.
        met: (backend, digest) of all programs that shards have reported.
        agreed: file → the simplest program that an entry of the ledger describes.
        written: files that are there.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.shrunk: defaultdict[tuple[str, str], dict[str, Failure]] = defaultdict(dict)
        self.unshrunk: defaultdict[tuple[str, str], dict[str, Failure]]
        self.unshrunk = defaultdict(dict)
        self.left: dict[str, Failure] = {}
        self.met: set[tuple[str, str]] = set()
        self.agreed: dict[str, Program] = {}
        self.written: set[str] = set()

    def add(self, failure: Failure, original: str | None) -> None:
        """Adds a failure. original: the digest of the program that was made shorter."""
        key, digest = (failure.backend, failure.signature), failure.program.digest()
        if original is None:
            self.unshrunk[key][digest] = failure
        else:
            form = " ".join(failure.form)
            simplest = self.shrunk[key].get(form, failure)
            self.shrunk[key][form] = min(simplest, failure, key=get_order)
        self.met |= {
            (slug(failure.backend), each) for each in (digest, original or digest)
        }

    def add_agreed(self, event: messages.Agreed, backend: str) -> str:
        """Adds a program that should show a known divergence, and agrees.

        Returns:
            The message about it.
        """
        program = parse_program(event.program, "a program of the ledger")
        name = f"{FAILURES}/{OUTDATED}/{slug(event.entry)}-{slug(backend)}.json"
        what = f"the ledger's entry {event.entry} describes an operation that agrees"
        program = replace(program, meta={"backend": backend, "what": what})
        self.agreed[name] = min(self.agreed.get(name, program), program, key=get_rank)
        why = "describes an operation that agrees: its `when` is too wide"
        return f"{event.entry}: {why}: {self.folder.path / name}"

    def choose(self) -> list[Failure]:
        """Chooses of each signature the simplest programs of different forms, or one that
        was not made shorter; and those that are left."""
        chosen = []
        for key in sorted({*self.shrunk, *self.unshrunk}):
            simplest = sorted(self.shrunk[key].values(), key=get_order)[:MAX_KEPT]
            chosen += simplest or [min(self.unshrunk[key].values(), key=get_order)]
        left = [self.left[name] for name in sorted(self.left) if not self.is_met(name)]
        return chosen + left

    def show(self, outcome: Outcome, unsaved: str | None = None) -> None:
        """Gives each pair its failures. unsaved: why some have no file."""
        chosen = [
            failure
            if unsaved is None or get_name(failure) in self.written
            else replace(failure, unsaved=unsaved)
            for failure in self.choose()
        ]
        for pair in outcome.pairs:
            pair.failures[:] = [
                failure
                for failure in chosen
                if (failure.backend, failure.program.contract, failure.program.kind)
                == pair.key
            ]

    def write(self) -> None:
        """Writes the chosen files, and removes the others. Raises OSError."""
        programs = {get_name(failure): failure.program for failure in self.choose()}
        for name in sorted(programs.keys() - self.written):
            self.folder.replace(name, format_program(programs[name]).encode())
            self.written.add(name)
        for name in sorted(self.written - programs.keys()):
            if self.is_met(name):
                self.folder.take(name)
                self.written.discard(name)
        for name, program in self.agreed.items():
            self.folder.replace(name, format_program(program).encode())

    def is_met(self, name: str) -> bool:
        """Says whether a file is of a program that some shard has reported."""
        digest, _, backend = Path(name).stem.partition("-")
        return (backend, digest) in self.met

    def read_left(self) -> None:
        """Reads the files of programs that no shard has reported: they are kept."""
        for name, content in self.folder.read_all(list_failure_files(self.folder)):
            self.written.add(name)
            try:
                if isinstance(content, UsageError):
                    raise content
                (program,) = parse_programs(decode(content, name), name).values()
                self.left[name] = read_failure(Path(self.folder.path / name), program)
            except (UsageError, ValueError):
                continue  # somebody else's, or half a file


def get_name(failure: Failure) -> str:
    return f"{FAILURES}/{failure.signature}/{failure.path.name}"


def list_failure_files(folder: Folder) -> Iterator[str]:
    for name in folder.list(FAILURES):
        _, _, rest = name.partition("/")
        signature, _, file = rest.partition("/")
        is_other = signature in (OUTDATED, HARNESS_FAILED) or "/" in file
        if file.endswith(".json") and not is_other:
            yield name


def read_failure(path: Path, program: Program) -> Failure:
    """A failure from its file. Raises ValueError if its `meta` is not that of one."""
    meta = program.meta
    signature, backend, step = (meta.get(key) for key in ("signature", "backend", "step"))
    if not (isinstance(signature, str) and isinstance(backend, str)):
        raise ValueError("it does not say how it fails")
    if not (isinstance(step, int) and 0 <= step < len(program.ops)):
        raise ValueError("it does not say where it fails")
    operation, message = program.ops[step]["op"], str(meta.get("what"))
    divergence = Divergence(signature.rpartition("-")[2], step, operation, message)
    failure = Failure(program, divergence, backend, signature, path)
    return replace(failure, flaky=read_flaky(meta))
