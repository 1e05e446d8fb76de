"""Writes a program as a script of plain calls of a backend's methods.

The program runs, and its calls are noted; the script makes the same calls. The script
imports the backend. If the backend declares that its `code` may be copied, the script
contains a copy instead and needs only the framework.
"""

from __future__ import annotations

import contextlib
import io
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

from lockstep.harness import __version__
from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Answer, Step, list_allowed
from lockstep.harness.core.errors import UsageError, make_printable
from lockstep.harness.execution.scripts import plain
from lockstep.harness.execution.scripts.bundle import Bundle
from lockstep.harness.execution.scripts.calls import LOOKS, CallNotes, NotedCall
from lockstep.harness.execution.scripts.checks import Check, Checks
from lockstep.harness.execution.scripts.follow import FollowedRun, follow, prepare
from lockstep.harness.execution.scripts.tables import MadeArray, Tables, fold
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.programs.words import describe_config

NAME = "snippet"
"""The name of the file in tracebacks of a script."""

MAX_LISTED = 8
"""The maximum length of a list of consecutive numbers that is not written as a range."""


def write_script(program: Program, backend: Backend, target: str) -> str:
    """Writes a script that runs the operations up to the failing operation, prints its
    answers beside the expected answers, and ends with status 1 if they differ.

    Args:
        program: a complete program.
        backend: the backend that runs the program.
        target: "module:factory" of the backend.

    Raises:
        UsageError: there is no such script; the message has the reason.
    """
    if any(op["op"] == "refuse" for op in program.ops):
        raise UsageError("a script cannot run the operation refuse")
    if backend.execute is not None:
        raise UsageError(f"{backend.name} has no caches whose methods could be called")
    program = prepare(program, backend)
    notes, run = follow(program, backend, CallNotes)
    bundle = Bundle(plain.__name__, backend.code)
    script = Script(program, backend, target, notes, run, bundle).write()
    divergence = run.result.divergence
    if try_script(script) != int(divergence is not None):
        raise UsageError(explain(divergence))
    return script


def explain(divergence: Divergence | None) -> str:
    if divergence is None:
        return "the program agrees here, but a script of its calls does not"
    return f"calls and their answers alone do not show this: {divergence.message}"


def try_script(text: str) -> int:
    """Runs a script without printing, and returns its status."""
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


@dataclass(frozen=True)
class Script:
    """Writes one script.

    Attributes:
        program: the program with replaced names.
        backend: the backend.
        target: "module:factory" of the backend.
        notes: the calls of the run.
        run: the run of the program.
        bundle: the definitions that are copied into the script.
        tables: the tables of the tokens in the script.
    """

    program: Program
    backend: Backend
    target: str
    notes: CallNotes
    run: FollowedRun
    bundle: Bundle
    tables: Tables = field(default_factory=Tables)

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    def write(self) -> str:
        last = self.run.last
        if last is None:
            raise UsageError("no operation of the program is legal")
        lines = list(self.write_steps(last))
        if self.backend.scope is not Backend.scope or self.backend.scopes:
            number = self.program.config["scope"]
            lines = [indent("\n".join(lines), "    ")]
            lines = [f"with backend.get_scope({number})():", *lines]
        body = "\n".join([*self.write_opening(), *lines, ENDING])
        body = self.write_backend(body) + body
        copied = self.bundle.write(body, [] if self.backend.code else [self.module])
        return "\n".join([*self.list_comments(), "", copied, "", body])

    def list_comments(self) -> Iterator[str]:
        versions = [f"{name} {number}" for name, number in self.backend.versions.items()]
        needed = f"Plain calls of {self.module}, which the script must be able to import."
        if self.backend.code:
            needed = f"Needs {' and '.join(versions)}, or other versions to compare."
        for line in (
            f"{self.backend.name}, {self.program.kind}, {describe_config(self.program)}.",
            needed,
            "Ends with status 1 if an answer of the last step is wrong.",
            f"Written by kv-lockstep {__version__}.",
        ):
            yield f"# {make_printable(line)}"

    def write_backend(self, body: str) -> str:
        """Returns the line that opens the backend, or that defines the attributes of the
        backend that the script uses."""
        if not self.backend.code:
            return f"backend = {self.target.replace(':', '.')}()\n"
        used = set(re.findall(r"\bbackend\.(\w+)", body)) | {"arrays"}
        members = [
            f"    {name}={self.bundle.express(getattr(self.backend, name))},\n"
            for name in ("open", "arrays", "overwrite", "errors")
            if name in used
        ]
        return f"backend = SimpleNamespace(\n{''.join(members)})\n"

    def write_opening(self) -> Iterator[str]:
        """Yields the lines before the first step."""
        for name, value in (
            ("TOLERANCE", self.tables.tolerance),
            ("LOWER_RIGHT", self.backend.causal == "lower-right"),
        ):
            if value != getattr(plain, name):
                yield f"{name} = {value!r}"
        if self.notes.config is not None:
            yield f"CONFIG = {fold(self.notes.write(self.notes.config))}"
        yield from self.tables.write()
        yield "agrees = []\n"

    # --- steps --------------------------------------------------------------------------

    def write_steps(self, last: Step) -> Iterator[str]:
        calls = [line for line in self.notes.steps[-1] if isinstance(line, NotedCall)]
        refused = [call for call in calls if call.refused]
        allowed = list_allowed(self.run.expected.get(last.number, {}))
        errors = [answer["error"] for answer in allowed if "error" in answer]
        checks, refusal = [], None
        # Calls after the refused call that only report something do not count.
        acting = [call for call in calls[::-1] if call.name not in LOOKS]
        if len(errors) == len(allowed) and refused + acting:
            refusal = (refused + acting)[0]
            checks = [self.check_refusal(errors, refusal)]
        elif not errors and not refused:
            checks = list(self.list_checks(last, allowed[0]))
        if not checks and not refused:
            if self.run.result.divergence is not None:
                raise UsageError(explain(self.run.result.divergence))
            raise UsageError(
                f"the last operation, {last.op['op']}, has no answer that a script"
                " could compare"
            )
        codes = [check.got for check in checks]
        for line in (line for step in self.notes.steps for line in step):
            if not isinstance(line, MadeArray):
                codes.append(line if isinstance(line, str) else line.code)
        used = " ".join(codes)
        rules = self.program.rules
        for number, step in enumerate(self.notes.steps[: last.number + 2], -1):
            if number >= 0 and (step or number == last.number):
                op = self.program.ops[number]
                description = rules.operations[op["op"]].describe(op)
                yield f"# step {number}: {make_printable(description)}"
            for line in step:
                if number == last.number and line is refusal:
                    continue
                yield from self.write_line(line, number == last.number, used)
                for check in checks:
                    if check.call is line:
                        yield write_check(check)
        yield from [write_check(check) for check in checks if check.call is None]

    def write_line(
        self, line: NotedCall | MadeArray | str, is_last: bool, used: str
    ) -> Iterator[str]:
        """Yields the code of a call, an array that was made, or a line of code.

        Args:
            line: the call, the array or the line.
            is_last: whether it belongs to the last step.
            used: the code that may use the result.
        """
        if isinstance(line, MadeArray):
            if re.search(rf"\b{line.variable}\b", used):
                code = self.tables.write_array(line)
                expression = f'backend.arrays.from_numpy({code}, "{line.dtype}")'
                yield f"{line.variable} = {fold(expression)}"
        elif isinstance(line, str):
            yield line
        elif is_last or line.name not in LOOKS:
            yield fold(line.write(used if is_last else None))

    def list_checks(self, last: Step, expected: Answer) -> Iterator[Check]:
        rules, ops = self.program.rules, self.program.ops[: last.number]
        first = sum(rules.operations[op["op"]].count_tags(op) for op in ops)
        checks = Checks(self.notes, last, self.tables, first)
        yield from checks.list_all(expected, self.run.observed.get(last.number, {}))

    def check_refusal(self, names: Sequence[str], call: NotedCall) -> Check:
        kinds = [
            f'backend.errors["{name}"]' if name in self.backend.errors else "ValueError"
            for name in names
        ]
        code = f"refuses([{', '.join(kinds)}], lambda: {call.code})"
        return Check(f"refused ({' or '.join(names)})", code, [True])


ENDING = "sys.exit(0 if all(agrees) else 1)\n"


def write_check(check: Check) -> str:
    label = make_printable(check.label).replace("\\", "").replace('"', "'")
    wanted = ", ".join(map(write_value, check.allowed))
    return fold(f'agrees.append(compare("{label}", {check.got}, {wanted}))')


def write_value(value: Any) -> str:
    """Returns numbers and lists of numbers as Python code; a script holds no other
    values. A long list of consecutive numbers becomes a range."""
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, list):
        if len(value) > MAX_LISTED and isinstance(value[0], int):
            span = range(value[0], value[0] + len(value))
            if value == list(span):
                return f"list(range({span.start}, {span.stop}))"
        return f"[{', '.join(map(write_value, value))}]"
    raise UsageError("a script can hold only numbers; a value is not a number")
