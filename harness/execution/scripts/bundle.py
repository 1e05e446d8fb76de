"""Copies the definitions that a script uses into the script."""

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


@dataclass(frozen=True)
class Module:
    """A source file.

    Attributes:
        name: the name of the module.
        lines: the lines of the file.
        nodes: name → the top-level statement that defines or imports it.
    """

    name: str
    lines: Sequence[str]
    nodes: Mapping[str, ast.stmt]

    def get_text(self, node: ast.stmt) -> str:
        """Returns a statement with its decorators, without comments for linters."""
        decorators = getattr(node, "decorator_list", [])
        first = min(statement.lineno for statement in [*decorators, node])
        text = "\n".join(self.lines[first - 1 : node.end_lineno])
        return re.sub(r"  # (type: ignore|noqa).*", "", text)


class Bundle:
    """The definitions that a script uses, directly or through other definitions.

    Args:
        source: the module that defines the names in the script.
        packages: the packages whose modules are copied; other modules are imported.
    """

    def __init__(self, source: str, packages: Sequence[str] = ()) -> None:
        self.packages = packages
        self.modules: dict[str, Module] = {}
        self.definitions: dict[str, tuple[Module, ast.stmt]] = {}
        self.texts: dict[ast.stmt, str] = {}
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

    def copies(self, module: str) -> bool:
        return module.partition(".")[0] in self.packages

    def need(self, module: Module, name: str) -> None:
        """Adds the definition of a name in a module, and before it the definitions that
        it uses. Names without a definition, such as builtins, are skipped."""
        node = module.nodes.get(name)
        if isinstance(node, ast.ImportFrom) and self.copies(str(node.module)):
            self.need(self.read(str(node.module)), name)
        elif node is not None and name not in self.definitions:
            self.definitions[name] = module, node
            for used in list_names(node):
                self.need(module, used)
            if not is_import(node):
                self.texts[node] = module.get_text(node)
        elif node is not None:
            owner, earlier = self.definitions[name]
            if owner is not module and not (is_import(node) and is_import(earlier)):
                raise UsageError(f"{owner.name} and {module.name} both define {name}")

    def express(self, value: Any) -> str:
        """Returns the expression for an object that is defined at the top of a file.

        Raises:
            UsageError: there is no such expression.
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
            return f"{self.express(owner)}.{value.__name__}"
        if not hasattr(value, "__qualname__"):
            return f"{self.express(type(value))}()"
        if self.copies(value.__module__):
            module = self.read(value.__module__)
            if value.__qualname__ in module.nodes:
                self.need(module, value.__qualname__)
                return str(value.__qualname__)
        raise UsageError(f"{value.__module__}: a script cannot copy {value.__qualname__}")

    def write(self, body: str, imported: Sequence[str] = ()) -> str:
        """Returns the imports and definitions for a script.

        Args:
            body: the code of the script.
            imported: modules that the script imports in any case.
        """
        for name in list_names(ast.parse(body)):
            self.need(self.source, name)
        imports = {f"import {name}" for name in imported}
        for name, (_, node) in self.definitions.items():
            if is_import(node):
                imports.add(write_import(node, name))
        external = {line for line in imports if not is_standard(line.split()[1])}
        lines = ["from __future__ import annotations", "", *sorted(imports - external)]
        lines += ["", *sorted(external)]
        return "\n\n\n".join(["\n".join(lines), *self.texts.values()]) + "\n"


def list_names(tree: ast.AST) -> Iterator[str]:
    """Lists the names that code uses outside of annotations."""
    if isinstance(tree, ast.Name):
        yield tree.id
    for field, value in ast.iter_fields(tree):
        if field not in ("annotation", "returns"):
            for node in value if isinstance(value, list) else [value]:
                if isinstance(node, ast.AST):
                    yield from list_names(node)


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def get_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def write_import(node: Any, name: str) -> str:
    """Returns an import statement for one name of an import statement."""
    alias = next(alias for alias in node.names if name == get_name(alias))
    line = f"import {ast.unparse(alias)}"
    return f"from {node.module} {line}" if isinstance(node, ast.ImportFrom) else line


def list_defined(node: ast.stmt) -> Iterator[str]:
    """Lists the names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from map(get_name, node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield from list_names(target)
