"""Writes a program as plain code in a framework's own API, to report a bug to its makers.

The code runs where the framework is installed, without this project. A program file is
data: only its numbers are written, and variables that are named here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import Any

from lockstep.harness import __version__
from lockstep.harness.backends.backend import Backend, Call, Code
from lockstep.harness.contracts.operation import Answer, Op
from lockstep.harness.contracts.operation import Step as Walked
from lockstep.harness.core.document import NAMES
from lockstep.harness.core.errors import UsageError, make_printable
from lockstep.harness.execution.executor import Run
from lockstep.harness.programs.ledger import why_unsupported
from lockstep.harness.programs.program import Program, trace
from lockstep.harness.programs.words import describe_config

EXACT = {"float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}
"""dtype → the largest n of which all up to n are exact: token n is stored as n + 1."""

NOT_SHOWN = {
    "alias": "that an array changes later",
    "attention": "what attention makes of K, V and mask",
    "malformed": "arrays of another shape or dtype",
    "hash": "entries that lie",
    "references": "how blocks are counted",
    "table": "tables that share slots",
    "events": "events",
}
"""Differences that no snippet can show."""

MOST_LISTED = 8
"""Tokens that are listed one by one."""

MOST_LETTERS = 88
"""Of a line of imports."""

COMPARE = """
def compare(what, got, *right):
    words = " or ".join(map(str, right))
    print(f"{what}: {got}, expected {words}{'' if got in right else ' <- differs'}")
    return got in right
"""


def write_snippet(program: Program, backend: Backend) -> str:
    """A script that runs the operations up to the failing one, prints its answers beside
    the expected ones, and ends with status 1 if they differ.

    Raises:
        UsageError: why there can be no such script.
    """
    unsupported = why_unsupported(program, backend)
    if unsupported:
        raise UsageError(unsupported)
    if backend.code is None:
        raise UsageError(f"{backend.name} does not declare how its code is written")
    most, tokens = EXACT[program.config["dtype"]], program.count_tags()
    if tokens > most:
        raise UsageError(
            f"a snippet tells up to {most} tokens apart in {program.config['dtype']};"
            f" the program writes {tokens}"
        )
    what = str(program.meta.get("signature")).rpartition("-")[2]
    code = backend.code(program.config)
    if what in NOT_SHOWN.keys() - code.shows:
        raise UsageError(f"a snippet cannot show {NOT_SHOWN[what]}")
    program = cut(program)
    if code.clips and what != "error" and count_writes(program) > 1:
        raise UsageError(
            "a snippet tells tokens by numbers that grow, and this cache clips those that"
            " are larger than in its first update"
        )
    return Writer(program, backend, code, what == "error").write()


def count_writes(program: Program) -> int:
    operations = program.rules.operations
    return sum(operations[op["op"]].count_tags(op) > 0 for op in program.ops)


def cut(program: Program) -> Program:
    """The program up to the step at which it failed, if its file says which."""
    step = program.meta.get("step")
    if type(step) is not int or not 0 <= step < len(program.ops):
        return program
    return replace(program, ops=program.ops[: step + 1])


class Writer:
    """Writes one snippet.

    Args:
        program: the program.
        backend: its backend.
        code: how the backend is written.
        raises: the last operation raises an exception, so that it need not answer.
    """

    def __init__(
        self, program: Program, backend: Backend, code: Code, raises: bool
    ) -> None:
        self.program, self.backend, self.code = program, backend, code
        self.raises = raises
        self.variables: dict[str, str] = {}
        self.words: dict[tuple[str, str], str] = {}
        self.count = 0

    def write(self) -> str:
        steps = list(self.list_steps())
        if not steps:
            raise UsageError("no operation of the program is legal")
        last = steps[-1]
        word = "row" if self.program.contract == "batched" else "layer"
        own = last.call, last.answer, last.fields, word
        listed = [*list_checks(*own), *list_wrong(last.call, last.fields)]
        checks = [
            f'    compare("{what}", {got}, {", ".join(map(write_value, right))}),\n'
            for what, got, right in listed
        ]
        if not checks and not self.raises:
            raise UsageError(f"the last operation, {last.name}, answers nothing")
        body = "\n".join(step.text for step in steps)
        body += f"\nagrees = [\n{''.join(checks)}]\nsys.exit(0 if all(agrees) else 1)\n"
        copied = Vocabulary(self.code).copy(body)
        return "\n".join([*self.list_comments(), "", copied + COMPARE, "", body])

    def list_comments(self) -> Iterator[str]:
        """The comments above the script."""
        backend, program = self.backend, self.program
        versions = [f"{name} {at}" for name, at in backend.versions.items()]
        for line in (
            f"{backend.name}, {program.kind} cache, {describe_config(program)}.",
            f"Needs nothing but {' and '.join(versions)}, or others to compare with.",
            "Ends with status 1 if the last step answers something else than it should.",
            f"Written by kv-lockstep {__version__}.",
        ):
            yield f"# {make_printable(line)}"

    def list_steps(self) -> Iterator[Step]:
        """The operations that are legal, in order."""
        program = self.program
        answered = list_answered(program, self.backend)
        for step, (op, answer) in enumerate(answered):
            if "skipped" in answer:
                continue
            call = self.find_call(op, answer)
            if call is None:
                raise UsageError(f"{self.backend.name} has no code for {op['op']}")
            if "error" in answer:
                raise UsageError(f"step {step} must be refused, which no snippet shows")
            begins = not self.count and not call.makes
            lines = [self.open("a")] if begins else []
            fields = dict(self.list_fields(call, op, answer, lines))
            words = program.rules.operations[op["op"]].describe(op)
            lines.insert(0, f"# step {step}: {make_printable(words)}")
            lines.append(call.text.format(**fields))
            yield Step(op["op"], "\n".join(lines) + "\n", call, answer, fields)
            self.forget(call, op)

    def list_fields(
        self, call: Call, op: Op, answer: Answer, lines: list[str]
    ) -> Iterator[tuple[str, str]]:
        """The values for the braces of a call. A cache that does not exist yet is first
        opened in `lines`, unless this call makes it."""
        schemas = self.program.rules.operations[op["op"]].fields
        name = op.get("cache", "a")
        made = call.makes
        yield "cache", self.name_cache(name) if made else self.get_cache(name, lines)
        yield "opening", self.code.opening
        yield "written", write_value(list_written(answer))
        yield "written_rows", write_value(list_written_rows(answer))
        for _, name, _, _ in Formatter().parse(call.text):
            if not name or name not in op or name == "cache":
                continue
            sort = schemas.get(name, {}).get(NAMES)
            if sort == "saved":
                yield name, self.name_cache(f"saved {op[name]}", "saved")
            elif name == "into":
                yield name, self.name_cache(op[name])
            elif sort == "cache" and isinstance(op[name], list):
                yield name, f"[{', '.join(self.get_cache(n, lines) for n in op[name])}]"
            elif sort == "cache":
                yield name, self.get_cache(op[name], lines)
            elif isinstance(op[name], str):
                yield name, self.name_word(sort or name, op[name])
            else:
                yield name, write_value(op[name])

    def name_word(self, sort: str, word: str) -> str:
        """A text in the place of one of a program: "a" for its first request."""
        number = sum(kind == sort for kind, _ in self.words)
        letters = self.program.rules.letters
        own = letters[sort](number) if sort in letters else f"{sort} {number}"
        return f'"{self.words.setdefault((sort, word), own)}"'

    def get_cache(self, name: str, lines: list[str]) -> str:
        if name not in self.variables:
            lines.append(self.open(name))
        return self.variables[name]

    def open(self, name: str) -> str:
        return f"{self.name_cache(name)} = {self.code.opening}"

    def find_call(self, op: Op, answer: Answer) -> Call | None:
        """The call for an operation, or for one that answers for several rows."""
        calls = self.code.calls
        several = f"{op['op']} rows" if "caches" in answer else op["op"]
        return calls.get(several, calls.get(op["op"]))

    def name_cache(self, name: str, word: str = "cache") -> str:
        """A variable for a cache, whose own name may not be a Python name."""
        if name not in self.variables:
            self.count += 1
            self.variables[name] = word if self.count == 1 else f"{word}_{self.count}"
        return self.variables[name]

    def forget(self, call: Call, op: Op) -> None:
        """Unbinds the names of caches that a call has used up."""
        for name in call.uses_up:
            used = op[name] if isinstance(op[name], list) else [op[name]]
            for each in used:
                if each != op.get("cache"):
                    self.variables.pop(each, None)


@dataclass(frozen=True)
class Step:
    """One operation as it is written, and what it should answer."""

    name: str
    text: str
    call: Call
    answer: Answer
    fields: Mapping[str, str]


def list_checks(
    call: Call,
    answer: Answer,
    fields: Mapping[str, str],
    word: str,
    layer: int | None = None,
) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """(description, expression, values that are right) for each check of a step.

    Args:
        call: of the step.
        answer: the expected one.
        fields: of the call.
        word: for the parts of an answer about several: "layer", or "row" of a batch.
        layer: the number of the part.
    """
    where = "" if layer is None else f"{word} {layer}: "
    query = "query" if where and word == "row" else "row"
    for name, expected in answer.items():
        if name not in call.answers and call.wrong:
            continue
        if name == "caches":
            for number, part in enumerate(expected):
                yield from list_checks(call, part, fields, word, number)
            continue
        if name not in call.answers:
            raise UsageError(f"no snippet shows the {name} of an operation")
        got = call.answers[name].format(**fields, layer=layer)
        if name == "visible":
            for row, tokens in enumerate(expected):
                sees = f"{where}{query} {row} sees tokens"
                yield sees, f"{got}[{row}]", [sorted(tokens)]
        else:
            yield f"{where}{name}", got, list_right(expected)


def list_right(expected: Any) -> Sequence[Any]:
    """Lists the values that are right; see `Operation.resolve`."""
    if not isinstance(expected, Mapping):
        return [expected]
    if "one_of" not in expected:
        raise UsageError("no snippet shows a number that may be any in a range")
    return list(expected["one_of"])


def list_wrong(
    call: Call, fields: Mapping[str, str]
) -> Iterator[tuple[str, str, Sequence[Any]]]:
    for what, expression in call.wrong.items():
        yield what, expression.format(**fields), [[]]


@dataclass(eq=False)
class Noting(Run):
    """A run that notes what is expected, and what the backend takes of an operation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.noted: dict[int, Answer] = {}
        self.taken: dict[int, Answer] = {}

    def run_reference(self, step: Walked) -> Answer:
        answer = super().run_reference(step)
        if self.refuses or answer.get("error") != "usage":  # else it does not run
            self.noted[step.number] = answer
        return answer

    def run_backend(self, step: Walked) -> Answer:
        self.taken[step.number] = answer = super().run_backend(step)
        return answer


def list_answered(program: Program, backend: Backend) -> Iterator[tuple[Op, Answer]]:
    """Lists the operations, each with the answer that it must get. Where those of the
    backend decide, it runs."""
    if not program.rules.leaves_choices:
        yield from zip(program.ops, trace(program), strict=True)
        return
    run = Noting(program, backend)
    run.run()
    for number, op in enumerate(program.ops):
        taken = run.taken.get(number, {})
        op = {name: taken.get(name, value) for name, value in op.items()}
        answer = run.noted.get(number, {"skipped": "it did not run"})
        if None in taken.values() and number < max(run.noted):
            answer = {"skipped": "it waits, and nothing changes"}
        yield op, answer


def list_written(answer: Answer) -> list[int]:
    """The tags of the tokens that an operation writes: each row sees its own last."""
    rows = answer.get("visible")
    for part in answer.get("caches", ()):
        rows = part.get("visible", rows)
    return [row[-1] for row in rows or ()]


def list_written_rows(answer: Answer) -> list[list[int]]:
    """The same for each row of a batch."""
    return [
        [row[-1] for row in part.get("visible", ())] for part in answer.get("caches", ())
    ]


def write_value(value: Any) -> str:
    """Numbers and lists of numbers as Python code; nothing else is ever written. A long
    list of consecutive numbers becomes a range."""
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, list):
        if len(value) > MOST_LISTED and isinstance(value[0], int):
            span = range(value[0], value[0] + len(value))
            if value == list(span):
                return f"list(range({span.start}, {span.stop}))"
        return f"[{', '.join(map(write_value, value))}]"
    raise UsageError("a snippet has no names but its own; the program names something")


# --- the parts of a source file that a snippet uses -------------------------------------


class Vocabulary:
    """The imports, functions and names of a source file that a snippet can use.

    The file is read as text and never imported.
    """

    def __init__(self, code: Code) -> None:
        self.settings = code.settings
        text = code.source.read_text(encoding="utf-8")
        self.lines = text.split("\n")
        self.parts = {
            name: node for node in ast.parse(text).body for name in list_defined(node)
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
            lines += ["", "", self.get_text(node)]
        return "\n".join([*lines, "", ""])

    def get_text(self, node: ast.stmt) -> str:
        """The text of a statement at the top of the file, without a comment behind it.
        `ast.get_source_segment` would split the whole file for each."""
        lines = self.lines[node.lineno - 1 : node.end_lineno]
        lines[-1] = lines[-1].encode()[: node.end_col_offset].decode()
        return "\n".join(lines)

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
            line = f"from {module} import {', '.join(names)}"
            if len(line) > MOST_LETTERS:
                rows = "".join(f"    {name},\n" for name in names)
                line = f"from {module} import (\n{rows})"
            lines.append((module, line))
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
