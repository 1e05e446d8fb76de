"""The shadow state, the detours and the relation `mask` of layer caches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.harness.contracts.layer.operations import MAX_CACHES
from lockstep.harness.contracts.operation import Answer, Config
from lockstep.harness.core.document import MAX_LENGTH
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


class HeldSnapshot(NamedTuple):
    """A snapshot of the positions [begin, end).

    Attributes:
        tokens: the tokens at the positions [0, end) when the snapshot was taken,
            including the positions below `begin`.
    """

    tokens: Tags
    begin: int
    end: int


class LayerShadow(Shadow):
    """The tokens in each cache and snapshot of a program.

    After an update with 4 tokens and a trim by 1, cache "a" holds [0, 1, 2]. After a
    further update with 2 tokens it holds [0, 1, 2, 4, 5]. Tokens that slid out of a
    window stay in the list; the relation `mask` determines the visible tokens.

    Attributes:
        caches: cache → its tokens.
        snapshots: name → snapshot.
        scheduled: cache → scheduled offset → the tokens when a write first reached the
            offset, or None. Entries are removed when the captures are taken.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.kind = program.kind
        self.caches: dict[str, Tags] = defaultdict(tuple, a=())
        self.snapshots: dict[str, HeldSnapshot] = {}
        self.scheduled: dict[str, dict[int, Tags | None]] = {}

    def write_update(self, step: Step) -> None:
        name = step.op["cache"]
        start = len(self.caches[name])
        tokens = self.caches[name] = (*self.caches[name], *step.tags)
        scheduled = self.scheduled.get(name, {})
        for offset, reached in scheduled.items():
            if reached is None and start <= offset <= len(tokens):
                scheduled[offset] = tokens[:offset]

    def write_trim(self, step: Step) -> None:
        tokens = self.caches[step.op["cache"]]
        self.caches[step.op["cache"]] = tokens[: len(tokens) - step.answer["trimmed"]]

    def write_clone(self, step: Step) -> None:
        self.caches[step.op["into"]] = self.caches[step.op["cache"]]
        self.scheduled.pop(step.op["into"], None)

    def write_free(self, step: Step) -> None:
        self.caches[step.op["cache"]] = ()
        self.scheduled.pop(step.op["cache"], None)

    def write_restore(self, step: Step) -> None:
        """Applies a restore. With full attention, a snapshot replaces only its own range,
        and the tokens below the range stay. Other snapshots replace all tokens."""
        if step.answer["ok"]:
            name, tokens = step.op["snapshot"], self.caches[step.op["cache"]]
            if name is not None:
                taken = self.snapshots[name]
                below = tokens[: taken.begin] if self.kind == "kv" else ()
                tokens = (*below, *taken.tokens[len(below) :])
            self.caches[step.op["cache"]] = tokens[: step.op["target"]]

    def put(self, name: str, span: Sequence[int] | None, tokens: Tags) -> None:
        """Stores a snapshot of the range `span` under a name. If `span` is None, only
        removes the old snapshot."""
        self.snapshots.pop(name, None)
        if span is not None:
            self.snapshots[name] = HeldSnapshot(tokens[: span[1]], *span)

    def write_snapshot(self, step: Step) -> None:
        self.put(step.op["into"], step.answer["range"], self.caches[step.op["cache"]])

    def write_split(self, step: Step) -> None:
        whole = self.snapshots.pop(step.op["snapshot"])
        for half in ("parent", "child"):
            self.put(step.op[half], step.answer[half], whole.tokens)

    def write_merge(self, step: Step) -> None:
        parent, child = (
            self.snapshots.pop(step.op[half], None) for half in ("parent", "child")
        )
        tokens = child.tokens if child else ()
        if parent and child and self.kind == "kv":
            tokens = (*parent.tokens[: child.begin], *tokens[child.begin :])
        self.put(step.op["into"], step.answer["range"], tokens)

    def write_close(self, step: Step) -> None:
        del self.snapshots[step.op["snapshot"]]

    def write_prepare(self, step: Step) -> None:
        self.scheduled[step.op["cache"]] = dict.fromkeys(step.op["offsets"])

    def write_take(self, step: Step) -> None:
        scheduled = self.scheduled.pop(step.op["cache"], {})
        for name, span in zip(step.op["into"], step.answer["ranges"], strict=False):
            self.put(name, span, (span and scheduled.get(span[1])) or ())

    # --- what relations ask -------------------------------------------------------------

    def list_cuts(self, step: Step) -> Sequence[Sequence[Portion]]:
        length = step.op["length"]
        cuts = []
        for at in sorted({1, length // 2, length - 1} - {0}) if length > 1 else ():
            rows = range(at), range(at, length)
            cuts.append(
                [
                    ({**step.op, "length": len(portion)}, portion, portion)
                    for portion in rows
                ]
            )
        return cuts

    def may_interrupt(self, step: Step) -> bool:
        return not any(self.scheduled.values()) and len(self.caches) < MAX_CACHES - 1

    def rebuild(self, builder: Builder) -> bool:
        """Rebuilds caches and snapshots. Takes the snapshots in an additional cache."""
        taken = [snapshot.tokens for snapshot in self.snapshots.values()]
        if max(map(len, [*self.caches.values(), *taken])) > MAX_LENGTH:
            return False
        for name, snapshot in self.snapshots.items():
            if not snapshot.begin < snapshot.end == len(snapshot.tokens):
                return False  # only a capture has an empty range
            add_update(builder, "r0", snapshot.tokens)
            fields = {"from": snapshot.begin, "into": name}
            builder.add({"op": "snapshot", "cache": "r0", **fields})
            builder.add({"op": "free", "cache": "r0"})
        for name, tokens in self.caches.items():
            if tokens:
                add_update(builder, name, tokens)
        return True

    def list_detours(self, step: Step) -> Sequence[str]:
        cache = step.op.get("cache", "a")
        return [*DETOURS[self.kind]] if self.caches.get(cache) else []

    def take_detour(self, detour: str, builder: Builder, step: Step) -> None:
        """Adds a detour for the cache of a step, with the snapshots r0, r1, r2."""
        cache = step.op["cache"]
        tokens = [*self.caches[cache]]
        end, first = len(tokens), tokens[0]
        values = {"half": end // 2, "end": end, "one": end + 1, "two": end + 2}
        tokens_more = str([*tokens, first]).replace(" ", "")
        window = self.config["window"]
        text = DETOURS[self.kind][detour].replace("RESTORED", RESTORED)
        text = text.format(**values, first=first, more=tokens_more, window=window)
        builder.play(step, text, cache=cache)

    def derive_mask(self, history: History, step: Step) -> Derived | None:
        """Derives the visible tokens from one update of a new cache without a window.

        With a window of 3, a query sees the last 3 current tokens; with `keep` 1, it sees
        the first and the last 2; with a chunk of 4, it sees the tokens from the last
        multiple of 4 on. A state has read the tokens that full attention sees, so states
        and full attention are compared with each other.
        """
        config = self.config
        tokens = (*self.caches.get(step.op.get("cache", "a"), ()), *step.tags)
        shows = step.name in ("update", "state", "view", "size")
        if not shows or not 0 < len(tokens) <= MAX_LENGTH:
            return None
        plain = "state" if self.kind == "kv" and not config["chunk"] else "kv"
        changes: dict[str, Any] = {"window": None, "keep": 0, "chunk": None}
        if plain == "state":
            changes["value_dim"] = config["value_dim"] or 1
        builder = Builder(history, kind=plain, **changes)

        def view(answer: Answer) -> Answer:
            rows = [hide(row, config) for row in answer["visible"]]
            if step.name == "update":
                return {**answer, "visible": rows[-len(step.tags) :]}
            row = answer["visible"][-1] if config["chunk"] else rows[-1]
            return {"tags": row, "size": len(row)}

        builder.claim(step, add_update(builder, "a", tokens), view=view)
        return builder.build(
            f"one update of a {plain} cache with the tokens that are left"
        )


def add_update(builder: Builder, cache: str, tags: Sequence[int]) -> int:
    """Adds an update with tokens that correspond to `tags`, and returns its number."""
    return builder.add({"op": "update", "length": len(tags), "cache": cache}, tags)


def hide(row: Sequence[int], config: Config) -> Sequence[int]:
    """Returns the tokens that a query sees. row: all tokens up to the query's token,
    included."""
    if config["chunk"]:
        return row[(len(row) - 1) // config["chunk"] * config["chunk"] :]
    if config["window"] and len(row) > config["window"]:
        keep = config["keep"]
        return [*row[:keep], *row[len(row) - (config["window"] - keep) :]]
    return row


# --- detours ----------------------------------------------------------------------------

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
CAPTURED = "two captures, other tokens, restore of what was captured"
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
REFUSED = "tokens that slid out, or were read, cannot be taken back"
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
FAMILIES = dict.fromkeys(DETOURS, Family(LayerShadow))
