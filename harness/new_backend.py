"""`lockstep new-backend`: a file to fill in, made of the interface itself."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from textwrap import fill, indent
from typing import Any

import click
import jinja2

from harness.backend import LayerCache, StateCache, UnifiedCache
from harness.command import command
from harness.contracts import CONTRACTS
from harness.contracts.base import Contract
from harness.errors import UsageError

INTERFACES: Mapping[str, type] = {
    **dict.fromkeys(("kv", "rotating"), LayerCache),
    "state": StateCache,
    **dict.fromkeys(
        ("causal", "swa", "swa-memory", "chunked", "encoder", "recurrent"), UnifiedCache
    ),
}
"""Kind → what a cache of that kind looks like, of those that stand alone."""

IMPORTS = {
    "numpy": "import numpy as np",
    "torch": "import torch",
    "mlx": "import mlx.core as mx\nimport numpy as np",
}

SIZES = ("heads", "key_dim", "value_dim", "dtype")
POOL = ("sequences", "capacity", "batch", *SIZES, "rope_bases", "shift")
STATES = ("slots", "interval", "checkpoints", "conv_width")
FIELDS: Mapping[str, Sequence[str]] = {
    "kv": SIZES,
    "rotating": ("window", *SIZES),
    "state": (*SIZES, "conv_width"),
    "causal": POOL,
    "swa": ("window", *POOL),
    "swa-memory": ("window", "memory", *POOL),
    "chunked": ("chunk", *POOL),
    "encoder": POOL,
    "recurrent": (*POOL, *STATES),
}
"""The fields of its config that a cache of each kind has to heed."""

WIDTH = 88

EXAMPLES = """\b
Examples:
  lockstep new-backend my-cache                       my_cache.py, a full cache on numpy
  lockstep new-backend my-ring --kind rotating --arrays torch
  lockstep new-backend my-pool --kind causal --arrays mlx -o checks
"""


@click.command(
    name="new-backend",
    epilog=EXAMPLES,
    short_help="Writes a backend to fill in.",
)
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(list(INTERFACES)),
    default="kv",
    show_default=True,
    help="What kind of cache it is.",
)
@click.option(
    "--arrays",
    type=click.Choice(list(IMPORTS)),
    default="numpy",
    show_default=True,
    help="The framework of its arrays.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("."),
    help="The folder for the file; default: this one.",
)
@command
def new_backend(name: str, kind: str, arrays: str, folder: Path) -> int:
    """Writes a backend that runs at once, says what it lacks, and is filled in step by
    step. NAME is its name, and makes that of the file."""
    module = get_module(name)
    path = folder / f"{module}.py"
    save(path, write_skeleton(name, module, kind, arrays))
    click.echo(f"{path}: a {kind} cache on {arrays}, to be filled in. What it lacks says")
    place = "" if folder == Path(".") else f"PYTHONPATH={quote(str(folder))} "
    click.echo(f"  {place}{get_check_line(module, kind)}")
    return 0


def get_module(name: str) -> str:
    """The name of the file, without its ending. Raises UsageError."""
    module = re.sub(r"[-. ]+", "_", name)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,59}", module) or keyword.iskeyword(
        module
    ):
        raise UsageError(
            f"{name!r} cannot name a Python file; take letters, digits and -, such as"
            " my-cache"
        )
    return module


def get_check_line(module: str, kind: str) -> str:
    return f"lockstep check --backend {module}:make --kind {kind}"


def save(path: Path, text: str) -> None:
    """Writes a file that is not there yet."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(
            f"{path}: is there already, and stays as it is; choose another name, or"
            " another folder with -o"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror}); choose another folder with -o"
        ) from None


def write_skeleton(name: str, module: str, kind: str, arrays: str) -> str:
    """The text of the file."""
    rules = next(rules for rules in CONTRACTS.values() if kind in rules.kinds)
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "skeletons")
    environment = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    interface = INTERFACES[kind]
    later = [each for each in rules.list_operations(kind) if each not in rules.required]
    return environment.get_template("backend.py.jinja").render(
        name=name,
        check=get_check_line(module, kind),
        kind=kind,
        contract=rules.name,
        arrays=arrays,
        imports=IMPORTS[arrays],
        required=", ".join(f'"{each}"' for each in rules.required),
        others=list_lines(later),
        errors=bool(rules.list_errors([kind])),
        about=(inspect.getdoc(interface) or "").splitlines()[0],
        fields=fill_behind(", ".join(f'config["{each}"]' for each in FIELDS[kind])),
        methods=list(list_methods(interface, rules, kind)),
    )


def list_lines(names: Sequence[str]) -> str:
    """A list in Python, on one line or, if it is long, on several."""
    items = ", ".join(f'"{name}"' for name in names)
    if len(items) < WIDTH - len("LATER = []"):
        return f"[{items}]"
    return "[\n" + "".join(f'    "{name}",\n' for name in names) + "]"


def fill_behind(text: str) -> str:
    return fill(text, WIDTH, subsequent_indent=" " * 8, initial_indent=" " * 8).lstrip()


def list_methods(interface: type, rules: Contract, kind: str) -> Iterator[str]:
    """Each method that a cache of this kind may need, to be written, those that it must
    have first."""
    required = rules.list_methods(kind, rules.required)
    every = rules.list_methods(kind, rules.list_operations(kind))
    members = {**vars(LayerCache), **vars(interface)} if kind == "state" else {}
    members = members or dict(vars(interface))
    for name, member in members.items():
        if isinstance(member, property) and is_asked(name, kind):
            yield write_method(name, member.fget, "@property\n")
    for name in dict.fromkeys([*required, *every]):
        if name in members:
            yield write_method(name, members[name])


def is_asked(name: str, kind: str) -> bool:
    """Whether a property is read of caches of this kind."""
    return name != "cached" or kind == "encoder"


def write_method(name: str, function: Any, before: str = "") -> str:
    """A method with the words of the interface, which nobody has written yet."""
    parameters = ", ".join(inspect.signature(function).parameters)
    text = inspect.getdoc(function) or ""
    end = "\n    " if "\n\n" in text else ""
    body = f'{before}def {name}({parameters}):\n    """'
    body += indent(text, "    ").lstrip() + f'{end}"""\n    raise NotImplementedError\n'
    return indent(body, "    ")
