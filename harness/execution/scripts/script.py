"""Writes a program as a script of plain calls of a backend's own methods.

For backends in Python whose makers have no other words for it, see `snippet`. The program
runs once, and its calls are noted; so the script makes the calls that the harness makes.
"""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import indent, wrap

from lockstep.harness import __version__
from lockstep.harness.backends.backend import Backend, Code
from lockstep.harness.contracts.operation import Op, list_allowed
from lockstep.harness.contracts.operation import Step as Walked
from lockstep.harness.core.errors import UsageError, make_printable
from lockstep.harness.execution.scripts.calls import LOOKS, CallNotes, Noted
from lockstep.harness.execution.scripts.checks import list_checks
from lockstep.harness.execution.scripts.follow import Followed, follow, prepare
from lockstep.harness.execution.scripts.tables import Tables
from lockstep.harness.execution.scripts.tokens import Check
from lockstep.harness.execution.snippet import COMPARE, Vocabulary, write_value
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.programs.words import describe_config

SOURCE = Path(__file__).parent / "plain.py"

NAME = "snippet"
"""Of the file in tracebacks of a script."""

WIDTH = 88
"""Letters of a line, where it can be broken."""


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
    status = try_script(script)
    if status != int(divergence is not None):
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
            if traceback.extract_tb(error.__traceback__)[-1].filename == NAME:
                raise  # a mistake of the script, not of a backend
            return 1
    return 0


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
        run: Followed,
    ) -> None:
        self.program, self.backend, self.run = program, backend, run
        self.module, _, self.factory = target.partition(":")
        self.notes = notes
        self.tables = Tables(run.opened)
        self.behind: dict[Noted, list[str]] = {}

    def write(self) -> str:
        last = self.run.last
        if last is None:
            raise UsageError("no operation of the program is legal")
        checks = self.list_checks(last)
        lines = list(self.write_steps(last.number, checks))
        listed = "".join(
            f"    compare({write_text(check.what)}, {check.got},"
            f" {', '.join(map(write_value, check.right))}),\n"
            for check in checks
        )
        body = "\n".join([*self.write_opening(), *self.surround(lines)])
        body += f"\nagrees = [\n{listed}]\nsys.exit(0 if all(agrees) else 1)\n"
        settings = {
            "TOLERANCE": repr(self.tables.tolerance),
            "LOWER_RIGHT": str(self.backend.causal == "lower-right"),
            "PERMUTED": str(bool(self.program.config.get("permuted_values"))),
        }
        code = Code(SOURCE, settings, "", {})
        copied = Vocabulary(code).copy(f"np\n{body}")
        copied = copied.replace("\nimport numpy", f"\nimport {self.module}\nimport numpy")
        return "\n".join([*self.list_comments(), "", copied + COMPARE, "", body])

    def list_comments(self) -> Iterator[str]:
        for line in (
            f"{self.backend.name}, {self.program.kind}, {describe_config(self.program)}.",
            f"Plain calls of {self.module}; run it where that can be imported.",
            "Ends with status 1 if the last step answers something else than it should.",
            f"Written by kv-lockstep {__version__}.",
        ):
            yield f"# {make_printable(line)}"

    def write_opening(self) -> Iterator[str]:
        """The lines before the first step."""
        yield f"backend = {self.module}.{self.factory}()"
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

    def list_checks(self, last: Walked) -> list[Check]:
        expected = self.run.noted.get(last.number, {})
        allowed = list_allowed(expected)
        checks = list(
            list_checks(self.notes, last, allowed, self.tables, self.run.opened)
        )
        refused = any(
            isinstance(line, Noted) and line.refused for line in self.notes.steps[-1]
        )
        if not checks and not refused:
            divergence = self.run.result.divergence
            if divergence is not None:
                raise UsageError(explain(divergence))
            raise UsageError(f"the last operation, {last.op['op']}, answers nothing")
        return [
            check if check.behind is None else self.compute_at_once(check, check.behind)
            for check in checks
        ]

    def compute_at_once(self, check: Check, call: Noted) -> Check:
        """Lets a check be about what a call returned, as it was right then."""
        lines = self.behind.setdefault(call, [])
        variable = f"{call.variable}_{len(lines)}"
        lines.append(f"{variable} = {check.got}")
        return replace(check, got=variable)

    def write_steps(self, last: int, checks: Sequence[Check]) -> Iterator[str]:
        yield from self.write_lines(self.notes.steps[0])
        used = "\n".join("\n".join([check.got, *check.before]) for check in checks)
        used += "\n".join("\n".join(lines) for lines in self.behind.values())
        asked = {check.asks for check in checks}
        for number, lines in enumerate(self.notes.steps[1:]):
            if number > last:
                break
            if number == last:
                lines = [line for line in lines if line not in asked]
            if lines or number == last:
                yield f"# step {number}: {self.describe(self.program.ops[number])}"
            yield from self.write_lines(lines, used if number == last else None)
        for check in checks:
            yield from check.before

    def describe(self, op: Op) -> str:
        words = self.program.rules.operations[op["op"]].describe(op)
        return make_printable(words)

    def write_lines(
        self, lines: Sequence[Noted | str | int], used: str | None = None
    ) -> Iterator[str]:
        """The lines of one step; an array is written where it is made.

        Args:
            lines: of the step.
            used: of the last step, the code that may use its results.
        """
        for line in lines:
            if isinstance(line, int):
                variable, content, dtype = self.notes.made[line]
                code = self.tables.write_array(content)
                made = f'backend.arrays.from_numpy({code}, "{dtype}")'
                yield f"{variable} = {fold(made)}"
            elif isinstance(line, str):
                yield line
            elif used is not None or line.name not in LOOKS:
                yield fold(line.write(used))
                yield from self.behind.get(line, ())


def fold(code: str) -> str:
    """Breaks a long expression behind commas."""
    if len(code) <= WIDTH - 8:
        return code
    lines = wrap(code, WIDTH - 8, break_long_words=False, break_on_hyphens=False)
    return "\n    ".join(lines)


def write_text(what: str) -> str:
    return '"' + make_printable(what).replace("\\", "").replace('"', "'") + '"'
