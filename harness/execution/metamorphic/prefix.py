"""Defines the shadow states and the special relations of sessions, tries and slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lockstep.harness.contracts.operation import Answer, Config
from lockstep.harness.contracts.prefix.model import get_unified_config
from lockstep.harness.core.document import MAX_LENGTH
from lockstep.harness.execution.metamorphic.relations import (
    CHANGES,
    Builder,
    Case,
    Derived,
    Family,
    History,
    Portion,
    Relation,
    Shadow,
    Step,
    Tags,
    apply_once,
    make_cases,
)
from lockstep.harness.execution.metamorphic.unified import add_removal
from lockstep.harness.programs.program import Program, trace

# --- sessions and tries -----------------------------------------------------------------


Path = tuple[int, ...]
"""The token numbers of a conversation, as in the program."""

FOLLOWED = {"begin", "feed", "break", "close", "cancel", "free", "limit"}
"""The operations that change tokens and that shadow states follow."""


class ConversationShadow(Shadow):
    """The conversations that a session or a trie has received.

    A token with the same preceding tokens always has the same tag, even if another
    request computes it. Tags are therefore stored by prefix: in the conversation 5, 7,
    the tag of token 7 is stored under the prefix (5, 7).

    Attributes:
        known: each prefix that was ever computed → the tag of its last token.
        request: the tokens of the open request.
        computed: the number of tokens of the request that are computed or reused.
        live: the conversation that all layers hold.
        is_apart: whether a pass was broken off, so that layers hold different tokens.
        is_armed: whether the next request will meet a refusal or make captures.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.known: dict[Path, int] = {}
        self.request: list[int] | None = None
        self.computed = 0
        self.live: Path = ()
        self.is_apart = self.is_armed = False

    def write(self, step: Step) -> None:
        """Applies a step. The pass counts as computed even if the generated tokens are
        refused."""
        error = "error" in step.answer
        self.is_lost |= bool(step.effect & CHANGES) and step.name not in FOLLOWED
        if step.name == "begin":
            self.is_armed = False
            if not error:
                self.request = list(step.op["tokens"])
                self.computed = len(self.request) - len(step.answer["remaining"])
                self.is_apart = False
        elif step.name in ("feed", "break") and self.request is not None:
            self.compute(step, self.request)
            self.is_apart |= step.name == "break"
            if not error:
                self.request += step.op.get("generate", [])
        elif step.name in ("close", "cancel") and not error:
            stored = tuple(self.request or ())[: step.answer["stored"]]
            self.live = () if self.is_apart else stored
            self.request = None
        elif step.name == "free" and not error:
            self.live = ()
        elif step.name in ("refuse", "checkpoint"):
            self.is_armed = True

    def compute(self, step: Step, request: Sequence[int]) -> None:
        begin = self.computed
        self.computed = min(begin + step.op["count"], len(request))
        tags = iter(step.tags)
        for end in range(begin + 1, self.computed + 1):
            path = tuple(request[:end])
            if path not in self.known:
                self.known[path] = next(tags)

    def may_interrupt(self, step: Step) -> bool:
        return self.request is None and not self.is_armed

    def rebuild(self, builder: Builder) -> bool:
        """Adds requests that compute the current conversation of a session again.

        First adds requests with all earlier conversations, so that their tokens have
        tags, and frees them. Returns False for a trie, because the answers do not
        determine the conversations that a trie holds.
        """
        if self.config["kind"] == "trie" or not self.live:
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
        rows = range(half), range(half, count)
        return [[(first, rows[0], rows[0]), (second, rows[1], rows[1])]]

    def derive_mask(self, step: Step) -> Derived | None:
        """Derives a new session that computes the same tokens without reuse.

        Claims the contents of the layers after a `begin`, and the visible tokens after a
        `feed`.
        """
        if step.name not in ("begin", "feed") or not any(step.answer.get("caches", ())):
            return None
        begin = self.computed
        self.write(step)
        rows = self.computed - begin if step.name == "feed" else 1
        tokens = (self.request or [])[: self.computed]
        if not tokens or len(tokens) > MAX_LENGTH or self.is_apart:
            return None
        builder = Builder(self.program, kind="session", limit=None, interval=None)
        tags = [self.known[tuple(tokens[: end + 1])] for end in range(len(tokens))]
        tell(builder, tokens, tags)

        def view(answer: Answer) -> Answer:
            seen = [layer.get("visible") for layer in answer["caches"]]
            return {
                "caches": [
                    {"visible": visible[-rows:], "tags": visible[-1]} if visible else {}
                    for visible in seen
                ]
            }

        builder.claim(step, 1, {"caches": step.answer["caches"]}, view)
        return builder.build("a fresh session that computes these tokens")


def has_cache(config: Config) -> bool:
    """Returns whether at least one layer has a cache."""
    return any(config["layers"])


def is_cuttable(config: Config) -> bool:
    """Returns whether every layer can go back to any earlier offset: each layer has full
    attention or no cache."""
    return {*config["layers"]} <= {"kv", None} and has_cache(config)


def tell(builder: Builder, path: Sequence[int], tags: Tags = ()) -> None:
    """Adds the operations of a complete request; `tags` are the tags of its new tokens in
    the first program."""
    builder.add({"op": "begin", "tokens": list(path)})
    builder.add({"op": "feed", "count": len(path)}, tags)
    builder.add({"op": "close"})


def ask(builder: Builder, step: Step, reused: Sequence[int], *new: int) -> None:
    """Adds the `begin` of a request with the tokens `reused` and `new`.

    Promises that exactly the tokens `new` remain to be computed; without `new`, exactly
    the last token.
    """
    tokens = [*reused, *new]
    number = builder.add({"op": "begin", "tokens": tokens})
    builder.promise(step, number, {"remaining": tokens[-max(1, len(new)) :]})


def list_tokens(builder: Builder, step: Step) -> list[int]:
    """Returns the tokens of the request that a step begins; [] if there are fewer than 2
    or more than 40 tokens."""
    tokens = step.op["tokens"]
    fits = "error" not in step.answer and 2 <= len(tokens) <= 40
    builder.config |= {"limit": None, "interval": None}
    return list(tokens) if fits and has_cache(builder.config) else []


def keep(builder: Builder, step: Step, where: str) -> None:
    """Promises that a request reuses an earlier conversation up to its end or to a
    captured offset. In a trie, this holds even after a request with another conversation.
    If the request repeats the earlier conversation, it computes one token, the last."""
    tokens = list_tokens(builder, step)
    if not tokens:
        return
    captured = 1 + step.number % (len(tokens) - 1)
    if where == "interval":
        builder.config["interval"] = captured
    if where == "checkpoint":
        builder.add({"op": "checkpoint", "offsets": [captured]})
    tell(builder, tokens)
    if where == "again" and is_cuttable(builder.config):
        ask(builder, step, tokens)
        builder.add({"op": "feed", "count": 1})
        builder.add({"op": "close"})
    if where == "parting":
        tell(builder, [*tokens[:captured], 71])
    if where in ("end", *INNER):
        tell(builder, [81, 82, 83])
    if where == "live":
        builder.add({"op": "limit", "bytes": 0})
    ask(builder, step, tokens[:captured] if where in INNER else tokens, 72)


def keep_recent(builder: Builder, step: Step) -> None:
    """Promises that a trie evicts the least recently used conversation. The limit is the
    size of two conversations. After the requests A, B, A, C, the trie must have evicted
    B and kept A."""
    tokens = list_tokens(builder, step)
    if not tokens:
        return
    second, third = ([token] * len(tokens) for token in (81, 82))
    tell(builder, tokens)
    ops = [*builder.ops, {"op": "count"}]
    size = trace(Program("prefix", builder.config, ops))[-1]["bytes"]
    builder.add({"op": "limit", "bytes": 2 * size})
    for conversation in (second, tokens, third):
        tell(builder, conversation)
    builder.promise(step, builder.add({"op": "count"}), {"bytes": 2 * size})
    ask(builder, step, (), *second, 71)
    builder.add({"op": "cancel"})
    ask(builder, step, tokens, 72)


def count_once(builder: Builder, step: Step) -> None:
    """Promises that the tokens of a shared prefix count once, for any order of the
    conversations."""
    tokens = list_tokens(builder, step)
    if tokens:
        shared = tokens[: 1 + step.number % (len(tokens) - 1)]
        for conversation in (shared, [*shared, 71], tokens):
            tell(builder, conversation)
        counted = {"tokens": len(tokens) + 1}
        builder.promise(step, builder.add({"op": "count"}), counted)


INNER = ("checkpoint", "parting", "interval")
"""The kinds of captured positions inside a conversation."""

SESSION: Mapping[str, Case] = {
    "a cache that has just computed the beginning": partial(keep, where="again")
}
TRIE: Mapping[str, Case] = {
    **SESSION,
    **{
        f"a trie that captured the {where}": partial(keep, where=where)
        for where in ("end", *INNER)
    },
    "a trie that may store only the content of its layers": partial(keep, where="live"),
    "a trie that evicts the least recently used conversation": keep_recent,
}
COUNTED: Mapping[str, Case] = {"a trie that has computed two conversations": count_once}


# --- slots ------------------------------------------------------------------------------


def count_common(held: Sequence[int], tokens: Sequence[int]) -> int:
    """Returns the length of the common prefix of two conversations."""
    length = min(len(held), len(tokens))
    return next((at for at in range(length) if held[at] != tokens[at]), length)


class SlotShadow(Shadow):
    """The tokens in each slot, derived from the answers.

    Attributes:
        slots: number of a slot → its tokens.
        users: user → the slot of the user's open request.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.slots: dict[int, list[int]] = {}
        self.users: dict[str, int] = {}

    def write(self, step: Step) -> None:
        answer, user = step.answer, get_user(step)
        self.is_lost |= bool(step.effect & CHANGES) and step.name not in FOLLOWED
        if step.name == "begin" and "slot" in answer:
            self.users[user] = answer["slot"]
        if user in self.users and "tokens" in answer and step.name != "statistics":
            self.slots[self.users[user]] = list(answer["tokens"])
        if step.name in ("close", "cancel"):
            self.users.pop(user, None)


def get_user(step: Step) -> str:
    """Returns the user of a step's operation."""
    return str(step.op.get("user", "a"))


def call_cache(history: History, state: Shadow, step: Step, way: None) -> Derived | None:
    """Claims that slots behave like a sequence of calls of a unified cache.

    The derived program makes these calls with one sequence for each slot; the rows of its
    passes must see the same tokens. Examples:

    * a request in slot 1 that keeps 3 tokens: remove sequence 1 from position 3 on;
    * a request that gets the content of another slot: copy a prefix;
    * a request that is too long and loses its middle: remove a range of positions.
    """
    config = history.program.config
    builder = Builder(history.program, "unified", **get_unified_config(config))
    for called, slots in history.walk():
        slot, answer = slots.users.get(get_user(called)), called.answer
        if called.name == "begin" and "slot" in answer:
            begin(builder, called, slots.slots, config["several_users"])
        elif called.name in ("feed", "break") and "positions" in answer:
            compute(builder, called, slot, len(slots.slots[slot]), config["keep"])
        elif called.name in ("close", "cancel") and slot is not None:
            add_removal(builder, slot, len(answer["tokens"]))
    return builder.build("the same calls of a unified cache")


def begin(
    builder: Builder, step: Step, slots: Mapping[int, Any], several_users: bool
) -> None:
    """Adds the calls of a `begin`.

    With several users, copies the longest prefix that any slot shares with the request,
    if the request's own slot shares a shorter one.
    """
    slot, kept = step.answer["slot"], len(step.answer["tokens"])
    common = {n: count_common(held, step.op["tokens"]) for n, held in slots.items()}
    best = max(common, key=lambda n: (common[n], -n), default=slot)
    if several_users and kept and common.get(slot, 0) < common.get(best, 0):
        fork = {"source": best, "target": slot, "length": common[best]}
        builder.add({"op": "copy_prefix", **fork})
    add_removal(builder, slot, kept)


def compute(builder: Builder, step: Step, slot: int, held: int, keep: int) -> None:
    """Adds the calls of a pass in a slot.

    Args:
        builder: the derived program.
        step: the step of the first program.
        slot: the number of the slot.
        held: the number of tokens in the slot.
        keep: how many tokens at the beginning stay when the middle is removed.
    """
    positions = step.answer["positions"]
    if positions[0] == 0 and held:
        add_removal(builder, slot, 0)
    elif positions[0] < held:
        add_removal(builder, slot, keep, keep + held - positions[0])
    rows = {"positions": positions, "sequences": [slot] * len(positions)}
    number = builder.add({"op": "forward", **rows}, step.tags[: len(positions)])
    seen = ("visible", "caches", "states", "error")
    answer = {name: step.answer[name] for name in seen if name in step.answer}
    if answer:
        builder.claim(step, number, answer)


def is_wide(builder: Builder, several_users: bool) -> bool:
    config = builder.config
    fits = config["slots"] > 1 and config["context"] > 3
    return bool(fits and config["several_users"] == several_users)


def take_longest(builder: Builder, step: Step) -> None:
    """Promises that a single user gets the free slot that shares the most tokens with the
    request."""
    if is_wide(builder, several_users=False):
        builder.play(
            step,
            "begin tokens=[80] user=b; begin tokens=[81]; feed count=1; close;"
            " feed count=1 user=b; close user=b;"
            " begin tokens=[81,70] => remaining=[70]; feed count=1; close",
        )


def take_oldest(builder: Builder, step: Step) -> None:
    """Promises that, with several users, a request gets the least recently used slot."""
    if is_wide(builder, several_users=True):
        for slot in range(builder.config["slots"]):
            tell(builder, [80 + slot])
        builder.play(
            step,
            "begin tokens=[80,70]; feed count=1; close;"
            " begin tokens=[90]; feed count=1; close;"
            " begin tokens=[80,70,71] => remaining=[71]; feed count=1; close;"
            " begin tokens=[81] => tokens=[] remaining=[81]; feed count=1; close",
        )


SLOTS: Mapping[str, Case] = {
    "slots after two requests at the same time": take_longest,
    "slots that were used once each, the first slot twice": take_oldest,
}
FAMILIES = {
    "session": Family(ConversationShadow, [make_cases("keep", "begin", SESSION)]),
    "trie": Family(
        ConversationShadow,
        [make_cases("keep", "begin", TRIE), make_cases("store", "begin", COUNTED)],
    ),
    "slots": Family(
        SlotShadow,
        [Relation("pool", apply_once, call_cache), make_cases("oldest", "begin", SLOTS)],
    ),
}
