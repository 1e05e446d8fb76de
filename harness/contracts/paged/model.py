"""Defines the config of paged programs and the reference model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd, lcm
from typing import NamedTuple

from lockstep.harness.contracts.layer.model import CONFIG as LAYER_CONFIG
from lockstep.harness.contracts.operation import (
    Answer,
    Config,
    Held,
    HeldToken,
    Op,
    ask,
)
from lockstep.harness.core.document import Schema, integer, optional
from lockstep.reference.paged import (
    Content,
    Covered,
    Group,
    Input,
    PagedCache,
    Request,
    Space,
    Weights,
)

TYPES = ("full", "sliding", "chunked", "state")
HYBRID = "paged-hybrid"
KINDS = (*(f"paged-{item}" for item in TYPES), HYBRID)

MOST_BLOCKS, MOST_LENGTH = 256, 256


def make_group(*types: str, **sizes: Schema) -> Schema:
    """Makes the schema of a group with one of these types and with these sizes; `lags`
    may be missing."""
    properties = {
        "type": {"enum": list(types)},
        "block": integer(1, 16),
        **sizes,
        "layers": integer(1, 4),
    }
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name != "lags"],
        "additionalProperties": False,
    }


CONFIG: Mapping[str, Schema] = {
    "kind": {"enum": list(KINDS)},
    "groups": {
        "type": "array",
        "minItems": 1,
        "maxItems": 4,
        "items": {
            "oneOf": [
                make_group("full", lags={"type": "boolean"}),
                make_group("state"),
                make_group("sliding", "chunked", width=integer(1, 64)),
            ]
        },
        "default": [{"type": "full", "block": 2, "layers": 1}],
    },
    "lags": {"type": "boolean", "default": False},
    "blocks": {**integer(1, MOST_BLOCKS), "default": 12},
    "hash_block": optional(integer(1, 16)),
    "max_length": {**integer(1, MOST_LENGTH), "default": 24},
    "prefix_cache": {"type": "boolean", "default": True},
    "drop_last": {"type": "boolean", "default": False},
    "extra_keys": {"type": "boolean", "default": False},
    "trees": {"type": "boolean", "default": False},
    "lookahead": {**integer(0, 8), "default": 0},
    "host": {**integer(0, 64), "default": 0},
    "aligned": {"type": "boolean", "default": False},
    "admits": {"enum": ["chunk", "prompt", "output"], "default": "chunk"},
    "ahead": {**integer(0, 8), "default": 0},
    "preempts": {"type": "boolean", "default": False},
    "data": {"enum": ["tags", "backend"], "default": "tags"},
    "flight": {**integer(0, 2), "default": 0},
    "overlap": {"type": "boolean", "default": False},
    "ranks": {**integer(1, 8), "default": 1},
    "interleave": {**integer(1, 8), "default": 1},
    "remote": {"type": "boolean", "default": False},
    "reads": {
        "type": "array",
        "maxItems": 4,
        "items": integer(0, 15),
        "default": [],
    },
    **{name: LAYER_CONFIG[name] for name in ("heads", "key_dim", "value_dim")},
    **{name: LAYER_CONFIG[name] for name in ("dtype", "special_numbers", "scope")},
}
"""The config fields:

* `groups`: the groups of layers that attend to the same positions and share a table.
  `block` is the number of tokens of a block; in a state group, `block` is the distance
  between kept states. `width` is the width of a window, the token itself included, or of
  a chunk. If `lags` is true, a step may leave the group out: its layers then neither read
  nor write. From the first token on that they left out, the request has no content in
  the group.
* `lags`: whether groups may have `lags`.
* `blocks`: the number of blocks for requests, over all groups.
* `hash_block`: the length of a hit is a multiple of this number; null for the largest
  number that divides every block size.
* `max_length`: the maximum number of tokens of a request, drafts included.
* `drop_last`: whether the last unit of the longest possible hit is computed again to get
  its outputs (EAGLE).
* `extra_keys`: whether requests may have adapters and extras.
* `trees`: whether several drafts may follow the same token. Each draft has a slot of its
  own. `accept` moves the drafts that it keeps to the slots of their positions.
* `lookahead`: the maximum number of drafts. A step with drafts writes a state after the
  last confirmed token, as every step, and a state after each draft.
* `host`: the number of host blocks, to which device blocks are offloaded; 0 for none.
  A disk counts as more host blocks: no answer and no check depends on where a block
  outside the device is stored.
* `aligned`: whether the backend may shorten or postpone steps so that they end at a
  position where a state is kept.
* `admits`: the tokens that must fit when a request is scheduled: "chunk": those up to the
  end of the step; "prompt": all its known tokens; "output": as many tokens as a request
  may have, which are `max_length`, or fewer if fewer fit into `blocks`.
* `ahead`: the number of further tokens that must fit, for later steps.
* `preempts`: whether the backend may take blocks that are missing for a step from other
  requests, which are not in the step.
* `flight`: the number of launched steps that may be unfinished while the scheduler goes
  on; 0 if each step ends before the next call.
* `overlap`: whether the token that a launched step samples may be scheduled before the
  step has finished, as in asynchronous scheduling. `accept` then only lets the harness
  know the token: the backend is told it by `finish`.
* `remote`: whether requests send content to other caches and receive content. The
  harness acts as the other caches, which requires `data` "tags".
* `data`: "backend" if the backend stores K and V, "tags" if the harness does.
* `ranks`: the number of ranks across which the tokens of each request are distributed
  (decode context parallelism). A block has the same number and the same table entry on
  all ranks. Position p of a "full" group lies on rank (p // `interleave`) mod `ranks`,
  so that a block of `block` positions takes `block` / `ranks` slots of each rank. All
  positions of other groups lie on every rank, as in vLLM
  (`vllm/v1/worker/gpu/block_table.py`).
* `interleave`: the number of consecutive positions on a rank.
* `reads`: for each layer that only reads another layer, the number of that layer. The
  reading layers come after the layers of all groups. In a step, the layers compute one
  after another. A reading layer writes nothing. When it computes, the layer that it reads
  has written the tokens of the step; its queries are at the positions of these tokens,
  and see what the queries of the other layer see.

No field determines which states a state group keeps. The backend chooses, and any choice
leads to allowed hits."""

MOST_REQUESTS = 6

COPYING = {"forked", "rewound"}
"""The events after which a request may have to copy a block before it writes to it."""


def get_unit(config: Config) -> int:
    """Returns the unit of hits: the length of every hit is a multiple of the unit."""
    return int(config["hash_block"] or gcd(*(item["block"] for item in config["groups"])))


def can_lag(config: Config) -> bool:
    """Tells whether a step may leave out a group."""
    return any(group.get("lags") for group in config["groups"])


def list_groups(config: Config) -> list[int]:
    """Returns the number of the group of each layer that writes."""
    groups = enumerate(config["groups"])
    return [number for number, group in groups for _ in range(group["layers"])]


def why_illegal_config(config: Config) -> str | None:
    """Returns the broken rule if the fields of a config do not fit together, else
    None."""
    types = [group["type"] for group in config["groups"]]
    kind = config["kind"]
    if kind == HYBRID and len(set(types)) < 2:
        return "a hybrid needs groups of at least two types"
    if kind != HYBRID and {f"paged-{item}" for item in types} != {kind}:
        return f"{kind} may only have groups of the type {kind.removeprefix('paged-')}"
    if all(group.get("lags") for group in config["groups"]):
        return "a group must not lag"
    if can_lag(config) and not config["lags"]:
        return "a group with lags needs lags in the config"
    for group in config["groups"]:
        if group["block"] % get_unit(config):
            return (
                "hash_block must divide the block of every group:"
                f" {config['hash_block']} does not divide {group['block']}"
            )
    if config["reads"] and config["data"] != "backend":
        return "reads needs K and V in the backend; set data to backend"
    if reason := why_illegal_reads(config):
        return f"reads: {reason}"
    if config["aligned"] and "state" not in types:
        return "aligned needs a group of the type state"
    if config["overlap"] and not config["flight"]:
        return "overlap needs steps in flight; set flight to 1 or more"
    if config["remote"] and config["data"] == "backend":
        return "remote needs data of the harness; set data to tags"
    if config["trees"] and not config["lookahead"]:
        return "trees needs drafts; set lookahead to 1 or more"
    if config["trees"] and set(types) != {"full"}:
        return "trees needs groups of the type full only"
    if reason := why_illegal_ranks(config):
        return f"ranks: {reason}"
    return None


def why_illegal_ranks(config: Config) -> str | None:
    """Returns why the positions cannot be distributed across the ranks, or None."""
    ranks, interleave = config["ranks"], config["interleave"]
    full = [item["block"] for item in config["groups"] if item["type"] == "full"]
    if ranks == 1:
        return "one rank has no interleave; set it to 1" if interleave > 1 else None
    if not full:
        return "only groups of the type full are shared out, and there is none"
    for block in full:
        if block % (ranks * interleave):
            return (
                f"ranks · interleave must divide the block of every full group, but"
                f" {ranks} · {interleave} does not divide {block}"
            )
    if config["data"] != "tags":
        return 'K and V of several ranks are kept by the harness; set data to "tags"'
    if config["trees"]:
        return "drafts of trees would move between ranks; set trees to false"
    return None


def why_illegal_reads(config: Config) -> str | None:
    """Returns why a layer of `reads` cannot read the layer that it names, or None."""
    groups, reads = list_groups(config), config["reads"]
    count = len(groups)
    for layer, source in enumerate(reads, count):
        about = f"layer {layer} reads layer {source}"
        if source >= count + len(reads):
            return f"{about}, which does not exist"
        if source == layer:
            return f"layer {layer} reads itself"
        if source > layer:
            return f"{about}, which computes later"
        if source >= count:
            return f"{about}, which only reads layer {reads[source - count]}; name it"
        if config["groups"][groups[source]]["type"] == "state":
            return f"{about}, which has no K and V"
    return None


def name_group(config: Config, number: int) -> str:
    """Formats a group for reports: "group 0 (full)"."""
    return f"group {number} ({config['groups'][number]['type']})"


class Transfer(NamedTuple):
    """A transfer in progress.

    Attributes:
        request: the request that the transfer was begun for.
        blocks: the number of device blocks that may be held until the transfer ends.
        content: for an offload, the content that all groups had computed when it began;
            None for other transfers, and once the content must not be reused.
        sends: whether the content goes to another cache.
    """

    request: Request
    blocks: int
    content: Content | None
    sends: bool


class Segment(NamedTuple):
    """The tokens of one request in a step, as they were when the step was launched.

    Attributes:
        name, request: the request.
        start, end: the step computes the positions [start, end).
        tags: the tags of the positions [0, end).
        length: the number of tokens; the positions from `length` on are drafts.
        lost: the first position without content in groups that may lag.
        lags: whether the step leaves out these groups.
        contents: the contents of the positions [start, end).
        weights: the weights on which the positions [start, end) depend.
    """

    name: str
    start: int
    end: int
    request: Request
    tags: Sequence[int]
    length: int
    lost: int
    lags: bool
    contents: Sequence[Content]
    weights: Sequence[Weights]

    def count_valid(self, group: Group) -> int:
        """Returns how many of the positions [0, end) have content in a group."""
        return self.lost if group.lags else self.end

    def list_written(self, group: Group) -> list[int]:
        """Lists the tags that a group writes. A position without content gets the tag of
        the first position."""
        valid, positions = self.count_valid(group), range(self.start, self.end)
        return [self.tags[at if at < valid else 0] for at in positions]


Step = Sequence[Segment]


class PagedModel:
    """The reference of one program.

    Args:
        config: a complete config.
        rows: unused; answers do not list rows.

    Attributes:
        tag: the tag of the next token.
        cache: the reference.
        tags: content → its tag. An operation gives new contents the tags from `tag` on.
        past: request → its events, for the abstract states.
        happened: the events of all requests.
        told: the contents of ended requests; the generator lets new requests begin with
            these contents.
        flights: the launched steps, the oldest first.
        lost: for each launched step, the blocks of requests that have released their
            slots since then; a backend may keep these blocks until the step finishes.
        ran: the last step that finished.
        returned: its segments whose requests have kept their slots.
        outputs: for each of its segments, the token that the backend is told; None if
            there is none, or if `accept` tells it later.
        accepted: (name, begin, end) of the drafts that the last `accept` kept.
        leaning: the requests of this step that reuse tokens computed in the same step.
        spans: request → (begin of its latest step, largest end of its slots), to count
            blocks.
        transfers: the transfers in progress, by name.
        copied: the number of blocks that were offloaded so far.
        offloaded: the contents that were copied to host memory.
        away: the offloaded contents that may be partly or completely evicted from the
            device.
        landed: the content of the transfer that ended last, if it was an offload that
            landed and may be reused; else None.
        arrived: (request, begin, end) of the tokens that have just landed and can be
            hit; None if the request has ended.
        withdrawn: the offloaded contents that must not be reused any more.
        saved: the saved contents of the reference, and the saved `offloaded`.
        goes_far: whether the generator draws transfers that lead to loads.
        sampled: request → its number of computed tokens at the first sampling since it
            was given slots or rewound.
    """

    def __init__(self, config: Config, rows: bool = True) -> None:
        self.config, self.rows = config, rows
        groups = [
            Group(item["type"], item.get("width", 0), item.get("lags", False))
            for item in config["groups"]
        ]
        self.blocks = [item["block"] for item in config["groups"]]
        self.unit, self.whole = get_unit(config), lcm(*self.blocks)
        dropped = self.unit if config["drop_last"] else 0
        lengths = range(config["max_length"], 0, -1)
        most = next((n for n in lengths if not self.why_too_long(n)), 0)
        rules = config["prefix_cache"], dropped, config["admits"], most
        self.cache = PagedCache(groups, *rules, config["ahead"], config["overlap"])
        self.tag = 0
        self.tags: dict[Content, int] = {}
        self.past: dict[str, set[str]] = {}
        self.happened: set[str] = set()
        self.told: list[tuple[Space, Sequence[Input]]] = []
        self.leaning: set[str] = set()
        self.flights: list[Step] = []
        self.lost: list[int] = []
        self.ran: Step = []
        self.returned: Step = []
        self.outputs: list[int | None] = []
        self.accepted: list[tuple[str, int, int]] = []
        self.spans: dict[str, tuple[int, int]] = {}
        self.transfers: dict[str, Transfer] = {}
        self.copied = 0
        self.offloaded: list[Content] = []
        self.away: list[Content] = []
        self.landed: Content | None = None
        self.arrived: tuple[str, int, int] | None = None
        self.withdrawn: list[Content] = []
        self.saved: tuple[Sequence[Content], Sequence[Content]] | None = None
        self.goes_far = self.has_loaded = False
        self.sampled: dict[str, int] = {}
        self.last = ""

    @property
    def is_bound(self) -> bool:
        """Whether the program should load blocks (`goes_far`), and has not yet computed a
        token of a loaded request."""
        return self.goes_far and not self.has_loaded

    # --- tags ---------------------------------------------------------------------------

    def name_contents(self, name: str, begin: int) -> None:
        """Assigns tags to the contents of a request from position `begin` on.

        A content that already has a tag keeps the tag.
        """
        request = self.cache.requests[name]
        for number, position in enumerate(range(begin, len(request.known))):
            self.tags.setdefault(request.get_content(position), self.tag + number)

    def get_tag(self, request: Request, position: int) -> int:
        return self.tags[request.get_content(position)]

    def list_tags(self, request: Request, begin: int, end: int) -> list[int]:
        return [self.get_tag(request, position) for position in range(begin, end)]

    def list_seen(self, content: Content, first: int) -> list[int]:
        """Lists the tags of the tokens of a content, from position `first` on."""
        space, inputs = content
        ends = range(first + 1, len(inputs) + 1)
        return [self.tags[space, inputs[:end]] for end in ends]

    def list_live(self) -> Mapping[int, int]:
        """Returns tag → position of all tokens that any request has computed."""
        return {
            self.get_tag(request, position): position
            for request in self.cache.requests.values()
            for position in range(request.computed)
        }

    def list_held(self, op: Op) -> Sequence[Held]:
        """Lists the computed tokens of each request, the request of `op` first.

        For "run" and "finish", lists the tokens once per group for each request of the
        step.
        """
        if op["op"] in ("run", "finish"):
            return [
                (f"request {segment.name}, {name_group(self.config, number)}", tokens)
                for segment in self.returned
                if self.cache.requests.get(segment.name) is segment.request
                for tokens in [self.list_tokens(segment.name)]
                for number in range(len(self.cache.groups))
            ]
        names = sorted(self.cache.requests, key=lambda name: name != op.get("request"))
        return [(f"request {name}", self.list_tokens(name)) for name in names]

    def list_tokens(self, name: str) -> list[HeldToken]:
        request = self.cache.requests[name]
        tags = self.list_tags(request, 0, request.computed)
        return [HeldToken(tag, position) for position, tag in enumerate(tags)]

    # --- steps --------------------------------------------------------------------------

    def launch(self, lags: bool) -> None:
        """Launches the planned step. `lags`: whether it leaves out groups that lag."""
        step = []
        for name in self.cache.step:
            request = self.cache.requests[name]
            start, end, length = request.begun, request.end, len(request.tokens)
            tags = self.list_tags(request, 0, end)
            lost = min([end, *request.skipped, *[start] * lags])
            contents = [request.get_content(at) for at in range(start, end)]
            weights = [request.get_weights(at) for at in range(start, end)]
            more = length, lost, lags, contents, weights
            step.append(Segment(name, start, end, request, tags, *more))
        self.cache.launch(lags)
        self.flights.append(step)
        self.lost.append(0)
        self.leaning.clear()

    def list_returning(self) -> Step:
        """Lists the segments of the oldest launched step whose requests have kept their
        slots."""
        waiting = [request for request, _ in self.cache.flights[0]]
        return [segment for segment in self.flights[0] if segment.request in waiting]

    def finish(self) -> None:
        """Ends the oldest launched step."""
        self.returned, self.ran = self.list_returning(), self.flights.pop(0)
        self.outputs = list(map(self.get_output, self.ran))
        self.lost.pop(0)
        self.cache.finish()

    def get_output(self, segment: Segment) -> int | None:
        """Returns the token of one segment; see `outputs`."""
        if segment not in self.returned:
            return 1  # it must be dropped
        tokens, end = segment.request.tokens, segment.end
        output = tokens[end] if segment.request.told <= end < len(tokens) else None
        assert not isinstance(output, Covered)  # only those of prompts are
        return output

    # --- what is allowed ----------------------------------------------------------------

    def list_hits(self, name: str) -> list[int]:
        """Lists the hits that a waiting request may have, the longest first."""
        most = len(self.cache.requests[name].tokens) - 1
        hits = range(most - most % self.unit, -1, -self.unit)
        return [hit for hit in hits if self.cache.can_hit(name, hit)]

    def reads(self, hit: int) -> bool:
        """Tells whether the token after a hit attends to any token of the hit."""
        return any(group.first(hit) < hit for group in self.cache.groups)

    def must_have_room(self, name: str, end: int) -> bool:
        """Tells whether the backend must have blocks for a request up to position `end`.

        It must have blocks if all requests fit without sharing a block.
        """
        request = self.cache.requests[name]
        if self.is_admitted(name, end):
            return True
        start = self.find_begin(name, request.begun)
        needed = self.count_blocks(name, start, self.cache.count_admitted(name, end))
        needed += sum(item.blocks for item in self.transfers.values()) + sum(self.lost)
        for other, item in self.cache.requests.items():
            if item.is_held and other != name:
                needed += self.count_blocks(other, *self.spans[other])
        return needed <= int(self.config["blocks"])

    def find_begin(self, name: str, start: int) -> int:
        """Returns where the oldest unfinished step of a request begins, if its next step
        begins at `start`."""
        return self.spans[name][0] if self.cache.requests[name].launched else start

    def is_admitted(self, name: str, end: int) -> bool:
        """Tells whether a request must have slots up to position `end` from former steps.

        It may lack slots if it may have to copy a block before it writes to the block, or
        if other requests may get slots that it no longer needs: slots of rejected drafts,
        or of tokens before a window.
        """
        request, copies = self.cache.requests[name], self.past[name] & COPYING
        keeps = {"chunk": False, "prompt": not self.config["lookahead"], "output": True}
        if not keeps[self.config["admits"]] or not request.is_held or copies:
            return False
        is_full = all(group.type == "full" for group in self.cache.groups)
        is_whole = not any(self.unit % block for block in self.blocks)
        return is_full and is_whole and end <= request.admitted

    def may_cache(self) -> bool:
        """Tells whether blocks may exist that can be hit and that no request holds."""
        requests = self.cache.requests.values()
        computed = any(item.computed for item in requests)  # blocks outside the window
        past = any(tokens for _, tokens in self.cache.past)
        partly = can_lag(self.config)  # some groups may have content that others lack
        return self.cache.prefix_cache and (computed or past or partly)

    def may_put_off(self, name: str, start: int, count: int) -> bool:
        """Tells whether the backend may postpone a request with states despite free room.

        It may if `count` tokens from `start` on do not reach the end of a block, or if
        another request of the step computes a state that this request could reuse.
        """
        if not self.config["aligned"]:
            return False
        groups, request = self.config["groups"], self.cache.requests[name]
        blocks = [item["block"] for item in groups if item["type"] == "state"]
        end = start + count
        if end < len(request.known) and any(end // b == start // b for b in blocks):
            return True
        scheduled = (self.cache.requests[other] for other in self.cache.step)
        begun = request.space, request.tokens[: self.unit]
        return not request.is_held and any(
            (other.space, other.tokens[: self.unit]) == begun for other in scheduled
        )

    def note_hit(self, name: str, hit: int) -> None:
        self.past[name].add("hit" if hit else "missed")
        groups = self.config["groups"]
        if any(hit % item["block"] for item in groups if item["type"] != "state"):
            self.past[name].add("partial-hit")
        self.note_leaning(name, hit)

    def note_leaning(self, name: str, hit: int) -> None:
        """Records the request if its hit reuses tokens computed in the same step."""
        if not self.cache.can_hit(name, hit, in_step=False):
            self.leaning.add(name)

    # --- transfers ----------------------------------------------------------------------

    def preempt(self, name: str) -> Answer:
        """Takes all slots from a request, and records this."""
        self.note_letting_go(name, reuse=True)
        answer = ask(lambda: self.cache.preempt(name))
        if "error" not in answer:
            self.past[name] = {"preempted"}  # earlier events no longer count
            self.leaning.discard(name)
        return answer

    def begin_transfer(self, op: Op, copied: int) -> None:
        """Records a new transfer of `copied` blocks."""
        request, content = self.cache.requests[op["request"]], None
        if op["op"] == "offload":
            content = None if request.is_stale else self.cache.get_complete(request)
            self.copied += copied
        if self.copied > self.config["host"]:
            self.happened.add("host-full")
        sends = op["op"] == "send"
        self.transfers[op["transfer"]] = Transfer(request, copied, content, sends)

    def end_transfer(self, transfer: str, has_landed: bool) -> None:
        ended = self.transfers.pop(transfer)
        self.landed = ended.content if has_landed else None
        if self.landed is not None:
            self.offloaded.append(self.landed)

    def find_owner(self, transfer: str) -> str | None:
        """Returns the name of the request that a transfer was begun for, or None."""
        owner = self.transfers[transfer].request if transfer in self.transfers else None
        requests = self.cache.requests.items()
        return next((name for name, request in requests if request is owner), None)

    def find_loader(self, transfer: str) -> str | None:
        """Returns the name of the request that waits for a transfer, or None."""
        requests = self.cache.requests.items()
        names = (name for name, request in requests if request.transfer == transfer)
        return next(names, None)

    def is_of(self, name: str, end: int, contents: Sequence[Content]) -> bool:
        """Tells whether any of `contents` begins with the first `end` tokens of the
        request."""
        return begins(self.cache.requests[name].get_content(end - 1), contents)

    def is_live(self, name: str) -> bool:
        """Tells whether some request has computed the first unit of this request."""
        request = self.cache.requests[name]
        first = request.get_content(min(self.unit, len(request.tokens)) - 1)
        requests = (x for x in self.cache.requests.values() if not x.is_stale)
        return begins(
            first, [(item.space, item.tokens[: item.computed]) for item in requests]
        )

    def note_letting_go(self, name: str, reuse: bool) -> None:
        """Records that a request is about to release its slots.

        Its computed tokens then stay on the device, or, if `reuse` is False, must not be
        reused any more.
        """
        request = self.cache.requests.get(name)
        for transfer, item in self.transfers.items():
            if item.request is request and not reuse:
                self.transfers[transfer] = item = item._replace(content=None)
            if item.request is request and self.config["remote"] and request.is_held:
                # A backend may keep all blocks until the request is sent or received.
                blocks = max(item.blocks, self.count_blocks(name, *self.spans[name]))
                self.transfers[transfer] = item._replace(blocks=blocks)
        if request is not None and request.is_held and self.flights:
            self.lost[-1] += self.count_blocks(name, *self.spans[name])
            self.happened |= {"dropped"} if request.launched else set()
        if request is None or not request.settled:
            return
        if request.awaited:
            self.happened.add("orphaned")
        first = request.get_content(min(self.unit, request.settled) - 1)
        self.away = [item for item in self.away if not begins(first, [item])]
        if not reuse:
            self.withdrawn = [item for item in self.offloaded if begins(first, [item])]
            self.offloaded = [
                item for item in self.offloaded if item not in self.withdrawn
            ]

    def update_weights(self) -> None:
        """Records that the weights have changed; saved content can not be restored."""
        self.cache.update_weights()
        for transfer, item in self.transfers.items():
            self.transfers[transfer] = item._replace(content=None)
        self.withdrawn, self.offloaded, self.away = self.offloaded, [], []
        self.saved = None

    def restore(self) -> None:
        """Resets the model to the saved contents; all requests end."""
        assert self.saved is not None
        requests = self.cache.requests.values()
        self.told += [(item.space, item.tokens) for item in requests]
        past, offloaded = self.saved
        self.cache.restore(past)
        self.offloaded, self.away, self.withdrawn = list(offloaded), [], []
        self.past, self.spans, self.transfers = {}, {}, {}
        self.flights, self.lost = [], []
        self.leaning.clear()

    # --- counting -----------------------------------------------------------------------

    def why_too_long(self, length: int) -> str | None:
        """Returns the reason why no request can have `length` tokens, or None."""
        if length > self.config["max_length"]:
            return f"{length} tokens are more than {self.config['max_length']}"
        groups = self.config["groups"]
        full = [item["block"] for item in groups if item["type"] == "full"]
        needed = sum(-(-length // block) for block in full)
        if needed > self.config["blocks"]:
            return f"{length} tokens need more than {self.config['blocks']} blocks"
        return None

    def count_blocks(self, name: str, start: int, end: int) -> int:
        """Counts the maximum number of blocks that a request may hold without sharing.

        Args:
            name: the request.
            start: the position where its step begins.
            end: the position where its step ends.
        """
        total, drafts = 0, self.config["lookahead"]
        for group, block in zip(self.cache.groups, self.blocks, strict=True):
            first, last = group.first(start), end + drafts
            if group.type == "state":
                # The state before the step, a state at each block end, and after drafts.
                first, last = max(0, start - 1), end
                total += drafts
            total += -(-last // block) - first // block
            # A block is copied if the request writes to it and another request needs it.
            copies = bool(self.unit % block or self.past[name] & COPYING)
            total += copies * (1 + len(self.flights))  # unfinished steps keep the source
        return total

    def count_whole(self, computed: int) -> int:
        """Counts the whole blocks of `computed` tokens, over all groups."""
        return sum(computed // block for block in self.blocks)

    def get_facts(self, op: Op) -> Mapping[str, int | None]:
        name = op.get("request") or self.find_owner(op.get("transfer", "")) or ""
        request = self.cache.requests.get(name)
        return {
            **dict.fromkeys(FACTS),
            "requests": len(self.cache.requests),
            "held": sum(item.is_held for item in self.cache.requests.values()),
            "step": len(self.cache.step),
            "blocks_lcm": lcm(*self.blocks),
            "named": int(op.get("namespace") is not None),
            "transfers": len(self.cache.transfers),
            **(self.get_request_facts(name, request) if request else {}),
        }

    def get_request_facts(self, name: str, request: Request) -> Mapping[str, int | None]:
        computed, length = request.computed, len(request.tokens)
        settled = min(request.end, length)
        begins: dict[str, int] = {}
        for group in reversed(self.cache.groups):
            query = length if group.type == "chunked" else computed
            begins[group.type] = group.first(query - 1)
        slid = None
        if "sliding" in begins:  # out of the first window, since the first sampling
            slid = max(0, begins["sliding"] - self.sampled.get(name, computed))
        return {
            "computed": computed,
            "scheduled": request.scheduled,
            "launched": request.launched,
            "length": length,
            "drafts": len(request.drafts),
            "awaited": request.awaited,
            "longest": None if request.is_held else self.list_hits(name)[0],
            "chunk": begins.get("chunked"),
            "filled": sum(settled // size - computed // size for size in self.blocks),
            "slid": slid,
        }


def begins(content: Content, longer: Iterable[tuple[Space, Sequence[Input]]]) -> bool:
    """Tells whether any content in `longer` begins with `content`."""
    space, inputs = content
    return any(
        space == other and inputs == tuple(longer_inputs[: len(inputs)])
        for other, longer_inputs in longer
    )


FACTS: Mapping[str, str] = {
    "requests": "requests that exist",
    "held": "requests that hold slots",
    "step": "requests that are scheduled",
    "blocks_lcm": "the smallest number of tokens that fills whole blocks of all groups",
    "computed": "tokens of the request that are computed; null without a request",
    "scheduled": "tokens of the request that are scheduled",
    "launched": "tokens of the request that launched steps compute",
    "length": "tokens of the request that are known, without drafts",
    "drafts": "its drafts",
    "longest": "the most tokens that the request may hit; null if it holds slots",
    "chunk": "where the chunk of its last token begins; null without chunks",
    "filled": "blocks that the step fills for it with other tokens than drafts",
    "slid": "tokens that it sampled since it has slots, and that left the first window",
    "named": "1 if the operation names a namespace, else 0",
    "transfers": "transfers that are under way",
    "awaited": "tokens of the request that are being loaded",
}
