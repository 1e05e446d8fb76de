"""Snippets for block managers. They import an engine as usual; here it is imported
without what it needs beside."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest

from lockstep.harness.backends import Backend
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import run
from lockstep.harness.execution.snippet import write_snippet
from lockstep.harness.programs.generate.drawer import Drawer, RandomSource
from lockstep.harness.programs.program import Program

FREELY = {"sys", "array", "collections", "math", "types", "torch"}
"""What a snippet imports beside the engine."""


def run_snippet(text: str, importer: Any) -> tuple[Any, str]:
    """What a snippet ends with, and what it prints.

    Args:
        text: of the snippet.
        importer: of its engine.
    """

    def import_lean(name: str, *more: Any, **fields: Any) -> Any:
        root = name.partition(".")[0]
        if root in FREELY:
            return __import__(name, *more, **fields)
        assert root in ("vllm", "sglang")
        return importer.load(name)

    own = {**vars(builtins), "__import__": import_lean}
    out = StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        exec(compile(text, "snippet", "exec"), {"__builtins__": own})
    return ended.value.code, out.getvalue()


def compare(
    backends: Iterable[Backend], importer: Any, most: int
) -> tuple[list[int], list[str]]:
    """Requires that snippets end as the harness says.

    Args:
        backends: of the snippets.
        importer: of their engine.
        most: programs of each kind.

    Returns:
        What they end with, and why there is none for some programs.
    """
    ends, why_not = [], []
    for backend in backends:
        for kind in backend.contracts["paged"]:
            for program, status in list_programs(backend, kind, most):
                try:
                    text = write_snippet(program, backend)
                except UsageError as error:
                    why_not.append(str(error))
                    continue
                ended, out = run_snippet(text, importer)
                assert ended == status, text + out
                ends.append(status)
    assert not any("must be refused" in why for why in why_not)  # that is left out
    return ends, why_not


def list_programs(
    backend: Backend, kind: str, most: int
) -> Iterator[tuple[Program, int]]:
    """Programs without drafts, each with what its snippet is to end with."""
    declared = backend.contracts["paged"][kind]
    config = {**declared.config, "lookahead": (0,)}
    declared = replace(declared, config=config)
    drawer, source = Drawer("paged", kind, declared, backend.dtypes), RandomSource(4)
    for _ in range(most):
        program = drawer.draw(source)
        divergence = run(program, backend).divergence
        if divergence is not None:
            signature = divergence.get_signature(program)
            meta = {"step": divergence.step, "signature": signature}
            program = replace(program, meta=meta)
        yield program, int(divergence is not None)
