"""Defines the config of a unified program and the reference model of its cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from typing import Any, NamedTuple

from lockstep.harness.contracts.operation import (
    Answer,
    Config,
    Held,
    HeldToken,
    Op,
    agrees,
    ask,
    choose,
    list_allowed,
)
from lockstep.harness.core.document import (
    DIMENSION,
    DTYPE,
    MAX_POSITION,
    SCOPE,
    VARIANT,
    Schema,
    integer,
    optional,
)
from lockstep.reference.batch import Batch
from lockstep.reference.causal import CausalCache
from lockstep.reference.encoder import EncoderCache
from lockstep.reference.recurrent import RecurrentCache, get_place
from lockstep.reference.rope import list_axes
from lockstep.reference.token import SharedToken
from lockstep.reference.wrapper import WrapperCache

Part = CausalCache | EncoderCache
"""A cache that has layers: the only cache, or a member of a wrapper."""

SLIDING = ("swa", "swa-memory")
CAUSAL = ("causal", *SLIDING, "chunked")
SIMPLE = (*CAUSAL, "encoder", "recurrent")

IMAGE = 3
"""The number of vectors that the encoder makes from an image. The tags of these vectors
follow the tags of the rows."""

MAX_SEQUENCES = 64
MAX_ROWS = 1024
"""The maximum number of rows of a pass."""

MAX_STORED = 1 << 26
"""The maximum number of floats that a cache may store: 256 MiB in float32."""

LIMIT: Schema = optional(integer(0, MAX_POSITION))
SIZES: Mapping[str, Schema] = {"window": LIMIT, "memory": LIMIT, "chunk": LIMIT}

CONFIG: Mapping[str, Schema] = {
    "kind": {"enum": [*SIMPLE, "wrapper"]},
    **SIZES,
    "sequences": {**integer(1, MAX_SEQUENCES), "default": 1},
    "capacity": {**integer(1, MAX_POSITION), "default": 16},
    "batch": {**integer(1, MAX_ROWS), "default": 4},
    "caches": {
        "type": "array",
        "maxItems": 4,
        "default": [],
        "items": {
            "type": "object",
            "properties": {
                "kind": {"enum": [*SIMPLE]},
                **SIZES,
                "capacity": integer(1, MAX_POSITION),
            },
            "required": ["kind"],
            "additionalProperties": False,
        },
    },
    "slots": optional(integer(1, MAX_SEQUENCES)),
    "interval": optional(integer(0, MAX_POSITION)),
    "checkpoints": {**integer(1, 16), "default": 1},
    "layers": {**integer(1, 4), "default": 1},
    "heads": {**integer(1, 64), "default": 1},
    "key_dim": {**DIMENSION, "default": 4},
    "value_dim": {**DIMENSION, "default": 4},
    "conv_width": {**integer(2, 16), "default": 4},
    "rope_bases": {
        "type": "array",
        "minItems": 1,
        "maxItems": 16,
        "items": integer(2, 10_000_000),
        "default": [10_000],
    },
    "sections": optional(
        {"type": "array", "minItems": 1, "maxItems": 512, "items": integer(1, 512)}
    ),
    "dtype": DTYPE,
    "special_numbers": {"type": "boolean", "default": False},
    "mask_dtype": DTYPE,
    "cache_padding": {**integer(1, 1024), "default": 1},
    "mask_padding": {**integer(1, 1024), "default": 1},
    "permuted_values": {"type": "boolean", "default": False},
    "small": optional(integer(0, MAX_POSITION)),
    "variant": VARIANT,
    "at_once": {"type": "boolean", "default": False},
    "scope": SCOPE,
    "shift": {"type": "boolean", "default": True},
}
"""The fields that only the unified contract has:

* `caches`: the caches of a wrapper, whose sizes override the wrapper's sizes.
* `slots`, `interval`, `checkpoints`: the sizes of a recurrent cache.
* `rope_bases`: the rotation bases; the layers take the bases in turn.
* `sections`: the numbers of pairs of a key that are rotated by t, y, x, t, … in turn;
  null for positions of one axis.
* `permuted_values`: whether the columns of V are its last axis.

Four fields change no answer:

* `at_once`: one call of `put_all` puts all layers of a pass.
* `small`: the maximum size, in numbers, of work for which a cache takes its simpler path;
  null for the cache's own limits.
* `variant`: the index of one of several equivalent code paths; 0 for the default choice.
* `scope`: see `Backend.scopes`."""


def why_illegal_config(config: Config) -> str | None:
    """Returns the broken rule if the fields of a config do not fit together, else
    None."""
    if config["shift"] and config["key_dim"] % 2:
        return f"key_dim must be even with shift, but is {config['key_dim']}"
    if (config["kind"] == "wrapper") != bool(config["caches"]):
        return "caches must be set for a wrapper, and only for a wrapper"
    if config["kind"] == "wrapper" and any(config[name] for name in SIZES):
        return f"a wrapper has no {', '.join(SIZES)} of its own; set them in its caches"
    members = list_part_configs(config)
    if config["sections"] and not {member["kind"] for member in members} <= {*CAUSAL}:
        return f"only caches of the kinds {', '.join(CAUSAL)} have sections"
    if config["sections"]:
        try:
            list_axes(config["sections"], config["key_dim"] // 2)
        except ValueError as error:
            return str(error)
    for member in members:
        reason = why_illegal_part(member)
        if reason:
            return reason
    if all(member["kind"] != "recurrent" for member in members):
        for name in RECURRENT:
            if config[name] != CONFIG[name]["default"]:
                return (
                    f"{name} is a field of recurrent caches only; leave it out for"
                    f" {config['kind']}"
                )
    numbers = sum(map(count_numbers, members))
    if numbers > MAX_STORED:
        return (
            f"the cache would store {numbers:,} numbers; at most {MAX_STORED:,} are"
            " allowed"
        )
    return None


RECURRENT = ("slots", "interval", "checkpoints")
"""The fields of recurrent caches only."""

NEEDS = {"swa": ("window",), "swa-memory": ("window", "memory"), "chunked": ("chunk",)}
MAY_HAVE = {"recurrent": ("window", "memory")}
"""Kind → the required sizes (`NEEDS`), and the sizes that a backend may additionally
declare (`MAY_HAVE`)."""


def why_illegal_part(config: Config) -> str | None:
    kind = config["kind"]
    needs = NEEDS.get(kind, ())
    for name in SIZES:
        if name in needs and config[name] is None:
            return f"{kind} needs a {name} (0 for no limit)"
        if name not in (*needs, *MAY_HAVE.get(kind, ())) and config[name] is not None:
            return f"{name} is not a field of {kind} caches; leave it out"
    try:
        open_part(config)
    except ValueError as error:
        return str(error)
    return None


def count_numbers(config: Config) -> int:
    """Counts the numbers that the cache of a part can store."""
    cache, key_dim, value_dim = open_part(config), config["key_dim"], config["value_dim"]
    room = cache.room if isinstance(cache, CausalCache) else IMAGE
    numbers = room * (key_dim + value_dim)
    if isinstance(cache, RecurrentCache):
        states = cache.slot_count * (1 + cache.checkpoint_count * bool(cache.interval))
        numbers += states * key_dim * (value_dim + config["conv_width"])
    return int(numbers * config["layers"] * config["heads"])


def list_part_configs(config: Config) -> list[Mapping[str, Any]]:
    """Makes a complete config for each part."""
    if config["kind"] != "wrapper":
        return [config]
    plain = {**config, **dict.fromkeys(SIZES), "caches": []}
    return [{**plain, **cache} for cache in config["caches"]]


def open_part(config: Config) -> Part:
    """Opens the reference of a part; raises ValueError for inconsistent sizes."""
    sizes = config["sequences"], config["capacity"], config["batch"]
    padding, shift = config["cache_padding"], config["shift"]
    if config["kind"] == "encoder":
        return EncoderCache(config["sequences"], config["batch"])
    if config["kind"] == "recurrent":
        slots, interval = config["slots"], config["interval"]
        return RecurrentCache(
            *(*sizes, slots, interval, config["checkpoints"], padding, shift),
            *(config["window"], config["memory"]),
        )
    window, memory, chunk = config["window"], config["memory"], config["chunk"]
    if config["kind"] == "swa":
        memory = window
    return CausalCache(*sizes, window, memory, chunk, padding, shift)


Place = tuple[int, int, int]
"""The coordinates (t, y, x) of a token; t is its position."""


class Turns(NamedTuple):
    """How often a key was rotated, and the total distance."""

    times: int = 0
    distance: int = 0


NEVER = Turns()


class Saved(NamedTuple):
    """The result of the cache's `save`, and `turns` and `fixed` of the model."""

    content: Any
    turns: Sequence[Mapping[int, Turns]]
    fixed: Collection[int]


class UnifiedModel:
    """The reference cache of one program.

    Attributes:
        parts: the caches that have layers: the caches of a wrapper, or the cache itself.
        causal: the parts that hold tokens.
        turns: for each part, a mapping from tag to the rotations of the token's key.
        past: the events since the last pass.
        ever: all events.
        moved: the sequence whose keys a removal has moved since the last pass.
        copied: the sequence that received a copied prefix since the last pass.
        tags: the tags of the rows of the last pass.
        fixed: the indices of the encoder parts that have stored an image; the first image
            determines the shape of all later images.
        others: models with alternative contents. After a wrapper refuses a pass, its
            content is unknown until an answer shows it.
        unclear: the sequence whose removal the last operation refused; else None.
        choices: during an operation, the correct answers, each with the resulting model;
            empty if only one content is possible.
    """

    def __init__(self, config: Config, rows: bool = True) -> None:
        self.config, self.rows = config, rows
        self.tag = 0
        configs = list_part_configs(config)
        self.put_parts([open_part(member) for member in configs])
        self.kinds = [member["kind"] for member in configs]
        self.turns: list[dict[int, Turns]] = [{} for _ in self.parts]
        self.saved: dict[str, Saved] = {}
        self.fixed: set[int] = set()
        self.batch: Batch | None = None
        self.reserved = False
        self.tags = range(0)
        self.past: set[str] = set()
        self.ever: set[str] = set()
        self.written = 0
        self.moved: int | None = None
        self.copied: int | None = None
        self.unclear: int | None = None
        self.others: list[UnifiedModel] = []
        self.choices: list[tuple[Answer, UnifiedModel]] = []

    # --- contents that are possible -----------------------------------------------------

    def put_parts(self, members: Sequence[Part]) -> None:
        self.parts = list(members)
        self.causal = [member for member in members if isinstance(member, CausalCache)]
        is_wrapper = self.config["kind"] == "wrapper"
        self.cache = WrapperCache(self.parts) if is_wrapper else self.parts[0]

    def fork(self, members: Sequence[Part]) -> UnifiedModel:
        """Returns a copy of this model with other parts and the same history."""
        forked = copy(self)
        forked.put_parts(members)
        forked.turns = [dict(turns) for turns in self.turns]
        forked.fixed, forked.past, forked.ever = {*self.fixed}, {*self.past}, {*self.ever}
        forked.others = []
        return forked

    def spread(self, batch: Batch) -> None:
        """Sets `others` to the contents that a wrapper may have after a refused pass."""
        assert isinstance(self.cache, WrapperCache)
        outcomes = map(self.fork, self.cache.list_outcomes(batch))
        _, *self.others = {str(model.list_tokens()): model for model in outcomes}.values()

    def list_tokens(self) -> list[Sequence[SharedToken]]:
        return [get_tokens(member) for member in self.parts]

    def follow(self, ask: Callable[[UnifiedModel], Answer]) -> Answer:
        """Runs an operation on every possible content.

        Returns:
            The answer; if the contents lead to different answers, all these answers.
            `settle` then drops the contents that do not match the observed answer.
        """
        self.unclear = None
        if not self.others:
            return ask(self)
        outcomes: dict[str, tuple[Answer, UnifiedModel]] = {}
        for model in (self.fork(self.parts), *self.others):
            model.tag = self.tag
            answer = ask(model)
            for outcome in (model, *model.others):
                key = str([answer, outcome.list_tokens()])
                outcomes.setdefault(key, (answer, outcome))
            model.others = []
        self.choices = list(outcomes.values())
        taken = [model for answer, model in self.choices if "error" not in answer]
        self.become(taken or [model for _, model in self.choices])
        return choose(list({str(answer): answer for answer, _ in self.choices}.values()))

    def become(self, models: Sequence[UnifiedModel]) -> None:
        """Takes over the content of the first model; the other models become `others`."""
        chosen, *others = models
        vars(self).update({**vars(chosen), "others": others, "choices": self.choices})

    def settle(self, observed: Answer) -> None:
        """Drops the contents that do not match the observed answer."""
        choices, self.choices = self.choices, []
        possible = [
            model
            for answer, model in choices
            if any(agrees(expected, observed) for expected in list_allowed(answer))
        ]
        if possible:
            self.become(possible)

    # --- what is held -------------------------------------------------------------------

    def list_live(self) -> Mapping[int, int]:
        return {
            token.tag: token.position
            for member in self.parts
            for token in list_places(member)
        }

    def list_held(self, op: Op) -> list[Held]:
        members = enumerate(zip(self.kinds, self.parts, strict=True))
        return [
            (f"cache {number} ({kind})", list_places(member))
            for number, (kind, member) in members
        ]

    def get_facts(self, op: Op) -> Mapping[str, int]:
        return {"room": self.get_room(), "rows": len(op.get("positions", ()))}

    def get_end(self, sequence: int) -> int:
        """Returns 1 + the largest coordinate of a sequence that any part stores."""
        return max([member.get_end(sequence) for member in self.causal], default=0)

    def list_places(self, sequence: int) -> list[Place]:
        """Lists the places of the tokens of a sequence, sorted."""
        parts = (member.get_tokens(sequence) for member in self.causal)
        return sorted({token.place for tokens in parts for token in tokens})

    def list_resumptions(self, sequence: int) -> list[int]:
        """Lists, for each checkpoint of a sequence's states, the next position."""
        states = (member for member in self.parts if isinstance(member, RecurrentCache))
        slots = [member.slots[sequence] for member in states if sequence in member.slots]
        return [get_place(read) + 1 for slot in slots for read in slot.checkpoints]

    def list_shared_states(self) -> list[list[int]]:
        """Lists, for each shared state, the sequences that share the state."""
        shared = []
        for member in self.parts:
            if isinstance(member, RecurrentCache):
                owners: dict[int, list[int]] = defaultdict(list)
                for owner, slot in member.slots.items():
                    owners[id(slot)].append(owner)
                shared += [together for together in owners.values() if len(together) > 1]
        return shared

    def get_room(self) -> int:
        """Counts the tokens that fit without eviction."""
        rooms = [member.room - len(member.tokens) for member in self.causal]
        return min(rooms, default=self.config["batch"])

    # --- what is asked ------------------------------------------------------------------

    ask = staticmethod(ask)

    def forward(self, op: Op) -> Answer:
        """Announces a pass; returns the tokens that each row sees."""
        batch = get_batch(op)
        tags = range(self.tag, self.tag + len(batch))
        answer = self.ask(lambda: self.cache.forward(batch, tags, op["reserve"]))
        if answer:
            if answer.get("error") != "usage":
                self.batch = None
                self.past.add("forward-failed")
            return answer
        self.batch, self.reserved, self.tags = batch, op["reserve"], tags
        self.past, self.moved, self.copied = set(), None, None
        self.past |= {"after-exception"} if op["except"] else set()
        if op["reserve"]:
            self.past.add("after-reserve")
            return {}
        if op["multimodal"]:
            image = range(tags.stop, tags.stop + IMAGE)
            for number, member in enumerate(self.parts):
                if isinstance(member, EncoderCache):
                    member.put(image)
                    self.fixed.add(number)
        self.written += len(tags)
        return self.answer_pass(batch) if self.rows else {}

    def open(self, config: Config) -> None:
        """Opens an additional cache and discards it."""
        for member in list_part_configs(config):
            open_part(member)

    def save(self) -> Saved:
        return Saved(self.cache.save(), deepcopy(self.turns), {*self.fixed})

    def load(self, saved: Saved, fresh: bool) -> None:
        self.cache.load(saved.content)
        self.turns = [dict(turns) for turns in saved.turns]
        self.fixed = {*saved.fixed} | (set() if fresh else self.fixed)
        self.past.add("loaded")
        self.close()

    def answer_pass(self, batch: Batch) -> Answer:
        """Returns the answer of the open pass."""
        answers = [answer_part(member, batch) for member in self.parts]
        return {"caches": answers} if self.config["kind"] == "wrapper" else answers[0]

    def list_keys(self) -> list[Mapping[int, int]]:
        """Lists tag → position for each part; empty if keys do not depend on
        positions."""
        return [
            {tag: position for tag, position, *_ in get_tokens(member)}
            for member in self.parts
        ]

    def note_turns(self, sequence: int, keys_before: Sequence[Mapping[int, int]]) -> None:
        """Records the keys that a removal rotated.

        Args:
            sequence: the sequence of the removal.
            keys_before: the result of `list_keys` before the removal.
        """
        for keys, turns, old in zip(
            self.list_keys(), self.turns, keys_before, strict=True
        ):
            for tag, position in keys.items():
                if distance := abs(position - old[tag]):
                    count, total = turns.get(tag, NEVER)
                    turns[tag] = Turns(count + 1, total + distance)
                    self.moved = sequence
                    self.ever.add("shifted-twice" if count else "shifted")

    def close(self, error: str | None = None) -> None:
        """Ends the open pass after an operation that changes the cache.

        A refusal ends the pass in a wrapper, because some caches may have changed before
        another cache refused. In other kinds of caches, a refusal does not end the pass.
        An invalid call never ends the pass.
        """
        is_wrapper = self.config["kind"] == "wrapper"
        if error is None or (is_wrapper and error != "usage"):
            self.batch = None


def count_pass_tags(op: Op) -> int:
    """Counts the tags of a pass: one tag per row, and `IMAGE` tags for the last image."""
    return len(op["positions"]) + IMAGE * bool(op["multimodal"])


def list_fed(ops: Sequence[Op]) -> list[tuple[int, int]]:
    """Lists (position, tag) of the rows of all passes in a program."""
    passes = [(tag, op["positions"]) for tag, op in list_passes(ops)]
    fed = [(at, tag + row) for tag, rows in passes for row, at in enumerate(rows)]
    return [(position, tag) for position, tag in fed if position >= 0]


def list_offsets(ops: Sequence[Op]) -> dict[int, tuple[int, int]]:
    """Lists tag → how far y and x are from the position, for all rows of images."""
    offsets: dict[int, tuple[int, int]] = {}
    for tag, op in list_passes(ops):
        pairs = zip(op["positions"], op.get("coordinates", ()), strict=False)
        offsets |= {tag + row: (y - t, x - t) for row, (t, (y, x)) in enumerate(pairs)}
    return offsets


def list_passes(ops: Sequence[Op]) -> Iterator[tuple[int, Op]]:
    """Yields each pass of a program with the tag of its first row."""
    tag = 0
    for op in ops:
        if op["op"] == "forward":
            yield tag, op
            tag += count_pass_tags(op)


def get_batch(op: Op) -> Batch:
    rows = op["positions"], op["sequences"], op["except"], op["multimodal"]
    return Batch(*rows, op.get("coordinates", ()))


def list_places(member: Part) -> list[HeldToken]:
    if isinstance(member, EncoderCache):
        image = member.stored
        return [HeldToken(tag, image.position) for tag in image.tags] if image else []
    return [
        HeldToken(token.tag, token.position, tuple(sorted(token.sequences)))
        for token in member.tokens
    ]


def get_tokens(member: Part) -> Sequence[SharedToken]:
    return member.tokens if isinstance(member, CausalCache) else ()


def get_visible(member: CausalCache, row: int) -> list[tuple[int, int]]:
    """Lists (position, tag) of the tokens that a row of the open pass sees, sorted."""
    return sorted([(position, tag) for tag, position, *_ in member.visible(row)])


def answer_part(member: Part, batch: Batch) -> Answer:
    """Returns the answer of one part to a pass."""
    if isinstance(member, EncoderCache):
        return {"cached": member.cached, "stored": member.get()}
    answer: Answer = {"visible": [get_visible(member, row) for row in range(len(batch))]}
    if isinstance(member, RecurrentCache):
        answer["states"] = [
            [token.tag for token in member.get_read(sequence)]
            for sequence in member.list_sequences(batch)
        ]
    return answer
