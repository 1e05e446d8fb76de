"""Lists the mutants of a Python file; each has one small change of the text."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

PAIRS = (
    *(("<", "<="), (">", ">="), ("==", "!="), ("is", "is not"), ("in", "not in")),
    *(("and", "or"), ("+", "-"), ("&", "|"), ("<<", ">>"), ("//", "%")),
)
OPERATORS = {
    **{old: new for pair in PAIRS for old, new in (pair, pair[::-1])},
    **{"*": "+", "/": "*", "**": "*", "^": "&"},
}
"""Each operator and its replacement."""

SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "bases"}
SKIPPED_NODES = ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom
"""Assertions are checks themselves, and f-strings are messages."""

REMOVED = ast.AugAssign, ast.Delete, ast.Raise, ast.Break, ast.Continue


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        file: Path relative to the root, with slashes.
        function: Name of the function or method; empty at module level.
        line: Line of the change, counted from 1.
        span: Byte range [begin, end) of the change, relative to the start of `line`.
        kind: Name of the mutation.
        lines: Lines of the statement that contains the change.
        old: The replaced text.
        new: The replacement of `old`.
        original: The changed lines before the change, joined by single spaces.
        mutated: The changed lines after the change, in the same form.
        source: The source of the whole mutated file.
    """

    file: str
    function: str
    line: int
    span: tuple[int, int]
    kind: str
    lines: range
    old: str
    new: str
    original: str
    mutated: str
    source: bytes

    @property
    def module(self) -> str:
        name = self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"lockstep.{name}"

    @property
    def id(self) -> str:
        begin, end = self.span
        return f"{self.file}:{self.line}:{begin}-{end}:{self.kind}"


class Mutator:
    """Makes the mutants of one file."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.function, self.lines = "", range(0)
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def visit(self, node: ast.AST) -> Iterator[Mutant]:
        """Yields the mutants of a node and of all nodes below it."""
        if isinstance(node, SKIPPED_NODES) or is_jitted(node):
            return
        function = self.function
        if isinstance(node, ast.stmt):
            self.lines = get_lines(node)
        yield from self.change(node)
        if isinstance(node, ast.Raise):  # its children are its message
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            self.function = f"{function}.{node.name}".strip(".")
        for name, value in ast.iter_fields(node):
            children = value if isinstance(value, list) else [value]
            for child in children if name not in SKIPPED_FIELDS else ():
                if isinstance(child, ast.AST):
                    yield from self.visit(child)
        self.function = function

    def change(self, node: ast.AST) -> Iterator[Mutant]:
        """Yields the mutants of a node itself."""
        if is_removable(node):
            yield self.replace("remove", node, "pass")
        for left, right in list_operands(node):
            begin, end = self.end(left), self.begin(right)
            text = self.source[begin:end].decode()
            old = text.strip(" ()\n")
            old = old[:-1] if isinstance(node, ast.AugAssign) else old
            if old in OPERATORS:
                new = text.replace(old, OPERATORS[old], 1)
                yield self.make("operator", begin, end, new)
        match node:
            case ast.Return(value=ast.expr() as value) if not is_none(value):
                yield self.replace("return-none", node, "return None")
            case ast.UnaryOp():
                sign = "not " if isinstance(node.op, ast.Not) else self.text(node)[0]
                yield self.replace("drop-sign", node, self.text(node).removeprefix(sign))
            case ast.Constant(bool() as value):
                yield self.replace("flip", node, str(not value))
            case ast.Constant(int() as value):
                yield self.replace("add-one", node, str(value + 1))
                yield self.replace("less-one", node, str(value - 1))
            case ast.Call():
                yield from self.swap_arguments(node)
            case ast.If(test) | ast.While(test) | ast.IfExp(test):
                yield from self.negate(test)
            case ast.comprehension(ifs=tests):
                for test in tests:
                    yield from self.negate(test)

    def swap_arguments(self, call: ast.Call) -> Iterator[Mutant]:
        if isinstance(call.func, ast.Name) and call.func.id in ("min", "max"):
            return
        for left, right in pairwise(call.args):
            if not isinstance(left, ast.Starred) and not isinstance(right, ast.Starred):
                between = self.source[self.end(left) : self.begin(right)].decode()
                text = self.text(right) + between + self.text(left)
                if self.text(left) != self.text(right):
                    yield self.make("swap", self.begin(left), self.end(right), text)

    def negate(self, test: ast.expr) -> Iterator[Mutant]:
        match test:
            case ast.Name("TYPE_CHECKING") | ast.UnaryOp(ast.Not()):
                return
            case ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.Eq() | ast.NotEq()]):
                return  # equals a mutant of the operator
        yield self.replace("negate", test, f"not ({self.text(test)})")

    # --- byte offsets in the source -----------------------------------------------------

    def begin(self, node: Any) -> int:
        place: int = self.starts[node.lineno - 1] + node.col_offset
        return place

    def end(self, node: Any) -> int:
        place: int = self.starts[node.end_lineno - 1] + node.end_col_offset
        return place

    def text(self, node: ast.AST) -> str:
        return self.source[self.begin(node) : self.end(node)].decode()

    def replace(self, kind: str, node: ast.AST, new: str) -> Mutant:
        return self.make(kind, self.begin(node), self.end(node), new)

    def make(self, kind: str, begin: int, end: int, new: str) -> Mutant:
        """Returns the mutant in which `new` replaces the bytes [begin, end)."""
        line = sum(start <= begin for start in self.starts)
        first = self.starts[line - 1]
        last = min(start for start in self.starts if start >= end)
        head, old = self.source[first:begin].decode(), self.source[begin:end].decode()
        tail = self.source[end:last].decode()
        return Mutant(
            self.file,
            self.function,
            line,
            (begin - first, end - first),
            kind,
            self.lines,
            " ".join(old.split()),
            " ".join(new.split()),
            " ".join((head + old + tail).split()),
            " ".join((head + new + tail).split()),
            self.source[:begin] + new.encode() + self.source[end:],
        )


def list_mutants(file: str, source: bytes) -> list[Mutant]:
    """Lists all mutants of a file."""
    return list(Mutator(file, source).visit(ast.parse(source)))


def list_operands(node: ast.AST) -> Iterable[tuple[ast.expr, ast.expr]]:
    """Returns the left and right operands of each operator of a node."""
    match node:
        case ast.BinOp(left, _, right) if not is_none(left) and not is_none(right):
            return [(left, right)]
        case ast.AugAssign(target, _, value):
            return [(target, value)]
        case ast.Compare(left, _, others):
            return pairwise([left, *others])
        case ast.BoolOp(_, values):
            return pairwise(values)
    return ()


def is_removable(node: ast.AST) -> bool:
    """Returns whether a node is a statement that can be removed so that the file may
    still run."""
    if isinstance(node, ast.Assign):  # without a name, the next line raises NameError
        return isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, REMOVED)


def is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def is_jitted(node: ast.AST) -> bool:
    """Returns whether a node is a Triton kernel, which does not run on the CPU."""
    decorators = getattr(node, "decorator_list", [])
    return any("jit" in ast.unparse(decorator) for decorator in decorators)


def get_lines(statement: ast.stmt) -> range:
    """Returns the lines of a statement, without the lines of its body."""
    body = getattr(statement, "body", None)
    end = body[0].lineno if body else (statement.end_lineno or 0) + 1
    return range(statement.lineno, max(statement.lineno + 1, end))
