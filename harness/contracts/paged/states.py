"""The abstract states of paged caches, by name."""

from __future__ import annotations

from functools import cache

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.operation import Config, Op
from lockstep.harness.contracts.paged.domain import list_models
from lockstep.harness.contracts.paged.model import PagedModel, can_lag, get_unit
from lockstep.harness.contracts.states import (
    State,
    StateTable,
    list_true,
    make_states,
    never,
    only,
)


class Situation:
    """The situation of one request before an operation."""

    def __init__(self, name: str, model: PagedModel) -> None:
        self.name, self.model = name, model
        self.request = model.cache.requests[name]
        self.computed = self.request.computed
        self.sampled = model.cache.has_sampled(self.request)

    def has_begun(self) -> bool:
        scheduled = self.request.end > self.computed
        return self.request.is_held and not scheduled and not self.sampled

    def list_filled(self) -> list[int]:
        """Lists the number of tokens in the last block of each group; 0 if it is full."""
        return [self.computed % block for block in self.model.blocks]

    def has_passed(self, kind: str) -> bool:
        """Tells whether the computed tokens exceed a group's window or chunk."""
        groups = self.model.cache.groups
        return any(self.computed > group.width for group in groups if group.type == kind)

    def is_shared(self) -> bool:
        """Whether another request has computed the same first block."""
        if not self.computed:
            return False
        length = min(self.computed, self.model.unit)
        content = self.request.get_content(length - 1)
        return any(
            request.get_content(length - 1) == content
            for name, request in self.model.cache.requests.items()
            if name != self.name and request.computed >= length
        )

    def is_sent(self) -> bool:
        transfers = self.model.transfers.values()
        own = [item for item in transfers if item.request is self.request]
        return any(item.sends for item in own)

    def is_offloaded(self) -> bool:
        return any(
            transfer.request is self.request and transfer.content is not None
            for transfer in self.model.transfers.values()
        )


STATES = (
    State("none"),
    State("waiting", lambda case: not case.request.is_held),
    State("loading", lambda case: case.request.awaited > 0, "arrivals"),
    State("begun", Situation.has_begun),
    State("all-computed", lambda case: case.sampled),
    State("scheduled", lambda case: case.request.scheduled > 0),
    State("launched", lambda case: case.request.launched > 0, "flight"),
    State("untold", lambda case: case.request.untold > 0, "overlap"),
    State("block-end", lambda case: case.computed and not all(case.list_filled())),
    State("inside-block", lambda case: any(case.list_filled()), "long-blocks"),
    State("window-passed", lambda case: case.has_passed("sliding"), "windows"),
    State("chunk-passed", lambda case: case.has_passed("chunked"), "chunks"),
    State("lagging", lambda case: bool(case.request.skipped), "lags"),
    State("hit", needs="hits"),
    State("partial-hit", needs="hits partial"),
    State("missed"),
    State("forked", needs="fork"),
    State("rewound", needs="rewind"),
    *make_states("drafted kept rejected", "drafts accept"),
    *make_states("branched moved", "trees accept"),
    State("loaded", needs="arrivals"),
    State("sent", needs="remote send"),
    State("preempted", needs="preempt"),
    State("alone", lambda case: len(case.model.cache.requests) == 1),
    State("shared", Situation.is_shared),
    State("offloading", Situation.is_offloaded, "host offload"),
    State("stale", lambda case: case.request.is_stale, "update_weights"),
    State("sending", Situation.is_sent, "remote send"),
    State("freed"),
    State("withdrawn", needs="withdraws"),
    State("evicted", needs="evict"),
    State("reset", needs="reset"),
    State("updated", needs="update_weights"),
    State("no-room"),
    State("namespaces", needs="names"),
    *make_states("adapters extras", "extra_keys"),
    State("host-full", needs="host offload"),
    State("orphaned", needs="arrivals"),
    State("failed", needs="transfers failed"),
    State("restored", needs="restore"),
    State("dropped", needs="flight"),
)
NAMES = [state.name for state in STATES]
FORMS = NAMES[: NAMES.index("block-end")]
"""The states that describe the phase of an operation's request."""
LENGTHS = NAMES[len(FORMS) : NAMES.index("hit")]
SINCE = NAMES[NAMES.index("hit") : NAMES.index("preempted")]
"""The events of a request since it was given slots."""
REQUEST_PAST = [*SINCE, "preempted"]
BESIDE = ["alone", "shared", "offloading", "stale", "sending"]
PAST = NAMES[NAMES.index("freed") :]
"""The events of any request. "orphaned": a request released its slots during a load.
"dropped": a request released its slots while a step computed its tokens."""

RARE = ("kept", "rejected", "moved", "loading", "loaded", "orphaned")

COMMON = [*LENGTHS, *REQUEST_PAST]
NO_EFFECT = "the operation does not depend on the state"
GOING_ON = "schedule run finish accept preempt free fork rewind"
UNAFFECTED = (
    never(NO_EFFECT, "drafted kept rejected branched moved", "offload send"),
    never(NO_EFFECT, "hit partial-hit missed forked loaded", "send"),
    never(NO_EFFECT, " ".join([*LENGTHS, *SINCE, "shared"]), "load receive"),
    never(NO_EFFECT, " ".join([*COMMON, "alone", "shared"]), "landed failed"),
    never(NO_EFFECT, " ".join([*COMMON, *BESIDE, *PAST]), "save restore launch"),
    only(NO_EFFECT, "loading", "landed failed preempt free update_weights"),
    only(NO_EFFECT, "sent", "schedule run send landed failed preempt free rewind"),
    only(NO_EFFECT, "sending", "run send landed failed preempt free rewind evict"),
    only(NO_EFFECT, "loaded", "schedule run finish preempt free"),
    only(
        NO_EFFECT,
        *("offloading", "run landed failed preempt free rewind evict update_weights"),
    ),
    only(NO_EFFECT, "host-full", "offload load landed failed"),
    only(NO_EFFECT, "orphaned", "schedule run landed failed offload load receive evict"),
    only(NO_EFFECT, "failed", "match schedule run free offload load receive landed"),
    only(NO_EFFECT, "restored", "match schedule run evict"),
    never(NO_EFFECT, "launched", "failed"),
    only(
        NO_EFFECT,
        *("untold", "schedule launch finish accept preempt free offload update_weights"),
    ),
    never("it is refused like begun", "scheduled launched all-computed", "receive"),
    never(NO_EFFECT, " ".join([*LENGTHS, *SINCE[:-1], "shared"]), "finish"),  # see `run`
    never(NO_EFFECT, " ".join([*COMMON, "alone", *PAST]), "update_weights"),
    only(NO_EFFECT, "stale", f"{GOING_ON} offload send landed failed update_weights"),
    only(NO_EFFECT, "updated", "match schedule run finish offload load receive landed"),
    only(NO_EFFECT, "dropped", "match schedule finish offload load receive landed"),
)
"""Pairs of a state and an operation that is not affected; these cells are not counted."""

TRANSFERS = ("loading", "loaded", "offloading", "host-full", "orphaned", "failed")
"""The states that occur only in programs with transfers."""


def can_have(state: str, config: Config) -> bool:
    """Tells whether programs with a config can reach a state."""
    types = {group["type"] for group in config["groups"]}
    blocks = {item["block"] for item in config["groups"] if item["type"] != "state"}
    missing = {
        "window-passed": "sliding" not in types,
        "chunk-passed": "chunked" not in types,
        "lagging": not can_lag(config),
        "hit": not config["prefix_cache"],
        "partial-hit": not config["prefix_cache"] or blocks <= {get_unit(config)},
        **dict.fromkeys(("drafted", "kept", "rejected"), not config["lookahead"]),
        **dict.fromkeys(("launched", "dropped"), not config["flight"]),
        "untold": not config["overlap"],
        **dict.fromkeys(("branched", "moved"), not config["trees"]),
    }
    return not missing.get(state)


def is_of_transfers(state: str, operation: str) -> bool:
    """Tells whether a state or an operation needs transfers, so that no program without
    transfers can reach it."""
    names = ("offload", "load", "landed", "failed")
    return operation in names or state in TRANSFERS


@cache
def is_counted(state: str, operation: str) -> bool:
    return not any(rule.holds((state, operation)) for rule in UNAFFECTED)


def get_states(op: Op, model: PagedModel) -> list[str]:
    """Returns the names of the abstract states that the requests of `op` have before `op`
    runs."""
    requests = model.cache.requests
    name = op.get("request", op.get("source"))
    if "transfer" in op and name is None:
        name = model.find_owner(op["transfer"]) or ""
    if op["op"] == "finish":
        names = (
            [segment.name for segment in model.list_returning()] if model.flights else []
        )
    elif op["op"] in ("run", "launch"):
        names = model.cache.step
    elif op["op"] == "open":
        names = []
    elif name is None:
        names = list(requests)
    else:
        names = [name] if name in requests else []
    states = {state for request in names for state in judge(request, model)} or {"none"}
    states |= model.happened
    return [state for state in NAMES if state in states and is_counted(state, op["op"])]


def judge(name: str, model: PagedModel) -> list[str]:
    """Returns the names of the abstract states of one request."""
    past = [state for state in REQUEST_PAST if state in model.past[name]]
    return [*TABLE.find(Situation(name, model)), *past]


def list_features(kind: str, declared: Kind) -> set[str]:
    config = declared.config
    models = list_models(kind, config)
    types = [{group["type"] for group in groups} for groups in models]
    used = set().union(*types)
    blocks = {group["block"] for groups in models for group in groups}
    hashes, known = config.get("hash_block", (None,)), declared.operations
    has_host = any(config.get("host", (0,)))
    has_remote = any(config.get("remote", (False,)))
    features = {
        "long-blocks": blocks != {1},
        "windows": "sliding" in used,
        "chunks": "chunked" in used,
        "lags": any(can_lag({"groups": groups}) for groups in models),
        "hits": True in config.get("prefix_cache", (True,)),
        "partial": kind != "paged-state" and any(size is not None for size in hashes),
        "drafts": any(config.get("lookahead", ["state" not in names for names in types])),
        "trees": {"full"} in types and any(config.get("trees", ())),
        "host": has_host,
        "remote": has_remote,
        "transfers": has_host or has_remote,
        "arrivals": (has_host and "load" in known) or (has_remote and "receive" in known),
        "extra_keys": any(config.get("extra_keys", (False,))),
        "flight": any(config.get("flight", (0,))),
        "overlap": any(config.get("overlap", ())),
        "names": not is_left_out(declared, "open", "named", 1),
        "withdraws": not is_left_out(declared, "free", "reuse", 0),
        "frees-scheduled": not is_left_out(declared, "free", "scheduled", 1),
        "preempts-scheduled": not is_left_out(declared, "preempt", "scheduled", 1),
    }
    return set(list_true(features))


def is_left_out(declared: Kind, op: str, name: str, value: int) -> bool:
    """Tells whether the backend's preconditions exclude a call with this value."""
    ranges = [
        duty.when[name]
        for duty in declared.duties
        if duty.when.get("op") == op and duty.when.keys() == {"op", name}
    ]
    return any(
        (low is None or low <= value) and (high is None or value <= high)
        for low, high in ranges
    )


COMPUTED = "block-end inside-block window-passed chunk-passed lagging shared"
RULES = (
    never("the step is not empty", "none", "run launch"),
    never("it holds nothing", "waiting", "run launch finish preempt"),
    never("it waits for a transfer", "loading", "run launch finish match"),
    never("it is not in the step", "begun all-computed", "run launch finish"),
    never("nothing is in flight", "launched", "run"),
    never("the step comes first", "scheduled launched", "send"),
    never("it holds slots", "begun all-computed scheduled launched", "match"),
    never("one that waits has done nothing", f"{COMPUTED} {' '.join(SINCE)}", "match"),
    never(
        "it is about a new request",
        " ".join(name for name in NAMES if name not in ("none", *PAST)),
        "open",
    ),
    *UNAFFECTED,
    only(
        "there must be a request",
        *("none", "open finish evict reset update_weights landed failed save restore"),
        unless="refuses",
    ),
    never(
        "nothing is computed",
        *("waiting loading", "accept fork rewind offload send"),
        unless="refuses",
    ),
    never("it waits for a transfer", "loading", "schedule", unless="refuses"),
    never(
        "only one that waits loads",
        *("loading begun all-computed scheduled launched", "load receive"),
        unless="refuses",
    ),
    never("tokens are left", "begun", "accept", unless="refuses"),
    never("no token is left", "all-computed", "schedule", unless="refuses"),
    never(
        "the step comes first",
        *("scheduled", "schedule accept fork rewind"),
        unless="refuses",
    ),
    never("the step comes first", "launched", "fork rewind", unless="refuses"),
    never("the step comes first", "launched", "accept", unless="refuses overlap"),
    *(
        never("callers must not", "scheduled", name, unless=f"{name}s-scheduled")
        for name in ("free", "preempt")
    ),
)
TABLE = StateTable(STATES, RULES)
