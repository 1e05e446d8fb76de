"""Defines the command `lockstep`, which imports a subcommand when it runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from lockstep.harness import __version__
from lockstep.harness.cli.frame import end, print_error
from lockstep.harness.core.document import suggest
from lockstep.harness.core.errors import UsageError, clean


class Home(NamedTuple):
    """The module of this package that defines a command, and the command's summary."""

    module: str
    summary: str


COMMANDS: Mapping[str, Mapping[str, Home]] = {
    "Check": {
        "check": Home("jobs", "Runs backends beside the reference."),
        "campaign": Home("campaign", "Long checks, on one machine or many."),
        "explore": Home("jobs", "Runs every program up to a length."),
        "faults": Home("jobs", "Looks for mistakes planted in backends."),
        "vectors": Home("vectors", "Writes programs for engines without Python."),
        "probe": Home("probe", "Writes a model that shows what an engine caches."),
    },
    "Failures": {
        "replay": Home("replay", "Runs saved programs again: FIXED, AGREES or FAILED."),
        "show": Home("report", "Shows a failure, step by step."),
        "report": Home("report", "Makes a page of the results of a check."),
        "snippet": Home("replay", "Prints a failure as a script of plain calls."),
        "known": Home("replay", "Turns a failure into a known divergence, or a duty."),
        "shrink": Home("replay", "Continues to shrink a program that diverges."),
        "bisect": Home("bisect", "Finds the release or commit that broke a program."),
        "trace": Home("replay", "Prints the answers of the reference."),
    },
    "Begin": {
        "new-backend": Home("new_backend", "Writes a backend for you to complete."),
        "backends": Home("backends", "Lists what can be checked, and what is missing."),
    },
}
"""Section of the help → command → the module that defines the command."""

HOMES = {name: home for section in COMMANDS.values() for name, home in section.items()}


class Commands(click.Group):
    """A group that imports a command when it runs."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().main(*arguments, **options)
        except Exception as error:
            sys.exit(end(error))

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        for argument in args:
            if "\0" in argument:
                raise UsageError(f"{clean(argument)}: has a NUL character; remove it")
        return super().parse_args(context, args)

    def list_commands(self, context: click.Context) -> list[str]:
        return list(HOMES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in HOMES:
            return None
        try:
            module = import_module(f"lockstep.harness.cli.{HOMES[name].module}")
        except KeyboardInterrupt:
            print_error("stopped")
            sys.exit(130)
        command = getattr(module, name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = arguments[0]
        if name not in HOMES and not name.startswith("-"):
            similar = suggest(name, HOMES)
            context.fail(f"there is no command {name}{similar}")
        return super().resolve_command(context, arguments)

    def format_commands(
        self, context: click.Context, formatter: click.HelpFormatter
    ) -> None:
        for title, section in COMMANDS.items():
            with formatter.section(title):
                lines = [(name, home.summary) for name, home in section.items()]
                formatter.write_dl(lines)


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 88}

EXAMPLES = """\b
Examples:
  lockstep check                     check every installed backend
  lockstep replay failures           run the saved failures again
  lockstep report -o page            show them as a page
  lockstep new-backend my-cache      start with a cache of your own
"""


@click.group(cls=Commands, context_settings=CONTEXT, epilog=EXAMPLES)
@click.version_option(__version__, prog_name="lockstep")
def main() -> None:
    """Runs KV caches side by side with a slow, obviously correct reference.

    Exit status: 0 all agree; 1 a backend diverges, crashes or hangs; 2 something could
    not run.
    """


if __name__ == "__main__":
    main()
