"""Copies what a script uses of source files, so that it need not import them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from inspect import unwrap
from pathlib import Path
from typing import Any

from lockstep.harness.core.errors import UsageError

Names = set[str]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A source file as text.

    Attributes:
        nodes: name → the statement at the top of the file that defines or imports it.
    """

    name: str
    lines: Sequence[str]
    nodes: Mapping[str, ast.stmt]

    def get_text(self, node: ast.stmt) -> str:
        """A statement with its decorators, without remarks to linters."""
        decorators = getattr(node, "decorator_list", [])
        first = min(statement.lineno for statement in [*decorators, node])
        text = "\n".join(self.lines[first - 1 : node.end_lineno])
        return re.sub(r"  # (type: ignore|noqa).*", "", text)


class Bundle:
    """The definitions that a script needs of a file, and of those that it imports.

    Of a class only the methods are copied whose names are used somewhere.

    Args:
        source: name of the module whose names the script uses.
        packages: whose modules are copied; all others are imported.
    """

    def __init__(self, source: str, packages: Sequence[str] = ()) -> None:
        self.packages = packages
        self.modules: dict[str, Module] = {}
        self.definitions: dict[str, tuple[Module, ast.stmt]] = {}
        self.attributes: Names = set()
        self.source = self.read(source)

    def read(self, name: str) -> Module:
        if name not in self.modules:
            spec = find_spec(name)
            if spec is None or spec.origin is None:
                raise UsageError(f"{name} has no source file that a script could copy")
            text = Path(spec.origin).read_text(encoding="utf-8")
            nodes = {n: node for node in ast.parse(text).body for n in list_defined(node)}
            self.modules[name] = Module(name, text.split("\n"), nodes)
        return self.modules[name]

    # --- what is needed -----------------------------------------------------------------

    def need(self, module: Module, name: str) -> None:
        """Notes that a name of a module is used, if it is defined there."""
        node = module.nodes.get(name)
        if isinstance(node, ast.ImportFrom) and self.copies(str(node.module)):
            self.need(self.read(str(node.module)), name)
        elif node is not None:
            owner, other_node = self.definitions.setdefault(name, (module, node))
            if owner is not module and not (is_import(node) and is_import(other_node)):
                raise UsageError(f"{owner.name} and {module.name} both define {name}")

    def copies(self, module: str) -> bool:
        return module.partition(".")[0] in self.packages

    def express(self, value: Any) -> str:
        """The expression for an object that is defined at the top of a file.

        Raises:
            UsageError: there is none.
        """
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        value = unwrap(value)
        if isinstance(value, partial):
            self.need(self.source, "partial")
            arguments = [self.express(item) for item in [value.func, *value.args]]
            arguments += [f"{k}={self.express(v)}" for k, v in value.keywords.items()]
            return f"partial({', '.join(arguments)})"
        if isinstance(value, Mapping):
            items = [f'"{name}": {self.express(item)}' for name, item in value.items()]
            return f"{{{', '.join(items)}}}"
        if (owner := getattr(value, "__self__", None)) is not None:
            self.attributes.add(value.__name__)
            return f"{self.express(owner)}.{value.__name__}"
        if not hasattr(value, "__qualname__"):
            return f"{self.express(type(value))}()"
        if self.copies(value.__module__):
            module = self.read(value.__module__)
            if value.__qualname__ in module.nodes:
                self.need(module, value.__qualname__)
                return str(value.__qualname__)
        raise UsageError(f"{value.__module__}: a script cannot copy {value.__qualname__}")

    def collect(self, body: str) -> None:
        """Finds all that `body` uses, directly or through what it uses."""
        for name in self.note(ast.parse(body)):
            self.need(self.source, name)
        size = -1
        while size != len(self.definitions) + len(self.attributes):
            size = len(self.definitions) + len(self.attributes)
            for module, node in list(self.definitions.values()):
                for tree in self.prune(node):
                    for name in self.note(tree):
                        self.need(module, name)

    def note(self, tree: ast.AST) -> Names:
        """The names that code uses, without annotations; notes its attributes."""
        names = set()
        for node in walk_code(tree):
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                self.attributes.add(node.attr)
        return names

    def prune(self, node: ast.stmt) -> list[ast.AST]:
        """The parts of a statement that are copied."""
        if not isinstance(node, ast.ClassDef):
            return [node]
        return [*node.decorator_list, *node.bases, *filter(self.is_used, node.body)]

    def is_used(self, node: ast.stmt) -> bool:
        """What begins with _ is perhaps called by a base that is imported."""
        if not isinstance(node, Function):
            return True
        return node.name in self.attributes or node.name.startswith("_")

    # --- as text ------------------------------------------------------------------------

    def write(self, body: str, imported: Sequence[str] = ()) -> str:
        """The imports and definitions for a script.

        Args:
            body: of the script.
            imported: modules that it imports in any case.
        """
        self.collect(body)
        order = {module: number for number, module in enumerate(self.sort_modules())}
        copied = [
            (order[module.name], node.lineno, module, node)
            for module, node in self.definitions.values()
            if not is_import(node)
        ]
        unique = {(rank, line): (module, node) for rank, line, module, node in copied}
        texts = [self.get_text(*unique[key]) for key in sorted(unique)]
        return "\n\n\n".join(["\n".join(self.list_imports(imported)), *texts]) + "\n"

    def get_text(self, module: Module, node: ast.stmt) -> str:
        if not isinstance(node, ast.ClassDef):
            return module.get_text(node)
        first, *_ = [*node.decorator_list, node]
        statements = [
            module.get_text(statement)
            for statement in node.body
            if self.is_used(statement)
        ]
        head = module.lines[first.lineno - 1 : node.body[0].lineno - 1]
        body = "\n\n".join(statements or ["    pass"])
        return "\n".join([*filter(None, head), body])

    def sort_modules(self) -> list[str]:
        """Lists the files that were read, each after the files that it imports."""
        order: list[str] = []

        def visit(name: str) -> None:
            for node in self.modules[name].nodes.values():
                module = node.module if isinstance(node, ast.ImportFrom) else None
                if module in self.modules and module not in order:
                    visit(str(module))
            if name not in order:
                order.append(name)

        for name in list(self.modules):
            visit(name)
        return order

    def list_imports(self, imported: Sequence[str]) -> Iterator[str]:
        """Import lines: the standard library first, then others."""
        lines = {f"import {name}" for name in imported}
        for name, (_, node) in self.definitions.items():
            if isinstance(node, ast.Import | ast.ImportFrom):
                alias = next(alias for alias in node.names if name == get_name(alias))
                line = f"import {ast.unparse(alias)}"
                if isinstance(node, ast.ImportFrom):
                    line = f"from {node.module} {line}"
                lines.add(line)
        external = {line for line in lines if not is_standard(line.split()[1])}
        yield from ["from __future__ import annotations", "", *sorted(lines - external)]
        yield from ["", *sorted(external)]


def walk_code(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, without annotations."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns"):
                listed = value if isinstance(value, list) else [value]
                waiting += [one for one in listed if isinstance(one, ast.AST)]


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def get_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def list_defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a file defines."""
    if isinstance(node, Function | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from map(get_name, node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for leaf in ast.walk(target):
                if isinstance(leaf, ast.Name):
                    yield leaf.id
