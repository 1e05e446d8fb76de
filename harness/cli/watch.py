"""Defines the command `watch`, which replays programs whenever the sources of a
backend change."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from lockstep.harness.cli.frame import print_error
from lockstep.harness.cli.options import define, option
from lockstep.harness.cli.replay import print_result
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.replay import Replayed, list_backends, replay_paths
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.jobs.watch import Stamps, build, take_stamps, wait_for_change
from lockstep.harness.programs.files import load_saved
from lockstep.harness.programs.program import Program
from lockstep.harness.reports.console import PlainConsole
from lockstep.harness.reports.pages.gather import Stage, make_failure
from lockstep.harness.reports.pages.terminal import Painter, get_bounds
from lockstep.harness.reports.pages.view import read_saved
from lockstep.harness.workers.messages import ListSources, Sources
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.sources import list_sources

UNCACHED = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Disables bytecode files: Python detects a changed source by its size and its time in
seconds, which may both stay the same."""


@define(
    *("paths", "given"),
    option(
        "--path extra",
        "Also watch this file or folder; may be repeated.",
        multiple=True,
        type=click.Path(exists=True, path_type=Path),
        metavar="PATH",
    ),
    option(
        "--build command_line",
        "Shell command to run before each replay; build a driver once before.",
        metavar="COMMAND",
    ),
    *("unsupported", "step", "start", "strict", "server", "failures"),
)
def watch(
    settings: Settings,
    paths: Sequence[Path],
    extra: Sequence[Path],
    command_line: str | None,
) -> int:
    """Replays programs whenever a source of the backend changes.

    PATH is a path as for `lockstep replay`. The first program that fails is shown as a
    picture. The command watches the files that the backend imports from outside of
    installed packages; for a driver, the files in its command line. Each replay has a
    fresh process. Errors in the sources are printed, and the watch goes on. Ctrl-C ends
    it.

    Examples:
      lockstep watch failures/SIGNATURE/FILE.json --backend my_cache:make
      lockstep watch failures --backend my_cache:make        all that were saved
      lockstep watch FILE --backend exec:./driver --path src --build make
    """
    backends = {
        name: None
        for path, program in load_saved(paths)
        for name in list_backends(path, program, settings)
    }
    Watch(settings, paths, list(backends), extra, command_line).run()
    return 0


@dataclass(eq=False)
class Watch:
    """The loop of the command.

    Attributes:
        settings: the settings of the command.
        paths: the paths of programs.
        backends: the backends that run the programs.
        extra: paths to watch in addition to the sources.
        command_line: the build command; None without a build.
        sources: the known source files of the backends.
        rounds: the number of replays.
        statuses: the statuses in the last replay.
    """

    settings: Settings
    paths: Sequence[Path]
    backends: Sequence[str]
    extra: Sequence[Path]
    command_line: str | None
    sources: set[Path] = field(default_factory=set)
    rounds: int = 0
    statuses: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.console = PlainConsole()
        for name in self.backends:
            self.sources.update(list_sources(name))

    def run(self) -> None:
        """Replays the programs now, and after each change, until Ctrl-C."""
        try:
            while True:
                stamps = self.replay()
                self.print_watched(len(stamps))
                changed = wait_for_change(self.list_watched(), stamps)
                if self.console.is_terminal:
                    self.console.clear()
                names = ", ".join(file.name for file in changed[:3])
                self.console.print(f"Changed: {names}", soft_wrap=True)
        except KeyboardInterrupt:
            self.summarize()
            raise

    def list_watched(self) -> set[Path]:
        return {*self.sources, *self.extra}

    def replay(self) -> Stamps:
        """Builds the backend and replays the programs. Returns the stamps of the
        source files."""
        began = time.time_ns()
        reason = None if self.command_line is None else build(self.command_line)
        stamps = take_stamps(self.list_watched())
        if reason is not None:
            self.console.print(f"The build failed: {self.command_line}: {reason}")
            return stamps
        earlier = self.list_watched()
        with open_pool(self.settings, 1, UNCACHED) as pool:
            try:
                self.replay_with(pool)
            except UsageError as error:  # the files of the programs may be gone
                print_error(error)
            for name in self.backends:  # a broken backend keeps its known sources
                answer = pool.call(ListSources(name))
                if isinstance(answer, Sources):
                    self.sources.update(map(Path, answer.files))
        new = take_stamps(self.list_watched() - earlier)
        # The round may have run an older version of a new source that changed since the
        # round began. Its stamp is left out, so that another round follows.
        return {**stamps, **{file: new[file] for file in new if new[file][0] < began}}

    def replay_with(self, pool: Pool) -> None:
        """Replays all programs, and draws the first failing program."""
        statuses = []
        failing: tuple[Replayed, Program] | None = None
        for result, program in replay_paths(pool, self.paths, self.settings):
            print_result(self.console, result)
            statuses.append(result.status)
            if result.status == "FAILED" and program is not None:
                failing = failing or (result, program)
        self.rounds, self.statuses = self.rounds + 1, statuses
        if failing is not None:
            result, program = failing
            saved = read_saved(program, result.path)
            stage = Stage(pool, self.settings, result.backend)
            view = make_failure(1, saved, stage, get_bounds(self.console.width))
            Painter(self.console).show(view, None)

    def print_watched(self, count: int) -> None:
        if not count:
            print_error("no source of the backend is known; name files with --path")
        files = f"{count} file" + "s" * (count != 1)
        self.console.print(f"Watching {files}; Ctrl-C ends.", soft_wrap=True)

    def summarize(self) -> None:
        counts = Counter(self.statuses).items()
        last = ", ".join(f"{count} {status}" for status, count in counts) or "nothing ran"
        times = "once" if self.rounds == 1 else f"{self.rounds} times"
        self.console.print(f"Replayed {times}; last: {last}.", soft_wrap=True)
