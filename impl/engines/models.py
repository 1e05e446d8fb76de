"""Writes the files of probes, each once in a process; declares engines as backends."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.engine import NO_ARRAYS, Engine
from lockstep.harness.backends.probe import CONFIG, WINDOWED, read_probe
from lockstep.impl.probe.write import write


@cache
def get_folder() -> tempfile.TemporaryDirectory[str]:
    """Returns a folder that is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="lockstep-probes-")


def get_weights(config: Mapping[str, Any], format: str) -> Path:
    """Returns the file with the weights of a probe.

    Args:
        config: a config of the serving contract.
        format: "gguf", or "hf" for a Hugging Face folder.
    """
    return write_once(tuple((name, config[name]) for name in CONFIG), format)


@cache
def write_once(fields: tuple[tuple[str, Any], ...], format: str) -> Path:
    folder = Path(tempfile.mkdtemp(dir=get_folder().name))
    write(dict(fields), format, "float32", folder)
    return read_probe(folder).weights


def make_draft(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config of a model that drafts tokens for a probe. Its drafts are wrong
    at first, and right when tokens repeat."""
    return {**config, "distance": 2 * config["distance"]}


# --- backends ---------------------------------------------------------------------------

SECONDS = 600.0
"""The time limit of a request. It is behind `--step-time`, with which the user says how
long a step may take on this machine."""

WINDOWS = (8, 16)
"""The windows of kinds: larger than every `distance`."""

LAYERED = ("serving-mixed", "serving-convolution", "serving-state")
"""The kinds whose second layer has another type; engines refuse models without it."""

COMPLETE = frozenset({"complete", "queue", "run", "interrogate"})
STREAMS = COMPLETE | {"begin", "read", "abort"}


def declare(
    name: str,
    open: Callable[[Mapping[str, Any]], Engine],
    kind: Kind,
    kinds: Sequence[str],
    share: int,
    package: str,
) -> Backend:
    """Declares an engine as a backend.

    Args:
        name: the name of the backend.
        open: makes an engine from a config.
        kind: the declaration of each kind.
        kinds: the names of the kinds.
        share: see `Backend.share`.
        package: the Python package of the engine.
    """
    return Backend(
        name=name,
        device="cpu",
        contracts={"serving": {name: limit(kind, name) for name in kinds}},
        arrays=NO_ARRAYS,
        open=open,
        ledger=Path(__file__).parents[1] / "peers" / "ledger",
        share=share,
        versions={package: version(package)},
    )


def limit(kind: Kind, name: str) -> Kind:
    """Adds the supported values of a kind to its declaration."""
    windows = {"window": WINDOWS} if name in WINDOWED else {}
    layers = {"layers": (2,)} if name in LAYERED else {}
    return replace(kind, config={**kind.config, **windows, **layers})
