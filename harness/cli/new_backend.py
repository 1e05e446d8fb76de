"""`lockstep new-backend`: a file to complete, made of the interface itself."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from textwrap import fill, indent
from typing import Any, NamedTuple

import click
import jinja2

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
from lockstep.harness.cli.options import command
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
"""Kind → what a cache of that kind looks like, of those that stand alone."""

BASES: Mapping[type, type] = {
    StateCache: LayerCache,
    ListCache: LayerCache,
    BatchStateCache: BatchCache,
    BatchListCache: BatchCache,
}
"""Interface → the one that has its other operations."""

BATCH = "batch-"
"""Before the kind of its rows: the name of a kind with rows."""

READS = ("state", "size")
OF_PARTS = ("update", *READS)
"""Operations that a list leaves to its parts."""

IMPORTS = {
    "numpy": "import numpy as np",
    "torch": "import torch",
    "mlx": "import mlx.core as mx\nimport numpy as np",
}

FIELDS: Mapping[str, Sequence[str]] = {
    "list": ("parts",),
    **{kind: names for each in CONTRACTS.values() for kind, names in each.heeded.items()},
}
"""The fields of its config that a cache of each kind has to heed."""

WIDTH = 88


def write_skeleton(name: str, kind: str, arrays: str, check: str) -> str:
    """A module with a factory."""
    rules = get_rules(kind)
    return render(
        "backend.py.jinja",
        rules,
        kind,
        name=name,
        check=check,
        arrays=arrays,
        imports=IMPORTS[arrays],
        errors=bool(rules.list_errors([kind])),
        write_methods=list_methods,
    )


def write_driver(name: str, kind: str, check: str) -> str:
    """A program that speaks the protocol in `harness/backends/driver/README.md`."""
    rules = get_rules(kind)
    errors = ", ".join(f'"{error}"' for error in rules.list_errors([kind]))
    return render(
        "driver.py.jinja",
        rules,
        kind,
        name=name,
        check=check,
        errors=errors,
        write_methods=write_messages,
    )


class Written(NamedTuple):
    """A class of a skeleton: of a cache of some kind, with these methods."""

    name: str
    kind: str
    rules: Contract
    methods: Sequence[str]


Write = Callable[[Written], Iterator[str]]


def render(
    template: str, rules: Contract, kind: str, write_methods: Write, **more: Any
) -> str:
    """A template with all that the skeletons have in common."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "skeletons"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    later = [each for each in rules.list_operations(kind) if each not in rules.required]
    return environment.get_template(template).render(
        kind=kind,
        cache=format_cache(kind),
        contract=rules.name,
        classes=[describe(each, write_methods) for each in list_classes(rules, kind)],
        has_parts=is_list(kind),
        tells=list_lines(rules.tells),
        required=", ".join(f'"{each}"' for each in rules.required),
        others=list_lines(later),
        **more,
    )


def describe(written: Written, write_methods: Write) -> dict[str, Any]:
    """A class, for the templates."""
    kind, margin = written.kind, " " * 8
    fields = ", ".join(f'config["{field}"]' for field in FIELDS[kind])
    width = WIDTH - len('."""')
    lines = fill(fields, width, initial_indent=margin, subsequent_indent=margin)
    return {
        "name": written.name,
        "kind": kind,
        "about": (inspect.getdoc(get_interface(kind)) or "").splitlines()[0],
        "fields": lines.lstrip(),
        "has_rows": kind.startswith(BATCH),
        "methods": list(write_methods(written)),
    }


def list_classes(rules: Contract, kind: str) -> list[Written]:
    """The caches of a kind, to be written: for one with rows, one row alone first; for a
    list, its parts before both."""
    operations = rules.list_operations(kind)
    cache = Written("Cache", kind, rules, list_names(rules, kind, operations))
    if not kind.startswith(BATCH):
        return [cache]
    single = "kv" if is_list(kind) else kind.removeprefix(BATCH)
    of_row = get_rules(single)
    shared = [name for name in operations if name in of_row.operations]
    if not is_list(kind):
        return [Written("Row", single, of_row, list_names(of_row, single, shared)), cache]
    batch, of_all = BATCH + single, [name for name in shared if name not in OF_PARTS]
    return [
        Written("Row", single, of_row, of_row.list_methods(single, READS)),
        Written("Batch", batch, rules, rules.list_methods(batch, READS)),
        Written("List", "list", of_row, of_all),
        cache,
    ]


def get_rules(kind: str) -> Contract:
    return next(rules for rules in CONTRACTS.values() if kind in rules.kinds)


def list_lines(names: Sequence[str]) -> str:
    """A list in Python, on one line or, if it is long, on several."""
    items = ", ".join(f'"{name}"' for name in names)
    if len(items) < WIDTH - len("LATER = []"):
        return f"[{items}]"
    return "[\n" + "".join(f'    "{name}",\n' for name in names) + "]"


def list_methods(written: Written) -> Iterator[str]:
    """Each method of a class, to be written, behind its properties."""
    kind, members = written.kind, get_members(written.kind)
    for name, member in members.items():
        if isinstance(member, property) and is_asked(name, kind):
            yield write_method(name, member.fget, "@property\n")
    for name in written.methods:
        if name in members:
            yield write_method(name, members[name])
        elif name in list_messages(written.rules.name):
            yield write_added(written, name)


def write_messages(written: Written) -> Iterator[str]:
    """Each message that a driver may get for the methods of a class, as a method to be
    written."""
    kind, members = written.kind, get_members(written.kind)
    messages = list_messages(written.rules.name)
    names = [name for name in ("offsets", "update", "cached") if is_asked(name, kind)]
    for name in dict.fromkeys([*names, *written.methods]):
        message = name_message(name, kind, messages)
        if message in messages:
            asked, answered = messages[message]
            fields = [field for field in asked if field not in PLACE]
            text = get_words(members.get(name)) or describe_added(written, name)
            end = f"Answers {', '.join(answered)}." if answered else "Answers nothing."
            operation = get_operation(message)
            yield write_body(operation, ["self", *fields], f"{text}\n\n{end}")


def write_added(written: Written, name: str) -> str:
    """A method of an operation that the interface does not have, in its own words."""
    asked, _ = list_messages(written.rules.name)[name]
    return write_body(name, ["self", *asked], describe_added(written, name))


def describe_added(written: Written, name: str) -> str:
    operations = written.rules.operations.values()
    operation = next(each for each in operations if each.get_method() == name)
    does, answer = explain(operation)
    return fill(does, WIDTH) + (f"\n\nAnswer: {answer}" if answer else "")


def name_message(method: str, kind: str, messages: Iterable[str]) -> str:
    """Returns the message that a driver gets for a method of a cache of this kind."""
    if is_paged(kind):
        return "open_request" if method == "open" else method
    variant = f"{method}.{VARIANTS.get(kind.removeprefix(BATCH))}"
    return variant if variant in messages else method


VARIANTS = {"state": "states", "list": "list"}
"""Kind → the variant of a message that its caches, and batches of them, get."""


def is_list(kind: str) -> bool:
    return INTERFACES.get(kind) is BatchListCache


def is_paged(kind: str) -> bool:
    return INTERFACES.get(kind) is PagedCache


def get_interface(kind: str) -> type:
    return ListCache if kind == "list" else INTERFACES[kind]


def get_members(kind: str) -> dict[str, Any]:
    """The members of a cache of this kind, by name."""
    interface = get_interface(kind)
    common = vars(BASES[interface]) if interface in BASES else {}
    return {**common, **vars(interface)}


def list_names(rules: Contract, kind: str, operations: Sequence[str]) -> list[str]:
    """The methods that a cache needs for these operations, the required ones first."""
    required = rules.list_methods(kind, rules.required)
    padding = ["pad_left"] if kind.startswith(BATCH) else []
    every = rules.list_methods(kind, operations)
    return list(dict.fromkeys([*required, *padding, *every, *list_more(rules, kind)]))


def list_more(rules: Contract, kind: str) -> Sequence[str]:
    """Lists the methods that no operation needs: of a paged cache what it may tell, and
    the memory of K and V or of states."""
    if not is_paged(kind):
        return ()
    states = OF_STATES if kind.endswith(("-state", "-hybrid")) else ()
    return (*rules.tells, *(() if kind.endswith("-state") else ("update",)), *states)


OF_STATES = ("read_states", "list_ends", "write_states")


def is_asked(name: str, kind: str) -> bool:
    """Whether caches of this kind are asked for what only some have."""
    if name == "update":
        return kind.removeprefix(BATCH) in ("kv", "rotating")
    if name in ("offset", "offsets", "parts"):  # a list leaves them to its parts
        return not kind.endswith("list") and kind.startswith(BATCH) == (name == "offsets")
    return name != "cached" or kind == "encoder"


def write_method(name: str, function: Any, before: str = "") -> str:
    """A method with the words of the interface, which nobody has written yet."""
    parameters = list(inspect.signature(function).parameters)
    return write_body(name, parameters, get_words(function), before)


def get_words(member: Any) -> str:
    """The words of the interface for a member, with the classes of a skeleton."""
    words = inspect.getdoc(member) or "" if member else ""
    return words.replace("LayerCache.", "Row.").replace("StateCache.", "Row.")


def write_body(name: str, parameters: Sequence[str], text: str, before: str = "") -> str:
    end = "\n    " if "\n\n" in text else ""
    body = f'{before}def {name}({", ".join(parameters)}):\n    """'
    body += indent(text, "    ").lstrip() + f'{end}"""\n    raise NotImplementedError\n'
    return indent(body, "    ")


def format_cache(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} cache"


# --- the command ------------------------------------------------------------------------


EXAMPLES = """\b
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


@click.command(name="new-backend", epilog=EXAMPLES)
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(list(INTERFACES)),
    default="kv",
    show_default=True,
    metavar="KIND",
    help=f"Kind of cache: {', '.join(INTERFACES)}.",
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
    "--language",
    type=click.Choice(list(LANGUAGES)),
    help="With --exec: copy the kit for drivers in this language, and its example.",
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
def new_backend(
    name: str,
    kind: str,
    arrays: str,
    is_driver: bool,
    language: str | None,
    folder: Path,
) -> int:
    """Writes a backend to complete step by step.

    It runs at once, and a check of it says what is missing. NAME is the name of the
    backend and, with _ for - (nothing in Go), of its file.
    """
    module = get_module(name)
    path = folder / f"{module}.py"
    if language and not is_driver:
        raise UsageError("--language: only a driver can be in another; add --exec")
    if language:
        return copy_kit(name, kind, language, folder)
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
    what = (
        f"a driver of {format_cache(kind)}" if is_driver else f"a {arrays} {kind} cache"
    )
    click.echo(f"Wrote {path}, {what} to complete. To see what is missing, run:")
    click.echo(f"  {line}")
    return 0


def copy_kit(name: str, kind: str, language: str, folder: Path) -> int:
    """Copies a kit beside its example, and says how to build and check them."""
    kit, example = read_kit(language, name, kind)
    of = LANGUAGES[language]
    copy = folder / of.kit
    stem = get_module(name).replace("_", of.joint)
    source = folder / f"{stem}{Path(of.example).suffix}"
    names = {name.casefold(), source.name.casefold()}  # of the program, and its source
    if not stem or copy.name in names:
        raise UsageError(f"{name!r} cannot name a driver in {language}; choose another")
    is_there = copy.is_file() and copy.read_text() == kit  # of another driver here
    for path in (source,) if is_there else (copy, source):
        require_absent(path)
    if not is_there:
        save(copy, kit)
    save(source, example)
    place = "" if folder.is_absolute() else "./"
    program = f"{place}{folder / name}"
    paths = {"kit": copy, "source": source, "program": program}
    words = {field: quote(str(path)) for field, path in paths.items()}
    click.echo(f"Wrote {copy}, which you need not change, and {source}, whose caches you")
    click.echo("replace. They are right as they stand. To check them, run:")
    if of.build:
        click.echo(f"  {of.build.format(**words)}")
    click.echo(f"  {get_check_line(f'exec:{of.start.format(**words)}', kind)}")
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
        require_absent(path)
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror}); choose another folder with -o"
        ) from None


def require_absent(path: Path) -> None:
    """Raises UsageError for a file that is there."""
    if path.exists():
        raise UsageError(
            f"{path}: exists already and was not changed; choose another name, or"
            " another folder with -o"
        )
