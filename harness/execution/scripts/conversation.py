"""Writes a program as a shell script that sends a driver the messages of the harness.

The program runs, and the messages that the harness sends are noted.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from lockstep.harness import __version__
from lockstep.harness.backends.backend import DRIVER_PREFIX, Backend
from lockstep.harness.backends.driver.backend import get_driver
from lockstep.harness.core.errors import UsageError, make_plain, make_printable
from lockstep.harness.execution.scripts.follow import FollowedRun, Notes, follow, prepare
from lockstep.harness.programs.program import Program
from lockstep.harness.programs.words import describe_config

MOST_BYTES = 1 << 20
"""The maximum size of all messages; a longer script is not readable."""


class MessageNotes(Notes):
    """The messages of one run."""

    def watch(self) -> Backend:
        """Returns the backend with a restarted driver, so that messages count from 1."""
        driver = get_driver(self.backend)
        driver.end()
        driver.on_send = self.send
        return self.backend

    def send(self, request: bytes) -> None:
        if not self.is_over:
            self.steps[-1].append(request.decode().rstrip("\n"))


def write_conversation(program: Program, backend: Backend, name: str) -> str:
    """Writes a script that pipes the messages up to the failing step into a driver. The
    script has the expected answer of each step in a comment.

    Args:
        program: a complete program.
        backend: the driver.
        name: "exec:" and the command.

    Raises:
        UsageError: there is no such script; the message has the reason.
    """
    program = prepare(program, backend)
    try:
        notes, run = follow(program, backend, MessageNotes)
    finally:
        get_driver(backend).on_send = None
    sent = sum(len(line) for lines in notes.steps for line in lines)
    if sent > MOST_BYTES:
        raise UsageError(
            f"the messages have {sent} bytes, more than {MOST_BYTES}; lockstep shrink may"
            " make the program shorter"
        )
    head = [f"# {make_printable(line)}" for line in list_comments(program, backend, run)]
    body = list(list_lines(program, notes, run))
    command = shlex.join(get_command(name))
    return "\n".join(["#!/bin/sh", *head, "", "{", *body, f"}} | {command}", ""])


def get_command(name: str) -> list[str]:
    """Returns the command as given; a file in the current folder gets the prefix "./"."""
    program, *arguments = shlex.split(name.removeprefix(DRIVER_PREFIX))
    is_here = "/" not in program and Path(program).is_file()
    return [f"./{program}" if is_here else program, *arguments]


def list_comments(program: Program, backend: Backend, run: FollowedRun) -> Iterator[str]:
    yield f"{backend.name}, {program.kind}, {describe_config(program)}."
    yield "Sends the messages of the harness to the driver, and prints the answers."
    yield "Token n is the n-th token that the program writes."
    divergence = run.result.divergence
    if divergence is None:
        yield "All answers of the driver are correct."
    else:
        yield f"The answer to step {divergence.step} is wrong: {divergence.message}"
    yield f"Written by kv-lockstep {__version__}."


def list_lines(program: Program, notes: MessageNotes, run: FollowedRun) -> Iterator[str]:
    """Yields the lines for the shell, step by step."""
    yield from map(send, notes.steps[0])
    for number, lines in enumerate(notes.steps[1:]):
        op = program.ops[number]
        description = program.rules.operations[op["op"]].describe(op)
        yield f"# step {number}: {make_printable(description)}"
        expected = run.expected.get(number)
        if expected is None:
            yield "# not sent: the operation is not legal"
        elif expected:
            yield f"# should answer {json.dumps(make_plain(expected))}"
        yield from map(send, lines)


def send(line: str) -> str:
    return f"printf '%s\\n' {shlex.quote(line)}"
