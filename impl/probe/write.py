"""Writes the files of a probe, for `lockstep probe`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import file_digest
from pathlib import Path
from typing import Any

from lockstep.harness.backends.probe import FORMAT, NAME
from lockstep.impl.probe import chunked, convolution, full, latent, sinks, sliding, state
from lockstep.impl.probe.checkpoints import write_folder, write_gguf, write_json
from lockstep.impl.probe.model import Model

Build = Callable[[Mapping[str, Any]], Model]

FORMATS = {"hf": write_folder, "gguf": write_gguf}

BUILDERS: Mapping[tuple[str, str], Build] = {
    ("serving-full", "hf"): full.build,
    ("serving-full", "gguf"): full.build,
    ("serving-sliding", "hf"): sliding.build_mistral,
    ("serving-sliding", "gguf"): sliding.build_gemma,
    ("serving-mixed", "hf"): sliding.build_gemma,
    ("serving-mixed", "gguf"): sliding.build_gemma,
    ("serving-sinks", "hf"): sinks.build,
    ("serving-sinks", "gguf"): sinks.build,
    ("serving-chunked", "hf"): chunked.build,
    ("serving-chunked", "gguf"): chunked.build_for_llama_cpp,
    ("serving-latent", "hf"): latent.build,
    ("serving-latent", "gguf"): latent.build,
    ("serving-state", "hf"): state.build,
    ("serving-state", "gguf"): state.build,
    ("serving-convolution", "hf"): convolution.build,
    ("serving-convolution", "gguf"): convolution.build,
}
"""(kind, format) → the function that builds the model."""


def write(config: Mapping[str, Any], format: str, dtype: str, folder: Path) -> None:
    """Writes the files of a probe into a folder.

    Args:
        config: a complete config of the serving contract.
        format: a name in `FORMATS`.
        dtype: the type of the weights: float32, float16 or bfloat16.
        folder: the folder, which is made if it does not exist.

    Raises:
        UsageError: the probe would be too large, or a package is missing.
    """
    model = BUILDERS[config["kind"], format](config)
    folder.mkdir(parents=True, exist_ok=True)
    weights = FORMATS[format](model, folder, dtype)
    with weights.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    described = {
        "format": FORMAT,
        **config,
        "architecture": model.settings["model_type"],
        "dtype": dtype,
        "weights": weights.name,
        "digest": digest,
    }
    write_json(folder / NAME, described)
