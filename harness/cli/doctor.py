"""Lists what is installed, what it can check, and what to do about the rest."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.text import Text

from lockstep.harness import __version__
from lockstep.harness.core.errors import UsageError, make_printable
from lockstep.harness.jobs.outcome import get_replay_line
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.programs.program import load_programs
from lockstep.harness.workers.messages import Declare, Stopped
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.registry import list_names

PACKAGES = (
    "numpy", "hypothesis", "torch", "triton", "mlx", "mlx-lm", "transformers",
    "pytest", "pytest-xdist",
)  # fmt: skip


def list_checks(failures: Path) -> Iterator[Text]:
    """The lines of a report; nothing of a backend is imported in this process."""
    yield Text(f"lockstep {__version__}, Python {platform.python_version()}", "bold")
    yield Text(f"  {platform.platform()}, {sys.executable}")
    for package in PACKAGES:
        yield check_package(package)
    if len(list_names()) == 1:  # the reference is always there
        yield Text("no backend is registered: pip install -e '.[all]' again", "yellow")
    with Pool(1, failures / RUNNING) as pool:
        for name in list_names():
            event = pool.call(Declare(name))
            if isinstance(event, Stopped):
                yield Text.assemble(("– ", "yellow"), f"{name}: {event.why}")
            else:
                yield Text.assemble(("✓ ", "green"), f"{name} can be checked")
    yield from check_records(failures / RUNNING)


def check_package(package: str) -> Text:
    try:
        return Text.assemble(("✓ ", "green"), f"{package} {version(package)}")
    except PackageNotFoundError:
        return Text.assemble(("– ", "yellow"), f"{package} is not installed")


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
