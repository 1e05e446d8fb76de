"""Runs one program on the reference and a backend, or on several beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import (
    Answer,
    Cell,
    Step,
    get_first_allowed,
)
from lockstep.harness.core.errors import (
    Broken,
    DeviceLost,
    HarnessError,
    find_own_place,
    format_error,
    format_missing,
    format_raised,
    make_plain,
)
from lockstep.harness.core.interrupts import is_from_user
from lockstep.harness.core.payload import Margins
from lockstep.harness.execution.compare import Difference, find_difference
from lockstep.harness.programs.condition import ParsedDuty, parse_duties
from lockstep.harness.programs.ledger import Entry, find_reason
from lockstep.harness.programs.program import OPENING, Divergence, Program, walk

Coverage = Counter[Cell]
"""How often each cell was reached."""

LAYOUT = ("columns", "seen")
"""Fields of an answer that are not compared: the order in which tokens came back."""


@dataclass
class Result:
    """The result of one run.

    Attributes:
        steps: operations that ran.
        skipped: operations that did not.
        why_skipped: the reason of the first one that did not.
        margins: how much was used of each tolerance.
        divergence: the first difference, if there is one.
        left_out: number of a step → the known divergence that it would lead to. Only
            where no generator can tell; see `Run.why_left_out`.
        choices: the numbers of the steps whose answer the backend has chosen.
    """

    steps: int = 0
    skipped: int = 0
    why_skipped: str | None = None
    margins: Margins = field(default_factory=dict)
    divergence: Divergence | None = None
    left_out: dict[int, Entry] = field(default_factory=dict)
    choices: set[int] = field(default_factory=set)

    def skip(self, reason: str) -> None:
        """Counts an operation that did not run."""
        self.why_skipped = self.why_skipped or reason
        self.skipped += 1


class Apart(Exception):
    """The reference has followed another answer, which another backend has given."""


@dataclass(eq=False)
class Run:
    """One program on the reference and on a backend.

    Attributes:
        program: a complete program.
        backend: runs beside the reference.
        every: make the costly checks too, at each step.
        coverage: is counted up.
        on_step: is called with the number of each step before it runs, and with OPENING
            before the caches are opened.
        avoid: known divergences of the kind of the program.
        is_beside: other backends run the same program; see `run_together`.
        waits: the others have to answer before the reference follows this answer.
        is_apart: the program has to run alone.
    """

    program: Program
    backend: Backend
    every: bool = False
    coverage: Coverage | None = None
    on_step: Callable[[int], None] | None = None
    avoid: Sequence[Entry] = ()

    def __post_init__(self) -> None:
        self.rules = self.program.rules
        self.duties, self.refuses = get_limits(self.program, self.backend)
        self.judges = self.rules.leaves_choices
        self.steps: Iterator[Step] = walk(self.program)
        self.system: Any = None
        self.cells: list[Cell] = []
        self.result = Result()
        self.is_beside = self.waits = self.is_apart = False

    def run(self) -> Result:
        """Runs the program until its end or its first divergence."""
        run_together([self])
        return self.result

    def take_part(self) -> Generator[None, Step | None]:
        """Runs the steps that are sent to it, until the first divergence; None is sent
        when the program is over. A step is sent once more if the answer to it `waits`."""
        number, operation = previous = 0, "open"
        scope = self.backend.get_scope(self.program.config["scope"])
        whole, turn = (nullcontext, scope) if self.is_beside else (scope, nullcontext)
        try:
            with whole():
                with turn():
                    self.announce(OPENING)
                    self.system = self.open_system()
                while (step := (yield)) is not None:
                    number, operation = step.number, step.op["op"]
                    self.begin(step)
                    # The first to run it judges: the reference may move on then.
                    if step.skipped is None and self.judges and step.answer is None:
                        step.skipped = self.why_left_out(step)
                    if step.skipped is not None:
                        self.result.skip(step.skipped)
                        continue
                    with turn():
                        observed, difference = self.take(step)
                    if self.waits:
                        again = yield
                        assert again is step
                        with turn():
                            self.announce(number)
                            self.confirm(step, observed)
                        self.waits = False
                    previous = number, operation
                    self.result.steps += step.skipped is None
                    self.backend.follow(False)
                    if difference is not None:
                        self.diverge(difference, number, operation, step.answer, observed)
                        return
                with turn():
                    self.announce(number)
                    self.system.finish()
                    self.result.margins = self.system.margins
                    self.system = None
                    self.backend.follow(True)
        except Apart:
            self.is_apart = True
            self.cells.clear()
        except GeneratorExit:
            raise
        except Broken as broken:
            self.require_device(broken.__cause__)
            if broken.is_late:
                number, operation = previous
            blamed = broken.operation or operation
            self.diverge(Difference(broken.what, str(broken)), number, blamed)
        except NotImplementedError as error:
            self.diverge(Difference("missing", format_missing(error)), number, operation)
        except Exception as error:
            self.require_device(error)
            require_backend(error, self.program)
            self.diverge(Difference("error", format_raised(error)), number, operation)
        except BaseException as error:
            if is_from_user(error):
                raise
            message = f"would have ended the process: raised {format_error(error)}"
            self.diverge(Difference("crash", message), number, operation)
        finally:
            if self.coverage is not None:
                self.coverage.update(self.cells)

    def open_system(self) -> Any:
        return self.rules.open_system(
            self.backend, self.program.config, self.program.ops, self.every
        )

    def require_device(self, error: BaseException | None) -> None:
        """Raises DeviceLost for an error after which nothing can run in this process."""
        if isinstance(error, Exception) and self.backend.is_fatal(error):
            raise DeviceLost(format_raised(error)) from error

    def begin(self, step: Step) -> None:
        """Is called before a step, also one that is skipped."""
        self.announce(step.number)

    def announce(self, number: int) -> None:
        if self.on_step:
            self.on_step(number)

    def why_left_out(self, step: Step) -> str | None:
        """Says why a step that could be asked is left out: callers must not, or it leads
        to a known divergence. Only here the answers are known that decide that."""
        reason = find_reason(step.op, step.model, self.duties, self.avoid)
        if isinstance(reason, Entry):
            self.result.left_out[step.number] = reason
            return f"it leads to a known divergence: {reason.id}"
        return None if reason is None else f"callers must not: {reason.rule}"

    def take(self, step: Step) -> tuple[Answer, Difference | None]:
        """Runs one operation on both sides; the backend's answer and how it differs. One
        that agrees is confirmed, unless it `waits`."""
        observed, difference = self.ask(step)
        agrees = difference is None and step.skipped is None
        self.waits = self.is_beside and agrees and step.follows
        if agrees and not self.waits:
            self.confirm(step, observed)
        return observed, difference

    def ask(self, step: Step) -> tuple[Answer, Difference | None]:
        """Asks both sides; the backend's answer and how it differs."""
        op, operation, model = step.op, step.operation, step.model
        system = self.system
        if step.states is None and self.coverage is not None:
            step.states = self.rules.get_states(op, model)
        expected = self.run_reference(step)
        if not self.refuses and expected.get("error") == "usage":
            step.skipped = "a misuse, which the backend is not declared to refuse"
            self.result.skip(step.skipped)
            return expected, None
        self.cells += [(state, operation.name) for state in step.states or ()]
        system.check_aliases(op)
        observed = self.run_backend(step)
        difference = find_difference(
            expected, observed, lambda row: operation.describe_row(op, row)
        )
        if self.judges and get_first_allowed(expected) is not expected:
            self.result.choices.add(step.number)
        return observed, difference

    def confirm(self, step: Step, observed: Answer) -> None:
        """Lets the reference follow an answer that is allowed, and checks what else came
        with it.

        Raises:
            Apart: it has followed another one, or could not follow one.
        """
        if not step.is_resolved:
            step.resolve(observed)
        elif self.waits and not is_same(observed, step.resolved):
            raise Apart
        step.operation.verify(step.op, self.system, step.model)
        self.system.verify_memory(step.op, step.model)

    def run_reference(self, step: Step) -> Answer:
        return step.run_reference()

    def run_backend(self, step: Step) -> Answer:
        return step.operation.run_backend(step.op, self.system, step.model)

    def diverge(
        self,
        difference: Difference,
        step: int,
        operation: str,
        expected: Answer | None = None,
        got: Answer | None = None,
    ) -> None:
        self.result.divergence = Divergence(
            difference.what,
            step,
            operation,
            difference.message,
            expected,
            make_plain(leave_out_columns(got)),
            difference.tokens,
        )


def run_together(runs: Sequence[Run]) -> None:
    """Runs a program on backends beside each other: each takes a step before the next one
    begins. The reference runs once.

    Where the reference follows an answer, all give theirs before it does, and it follows
    the first one that it allows; those that have answered otherwise are apart from then
    on.

    Args:
        runs: of programs that differ at most in fields of the config on which no answer
            depends.
    """
    for run in runs:
        run.is_beside = len(runs) > 1
    generators = {run: run.take_part() for run in runs}
    active = [run for run in runs if send(generators[run], None)]
    for step in runs[0].steps:
        active = [run for run in active if send(generators[run], step)]
        if any(run.waits for run in active):
            active = [run for run in active if send(generators[run], step)]
        if not active:
            return
    for run in active:
        send(generators[run], None)


def send(generator: Generator[None, Step | None], step: Step | None) -> bool:
    """Says whether a part of a run goes on behind a step."""
    try:
        generator.send(step)
    except StopIteration:
        return False
    return True


def is_same(answer: Answer, expected: Answer | None) -> bool:
    """Says whether two answers are the same, whatever the words of a refusal and the
    order in which tokens came back."""
    if expected is None:
        return False
    mine, theirs = leave_out_columns(answer), leave_out_columns(expected)
    return bool({**mine, "why": None} == {**theirs, "why": None})


def get_limits(program: Program, backend: Backend) -> tuple[list[ParsedDuty], bool]:
    """Returns the duties of callers, and whether misuses are refused, where only a run
    can tell what is legal, since it depends on what the backend has answered. Elsewhere
    no program has such calls."""
    declared = backend.contracts[program.contract].get(program.kind)
    if declared is None or not program.rules.leaves_choices:
        return [], True
    return parse_duties(declared, program.rules, program.kind), declared.refuses


def require_backend(error: Exception, program: Program) -> None:
    """Raises HarnessError for an error in which the backend has no part."""
    location = find_own_place(error)
    if location is not None:
        raise HarnessError(f"{format_error(error)}, in {location}", program) from error


def leave_out_columns(answer: Any) -> Any:
    """The answer without fields that only the comparison and pictures need."""
    if isinstance(answer, list):
        return [leave_out_columns(item) for item in answer]
    if not isinstance(answer, Mapping):
        return answer
    fields = {name: value for name, value in answer.items() if name not in LAYOUT}
    return {
        name: leave_out_columns(value) if name in ("caches", "layers") else value
        for name, value in fields.items()
    }


def run(
    program: Program,
    backend: Backend,
    every: bool = False,
    coverage: Coverage | None = None,
    on_step: Callable[[int], None] | None = None,
    wanted: str | None = None,
    avoid: Sequence[Entry] = (),
) -> Result:
    """Runs a program until its end or its first divergence; see `Run`.

    Args:
        program: a complete program.
        backend: runs beside the reference, or as its own `execute` does.
        every: make the costly checks too, at each step.
        coverage: is counted up.
        on_step: is called with the number of each step before it runs.
        wanted: the signature that is looked for; only `execute` heeds it.
        avoid: known divergences; `execute` does not heed them.

    Raises:
        HarnessError: the harness or the reference failed.
    """
    if backend.execute is None:
        return Run(program, backend, every, coverage, on_step, avoid).run()
    try:
        result: Result = backend.execute(program, every, coverage, on_step, wanted)
    except Exception as error:
        require_backend(error, program)
        raise
    return result
