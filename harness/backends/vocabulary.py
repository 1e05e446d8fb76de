"""Copies the parts of a Python file that a piece of code uses.

The file is read as text and never imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from lockstep.harness.backends.backend import Code


class Vocabulary:
    """The imports, functions and names of a source file that a snippet can use."""

    def __init__(self, code: Code) -> None:
        self.settings = code.settings
        self.text = code.source.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.parts = {
            name: node for node in self.tree.body for name in list_defined(node)
        }
        self.imports = {
            name: node
            for name, node in self.parts.items()
            if isinstance(node, ast.Import | ast.ImportFrom)
        }

    def copy(self, body: str) -> str:
        """The text of everything that `body` needs, in the order of the file."""
        needed = self.find_needed(body)
        lines = list(self.list_imports(needed))
        own = {*self.imports, *self.settings}
        for name in self.settings:
            if name in needed:
                lines.append(f"{name} = {self.settings[name]}")
        used = [node for name, node in self.parts.items() if name in needed - own]
        for node in dict.fromkeys(used):
            lines += ["", "", ast.get_source_segment(self.text, node) or ""]
        return "\n".join([*lines, "", ""])

    def find_needed(self, body: str) -> set[str]:
        """The names that `body` uses, directly or through other parts of the file."""
        needed: set[str] = set()
        waiting = list_used(ast.parse(body))
        while waiting:
            name = waiting.pop()
            if name in needed or name not in self.parts:
                continue
            needed.add(name)
            setting = self.settings.get(name)
            part = self.parts[name] if setting is None else ast.parse(setting)
            waiting |= list_used(part)
        return needed

    def list_imports(self, needed: set[str]) -> Iterator[str]:
        """Import lines: the standard library first, then whole modules, then names."""
        whole = {"sys"}
        parts: dict[str, list[str]] = {}
        for name in sorted(needed & self.imports.keys()):
            node = self.imports[name]
            if isinstance(node, ast.Import):
                whole.add(ast.unparse(node).removeprefix("import "))
            else:
                parts.setdefault(str(node.module), []).append(name)
        lines = [(module, f"import {module}") for module in sorted(whole)]
        for module, names in sorted(parts.items()):
            lines.append((module, f"from {module} import {', '.join(names)}"))
        own = [line for module, line in lines if module in sys.stdlib_module_names]
        yield from [*own, ""]
        yield from [line for _, line in lines if line not in own]
        yield ""


def list_defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a file defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name):
                    yield part.id


def list_used(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
