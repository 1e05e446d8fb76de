"""Batches: the shadow state, and each row as the single cache that it must equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.batched.model import (
    ALONE,
    LIST,
    MOST_ROWS,
    get_single_config,
    list_part_configs,
)
from lockstep.harness.contracts.operation import Answer, Op, rename
from lockstep.harness.execution.metamorphic.relations import (
    Builder,
    Derived,
    Family,
    History,
    Part,
    Relation,
    ShadowState,
    Step,
)
from lockstep.harness.programs.program import Program

Tags = list[int]

OPERATIONS = CONTRACTS["batched"].operations

SWAPPED = {"a": "b", "b": "a", "x": "y", "y": "x"}


class BatchedShadow(ShadowState):
    """The tokens in each row of each batch, and in each single cache.

    Tokens that slid out of a window stay in the lists.

    Attributes:
        batches: the rows of each batch.
        singles: the tokens of each single cache.
        saved: the rows of what was saved.
        announced: the batches that get padding on the right.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.batches: dict[str, list[Tags]] = {}
        self.singles: dict[str, Tags] = {}
        self.saved: dict[str, list[Tags]] = {}
        self.announced: set[str] = set()

    def put(self, name: str, rows: Sequence[Tags]) -> None:
        self.drop(name)
        self.batches[name] = [list(row) for row in rows]

    def drop(self, name: str) -> None:
        self.batches.pop(name, None)
        self.singles.pop(name, None)
        self.announced.discard(name)

    # --- operations ---------------------------------------------------------------------

    def write_open(self, step: Step) -> None:
        self.put(step.op["cache"], [[] for _ in range(step.op["rows"])])

    def write_update(self, step: Step) -> None:
        name = step.op["cache"]
        if name not in self.batches:
            tokens = self.singles.setdefault(name, [])
            tokens += step.tags[: step.op["length"]]
            return
        for row, tags in zip(self.batches[name], list_written(step), strict=True):
            row += tags

    def write_pad_right(self, step: Step) -> None:
        self.announced.add(step.op["cache"])

    def write_finalize(self, step: Step) -> None:
        self.announced.remove(step.op["cache"])

    def write_trim(self, step: Step) -> None:
        name, count = step.op["cache"], step.answer["trimmed"]
        for tokens in self.batches.get(name) or [self.singles.setdefault(name, [])]:
            del tokens[len(tokens) - count :]

    def write_rollback(self, step: Step) -> None:
        if step.answer["done"]:
            pairs = zip(self.batches[step.op["cache"]], step.op["counts"], strict=True)
            for tokens, count in pairs:
                del tokens[len(tokens) - count :]

    def write_select(self, step: Step) -> None:
        rows = self.batches[step.op["cache"]]
        self.put(step.op["cache"], [rows[row] for row in step.op["rows"]])

    write_filter = write_select

    def write_repeat(self, step: Step) -> None:
        rows, times = self.batches[step.op["cache"]], step.op["times"]
        self.put(step.op["cache"], [row for row in rows for _ in range(times)])

    def write_extend(self, step: Step) -> None:
        self.batches[step.op["cache"]] += self.batches[step.op["other"]]
        self.drop(step.op["other"])

    def write_extract(self, step: Step) -> None:
        row = self.batches[step.op["cache"]][step.op["row"]]
        self.drop(step.op["into"])
        self.singles[step.op["into"]] = list(row)

    def write_stack(self, step: Step) -> None:
        rows = [self.singles.pop(name, []) for name in step.op["caches"]]
        self.put(step.op["cache"], rows)

    def write_save(self, step: Step) -> None:
        rows = self.batches[step.op["cache"]]
        self.saved[step.op["into"]] = [list(row) for row in rows]

    def write_load(self, step: Step) -> None:
        self.put(step.op["cache"], self.saved[step.op["from"]])

    def write_clone(self, step: Step) -> None:
        name, into = step.op["cache"], step.op["into"]
        if name in self.batches:
            self.put(into, self.batches[name])
        else:
            tokens = list(self.singles.setdefault(name, []))
            self.drop(into)
            self.singles[into] = tokens

    def write_free(self, step: Step) -> None:
        name = step.op["cache"]
        if name in self.batches:
            self.put(name, [[] for _ in self.batches[name]])
        else:
            self.singles[name] = []

    # --- what relations ask -------------------------------------------------------------

    def may_interrupt(self, step: Step) -> bool:
        return not self.announced and not self.saved

    def rebuild(self, builder: Builder) -> bool:
        """Stacks single caches with the tokens of the rows."""
        if self.announced or self.saved:
            return False
        for name, rows in self.batches.items():
            names = [f"r{row}" for row in range(len(rows))]
            for single, tokens in zip(names, rows, strict=True):
                give(builder, single, tokens)
            builder.add({"op": "stack", "caches": names, "cache": name})
        for name, tokens in self.singles.items():
            give(builder, name, tokens)
        return True

    def list_cuts(self, step: Step) -> Sequence[Sequence[Part]]:
        return ()

    def rename(self, op: Op) -> Op:
        return rename(op, OPERATIONS, "cache", SWAPPED)

    def derive_mask(self, history: History, step: Step) -> Derived | None:
        """Derives the single cache of the row that got the most tokens."""
        if step.name != "update" or step.op["cache"] not in self.batches:
            return None
        if "error" in step.answer:
            return None
        written = list_written(step)
        row = max(range(len(written)), key=lambda number: len(written[number]))
        if not written[row]:
            return None
        configs = list_part_configs(self.config)
        part = step.number % len(configs)
        config = get_single_config(configs[part])
        builder = Builder(history, "layer", **config)
        if before := self.batches[step.op["cache"]][row]:
            builder.add({"op": "update", "length": len(before)}, before)
        other = builder.add({"op": "update", "length": len(written[row])}, written[row])
        told = list_row_answers(step.answer, part)[row]
        answer: Answer = {
            name: told[name] for name in ("offset", "visible") if name in told
        }
        builder.claim(step, other, answer)
        return builder.build(f"the single cache of row {row}")


def give(builder: Builder, name: str, tokens: Tags) -> None:
    """Opens a single cache, and writes tokens to it if there are any."""
    if tokens:
        op = {"op": "update", "length": len(tokens), "cache": name}
        builder.add(op, tokens)
    else:
        builder.add({"op": "free", "cache": name})


def list_written(step: Step) -> list[range]:
    """Lists the tags that an update of a batch wrote to each row."""
    length, left = step.op["length"], step.op["left"]
    written = []
    for row, answer in enumerate(list_row_answers(step.answer)):
        begin = row * length + (left[row] if left else 0)
        written.append(step.tags[begin : begin + len(answer["visible"])])
    return written


def list_row_answers(answer: Answer, part: int = 0) -> list[Answer]:
    """Lists what an update answers for each row; of a list, for each row of a part."""
    answers: list[Answer] = answer["caches"]
    rows: list[Answer] = answers[part].get("caches", answers)
    return rows


def cut_visible(answer: Answer, begin: int, end: int) -> Answer:
    """Returns what the columns [begin, end) of an update see, for each row or part."""
    if "caches" in answer:
        return {"caches": [cut_visible(own, begin, end) for own in answer["caches"]]}
    return {"visible": answer["visible"][begin:end]}


class CutColumns(Relation):
    """Columns may come at once or in parts. A choice is (step, columns of the first)."""

    name = "cut-columns"

    def list_choices(self, history: History) -> Sequence[Any]:
        return [
            (step.number, at)
            for step in history.steps
            if step.name == "update" and "caches" in step.answer and not step.op["left"]
            for at in range(1, step.op["length"])
        ]

    def derive(self, history: History, choice: tuple[int, int]) -> Derived | None:
        number, at = choice
        builder = Builder(history)
        for step in history.steps:
            if step.number == number:
                self.cut(builder, step, at)
            else:
                builder.take(step)
        return builder.build("the program with one update cut in two")

    def cut(self, builder: Builder, step: Step, at: int) -> None:
        length = step.op["length"]
        for begin, end in ((0, at), (at, length)):
            tags = [
                step.tags[row * length + column]
                for row in range(MOST_ROWS)
                for column in range(begin, end)
            ]
            other = builder.add({**step.op, "length": end - begin}, tags)
            builder.claim(step, other, cut_visible(step.answer, begin, end))


class PartAlone(Relation):
    """A cache of a list gives the same answers as alone. A choice is its number."""

    name = "part"

    def list_choices(self, history: History) -> Sequence[int]:
        return [*range(len(history.program.config["caches"]))]

    def derive(self, history: History, choice: int) -> Derived | None:
        config = list_part_configs(history.program.config)[choice]
        operations = CONTRACTS["batched"].list_operations(config["kind"])
        builder = Builder(history, **config)
        for step in history.steps:
            if step.name not in operations or is_refused(step):
                continue  # another cache of the list may have refused
            other, answer = builder.add(step.op, step.tags), dict(step.answer)
            for own in answer.pop("caches", ())[choice : choice + 1]:
                answer |= own
            builder.claim(step, other, answer)
        return builder.build("that cache alone")


def is_refused(step: Step) -> bool:
    """Says whether no token was taken back."""
    return step.name in ("trim", "rollback") and not (
        step.answer.get("trimmed") or step.answer.get("done")
    )


SPECIAL: Sequence[Relation] = (CutColumns(),)
FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(ALONE, Family(BatchedShadow, SPECIAL)),
    LIST: Family(BatchedShadow, (*SPECIAL, PartAlone())),
}
