"""The command `lockstep`, with its small commands."""

from __future__ import annotations

import json
import platform
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
from packaging.version import Version
from rich.text import Text

from lockstep.harness import __version__
from lockstep.harness.cli.bisect import bisect
from lockstep.harness.cli.campaign import campaign
from lockstep.harness.cli.jobs import check, explore, faults, vectors
from lockstep.harness.cli.new_backend import new_backend
from lockstep.harness.cli.options import (
    Commands,
    Seconds,
    command,
    count_cores,
    print_line,
    printing,
    shared,
)
from lockstep.harness.cli.replay import replay, report, show, snippet
from lockstep.harness.cli.watch import watch
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import UsageError, make_printable
from lockstep.harness.jobs.check import open_pool
from lockstep.harness.jobs.outcome import (
    Settings,
    describe_stop,
    get_replay_line,
    make_failure,
    save,
)
from lockstep.harness.jobs.replay import get_own_backend, get_single
from lockstep.harness.programs.files import RUNNING, load_saved
from lockstep.harness.programs.program import load_programs, trace
from lockstep.harness.reports.console import PlainConsole, print_failure
from lockstep.harness.workers.messages import (
    Declare,
    Declared,
    Refused,
    Shrink,
    Stopped,
)
from lockstep.harness.workers.registry import list_names

# --- what is installed, what it can check, and what to do about the rest ----------------


PACKAGES = (
    "numpy", "hypothesis", "torch", "triton", "mlx", "mlx-lm", "transformers", "ray",
    "pytest", "pytest-xdist",
)  # fmt: skip

ENGINES = {"vllm": "0.33.0", "sglang": "0.5.23"}
"""Engine → the version whose block manager is checked. Engines are installed without
their dependencies, which no extra can say, so `ci/engines/` pins them."""


def list_checks(settings: Settings) -> Iterator[Text]:
    """The lines of a report; nothing of a backend is imported in this process."""
    yield Text(f"lockstep {__version__}, Python {platform.python_version()}", "bold")
    yield Text(f"  {platform.platform()}, {sys.executable}")
    for package in PACKAGES:
        yield check_package(package)
    for package, tested in ENGINES.items():
        yield check_engine(package, tested)
    if len(list_names()) == 1:  # the reference is always there
        yield Text("no backend is registered: pip install -e '.[all]' again", "yellow")
    for name, event in declare_all(list(list_names()), settings).items():
        if isinstance(event, Refused):
            yield Text.assemble(("– ", "yellow"), f"{name}: {event.why}")
        elif isinstance(event, Stopped):
            words = f"{name}: could not be loaded: {event.describe()}"
            yield Text.assemble(("✗ ", "bold red"), words)
        else:
            yield Text.assemble(("✓ ", "green"), f"{name} can be checked")
    yield from check_records(settings.failures / RUNNING)


def declare_all(
    names: Sequence[str], settings: Settings
) -> Mapping[str, Declared | Stopped]:
    """Loads backends on all cores: name → its declaration, or why there is none."""
    found: dict[str, Declared | Stopped] = {}
    with open_pool(settings, count_cores()) as pool:
        for task, event in pool.run(deque(map(Declare, names))):
            if isinstance(event, Declared | Stopped):
                found[task.backend] = event
    return {name: found[name] for name in names}


def check_package(package: str) -> Text:
    try:
        return Text.assemble(("✓ ", "green"), f"{package} {version(package)}")
    except PackageNotFoundError:
        return Text.assemble(("– ", "yellow"), f"{package} is not installed")


def check_engine(package: str, tested: str) -> Text:
    install = f"pip install --no-deps -r ci/engines/{package}.txt"
    try:
        installed = version(package)
    except PackageNotFoundError:
        words = f"{package} {tested} is not installed: {install}"
        return Text.assemble(("– ", "yellow"), words)
    if Version(installed).public == tested:
        return Text.assemble(("✓ ", "green"), f"{package} {installed}")
    words = f"{package} {installed} is installed; tested with {tested}: {install}"
    return Text.assemble(("– ", "yellow"), words)


def check_records(folder: Path) -> Iterator[Text]:
    """Programs that were running when a whole run was killed."""
    for path in sorted(folder.glob("*.json")):
        try:
            programs = load_programs(path)
        except UsageError:
            continue
        for program in programs:
            line = get_replay_line(path, str(program.meta.get("backend")))
            words = f"{path} was running when its process was killed; see: {line}"
            yield Text(make_printable(words))


# --- the command group ------------------------------------------------------------------


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 88}

SHRINK_EXAMPLES = """\b
Examples:
  lockstep shrink failures/SIGNATURE/FILE.json --time 600
  lockstep shrink FILE --backend mycache:make   on a backend of your own
"""

TRACE_EXAMPLES = """\b
Example:
  echo '{"format": "lockstep/1", "contract": "layer", "config": {"kind": "kv"},
         "ops": [{"op": "update", "length": 2}]}' > two.json
  lockstep trace two.json
"""


EXAMPLES = """\b
Examples:
  lockstep check                     check every installed backend
  lockstep replay failures           run the saved failures again
  lockstep report -o page            show them on a page
  lockstep new-backend my-cache      begin with a cache of your own
"""


@click.group(cls=Commands, context_settings=CONTEXT, epilog=EXAMPLES)
@click.version_option(__version__, prog_name="lockstep")
def main() -> None:
    """Runs KV caches side by side with a slow, obviously correct reference.

    Exit status: 0 all agree; 1 a backend diverges, crashes or hangs; 2 something was not
    run.
    """


@main.command(
    epilog=SHRINK_EXAMPLES, short_help="Continues to shrink a program that diverges."
)
@click.argument("file", type=click.Path(path_type=Path))
@shared("backend")
@click.option(
    "--time",
    "seconds",
    type=Seconds(0.1, 3600),
    default=60,
    show_default=True,
    metavar="S",
    help="Stop after S seconds.",
)
@shared("step", "start", "strict", "failures")
@command
def shrink(settings: Settings, file: Path, backend: str | None) -> int:
    """Continues to shrink a program that diverges, and saves the shortest one."""
    program = get_single(file)
    name = backend or get_own_backend(file, program)
    console = PlainConsole()
    with open_pool(settings, 1) as pool:
        declared = pool.call(Declare(name))
        if isinstance(declared, Stopped):
            raise UsageError(f"{name}: {declared.describe()}")
        event = pool.call(Shrink(name, program.to_json(), settings.seconds or 0))
    meta = {"shrunk_from": file.name}
    if isinstance(event, Stopped):
        blamed = event.blame()
        if blamed is None:
            raise UsageError(f"{name}: {describe_stop(settings.failures, event, name)}")
        small, divergence = blamed
    elif event.found is None:
        console.print(f"{name} agrees with the reference: nothing to shrink")
        return 0
    else:
        small, divergence = event.found.parse(), event.found.divergence
        if event.found.flaky is not None:
            meta["flaky"] = event.found.flaky
    place = settings.failures, small, divergence, name, declared.get_environment()
    failure = save(make_failure(*place, meta, settings.get_options()))
    status = 2 if divergence.is_unwritten else 1
    with printing(lambda: status):
        print_failure(console, failure)
        if failure.unsaved:
            print_line(json.dumps(failure.to_json()))
    return status


@main.command(
    name="trace", epilog=TRACE_EXAMPLES, short_help="Prints what the reference expects."
)
@click.argument("file", type=click.Path(path_type=Path))
@command
def trace_command(file: Path) -> int:
    """Prints what the reference expects of each operation, as JSON.

    One line for each program of a .jsonl file.
    """
    for program in load_saved(file):
        answer = {
            "format": "lockstep-trace/1",
            "program": program.to_json(),
            "expected": trace(program),
        }
        click.echo(json.dumps(answer))
    return 0


@main.command(short_help="Lists what can be checked here.")
@shared("backends", "start", "failures")
@command
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
    """A backend's declaration, in lines."""
    if isinstance(event, Stopped):
        return [Text.assemble((name, "bold yellow"), f": {event.describe()}")]
    versions = ", ".join(f"{key} {value}" for key, value in event.versions.items())
    head = f" on {event.device}, {versions}, {', '.join(event.dtypes)}"
    lines = [Text.assemble((name, "bold green"), head)]
    for contract, kinds in event.contracts.items():
        for kind, declared in kinds.items():
            every = set(CONTRACTS[contract].list_operations(kind))
            left = ", ".join(sorted(every - declared.operations))
            lines.append(
                Text(f"  {contract} {kind}: " + (f"all but {left}" if left else "all"))
            )
    return lines


@main.command(short_help="Lists what is installed and missing here.")
@shared("start", "failures")
@command
def doctor(settings: Settings) -> int:
    """Lists what this machine can check, with versions, and what to install."""
    console = PlainConsole()
    for line in list_checks(settings):
        console.print(line, soft_wrap=True)
    return 0


JOBS = (check, campaign, replay, watch, bisect, faults, explore, vectors)
for each in (*JOBS, snippet, show, report, new_backend):
    main.add_command(each)

if __name__ == "__main__":
    main()
