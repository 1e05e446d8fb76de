"""A failure in the terminal: its steps, and one of them as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from lockstep.harness.reports.pages.view import FailureView

LABEL = 34
"""The widest that the words of a row may be."""

MOST_STEPS = 40

STYLES = {SEEN: "bold", HIDDEN: "dim", MISSING: "bold red", EXTRA: "bold magenta"}


@dataclass(frozen=True)
class Signs:
    """The characters for squares and marks: where the encoding has them, as signs that
    one sees at a glance, and in ASCII elsewhere."""

    squares: dict[str, str]
    arrow: str = "→"
    gap: str = "⋯"
    cross: str = "✗"


SIGNS = Signs({SEEN: "■", HIDDEN: "·", MISSING: "−", EXTRA: "+", " ": " "})
ASCII = Signs(
    {SEEN: "#", HIDDEN: ".", MISSING: "-", EXTRA: "+", " ": " "}, ">", "..", "x"
)


def choose_signs(encoding: str) -> Signs:
    """Those that the encoding of the terminal can print."""
    try:
        "".join((*SIGNS.squares.values(), SIGNS.arrow, SIGNS.gap, SIGNS.cross)).encode(
            encoding
        )
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return SIGNS


def get_bounds(width: int) -> Bounds:
    """The bounds of a picture on lines of this width: a square takes four letters."""
    return Bounds(first=8, last=32, rows=24, columns=max(4, (width - LABEL) // 4))


class Painter:
    """Prints the view of a failure."""

    def __init__(self, console: Console) -> None:
        self.console, self.width = console, console.width
        self.signs = choose_signs(console.encoding)

    def show(self, view: FailureView, number: int | None) -> None:
        """All of it. number: of the step that is drawn; None for the one that diverges,
        or the last."""
        program = view.saved.program
        head = Text(f"{self.signs.cross} {clean(view.name)} ", "bold red")
        head.append(clean(view.signature), "not bold default")
        self.print(head)
        self.say(f"{program.kind} cache, {view.config}")
        for note in (*view.saved.remarks, *view.played.notes):
            self.say(note, "yellow")
        if view.played.status == "agrees":
            now = f"{view.played.backend} agrees now in every step"
            self.say(f"{now}; its file says:", "yellow")
        drawn = self.choose(view, number)
        self.list_steps(view, drawn)
        self.say(f"{view.what}: {view.message}", "bold")
        for story in view.played.stories:
            self.say(story)
        if drawn is not None:
            self.draw(drawn)
        self.print(Text(f"  {make_printable(view.replay)}", "bold"))

    def choose(self, view: FailureView, number: int | None) -> Step | None:
        """The step that is drawn."""
        wanted = view.step if number is None else number
        steps = view.played.steps
        found = [step for step in steps if step.number == wanted] or steps[-1:]
        return found[0] if found else None

    def list_steps(self, view: FailureView, drawn: Step | None) -> None:
        for place, step in enumerate(view.played.steps):
            if gap := view.describe_gap(place):
                self.say(f"  {gap}", "dim")
            mark = self.signs.arrow if step.number == view.step else " "
            words = f"{mark} step {step.number}: {step.words}"
            words += format_outcome(step.outcome, step.number == view.step)
            if step.is_wrong and step.number != view.step:
                words += " (differs)"
            self.say(words, "bold" if step is drawn else "")
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
            self.draw_legend(step)

    def list_facts(self, facts: Sequence[Fact], answered: bool) -> None:
        if facts and not answered:
            self.say("the reference answers:")
        for fact in facts:
            if fact.differs:
                self.say(f"{fact.name}: {fact.got}, not {fact.expected}", "bold red")
            else:
                self.say(f"{fact.name} {fact.expected}")

    def draw_part(self, part: Part) -> None:
        more = f"{part.held_left_out} more, " if part.held_left_out else ""
        self.say(f"the reference holds: {more}{self.list_chips(part.held)}")
        for grid in part.grids:
            if grid.is_layout:
                where = f", {grid.title}" if grid.title else ""
                self.say(f"the backend returned{where}: {self.list_chips(grid.returned)}")
            if grid.rows:
                self.draw_grid(grid)
            if grid.left_out:
                self.say(grid.left_out, "dim")

    def list_chips(self, chips: Sequence[Chip]) -> str:
        return " ".join(map(self.format_chip, chips)) or "nothing"

    def format_chip(self, chip: Chip) -> str:
        """A token as tag@position, and whose it is."""
        if chip.tag is None:
            label = {"gap": self.signs.gap, "unread": self.signs.squares[HIDDEN]}
            label["pad"] = shorten_pad(chip)
            return label.get(chip.mark, f"[{chip.words}]")
        text = chip.label if chip.position is None else f"{chip.label}@{chip.position}"
        if chip.sequences:
            text += f"/s{','.join(map(str, chip.sequences))}"
        return {"old": f"({text})", "gone": f"<{text}>"}.get(chip.mark, text)

    def draw_grid(self, grid: Grid) -> None:
        """The squares under the tags of their columns, in as many blocks as it takes."""
        width = max(3, *(len(self.label(chip, grid)) for chip in grid.columns), 0)
        label = min(LABEL, max((len(row.label) for row in grid.rows), default=0))
        fitting = max(1, (self.width - label - 4) // (width + 1))
        for begin in range(0, len(grid.columns), fitting):
            self.draw_block(grid, slice(begin, begin + fitting), width, label)

    def draw_block(self, grid: Grid, some: slice, width: int, label: int) -> None:
        labels = [self.label(chip, grid) for chip in grid.columns[some]]
        heads = "".join(f" {one:>{width}}" for one in labels)
        self.print(Text(" " * (label + 4) + heads, "dim"))
        for row in grid.rows:
            mark = self.signs.cross if row.is_wrong else " "
            line = Text(f"  {mark} {clean(row.label, label):<{label}}")
            if row.is_wrong:
                line.stylize("bold")
            for square in row.squares[some]:
                line.append(" " * width)
                line.append(self.signs.squares[square], STYLES.get(square, ""))
            self.print(line)

    def label(self, chip: Chip, grid: Grid) -> str:
        labels = {"gap": self.signs.gap, "odd": "!", "unread": self.signs.squares[HIDDEN]}
        labels["pad"] = shorten_pad(chip)
        label = labels.get(chip.mark, chip.label)
        if chip.tag in grid.twice and chip.position is not None:
            label += f"@{chip.position}"
        return f"{label}?" if chip.mark == "absent" else label

    def draw_legend(self, step: Step) -> None:
        grids = [grid for part in step.parts for grid in part.grids]
        chips = [chip for part in step.parts for chip in part.held]
        chips += [chip for grid in grids for chip in grid.columns]
        self.say("; ".join(self.list_legend({chip.mark for chip in chips})), "dim")

    def list_legend(self, marks: set[str]) -> Iterator[str]:
        squares = self.signs.squares
        yield f"{squares[SEEN]} seen"
        yield f"{squares[HIDDEN]} not seen"
        yield f"{squares[MISSING]} missing"
        yield f"{squares[EXTRA]} too much"
        sayings = {
            "old": "(N@P) token N at position P, which need not be kept",
            "gone": "<N@P> not held by the reference",
            "absent": "N? token N did not come back",
            "pad": "pR.C padding: row R, column C",
            "odd": "! no token",
        }
        yield from (sayings[mark] for mark in sayings if mark in marks)

    # --- lines --------------------------------------------------------------------------

    def say(self, words: str, style: str = "") -> None:
        self.print(Text(indent(make_printable(words), self.width), style))

    def print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)


def shorten_pad(chip: Chip) -> str:
    """Padding above a column of squares: "p0.3" for "pad 0.3"."""
    return chip.label.replace("pad ", "p")
