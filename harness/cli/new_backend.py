"""Defines `lockstep new-backend`, which writes a file to complete, based on the
interface."""

from __future__ import annotations

import inspect
import json
import keyword
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import packages_distributions
from pathlib import Path
from shlex import quote
from textwrap import fill, indent
from typing import Any, get_args

import click
import jinja2
from msgspec import UnsetType

from lockstep.harness.backends.driver.messages import PLACE, get_operation
from lockstep.harness.backends.interface import (
    BatchCache,
    BatchListCache,
    BatchStateCache,
    LayerCache,
    ListCache,
    StateCache,
)
from lockstep.harness.backends.paged import PagedCache
from lockstep.harness.cli.kits import LANGUAGES, read_kit
from lockstep.harness.cli.options import define, flag, option
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.protocol import list_messages
from lockstep.harness.contracts.tables import explain
from lockstep.harness.core.errors import UsageError

# --- the text ---------------------------------------------------------------------------


INTERFACES: Mapping[str, type] = {
    kind: interface
    for rules in CONTRACTS.values()
    for kind, interface in rules.interfaces.items()
}
"""Kind → the interface of its caches, for kinds used without a wrapper."""

BASES: Mapping[type, type] = {
    StateCache: LayerCache,
    ListCache: LayerCache,
    BatchStateCache: BatchCache,
    BatchListCache: BatchCache,
}
"""Interface → the interface that has its other operations."""

BATCH = "batch-"
"""The prefix of batched kinds; the kind of a row follows."""

READS = ("state", "size")
OF_PARTS = ("update", *READS)
"""Operations of the parts of a list, which the list does not have."""

OF_STATES = ("read_states", "list_ends", "write_states")
"""The methods of a paged cache that stores states."""

IMPORTS = {
    "numpy": "import numpy as np",
    "torch": "import torch",
    "mlx": "import mlx.core as mx\nimport numpy as np",
}

FIELDS: Mapping[str, Sequence[str]] = {
    "list": ("parts",),
    **{
        kind: names
        for rules in CONTRACTS.values()
        for kind, names in rules.heeded.items()
    },
}
"""Kind → the config fields that a cache of this kind has to respect."""

VARIANTS = {"state": "states", "list": "list"}
"""Kind → the variant of messages for its caches and their batches."""

WIDTH = 88


@dataclass(frozen=True)
class CacheClass:
    """A class of a skeleton, whose methods the user has to write.

    Attributes:
        name: the name of the class.
        kind: the kind of its caches.
        methods: the names of the methods.
    """

    name: str
    kind: str
    rules: Contract
    methods: Sequence[str]

    @property
    def is_batch(self) -> bool:
        return self.kind.startswith(BATCH)

    @property
    def is_paged(self) -> bool:
        return self.interface is PagedCache

    @property
    def interface(self) -> type:
        return ListCache if self.kind == "list" else INTERFACES[self.kind]

    @property
    def about(self) -> str:
        return (inspect.getdoc(self.interface) or "").splitlines()[0]

    @property
    def fields(self) -> str:
        """The expressions for the fields of the class's config, as lines of a
        docstring."""
        text = ", ".join(f'config["{field}"]' for field in FIELDS[self.kind])
        margin, width = " " * 8, WIDTH - len('."""')
        return fill(text, width, initial_indent=margin, subsequent_indent=margin).lstrip()

    @cached_property
    def members(self) -> Mapping[str, Any]:
        """The members of the interface, by name."""
        base = BASES.get(self.interface)
        return {**(vars(base) if base else {}), **vars(self.interface)}

    def is_asked(self, name: str) -> bool:
        """Returns whether this kind of cache needs a property or method that only some
        kinds have."""
        if name == "update":
            return self.kind.removeprefix(BATCH) in ("kv", "rotating", "pooled")
        if name in ("offset", "offsets", "parts"):  # a list has them in its parts
            is_list = self.kind.endswith("list")
            return not is_list and self.is_batch == (name == "offsets")
        return name != "cached" or self.kind == "encoder"

    def name_message(self, method: str) -> str:
        """Returns the message that a driver gets for a method."""
        if self.is_paged:
            return "open_request" if method == "open" else method
        variant = f"{method}.{VARIANTS.get(self.kind.removeprefix(BATCH))}"
        return variant if variant in list_messages(self.rules.name) else method

    def describe_added(self, name: str) -> str:
        """Describes the method of an operation that the interface does not have."""
        operations = self.rules.operations.values()
        does, answer = explain(
            next(operation for operation in operations if operation.get_method() == name)
        )
        return fill(does, WIDTH) + (f"\n\nAnswer: {answer}" if answer else "")

    def write_methods(self) -> Iterator[str]:
        """Writes the methods, after the properties."""
        for name, member in self.members.items():
            if isinstance(member, property) and self.is_asked(name):
                yield write_body(name, ["self"], get_text(member), "@property\n")
        messages = list_messages(self.rules.name)
        for name in self.methods:
            if name in self.members:
                member = self.members[name]
                parameters = inspect.signature(member).parameters.values()
                plain = [str(item.replace(annotation=item.empty)) for item in parameters]
                yield write_body(name, plain, get_text(member))
            elif name in messages:
                requested, _ = messages[name]
                yield write_body(name, ["self", *requested], self.describe_added(name))

    def write_messages(self) -> Iterator[str]:
        """Writes a method for each message that a driver may get."""
        messages = list_messages(self.rules.name)
        names = [name for name in ("offsets", "update", "cached") if self.is_asked(name)]
        for name in dict.fromkeys([*names, *self.methods]):
            message = self.name_message(name)
            if message in messages:
                requested, answered = messages[message]
                fields = [
                    f"{field}=None" if UnsetType in get_args(sort) else field
                    for field, sort in requested.items()
                    if field not in PLACE
                ]
                answer = f"Answers {', '.join(answered) or 'nothing'}."
                text = get_text(self.members.get(name)) or self.describe_added(name)
                text = f"{text}\n\n{answer}"
                yield write_body(get_operation(message), ["self", *fields], text)


def write_skeleton(name: str, kind: str, check: str, arrays: str | None) -> str:
    """Returns the text of a module with a factory. Without `arrays`, returns the text
    of a program that implements the protocol in `harness/backends/driver/README.md`."""
    rules = get_rules(kind)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "skeletons"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    template = environment.get_template(f"{'backend' if arrays else 'driver'}.py.jinja")
    operations = rules.list_operations(kind)
    later = [operation for operation in operations if operation not in rules.required]
    return template.render(
        name=name,
        kind=kind,
        check=check,
        arrays=arrays,
        imports=IMPORTS[arrays] if arrays else "",
        errors=", ".join(f'"{error}"' for error in rules.list_errors([kind])),
        cache=format_cache(kind),
        contract=rules.name,
        classes=list_classes(rules, kind),
        has_parts=INTERFACES[kind] is BatchListCache,
        tells=json.dumps(rules.tells, indent=4),
        required=json.dumps(rules.required),
        others=json.dumps(later, indent=4),
    )


def list_classes(rules: Contract, kind: str) -> list[CacheClass]:
    """Lists the classes to write. For a batch, the class of a single row comes first;
    for a list, the classes of its parts come before both."""
    operations = rules.list_operations(kind)
    cache = CacheClass("Cache", kind, rules, list_needed(rules, kind, operations))
    if not cache.is_batch:
        return [cache]
    is_list = cache.interface is BatchListCache
    single = "kv" if is_list else kind.removeprefix(BATCH)
    of_row, batch = get_rules(single), BATCH + single
    shared = [name for name in operations if name in of_row.operations]
    if not is_list:
        needed = list_needed(of_row, single, shared)
        return [CacheClass("Row", single, of_row, needed), cache]
    of_all = [name for name in shared if name not in OF_PARTS]
    return [
        CacheClass("Row", single, of_row, of_row.list_methods(single, READS)),
        CacheClass("Batch", batch, rules, rules.list_methods(batch, READS)),
        CacheClass("List", "list", of_row, of_all),
        cache,
    ]


def list_needed(rules: Contract, kind: str, operations: Sequence[str]) -> list[str]:
    """Lists the methods that a cache needs for these operations, the required methods
    first. For a paged cache, also lists the methods in `Kind.tells` and the methods of
    its memory."""
    names = rules.list_methods(kind, rules.required)
    names += ["pad_left"] if kind.startswith(BATCH) else []
    names += rules.list_methods(kind, operations)
    if INTERFACES[kind] is PagedCache:
        names += rules.tells
        names += [] if kind.endswith("-state") else ["update"]
        names += OF_STATES if kind.endswith(("-state", "-hybrid")) else ()
    return list(dict.fromkeys(names))


def get_rules(kind: str) -> Contract:
    return next(rules for rules in CONTRACTS.values() if kind in rules.kinds)


def get_text(member: Any) -> str:
    """Returns the docstring of a member, with the class names of the skeleton."""
    text = inspect.getdoc(member) or "" if member else ""
    return text.replace("LayerCache.", "Row.").replace("StateCache.", "Row.")


def write_body(name: str, parameters: Sequence[str], text: str, before: str = "") -> str:
    end = "\n    " if "\n\n" in text else ""
    head = fill(f"def {name}({', '.join(parameters)}):", WIDTH, subsequent_indent=" " * 8)
    body = f'{before}{head}\n    """'
    body += indent(text, "    ").lstrip() + f'{end}"""\n    raise NotImplementedError\n'
    return indent(body, "    ")


def format_cache(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} cache"


# --- the command ------------------------------------------------------------------------


@define(
    click.argument("name"),
    option(
        "--kind",
        f"Kind of cache: {', '.join(INTERFACES)}.",
        type=click.Choice(list(INTERFACES)),
        default="kv",
        show_default=True,
        metavar="KIND",
    ),
    option(
        "--arrays",
        "Array framework.",
        type=click.Choice(list(IMPORTS)),
        default="numpy",
        show_default=True,
    ),
    flag(
        "--exec is_driver",
        "Write a driver: a program that answers JSON lines, a sketch for any language.",
    ),
    option(
        "--language",
        "With --exec: copy the kit for drivers in this language, and its example.",
        type=click.Choice(list(LANGUAGES)),
    ),
    option(
        "-o --output folder",
        "Folder for the file; default: the current one.",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("."),
    ),
    name="new-backend",
)
def new_backend(
    name: str,
    kind: str,
    arrays: str,
    is_driver: bool,
    language: str | None,
    folder: Path,
) -> int:
    """Writes a backend to complete step by step.

    The file runs immediately; `lockstep check` lists the missing methods. NAME is the
    name of the backend and, with _ for - (nothing in Go), of its file.

    Examples:
      lockstep new-backend my-cache               my_cache.py, a numpy kv cache
      lockstep new-backend my-ring --kind rotating --arrays torch
      lockstep new-backend my-batch --kind batch-kv
      lockstep new-backend my-list --kind batch-list
      lockstep new-backend my-pool --kind causal --arrays mlx -o checks
      lockstep new-backend my-blocks --kind paged-full
      lockstep new-backend my-driver --exec       a program that answers JSON lines
      lockstep new-backend my-driver --exec --language rust
    """
    module = get_module(name)
    path = folder / f"{module}.py"
    if language and not is_driver:
        raise UsageError(
            f"--language {language}: only a driver can be written in another language;"
            " add --exec"
        )
    if language:
        return copy_kit(name, kind, language, folder)
    if is_driver:
        prefix = "" if folder.is_absolute() else "./"
        line = get_check_line(f"exec:{prefix}{quote(str(path))}", kind)
        save(path, write_skeleton(name, kind, line, None))
        path.chmod(path.stat().st_mode | 0o111)
    else:
        if module in sys.stdlib_module_names or module in packages_distributions():
            raise UsageError(f"{module} is an installed module; choose another name")
        line = get_check_line(f"{module}:make", kind)
        save(path, write_skeleton(name, kind, line, arrays))
        if folder != Path("."):
            line = f"PYTHONPATH={quote(str(folder))} {line}"
    cache = (
        f"a driver of {format_cache(kind)}" if is_driver else f"a {arrays} {kind} cache"
    )
    click.echo(f"Wrote {path}, {cache} to complete. To see what is missing, run:")
    click.echo(f"  {line}")
    return 0


def copy_kit(name: str, kind: str, language: str, folder: Path) -> int:
    """Copies a kit and its example to a folder, and prints the commands that build and
    check the driver. Returns the exit status."""
    kit, example = read_kit(language, name, kind)
    files = LANGUAGES[language]
    copy = folder / files.kit
    stem = get_module(name).replace("_", files.joint)
    source = folder / f"{stem}{Path(files.example).suffix}"
    names = {name.casefold(), source.name.casefold()}  # the program and its source
    if not stem or copy.name in names:
        raise UsageError(
            f"{name!r} cannot be the name of a driver in {language}; choose another name"
        )
    is_there = copy.is_file() and copy.read_text() == kit  # from another driver
    for path in (source,) if is_there else (copy, source):
        require_absent(path)
    if not is_there:
        save(copy, kit)
    save(source, example)
    program = f"{'' if folder.is_absolute() else './'}{folder / name}"
    paths = {"kit": copy, "source": source, "program": program}
    quoted = {field: quote(str(path)) for field, path in paths.items()}
    click.echo(f"Wrote {copy}, which you need not change, and {source}, whose caches you")
    click.echo("replace. They are right as they stand. To check them, run:")
    if files.build:
        click.echo(f"  {files.build.format(**quoted)}")
    click.echo(f"  {get_check_line(f'exec:{files.start.format(**quoted)}', kind)}")
    return 0


def get_module(name: str) -> str:
    """Returns the name of the file without its suffix. Raises UsageError."""
    module = re.sub(r"[-. ]+", "_", name)
    is_name = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,59}", module)
    if not is_name or keyword.iskeyword(module):
        raise UsageError(
            f"{name!r} cannot be the name of a Python file; use letters, digits and -,"
            " as in my-cache"
        )
    return module


def get_check_line(backend: str, kind: str) -> str:
    return f"lockstep check --backend {quote(backend)} --kind {kind}"


def save(path: Path, text: str) -> None:
    """Writes a new file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        require_absent(path)
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror}); choose another folder with -o"
        ) from None


def require_absent(path: Path) -> None:
    """Raises UsageError if the file exists."""
    if path.exists():
        raise UsageError(
            f"{path}: exists already and was not changed; choose another name, or"
            " another folder with -o"
        )
