"""The abstract states of paged caches: where bugs were, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.operation import Config, Op, Unreachable, list_true
from lockstep.harness.contracts.paged.drawn import CHOICES, GROUPS
from lockstep.harness.contracts.paged.model import PagedModel, get_unit

FORMS = ("none", "waiting", "loading", "begun", "all-computed", "scheduled")
"""What the request that an operation is about is doing."""

LENGTHS = ("block-end", "inside-block", "window-passed", "chunk-passed")
SINCE = (
    *("hit", "partial-hit", "missed", "forked", "rewound"),
    *("drafted", "kept", "rejected", "loaded"),
)
"""Happened since the request was given slots."""

REQUEST_PAST = (*SINCE, "preempted")
OTHERS = ("alone", "shared", "offloading")
PAST = (
    *("freed", "withdrawn", "evicted", "reset", "no-room", "namespaces"),
    *("host-full", "orphaned", "failed", "restored"),
)
"""Happened to any request. "orphaned": it let go of its slots while they were loaded."""

STATES = (*FORMS, *LENGTHS, *REQUEST_PAST, *OTHERS, *PAST)

RARE = ("kept", "rejected", "loading", "loaded", "orphaned")

IGNORES: Mapping[str, Sequence[str]] = {
    "offload": ("drafted", "kept", "rejected"),
    "load": (*LENGTHS, *SINCE, "shared"),
    "landed": (*LENGTHS, *REQUEST_PAST, "alone", "shared"),
    "failed": (*LENGTHS, *REQUEST_PAST, "alone", "shared"),
    "save": (*LENGTHS, *REQUEST_PAST, *OTHERS, *PAST),
    "restore": (*LENGTHS, *REQUEST_PAST, *OTHERS, *PAST),
}
"""Operation → states that it does not depend on; they are not counted."""

MATTERS: Mapping[str, Sequence[str]] = {
    "loading": ("landed", "failed", "preempt", "free"),
    "loaded": ("schedule", "run", "preempt", "free"),
    "offloading": ("run", "landed", "failed", "preempt", "free", "rewind", "evict"),
    "host-full": ("offload", "load", "landed", "failed"),
    "orphaned": ("schedule", "run", "landed", "failed", "offload", "load", "evict"),
    "failed": ("match", "schedule", "run", "free", "offload", "load", "landed"),
    "restored": ("match", "schedule", "run", "evict"),
}
"""State → operations that it makes a difference to; the others ignore it."""


def can_have(state: str, config: Config) -> bool:
    """Says whether programs with a config may find a state."""
    types = {group["type"] for group in config["groups"]}
    blocks = {one["block"] for one in config["groups"] if one["type"] != "state"}
    missing = {
        "window-passed": "sliding" not in types,
        "chunk-passed": "chunked" not in types,
        "hit": not config["prefix_cache"],
        "partial-hit": not config["prefix_cache"] or blocks <= {get_unit(config)},
        **dict.fromkeys(("drafted", "kept", "rejected"), not config["lookahead"]),
    }
    return not missing.get(state)


def is_of_transfers(state: str, operation: str) -> bool:
    """Says whether only programs with transfers find a state, or have an operation."""
    names = ("offload", "load", "landed", "failed")
    return operation in names or (state in MATTERS and state != "restored")


def is_counted(state: str, operation: str) -> bool:
    matters = operation in MATTERS.get(state, (operation,))
    return matters and state not in IGNORES.get(operation, ())


def get_states(op: Op, model: PagedModel) -> list[str]:
    """Names the states that `op` is about to run in: of its request, or of all that it is
    about."""
    requests = model.cache.requests
    name = op.get("request", op.get("source"))
    if "transfer" in op and name is None:
        name = model.find_owner(op["transfer"]) or ""
    if op["op"] == "run":
        names = model.cache.step
    elif op["op"] == "open":
        names = []
    elif name is None:
        names = list(requests)
    else:
        names = [name] if name in requests else []
    found = [state for one in names for state in get_request_states(one, model)]
    happened = [state for state in PAST if state in model.happened]
    states = [*(dict.fromkeys(found) if found else ["none"]), *happened]
    return [state for state in states if is_counted(state, op["op"])]


def get_request_states(name: str, model: PagedModel) -> list[str]:
    request = model.cache.requests[name]
    computed = request.computed
    sampled = model.cache.has_sampled(request)
    blocks = [group["block"] for group in model.config["groups"]]
    found = {
        "waiting": not request.is_held,
        "loading": request.awaited > 0,
        "begun": request.is_held and request.end == computed and not sampled,
        "all-computed": sampled,
        "scheduled": request.scheduled > 0,
        "block-end": computed and any(computed % block == 0 for block in blocks),
        "inside-block": any(computed % block for block in blocks),
        "alone": len(model.cache.requests) == 1,
        "shared": computed and is_shared(name, model),
        "offloading": any(
            one.request is request and one.content is not None
            for one in model.transfers.values()
        ),
    }
    for group in model.cache.groups:
        if computed > group.width > 0:
            passed = "window" if group.type == "sliding" else "chunk"
            found[f"{passed}-passed"] = True
    past = [state for state in REQUEST_PAST if state in model.past[name]]
    return [*list_true(found), *past]


def is_shared(name: str, model: PagedModel) -> bool:
    """Says whether another request has computed the first block of this one, too."""
    request = model.cache.requests[name]
    content = request.get_content(min(request.computed, model.unit) - 1)
    return any(
        other.get_content(len(content[1]) - 1) == content
        for key, other in model.cache.requests.items()
        if key != name and other.computed >= len(content[1])
    )


# --- what can be reached ----------------------------------------------------------------


def list_states(kind: str, declared: Kind) -> Sequence[str]:
    """Lists the states that generation must reach for a kind as it is declared."""
    has, config = declared.operations, declared.config
    groups = config.get("groups", GROUPS[kind])
    types = {one["type"] for each in groups for one in each}
    caches = True in config.get("prefix_cache", (True,))
    drafts = max(config.get("lookahead", CHOICES["lookahead"])) and any(
        all(one["type"] != "state" for one in each) for each in groups
    )
    drafts = drafts and "accept" in has
    hashes = config.get("hash_block", (None,))
    partly = kind != "paged-state" and any(one is not None for one in hashes)
    single = all(group["block"] == 1 for each in groups for group in each)
    tiers = any(config.get("host", (0,)))
    left_out = {
        "inside-block": single,
        "window-passed": "sliding" not in types,
        "chunk-passed": "chunked" not in types,
        "hit": not caches,
        "partial-hit": not caches or not partly,
        "preempted": "preempt" not in has,
        "forked": "fork" not in has,
        "rewound": "rewind" not in has,
        **dict.fromkeys(("drafted", "kept", "rejected"), not drafts),
        "all-computed": False,
        "withdrawn": is_left_out(declared, "free", "reuse", 0),
        "evicted": "evict" not in has,
        "reset": "reset" not in has,
        **dict.fromkeys(("offloading", "host-full"), not tiers or "offload" not in has),
        **dict.fromkeys(
            ("loading", "loaded", "orphaned"), not tiers or "load" not in has
        ),
        "failed": not tiers or "failed" not in has,
        "restored": "restore" not in has,
    }
    return [state for state in STATES if not left_out.get(state)]


def is_left_out(declared: Kind, op: str, name: str, value: int) -> bool:
    """Says whether callers have the duty not to make a call with this value."""
    ranges = [
        duty.when[name]
        for duty in declared.duties
        if duty.when.get("op") == op and duty.when.keys() == {"op", name}
    ]
    return any(
        (low is None or low <= value) and (high is None or value <= high)
        for low, high in ranges
    )


COMPUTED = ("block-end", "inside-block", "window-passed", "chunk-passed", "shared")
UNREACHABLE = (
    Unreachable("the step is not empty", ("none",), never=("run",)),
    Unreachable("it holds nothing", ("waiting",), never=("run", "preempt")),
    Unreachable("it waits for a transfer", ("loading",), never=("run", "match")),
    Unreachable("it is not in the step", ("begun", "all-computed"), never=("run",)),
    Unreachable(
        "it holds slots", ("begun", "all-computed", "scheduled"), never=("match",)
    ),
    Unreachable("one that waits has done nothing", (*COMPUTED, *SINCE), never=("match",)),
    Unreachable(
        "it is about a new request",
        tuple(state for state in STATES if state not in ("none", *PAST)),
        never=("open",),
    ),
)
WITHOUT_MISUSE = (
    Unreachable(
        "there must be a request",
        ("none",),
        only=("open", "evict", "reset", "landed", "failed", "save", "restore"),
    ),
    Unreachable(
        "nothing is computed",
        ("waiting", "loading"),
        never=("accept", "fork", "rewind", "offload"),
    ),
    Unreachable("it waits for a transfer", ("loading",), never=("schedule",)),
    Unreachable(
        "only one that waits loads",
        ("loading", "begun", "all-computed", "scheduled"),
        never=("load",),
    ),
    Unreachable("tokens are left", ("begun",), never=("accept",)),
    Unreachable("no token is left", ("all-computed",), never=("schedule",)),
    Unreachable(
        "the step comes first",
        ("scheduled",),
        never=("schedule", "accept", "fork", "rewind"),
    ),
)


def list_unreachable(kind: str, declared: Kind) -> Sequence[Unreachable]:
    left_out = [
        Unreachable("callers must not", ("scheduled",), never=(name,))
        for name in ("free", "preempt")
        if is_left_out(declared, name, "scheduled", 1)
    ]
    ignored = [
        Unreachable("it does not depend on that", (state,), never=(name,))
        for state in STATES
        for name in declared.operations
        if not is_counted(state, name)
    ]
    misuse = () if declared.refuses else WITHOUT_MISUSE
    return (*UNREACHABLE, *ignored, *misuse, *left_out)
