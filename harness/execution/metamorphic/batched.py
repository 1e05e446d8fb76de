"""The shadow state of batches, and the relation of each row to a single cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.harness.contracts.batched.model import (
    ALONE,
    LIST,
    MOST_ROWS,
    get_single_config,
    list_part_configs,
)
from lockstep.harness.contracts.operation import Answer
from lockstep.harness.execution.metamorphic.part import Part
from lockstep.harness.execution.metamorphic.relations import (
    Builder,
    Derived,
    Family,
    History,
    Portion,
    Shadow,
    Step,
)
from lockstep.harness.programs.program import Program

Tags = Sequence[int]


class BatchedShadow(Shadow):
    """The tokens in each row of each batch, and in each single cache.

    Tokens that slid out of a window stay in the lists.

    Attributes:
        batches: the rows of each batch.
        singles: the tokens of each single cache.
        saved: name → the rows of the saved batch.
        announced: the batches that will get padding on the right.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.batches: dict[str, list[Tags]] = {}
        self.singles: dict[str, Tags] = {}
        self.saved: dict[str, list[Tags]] = {}
        self.announced: set[str] = set()

    def put(self, name: str, rows: Sequence[Tags]) -> None:
        self.drop(name)
        self.batches[name] = list(rows)

    def drop(self, name: str) -> None:
        self.batches.pop(name, None)
        self.singles.pop(name, None)
        self.announced.discard(name)

    def get_rows(self, step: Step) -> list[Tags]:
        return self.batches[step.op["cache"]]

    # --- operations ---------------------------------------------------------------------

    def write_open(self, step: Step) -> None:
        self.put(step.op["cache"], [()] * step.op["rows"])

    def write_update(self, step: Step) -> None:
        name = step.op["cache"]
        if name in self.batches:
            pairs = zip(self.batches[name], list_written(step), strict=True)
            self.batches[name] = [(*row, *tags) for row, tags in pairs]
        else:
            written = step.tags[: step.op["length"]]
            self.singles[name] = (*self.singles.get(name, ()), *written)

    def write_pad_right(self, step: Step) -> None:
        self.announced.add(step.op["cache"])

    def write_finalize(self, step: Step) -> None:
        self.announced.remove(step.op["cache"])

    def write_trim(self, step: Step) -> None:
        name = step.op["cache"]
        rows = self.batches.get(name) or [self.singles.get(name, ())]
        rows_left = [row[: len(row) - step.answer["trimmed"]] for row in rows]
        if name in self.batches:
            self.batches[name] = rows_left
        else:
            self.singles[name] = rows_left[0]

    def write_rollback(self, step: Step) -> None:
        if step.answer["done"]:
            pairs = zip(self.get_rows(step), step.op["counts"], strict=True)
            rows_left = [row[: len(row) - count] for row, count in pairs]
            self.batches[step.op["cache"]] = rows_left

    def write_select(self, step: Step) -> None:
        rows = self.get_rows(step)
        self.put(step.op["cache"], [rows[row] for row in step.op["rows"]])

    write_filter = write_select

    def write_repeat(self, step: Step) -> None:
        rows = self.get_rows(step)
        self.put(step.op["cache"], [row for row in rows for _ in range(step.op["times"])])

    def write_extend(self, step: Step) -> None:
        self.batches[step.op["cache"]] += self.batches[step.op["other"]]
        self.drop(step.op["other"])

    def write_extract(self, step: Step) -> None:
        row = self.get_rows(step)[step.op["row"]]
        self.drop(step.op["into"])
        self.singles[step.op["into"]] = row

    def write_stack(self, step: Step) -> None:
        rows = [self.singles.pop(name, ()) for name in step.op["caches"]]
        self.put(step.op["cache"], rows)

    def write_save(self, step: Step) -> None:
        self.saved[step.op["into"]] = [*self.get_rows(step)]

    def write_load(self, step: Step) -> None:
        self.put(step.op["cache"], self.saved[step.op["from"]])

    def write_clone(self, step: Step) -> None:
        name, into = step.op["cache"], step.op["into"]
        if name in self.batches:
            self.put(into, self.batches[name])
        else:
            self.drop(into)
            self.singles[into] = self.singles.setdefault(name, ())

    def write_free(self, step: Step) -> None:
        name = step.op["cache"]
        if name in self.batches:
            self.put(name, [()] * len(self.batches[name]))
        else:
            self.singles[name] = ()

    # --- what relations ask -------------------------------------------------------------

    def may_interrupt(self, step: Step) -> bool:
        return not self.announced and not self.saved

    def rebuild(self, builder: Builder) -> bool:
        """Rebuilds each batch by stacking single caches with the tokens of its rows."""
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

    def list_cuts(self, step: Step) -> Sequence[Sequence[Portion]]:
        """Cuts an update into two updates with the first and the remaining columns."""
        if step.name != "update" or "caches" not in step.answer or step.op["left"]:
            return []
        length = step.op["length"]
        columns = range(length)
        return [
            [
                (
                    {**step.op, "length": len(half)},
                    half,
                    [row * length + at for row in range(MOST_ROWS) for at in half],
                )
                for half in (columns[:at], columns[at:])
            ]
            for at in range(1, length)
        ]

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
        member = step.number % len(configs)
        builder = Builder(history, "layer", **get_single_config(configs[member]))
        if written_before := self.get_rows(step)[row]:
            builder.add({"op": "update", "length": len(written_before)}, written_before)
        number = builder.add({"op": "update", "length": len(written[row])}, written[row])
        row_answer = list_row_answers(step.answer, member)[row]
        answer: Answer = {
            x: row_answer[x] for x in ("offset", "visible") if x in row_answer
        }
        builder.claim(step, number, answer)
        return builder.build(f"the single cache of row {row}")


def give(builder: Builder, name: str, tokens: Tags) -> None:
    """Opens a single cache, and writes tokens to it if there are any."""
    update = {"op": "update", "length": len(tokens)}
    builder.add({**(update if tokens else {"op": "free"}), "cache": name}, tokens)


def list_written(step: Step) -> list[range]:
    """Lists the tags that an update of a batch wrote to each row."""
    length, rows_left = step.op["length"], step.op["left"]
    written = []
    for row, answer in enumerate(list_row_answers(step.answer)):
        begin = row * length + (rows_left[row] if rows_left else 0)
        written.append(step.tags[begin : begin + len(answer["visible"])])
    return written


def list_row_answers(answer: Answer, member: int = 0) -> list[Answer]:
    """Lists the answers of an update by row. For a list of caches, lists the answers of
    the member with the index `member`."""
    answers: list[Answer] = answer["caches"]
    rows: list[Answer] = answers[member].get("caches", answers)
    return rows


FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(ALONE, Family(BatchedShadow)),
    LIST: Family(BatchedShadow, [Part(list_part_configs)]),
}
