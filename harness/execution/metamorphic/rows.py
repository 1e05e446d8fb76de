"""Defines the shadow states of layer caches and batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.batched.model import (
    LIST,
    get_single_config,
    list_part_configs,
)
from lockstep.harness.contracts.operation import Answer, Config
from lockstep.harness.core.document import MAX_LENGTH
from lockstep.harness.execution.compare import PARTS
from lockstep.harness.execution.metamorphic.relations import (
    Builder,
    Portion,
    Shadow,
    Step,
    Tags,
)
from lockstep.harness.programs.program import Program


class RowShadow(Shadow):
    """The tokens in each row of each cache. A cache that is not a batch has one row.

    Example: after an update with 4 tokens and a trim by 1, a row holds [0, 1, 2]. After a
    further update with 2 tokens, the row holds [0, 1, 2, 4, 5]. Tokens that have left a
    window stay in the list; the relation `mask` determines which tokens are visible.

    Attributes:
        caches: cache → its rows.
        batches: the names of the caches that are batches.
        members: the config of each cache of a list, or of the only cache.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.caches: dict[str, list[Tags]] = defaultdict(lambda: [()])
        self.batches: set[str] = set()
        self.members: Sequence[Config] = [self.config]

    def get(self, step: Step) -> list[Tags]:
        return self.caches[step.op["cache"]]

    def put(self, step: Step, rows: Sequence[Tags]) -> None:
        self.caches[step.op["cache"]] = list(rows)

    def list_written(self, step: Step) -> Sequence[range]:
        """Lists the tags that an update writes to each row."""
        return [step.tags[: step.op["length"]]]

    def write_update(self, step: Step) -> None:
        pairs = zip(self.get(step), self.list_written(step), strict=True)
        self.put(step, [(*row, *tags) for row, tags in pairs])

    def write_trim(self, step: Step) -> None:
        trimmed = step.answer["trimmed"]
        self.put(step, [row[: len(row) - trimmed] for row in self.get(step)])

    def write_clone(self, step: Step) -> None:
        self.caches[step.op["into"]] = self.get(step)

    def write_free(self, step: Step) -> None:
        self.put(step, [() for _ in self.get(step)])

    def see(self, step: Step) -> Answer | None:
        """Returns the tokens that an update, a state or a view shows, and how many tokens
        a single cache trims."""
        rows = self.caches[step.op["cache"]] if "cache" in step.op else []
        is_batch = step.op.get("cache") in self.batches
        if "error" in step.answer or sum(map(len, rows), len(step.tags)) > MAX_LENGTH:
            return None
        if step.name == "trim" and not is_batch:
            length = len(rows[0])
            count = min(step.op["count"], length)
            is_able = all(may_trim(length, count, member) for member in self.members)
            return {"trimmed": count if is_able else 0}
        if step.name not in ("update", "state", "view"):
            return None
        answers = []
        for member in self.members:
            if step.name == "update":
                pairs = zip(rows, self.list_written(step), strict=True)
                shown = [see_update(row, tags, member) for row, tags in pairs]
            else:
                shown = [
                    {"tags": row if member["chunk"] else hide(row, member)}
                    for row in rows
                ]
            answers.append({PARTS: shown} if is_batch else shown[0])
        return {PARTS: answers} if self.config["kind"] == LIST else answers[0]

    def list_cuts(self, step: Step) -> Sequence[Sequence[Portion]]:
        """Cuts an update into two updates: the first tokens, and the remaining tokens."""
        length = step.op["length"]
        if length < 2 or step.op.get("left"):
            return ()
        begins = range(0, len(step.tags), length)
        return [
            [
                (
                    {**step.op, "length": len(half)},
                    [begin + column for begin in begins for column in half],
                )
                for half in (range(middle), range(middle, length))
            ]
            for middle in sorted({1, length // 2, length - 1})
        ]


def may_trim(length: int, count: int, config: Config) -> bool:
    """Returns whether a cache with `length` tokens can trim `count` tokens.

    A state cannot, nor can a window that has dropped a token, unless it records dropped
    tokens. A pooled cache can if it loses no entry.
    """
    if config["pool"]:
        return bool(count <= length % config["pool"])
    if config["kind"] == "rotating":
        return bool(config["record"]) or length <= config["window"]
    return bool(config["kind"] == "kv")


def see_update(row: Tags, tags: Tags, config: Config) -> Answer:
    """Returns the answer to an update that appends `tags` to a cache with the tokens
    `row`."""
    tokens, ends = (*row, *tags), range(len(row) + 1, len(row) + len(tags) + 1)
    return {"visible": [list(hide(tokens[:end], config)) for end in ends]}


def hide(row: Tags, config: Config) -> Tags:
    """Returns the tokens that a query sees; `row` lists all tokens up to and including
    the query's own token.

    Examples: with a window of 3, a query sees the last 3 tokens; with `keep` 1, it sees
    the first token and the last 2; with a chunk of 4, it sees the tokens from the last
    multiple of 4 on; with a pool of 4, every fourth token, for the entry that it ends.
    """
    if config["pool"]:
        return row[config["pool"] - 1 :: config["pool"]]
    if config["chunk"]:
        return row[(len(row) - 1) // config["chunk"] * config["chunk"] :]
    if config["window"] and len(row) > config["window"]:
        keep = config["keep"]
        return [*row[:keep], *row[len(row) - (config["window"] - keep) :]]
    return row


# --- layer caches -----------------------------------------------------------------------


class HeldSnapshot(NamedTuple):
    """A snapshot of the positions [begin, end).

    Attributes:
        tokens: all tokens before `end` when the snapshot was taken, including the tokens
            before `begin`.
    """

    tokens: Tags
    begin: int
    end: int


class LayerShadow(RowShadow):
    """The tokens in each cache and snapshot of a program.

    Attributes:
        snapshots: name → snapshot.
        scheduled: cache → offset of a scheduled capture → the tokens before this offset;
            None until an update reaches it. The operation `take` removes the entries.
        begins: cache → its offset when the captures were scheduled.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.kind = program.kind
        self.caches["a"] = [()]
        self.snapshots: dict[str, HeldSnapshot] = {}
        self.scheduled: dict[str, dict[int, Tags | None]] = {}
        self.begins: dict[str, int] = {}

    def write_update(self, step: Step) -> None:
        start = len(self.get(step)[0])
        super().write_update(step)
        (tokens,) = self.get(step)
        scheduled = self.scheduled.get(step.op["cache"], {})
        for offset, reached in scheduled.items():
            if reached is None and start <= offset <= len(tokens):
                scheduled[offset] = tokens[:offset]

    def write_clone(self, step: Step) -> None:
        super().write_clone(step)
        self.scheduled.pop(step.op["into"], None)

    def write_free(self, step: Step) -> None:
        super().write_free(step)
        self.scheduled.pop(step.op["cache"], None)

    def write_restore(self, step: Step) -> None:
        """Applies a restore.

        With full attention, a snapshot replaces the tokens from its beginning on, and the
        tokens before it stay. Otherwise, a snapshot replaces all tokens.
        """
        if step.answer["ok"]:
            (tokens,) = self.get(step)
            if step.op["snapshot"] is not None:
                taken = self.snapshots[step.op["snapshot"]]
                below = tokens[: taken.begin] if self.kind == "kv" else ()
                tokens = (*below, *taken.tokens[len(below) :])
            self.put(step, [tokens[: step.op["target"]]])

    def store(self, name: str, span: Sequence[int] | None, tokens: Tags) -> None:
        """Stores a snapshot of the range `span` under a name, in place of an old
        snapshot. If `span` is None, removes the old snapshot and stores none."""
        self.snapshots.pop(name, None)
        if span is not None:
            self.snapshots[name] = HeldSnapshot(tokens[: span[1]], *span)

    def write_snapshot(self, step: Step) -> None:
        self.store(step.op["into"], step.answer["range"], self.get(step)[0])

    def write_split(self, step: Step) -> None:
        whole = self.snapshots.pop(step.op["snapshot"])
        for half in ("parent", "child"):
            self.store(step.op[half], step.answer[half], whole.tokens)

    def write_merge(self, step: Step) -> None:
        halves = (step.op["parent"], step.op["child"])
        parent, child = (self.snapshots.pop(half, None) for half in halves)
        tokens = child.tokens if child else ()
        if parent and child and self.kind == "kv":
            tokens = (*parent.tokens[: child.begin], *tokens[child.begin :])
        self.store(step.op["into"], step.answer["range"], tokens)

    def write_close(self, step: Step) -> None:
        del self.snapshots[step.op["snapshot"]]

    def write_prepare(self, step: Step) -> None:
        self.scheduled[step.op["cache"]] = dict.fromkeys(step.op["offsets"])
        self.begins[step.op["cache"]] = len(self.get(step)[0])

    def write_take(self, step: Step) -> None:
        scheduled = self.scheduled.pop(step.op["cache"], {})
        for name, span in zip(step.op["into"], step.answer["ranges"], strict=False):
            self.store(name, span, (span and scheduled.get(span[1])) or ())

    # --- relations ----------------------------------------------------------------------

    def see(self, step: Step) -> Answer | None:
        """Returns also the ranges of captures; each begins at the end of the previous."""
        if step.name != "take" or "error" in step.answer:
            return super().see(step)
        ranges, begin = list[Any](), self.begins.get(step.op["cache"], 0)
        for end, tokens in self.scheduled.get(step.op["cache"], {}).items():
            is_taken = tokens and (self.kind != "kv" or begin < end)
            ranges.append([begin, end] if is_taken else None)
            begin = end
        return {"ranges": ranges}

    def may_interrupt(self, step: Step) -> bool:
        return not any(self.scheduled.values())

    def rebuild(self, builder: Builder) -> bool:
        """Adds operations that write the caches and snapshots again; takes the snapshots
        in an additional cache."""
        caches = {name: tokens for name, (tokens,) in self.caches.items() if tokens}
        taken = [snapshot.tokens for snapshot in self.snapshots.values()]
        if max(map(len, [*caches.values(), *taken]), default=0) > MAX_LENGTH:
            return False
        for name, snapshot in self.snapshots.items():
            if not snapshot.begin < snapshot.end == len(snapshot.tokens):
                return False  # only a capture has an empty range
            add_update(builder, "r0", snapshot.tokens)
            fields = {"from": snapshot.begin, "into": name}
            builder.add({"op": "snapshot", "cache": "r0", **fields})
            builder.add({"op": "free", "cache": "r0"})
        for name, tokens in caches.items():
            add_update(builder, name, tokens)
        return True

    def list_detours(self, step: Step) -> Sequence[str]:
        cache = step.op.get("cache", "a")
        (tokens,) = self.caches.get(cache, [()])
        return [BACK.format(cache, len(tokens) // 2, len(tokens))] if tokens else []


BACK = (
    "snapshot cache={0} from={1} into=r0; update cache={0} length=2;"
    " restore cache={0} snapshot=r0 target={2}; close cache={0} snapshot=r0"
)
"""A detour: a snapshot of the later half, other tokens, a restore."""


def add_update(builder: Builder, cache: str, tags: Tags) -> int:
    """Adds an update whose tokens have the tags `tags` in the first program; returns its
    number."""
    return builder.add({"op": "update", "length": len(tags), "cache": cache}, tags)


# --- batches ----------------------------------------------------------------------------


class BatchedShadow(RowShadow):
    """The tokens in each row of each batch, and in each single cache.

    Attributes:
        saved: name → the rows of the saved batch.
        coming: batch → for each row, the number of announced tokens still to come.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.members = list(map(get_single_config, list_part_configs(self.config)))
        self.saved: dict[str, list[Tags]] = {}
        self.coming: dict[str, list[int]] = {}

    def open(self, name: str, rows: Sequence[Tags], is_batch: bool = True) -> None:
        self.drop(name)
        self.caches[name] = list(rows)
        if is_batch:
            self.batches.add(name)

    def drop(self, name: str) -> None:
        self.caches.pop(name, None)
        self.batches.discard(name)
        self.coming.pop(name, None)

    def list_written(self, step: Step) -> Sequence[range]:
        if step.op["cache"] not in self.batches:
            return super().list_written(step)
        length, written = step.op["length"], []
        padding = step.op["left"] or [0] * len(self.get(step))
        coming = self.coming.get(step.op["cache"], [length] * len(padding))
        for row, (left, count) in enumerate(zip(padding, coming, strict=True)):
            written.append(step.tags[row * length + left : (row + 1) * length][:count])
        return written

    def write_update(self, step: Step) -> None:
        super().write_update(step)
        coming, length = self.coming.get(step.op["cache"], []), step.op["length"]
        coming[:] = [max(0, count - length) for count in coming]

    def write_open(self, step: Step) -> None:
        self.open(step.op["cache"], [()] * step.op["rows"])

    def write_pad_right(self, step: Step) -> None:
        self.coming[step.op["cache"]] = list(step.op["lengths"])

    def write_finalize(self, step: Step) -> None:
        del self.coming[step.op["cache"]]

    def write_rollback(self, step: Step) -> None:
        if step.answer["done"]:
            pairs = zip(self.get(step), step.op["counts"], strict=True)
            self.put(step, [row[: len(row) - count] for row, count in pairs])

    def write_select(self, step: Step) -> None:
        self.keep(step, step.op["rows"])

    write_filter = write_select

    def write_repeat(self, step: Step) -> None:
        rows = range(len(self.get(step)))
        self.keep(step, [row for row in rows for _ in range(step.op["times"])])

    def keep(self, step: Step, numbers: Sequence[int]) -> None:
        rows, coming = self.get(step), self.coming.get(step.op["cache"])
        self.put(step, [rows[number] for number in numbers])
        if coming is not None:
            self.coming[step.op["cache"]] = [coming[number] for number in numbers]

    def write_extend(self, step: Step) -> None:
        self.put(step, [*self.get(step), *self.caches[step.op["other"]]])
        self.drop(step.op["other"])

    def write_extract(self, step: Step) -> None:
        row = self.get(step)[step.op["row"]]
        self.open(step.op["into"], [row], is_batch=False)

    def write_stack(self, step: Step) -> None:
        rows = [self.caches.pop(name, [()])[0] for name in step.op["caches"]]
        self.open(step.op["cache"], rows)

    def write_save(self, step: Step) -> None:
        self.saved[step.op["into"]] = self.get(step)

    def write_load(self, step: Step) -> None:
        self.open(step.op["cache"], self.saved[step.op["from"]])

    def write_clone(self, step: Step) -> None:
        is_batch = step.op["cache"] in self.batches
        self.open(step.op["into"], self.get(step), is_batch)

    def write_free(self, step: Step) -> None:
        super().write_free(step)
        self.coming.pop(step.op["cache"], None)

    # --- relations ----------------------------------------------------------------------

    def may_interrupt(self, step: Step) -> bool:
        return not self.coming and not self.saved

    def rebuild(self, builder: Builder) -> bool:
        """Adds operations that make each batch again: they write the tokens of each row
        to a single cache, and stack these caches."""
        for name, rows in self.caches.items():
            is_batch = name in self.batches
            singles = [f"r{row}" for row in range(len(rows))] if is_batch else [name]
            for single, tokens in zip(singles, rows, strict=True):
                if tokens:
                    add_update(builder, single, tokens)
                else:
                    builder.add({"op": "free", "cache": single})
            if is_batch:
                builder.add({"op": "stack", "caches": singles, "cache": name})
        return True


SHADOWS: Mapping[str, type[Shadow]] = {
    **dict.fromkeys(CONTRACTS["layer"].kinds, LayerShadow),
    **dict.fromkeys(CONTRACTS["batched"].kinds, BatchedShadow),
}
