"""Stores the failing programs of a job in files.

The file of a failure is `failures/<signature>/<digest>-<backend>.json` and contains one
shrunk program. Several failures with the same signature may have a file each.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from shlex import quote
from typing import Any

from lockstep.harness import __version__
from lockstep.harness.core.folder import Folder
from lockstep.harness.programs.files import format_program, write_program
from lockstep.harness.programs.program import (
    Divergence,
    Flaky,
    Program,
    read_beside,
    read_flaky,
)
from lockstep.harness.workers.messages import HarnessFailed, Stopped
from lockstep.harness.workers.registry import list_names

OUTDATED = "outdated"
"""The folder of programs that agree although a ledger entry expects a divergence."""

HARNESS_FAILED = "harness-failed"
"""The folder of programs on which the harness failed."""

UNNAMED = "MODULE:FACTORY"
"""The value for `--backend` in the replay line of a backend that has no name."""


@dataclass(frozen=True)
class Failure:
    """A diverging program and its file.

    Attributes:
        program: the diverging program.
        divergence: its first divergence.
        backend: the name of the backend.
        signature: the signature of the divergence.
        path: the path of the file.
        cause: a number, from 1; failures that may have one cause have the same number,
            see `harness.execution.causes`. 0 if unknown.
        flaky: set if the failure does not occur in every run.
        options: the options of the replay command, as stored in `meta`; without these
            options the verdict may differ.
        unsaved: the reason why the file could not be written.
        asked: the value for `--backend`, if it is not the name of the backend.
        answers: the results of the other backends of the check that ran the program, by
            backend name: "agrees", "same" for the same wrong result, or a signature.
    """

    program: Program
    divergence: Divergence
    backend: str
    signature: str
    path: Path
    cause: int = 0
    flaky: Flaky | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    unsaved: str | None = None
    asked: str = ""
    answers: Mapping[str, str] = field(default_factory=dict)

    @property
    def form(self) -> Sequence[str]:
        """The sorted names of the operations. Programs with the same signature and
        different forms may show different bugs."""
        names = sorted(op["op"] for op in self.program.ops)
        return ["flaky"] if self.flaky else [*self.divergence.beside, *names]

    @property
    def replay(self) -> str:
        """The command that runs the program again."""
        backends = self.asked or self.backend, *self.divergence.beside
        return get_replay_line(self.path, self.options, *backends)


def save(failure: Failure) -> Failure:
    """Writes the file of a failure. If writing fails, sets `unsaved` in the result."""
    try:
        write_program(failure.path, failure.program)
    except OSError as error:
        return replace(failure, unsaved=error.strerror or str(error))
    return failure


def make_failure(
    folder: PurePath,
    program: Program,
    divergence: Divergence,
    backend: str,
    environment: Mapping[str, Any],
    found: Mapping[str, Any],
    options: Mapping[str, Any] = {},
    asked: str = "",
) -> Failure:
    """Creates a failure with the path of its file and a complete `meta`.

    Args:
        folder: the folder of all failures.
        program: the diverging program.
        divergence: the first divergence of the program.
        backend: the name of the backend, as the user gave it.
        environment: the versions, device and platform for `meta`, see `get_environment`.
        found: the origin of the program for `meta` (front, seed, number of the slice).
        options, asked: see `Failure`.
    """
    signature = divergence.get_signature(program)
    path = Path(folder / signature / f"{program.digest()}-{name_file(backend)}.json")
    meta = {
        "signature": signature,
        "backend": backend,
        **environment,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **found,
        **options,
        **({"beside": [*divergence.beside]} if divergence.beside else {}),
        "step": divergence.step,
        "what": divergence.message,
        "expected": divergence.expected,
        "got": divergence.got,
        "replay": get_replay_line(path, options, asked or backend, *divergence.beside),
    }
    program = replace(program, meta=meta)
    return Failure(
        *(program, divergence, backend, signature, path),
        flaky=read_flaky(meta),
        options=options,
        asked=asked,
    )


def get_order(program: Program) -> tuple[int, int, str]:
    """Returns a sort key: programs with fewer operations first, then programs with a
    shorter text. The worker has shrunk the programs, so this suffices."""
    text = json.dumps(replace(program, meta={}).to_json())
    return len(program.ops), len(text), text


def get_failure_order(failure: Failure) -> tuple[int, int, str]:
    return get_order(failure.program)


def save_harness_failure(folder: Path, failed: HarnessFailed, backend: str) -> str:
    """Writes the program on which the harness failed, for a bug report.

    Returns:
        The end of a message that tells the user to report the program.
    """
    program = failed.parsed
    if program is None:
        return "please report this"
    path = folder / HARNESS_FAILED / f"{program.digest()}-{name_file(backend)}.json"
    meta = {"backend": backend, "what": failed.describe(), "kv-lockstep": __version__}
    try:
        write_program(path, replace(program, meta=meta))
    except OSError as error:
        document = json.dumps(program.to_json())
        return f"please report this with the program (not saved: {error}): {document}"
    return f"please report this with {path}"


def describe_stop(folder: Path, stopped: Stopped, backend: str) -> str:
    """Describes why a task has no result. If the harness failed on a program, saves that
    program."""
    message = stopped.describe()
    if isinstance(stopped, HarnessFailed):
        message += f"; {save_harness_failure(folder, stopped, backend)}"
    return message


def slug(backend: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in backend)


def name_file(backend: str) -> str:
    """Returns a part of a file name that no other backend has.

    Names of modules and functions have no "-": "my_cache:make" becomes "my_cache-make",
    if no backend is registered under this name. Other names get a digest.
    """
    name = slug(backend)
    is_function = PLAIN.fullmatch(backend) and name not in list_names()
    digest = hashlib.sha256(backend.encode()).hexdigest()[:8]
    return name if name == backend or is_function else f"{name}@{digest}"


PLAIN = re.compile(r"[\w.]+:[\w.]+")
"""A module and a function in it."""


OPTIONS: Mapping[str, tuple[type, ...]] = {
    "strict": (bool,),
    "step_time": (int, float),
    "start_time": (int, float),
    "probe": (str,),
    "allow_host": (str,),
    "rate": (int, float),
}
"""The options of a check that may change a verdict: name in `meta` → allowed types."""


def get_replay_line(path: Path, options: Mapping[str, Any], *backends: str) -> str:
    """Returns the command that runs a failure again. options: see `Failure`."""
    command = ["lockstep", "replay", quote(str(path))]
    for backend in backends:
        command += ["--backend", quote(backend)]
    return " ".join([*command, *map(quote, list_arguments(options))])


def list_arguments(options: Mapping[str, Any]) -> list[str]:
    """Lists options as arguments of a command."""
    arguments = []
    for name, value in options.items():
        arguments.append(f"--{name.replace('_', '-')}")
        if value is not True:
            arguments.append(value if isinstance(value, str) else f"{value:g}")
    return arguments


# --- of one job -------------------------------------------------------------------------


MAX_KEPT = 3
"""The maximum number of shrunk programs that are kept per backend and signature."""

Key = tuple[str, str]
"""Backend and signature."""


class Failures:
    """The failing programs that a job has found, and the choice of programs with a file.

    The choice does not depend on the order in which programs were found. For each
    backend and signature, the simplest shrunk programs of different forms have a file,
    or one unshrunk program if no program was shrunk.

    Args:
        folder: the folder for the files.
        below: the folder inside `folder`, as a prefix of all file names.

    Attributes:
        shrunk: (backend, signature) → form → the simplest failure; see `Failure.form`.
        unshrunk: backend and signature → digest → a failure that was not shrunk.
        reported: digest and backend of all programs that were found, as in file names.
        replaced: backend, digest and `what` of programs that have a shorter version.
        protected: the names of files that are never removed.
        agreed: file name → a program that agrees although a ledger entry describes it.
        written: name of an existing file → its program; None if the program is unknown.
        unsaved: name of a file that could not be written → the reason.
    """

    def __init__(self, folder: Folder, below: str = "") -> None:
        self.folder, self.below = folder, below
        self.shrunk: defaultdict[Key, dict[str, Failure]] = defaultdict(dict)
        self.unshrunk: defaultdict[Key, dict[str, Failure]] = defaultdict(dict)
        self.reported: set[str] = set()
        self.replaced: set[tuple[str, str, str]] = set()
        self.protected: set[str] = set()
        self.agreed: dict[str, Program] = {}
        self.written: dict[str, Program | None] = {}
        self.unsaved: dict[str, str] = {}

    def add(self, failure: Failure, original: str | None) -> None:
        """Adds a failure. original: the digest of the program before it was shrunk; None
        for an unshrunk program."""
        key, digest = (failure.backend, failure.signature), failure.program.digest()
        for program in (digest, original or digest):
            self.reported.add(f"{program}-{name_file(failure.backend)}")
        if original is None:
            self.unshrunk[key][digest] = failure
            return
        if original != digest:
            self.replaced.add((failure.backend, original, failure.divergence.what))
        form = " ".join(failure.form)
        simplest = self.shrunk[key].get(form, failure)
        self.shrunk[key][form] = min(simplest, failure, key=get_failure_order)

    def is_known(self, backend: str, signature: str) -> bool:
        key = backend, signature
        return bool(self.shrunk.get(key) or self.unshrunk.get(key))

    def choose(self) -> list[Failure]:
        """Returns the failures that should have a file."""
        chosen: list[Failure] = []
        for key in sorted({*self.shrunk, *self.unshrunk}):
            groups = self.shrunk.get(key, {}), self.unshrunk.get(key, {})
            simplest, whole = (
                sorted(filter(self.is_last, group.values()), key=get_failure_order)
                for group in groups
            )
            chosen += simplest[:MAX_KEPT] or whole[:1]
        return [
            replace(failure, unsaved=self.unsaved.get(self.get_name(failure)))
            for failure in chosen
        ]

    def is_last(self, failure: Failure) -> bool:
        """Returns whether the program of a failure has no shorter version."""
        key = failure.backend, failure.program.digest(), failure.divergence.what
        return key not in self.replaced

    def write(self) -> None:
        """Writes the files of the chosen failures, and removes files that are no longer
        chosen."""
        programs = {self.get_name(failure): failure.program for failure in self.choose()}
        for name, program in programs.items():
            if self.written.get(name) is program:
                continue
            try:
                self.folder.replace(name, format_program(program).encode())
            except OSError as error:
                self.unsaved[name] = error.strerror or str(error)
            else:
                self.written[name] = program
                self.unsaved.pop(name, None)
        for name in sorted(self.written.keys() - programs.keys() - self.protected):
            # While a file cannot be written, the file of a longer program stays.
            if self.is_reported(name) and not self.unsaved:
                self.folder.take(name)
                del self.written[name]

    def get_name(self, failure: Failure) -> str:
        return f"{self.below}{failure.signature}/{failure.path.name}"

    def is_reported(self, name: str) -> bool:
        """Returns whether a file contains a program that this job has found."""
        return PurePath(name).stem in self.reported

    def save_agreed(self, program: Program, entry: str, backend: str) -> str:
        """Writes a program that agrees but should show a known divergence. For each
        ledger entry and backend, keeps the simplest program and removes the others.

        Returns:
            The end of a message, with the path of the file.
        """
        name = f"{self.below}{OUTDATED}/{slug(entry)}-{name_file(backend)}.json"
        self.agreed[name] = min(self.agreed.get(name, program), program, key=get_order)
        try:
            self.folder.replace(name, format_program(self.agreed[name]).encode())
        except OSError as error:
            return f" (not saved: {error}): {json.dumps(program.to_json())}"
        return f": {self.folder.path / name}"

    def find_files(self) -> None:
        """Finds the existing files, which are removed if this job finds their programs
        and keeps others."""
        for name in self.folder.list(self.below.rstrip("/")):
            signature, _, file = name.removeprefix(self.below).partition("/")
            is_other = signature in (OUTDATED, HARNESS_FAILED) or "/" in file
            if file.endswith(".json") and not is_other:
                self.written[name] = None


def read_failure(path: Path, program: Program) -> Failure:
    """Creates a failure from the program of its file. Raises ValueError if the `meta`
    describes no failure."""
    meta = program.meta
    signature, backend, step = (meta.get(key) for key in ("signature", "backend", "step"))
    if not (isinstance(signature, str) and isinstance(backend, str)):
        raise ValueError("it does not say how it fails")
    if not (isinstance(step, int) and 0 <= step < max(1, len(program.ops))):
        raise ValueError("it does not say where it fails")
    operation = program.ops[step]["op"] if program.ops else "open"
    about = signature.rpartition("-")[2], step, operation, str(meta.get("what"))
    divergence = Divergence(*about, beside=read_beside(meta))
    failure = Failure(program, divergence, backend, signature, path)
    return replace(failure, flaky=read_flaky(meta))
