"""The reference of a session or a trie as one program sees it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from lockstep.harness.contracts.layer.model import (
    answer_tags,
    get_rows_visible,
    list_places,
)
from lockstep.harness.contracts.prefix.config import Config, open_layers
from lockstep.harness.contracts.prefix.sides import Path, PrefixModel, ask
from lockstep.harness.contracts.types import Answer, Held, Op, Source
from lockstep.reference.layers import Layer
from lockstep.reference.session import Session
from lockstep.reference.trie import Path as Tokens
from lockstep.reference.trie import Trie


class ConversationModel(PrefixModel):
    """The reference of one program.

    Attributes:
        cache: the session or the trie; trie: the same if it is a trie, else None.
        tags: the tag of each token that was computed, by the tag of the token before it,
            which stands for all that come before, and the token itself.
        checkpoints: where the next request is to be captured.
        reused: how much of the request was there when it began.
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
        self.checkpoints, self.refusing = [], []
        answer = ask(lambda: self.cache.begin(tokens, *ahead))
        if "error" in answer:
            return answer
        self.past, self.broken = set(), set()
        self.reused = self.cache.computed
        self.tell(list(tokens))
        return {"remaining": answer["result"], **self.describe_layers()}

    def feed(self, op: Op) -> Answer:
        cache, layers = self.cache, op.get("layers")
        before, start = self.get_offsets(), cache.computed
        cache.feed(min(op["count"], len(self.get_remaining())), layers)
        answer: Answer = {"offsets": self.get_offsets()}
        if self.rows:
            computed = cache.get_request()[: cache.computed]
            self.fed = self.get_tags(computed)[start:]
        if self.fed:
            pairs = zip(cache.layers, before, strict=True)
            answer["caches"] = [answer_rows(*pair) for pair in pairs]
        if layers is not None:
            self.broken.add("a")
            self.past.add("broken-off")
        if generated := op.get("generate"):
            answer |= ask(lambda: cache.extend(generated))
        return answer

    def close(self, op: Op) -> Answer:
        is_untouched = self.cache.computed <= self.reused
        request, before = self.cache.request, self.list_points()
        answer = ask(self.cache.close)
        if "error" in answer:
            return answer
        if request:
            self.tell(request[: max(1, answer["result"])])
        self.note_evictions(before)
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

    def free(self, op: Op) -> Answer:
        answer = ask(self.cache.free)
        if "error" in answer:
            return answer
        self.past = {"freed"}
        return self.describe_layers()

    def limit(self, op: Op) -> Answer:
        assert self.trie, "a session has no limit"
        trie, before = self.trie, self.list_points()
        answer = ask(lambda: trie.set_limit(op["bytes"]))
        self.note_evictions(before)
        return answer

    # --- the open request ---------------------------------------------------------------

    def is_open(self, user: str = "a") -> bool:
        return self.cache.request is not None

    def get_request(self, user: str = "a") -> list[int]:
        return self.cache.get_request()

    def get_remaining(self, user: str = "a") -> list[int]:
        request = self.cache.request
        return [] if request is None else request[self.cache.computed :]

    def is_broken(self, user: str) -> bool:
        return bool(self.broken)

    def draw_user(self, source: Source) -> dict[str, str]:
        return {}

    def draw_new_user(self, source: Source) -> dict[str, str] | None:
        return None if self.is_open() else {}

    # --- what is held -------------------------------------------------------------------

    def get_tags(self, tokens: Path) -> list[int]:
        """The tags of a conversation.

        A token that was never computed behind the same tokens gets the next free tag.
        """
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

    def get_offsets(self) -> list[int | None]:
        return [None if layer is None else layer.offset for layer in self.cache.layers]

    def describe_layers(self) -> Answer:
        """The offset of each layer, and what it holds."""
        answer: Answer = {"offsets": self.get_offsets()}
        if self.rows:
            layers = self.cache.layers
            answer["caches"] = [answer_tags(one.cache) if one else {} for one in layers]
        return answer

    def describe_store(self) -> Answer:
        """The size of what is stored."""
        if self.trie:
            return {"tokens": self.trie.count_tokens(), "bytes": self.trie.count_bytes()}
        return {"tokens": len(self.stored)}

    def list_held(self) -> Sequence[Held]:
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
        """The conversation that a session stores."""
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
        points, behind = self.trie.points, defaultdict[Tokens, list[Tokens]](list)
        for path, parent in self.trie.get_parents().items():
            behind[parent].append(path)
        return {
            path: [one for one in paths if points[one].used < points[path].used]
            for path, paths in behind.items()
            if path and len(paths) > 1 and points[path].captured
        }

    def list_points(self) -> dict[Path, bool]:
        """path → whether anything was captured there."""
        points = self.trie.points if self.trie else {}
        return {path: bool(point.captured) for path, point in points.items()}

    def note_evictions(self, before: Mapping[Path, bool]) -> None:
        after = self.list_points()
        if any(path not in after for path in before):
            self.past.add("evicted")
        if any(captured and not after.get(path) for path, captured in before.items()):
            self.past.add("capture-evicted")
        trie = self.trie
        if trie and trie.limit is not None and trie.count_bytes() > trie.limit:
            self.past.add("over-the-limit")


def answer_rows(layer: Layer | None, begin: int | None) -> Answer:
    """Finds what the rows of a layer see from position `begin` on, if there are any."""
    if layer is None or begin is None or layer.offset <= begin:
        return {}
    return {"visible": get_rows_visible(layer.cache, begin)}
