"""Defines the command `backends`, which lists the backends of this machine."""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from lockstep.harness import __version__
from lockstep.harness.cli.options import count_cores, define
from lockstep.harness.cli.project import FILE, NAMES, TABLE, Project, load_project
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import make_printable
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.reports.console import PlainConsole
from lockstep.harness.workers.messages import Declare, Declared, Refused, Stopped
from lockstep.harness.workers.registry import list_names


@define("backends", "start", "server", "failures")
def backends(settings: Settings) -> int:
    """Lists the settings, the backends that run here, and why others do not."""
    console = PlainConsole()
    here = f"Python {platform.python_version()}, {platform.platform()}"
    console.print(Text(f"lockstep {__version__}, {here}", "bold"), soft_wrap=True)
    for line in list_settings(load_project()):
        console.print(line, soft_wrap=True)
    events = declare_all(settings.backends or list(list_names()), settings)
    for line in list_backends(events):
        console.print(line, soft_wrap=True)
    missing = any(isinstance(event, Stopped) for event in events.values())
    return 2 if missing and settings.backends else 0


def list_settings(project: Project) -> Iterator[Text]:
    """Yields a line for each setting of the project, with its origin."""
    for name, value in project.origins.items():
        yield Text(make_printable(f"  {name} = {value}"))
    if not project.origins:
        yield Text(f"  no settings: {TABLE} in {FILE} can have {', '.join(NAMES)}")


def declare_all(
    names: Sequence[str], settings: Settings
) -> Mapping[str, Declared | Stopped]:
    """Loads backends on all cores. Returns name → the declaration, or the reason for
    its absence."""
    declared: dict[str, Declared | Stopped] = {}
    with open_pool(settings, count_cores()) as pool:
        for task, event in pool.run(deque(map(Declare, names))):
            if isinstance(event, Declared | Stopped):
                declared[task.backend] = event
    return {name: declared[name] for name in names}


def list_backends(events: Mapping[str, Declared | Stopped]) -> Iterator[Text]:
    """Yields the lines about each backend that can run, and a line for each reason that
    excludes other backends."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, event in events.items():
        if isinstance(event, Declared):
            yield from describe_backend(name, event)
        else:
            style = "yellow" if isinstance(event, Refused) else "bold red"
            reasons.setdefault((style, event.describe()), []).append(name)
    for (style, reason), names in reasons.items():
        yield Text.assemble((", ".join(names), style), f": {reason}")


def describe_backend(name: str, event: Declared) -> list[Text]:
    """Returns the lines that describe a backend's declaration."""
    versions = ", ".join(f"{key} {value}" for key, value in event.versions.items())
    head = f" on {event.device}, {versions}, {', '.join(event.dtypes)}"
    lines = [Text.assemble((name, "bold green"), head)]
    for contract, kinds in event.contracts.items():
        for kind, declared in kinds.items():
            operations = set(CONTRACTS[contract].list_operations(kind))
            missing = ", ".join(sorted(operations - declared.operations))
            extent = f"all but {missing}" if missing else "all"
            lines.append(Text(f"  {contract} {kind}: {extent}"))
    return lines
