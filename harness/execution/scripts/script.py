"""Writes a program as a script of plain calls of a backend's own methods.

The program runs once, and its calls are noted; so the script makes the calls that the
harness makes. It imports the backend; or it has a copy of what it needs of it, where the
backend says that its `code` may be copied: then it needs the framework alone.
"""

from __future__ import annotations

import contextlib
import io
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import indent, wrap
from typing import Any

from lockstep.harness import __version__
from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Step, list_allowed
from lockstep.harness.core.errors import UsageError, make_printable
from lockstep.harness.execution.scripts import plain
from lockstep.harness.execution.scripts.bundle import Bundle
from lockstep.harness.execution.scripts.calls import (
    LOOKS,
    CallNotes,
    MadeArray,
    NotedCall,
)
from lockstep.harness.execution.scripts.checks import Check, Checks, list_refusal
from lockstep.harness.execution.scripts.follow import FollowedRun, follow, prepare
from lockstep.harness.execution.scripts.tables import Tables
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.programs.words import describe_config

NAME = "snippet"
"""Of the file in tracebacks of a script."""

WIDTH = 80
"""Letters of a line, where it can be broken."""

MAX_LISTED = 8
"""Consecutive numbers that are listed one by one."""


def write_script(program: Program, backend: Backend, target: str) -> str:
    """A script that runs the operations up to the failing one, prints its answers beside
    the expected ones, and ends with status 1 if they differ.

    Args:
        program: a complete program.
        backend: runs it.
        target: "module:factory" of the backend.

    Raises:
        UsageError: why there can be no such script.
    """
    if any(op["op"] == "refuse" for op in program.ops):
        raise UsageError("a script has no caches below that refuse when told to")
    if backend.execute is not None:
        raise UsageError(f"{backend.name} has no caches whose methods could be called")
    program = prepare(program, backend)
    notes, run = follow(program, backend, lambda: CallNotes(backend))
    script = Script(program, backend, target, notes, run).write()
    divergence = run.result.divergence
    if try_script(script) != int(divergence is not None):
        raise UsageError(explain(divergence))
    return script


def explain(divergence: Divergence | None) -> str:
    if divergence is None:
        return "the program agrees here, but a script of its calls does not"
    return f"calls and their answers alone do not show this: {divergence.message}"


def try_script(text: str) -> int:
    """The status that a script ends with, without what it prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(compile(text, NAME, "exec"), {"__name__": "__main__"})
        except SystemExit as ended:
            return int(ended.code or 0)
        except Exception as error:
            if isinstance(error, NameError) and is_own(error):
                raise  # a mistake of the script, not of a backend
            return 1
    return 0


def is_own(error: Exception) -> bool:
    return traceback.extract_tb(error.__traceback__)[-1].filename == NAME


class Script:
    """Writes one script.

    Args:
        program: the program, with names of ours.
        backend: its backend.
        target: "module:factory".
        notes: of its calls.
        run: of the program.
    """

    def __init__(
        self,
        program: Program,
        backend: Backend,
        target: str,
        notes: CallNotes,
        run: FollowedRun,
    ) -> None:
        self.program, self.backend, self.run, self.notes = program, backend, run, notes
        self.module, _, self.factory = target.partition(":")
        self.tables, self.bundle = Tables(), Bundle(plain.__name__, backend.code)
        self.behind: dict[NotedCall, list[str]] = {}
        self.passed = ""  # the code in which arrays are used

    def write(self) -> str:
        last = self.run.last
        if last is None:
            raise UsageError("no operation of the program is legal")
        checks = self.list_checks(last)
        lines = list(self.write_steps(last.number, checks))
        listed = "".join(
            f"    compare({write_text(check.label)}, {check.got},"
            f" {', '.join(map(write_value, check.right))}),\n"
            for check in checks
        )
        body = "\n".join([*self.write_opening(), *self.surround(lines)])
        body += f"\nagrees = [\n{listed}]\nsys.exit(0 if all(agrees) else 1)\n"
        body = self.write_backend(body) + body
        copied = self.bundle.write(body, [] if self.backend.code else [self.module])
        return "\n".join([*self.list_comments(), "", copied, "", body])

    def list_comments(self) -> Iterator[str]:
        versions = [f"{name} {number}" for name, number in self.backend.versions.items()]
        needed = f"Plain calls of {self.module}; run it where that can be imported."
        if self.backend.code:
            needed = f"Needs {' and '.join(versions)}, or others to compare with."
        for line in (
            f"{self.backend.name}, {self.program.kind}, {describe_config(self.program)}.",
            needed,
            "Ends with status 1 if the last step answers something else than it should.",
            f"Written by kv-lockstep {__version__}.",
        ):
            yield f"# {make_printable(line)}"

    def write_backend(self, body: str) -> str:
        """The line with the backend, or with what the script uses of it."""
        if not self.backend.code:
            return f"backend = {self.module}.{self.factory}()\n"
        used = set(re.findall(r"\bbackend\.(\w+)", body)) | {"arrays"}
        members = [
            f"    {name}={self.bundle.express(getattr(self.backend, name))},\n"
            for name in ("open", "arrays", "overwrite", "errors")
            if name in used
        ]
        return f"backend = SimpleNamespace(\n{''.join(members)})\n"

    def write_opening(self) -> Iterator[str]:
        """The lines before the first step."""
        for name, value in (
            ("TOLERANCE", self.tables.tolerance),
            ("LOWER_RIGHT", self.backend.causal == "lower-right"),
            ("PERMUTED", bool(self.program.config.get("permuted_values"))),
        ):
            if value != getattr(plain, name):
                yield f"{name} = {value!r}"
        if self.notes.config is not None:
            yield f"CONFIG = {fold(self.notes.write(self.notes.config))}"
        yield from self.tables.write()
        yield ""

    def surround(self, lines: Sequence[str]) -> list[str]:
        """The steps in the scope that the backend asks for."""
        if self.backend.scope is Backend.scope and not self.backend.scopes:
            return list(lines)
        number = self.program.config["scope"]
        return [
            f"with backend.get_scope({number})():",
            indent("\n".join(lines), "    "),
        ]

    # --- steps --------------------------------------------------------------------------

    def list_checks(self, last: Step) -> list[Check]:
        allowed = list_allowed(self.run.expected.get(last.number, {}))
        calls = [line for line in self.notes.steps[-1] if isinstance(line, NotedCall)]
        checks = list(self.compare(last, allowed, calls))
        if not checks and not any(call.refused for call in calls):
            divergence = self.run.result.divergence
            if divergence is not None:
                raise UsageError(explain(divergence))
            raise UsageError(f"the last operation, {last.op['op']}, answers nothing")
        return [
            check if check.behind is None else self.compute_at_once(check, check.behind)
            for check in checks
        ]

    def compare(
        self, last: Step, allowed: Sequence[Any], calls: Sequence[NotedCall]
    ) -> Iterator[Check]:
        """The comparisons of the last step. Of several answers that are allowed and no
        refusals, the first counts."""
        names = [answer["error"] for answer in allowed if "error" in answer]
        if not names and not any(call.refused for call in calls):
            rules, ops = self.program.rules, self.program.ops[: last.number]
            first = sum(rules.operations[op["op"]].count_tags(op) for op in ops)
            checks = Checks(self.notes, last, self.tables, first)
            got = self.run.observed.get(last.number, {})
            yield from checks.list_all(allowed[0], got)
        elif len(names) == len(allowed):
            yield from list_refusal(self.notes, names, calls)

    def compute_at_once(self, check: Check, call: NotedCall) -> Check:
        """Lets a check be about what a call returned, as it was right then."""
        lines = self.behind.setdefault(call, [])
        variable = f"{call.variable}_{len(lines)}"
        lines.append(f"{variable} = {check.got}")
        return replace(check, got=variable)

    def write_steps(self, last: int, checks: Sequence[Check]) -> Iterator[str]:
        lines = [line for step in self.notes.steps for line in step]
        self.passed = "\n".join(
            line if isinstance(line, str) else line.code
            for line in lines
            if not isinstance(line, MadeArray)
        )
        yield from self.write_lines(self.notes.steps[0])
        codes = [code for check in checks for code in (check.got, *check.before)]
        codes += [line for lines in self.behind.values() for line in lines]
        asked, rules = {check.asks for check in checks}, self.program.rules
        for number, lines in enumerate(self.notes.steps[1 : last + 2]):
            is_last, op = number == last, self.program.ops[number]
            if is_last:
                lines = [line for line in lines if line not in asked]
            if lines or is_last:
                words = rules.operations[op["op"]].describe(op)
                yield f"# step {number}: {make_printable(words)}"
            yield from self.write_lines(lines, "\n".join(codes) if is_last else None)
        for check in checks:
            yield from check.before

    def write_lines(
        self, lines: Sequence[NotedCall | MadeArray | str], used: str | None = None
    ) -> Iterator[str]:
        """The lines of one step; an array is written where it is made.

        Args:
            lines: of the step.
            used: of the last step, the code that may use its results.
        """
        for line in lines:
            if isinstance(line, MadeArray):
                if not re.search(rf"\b{line.variable}\b", self.passed):
                    continue
                code = self.tables.write_array(line)
                made = f'backend.arrays.from_numpy({code}, "{line.dtype}")'
                yield f"{line.variable} = {fold(made)}"
            elif isinstance(line, str):
                yield line
            elif used is not None or line.name not in LOOKS:
                yield fold(line.write(used))
                yield from self.behind.get(line, ())


def fold(code: str) -> str:
    """Breaks a long expression behind commas."""
    if len(code) <= WIDTH:
        return code
    lines = wrap(code, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n    ".join(lines)


def write_text(words: str) -> str:
    return '"' + make_printable(words).replace("\\", "").replace('"', "'") + '"'


def write_value(value: Any) -> str:
    """Numbers and lists of numbers as Python code; nothing else is ever written. A long
    list of consecutive numbers becomes a range."""
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, list):
        if len(value) > MAX_LISTED and isinstance(value[0], int):
            span = range(value[0], value[0] + len(value))
            if value == list(span):
                return f"list(range({span.start}, {span.stop}))"
        return f"[{', '.join(map(write_value, value))}]"
    raise UsageError("a script has no names but its own; the program names something")
