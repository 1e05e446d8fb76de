"""Runs a program on the reference and on one or more backends."""

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
    Unloadable,
    find_own_place,
    format_error,
    format_missing,
    format_raised,
    make_plain,
)
from lockstep.harness.core.interrupts import is_from_user
from lockstep.harness.core.payload import Margins
from lockstep.harness.execution.compare import Difference, find_difference
from lockstep.harness.execution.comparisons import Comparisons
from lockstep.harness.programs.condition import ParsedDuty, parse_duties
from lockstep.harness.programs.ledger import Entry, drop_undeclared, find_reason
from lockstep.harness.programs.program import OPENING, Divergence, Program, walk

Coverage = Counter[Cell]
"""The number of times that each cell was reached."""

LAYOUT = ("columns", "seen")
"""The fields of an answer with the order of returned tokens, which are not compared."""


FORBIDDEN = "callers must not: "
"""The beginning of the reason for skipping a step that breaks a duty of callers."""


@dataclass
class Result:
    """The result of one run.

    Attributes:
        steps: the number of operations that ran.
        skipped: the number of operations that were skipped.
        why_skipped: the reason for the first skipped operation.
        margins: the used fraction of each tolerance.
        divergence: the first divergence, or None.
        left_out: number of a skipped step → the known divergence that the step would lead
            to. Empty if the generator already avoids known divergences; see
            `Run.why_left_out`.
        choices: the numbers of the steps in which the backend chose the answer.
        comparisons: the comparisons up to the end or to the first divergence.
        excluded: the first reason that names a duty of callers; None if there is none.
    """

    steps: int = 0
    skipped: int = 0
    why_skipped: str | None = None
    margins: Margins = field(default_factory=dict)
    divergence: Divergence | None = None
    left_out: dict[int, Entry] = field(default_factory=dict)
    choices: set[int] = field(default_factory=set)
    comparisons: Comparisons = field(default_factory=Comparisons)
    excluded: str | None = None

    def skip(self, reason: str) -> None:
        """Counts an operation that did not run."""
        if reason.startswith(FORBIDDEN):
            self.excluded = self.excluded or reason
        self.why_skipped = self.why_skipped or reason
        self.skipped += 1


class Apart(Exception):
    """This backend's answer differs from the answer of another backend, which the
    reference follows."""


@dataclass(eq=False)
class Run:
    """The run of one program on the reference and on a backend.

    Attributes:
        program: a complete program.
        backend: the backend that is compared with the reference.
        every: whether to run the costly checks at each step too.
        coverage: the counter of cells to update.
        on_step: a function that is called with the number of each step before the step
            runs, and with OPENING before the caches are opened.
        avoid: the known divergences of the program's kind.
        is_beside: whether other backends run the same program; see `run_together`.
        waits: whether the other backends must answer before the reference follows this
            answer.
        is_apart: whether the program has to run again on this backend alone.
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
        """Runs the program until its end or its first divergence.

        Beside other backends, the backend runs each step first if `every`, else last: it
        may get memory that another has freed in the same step, or in the step before.
        """
        watch = self.every, None, self.on_step
        others = [
            Run(fit_program(self.program, companion), companion, *watch)
            for companion in self.backend.beside.values()
        ]
        run_together([self, *others] if self.every else [*others, self], self.steps)
        return self.result

    def take_part(self) -> Generator[None, Step | None]:
        """Runs the steps that are sent to the generator, until the first divergence.

        The caller sends None at the end of the program. If `waits` is set after a step,
        the caller sends the step again.
        """
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
                    # Only the first backend that runs the step decides whether to skip
                    # it, because the reference may advance after that.
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
                    self.result.comparisons.compared.update(self.system.compared)
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
        """Raises DeviceLost for an error that makes the device unusable."""
        if isinstance(error, Exception) and self.backend.is_fatal(error):
            raise DeviceLost(format_raised(error)) from error

    def begin(self, step: Step) -> None:
        """Announces a step. Also called before a step that is skipped."""
        self.announce(step.number)

    def announce(self, number: int) -> None:
        if self.on_step:
            self.on_step(number)

    def why_left_out(self, step: Step) -> str | None:
        """Returns the reason for skipping a legal step: callers must not make this call,
        or it leads to a known divergence.

        The generator cannot decide this, because it depends on earlier answers of the
        backend.
        """
        reason = find_reason(step.op, step.model, self.duties, self.avoid)
        if isinstance(reason, Entry):
            self.result.left_out[step.number] = reason
            return f"it leads to a known divergence: {reason.id}"
        return None if reason is None else f"{FORBIDDEN}{reason.rule}"

    def take(self, step: Step) -> tuple[Answer, Difference | None]:
        """Runs an operation on the reference and the backend, and returns the backend's
        answer and its difference. Confirms an equal answer unless `waits` is set."""
        observed, difference = self.ask(step)
        agrees = difference is None and step.skipped is None
        self.waits = self.is_beside and agrees and step.follows
        if agrees and not self.waits:
            self.confirm(step, observed)
        return observed, difference

    def ask(self, step: Step) -> tuple[Answer, Difference | None]:
        """Runs a step on the reference and the backend, and returns the backend's answer
        and its difference."""
        op, operation, model = step.op, step.operation, step.model
        system = self.system
        if step.states is None and self.coverage is not None:
            step.states = self.rules.get_states(op, model)
        expected = self.run_reference(step)
        if not self.refuses and expected.get("error") == "usage":
            step.skipped = "an invalid call; the backend need not refuse it"
            self.result.skip(step.skipped)
            return expected, None
        self.cells += [(state, operation.name) for state in step.states or ()]
        system.check_aliases(op)
        observed = self.run_backend(step)
        difference = find_difference(
            expected, observed, lambda row: operation.describe_row(op, row)
        )
        if difference is None:
            self.result.comparisons.note(operation.name, observed)
        if self.judges and get_first_allowed(expected) is not expected:
            self.result.choices.add(step.number)
        return observed, difference

    def confirm(self, step: Step, observed: Answer) -> None:
        """Lets the reference follow an allowed answer, and runs the checks that come
        after an operation.

        Raises:
            Apart: the reference has followed a different answer of another backend.
        """
        if step.resolved is None:
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
        divergence = Divergence(
            difference.what,
            step,
            operation,
            difference.message,
            expected,
            make_plain(leave_out_columns(got)),
            difference.tokens,
        )
        self.result.divergence = divergence.mark(*self.backend.beside)


def fit_program(program: Program, backend: Backend) -> Program:
    """Returns a program without the fields that a backend does not declare."""
    return drop_undeclared(program, backend.contracts[program.contract][program.kind])


def run_together(runs: Sequence[Run], steps: Iterator[Step] | None = None) -> None:
    """Runs a program on several backends step by step: each step runs on all backends
    before the next step begins. The reference runs once.

    If the reference has to follow an answer, it waits for the answers of all backends and
    follows the first allowed answer. Runs with a different answer end with `is_apart`.

    Args:
        runs: the runs; their programs may differ only in config fields that do not change
            answers.
        steps: the steps of the program; None for the steps of the first run.
    """
    for run in runs:
        run.is_beside = len(runs) > 1
    generators = {run: run.take_part() for run in runs}
    active = [run for run in runs if send(generators[run], None)]
    for step in steps or runs[0].steps:
        active = [run for run in active if send(generators[run], step)]
        if any(run.waits for run in active):
            active = [run for run in active if send(generators[run], step)]
        if not active:
            return
    for run in active:
        send(generators[run], None)


def send(generator: Generator[None, Step | None], step: Step | None) -> bool:
    """Sends a step to the generator of a run. Returns whether the run continues."""
    try:
        generator.send(step)
    except StopIteration:
        return False
    return True


def is_same(answer: Answer, expected: Answer | None) -> bool:
    """Returns whether two answers are equal, apart from the message of a refusal and the
    order of returned tokens."""
    if expected is None:
        return False
    mine, theirs = leave_out_columns(answer), leave_out_columns(expected)
    return bool({**mine, "why": None} == {**theirs, "why": None})


def get_limits(program: Program, backend: Backend) -> tuple[list[ParsedDuty], bool]:
    """Returns the calls that callers must not make (`Kind.duties`), and whether the
    backend refuses invalid calls.

    The executor needs this only if the contract leaves choices to the backend: whether a
    call is legal then depends on earlier answers of the backend. For other contracts, the
    generator never draws such calls, and the result is ([], True).
    """
    declared = backend.contracts.get(program.contract, {}).get(program.kind)
    if declared is None or not program.rules.leaves_choices:
        return [], True
    return parse_duties(declared, program.rules, program.kind), declared.refuses


def require_backend(error: Exception, program: Program) -> None:
    """Raises HarnessError if an error was not caused by the backend."""
    location = find_own_place(error)
    if location is not None:
        raise HarnessError(f"{format_error(error)}, in {location}", program) from error


def leave_out_columns(answer: Any) -> Any:
    """Removes the fields of LAYOUT, which only comparisons and pictures need."""
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
        backend: the backend to compare with the reference. If it has an `execute`
            function, that function runs the program instead.
        every: whether to run the costly checks at each step too.
        coverage: the counter of cells to update.
        on_step: a function that is called with the number of each step before it runs.
        wanted: the signature to look for; used by `execute`, ignored otherwise.
        avoid: the known divergences; not used by `execute`.

    Raises:
        HarnessError: the harness or the reference failed.
    """
    if backend.execute is None:
        return Run(program, backend, every, coverage, on_step, avoid).run()
    try:
        result = backend.execute(program, every, coverage, on_step, wanted)
    except Exception as error:
        require_backend(error, program)
        raise
    if not isinstance(result, Result):
        got = type(result).__name__
        raise Unloadable(f"{backend.name}: `execute` returned {got}, not a Result")
    return result
