"""Defines the shadow states of sessions, tries and slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from lockstep.harness.contracts.operation import Answer
from lockstep.harness.contracts.prefix.model import (
    CONVERSATIONS,
    get_layer_config,
    get_unified_config,
)
from lockstep.harness.contracts.unified.model import list_part_configs
from lockstep.harness.core.document import MAX_LENGTH
from lockstep.harness.execution.compare import PARTS
from lockstep.harness.execution.metamorphic.relations import (
    CHANGES,
    Builder,
    Derived,
    History,
    Portion,
    Relation,
    Shadow,
    Step,
    Tags,
)
from lockstep.harness.execution.metamorphic.rows import hide
from lockstep.harness.execution.metamorphic.unified import Cells, see_all
from lockstep.harness.programs.program import Program, trace

FOLLOWED = {"begin", "feed", "break", "close", "cancel", "free", "limit"}
"""The operations that change tokens and that shadow states follow."""


def count_common(held: Sequence[int], tokens: Sequence[int]) -> int:
    """Returns the length of the common prefix of two conversations."""
    length = min(len(held), len(tokens))
    return next((at for at in range(length) if held[at] != tokens[at]), length)


# --- sessions and tries -----------------------------------------------------------------


Path = tuple[int, ...]
"""The token numbers of a conversation, as in the program."""


class ConversationShadow(Shadow):
    """The conversations that a session or a trie has received.

    A token with the same preceding tokens always has the same tag, even if another
    request computes it. Tags are therefore stored by prefix: in the conversation 5, 7,
    the tag of token 7 is stored under the prefix (5, 7).

    Attributes:
        known: each prefix that was ever computed → the tag of its last token.
        request: the tokens of the open request.
        reused: the number of tokens that the request reuses.
        computed: the number of tokens of the request that are computed or reused.
        live: the conversation that all layers hold.
        stored: the conversations that a trie has stored.
        captured: the conversations that every layer of a trie can go back to.
        wanted: the lengths at which layers are captured during the request, or during the
            next request.
        is_limited: whether a trie may have evicted conversations.
        is_apart: whether a pass was broken off, so that layers hold different tokens.
        refuses: whether the next request will meet a refusal.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.layers = [
            spec and get_layer_config(self.config, spec) for spec in self.config["layers"]
        ]
        kinds = {layer["kind"] for layer in self.layers if layer}
        self.is_trie = self.config["kind"] == "trie"
        self.has_cache, self.is_cuttable = bool(kinds), kinds == {"kv"}
        self.known: dict[Path, int] = {}
        self.request: list[int] | None = None
        self.reused = self.computed = 0
        self.live: Path = ()
        self.stored: set[Path] = set()
        self.captured: set[Path] = set()
        self.wanted: set[int] = set()
        self.is_limited = self.config["limit"] is not None
        self.is_apart = self.refuses = False

    def write(self, step: Step) -> None:
        """Applies a step. A pass counts as computed even if its generated tokens are
        refused."""
        error, op = "error" in step.answer, step.op
        self.is_lost |= bool(step.effect & CHANGES) and step.name not in FOLLOWED
        if step.name == "begin":
            self.refuses = False
            if error:
                self.wanted = set()
                return
            matched = max((count_common(x, op["tokens"]) for x in self.stored), default=0)
            self.wanted |= {matched} if matched < len(op["tokens"]) else set()
            self.request, self.is_apart = list(op["tokens"]), False
            self.reused = len(self.request) - len(step.answer["remaining"])
            self.computed = self.reused
        elif step.name in ("feed", "break") and self.request is not None:
            tags = self.list_tags(step)
            for end, tag in enumerate(tags, 1):
                self.known[tuple(self.request[:end])] = tag
            self.computed = len(tags)
            self.is_apart |= step.name == "break"
            if not error:
                self.request += op.get("generate", [])
        elif step.name in ("close", "cancel") and not error:
            self.store(tuple(self.request or ())[: step.answer["stored"]])
            self.request, self.wanted = None, set()
        elif step.name == "free" and not error:
            self.live, self.stored, self.captured = (), set(), set()
        elif step.name == "limit":
            self.is_limited = True
        elif step.name in ("refuse", "checkpoint"):
            self.refuses |= step.name == "refuse"
            self.wanted |= {*op.get("offsets", ())}

    def list_tags(self, step: Step) -> list[int]:
        """Lists the tags of a request's computed tokens after a `feed`; new tokens have
        the tags of the step."""
        request, new = self.request or [], iter(step.tags)
        end = min(self.computed + step.op["count"], len(request))
        paths = [tuple(request[:length]) for length in range(1, end + 1)]
        return [self.known[x] if x in self.known else next(new) for x in paths]

    def store(self, path: Path) -> None:
        """Adds a conversation that ended."""
        self.live = () if self.is_apart else path
        interval = self.config["interval"]
        self.stored.add(path)
        for end in range(self.reused + 1, len(path) + 1):
            is_wanted = end in self.wanted or (interval and end % interval == 0)
            if is_wanted or (end == len(path) and not self.is_apart):
                self.captured.add(path[:end])

    def count_reusable(self, tokens: Path) -> int:
        """Returns the minimum number of tokens that a request reuses: at most all but
        one. A trie with a limit keeps at least the live conversation."""
        held = self.stored if self.is_trie and not self.is_limited else {self.live}
        if self.refuses or not self.has_cache:
            return 0
        if self.is_cuttable:
            lengths = [count_common(path, tokens) for path in held]
            return min(max(lengths, default=0), len(tokens) - 1)
        ends = self.captured if held is self.stored else held
        lengths = [len(path) for path in ends if path == tokens[: len(path)]]
        return max((x for x in lengths if x < len(tokens)), default=0)

    # --- relations ----------------------------------------------------------------------

    def see(self, step: Step) -> Answer | None:
        """Returns the tokens that a request must reuse and that its layers hold, the
        visible tokens of a pass, and the number of tokens that a trie stores."""
        if step.name == "count" and self.is_trie and not self.is_limited:
            held = {x[:end] for x in self.stored for end in range(1, len(x) + 1)}
            return {"tokens": len(held)}
        if "error" in step.answer or step.name not in ("begin", "feed"):
            return None
        if step.name == "begin":
            tokens, remaining = tuple(step.op["tokens"]), step.answer["remaining"]
            reused = len(tokens) - len(remaining)
            tags = [self.known[tokens[: end + 1]] for end in range(reused)]
            seen: list[Answer]
            seen = [{"tags": hide(tags, layer)} if layer else {} for layer in self.layers]
            least = max(reused, self.count_reusable(tokens))
            return {"remaining": [*tokens[least:]], PARTS: seen}
        tags = self.list_tags(step)
        if self.is_apart or len(tags) == self.computed:
            return None
        ends = range(self.computed + 1, len(tags) + 1)
        seen = [
            {"visible": [hide(tags[:end], layer) for end in ends]} if layer else {}
            for layer in self.layers
        ]
        return {PARTS: seen}

    def may_interrupt(self, step: Step) -> bool:
        return self.request is None and not self.refuses and not self.wanted

    def rebuild(self, builder: Builder) -> bool:
        """Adds requests that compute the current conversation of a session again.

        First adds requests with all earlier conversations, so that their tokens have
        tags, and frees them. Returns False for a trie, because the answers do not
        determine the conversations that a trie holds.
        """
        if self.is_trie or not self.live:
            return False
        rebuilt: set[Path] = set()
        for path in sorted(self.known, key=len, reverse=True):
            if path not in rebuilt and len(path) <= MAX_LENGTH:
                prefixes = {path[:end] for end in range(1, len(path) + 1)}
                new = sorted(prefixes - rebuilt, key=len)
                tell(builder, path, [self.known[prefix] for prefix in new])
                rebuilt |= prefixes
        builder.add({"op": "free"})
        tell(builder, self.live)
        return rebuilt == self.known.keys()

    def list_cuts(self, step: Step) -> Sequence[Sequence[Portion]]:
        request = self.request or []
        count = min(step.op.get("count", 0), len(request) - self.computed)
        next_path = tuple(request[: self.computed + 1])
        if step.name != "feed" or count < 2 or next_path in self.known:
            return []
        half = (count + 1) // 2
        first = {**step.op, "count": half, "generate": []}
        second = {**step.op, "count": step.op["count"] - half}
        return [[(first, range(half)), (second, range(half, count))]]


def tell(builder: Builder, path: Sequence[int], tags: Tags = ()) -> None:
    """Adds the operations of a complete request; `tags` are the tags of its new tokens in
    the first program."""
    builder.add({"op": "begin", "tokens": list(path)})
    builder.add({"op": "feed", "count": len(path)}, tags)
    builder.add({"op": "close"})


class TrieShadow(ConversationShadow):
    """The conversations of a trie."""


def list_requests(state: Any, step: Step) -> Sequence[None]:
    """Applies a relation to requests with 2 to 40 tokens."""
    fits = step.name == "begin" and "error" not in step.answer and state.has_cache
    return [None] if fits and 2 <= len(step.op["tokens"]) <= 40 else []


def keep_recent(history: History, state: Any, step: Step, way: None) -> Derived | None:
    """Claims that a trie evicts the least recently used conversation. The limit is the
    size of two conversations. After the requests A, B, A, C, the trie must have evicted
    B and kept A."""
    builder, tokens = Builder(history.program), step.op["tokens"]
    builder.config |= {"limit": None, "interval": None}
    second, third = ([token] * len(tokens) for token in (81, 82))
    tell(builder, tokens)
    ops = [*builder.ops, {"op": "count"}]
    size = trace(Program("prefix", builder.config, ops))[-1]["bytes"]
    builder.add({"op": "limit", "bytes": 2 * size})
    for conversation in (second, tokens, third):
        tell(builder, conversation)
    for conversation, new in (([], [*second, 71]), (tokens, [72])):
        number = builder.add({"op": "begin", "tokens": [*conversation, *new]})
        builder.claim(step, number, {"remaining": new}, is_promise=True)
        builder.add({"op": "cancel"})
    return builder.build("a trie that evicts the least recently used conversation")


TrieShadow.special = [Relation("keep", list_requests, keep_recent)]


# --- slots ------------------------------------------------------------------------------


class SlotShadow(Shadow):
    """The tokens in each slot, derived from the answers, and in the cache below.

    Attributes:
        slots: number of a slot → the tokens of its conversation; in the order in which
            the slots were last assigned.
        users: user → the slot of the user's open request.
        members: the tokens of each cache below the slots; a slot is a sequence.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        config = get_unified_config(self.config)
        self.members = list(map(Cells, list_part_configs(config)))
        self.is_wrapper = config["kind"] == "wrapper"
        self.slots: dict[int, list[int]] = {x: [] for x in range(self.config["slots"])}
        self.users: dict[str, int] = {}

    def write(self, step: Step) -> None:
        answer, user = step.answer, step.op.get("user", "a")
        self.is_lost |= bool(step.effect & CHANGES) and step.name not in FOLLOWED
        if step.name == "begin" and "slot" in answer:
            slot = self.users[user] = answer["slot"]
            self.begin(step, slot, len(answer["tokens"]))
            self.slots[slot] = self.slots.pop(slot)
        elif step.name in ("feed", "break") and "positions" in answer:
            self.members = self.make_room(step)
            for member in self.members:
                tags = () if "error" in answer else step.tags
                member.forward(self.make_pass(step), tags)
        elif step.name in ("close", "cancel") and user in self.users:
            self.remove(self.members, self.users[user], len(answer["tokens"]))
        if user in self.users and "tokens" in answer and step.name != "statistics":
            self.slots[self.users[user]] = list(answer["tokens"])
        if step.name in ("close", "cancel"):
            self.users.pop(user, None)

    def begin(self, step: Step, slot: int, kept: int) -> None:
        """Applies a `begin`. With several users, the slot gets a copy of the longest
        prefix that any slot shares with the request, unless it has a prefix of this
        length."""
        common = {n: count_common(x, step.op["tokens"]) for n, x in self.slots.items()}
        best = max(common, key=lambda n: (common[n], -n))
        if self.config["several_users"] and kept and common[slot] < common[best]:
            for member in self.members:
                member.copy(best, slot, common[best])
        self.remove(self.members, slot, kept)

    def remove(
        self, members: Sequence[Cells], slot: int, begin: int, end: int | None = None
    ) -> None:
        for member in members:
            member.remove(slot, begin, end)

    def make_pass(self, step: Step) -> dict[str, Any]:
        """Makes the pass of the cache below for a `feed`."""
        positions = step.answer["positions"]
        slot = self.users[step.op.get("user", "a")]
        rows = {"positions": positions, "sequences": [slot] * len(positions)}
        return {"except": [], "multimodal": [], **rows}

    def make_room(self, step: Step) -> list[Cells]:
        """Returns the tokens of the caches below before the pass of a `feed`, which may
        remove the middle of the slot."""
        slot, first = self.users[step.op.get("user", "a")], step.answer["positions"][0]
        held, keep = len(self.slots[slot]), self.config["keep"]
        members = deepcopy(self.members)
        if first == 0 and held:
            self.remove(members, slot, 0)
        elif first < held:
            self.remove(members, slot, keep, keep + held - first)
        return members

    # --- relations ----------------------------------------------------------------------

    def see(self, step: Step) -> Answer | None:
        """Returns the slot that a request gets, and the visible tokens of a pass."""
        if step.name == "begin" and "slot" in step.answer:
            return {"slot": self.choose(step.op["tokens"])}
        if "positions" not in step.answer or not {PARTS, "visible"} & step.answer.keys():
            return None
        seen = self.make_pass(step), step.tags[: len(step.answer["positions"])]
        return see_all(self.make_room(step), *seen, self.is_wrapper)

    def choose(self, tokens: Sequence[int]) -> int:
        """Returns the free slot for a request. With several users: the slot whose tokens
        the request continues, if no slot shares more; else the slot assigned longest ago.
        With a single user: the slot that shares the most tokens."""
        used = self.users.values()
        free = [number for number in self.slots if number not in used]
        common = {n: count_common(held, tokens) for n, held in self.slots.items()}
        if not self.config["several_users"]:
            return min(free, key=lambda n: (-common[n], n))
        best = max(common.values())
        matched = [n for n in free if 0 < common[n] == len(self.slots[n]) == best]
        return min(matched) if matched else free[0]


SHADOWS: Mapping[str, type[Shadow]] = {
    **dict.fromkeys(CONVERSATIONS, ConversationShadow),
    "trie": TrieShadow,
    "slots": SlotShadow,
}
