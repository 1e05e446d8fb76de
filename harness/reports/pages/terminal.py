"""Prints a failure on the terminal: its steps, and a picture of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from lockstep.harness.core.errors import clean, make_printable
from lockstep.harness.execution.recording.picture import (
    EXTRA,
    HIDDEN,
    MISSING,
    SEEN,
    Bounds,
    Chip,
    Fact,
    Grid,
    Part,
    Step,
)
from lockstep.harness.programs.words import format_outcome
from lockstep.harness.reports.console import indent
from lockstep.harness.reports.pages.view import SIGNS, FailureView

LABEL = 34
"""Characters of a row's label."""

STYLES = {SEEN: "bold", HIDDEN: "dim", MISSING: "bold red", EXTRA: "bold magenta"}


def get_bounds(width: int) -> Bounds:
    """Returns the bounds of a picture in this width; a square takes four characters."""
    return Bounds(first=8, last=32, rows=24, columns=max(4, (width - LABEL) // 4))


class Painter:
    """Prints failures."""

    def __init__(self, console: Console) -> None:
        self.console, self.width = console, console.width

    def show(self, view: FailureView, number: int | None) -> None:
        """Prints a failure, its steps, and a picture of one step.

        Args:
            view: the view of the failure.
            number: the step to draw; None for the diverging step or, if no step
                diverges, the last step.
        """
        program = view.program
        head = Text(f"✗ {clean(view.name)} ", "bold red")
        head.append(clean(view.title), "not bold default")
        self.print(head)
        self.say(f"{program.kind} cache, {view.config}")
        for note in view.notes:
            self.say(note, "yellow")
        drawn = self.choose(view, number)
        self.list_steps(view, drawn)
        self.say(f"{view.kind_of_difference}: {view.sentence}", "bold")
        for story in view.played.stories:
            self.say(story)
        if drawn is not None:
            self.draw(drawn)
        self.print(Text(f"  {make_printable(view.replay)}", "bold"))

    def choose(self, view: FailureView, number: int | None) -> Step | None:
        """Returns the step to draw."""
        wanted = view.step if number is None else number
        steps = view.played.steps
        chosen = [step for step in steps if step.number == wanted] or steps[-1:]
        return chosen[0] if chosen else None

    def list_steps(self, view: FailureView, drawn: Step | None) -> None:
        for index, step in enumerate(view.played.steps):
            if gap := view.describe_gap(index):
                self.say(f"  {gap}", "dim")
            is_failing = step.number == view.step
            mark = "→" if is_failing else " "
            line = f"{mark} step {step.number}: {step.words}"
            line += format_outcome(step.outcome, is_failing)
            if step.is_wrong and not is_failing:
                line += " (differs)"
            self.say(line, "bold" if step is drawn else "")
        if view.unreached:
            self.say(f"  {view.unreached}", "dim")

    # --- a picture ----------------------------------------------------------------------

    def draw(self, step: Step) -> None:
        self.print(Text(""))
        self.say(f"step {step.number}: {step.words}", "underline")
        self.list_facts(step.facts, step.answered)
        for part in step.parts:
            if len(step.parts) > 1 or part.title != "cache a":
                self.say(part.title, "bold")
            self.list_facts(part.facts, step.answered)
            self.draw_part(part)
        if step.left_out:
            self.say(step.left_out, "dim")
        if any(grid.rows for part in step.parts for grid in part.grids):
            self.say("; ".join(self.list_legend(step)), "dim")

    def list_facts(self, facts: Sequence[Fact], answered: bool) -> None:
        if facts and not answered:
            self.say("the reference answers:")
        for fact in facts:
            if fact.differs:
                self.say(f"{fact.name}: {fact.got}, not {fact.expected}", "bold red")
            else:
                self.say(f"{fact.name} {fact.expected}")

    def draw_part(self, part: Part) -> None:
        extra = f"{part.held_left_out} more, " if part.held_left_out else ""
        self.say(f"the reference holds: {extra}{self.list_chips(part.held)}")
        for grid in part.grids:
            if grid.is_layout:
                title = f", {grid.title}" if grid.title else ""
                returned = self.list_chips(grid.returned)
                self.say(f"the backend returned{title}: {returned}")
            if grid.rows:
                self.draw_grid(grid)
            if grid.left_out:
                self.say(grid.left_out, "dim")

    def list_chips(self, chips: Sequence[Chip]) -> str:
        return " ".join(map(self.format_chip, chips)) or "nothing"

    def format_chip(self, chip: Chip) -> str:
        """Formats a token as tag@position/sequences."""
        if chip.tag is None:
            return self.get_label(chip) or f"[{chip.words}]"
        text = chip.label if chip.position is None else f"{chip.label}@{chip.position}"
        if chip.sequences:
            text += f"/s{','.join(map(str, chip.sequences))}"
        return {"old": f"({text})", "gone": f"<{text}>"}.get(chip.mark, text)

    def get_label(self, chip: Chip) -> str | None:
        """Returns the label of a chip without a token; None for a token."""
        return {
            "gap": "⋯",
            "unread": SIGNS[HIDDEN],
            "pad": chip.label.replace("pad ", "p"),
        }.get(chip.mark)

    def draw_grid(self, grid: Grid) -> None:
        """Draws the squares under the tags of their columns, in blocks of this width."""
        heads = [self.format_head(chip, grid) for chip in grid.columns]
        width = max(3, *map(len, heads), 0)
        margin = min(LABEL, max((len(row.label) for row in grid.rows), default=0))
        fitting = max(1, (self.width - margin - 4) // (width + 1))
        for begin in range(0, len(heads), fitting):
            block = slice(begin, begin + fitting)
            line = "".join(f" {head:>{width}}" for head in heads[block])
            self.print(Text(" " * (margin + 4) + line, "dim"))
            for row in grid.rows:
                mark = "✗" if row.is_wrong else " "
                text = Text(f"  {mark} {clean(row.label, margin):<{margin}}")
                if row.is_wrong:
                    text.stylize("bold")
                for square in row.squares[block]:
                    text.append(" " * width)
                    text.append(SIGNS[square], STYLES.get(square, ""))
                self.print(text)

    def format_head(self, chip: Chip, grid: Grid) -> str:
        label = "!" if chip.mark == "odd" else self.get_label(chip) or chip.label
        if chip.tag in grid.twice and chip.position is not None:
            label += f"@{chip.position}"
        return f"{label}?" if chip.mark == "absent" else label

    def list_legend(self, step: Step) -> Iterator[str]:
        grids = [grid for part in step.parts for grid in part.grids]
        chips = [chip for part in step.parts for chip in part.held]
        chips += [chip for grid in grids for chip in grid.columns]
        marks = {chip.mark for chip in chips}
        for square, meaning in SQUARES.items():
            yield f"{SIGNS[square]} {meaning}"
        yield from (meaning for mark, meaning in MARKS.items() if mark in marks)

    # --- lines --------------------------------------------------------------------------

    def say(self, line: str, style: str = "") -> None:
        self.print(Text(indent(make_printable(line), self.width), style))

    def print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)


SQUARES = {SEEN: "seen", HIDDEN: "not seen", MISSING: "missing", EXTRA: "too much"}
MARKS = {
    "old": "(N@P) token N at position P, which need not be kept",
    "gone": "<N@P> not held by the reference",
    "absent": "N? token N did not come back",
    "pad": "pR.C padding: row R, column C",
    "odd": "! no token",
}
"""Meanings in the legend of a picture."""
