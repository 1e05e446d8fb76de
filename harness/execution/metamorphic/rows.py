"""Defines the shadow states of layer caches and batches, and the detours of
layer caches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.harness.contracts.batched.model import (
    ALONE,
    LIST,
    get_single_config,
    list_part_configs,
)
from lockstep.harness.contracts.operation import Answer, Config
from lockstep.harness.core.document import MAX_LENGTH
from lockstep.harness.execution.metamorphic.relations import (
    Builder,
    Derived,
    Family,
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
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.caches: dict[str, list[Tags]] = defaultdict(lambda: [()])

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

    def list_cuts(self, step: Step) -> Sequence[Sequence[Portion]]:
        """Cuts an update into two updates: one with the first tokens, one with the
        others."""
        length = step.op["length"]
        if length < 2 or "error" in step.answer or step.op.get("left"):
            return ()
        rows = range(len(step.tags) // length)
        return [
            [
                (
                    {**step.op, "length": len(half)},
                    half,
                    [row * length + column for row in rows for column in half],
                )
                for half in (range(middle), range(middle, length))
            ]
            for middle in sorted({1, length // 2, length - 1})
        ]


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
        scheduled: cache → scheduled offset → the tokens when an update first reached the
            offset; None until then. The operation `take` removes the entries.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.kind = program.kind
        self.caches["a"] = [()]
        self.snapshots: dict[str, HeldSnapshot] = {}
        self.scheduled: dict[str, dict[int, Tags | None]] = {}

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

    def write_take(self, step: Step) -> None:
        scheduled = self.scheduled.pop(step.op["cache"], {})
        for name, span in zip(step.op["into"], step.answer["ranges"], strict=False):
            self.store(name, span, (span and scheduled.get(span[1])) or ())

    # --- relations ----------------------------------------------------------------------

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
        rows = self.caches.get(step.op.get("cache", "a"))
        return [*DETOURS[self.kind]] if rows and rows[0] else []

    def take_detour(self, detour: str, builder: Builder, step: Step) -> None:
        """Adds a detour for the cache of a step; the detour uses the snapshot names r0 to
        r2."""
        (tokens,) = self.get(step)
        end, first = len(tokens), tokens[0]
        text = DETOURS[self.kind][detour].replace("RESTORED", RESTORED)
        text = text.format(
            half=end // 2,
            end=end,
            one=end + 1,
            two=end + 2,
            first=first,
            more=str([*tokens, first]).replace(" ", ""),
            window=self.config["window"],
        )
        builder.play(step, text, cache=step.op["cache"])

    def derive_mask(self, step: Step) -> Derived | None:
        """Derives the visible tokens from one update of a new cache without a window.

        Examples: with a window of 3, a query sees the last 3 current tokens; with `keep`
        1, it sees the first token and the last 2; with a chunk of 4, it sees the tokens
        from the last multiple of 4 on. A state must have read exactly the tokens that
        full attention sees. Therefore the answer of a state follows from a cache with
        full attention, and the answer of such a cache follows from a state.
        """
        config = self.config
        (held,) = self.caches.get(step.op.get("cache", "a"), [()])
        tokens = (*held, *step.tags)
        shows = step.name in ("update", "state", "view", "size")
        if not shows or not 0 < len(tokens) <= MAX_LENGTH:
            return None
        plain = "state" if self.kind == "kv" and not config["chunk"] else "kv"
        changes: dict[str, Any] = {"window": None, "keep": 0, "chunk": None}
        if plain == "state":
            changes["value_dim"] = config["value_dim"] or 1
        builder = Builder(self.program, kind=plain, **changes)

        def view(answer: Answer) -> Answer:
            rows = [hide(row, config) for row in answer["visible"]]
            if step.name == "update":
                return {**answer, "visible": rows[-len(step.tags) :]}
            row = answer["visible"][-1] if config["chunk"] else rows[-1]
            return {"tags": row, "size": len(row)}

        builder.claim(step, add_update(builder, "a", tokens), view=view)
        return builder.build(f"one update of a {plain} cache with the current tokens")


def add_update(builder: Builder, cache: str, tags: Tags) -> int:
    """Adds an update whose tokens have the tags `tags` in the first program; returns its
    number."""
    return builder.add({"op": "update", "length": len(tags), "cache": cache}, tags)


def hide(row: Tags, config: Config) -> Tags:
    """Returns the tokens that a query sees; `row` lists all tokens up to and including
    the query's own token."""
    if config["chunk"]:
        return row[(len(row) - 1) // config["chunk"] * config["chunk"] :]
    if config["window"] and len(row) > config["window"]:
        keep = config["keep"]
        return [*row[:keep], *row[len(row) - (config["window"] - keep) :]]
    return row


RESTORED = "restore snapshot=r0 target={end} => ok=true offset={end}; close snapshot=r0"

BACK = {
    "snapshot of the later half, other tokens, restore": (
        "snapshot from={half} into=r0; update length=2; RESTORED"
    )
}
SPLIT = {
    "snapshot, its later half split off, other tokens, restore": (
        "snapshot from=0 into=r0; split snapshot=r0 at={half} parent=r1 child=r0;"
        " update length=2; RESTORED; close snapshot=r1"
    )
}
# After the restore, the merged snapshots give each token once, although the cache got
# another token in between.
JOINED = {
    "snapshots of all and of one more token, merged, restore": (
        "snapshot from=0 into=r0; update length=1 tags=[{first}];"
        " snapshot from={end} into=r1; merge parent=r0 child=r1 into=r0;"
        " update length=1; restore snapshot=r0 target={one} => ok=true offset={one};"
        " state => tags={more}; trim count=1; close snapshot=r0"
    )
}
# Captures do not change when other tokens are written at the captured offsets.
CAPTURED = "two captures, other tokens, restore of the captures"
CAPTURES = (
    "snapshot from=0 into=r0; prepare offsets=[{one},{two}];"
    " update length=2 tags=[{first},{first}];"
    " restore snapshot=r0 target={end} => ok=true offset={end}; update length=2;"
    ' take into=["r1","r2"] => ranges=[[{end},{one}],[{one},{two}]];'
    " restore snapshot=r1 target={one} => ok=true offset={one}; SHOWN RESTORED;"
    " close snapshot=r1; close snapshot=r2"
)
# A full window can be trimmed. After one more token it cannot, because a token has slid
# out. A state can never be trimmed.
REFUSED = "trim of tokens that slid out or were read, restore"
DETOURS: Mapping[str, Mapping[str, str]] = {
    "kv": {
        **(BACK | SPLIT | JOINED),
        CAPTURED: CAPTURES.replace("SHOWN", "state => tags={more};"),
    },
    "rotating": {
        **BACK,
        CAPTURED: CAPTURES.replace("SHOWN", ""),
        REFUSED: (
            "snapshot from=0 into=r0; free; update length={window};"
            " trim count=1 => trimmed=1; update length=2; trim count=1 => trimmed=0;"
            " RESTORED"
        ),
    },
    "state": {
        **BACK,
        REFUSED: "snapshot from=0 into=r0; trim count=1 => trimmed=0; RESTORED",
    },
}


# --- batches ----------------------------------------------------------------------------


class BatchedShadow(RowShadow):
    """The tokens in each row of each batch, and in each single cache.

    Attributes:
        batches: the names of the caches that are batches.
        saved: name → the rows of the saved batch.
        announced: the batches that will get padding on the right.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.batches: set[str] = set()
        self.saved: dict[str, list[Tags]] = {}
        self.announced: set[str] = set()

    def open(self, name: str, rows: Sequence[Tags], is_batch: bool = True) -> None:
        self.drop(name)
        self.caches[name] = list(rows)
        if is_batch:
            self.batches.add(name)

    def drop(self, name: str) -> None:
        self.caches.pop(name, None)
        self.batches.discard(name)
        self.announced.discard(name)

    def list_written(self, step: Step) -> Sequence[range]:
        if step.op["cache"] not in self.batches:
            return super().list_written(step)
        length, padding = step.op["length"], step.op["left"]
        written = []
        for row, answer in enumerate(list_row_answers(step.answer)):
            begin = row * length + (padding[row] if padding else 0)
            written.append(step.tags[begin : begin + len(answer["visible"])])
        return written

    def write_open(self, step: Step) -> None:
        self.open(step.op["cache"], [()] * step.op["rows"])

    def write_pad_right(self, step: Step) -> None:
        self.announced.add(step.op["cache"])

    def write_finalize(self, step: Step) -> None:
        self.announced.remove(step.op["cache"])

    def write_rollback(self, step: Step) -> None:
        if step.answer["done"]:
            pairs = zip(self.get(step), step.op["counts"], strict=True)
            self.put(step, [row[: len(row) - count] for row, count in pairs])

    def write_select(self, step: Step) -> None:
        rows = self.get(step)
        self.open(step.op["cache"], [rows[row] for row in step.op["rows"]])

    write_filter = write_select

    def write_repeat(self, step: Step) -> None:
        rows = [row for row in self.get(step) for _ in range(step.op["times"])]
        self.open(step.op["cache"], rows)

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
        self.announced.discard(step.op["cache"])

    # --- relations ----------------------------------------------------------------------

    def may_interrupt(self, step: Step) -> bool:
        return not self.announced and not self.saved

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

    def list_members(self) -> Sequence[Config]:
        return list_part_configs(self.config) if self.program.kind == LIST else ()

    def derive_mask(self, step: Step) -> Derived | None:
        """Derives a program that writes one row to a single cache: the row of the update
        with the most new tokens."""
        if step.name != "update" or step.op["cache"] not in self.batches:
            return None
        if "error" in step.answer:
            return None
        written = self.list_written(step)
        row = max(range(len(written)), key=lambda number: len(written[number]))
        if not written[row]:
            return None
        configs = list_part_configs(self.config)
        member = step.number % len(configs)
        builder = Builder(self.program, "layer", **get_single_config(configs[member]))
        if held := self.get(step)[row]:
            add_update(builder, "a", held)
        number = add_update(builder, "a", written[row])
        row_answer = list_row_answers(step.answer, member)[row]
        fields = row_answer.keys() & {"offset", "visible"}
        builder.claim(step, number, {name: row_answer[name] for name in sorted(fields)})
        return builder.build(f"the single cache of row {row}")


def list_row_answers(answer: Answer, member: int = 0) -> list[Answer]:
    """Lists the answers of an update by row; for a list of caches, the answers of the
    cache with the index `member`."""
    answers: list[Answer] = answer["caches"]
    rows: list[Answer] = answers[member].get("caches", answers)
    return rows


FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(DETOURS, Family(LayerShadow)),
    **dict.fromkeys([*ALONE, LIST], Family(BatchedShadow)),
}
