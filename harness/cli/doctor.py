"""Defines the commands `backends` and `doctor`, which list what this machine can
check."""

from __future__ import annotations

import platform
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import Version
from rich.text import Text

from lockstep.harness import __version__
from lockstep.harness.cli.options import count_cores, define
from lockstep.harness.cli.project import FILE, NAMES, TABLE, Project, load_project
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import UsageError, make_printable
from lockstep.harness.jobs.failures import get_replay_line
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.programs.program import load_programs
from lockstep.harness.reports.console import PlainConsole
from lockstep.harness.reports.model import shorten_list
from lockstep.harness.workers.messages import Declare, Declared, Refused, Stopped
from lockstep.harness.workers.registry import list_names

# --- what is installed, what it can check, and what to do about the rest ----------------


PACKAGES = {
    **dict.fromkeys(("numpy", "hypothesis"), "kv-lockstep"),
    **{
        name: f"kv-lockstep[{name}]"
        for name in ("torch", "triton", "mlx", "mlx-lm", "transformers", "ray")
    },
    **dict.fromkeys(("pytest", "pytest-xdist"), "kv-lockstep[test]"),
}
"""Package → the requirement that installs it."""

ENGINES = {"vllm": "0.33.0", "sglang": "0.5.23"}
"""Engine → the tested version of its block manager. Engines are installed without their
dependencies, which an extra cannot express; `ci/engines/` pins them."""


def list_checks(settings: Settings) -> Iterator[Text]:
    """Yields the lines of the report. Imports no backend in this process."""
    yield Text(f"lockstep {__version__}, Python {platform.python_version()}", "bold")
    yield Text(f"  {platform.platform()}, {sys.executable}")
    project = load_project()
    yield from list_settings(project)
    for package, requirement in PACKAGES.items():
        yield check_package(package, f"pip install '{requirement}'")
    for package, tested in ENGINES.items():
        install = f"pip install --no-deps -r ci/engines/{package}.txt"
        yield check_package(package, install, tested)
    if len(list_names()) == 1:  # the reference is always there
        yield Text("no backend is registered: pip install -e '.[all]' again", "yellow")
    yield from list_backends([*list_names(), *project.backends], settings)
    yield from check_records(settings.failures / RUNNING)


def list_settings(project: Project) -> Iterator[Text]:
    """Yields a line for each setting of the project, with its origin."""
    for name, value in project.origins.items():
        yield Text(make_printable(f"  {name} = {value}"))
    if not project.origins:
        yield Text(f"  no settings: {TABLE} in {FILE} can have {', '.join(NAMES)}")


def list_backends(names: Sequence[str], settings: Settings) -> Iterator[Text]:
    """Yields a line with the backends that can run, and a line for each reason why
    others cannot."""
    ready, absent, broken = [], dict[str, list[str]](), []
    for name, event in declare_all(names, settings).items():
        if isinstance(event, Refused):
            absent.setdefault(event.why, []).append(name)
        elif isinstance(event, Stopped):
            broken.append(f"{name}: could not be loaded: {event.describe()}")
        else:
            ready.append(name)
    if ready:
        yield Text.assemble(("✓ ", "green"), f"can be checked: {', '.join(ready)}")
    for reason, backends in absent.items():
        line = f"{reason}, for {shorten_list(backends)}"
        yield Text.assemble(("– ", "yellow"), line)
    for line in broken:
        yield Text.assemble(("✗ ", "bold red"), line)


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


def check_package(package: str, install: str, tested: str = "") -> Text:
    """Returns a line with the installed version of a package.

    Args:
        package: the name of the package.
        install: the command that installs the package.
        tested: the only tested version; empty if all versions are supported.
    """
    try:
        installed = version(package)
    except PackageNotFoundError:
        name = f"{package} {tested}".strip()
        line = f"{name} is not installed: {install}"
        return Text.assemble(("– ", "yellow"), line)
    if tested and Version(installed).public != tested:
        line = f"{package} {installed} is installed; tested with {tested}: {install}"
        return Text.assemble(("– ", "yellow"), line)
    return Text.assemble(("✓ ", "green"), f"{package} {installed}")


def check_records(folder: Path) -> Iterator[Text]:
    """Yields a line for each program that was running when its process was killed."""
    for path in sorted(folder.glob("*.json")):
        try:
            programs = load_programs(path)
        except UsageError:
            continue
        for program in programs:
            line = get_replay_line(path, {}, str(program.meta.get("backend")))
            message = f"{path} was running when its process was killed; see: {line}"
            yield Text(make_printable(message))


@define("backends", "start", "server", "failures")
def backends(settings: Settings) -> int:
    """Lists what can be checked here, and why the rest cannot."""
    console = PlainConsole()
    events = declare_all(settings.backends or list(list_names()), settings)
    for name, event in events.items():
        for line in describe_backend(name, event):
            console.print(line, soft_wrap=True)
    missing = any(isinstance(event, Stopped) for event in events.values())
    return 2 if missing and settings.backends else 0


def describe_backend(name: str, event: Declared | Stopped) -> list[Text]:
    """Returns the lines that describe a backend's declaration."""
    if isinstance(event, Stopped):
        return [Text.assemble((name, "bold yellow"), f": {event.describe()}")]
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


@define("start", "failures")
def doctor(settings: Settings) -> int:
    """Lists what this machine can check, with versions, and what to install."""
    console = PlainConsole()
    for line in list_checks(settings):
        console.print(line, soft_wrap=True)
    return 0
