"""The command probe."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click

from lockstep.harness.backends.probe import CONFIG, KINDS, WINDOWED, check_config
from lockstep.harness.cli.options import define, option
from lockstep.harness.core.document import DTYPE
from lockstep.harness.core.errors import UsageError

GROUP = "lockstep.probes"
"""The group of entry points with the function that writes a probe."""

ABOUT = {
    "layers": "Layers whose heads can be asked.",
    "heads": "Heads of a layer.",
    "window": "Tokens that a head sees, itself included; default: 16 if the kind slides.",
    "content": "Tags: tokens that are no questions.",
    "context": "The most tokens of a request.",
    "distance": "The distance that a tag asks for.",
}

SIZES = [
    option(
        f"--{name}",
        about,
        type=click.IntRange(CONFIG[name]["minimum"], CONFIG[name]["maximum"]),
        default=CONFIG[name]["default"],
        show_default=CONFIG[name]["default"] is not None,
        metavar="N",
    )
    for name, about in ABOUT.items()
]


@define(
    option(
        "--kind",
        f"What heads find: {', '.join(KINDS)}.",
        type=click.Choice(KINDS),
        required=True,
        metavar="KIND",
    ),
    option(
        "--format",
        "A Hugging Face folder, or a file for llama.cpp.",
        type=click.Choice(["hf", "gguf"]),
        default="hf",
        show_default=True,
    ),
    option(
        "-o --output folder",
        "Folder of the model, new or empty.",
        type=click.Path(path_type=Path),
        required=True,
        metavar="DIR",
    ),
    *SIZES,
    option(
        "--dtype",
        "Type of the weights.",
        type=click.Choice(DTYPE["enum"]),
        default=DTYPE["default"],
        show_default=True,
    ),
)
def probe(format: str, folder: Path, dtype: str, **config: Any) -> int:
    """Writes a small model that shows what an inference engine's caches hold.

    The next token that the model generates is the token that a head finds: each token
    asks one head for a token at a distance, or for a token that it names. The weights are
    computed; nothing is downloaded. probe.json beside them describes the model.

    Examples:
      lockstep probe --kind serving-full -o probe
      lockstep probe --kind serving-sliding --format gguf --window 8 -o probe
    """
    if config["kind"] in WINDOWED and config["window"] is None:
        config["window"] = 16
    complete_config = check_config(config, "lockstep probe")
    writer = next(iter(entry_points(group=GROUP)), None)
    if writer is None:
        raise UsageError("no writer of probes is registered; install kv-lockstep again")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is not an empty folder; give a new one with -o")
    writer.load()(complete_config, format, dtype, folder)
    click.echo(f"Wrote {folder}. Serve it with your engine, greedily.")
    return 0
