"""A backend's session or trie as one program sees it, and the layers under it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.broken import Broken
from lockstep.harness.contracts.layer.system import LayerSubject
from lockstep.harness.contracts.prefix.config import get_layer_config
from lockstep.harness.contracts.prefix.conversations import ConversationModel, open_layer
from lockstep.harness.contracts.prefix.watch import WatchedCache
from lockstep.harness.contracts.types import Answer, Op
from lockstep.harness.core.printable import clean
from lockstep.reference.layers import Layer
from lockstep.reference.trie import Trie

NO_TOKEN = -1

CHANGE: Op = {"op": "update"}
"""To the layers, every operation of a prefix cache may be one that writes."""


class ConversationSubject:
    """The cache of one program in a backend.

    layers: what is written to each layer, and read from it. watched: the caches that the
    backend was given to build on; empty if it brings its own.
    """

    layer_type = LayerSubject

    def __init__(
        self, backend: Backend, config: Mapping[str, Any], tags: int, every: bool
    ) -> None:
        self.backend, self.config, self.every = backend, config, every
        self.layers = [
            None if spec is None else self.make_layer(spec, number, tags)
            for number, spec in enumerate(config["layers"])
        ]
        self.watched = self.open_watched()
        caches = self.watched or None
        below = [layer and layer.config for layer in self.layers]
        own = {"poison": backend.poison, "caches": caches, "below": below}
        self.given = {**config, **own}
        self.cache = backend.open(self.given)
        self.refusing: Sequence[int] = ()
        self.raising = False
        self.checkpoints: Sequence[int] = ()

    def tell_layout(self) -> None:
        for layer in self.layers:
            if layer is not None:
                layer.tell_layout()

    def make_layer(self, spec: str, number: int, tags: int) -> LayerSubject:
        config = get_layer_config(self.config, spec)
        return self.layer_type(self.backend, config, tags, self.every, number)

    def open_watched(self) -> list[WatchedCache | None]:
        """A cache of the backend for each layer, if it builds on them."""
        if not self.backend.contracts["prefix"][self.config["kind"]].builds_on:
            return []
        return [
            WatchedCache(self.backend.open(layer.config), size) if layer else None
            for layer, size in zip(self.layers, self.list_sizes(), strict=True)
        ]

    def list_sizes(self) -> Iterator[Callable[[int, int], int]]:
        """What a snapshot of each layer takes."""
        for spec in self.config["layers"]:
            layer = open_layer(self.config, spec)
            yield layer.count_bytes if layer else (lambda begin, end: 0)

    @property
    def margin(self) -> float:
        return max((layer.margin for layer in self.layers if layer), default=0.0)

    def ask(self, call: Callable[[], Any]) -> Answer:
        """{"error": "usage", "why": in its words} if the backend refuses; else what the
        call answers."""
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
        self.refuse(refusing)
        tokens = list(op["tokens"])
        answer = self.ask(lambda: self.cache.begin(tokens, checkpoints))
        self.refuse(())
        tokens[:], checkpoints[:] = [NO_TOKEN] * len(tokens), []  # they are the caller's
        if "error" in answer or model.cache.request is None:
            return answer
        result = answer.get("result")
        if not isinstance(result, Sequence):
            raise Broken("malformed", f"begin returned {result!r}, not a list of tokens")
        remaining = list(result)
        if isinstance(result, list):
            result.clear()  # and so is this
        return {"remaining": remaining, **self.describe_layers(model)}

    def refuse(self, numbers: Sequence[int]) -> None:
        for number, cache in enumerate(self.watched):
            if cache is not None:
                cache.refusing, cache.failing = number in numbers, self.raising

    def get_layers(
        self, model: ConversationModel
    ) -> list[tuple[int, LayerSubject, Layer]]:
        """Each layer that has a cache, behind its number and beside its reference."""
        live = self.cache.layers
        if len(live) != len(self.layers):
            raise Broken(
                "malformed", f"it has {len(live)} layers, not {len(self.layers)}"
            )
        found = []
        for number, (layer, right) in enumerate(
            zip(self.layers, model.cache.layers, strict=True)
        ):
            if layer is not None and right is not None:
                layer.caches["a"] = live[number]
                found.append((number, layer, right))
        return found

    def describe_layers(self, model: ConversationModel) -> Answer:
        """Where each layer stands, and what it holds."""
        caches: list[Answer] = [{} for _ in self.layers]
        for number, layer, right in self.get_layers(model):
            caches[number] = layer.read_all("state", "a", right.cache)
        return {"offsets": self.get_offsets(), "caches": caches}

    def get_offsets(self) -> list[int | None]:
        return [cache if cache is None else cache.offset for cache in self.cache.layers]

    def feed(
        self, generated: Sequence[int], layers: int | None, model: ConversationModel
    ) -> Answer:
        """Writes the tokens of the pass to each layer, and reads what their rows see.
        layers: to so many only."""
        caches: list[Answer] = [{} for _ in self.layers]
        last = len(self.layers) if layers is None else layers
        for number, layer, right in self.get_layers(model):
            if model.fed and number < last:
                caches[number] = layer.update("a", model.fed, right.cache.tokens)
        answer = {"offsets": self.get_offsets(), "caches": caches}
        if generated:
            tokens = list(generated)
            answer |= self.ask(lambda: self.cache.extend(tokens))
            tokens[:] = [NO_TOKEN] * len(tokens)
        self.check_watched()
        return answer

    def verify_attention(self, model: ConversationModel) -> None:
        for layer, right in zip(self.layers, model.cache.layers, strict=True):
            if layer is not None and right is not None:
                layer.verify_attention(right.cache.visible, model.fed, right.offset)

    def close(self, name: str, model: ConversationModel) -> Answer:
        call = self.cache.close if name == "close" else self.cache.cancel
        answer = self.ask(call)
        if "error" in answer:
            return answer
        self.check_snapshots(model)
        return {"stored": answer.get("result")}

    def free(self, model: ConversationModel) -> Answer:
        answer = self.change(self.cache.free, model)
        return answer or self.describe_layers(model)

    def change(self, call: Callable[[], Any], model: ConversationModel) -> Answer:
        """`call` changes what is stored."""
        answer = self.ask(call)
        if model.cache.request is None:
            self.check_snapshots(model)
        return answer

    def count(self) -> Answer:
        answer = {"tokens": self.cache.count_tokens()}
        if self.config["kind"] == "trie":
            answer["bytes"] = self.cache.count_bytes()
        return answer

    # --- checks beside the answer -------------------------------------------------------

    def check_snapshots(self, model: ConversationModel) -> None:
        """The snapshots that are open are what is stored, no more and no less."""
        if not self.watched:
            return
        trie = model.cache
        sizes = trie.list_layer_bytes() if isinstance(trie, Trie) else []
        for number, cache in enumerate(self.watched):
            if cache is None:
                continue
            held, stored = cache.get_bytes(), sizes[number] if sizes else 0
            if held != stored:
                raise Broken(
                    "snapshots",
                    f"of layer {number} snapshots of {held} bytes are open, but what is"
                    f" stored takes {stored}",
                )

    def settle(self, op: Op) -> None:
        for layer in self.layers:
            if layer is not None:
                layer.settle(CHANGE)

    def finish(self) -> None:
        """What was handed out holds until now; and nothing stays open after a free."""
        for layer in self.layers:
            if layer is not None:
                layer.finish()
        if self.watched:
            self.ask(self.cache.cancel)  # refused, if no request is open
            self.ask(self.cache.free)
            left = sum(len(cache.open) for cache in self.watched if cache is not None)
            if left:
                raise Broken("snapshots", f"{left} snapshots are open after free", "free")
