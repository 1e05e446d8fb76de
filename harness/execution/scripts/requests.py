"""Writes a program as a script that sends requests to a server with an engine."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from lockstep.harness import __version__
from lockstep.harness.backends.http.completions import FORK_TEMPERATURE
from lockstep.harness.core.errors import UsageError, make_printable
from lockstep.harness.execution.scripts import client
from lockstep.harness.programs.program import Program, walk

SIZES = ("layers", "heads", "window", "content", "context", "distance")
"""The config fields that are options of `lockstep probe`."""

HEAD = '''"""Requests to a server, and the tokens that it must generate.

Write the model, serve it, and give this script the address of the server:

    lockstep probe --kind {kind} {sizes} -o probe
    python THIS_FILE http://127.0.0.1:8080

A request is a list of token ids. Its last token asks for an earlier token, which the
model generates. A wrong token shows that the server used K and V of another token.
A request with "id_slot" names a slot of llama.cpp's server.
Written by kv-lockstep {version}.
"""
'''


def write_requests(program: Program) -> str:
    """Writes a script with the requests of a program and the expected tokens. The script
    needs no package.

    Raises:
        UsageError: servers have different requests for an operation of the program.
    """
    config = program.config
    sizes = [f"--{name} {config[name]}" for name in SIZES if config[name] is not None]
    kind, version = program.kind, __version__
    head = HEAD.format(kind=kind, sizes=" ".join(sizes), version=version)
    source = inspect.getsource(client).partition('"""\n\n')[2]
    steps = "".join(f"    {line}\n" for line in list_steps(program))
    return f"{head}\n{source}\n\nSTEPS = [\n{steps}]\n\nsys.exit(run(STEPS) > 0)\n"


def list_steps(program: Program) -> Iterator[str]:
    """Yields the steps as Python code. The requests of a "complete" are sent at the same
    time, each with the expected ids and the field of its slot."""
    queued = []
    for step in walk(program):
        if step.skipped:
            continue
        op, name, model = step.op, step.op["op"], step.model
        requested = model.list_asked(op) if name == "interrogate" else []
        yield f"# step {step.number}: {make_printable(step.operation.describe(op))}"
        step.run_reference()
        current = model.current
        expected = model.get_ids(current.generated) or client.REFUSED
        slot = {} if op.get("slot") is None else {"id_slot": op["slot"]}
        request = model.get_ids(current.prompt), expected, slot
        if name == "complete":
            yield f"({name!r}, {[request]}),"
        elif name == "fork":
            forked = {**slot, "n": op["answers"], "temperature": FORK_TEMPERATURE}
            yield f"('complete', {[(request[0], expected * op['answers'], forked)]}),"
        elif name == "queue":
            queued.append(request)
        elif name == "run":
            yield f"('complete', {queued}),"
            queued = []
        elif name == "begin":
            yield f"({name!r}, {op['request']!r}, {str(request)[1:-1]}),"
        elif name == "read":
            yield f"({name!r}, {op['request']!r}, {op['count']}),"
        elif name == "abort":
            yield f"({name!r}, {op['request']!r}),"
        elif name == "interrogate":
            for prompt, token in requested:
                request = model.get_ids(prompt), model.get_ids([token]), {}
                yield f"('complete', {[request]}),"
        else:
            raise UsageError(
                f"servers have different requests for {name}; a script cannot send it"
            )
