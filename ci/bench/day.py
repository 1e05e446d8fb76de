"""A day of a chat server and of agents, and how much of it a prefix cache can reuse.

`make_day` draws requests from a seed. The distributions (LN(m, s): lognormal with median
m and sigma s, clipped to the range behind it):

* starts: exponential, one every 30 s; 3 of 4 are chats, the others agents' tasks.
* chat: one of 8 system prompts, the i-th with weight 1 / i, LN(600, 0.7) tokens in
  100 … 2,000; turns geometric with mean 6. Each request is the whole conversation so far
  and a new message of LN(60, 1) in 3 … 1,500; answers LN(200, 0.8) in 5 … 1,200; time to
  think LN(40 s, 1) in 2 s … 1 h, but 15 % go away for LN(1 h, 1) in 5 min … 8 h. After an
  answer 8 % ask again for the same (with another answer, after a quarter of the time to
  think); before a message 5 % edit an earlier one instead: the conversation goes on from
  there.
* agent: one of 3 system prompts with tools, LN(2,000, 0.3) in 1,000 … 3,500; a task of
  LN(200, 0.7) in 20 … 1,000; turns geometric with mean 14. Answers (calls of tools)
  LN(50, 0.6) in 8 … 300, what the tool says LN(180, 1.3) in 5 … 3,000, tools take
  LN(3 s, 1.2) in 0.2 s … 10 min. 30 % send 2 to 5 sub-agents once: each has all that the
  agent has so far and an instruction of LN(80, 0.5), 3 to 8 turns of its own, all at the
  same time; the agent waits for them and goes on with LN(150, 0.5) tokens from each.
* 5 % of all requests are broken off: 30 % of these in the prefill, 60 % in the answer,
  10 % within a pass, after 1 to 3 layers. Half are sent again as they are, the others go
  on with what was answered so far.
* a request takes 1 s for each 8,000 tokens of its prompt and for each 60 of its answer.
  Everything is ordered by the time at which it is asked. No prompt has over 8,192 tokens:
  who gets there stops.

Messages stand between tokens that tell whose they are, as in a chat template. The last
token of an answer is never computed. Captures are asked for behind the system prompt,
and behind what sub-agents share.

`Simulation` counts what a cache that keeps the rules of `reference/trie.py` reuses. It
has no tree: only a sorted list of the stored conversations. It is compared with that
reference itself, on random requests and on a small day, in
`tests/project/test_prefix_bench.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]
Range = tuple[float, float]

SYSTEM, USER, ASSISTANT, TOOL, END = range(5)
VOCABULARY = 50_000
LONGEST = 8_192
LAYERS = 4
"""Layers that a pass goes through; it may break off between them."""

BLOCK = 64
"""Generated tokens that are handed over at once."""

Stop = Literal["", "prefill", "answer", "pass"]
Turn = tuple[float, Tokens]
"""When it is over, and the conversation then."""


@dataclass(frozen=True)
class Request:
    """What is asked, when, by whom, and how it ends.

    answer: the tokens that are generated, if it is not broken off before. checkpoints:
    see `reference.trie.Trie.begin`. stop: where it is broken off; "": it is not. share:
    how far in the prompt or in the answer that is. layers: those that have seen the last
    part of a pass that broke off.
    """

    time: float
    who: str
    prompt: Tokens
    answer: Tokens
    checkpoints: tuple[int, ...] = ()
    stop: Stop = ""
    share: float = 1.0
    layers: int = LAYERS

    @property
    def generated(self) -> Tokens:
        """The tokens that it has come to, if all went well before them."""
        if self.stop in ("prefill", "pass"):
            return self.answer[:0]
        return self.answer[: max(1, int(self.share * len(self.answer)))]

    @property
    def text(self) -> Tokens:
        return np.concatenate((self.prompt, self.generated))


Step = Callable[[int, int], None]


def play(request: Request, cache: Any, feed: Step, feed_some: Step) -> None:
    """Everything between begin and close. cache: has `extend`; it has just begun.

    feed(begin, end): the layers compute these tokens of the text. feed_some(end, layers):
    the first `layers` of them compute what is left before `end`, the others do not.
    """
    end = len(request.prompt)
    if request.stop in ("prefill", "pass"):
        feed(0, int(request.share * (end - 1)))
        if request.stop == "pass":
            feed_some(end, request.layers)
        return
    feed(0, end)
    computed = request.generated[:-1]
    for begin in range(0, len(computed), BLOCK):
        block = computed[begin : begin + BLOCK]
        cache.extend(block.tolist())
        feed(end + begin, end + begin + len(block))
    cache.extend(request.generated[-1:].tolist())


# --- the day ----------------------------------------------------------------------------


class Author:
    """Draws everything that the docstring of this module names."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.chats = [self.draw_system(600, 0.7, (100, 2_000)) for _ in range(8)]
        self.tools = [self.draw_system(2_000, 0.3, (1_000, 3_500)) for _ in range(3)]
        weights = 1 / np.arange(1, len(self.chats) + 1)
        self.weights = weights / weights.sum()

    def draw(self, middle: float, sigma: float, limits: Range) -> float:
        return float(np.clip(self.random.lognormal(np.log(middle), sigma), *limits))

    def draw_tokens(self, middle: float, sigma: float, limits: Range) -> Tokens:
        length = int(self.draw(middle, sigma, limits))
        return self.random.integers(END + 1, VOCABULARY, length).astype(np.uint32)

    def draw_system(self, middle: float, sigma: float, limits: Range) -> Tokens:
        return say(SYSTEM, self.draw_tokens(middle, sigma, limits))

    def has(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def ask(
        self, time: float, who: str, prompt: Tokens, answer: Tokens, points: set[int]
    ) -> Request:
        checkpoints = tuple(sorted(points))
        if not self.has(0.05):
            return Request(time, who, prompt, answer, checkpoints)
        stop: Stop = self.random.choice(["prefill", "answer", "pass"], p=[0.3, 0.6, 0.1])
        share, layers = self.random.random(), int(self.random.integers(1, LAYERS))
        return Request(time, who, prompt, answer, checkpoints, stop, share, layers)

    def chat(self, time: float) -> Iterator[Request]:
        system = self.chats[self.random.choice(len(self.chats), p=self.weights)]
        turns: list[Tokens] = [system]  # the conversation before each message
        for _ in range(self.random.geometric(1 / 6)):
            think = self.draw(40, 1, (2, 3_600))
            if self.has(0.15):
                think = self.draw(3_600, 1, (300, 28_800))
            if self.has(0.05):
                del turns[self.random.integers(1, len(turns) + 1) :]
            prompt = say(USER, self.draw_tokens(60, 1, (3, 1_500)), turns[-1])
            while True:
                answer = self.draw_tokens(200, 0.8, (5, 1_200))
                if len(prompt) > LONGEST:
                    return
                request = self.ask(time, "chat", prompt, end(answer), {len(system)})
                yield request
                time += get_duration(request) + think / 4
                resent = bool(request.stop) and self.has(0.5)
                if not resent and not self.has(0.08):
                    break
            turns.append(request.text)
            time += think * 3 / 4

    def task(self, time: float) -> Iterator[Request]:
        system = self.tools[self.random.integers(len(self.tools))]
        prompt = say(USER, self.draw_tokens(200, 0.7, (20, 1_000)), system)
        turns = int(self.random.geometric(1 / 14))
        helped = int(self.random.integers(turns)) if self.has(0.3) else -1
        for turn in range(turns):
            last = yield from self.turn(time, "agent", prompt, {len(system)})
            if last is None:
                return
            time, prompt = last
            if turn == helped:
                time, prompt = yield from self.send(time, prompt, len(system))
            prompt = say(TOOL, self.draw_tokens(180, 1.3, (5, 3_000)), prompt)
            time += self.draw(3, 1.2, (0.2, 600))

    def turn(
        self, time: float, who: str, prompt: Tokens, points: set[int]
    ) -> Generator[Request, None, Turn | None]:
        """One answer; None if the conversation is too long for it."""
        while len(prompt) <= LONGEST:
            answer = end(self.draw_tokens(50, 0.6, (8, 300)))
            request = self.ask(time, who, prompt, answer, points)
            yield request
            time += get_duration(request)
            if not (request.stop and self.has(0.5)):
                return time, request.text
        return None

    def send(
        self, time: float, shared: Tokens, system: int
    ) -> Generator[Request, None, Turn]:
        """Sub-agents, until the last is done."""
        done, found = time, shared
        for _ in range(self.random.integers(2, 6)):
            now = time
            prompt = say(USER, self.draw_tokens(80, 0.5, (10, 400)), shared)
            for _ in range(self.random.integers(3, 9)):
                points = {system, len(shared)}
                last = yield from self.turn(now, "sub-agent", prompt, points)
                if last is None:
                    break
                now, prompt = last
                prompt = say(TOOL, self.draw_tokens(180, 1.3, (5, 3_000)), prompt)
                now += self.draw(3, 1.2, (0.2, 600))
            done = max(done, now)
            found = np.concatenate((found, self.draw_tokens(150, 0.5, (20, 600))))
        return done, found


def say(who: int, message: Tokens, before: Tokens | None = None) -> Tokens:
    """A message behind a conversation; after a user's or a tool's an answer is due."""
    due = [ASSISTANT] if who in (USER, TOOL) else []
    earlier = message[:0] if before is None else before
    frame = np.array([who, END, *due], np.uint32)
    return np.concatenate((earlier, frame[:1], message, frame[1:]))


def end(answer: Tokens) -> Tokens:
    return np.append(answer, np.uint32(END))


def get_duration(request: Request) -> float:
    return len(request.prompt) / 8_000 + len(request.generated) / 60


def make_day(seed: int, count: int) -> list[Request]:
    """The first `count` requests, in the order in which they are asked."""
    author = Author(seed)
    requests: list[Request] = []
    start = 0.0
    while len(requests) < count or sum(each.time <= start for each in requests) < count:
        start += author.random.exponential(30)
        requests += author.task(start) if author.has(0.25) else author.chat(start)
    return sorted(requests, key=lambda request: request.time)[:count]


# --- what can be reused -----------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """One layer, as far as its bytes go: a kv layer, one with a window, or a state.

    token_bytes: K and V of one token; 0 for a state. state_bytes: all of a state.
    """

    token_bytes: int = 0
    window: int | None = None
    state_bytes: int = 0

    @property
    def can_be_cut(self) -> bool:
        return self.window is None and not self.state_bytes

    def count_captured(self, end: int) -> int:
        """What a capture after `end` tokens takes."""
        return self.state_bytes or min(end, self.window or 0) * self.token_bytes


@dataclass(eq=False)
class Mark:
    """A stored conversation: when it was last used and, to break ties, when it was made;
    the layers that were captured at its end; how many others go on from it, without
    another in between."""

    order: int
    used: int = 0
    children: int = 0
    captured: set[int] = field(default_factory=set)


Path = bytes
"""The tokens of a conversation, four bytes each, the highest first: bytes are ordered as
the lists of tokens are."""


def encode(tokens: Sequence[int] | Tokens) -> Path:
    return np.asarray(tokens, ">u4").tobytes()


def count_common(left: Path, right: Path) -> int:
    """Tokens that two conversations have in common, from their beginning on."""
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size // 4
    a, b = (np.frombuffer(path, np.uint32, size // 4) for path in (left, right))
    return int((a != b).argmax())


class Simulation:
    """The rules of `reference/trie.py` on tokens alone, fast enough for a day.

    paths: the stored conversations, sorted. Those that begin with one stand right behind
    it, and the one that has most in common with a request is its neighbour. Where two of
    them part is a stored one too, so that what the left neighbour has in common is the
    longest one before.
    """

    def __init__(
        self, kinds: Sequence[Kind], limit: int | None = None, interval: int | None = None
    ) -> None:
        self.kinds, self.limit, self.interval = kinds, limit, interval
        self.whole = [n for n, kind in enumerate(kinds) if not kind.can_be_cut]
        self.token_bytes = sum(kind.token_bytes for kind in kinds if kind.can_be_cut)
        self.clear()
        self.request: Path | None = None
        self.clock = self.made = 0

    def clear(self) -> None:
        self.paths: list[Path] = []
        self.marks: dict[Path, Mark] = {}
        self.queue: list[tuple[int, int, Path]] = []
        self.tokens = self.captured_bytes = 0
        self.live: Path = b""
        self.offsets = [0] * len(self.kinds)

    # --- a request ----------------------------------------------------------------------

    def begin(
        self, tokens: Sequence[int] | Tokens, checkpoints: Collection[int] = ()
    ) -> int:
        """How many tokens of the request need not be computed."""
        self.request = request = encode(tokens)
        matched = self.count_matched(request)
        self.reused = self.compute_reuse(request, min(matched, len(tokens) - 1))
        self.wanted = set(checkpoints)
        if 0 < matched < len(tokens):
            self.wanted.add(matched)
        self.live = request[: 4 * self.reused]
        self.touch(self.live)
        self.offsets = [self.reused] * len(self.kinds)
        return self.reused

    def compute_reuse(self, request: Path, most: int) -> int:
        """The longest beginning that all layers can be brought to. Where all can is where
        all were captured, or one of them stands, or the live conversation ends."""
        if not self.whole:
            return most
        live = min(most, count_common(request, self.live))
        reach = {min(live, offset) for offset in self.offsets}
        best = max((p for p in reach if self.can_reach(request, p, live)), default=0)
        path = request[: 4 * most]
        path = path if path in self.marks else self.get_parent(path)
        while len(path) > 4 * best and not self.can_reach(request, len(path) // 4, live):
            path = self.get_parent(path)
        return max(best, len(path) // 4)

    def can_reach(self, request: Path, length: int, live: int) -> bool:
        mark = self.marks.get(request[: 4 * length])
        captured = mark.captured if mark else ()
        return all(
            number in captured or (length <= live and self.can_go_back(number, length))
            for number in self.whole
        )

    def can_go_back(self, number: int, target: int) -> bool:
        """Whether the layer itself can, from where it stands."""
        offset, window = self.offsets[number], self.kinds[number].window
        rewinds = window is not None and target < offset <= window
        return target == offset or rewinds

    def extend(self, tokens: Sequence[int] | Tokens) -> None:
        assert self.request is not None
        before = len(self.request) // 4
        self.request += encode(tokens)
        matched = self.count_matched(self.request)
        if before <= matched < len(self.request) // 4:
            self.wanted.add(matched)

    def feed(self, end: int, layers: int | None = None) -> None:
        """The layers, or the first of them, have read the request up to `end`."""
        for number in range(len(self.kinds))[:layers]:
            self.offsets[number] = max(end, self.offsets[number])

    def close(self) -> int:
        assert self.request is not None
        reached = min(self.offsets)
        self.live, self.request = self.request[: 4 * reached], None
        if reached:
            self.store(self.live, reached)
        self.keep_limit()
        return reached

    def store(self, path: Path, length: int) -> None:
        if parting := self.count_matched(path):
            self.add(path[: 4 * parting])
        ends = self.wanted | {length}
        if self.interval is not None:
            ends |= set(range(self.interval, length, self.interval))
        for end in sorted(end for end in ends if max(1, self.reused) <= end <= length):
            mark = self.add(path[: 4 * end])
            periodic = self.interval is not None and end % self.interval == 0
            for number in self.whole:
                passed = end in self.wanted or periodic
                if number not in mark.captured and (
                    passed or self.offsets[number] == length
                ):
                    mark.captured.add(number)
                    self.captured_bytes += self.kinds[number].count_captured(end)
            self.touch(path[: 4 * end])

    def free(self) -> None:
        self.clear()

    # --- the stored conversations -------------------------------------------------------

    def count_matched(self, request: Path) -> int:
        """What the request has in common with a stored conversation, at most."""
        at = bisect_left(self.paths, request)
        near = self.paths[max(0, at - 1) : at + 1]
        return max((count_common(request, path) for path in near), default=0)

    def get_parent(self, path: Path) -> Path:
        """The longest other stored one that it begins with; it is stored itself, or some
        stored one goes on from it."""
        at = bisect_left(self.paths, path)
        if at == 0:
            return b""
        parent = path[: 4 * count_common(path, self.paths[at - 1])]
        assert not parent or parent in self.marks
        return parent

    def add(self, path: Path) -> Mark:
        if path in self.marks:
            return self.marks[path]
        parent = self.get_parent(path)
        at = bisect_left(self.paths, path)
        inside = at < len(self.paths) and self.paths[at].startswith(path)
        self.made += 1
        mark = self.marks[path] = Mark(self.made, children=int(inside))
        self.paths.insert(at, path)
        if not inside:
            self.tokens += (len(path) - len(parent)) // 4
            if parent:
                self.marks[parent].children += 1
        self.queue_up(path)
        return mark

    def touch(self, tokens: Path) -> None:
        """The shortest stored one that begins with these tokens was used."""
        at = bisect_left(self.paths, tokens)
        if tokens and at < len(self.paths) and self.paths[at].startswith(tokens):
            self.clock += 1
            self.marks[self.paths[at]].used = self.clock
            self.queue_up(self.paths[at])

    def queue_up(self, path: Path) -> None:
        mark = self.marks[path]
        heappush(self.queue, (mark.used, mark.order, path))

    def count_bytes(self) -> int:
        return self.tokens * self.token_bytes + self.captured_bytes

    # --- the limit ----------------------------------------------------------------------

    def set_limit(self, limit: int | None) -> None:
        self.limit = limit
        self.keep_limit()

    def keep_limit(self) -> None:
        kept = set()
        while self.limit is not None and self.count_bytes() > self.limit and self.queue:
            entry = heappop(self.queue)
            if not self.is_current(*entry):
                continue
            if self.is_protected(entry[2]):
                kept.add(entry)
            else:
                self.evict(entry[2])
        for entry in kept:
            heappush(self.queue, entry)

    def is_current(self, used: int, order: int, path: Path) -> bool:
        """Whether it can be evicted, and was not used since."""
        mark = self.marks.get(path)
        if mark is None or (mark.used, mark.order) != (used, order):
            return False
        return not mark.children or bool(mark.captured)

    def is_protected(self, path: Path) -> bool:
        """Whether the layers stand on it, or inside its last part."""
        live = self.get_live()
        if live.startswith(path):
            return True
        return path.startswith(live) and len(self.get_parent(path)) < len(live)

    def get_live(self) -> Path:
        tokens = self.live if self.request is None else self.request
        return tokens[: 4 * min(self.offsets)]

    def count_protected(self) -> int:
        """The bytes of all that is protected."""
        live = self.get_live()
        at = bisect_left(self.paths, live)
        path = live
        if path not in self.marks and path:
            inside = at < len(self.paths) and self.paths[at].startswith(live)
            path = self.paths[at] if inside else self.get_parent(live)
        total = len(path) // 4 * self.token_bytes
        while path:
            end, captured = len(path) // 4, self.marks[path].captured
            total += sum(self.kinds[number].count_captured(end) for number in captured)
            path = self.get_parent(path)
        return total

    def evict(self, path: Path) -> None:
        mark, parent = self.marks[path], self.get_parent(path)
        end = len(path) // 4
        for number in mark.captured:
            self.captured_bytes -= self.kinds[number].count_captured(end)
        mark.captured.clear()
        if mark.children > 1:
            return
        del self.marks[path]
        del self.paths[bisect_left(self.paths, path)]
        if mark.children == 0:
            self.tokens -= (len(path) - len(parent)) // 4
            if parent:
                self.marks[parent].children -= 1
                self.queue_up(parent)
