"""Defines the config of prefix programs, and the base classes of model and system."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.harness.backends.interface import STATISTICS
from lockstep.harness.contracts.answers import ask_backend
from lockstep.harness.contracts.layer.model import CONFIG as LAYER_CONFIG
from lockstep.harness.contracts.layer.model import open_cache
from lockstep.harness.contracts.layer.model import why_illegal_config as why_illegal_layer
from lockstep.harness.contracts.memory import count_state_bytes, count_token_bytes
from lockstep.harness.contracts.operation import Answer, Config, Op
from lockstep.harness.contracts.system import Setup, System
from lockstep.harness.contracts.unified.model import CONFIG as UNIFIED_CONFIG
from lockstep.harness.contracts.unified.model import NEEDS, SIMPLE
from lockstep.harness.contracts.unified.model import (
    why_illegal_config as why_illegal_unified,
)
from lockstep.harness.core.document import MAX_POSITION, Schema, integer, optional
from lockstep.harness.core.payload import Margins, merge_margins
from lockstep.reference.layers import Layer, count_common

# --- the config: fields and rules, and the configs of the caches below ------------------


CONVERSATIONS = ("session", "trie")
"""The kinds with one cache for each layer; slots have one cache for all layers."""

KINDS = (*CONVERSATIONS, "slots")

LAYERS: Mapping[str, Sequence[str]] = {"kv": (), "rotating": ("window",), "state": ()}
"""Cache under a session or a trie → the sizes after its name, as in "rotating:4"."""

POOLED: Mapping[str, Sequence[str]] = {name: NEEDS.get(name, ()) for name in SIMPLE}
"""Cache under slots → the sizes after its name, as in "swa-memory:2:5"."""

SIZES = {**LAYERS, **POOLED}

DIMENSIONS = ("heads", "key_dim", "value_dim", "conv_width", "dtype", "special_numbers")

CONFIG: Mapping[str, Schema] = {
    "kind": {"enum": [*KINDS]},
    "layers": {
        "type": "array",
        "minItems": 1,
        "maxItems": 8,
        "items": {
            "type": ["string", "null"],
            "pattern": "^(" + "|".join(SIZES) + r")(:[0-9]{1,5}){0,2}(?![\s\S])",
        },
        "default": ["kv"],
    },
    "limit": optional(integer(0, 1 << 40)),
    "interval": optional(integer(1, MAX_POSITION)),
    "slots": {**integer(1, 8), "default": 1},
    "context": {**integer(1, 1024), "default": 16},
    "keep": {**integer(0, 1023), "default": 0},
    "several_users": {"type": "boolean", "default": False},
    "step": {**integer(1, 4096), "default": 256},
    **{name: UNIFIED_CONFIG[name] for name in (*DIMENSIONS, "shift", "scope")},
}
"""`layers` lists the cache of each layer, null for a layer without a cache. Under slots,
`layers` lists the caches of a wrapper, or the only cache. `limit` is in bytes."""

OWNERS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("slots", "context", "keep", "several_users", "shift"), ("slots",)),
    "limit": ("trie",),
    "interval": ("trie", "slots"),
}
"""Field that some kinds do not have → the kinds that have it."""

# --- rules ------------------------------------------------------------------------------


def why_illegal_config(config: Config) -> str | None:
    """Returns the broken rule if the fields of a config do not fit together, else
    None."""
    kind = config["kind"]
    for name, owners in OWNERS.items():
        if kind not in owners and config[name] != CONFIG[name].get("default"):
            return (
                f"{name} is a field of {' and '.join(owners)} only; leave it out for"
                f" {kind}"
            )
    for spec in config["layers"]:
        if reason := why_illegal_spec(spec, kind):
            return reason
    if kind != "slots":
        layers = (get_layer_config(config, spec) for spec in config["layers"] if spec)
        return next(filter(None, map(why_illegal_layer, layers)), None)
    if config["interval"] is not None and "recurrent" not in config["layers"]:
        return (
            "interval is a field of recurrent caches only; leave it out, or give these"
            " slots such a cache"
        )
    if config["keep"] >= config["context"]:
        return (
            f"keep must be less than context, but keep is {config['keep']} and context"
            f" is {config['context']}"
        )
    return why_illegal_unified(get_unified_config(config))


def why_illegal_spec(spec: str | None, kind: str) -> str | None:
    """Returns the broken rule if an entry of `layers` is invalid, else None."""
    if spec is None:
        return (
            "slots need a cache in every layer, but a layer is null"
            if kind == "slots"
            else None
        )
    name, *sizes = spec.split(":")
    if name not in (POOLED if kind == "slots" else LAYERS):
        return f"{kind} cannot have a layer of kind {name}"
    if len(sizes) != len(SIZES[name]):
        return f'"{spec}" is not a layer; write {":".join((name, *SIZES[name]))}'
    return None


# --- the caches below -------------------------------------------------------------------

CHECKPOINTS = 4
"""The number of checkpoints that a recurrent cache keeps for each state."""

LAYER_DEFAULTS, UNIFIED_DEFAULTS = (
    {name: schema.get("default") for name, schema in schemas.items()}
    for schemas in (LAYER_CONFIG, UNIFIED_CONFIG)
)
"""Defaults of the layer and the unified contract, for fields not in CONFIG."""


def parse_layer(spec: str) -> dict[str, Any]:
    """Parses "rotating:4" into {"kind": "rotating", "window": 4}."""
    name, *sizes = spec.split(":")
    return {"kind": name, **dict(zip(SIZES[name], map(int, sizes), strict=True))}


def get_layer_config(config: Config, spec: str) -> dict[str, Any]:
    """Makes a complete config of the layer contract for one layer."""
    fields = {name: config[name] for name in (*DIMENSIONS, "step")}
    return {**LAYER_DEFAULTS, **fields, **parse_layer(spec)}


def get_unified_config(config: Config) -> dict[str, Any]:
    """Makes a complete config of the unified contract for the cache under the slots."""
    unified = {**UNIFIED_DEFAULTS, "sequences": config["slots"]}
    unified |= {name: config[name] for name in (*DIMENSIONS, "shift")}
    unified |= dict.fromkeys(("capacity", "batch"), config["context"])
    if config["interval"] is not None:
        unified |= {"interval": config["interval"], "checkpoints": CHECKPOINTS}
    layers = [parse_layer(spec) for spec in config["layers"]]
    if len(layers) == 1:
        return {**unified, **layers[0]}
    return {**unified, "kind": "wrapper", "caches": layers}


def open_layers(config: Config) -> list[Layer | None]:
    """Opens the reference of each layer under a session or a trie; None for no cache."""
    sizes = count_token_bytes(config), count_state_bytes(config)
    return [
        Layer(open_cache(get_layer_config(config, spec)), *sizes) if spec else None
        for spec in config["layers"]
    ]


# --- drawing ----------------------------------------------------------------------------

MODELS: Sequence[Sequence[str | None]] = (
    ["kv"],
    ["kv", "rotating:4"],
    ["kv", "state"],
    ["rotating:2"],
    ["kv", None, "rotating:3", "state"],
    ["state"],
    ["kv", "kv"],
    ["rotating:8", "kv"],
    ["state", "rotating:1"],
    ["rotating:5", "rotating:2"],
    ["rotating:2", "state"],
    [None, "kv"],
    [None, "kv", "rotating:3"],
    [None],
)
"""Layers under a session or a trie, in the combinations that models use."""

POOLS: Sequence[Sequence[str]] = (
    ["causal"],
    ["swa:2"],
    ["causal", "swa:3"],
    ["swa-memory:2:5"],
    ["recurrent"],
    ["chunked:3"],
    ["causal", "recurrent"],
    ["causal", "encoder"],
    ["swa:6"],
)
"""Caches under slots, in the combinations that models use."""

CHOICES: Mapping[str, Sequence[Any]] = {
    "slots": (1, 2, 3, 2, 4),
    "context": (8, 4, 5, 6, 12, 16, 3),
    "keep": (0, 1, 2, 3, 0),
    "several_users": (False, True),
    "step": (4, 1, 2, 256),
    "heads": (1, 2, 1),
    "key_dim": (4, 6),
    "value_dim": (4, 6),
    "conv_width": (4, 2),
    "dtype": ("float32", "float16", "bfloat16"),
    "shift": (True, True, True, False),
}
"""Field → the values that are drawn for it, the simplest first."""

LIMITS = (None, None, None, 24, 8, 14, 40, 3, 24, 14, 0)
"""Limits of a trie, each as the number of tokens of a path with this size; None for no
limit. Most limits are small, so that evictions are frequent."""

TOKENS_PER_CAPTURE = 6
"""Assumed average distance between the captures on a path, in tokens."""


def count_path_bytes(config: Config, tokens: int) -> int:
    """Estimates the bytes of a stored path with `tokens` tokens and its captures."""
    total = 0
    for layer in filter(None, open_layers(config)):
        captures = 1 if layer.can_be_cut else 1 + tokens // TOKENS_PER_CAPTURE
        total += layer.count_bytes(0, tokens) * captures
    return total


def get_token_bytes(config: Config) -> int:
    """Counts the bytes of one token in all layers."""
    return sum(layer.count_bytes(0, 1) for layer in filter(None, open_layers(config)))


# --- the reference model ----------------------------------------------------------------


MOST_TOLD = 24
"""The number of latest conversations from which new requests are drawn."""

Path = Sequence[int]
"""The tokens of a conversation, from its first token on."""

COUNTS = ("requests", "hits", "asked", "reused")
"""The fields of `Statistics` that count requests and their tokens."""


PrefixModel = Any
"""`ConversationModel` or `SlotsModel`; see `RequestModel`."""

PrefixSystem = Any
"""`ConversationSystem` or `SlotsSystem`; see `RequestSystem`."""


class RequestModel:
    """Base class of the references of sessions, tries and slots.

    Each operation calls the method named in its `act`, or the method with its own name:

    * begin: opens a request.
    * feed: computes a pass, in all layers or in the first `layers` layers, and adds the
      generated tokens.
    * close: ends a request; used by the operations close and cancel.
    * refuse: makes the caches of the layers refuse once to go back.

    A reference also has these methods:

    * is_open(user): tells whether a user has an open request.
    * get_request(user), get_remaining(user): return the tokens of the open request, and
      its tokens that are not computed yet.
    * draw_user(source): draws the field `user` for a user with an open request.
    * draw_new_user(source): draws the field `user` for a user who can begin a request
      now; None if there is no such user.
    * list_stored(), get_oldest(): return the stored conversations that a request can
      reuse, and the least recently used conversation.
    * describe_store(): returns the size of all stored conversations.

    Args:
        config: a complete config.
        rows: whether answers list the tokens that each row sees. False saves time while
            programs are drawn.

    Attributes:
        tag: the tag of the next token.
        fed: the tags of the last pass; may be empty if `rows` is false.
        broken: the users whose last pass was broken off.
        past: recent events, for the abstract states.
        told: the latest conversations, from which new requests are drawn.
        closed: the tokens that were stored when a request ended, the latest first.
        alphabet: the tokens that are drawn.
        reach: the maximum length of drawn requests.
        counts: the number of opened requests, the number of requests that reused a token,
            the number of tokens in requests, and the number of reused tokens; see
            `COUNTS`.
    """

    has_users = False
    """Whether each request belongs to a user. With users, an operation on a request that
    is not open is skipped; without users, it is an invalid call."""

    def __init__(self, config: Config, rows: bool = True) -> None:
        self.config, self.rows = config, rows
        self.tag = 0
        self.fed: Sequence[int] = ()
        self.broken: set[str] = set()
        self.past: set[str] = set()
        self.told: deque[list[int]] = deque(maxlen=MOST_TOLD)
        self.closed: deque[Path] = deque()
        self.alphabet: Path = (1, 2, 3)
        self.reach = 12
        self.counts = dict.fromkeys(COUNTS, 0)

    def count_request(self, tokens: int, remaining: int) -> None:
        """Counts a request; `remaining` of its tokens are not computed yet."""
        reused = tokens - remaining
        for name, counted in zip(COUNTS, (1, reused > 0, tokens, reused), strict=True):
            self.counts[name] += counted

    def is_broken(self, user: str) -> bool:
        """Tells whether the last pass of a user's request was broken off."""
        return user in self.broken

    def list_partings(self) -> Mapping[Path, Sequence[Path]]:
        """Returns path → longer paths, for each captured path at which conversations
        branch.

        The longer paths are the stored paths that were used before the captured path.
        """
        return {}

    def get_facts(self, op: Op) -> Mapping[str, int | None]:
        tokens = op.get("tokens", [])
        common = [(count_common(tokens, path), len(path)) for path in self.closed]
        sizes = (size for shared, size in common if shared == len(tokens))
        latest = next(sizes, None)
        matched = max((shared for shared, _ in common), default=0)
        whole = max((size for shared, size in common if shared == size), default=0)
        return {
            "beyond": None if latest is None else latest - len(tokens),
            "matched": None if latest is not None else matched,
            "whole": whole,
            "asked": len(tokens),
        }


# --- the system under test --------------------------------------------------------------

NO_TOKEN = -1

CHANGE: Op = {"op": "change"}
CHANGES = {CHANGE["op"]}
"""Stands for all operations of a prefix cache; each may write to the caches below."""


class RequestSystem:
    """The cache of one program in a backend.

    The system has a method for each operation, like the model. Each method takes an
    additional argument: the reference after the operation.

    Attributes:
        builds_on: whether the backend uses caches that the harness passes to it.
        below: the systems of the caches below.
        given: the config with which the cache was opened.
    """

    cache: Any
    given: Config
    below: Sequence[System]

    def __init__(self, setup: Setup) -> None:
        self.backend, self.config = setup.backend, setup.config
        self.declared, self.compared = setup.declared, setup.compared
        self.builds_on = self.declared.builds_on

    def open(self, caches: Sequence[Any], below: Sequence[Any]) -> None:
        """Opens the cache.

        Args:
            caches: the caches that the harness passes to the backend.
            below: the configs of all caches below: of `caches`, and of the caches that
                the backend creates.
        """
        self.given = {
            **self.config,
            "poison": self.backend.poison,
            "below": below,
            "caches": caches if self.builds_on else None,
        }
        self.cache = self.backend.open(self.given)

    def ask(self, call: Callable[[], Any]) -> Answer:
        """Calls the backend, which may refuse the call; see `ask_backend`."""
        return ask_backend(call, self.backend.errors)

    def lend(self, call: Callable[[list[int]], Any], tokens: Sequence[int]) -> Answer:
        """Calls the backend with a list of tokens, and overwrites the list after the
        call."""
        lent = list(tokens)
        answer = self.ask(lambda: call(lent))
        lent[:] = [NO_TOKEN] * len(lent)
        return answer

    def statistics(self, op: Op, model: Any) -> Answer:
        counted = self.cache.get_statistics()
        return {name: getattr(counted, name) for name in STATISTICS}

    def tell_held(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """See `System.tell_held`."""
        return {}

    def tell_layout(self) -> None:
        for system in self.below:
            system.tell_layout()

    @property
    def margins(self) -> Margins:
        return merge_margins(*(system.margins for system in self.below))

    def check_aliases(self, op: Op) -> None:
        for system in self.below:
            system.check_aliases(CHANGE)
