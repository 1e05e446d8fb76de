"""Writes the files of probes, each once in a process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.harness.backends.probe import CONFIG, read_probe
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
