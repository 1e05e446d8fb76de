"""The layer contract: one sequence, one cache per layer; kinds kv, rotating and state.

`sides`: the config, the reference model of a program and a backend's side.
`operations`: one class for each operation. `domain`: small worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.contracts.contract import Contract, list_each, replace_at
from lockstep.harness.contracts.layer.domain import get_domain
from lockstep.harness.contracts.layer.model import (
    CONFIG,
    LONG_REACH,
    LayerModel,
    LayerSystem,
    why_illegal_config,
)
from lockstep.harness.contracts.layer.operations import OPERATIONS, breaks_usage
from lockstep.harness.contracts.operation import (
    Config,
    Op,
    Source,
    Unreachable,
    list_names,
    list_true,
    rename,
)
from lockstep.harness.core.document import MAX_LENGTH

# --- abstract states: where bugs were, by name ------------------------------------------


APPENDS = ("append-after-rewind", "append-after-restore")
RESTORES = ("restore-after-change", "restore-long-after")
SNAPSHOT_STATES = ("snapshot-live", "snapshot-outlived", *RESTORES)
LONG_AFTER = 12
"""Tokens after which a snapshot that no longer is what its cache holds is an old one."""
STEP_STATES = ("at-step", "before-step", "after-step")
CHUNK_STATES = ("chunk-boundary", "inside-chunk", "past-chunk")
BELOW = ("below-window", "before-window")
UPDATES = ("ends-wrapped", "several-after-wrap")
CAPTURING = ("captures-crossed",)
WINDOW_STATES = (
    *BELOW,
    *("at-window", "after-window"),
    *UPDATES,
    *("wrapped", "mid-ring", "window-one"),
)
STATES = (
    *("empty", "unwritten", "rewind", "append-after-rewind", "clone", "free", "restore"),
    *("append-after-restore", "refusal"),
    *SNAPSHOT_STATES,
    "captures-pending",
    *CAPTURING,
    *STEP_STATES,
    *CHUNK_STATES,
    *WINDOW_STATES,
)


def get_layer_states(op: Op, model: LayerModel) -> list[str]:
    """Names the states that `op` is about to run in: those of its cache."""
    name = op["cache"]
    if name not in model.caches:
        return ["empty", "unwritten"]
    cache, past, window = model.caches[name], model.past[name], model.config["window"]
    is_update = op["op"] == "update"
    ends_wrapped = is_update and window and cache.offset + op["length"] > window
    # Some snapshot ends with a token that the cache no longer holds where it stood.
    outlived = any(
        each.tokens[-1] not in cache.tokens for each in model.snapshots.values()
    )
    crossed = range(cache.offset + 1, cache.offset + op.get("length", 0) + 1)
    restored = outlived and op["op"] == "restore" and op["snapshot"]
    found = {
        "snapshot-live": model.snapshots,
        "snapshot-outlived": outlived,
        "restore-after-change": restored,
        "restore-long-after": restored and model.get_age(op["snapshot"]) >= LONG_AFTER,
        "captures-pending": cache.captures.scheduled,
        "captures-crossed": is_update
        and sum(at in crossed for at in cache.captures.scheduled) > 1,
        "append-after-rewind": is_update and "rewind" in past,
        "append-after-restore": is_update and "restore" in past,
        "ends-wrapped": ends_wrapped,
        "several-after-wrap": ends_wrapped and op["length"] > 1 and cache.offset > window,
    }
    return [*past, *get_offset_states(cache.offset, model.config), *list_true(found)]


def get_offset_states(offset: int, config: Config) -> list[str]:
    """Names the place of the offset between boundaries of window, step and chunk."""
    if offset == 0:
        return ["empty"]
    window, chunk = config["window"], config["chunk"]
    step = config["step"] if config["kind"] != "state" else None
    return list_true(
        {
            "at-step": step and offset % step == 0,
            "before-step": step and offset % step == step - 1,
            "after-step": step and offset % step == 1,
            "chunk-boundary": chunk and offset % chunk == 0,
            "inside-chunk": chunk and offset % chunk,
            "past-chunk": chunk and offset > chunk,
            "below-window": window and offset < window,
            "before-window": window and offset == window - 1,
            "at-window": offset == window,
            "after-window": window and offset == window + 1,
            "wrapped": window and offset > window,
            "mid-ring": window and offset > window and offset % window,
            "window-one": window == 1 and offset > window,
        }
    )


def list_layer_states(kind: str, declared: Kind) -> Sequence[str]:
    """Lists the states that generation must reach for a kind as it is declared."""
    has, config = declared.operations, declared.config
    rewinds = "restore" in has or ("trim" in has and kind != "state")
    outlives = bool({"trim", "restore", "free", "clone"} & has)
    chunks = kind == "kv" and config.get("chunk", (None,)) != (None,)
    windows = config.get("window", (1, 2))
    wider = any(window > 1 for window in windows)
    reached = {
        **dict.fromkeys(("empty", "unwritten"), True),
        **dict.fromkeys(("rewind", "append-after-rewind"), rewinds),
        **dict.fromkeys(("clone", "free", "restore"), False),
        **dict.fromkeys(has & {"clone", "free", "restore"}, True),
        "append-after-restore": "restore" in has,
        "refusal": "restore" in has or "trim" in has,
        "snapshot-live": "snapshot" in has,
        "snapshot-outlived": "snapshot" in has and outlives,
        **dict.fromkeys(RESTORES, {"snapshot", "restore"} <= has),
        **dict.fromkeys(("captures-pending", *CAPTURING), "prepare" in has),
        **dict.fromkeys(STEP_STATES, kind != "state" and "step" in config),
        **dict.fromkeys(CHUNK_STATES, chunks),
        **dict.fromkeys(WINDOW_STATES, kind == "rotating"),
    }
    if kind == "rotating":
        reached |= {
            **dict.fromkeys((*BELOW, "mid-ring"), wider),
            "window-one": 1 in windows,
        }
    return [state for state in STATES if reached[state]]


UNREACHABLE = (
    Unreachable(
        "tells what an update finds, or where it leads",
        (*APPENDS, *UPDATES, *CAPTURING),
        only=("update",),
    ),
    Unreachable("tells what is restored", RESTORES, only=("restore",)),
)


PENDING = Unreachable(
    "breaks a rule of usage before the captures were taken",
    ("captures-pending",),
    never=("prepare",),
)


def list_unreachable(kind: str, declared: Kind) -> Sequence[Unreachable]:
    return UNREACHABLE if declared.refuses else (*UNREACHABLE, PENDING)


# --- simpler programs: fewer caches and snapshots, shorter updates ----------------------


FEW = 10
"""With so few operations left, one is left out for tokens more in others."""

MORE = 3
"""Tokens more, at most."""


def merge_updates(first: Op, second: Op) -> Op | None:
    """Joins two updates of one cache in a row."""
    updates = first["op"] == second["op"] == "update"
    if not updates or first["cache"] != second["cache"]:
        return None
    length = first["length"] + second["length"]
    return {**first, "length": length} if length <= MAX_LENGTH else None


def simplify(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """One cache or snapshot fewer; a snapshot in the place of captures; shorter updates;
    an operation fewer for longer ones."""
    for place, op in enumerate(ops):
        for what, source, result in list_passed_on(op):
            names = {result: source}
            later = ops[place + 1 :]
            after = [rename(each, OPERATIONS, what, names) for each in later]
            yield [*ops[:place], *after]
    yield from list_fewer_caches(ops)
    yield from list_plain_snapshots(ops)
    yield from list_shorter_updates(ops)
    yield from list_single_updates(ops)
    if len(ops) <= FEW:
        yield from list_longer_updates(ops)


def list_fewer_caches(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Lets one cache do what another does."""
    named = (name for op in ops for name in list_names(op, OPERATIONS, "cache"))
    caches = sorted({"a", *named})
    for name in caches:
        for other in caches:
            if other < name:
                yield [rename(op, OPERATIONS, "cache", {name: other}) for op in ops]


def list_plain_snapshots(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """A snapshot in the place of captures that were prepared and taken."""
    for place, op in enumerate(ops):
        if op["op"] != "take":
            continue
        before = [each for each in ops[:place] if each["op"] != "prepare"]
        for name in op["into"]:
            plain = {"op": "snapshot", "from": 0, "into": name, "cache": op["cache"]}
            for earlier in list_each(before, plain):
                yield [*earlier, *ops[place + 1 :]]


def list_shorter_updates(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """An update that is shorter by half or by a token, or gone, and every offset after it
    as much lower; the same without the offsets."""
    for place, op in enumerate(ops):
        if op["op"] != "update":
            continue
        length, after = op["length"], ops[place + 1 :]
        for less in sorted({length - 1, length // 2, 1} - {0}, reverse=True):
            kept = [{**op, "length": length - less}] if length > less else []
            lowered = [move_offsets(later, -less) for later in after]
            yield [*ops[:place], *kept, *lowered]
            yield [*ops[:place], *kept, *after]


def list_single_updates(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """One update in the place of two neighbours, shorter than both together."""
    for place in range(len(ops) - 1):
        merged = merge_updates(ops[place], ops[place + 1])
        if merged is not None:
            for length in range(1, min(8, merged["length"])):
                yield [*ops[:place], {**merged, "length": length}, *ops[place + 2 :]]


def list_longer_updates(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """An operation fewer, and one update or two longer in its stead, with every offset
    after the first of them as much higher or as it was."""
    for place in range(len(ops)):
        shorter = replace_at(ops, place)
        updates = [n for n, op in enumerate(shorter) if op["op"] == "update"]
        for more in range(1, MORE + 1):
            for first in updates:
                for longer in lengthen(shorter, first, more):
                    yield longer
                    for second in updates:
                        if second > first:
                            yield from lengthen(longer, second, more)


def lengthen(ops: Sequence[Op], place: int, more: int) -> Iterator[list[Op]]:
    op = {**ops[place], "length": min(MAX_LENGTH, ops[place]["length"] + more)}
    yield [*ops[:place], op, *(move_offsets(each, more) for each in ops[place + 1 :])]
    yield replace_at(ops, place, op)


OFFSETS = ("from", "target", "at")


def move_offsets(op: Op, by: int) -> Op:
    """Every offset that the operation names, higher or lower; 0 is the beginning, and
    stays."""

    def move(offset: int) -> int:
        return max(0, offset + by) if offset else 0

    moved: dict[str, Any] = {name: move(op[name]) for name in OFFSETS if name in op}
    if "offsets" in op:
        moved["offsets"] = sorted(set(map(move, op["offsets"])))
    return {**op, **moved}


LETTERS: Mapping[str, Callable[[int], str]] = {
    "cache": lambda number: chr(ord("a") + number),
    "snapshot": "s{}".format,
}
"""Caches are called a, b, c and snapshots s0, s1, …."""


def list_passed_on(op: Op) -> list[tuple[str, str, str]]:
    """("snapshot" or "cache", input, output) of an operation without which its input can
    stand for its output."""
    sides = [op[side] for side in ("parent", "child") if op.get(side)]
    if op["op"] == "clone":
        return [("cache", op["cache"], op["into"])]
    if op["op"] == "split":
        return [("snapshot", op["snapshot"], output) for output in sides]
    if op["op"] == "merge":
        return [("snapshot", source, op["into"]) for source in sides]
    return []


# --- the contract -----------------------------------------------------------------------


NEXT: Mapping[str, Sequence[str]] = {
    "update": ("snapshot", "trim", "view", "state"),
    "view": ("view", "trim", "restore"),
    "state": ("state", "free"),
    "trim": ("update", "update", "view"),
    "clone": ("update", "snapshot", "trim"),
    "free": ("restore", "update"),
    "snapshot": ("trim", "restore", "split", "merge", "clone"),
    "restore": ("update", "update", "view", "split", "trim"),
    "split": ("restore", "restore", "merge"),
    "merge": ("restore",),
    "close": ("trim", "update"),
    "prepare": ("update", "restore", "trim", "prepare", "take"),
    "take": ("free", "restore", "prepare"),
}
"""See `Contract.next`."""

LONG = 32
"""One program in 32 is a long one."""

CHOICES: Mapping[str, Sequence[Any]] = {
    "window": (4, 1, 2, 3, 5, 8, 4, 1, 2, 3, 5, 8, 16, 33),
    "step": (4, 1, 2, 3, 8, 256),
    "heads": (1, 2, 3, 1, 2, 4, 1, 8),
    "key_dim": (4, 6, 8),
    "value_dim": (4, 6, 0),
    "conv_width": (4, 2, 3),
    "dtype": ("float32", "float16", "bfloat16"),
}


def restrict_options(
    name: str, kind: str, config: Config, options: Sequence[Any]
) -> Sequence[Any]:
    """Leaves out the values of a field that a kind of layer cache cannot have.

    Args:
        name: the field.
        kind: kv, rotating or state.
        config: drawn as far as the fields before this one.
        options: the values.
    """
    if name == "window" and kind != "rotating":
        return ()
    if name == "value_dim" and kind == "state":
        return [dim for dim in options if dim]
    if name == "keep":
        return [keep for keep in options if keep < (config["window"] or 0)]
    return options


def get_tag_dimension(config: Config) -> int:
    return int(min(config["key_dim"], config["value_dim"] or config["key_dim"]))


class LayerContract(Contract):
    name = "layer"
    kinds = ("kv", "rotating", "state")
    config = CONFIG
    choices = CHOICES
    opt_in = frozenset(
        {
            *("keep", "record", "chunk", "mask_padding", "mask_form"),
            *("variant", "scope"),
        }
    )
    operations = OPERATIONS
    required = ("update",)
    states = STATES
    facts: ClassVar[Mapping[str, str]] = {
        "offset": "tokens in the cache",
        "begun": "the largest offset at which an update has begun since it was empty",
        "pending": "tokens behind the last full block: an update fills one if it is the"
        " first, or if it leaves `step` tokens or more pending",
        "written": "tokens written since the last trim, or since it was empty",
    }
    next = NEXT
    letters = LETTERS
    model = LayerModel
    why_illegal = staticmethod(why_illegal_config)
    get_states = staticmethod(get_layer_states)
    list_states = staticmethod(list_layer_states)
    list_unreachable = staticmethod(list_unreachable)
    merge_operations = staticmethod(merge_updates)
    simplify = staticmethod(simplify)
    get_domain = staticmethod(get_domain)
    get_tag_dimension = staticmethod(get_tag_dimension)

    def list_methods(self, kind: str, operations: Iterable[str]) -> list[str]:
        masked, recurrent = ["make_mask", "update"], ["read", "boundaries", "write"]
        own = recurrent if kind == "state" else masked
        return own + super().list_methods(kind, operations)

    def list_options(self, name: str, config: Config, declared: Kind) -> Sequence[Any]:
        options = super().list_options(name, config, declared)
        return restrict_options(name, config["kind"], config, options)

    def draw_reach(self, source: Source, model: LayerModel) -> None:
        if source.below(LONG) == LONG - 1:
            model.reach = LONG_REACH

    def complete_move(self, move: Op, model: LayerModel) -> Op | None:
        op = super().complete_move(move, model)
        return None if op is None or breaks_usage(op, model) else op

    def open_system(
        self, backend: Backend, config: Config, ops: Sequence[Op], every: bool
    ) -> LayerSystem:
        tags = self.count_tags(ops)
        declared = backend.contracts["layer"][config["kind"]]
        system = LayerSystem(backend, declared, config, tags, every)
        system.writes = self.writes
        system.get("a")
        return system


LAYER = LayerContract()
