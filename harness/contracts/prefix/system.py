"""A backend's session or trie as one program sees it, and the layers under it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.layer.system import LayerSystem
from lockstep.harness.contracts.prefix.config import (
    Config,
    get_layer_config,
    open_layers,
)
from lockstep.harness.contracts.prefix.conversations import ConversationModel
from lockstep.harness.contracts.prefix.sides import PrefixSystem
from lockstep.harness.contracts.types import Answer, Op
from lockstep.harness.core.errors import Broken, clean
from lockstep.reference.layers import Layer

CHANGE: Op = {"op": "update"}
"""To the layers, every operation of a prefix cache may be one that writes."""


class WatchedCache:
    """A cache of the backend, and the snapshots of it that are open.

    refusing: `restore` refuses, as a layer may that cannot do what it should; failing: it
    does so by an exception.
    count_bytes: of the snapshot of [begin, end). broken: the first thing that was wrong;
    whoever called may have caught it.
    """

    def __init__(self, cache: Any, count_bytes: Callable[[int, int], int]) -> None:
        self.cache = cache
        self.count_bytes = count_bytes
        self.refusing = self.failing = False
        self.open: dict[int, Any] = {}
        self.broken: Broken | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    @property
    def offset(self) -> Any:
        """Asked for most of all, and sooner found here than by `__getattr__`."""
        return self.cache.offset

    @property
    def can_split(self) -> Any:
        """The same."""
        return self.cache.can_split

    def get_bytes(self) -> int:
        """Of all open snapshots."""
        snapshots = self.open.values()
        return sum(self.count_bytes(held.begin, held.end) for held in snapshots)

    def note(self, snapshot: Any) -> Any:
        if snapshot is not None:
            self.open[id(snapshot)] = snapshot
        return snapshot

    def consume(self, snapshot: Any, operation: str) -> None:
        if snapshot is None:
            return
        self.check_open(snapshot, operation)
        del self.open[id(snapshot)]

    def check_open(self, snapshot: Any, operation: str) -> None:
        if self.open.get(id(snapshot)) is not snapshot:
            broken = Broken(
                "snapshots",
                f"{operation} was given a snapshot of [{snapshot.begin}, {snapshot.end})"
                " that was closed or used up before, or is of another layer",
            )
            self.broken = self.broken or broken
            raise broken

    def snapshot(self, begin: int) -> Any:
        return self.note(self.cache.snapshot(begin))

    def take(self) -> Sequence[Any]:
        return [self.note(snapshot) for snapshot in self.cache.take()]

    def close(self, snapshot: Any) -> None:
        self.consume(snapshot, "close")
        self.cache.close(snapshot)

    def split(self, snapshot: Any, at: int) -> tuple[Any, Any]:
        self.consume(snapshot, "split")
        parent, child = self.cache.split(snapshot, at)
        return self.note(parent), self.note(child)

    def merge(self, parent: Any, child: Any) -> Any:
        merged = self.cache.merge(parent, child)
        self.consume(parent, "merge")
        self.consume(child, "merge")
        return self.note(merged)

    def restore(self, snapshot: Any, target: int) -> bool:
        if snapshot is not None:
            self.check_open(snapshot, "restore")
        if self.refusing and self.failing:
            raise RuntimeError(f"the layer cannot be brought to offset {target}")
        return False if self.refusing else bool(self.cache.restore(snapshot, target))


class ConversationSystem(PrefixSystem):
    """The session or trie of one program in a backend.

    Attributes:
        layers: what is written to each layer, and read from it.
        watched: the caches that the backend was given to build on; empty if it brings
            its own.
    """

    def __init__(self, backend: Backend, config: Config, tags: int, every: bool) -> None:
        super().__init__(backend, config)
        self.layers = [
            LayerSystem(backend, get_layer_config(config, spec), tags, every, number)
            if spec
            else None
            for number, spec in enumerate(config["layers"])
        ]
        self.watched = list(self.open_watched()) if self.builds_on else []
        self.open(self.watched, [layer and layer.config for layer in self.layers])
        self.refusing: Sequence[int] = ()
        self.raising = False
        self.checkpoints: Sequence[int] = ()

    def open_watched(self) -> Iterator[WatchedCache | None]:
        """A cache of the backend for each layer."""
        for layer, right in zip(self.layers, open_layers(self.config), strict=True):
            if layer is None or right is None:
                yield None
            else:
                cache = self.backend.open(layer.config)
                yield WatchedCache(cache, right.count_bytes)

    def tell_layout(self) -> None:
        for layer in self.list_layers():
            layer.tell_layout()

    def list_layers(self) -> list[LayerSystem]:
        """Those that have a cache."""
        return [layer for layer in self.layers if layer is not None]

    @property
    def margin(self) -> float:
        return max((layer.margin for layer in self.list_layers()), default=0.0)

    def ask(self, call: Callable[[], Any]) -> Answer:
        try:
            result = call()
        except ValueError as error:
            if not str(error).strip():
                raise Broken("error", "a usage error came without a word") from error
            return {"error": "usage", "why": clean(str(error))}
        finally:
            self.check_watched()
        return {} if result is None else {"result": result}

    def check_watched(self) -> None:
        for cache in self.watched:
            if cache is not None and cache.broken:
                raise cache.broken

    # --- operations ---------------------------------------------------------------------

    def begin(self, op: Op, model: ConversationModel) -> Answer:
        checkpoints, refusing = list(self.checkpoints), self.refusing
        self.checkpoints, self.refusing = (), ()
        self.set_refusing(refusing)
        answer = self.lend(
            lambda tokens: self.cache.begin(tokens, checkpoints), op["tokens"]
        )
        self.set_refusing(())
        checkpoints.clear()  # it is the caller's, too
        if "error" in answer or model.cache.request is None:
            return answer
        result = answer.get("result")
        if not isinstance(result, Sequence):
            raise Broken("malformed", f"begin returned {result!r}, not a list of tokens")
        remaining = list(result)
        if isinstance(result, list):
            result.clear()  # and so is this
        return {"remaining": remaining, **self.describe_layers(model)}

    def set_refusing(self, numbers: Sequence[int]) -> None:
        for number, cache in enumerate(self.watched):
            if cache is not None:
                cache.refusing, cache.failing = number in numbers, self.raising

    def feed(self, op: Op, model: ConversationModel) -> Answer:
        caches: list[Answer] = [{} for _ in self.layers]
        last = op.get("layers", len(self.layers))
        for number, layer, right in self.get_layers(model):
            if model.fed and number < last:
                caches[number] = layer.update("a", model.fed, right.cache.tokens)
        answer = {"offsets": self.get_offsets(), "caches": caches}
        if generated := op.get("generate"):
            answer |= self.lend(self.cache.extend, generated)
        self.check_watched()
        return answer

    def close(self, op: Op, model: ConversationModel) -> Answer:
        answer = self.ask(getattr(self.cache, op["op"]))
        if "error" in answer:
            return answer
        self.check_snapshots(model)
        return {"stored": answer.get("result")}

    def refuse(self, op: Op, model: ConversationModel) -> Answer:
        self.refusing, self.raising = op["layers"], op["raising"]
        return {}

    def checkpoint(self, op: Op, model: ConversationModel) -> Answer:
        self.checkpoints = op["offsets"]
        return {}

    def count(self, op: Op, model: ConversationModel) -> Answer:
        answer = {"tokens": self.cache.count_tokens()}
        return {**answer, "bytes": self.cache.count_bytes()} if model.trie else answer

    def free(self, op: Op, model: ConversationModel) -> Answer:
        answer = self.change(self.cache.free, model)
        return answer or self.describe_layers(model)

    def limit(self, op: Op, model: ConversationModel) -> Answer:
        return self.change(lambda: self.cache.set_limit(op["bytes"]), model)

    def change(self, call: Callable[[], Any], model: ConversationModel) -> Answer:
        """`call` changes what is stored."""
        answer = self.ask(call)
        if model.cache.request is None:
            self.check_snapshots(model)
        return answer

    # --- layers -------------------------------------------------------------------------

    def get_layers(
        self, model: ConversationModel
    ) -> Iterator[tuple[int, LayerSystem, Layer]]:
        """Each layer that has a cache, after its number and before its reference."""
        live = self.cache.layers
        if len(live) != len(self.layers):
            raise Broken("malformed", f"{len(live)} layers instead of {len(self.layers)}")
        layers = zip(self.layers, model.cache.layers, strict=True)
        for number, (layer, right) in enumerate(layers):
            if layer is not None and right is not None:
                layer.caches["a"] = live[number]
                yield number, layer, right

    def describe_layers(self, model: ConversationModel) -> Answer:
        """The offset of each layer, and what it holds."""
        caches: list[Answer] = [{} for _ in self.layers]
        for number, layer, right in self.get_layers(model):
            caches[number] = layer.read_all("state", "a", right.cache)
        return {"offsets": self.get_offsets(), "caches": caches}

    def get_offsets(self) -> list[int | None]:
        return [cache if cache is None else cache.offset for cache in self.cache.layers]

    # --- checks beside the answer -------------------------------------------------------

    def verify_attention(self, model: ConversationModel) -> None:
        for layer, right in zip(self.list_layers(), model.cache.cached, strict=True):
            layer.verify_attention(right.cache.visible, model.fed, right.offset)

    def check_snapshots(self, model: ConversationModel) -> None:
        """The snapshots that are open are what is stored, no more and no less."""
        if not self.watched:
            return
        sizes = model.trie.list_layer_bytes() if model.trie else [0] * len(self.watched)
        for number, (cache, stored) in enumerate(zip(self.watched, sizes, strict=True)):
            held = 0 if cache is None else cache.get_bytes()
            if held != stored:
                raise Broken(
                    "snapshots",
                    f"the open snapshots of layer {number} take {held} bytes, but what is"
                    f" stored takes {stored}",
                )

    def settle(self, op: Op) -> None:
        for layer in self.list_layers():
            layer.settle(CHANGE)

    def finish(self) -> None:
        """Checks that arrays hold until now, and that nothing stays open after a free."""
        for layer in self.list_layers():
            layer.finish()
        if self.watched:
            self.ask(self.cache.cancel)  # refused, if no request is open
            self.ask(self.cache.free)
            left = sum(len(cache.open) for cache in self.watched if cache is not None)
            if left:
                raise Broken("snapshots", f"{left} snapshots are open after free", "free")
