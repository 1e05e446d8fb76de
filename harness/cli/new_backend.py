"""`lockstep new-backend`: a file to complete."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from shlex import quote

import click

from lockstep.harness.cli.options import command
from lockstep.harness.cli.skeleton import (
    IMPORTS,
    INTERFACES,
    say_cache,
    write_driver,
    write_skeleton,
)
from lockstep.harness.core.errors import UsageError

EXAMPLES = """\b
Examples:
  lockstep new-backend my-cache               my_cache.py, a numpy kv cache
  lockstep new-backend my-ring --kind rotating --arrays torch
  lockstep new-backend my-pool --kind causal --arrays mlx -o checks
  lockstep new-backend my-driver --exec       a program that answers JSON lines
"""


@click.command(
    name="new-backend",
    epilog=EXAMPLES,
    short_help="Writes a backend to complete.",
)
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(list(INTERFACES)),
    default="kv",
    show_default=True,
    help="Kind of cache.",
)
@click.option(
    "--arrays",
    type=click.Choice(list(IMPORTS)),
    default="numpy",
    show_default=True,
    help="Array framework.",
)
@click.option(
    "--exec",
    "is_driver",
    is_flag=True,
    help="Write a driver: a program that answers JSON lines, a sketch for any language.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("."),
    help="Folder for the file; default: the current one.",
)
@command
def new_backend(name: str, kind: str, arrays: str, is_driver: bool, folder: Path) -> int:
    """Writes a backend to complete step by step.

    It runs at once, and a check of it says what is missing. NAME is the name of the
    backend and, with _ for -, of its file.
    """
    module = get_module(name)
    path = folder / f"{module}.py"
    if is_driver:
        place = "" if folder.is_absolute() else "./"
        line = get_check_line(f"exec:{place}{quote(str(path))}", kind)
        save(path, write_driver(name, kind, line))
        path.chmod(path.stat().st_mode | 0o111)
    else:
        line = get_check_line(f"{module}:make", kind)
        save(path, write_skeleton(name, kind, arrays, line))
        if folder != Path("."):
            line = f"PYTHONPATH={quote(str(folder))} {line}"
    what = f"a driver of {say_cache(kind)}" if is_driver else f"a {arrays} {kind} cache"
    click.echo(f"Wrote {path}, {what} to complete. To see what is missing, run:")
    click.echo(f"  {line}")
    return 0


def get_module(name: str) -> str:
    """The name of the file, without its ending. Raises UsageError."""
    module = re.sub(r"[-. ]+", "_", name)
    is_name = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,59}", module)
    if not is_name or keyword.iskeyword(module):
        raise UsageError(
            f"{name!r} cannot name a Python file; take letters, digits and -, such as"
            " my-cache"
        )
    return module


def get_check_line(backend: str, kind: str) -> str:
    return f"lockstep check --backend {quote(backend)} --kind {kind}"


def save(path: Path, text: str) -> None:
    """Writes a file that is not there yet."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(
            f"{path}: exists already and was not changed; choose another name, or"
            " another folder with -o"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror}); choose another folder with -o"
        ) from None
