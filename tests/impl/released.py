"""Programs that are drawn for a third-party cache until one shows a planted mistake."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.core.errors import Unavailable
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import RandomSource
from lockstep.harness.programs.ledger import load_ledger
from lockstep.harness.programs.program import Program
from lockstep.harness.workers import registry
from lockstep.impl.peers.engines.layers import load_executorch, load_fla, load_litgpt
from lockstep.impl.peers.engines.sglang import open_sglang
from lockstep.impl.peers.engines.vllm import load_vllm
from tests.harness.building import make

MOST = 400
"""Programs that are tried for a mistake."""

Change = Callable[[Any], Any]


class Mistake(NamedTuple):
    """A mistake in a library that a backend must show.

    Attributes:
        backend, kind: the name of the backend, and a kind of its caches.
        module: where it is made; a name in `LOADERS` stands for what the adapter takes.
        name: the changed function, method or property in the module.
        change: gets what is there, and returns what takes its place.
    """

    backend: str
    kind: str
    module: str
    name: str
    change: Change


def list_mistakes(
    module: str, backend: str, rows: Sequence[tuple[str, str, str, Change]]
) -> list[Mistake]:
    """The rows tell the rest of the name of a backend, the kind, the name in the module
    and the change."""
    return [
        Mistake(backend + rest, kind, module, name, change)
        for rest, kind, name, change in rows
    ]


def edit(now: str, before: str) -> Change:
    """Compiles a function with a piece of its source as it was before a fix."""

    def change(function: Any) -> Any:
        source = textwrap.dedent(inspect.getsource(function))
        assert now in source
        scope: dict[str, Any] = {}
        exec(source.replace(now, before), function.__globals__, scope)
        return scope[function.__name__]

    return change


def each(mistakes: Sequence[Mistake]) -> pytest.MarkDecorator:
    ids = [
        f"{mistake.backend}-{mistake.kind}-{mistake.name.rpartition('.')[2]}"
        for mistake in mistakes
    ]
    return pytest.mark.parametrize("mistake", mistakes, ids=ids)


def load(name: str) -> Backend:
    """A backend; skips the test without its library."""
    try:
        return registry.load(name)
    except Unavailable as missing:
        pytest.skip(str(missing))


LOADERS: Mapping[str, Callable[[], Any]] = {
    "vllm": load_vllm,
    "litgpt": load_litgpt,
    "executorch": load_executorch,
    "fla": load_fla,
}


def load_library(module: str) -> Any:
    if module in LOADERS:
        return LOADERS[module]()
    return open_sglang().load(module) if "sglang" in module else import_module(module)


@cache
def begin(name: str, kind: str) -> tuple[Drawer, RandomSource, list[Program]]:
    """What draws programs that no entry of the ledger describes, and those drawn so far:
    the tests of one process share them."""
    backend = load(name)
    (contract,) = (each for each in backend.contracts if kind in backend.contracts[each])
    declared = backend.contracts[contract][kind]
    avoid = load_ledger(backend.ledger, name, kind)
    drawer = Drawer(contract, kind, declared, backend.dtypes, avoid)
    return drawer, RandomSource(5), []


def draw(name: str, kind: str) -> Iterator[Program]:
    """Draws no more programs than are asked for."""
    drawer, source, drawn = begin(name, kind)
    for number in range(MOST):
        if number == len(drawn):
            drawn.append(drawer.draw(source))
        yield drawn[number]


def check(mistake: Mistake) -> None:
    """A program diverges with the mistake, and agrees without."""
    begin(mistake.backend, mistake.kind)
    owner, _, attribute = mistake.name.rpartition(".")
    library = load_library(mistake.module)
    target = getattr(library, owner) if owner else library
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, attribute, mistake.change(getattr(target, attribute)))
        program = find(mistake.backend, mistake.kind)
    assert program is not None
    assert run(program, load(mistake.backend)).divergence is None


def find(name: str, kind: str) -> Program | None:
    """The first program that diverges."""
    backend = load(name)
    programs = draw(name, kind)
    return next((each for each in programs if run(each, backend).divergence), None)


def get_signature(
    backend: Backend, config: Mapping[str, Any], *ops: Mapping[str, Any]
) -> str | None:
    """The signature of a program for a block manager; None if it agrees."""
    program = make(*ops, contract="paged", **config)
    divergence = run(program, backend).divergence
    return divergence and divergence.get_signature(program)
