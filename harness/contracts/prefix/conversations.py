"""The reference of a session or a trie as one program sees it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.layer.model import (
    answer_tags,
    get_rows_visible,
    list_places,
    open_cache,
)
from lockstep.harness.contracts.prefix.config import get_layer_config
from lockstep.harness.contracts.prefix.drawing import MOST_TOLD
from lockstep.harness.contracts.types import Answer, Held, Op
from lockstep.reference.layers import Layer
from lockstep.reference.session import Session
from lockstep.reference.trie import Path, Trie

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
STATE_ITEM_BYTES = 4
"""The delta state is always float32."""


def open_layer(config: Mapping[str, Any], spec: str | None) -> Layer | None:
    """The reference of one layer."""
    if spec is None:
        return None
    layer, item = get_layer_config(config, spec), ITEM_BYTES[config["dtype"]]
    heads, key_dim = config["heads"], config["key_dim"]
    conv = (config["conv_width"] - 1) * heads * key_dim * item
    delta = heads * key_dim * config["value_dim"] * STATE_ITEM_BYTES
    token = heads * (key_dim + config["value_dim"]) * item
    return Layer(open_cache(layer), token_bytes=token, state_bytes=conv + delta)


def get_offsets(layers: Sequence[Layer | None]) -> list[int | None]:
    return [None if layer is None else layer.offset for layer in layers]


class ConversationModel:
    """The reference of one program.

    tags: of every token that was computed, by the tag of the token before it, which
    stands for all that come before, and the token itself. told: the conversations that
    there were, to draw others from. refusing, checkpoints: what the next request is to
    meet. reused: how much of the request was there when it began. fed: the tags of the
    last pass, with `rows` only. broken: it broke off. past: what happened since the last
    request began, for the abstract states.
    """

    def __init__(self, config: Mapping[str, Any], rows: bool = True) -> None:
        self.config, self.rows = config, rows
        self.tag = 0
        self.tags: dict[tuple[int | None, int], int] = {}
        layers = [open_layer(config, spec) for spec in config["layers"]]
        self.is_trie = config["kind"] == "trie"
        limits = config["limit"], config["interval"]
        self.cache: Session | Trie = (
            Trie(layers, self.get_tags, *limits)
            if self.is_trie
            else Session(layers, self.get_tags)
        )
        self.told: deque[list[int]] = deque(maxlen=MOST_TOLD)
        self.alphabet, self.reach = (1, 2, 3), 12
        self.refusing: list[int] = []
        self.checkpoints: list[int] = []
        self.fed: list[int] = []
        self.broken = False
        self.reused = 0
        self.past: set[str] = set()

    # --- tokens -------------------------------------------------------------------------

    def get_tags(self, tokens: Sequence[int]) -> list[int]:
        """The tags of a conversation; a token that was never computed behind these tokens
        gets the next free one."""
        tags: list[int] = []
        known, tag, fresh = self.tags, None, self.tag
        for token in tokens:
            link = tag, token
            tag = known.get(link)
            if tag is None:
                tag = known[link] = fresh
                fresh += 1
            tags.append(tag)
        return tags

    def list_stored(self) -> list[list[int]]:
        """The conversations that are stored, as far as they go."""
        if isinstance(self.cache, Trie):
            return [list(path) for path in self.cache.points]
        return [self.cache.stored] if self.cache.stored else []

    def get_oldest(self) -> list[int]:
        """The stored conversation whose end was not used for the longest time."""
        if not isinstance(self.cache, Trie):
            return self.cache.stored or self.told[0]
        points = self.cache.points
        ends = points.keys() - set(self.cache.get_parents().values())
        return list(min(ends, key=lambda path: points[path].used, default=self.told[0]))

    def get_remaining(self) -> list[int]:
        request = self.cache.request
        return [] if request is None else request[self.cache.computed :]

    # --- operations ---------------------------------------------------------------------

    def ask(self, call: Callable[[], Any]) -> Answer:
        """{"error": "usage"}, or what the reference answers and what it holds then."""
        try:
            result = call()
        except ValueError:
            return {"error": "usage"}
        return {} if result is None else {"result": result}

    def begin(self, op: Op) -> Answer:
        checkpoints, refusing = self.checkpoints, self.refusing
        self.checkpoints, self.refusing = [], []
        cache, tokens = self.cache, op["tokens"]
        if isinstance(cache, Trie):
            answer = self.ask(lambda: cache.begin(tokens, checkpoints, refusing))
        else:
            answer = self.ask(lambda: cache.begin(tokens, refusing))
        if "error" in answer:
            return answer
        self.past, self.broken = set(), False
        self.reused = cache.computed
        self.tell(list(tokens))
        return {"remaining": answer["result"], **self.describe_layers()}

    def tell(self, tokens: list[int]) -> None:
        if tokens in self.told:
            self.told.remove(tokens)
        self.told.append(tokens)

    def describe_layers(self) -> Answer:
        """Where each layer stands, and what it holds."""
        layers = self.cache.layers
        answer: Answer = {"offsets": get_offsets(layers)}
        if self.rows:
            answer["caches"] = [answer_tags(one.cache) if one else {} for one in layers]
        return answer

    def feed(self, count: int, generated: Sequence[int], layers: int | None) -> Answer:
        """The rows of the next `count` tokens in each layer; then tokens that were
        generated."""
        cache = self.cache
        before, start = get_offsets(cache.layers), cache.computed
        cache.feed(min(count, len(self.get_remaining())), layers)
        answer: Answer = {"offsets": get_offsets(cache.layers)}
        if self.rows:
            computed = cache.get_request()[: cache.computed]
            self.fed = self.get_tags(computed)[start:]
        if self.fed:
            answer["caches"] = [
                {"visible": get_rows_visible(layer.cache, begin)}
                if layer is not None and begin is not None and layer.offset > begin
                else {}
                for layer, begin in zip(cache.layers, before, strict=True)
            ]
        if layers is not None:
            self.broken = True
            self.past.add("broken-off")
        if generated:
            answer |= self.ask(lambda: cache.extend(generated))
        return answer

    def close(self) -> Answer:
        fed = self.cache.computed > self.reused
        request = self.cache.request
        before = self.list_points()
        answer = self.ask(self.cache.close)
        if "error" in answer:
            return answer
        if request:
            self.tell(request[: max(1, answer["result"])])
        self.note_evictions(before)
        if not fed:
            self.past.add("closed-untouched")
        return {"stored": answer["result"]}

    def list_points(self) -> dict[tuple[int, ...], bool]:
        """path → whether anything was captured there."""
        points = self.cache.points if isinstance(self.cache, Trie) else {}
        return {path: bool(point.captured) for path, point in points.items()}

    def list_partings(self) -> dict[Path, list[Path]]:
        """Where conversations part and something was captured → the stored paths right
        behind it that were used less lately."""
        if not isinstance(self.cache, Trie):
            return {}
        points, behind = self.cache.points, defaultdict[Path, list[Path]](list)
        for path, parent in self.cache.get_parents().items():
            behind[parent].append(path)
        return {
            path: [one for one in paths if points[one].used < points[path].used]
            for path, paths in behind.items()
            if path and len(paths) > 1 and points[path].captured
        }

    def note_evictions(self, before: Mapping[tuple[int, ...], bool]) -> None:
        after = self.list_points()
        if any(path not in after for path in before):
            self.past.add("evicted")
        if any(captured and not after.get(path) for path, captured in before.items()):
            self.past.add("capture-evicted")
        if isinstance(self.cache, Trie) and self.cache.limit is not None:
            over = self.cache.count_bytes() > self.cache.limit
            self.past |= {"over-the-limit"} if over else set()

    def describe_store(self) -> Answer:
        """What is stored, in numbers."""
        if isinstance(self.cache, Trie):
            tokens, size = self.cache.count_tokens(), self.cache.count_bytes()
            return {"tokens": tokens, "bytes": size}
        return {"tokens": len(self.cache.stored)}

    def free(self) -> Answer:
        answer = self.ask(self.cache.free)
        if "error" in answer:
            return answer
        self.past = {"freed"}
        return self.describe_layers()

    def set_limit(self, limit: int | None) -> Answer:
        assert isinstance(self.cache, Trie)
        cache, before = self.cache, self.list_points()
        answer = self.ask(lambda: cache.set_limit(limit))
        self.note_evictions(before)
        return answer

    def list_held(self) -> Sequence[Held]:
        """What each layer holds now."""
        return [
            (
                f"layer {number} ({spec or 'none'})",
                list_places(layer.cache) if layer else [],
            )
            for number, (spec, layer) in enumerate(
                zip(self.config["layers"], self.cache.layers, strict=True)
            )
        ]

    def list_live(self) -> Mapping[int, int]:
        """tag → position of what some layer holds now."""
        caches = [layer.cache for layer in self.cache.cached]
        return {token.tag: token.position for cache in caches for token in cache.tokens}
