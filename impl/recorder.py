"""Records our own layer caches in a running engine.

The methods of these caches have the names of operations. This module imports the harness;
the packages of the caches do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from lockstep.harness.backends.recorder import Form, Scribe, Tape, Then, get_scribe
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.recording import Recording
from lockstep.impl.shared.kv import KVCacheBase
from lockstep.impl.shared.rotating import RotatingCacheBase
from lockstep.impl.shared.state import StateCacheBase

FRAMEWORKS = ("torch", "mlx")


def record(cache: Any, recording: Recording) -> None:
    """Records a layer cache, or a list of layer caches.

    Raises:
        UsageError: a cache is not a layer cache, is not empty, or is already recorded.
    """
    layers = cache if isinstance(cache, list | tuple) else [cache]
    for number, layer in enumerate(layers):
        form = get_form(layer)
        if get_scribe(layer) is not None:
            raise UsageError(f"layer {number} is recorded already")
        if layer.offset:
            raise UsageError(
                f"layer {number} is not empty; start to record before its first update"
            )
        tape = recording.open_tape(f"layer {number}", form)
        Own(layer, [tape], tape.choose_name(), Snapshots())


def get_form(cache: Any) -> Form:
    """Returns the form of a cache. The device is the CPU until the cache has arrays."""
    backend = f"{get_framework(cache)}-cpu"
    match cache:
        case KVCacheBase():
            return Form(
                backend, "layer", {"kind": "kv", "step": cache.memory.columns.step}
            )
        case RotatingCacheBase():
            sizes = {"window": cache.window, "step": cache.memory.columns.step}
            return Form(backend, "layer", {"kind": "rotating", **sizes})
        case StateCacheBase():
            return Form(backend, "layer", {"kind": "state"})
    raise UsageError(
        f"cannot record a {type(cache).__name__}; of Lockstep's own caches, only KV,"
        " rotating and state caches of layers can be recorded"
    )


def get_framework(cache: Any) -> str:
    """Returns "torch" or "mlx", from the module of the class or of one of its base
    classes."""
    folders = (base.__module__.split(".")[2:3] for base in type(cache).__mro__)
    return next(name for name in chain.from_iterable(folders) if name in FRAMEWORKS)


def get_device(array: Any) -> str:
    """Returns "cpu", "cuda" or "gpu"."""
    if hasattr(array, "device"):  # of torch, which may be all that is installed
        return str(array.device.type)
    from mlx.core import default_device

    return str(default_device().type.name)


class Snapshots:
    """The snapshots of a layer. A snapshot is kept here while it has a name."""

    def __init__(self) -> None:
        self.count = 0
        self.named: dict[int, tuple[Any, str]] = {}

    def make_name(self) -> str:
        self.count += 1
        return f"s{self.count - 1}"

    def bind(self, snapshot: Any, name: str) -> None:
        if snapshot is not None:
            self.named[id(snapshot)] = snapshot, name

    def find(self, snapshot: Any) -> str | None:
        """Returns the name of a snapshot; None if it has no name."""
        return self.named.get(id(snapshot), (None, None))[1]

    def consume(self, snapshot: Any) -> str | None:
        """Returns the name of a snapshot, and makes this name free."""
        return self.named.pop(id(snapshot), (None, None))[1]


class Own(Scribe):
    """Records one of our layer caches.

    Args:
        cache, tapes, name: see `Scribe`.
        snapshots: the snapshots of the layer.
    """

    calls = (
        *("update", "write", "trim", "clone", "free", "snapshot", "restore", "split"),
        *("merge", "close", "prepare", "take"),
    )

    def __init__(
        self, cache: Any, tapes: Sequence[Tape], name: str, snapshots: Snapshots
    ) -> None:
        self.snapshots = snapshots
        super().__init__(cache, tapes, name)

    def note_device(self, array: Any) -> None:
        draft, device = self.tapes[0].draft, get_device(array)
        backend = draft.form.backend.replace("-cpu", f"-{device}")
        draft.turn(replace(draft.form, backend=backend))

    def has_one_row(self, array: Any) -> bool:
        """Returns whether an array has one row, as the programs of a layer have. Another
        number ends the program."""
        rows = array.shape[0]
        if rows != 1:
            self.stop(f"an update of {rows} rows; the program of a layer has one row")
        return bool(rows == 1)

    def update(self, keys: Any, values: Any) -> Then:
        if not self.has_one_row(keys):
            return None
        self.note_device(keys)
        self.tapes[0].note_sizes(keys, values)
        self.note("update", length=keys.shape[2])
        return None

    def write(self, conv: Any, delta: Any, length: int | None = None) -> Then:
        """Notes the write of a state. Other caches call `write` only internally; any
        other call ends the program."""
        if length is None:
            self.stop("write, which is for the cache itself")
            return None
        if not self.has_one_row(conv):
            return None
        self.note_device(conv)
        form = self.tapes[0].draft.form
        width, dtype = conv.shape[1] + 1, str(conv.dtype).rpartition(".")[2]
        self.tapes[0].draft.turn(form.with_fields(conv_width=width, dtype=dtype))
        self.note("update", length=length)
        return None

    def trim(self, count: int) -> Then:
        self.note("trim", count=count)
        return None

    def free(self) -> Then:
        self.note("free")
        return None

    def clone(self) -> Then:
        return self.copy(None)

    def join(self, joined: Any, name: str) -> None:
        Own(joined, self.tapes, name, self.snapshots)

    def snapshot(self, begin: int) -> Then:
        name = self.snapshots.make_name()
        self.note("snapshot", **{"from": begin}, into=name)
        return lambda snapshot: self.snapshots.bind(snapshot, name)

    def restore(self, snapshot: Any, target: int) -> Then:
        self.note("restore", snapshot=self.snapshots.find(snapshot), target=target)
        return None

    def split(self, snapshot: Any, at: int) -> Then:
        names = [self.snapshots.make_name() for _ in range(2)]
        source = self.snapshots.consume(snapshot)
        self.note("split", snapshot=source, at=at, parent=names[0], child=names[1])
        return lambda members: self.bind_all(members, names)

    def merge(self, parent: Any, child: Any) -> Then:
        name = self.snapshots.make_name()
        pair = self.snapshots.consume(parent), self.snapshots.consume(child)
        self.note("merge", parent=pair[0], child=pair[1], into=name)
        return lambda merged: self.snapshots.bind(merged, name)

    def close(self, snapshot: Any) -> Then:
        self.note("close", snapshot=self.snapshots.consume(snapshot))
        return None

    def prepare(self, offsets: Sequence[int]) -> Then:
        self.note("prepare", offsets=list(offsets))
        return None

    def take(self) -> Then:
        cache = self.cache()
        scheduled = () if cache is None else cache.captures.boundaries
        names = [self.snapshots.make_name() for _ in scheduled]
        self.note("take", into=names)
        return lambda snapshots: self.bind_all(snapshots, names)

    def bind_all(self, snapshots: Sequence[Any], names: Sequence[str]) -> None:
        for snapshot, name in zip(snapshots, names, strict=True):
            self.snapshots.bind(snapshot, name)
