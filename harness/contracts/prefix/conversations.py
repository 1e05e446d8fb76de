"""Defines model and system of a session or a trie, including the caches of the layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lockstep.harness.contracts.answers import read_list, read_object
from lockstep.harness.contracts.layer.model import (
    answer_tags,
    get_range,
    get_rows_visible,
    list_places,
)
from lockstep.harness.contracts.layer.system import LayerSystem
from lockstep.harness.contracts.operation import Answer, Config, Held, Op, Source, ask
from lockstep.harness.contracts.prefix.model import (
    CHANGES,
    Path,
    RequestModel,
    RequestSystem,
    get_layer_config,
    open_layers,
)
from lockstep.harness.contracts.system import Setup
from lockstep.harness.core.errors import Broken
from lockstep.reference.layers import Layer
from lockstep.reference.session import Session
from lockstep.reference.trie import Path as Tokens
from lockstep.reference.trie import Trie


class ConversationModel(RequestModel):
    """The reference session or trie of one program.

    Attributes:
        cache: the session or the trie.
        trie: `cache` if it is a trie, else None.
        tags: (tag of the previous token, token) → tag, for each computed token. The
            previous tag identifies all previous tokens.
        checkpoints: the offsets at which the next request makes captures.
        refusing: the numbers of the layers that refuse to go back in the next request.
        reused: how many tokens the open request reused when it began.
    """

    def __init__(self, config: Config, rows: bool = True) -> None:
        super().__init__(config, rows)
        self.tags: dict[tuple[int | None, int], int] = {}
        layers = open_layers(config)
        self.trie: Trie | None = None
        if config["kind"] == "trie":
            limits = config["limit"], config["interval"]
            self.trie = Trie(layers, self.get_tags, *limits)
        self.cache: Session | Trie = self.trie or Session(layers, self.get_tags)
        self.refusing: list[int] = []
        self.checkpoints: list[int] = []
        self.reused = 0

    # --- operations ---------------------------------------------------------------------

    def begin(self, op: Op) -> Answer:
        tokens, ahead = op["tokens"], [self.refusing]
        if self.trie:
            ahead.insert(0, self.checkpoints)
        # The settings for the next request are used up, even if it is refused.
        self.checkpoints, self.refusing = [], []
        if op.get("checkpoints"):
            return {"error": "usage"}
        answer = ask(lambda: self.cache.begin(tokens, *ahead))
        if "error" in answer:
            return answer
        self.past, self.broken = set(), set()
        if self.trie and self.trie.refused:
            self.past.add("refused")
        self.reused = self.cache.computed
        self.count_request(len(tokens), len(answer["result"]))
        self.tell(list(tokens))
        return {"remaining": answer["result"], **self.describe_layers()}

    def feed(self, op: Op) -> Answer:
        cache, layers = self.cache, op.get("layers")
        offsets, start = self.get_offsets(), cache.computed
        cache.feed(min(op["count"], len(self.get_remaining())), layers)
        if cache.computed > start:
            self.past.discard("refused")
        if self.rows:
            computed = cache.get_request()[: cache.computed]
            self.fed = self.get_tags(computed)[start:]
        answer = self.answer_pass(offsets)
        if layers is not None:
            self.broken.add("a")
            self.past.add("broken-off")
        if generated := op.get("generate"):
            answer |= ask(lambda: cache.extend(generated))
        return answer

    def overrun(self, op: Op) -> Answer:
        offsets = self.get_offsets()
        self.fed = range(self.tag, self.tag + op["count"])
        self.cache.overrun(self.fed)
        self.broken.add("a")
        self.past.add("overran")
        return self.answer_pass(offsets)

    def answer_pass(self, offsets: Sequence[int | None]) -> Answer:
        """Returns the answer of a pass; `offsets` are the offsets before the pass."""
        answer: Answer = {"offsets": self.get_offsets()}
        if self.rows and self.fed:
            pairs = zip(self.cache.layers, offsets, strict=True)
            answer["caches"] = [answer_rows(*pair) for pair in pairs]
        return answer

    def close(self, op: Op) -> Answer:
        is_untouched = self.cache.computed <= self.reused
        request, points_before = self.cache.request, self.list_points()
        answer = ask(self.cache.close)
        if "error" in answer:
            return answer
        if request:
            self.tell(request[: max(1, answer["result"])])
            self.closed.appendleft(request[: answer["result"]])
        self.note_evictions(points_before)
        if is_untouched:
            self.past.add("closed-untouched")
        return {"stored": answer["result"]}

    def refuse(self, op: Op) -> Answer:
        self.refusing = op["layers"]
        return {}

    def checkpoint(self, op: Op) -> Answer:
        self.checkpoints = op["offsets"]
        return {}

    def count(self, op: Op) -> Answer:
        return self.describe_store()

    def statistics(self, op: Op) -> Answer:
        return {**self.counts, "bytes": 0, **self.describe_store()}

    def free(self, op: Op) -> Answer:
        answer = ask(self.cache.free)
        if "error" in answer:
            return answer
        self.past = {"freed"}
        self.closed.clear()
        return self.describe_layers()

    def limit(self, op: Op) -> Answer:
        assert self.trie, "a session has no limit"
        trie, points_before = self.trie, self.list_points()
        answer = ask(lambda: trie.set_limit(op["bytes"]))
        self.note_evictions(points_before)
        return answer

    # --- the open request ---------------------------------------------------------------

    def is_open(self, user: str = "a") -> bool:
        return self.cache.request is not None

    def get_request(self, user: str = "a") -> list[int]:
        return self.cache.get_request()

    def get_remaining(self, user: str = "a") -> list[int]:
        request = self.cache.request
        return [] if request is None else request[self.cache.computed :]

    def draw_user(self, source: Source) -> dict[str, str]:
        return {}

    def draw_new_user(self, source: Source) -> dict[str, str] | None:
        return None if self.is_open() else {}

    # --- what is held -------------------------------------------------------------------

    def get_tags(self, tokens: Path) -> list[int]:
        """Returns the tags of a conversation.

        If a token was never computed after the same previous tokens, it gets the next
        free tag.
        """
        tags: list[int] = []
        tags_known, tag, fresh = self.tags, None, self.tag
        for token in tokens:
            link = tag, token
            tag = tags_known.get(link)
            if tag is None:
                tag = tags_known[link] = fresh
                fresh += 1
            tags.append(tag)
        return tags

    def get_offsets(self) -> list[int | None]:
        return [None if layer is None else layer.offset for layer in self.cache.layers]

    def describe_layers(self) -> Answer:
        """Returns the offset and the content of each layer."""
        answer: Answer = {"offsets": self.get_offsets()}
        if self.rows:
            layers = self.cache.layers
            answer["caches"] = [
                answer_tags(later.cache) if later else {} for later in layers
            ]
        return answer

    def describe_store(self) -> Answer:
        if self.trie:
            return {"tokens": self.trie.count_tokens(), "bytes": self.trie.count_bytes()}
        return {"tokens": len(self.stored)}

    def list_layer_bytes(self) -> list[int]:
        """Lists the number of stored bytes for each layer."""
        return self.trie.list_layer_bytes() if self.trie else [0] * len(self.cache.layers)

    def list_held(self, op: Op) -> Sequence[Held]:
        layers = zip(self.config["layers"], self.cache.layers, strict=True)
        return [
            (f"layer {at} ({spec or 'none'})", list_places(layer.cache) if layer else [])
            for at, (spec, layer) in enumerate(layers)
        ]

    def list_live(self) -> Mapping[int, int]:
        caches = [layer.cache for layer in self.cache.cached]
        return {token.tag: token.position for cache in caches for token in cache.tokens}

    # --- the conversations --------------------------------------------------------------

    def tell(self, tokens: list[int]) -> None:
        if tokens in self.told:
            self.told.remove(tokens)
        self.told.append(tokens)

    @property
    def stored(self) -> list[int]:
        """The conversation that a session stores; empty for a trie."""
        return [] if isinstance(self.cache, Trie) else self.cache.stored

    def list_stored(self) -> list[list[int]]:
        if self.trie:
            return [list(path) for path in self.trie.points]
        return [self.stored] if self.stored else []

    def get_oldest(self) -> list[int]:
        if not self.trie:
            return self.stored or self.told[0]
        points = self.trie.points
        ends = points.keys() - set(self.trie.get_parents().values())
        return list(min(ends, key=lambda path: points[path].used, default=self.told[0]))

    def list_partings(self) -> Mapping[Path, Sequence[Path]]:
        if not self.trie:
            return {}
        points, paths_behind = self.trie.points, defaultdict[Tokens, list[Tokens]](list)
        for path, parent in self.trie.get_parents().items():
            paths_behind[parent].append(path)
        return {
            path: [later for later in paths if points[later].used < points[path].used]
            for path, paths in paths_behind.items()
            if path and len(paths) > 1 and points[path].captured
        }

    def list_points(self) -> dict[Path, bool]:
        """Returns path → whether it has a capture, for each path that the trie stores."""
        points = self.trie.points if self.trie else {}
        return {path: bool(point.captured) for path, point in points.items()}

    def note_evictions(self, points_before: Mapping[Path, bool]) -> None:
        after = self.list_points()
        if any(path not in after for path in points_before):
            self.past.add("evicted")
        if any(
            captured and not after.get(path) for path, captured in points_before.items()
        ):
            self.past.add("capture-evicted")
        trie = self.trie
        if trie and trie.limit is not None and trie.count_bytes() > trie.limit:
            self.past.add("over-the-limit")


def answer_rows(layer: Layer | None, begin: int | None) -> Answer:
    """Returns the tokens that each row of a layer sees, from position `begin` on."""
    if layer is None or begin is None or layer.offset <= begin:
        return {}
    return {"visible": get_rows_visible(layer.cache, begin)}


# --- the system under test --------------------------------------------------------------


class WatchedCache:
    """A cache of the backend that records its open snapshots.

    Args:
        cache: a cache of the layer contract.
        count_bytes: (begin, end) → bytes of the snapshot of [begin, end).

    Attributes:
        refusing: whether `restore` refuses, as it may in a layer that cannot go back.
        failing: whether `restore` raises an exception.
        open: id → open snapshot.
        broken: the first mistake. It is kept here, because the backend may catch the
            exception.
    """

    def __init__(self, cache: Any, count_bytes: Callable[[int, int], int]) -> None:
        self.cache = cache
        self.count_bytes = count_bytes
        self.refusing = self.failing = False
        self.open: dict[int, Any] = {}
        self.broken: Broken | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def get_bytes(self) -> int:
        """Counts the bytes of all open snapshots."""
        ranges = map(get_range, self.open.values())
        return sum(self.count_bytes(*ends) for ends in ranges if ends)

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


class ConversationSystem(RequestSystem):
    """The session or trie of one program in a backend.

    Attributes:
        layers: for each layer, the system that writes and reads the layer; None for a
            layer without a cache.
        watched: the caches that the harness passed to the backend; empty if the backend
            creates its caches.
    """

    below: Sequence[LayerSystem]

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        setup = replace(setup, writes=CHANGES)
        self.layers = [
            LayerSystem(
                replace(setup, config=get_layer_config(self.config, spec), layer=number)
            )
            if spec
            else None
            for number, spec in enumerate(self.config["layers"])
        ]
        self.below = [layer for layer in self.layers if layer is not None]
        self.watched = list(self.open_watched()) if self.builds_on else []
        self.open(self.watched, [layer and layer.config for layer in self.layers])
        self.refusing: Sequence[int] = ()
        self.raising = False
        self.checkpoints: Sequence[int] = ()

    def open_watched(self) -> Iterator[WatchedCache | None]:
        """Yields a watched cache for each layer; None for a layer without a cache."""
        for layer, reference in zip(self.layers, open_layers(self.config), strict=True):
            if layer is None or reference is None:
                yield None
            else:
                cache = self.backend.open(layer.config)
                yield WatchedCache(cache, reference.count_bytes)

    def ask(self, call: Callable[[], Any]) -> Answer:
        try:
            return super().ask(call)
        finally:
            self.check_watched()

    def check_watched(self) -> None:
        for cache in self.watched:
            if cache is not None and cache.broken:
                raise cache.broken

    # --- operations ---------------------------------------------------------------------

    def begin(self, op: Op, model: ConversationModel) -> Answer:
        requested = op.get("checkpoints") or self.checkpoints
        checkpoints, refusing = list(requested), self.refusing
        self.checkpoints, self.refusing = (), ()
        self.set_refusing(refusing)
        answer = self.lend(
            lambda tokens: self.cache.begin(tokens, checkpoints), op["tokens"]
        )
        self.set_refusing(())
        checkpoints.clear()  # the list belongs to the caller
        if "error" in answer or model.cache.request is None:
            return answer
        result = answer.get("result")
        if not isinstance(result, Sequence):
            raise Broken("malformed", f"begin returned {result!r}, not a list of tokens")
        remaining = list(result)
        if isinstance(result, list):
            result.clear()  # so does this list
        return {"remaining": remaining, **self.describe_layers(model)}

    def set_refusing(self, numbers: Sequence[int]) -> None:
        for number, cache in enumerate(self.watched):
            if cache is not None:
                cache.refusing, cache.failing = number in numbers, self.raising

    def feed(self, op: Op, model: ConversationModel) -> Answer:
        caches: list[Answer] = [{} for _ in self.layers]
        last = op.get("layers", len(self.layers))
        for number, layer, reference in self.get_layers(model):
            if model.fed and number < last:
                caches[number] = layer.update("a", model.fed, reference.cache)
        answer = {"offsets": self.get_offsets(), "caches": caches}
        if generated := op.get("generate"):
            answer |= self.lend(self.cache.extend, generated)
        self.check_watched()
        return answer

    overrun = feed

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
        """Calls the backend to change the stored content, and checks the snapshots if no
        request is open."""
        answer = self.ask(call)
        if model.cache.request is None:
            self.check_snapshots(model)
        return answer

    # --- layers -------------------------------------------------------------------------

    def get_layers(
        self, model: ConversationModel
    ) -> Iterator[tuple[int, LayerSystem, Layer]]:
        """Iterates over the layers that have a cache, as (number, layer, reference)."""
        live = read_list(self.cache.layers, "layers", len(self.layers))
        layers = zip(self.layers, model.cache.layers, strict=True)
        for number, (layer, reference) in enumerate(layers):
            if layer is not None and reference is not None:
                layer.caches["a"] = read_object(
                    live[number], ["offset"], "layers", "a cache in each place"
                )
                yield number, layer, reference

    def describe_layers(self, model: ConversationModel) -> Answer:
        """Returns the offset and the content of each layer."""
        caches: list[Answer] = [{} for _ in self.layers]
        for number, layer, reference in self.get_layers(model):
            caches[number] = layer.read_all("state", "a", reference.cache)
        return {"offsets": self.get_offsets(), "caches": caches}

    def get_offsets(self) -> list[int | None]:
        layers = read_list(self.cache.layers, "layers", len(self.layers))
        return [getattr(cache, "offset", None) for cache in layers]

    # --- checks beside the answer -------------------------------------------------------

    def verify_attention(self, model: ConversationModel) -> None:
        for layer, reference in zip(self.below, model.cache.cached, strict=True):
            layer.verify_attention(reference.cache.visible, model.fed, reference.offset)

    def verify_memory(self, op: Op, model: ConversationModel) -> None:
        if self.declared.held is None:
            return
        last = op.get("layers", len(self.layers)) if op["op"] in ("feed", "break") else 0
        sizes = model.list_layer_bytes()
        for number, layer, reference in self.get_layers(model):
            memory, cache = layer.memory, self.cache.layers[number]
            if op["op"] == "free" and model.cache.request is None:  # not refused
                memory.reset(cache)
            memory.note(cache, reference.cache, len(model.fed) if number < last else 0)
            watched = self.watched[number] if self.watched else None
            memory.stored = sizes[number], len(watched.open) if watched else 0
            # During a request there may be captures that are not stored yet.
            if model.cache.request is None and layer.is_weighed():
                memory.check()

    def check_snapshots(self, model: ConversationModel) -> None:
        """Checks that the open snapshots have as many bytes as the reference stores."""
        if not self.watched:
            return
        sizes = zip(self.watched, model.list_layer_bytes(), strict=True)
        for number, (cache, stored) in enumerate(sizes):
            size = 0 if cache is None else cache.get_bytes()
            if size != stored:
                raise Broken(
                    "snapshots",
                    f"layer {number} has open snapshots of {size} bytes, but the stored"
                    f" tokens take {stored}",
                )

    def finish(self) -> None:
        """Checks that arrays are unchanged, and that no snapshot is open after `free`."""
        for layer in self.below:
            layer.watch.check()
        if self.watched:
            self.ask(self.cache.cancel)  # refused if no request is open
            self.ask(self.cache.free)
            still_open = sum(len(cache.open) for cache in filter(None, self.watched))
            if still_open:
                raise Broken(
                    "snapshots", f"{still_open} snapshots are open after free", "free"
                )
            if self.declared.held is not None:
                for layer in self.below:
                    layer.memory.check_released()
