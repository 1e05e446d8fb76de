"""The options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lockstep.harness.cli.command import count_cores
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.fields import suggest

KINDS = list(dict.fromkeys(kind for rules in CONTRACTS.values() for kind in rules.kinds))

BACKEND_HELP = (
    'A name from `lockstep backends`, package.module:factory, or "exec:program …".'
)


class Seconds(click.FloatRange):
    """A number of seconds; "nan" is a float, but no number."""

    def convert(self, value: Any, param: Any, context: Any) -> float:
        seconds = float(super().convert(value, param, context))
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds", param, context)
        return seconds


def get_kinds(context: click.Context, option: Any, kinds: Sequence[str]) -> Sequence[str]:
    for kind in kinds:
        if kind not in KINDS:
            near = suggest(kind, dict.fromkeys(KINDS))
            raise click.BadParameter(f"there is no kind {kind}{near}")
    return kinds


kinds_option = click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    callback=get_kinds,
    help=f"One of {', '.join(KINDS)}; may be repeated.",
)
failures_option = click.option(
    "--failures",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("failures"),
    show_default=True,
    help="Where failures are written.",
)
backends_option = click.option(
    "--backend", "backends", multiple=True, metavar="NAME", help=BACKEND_HELP
)
step_option = click.option(
    "--step-time",
    type=Seconds(0.1, 3600),
    default=20.0,
    show_default=True,
    metavar="S",
    help="Seconds after which a step counts as hanging.",
)
strict_option = click.option(
    "--strict",
    is_flag=True,
    help="Hold all messages of an exec: backend against their schemas.",
)
seconds_option = click.option(
    "--time", "seconds", type=Seconds(0), metavar="S", help="Stop then."
)
jobs_option = click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=count_cores,
    help="Worker processes; default: all cores.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the outcome as JSON."
)
