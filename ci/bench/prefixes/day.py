"""A day of a chat server and of agents.

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
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
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
    """A request: what is asked, when, by whom, and how it ends.

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


def make_day(seed: int, count: int, every: float = 30) -> list[Request]:
    """The first `count` requests, in the order in which they are asked.

    every: seconds from one start to the next, on average.
    """
    author = Author(seed)
    requests: list[Request] = []
    start = 0.0
    while len(requests) < count or sum(each.time <= start for each in requests) < count:
        start += author.random.exponential(every)
        requests += author.task(start) if author.has(0.25) else author.chat(start)
    return sorted(requests, key=lambda request: request.time)[:count]
