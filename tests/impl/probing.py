"""Random prompts for probes, and what an engine answers to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from lockstep.harness.backends.probe import WINDOWED, Probe, get_probe
from lockstep.reference.serving import Ask, Token, find, generate

Config = dict[str, Any]


def make_config(kind: str, **fields: Any) -> Config:
    """Returns a complete config of a small probe."""
    sizes = {"layers": 2, "heads": 2, "content": 64, "context": 64, "distance": 3}
    window = 8 if kind in WINDOWED else None
    return {"kind": kind, "window": window, **sizes, **fields}


def iter_prompts(
    probe: Probe, random: Random, count: int, shortest: int = 1
) -> Iterator[list[Token]]:
    """Iterates over prompts of different tags, with asks whose answer is defined; the
    asks for the first and the last visible token come often."""
    yielded = 0
    while yielded < count:
        most = min(probe.context - 20, probe.content)
        length = random.randint(shortest, most)
        tags: list[Token] = [*random.sample(range(probe.content), length)]
        if random.random() < 0.3:  # tags that an earlier ask copied
            tags[length // 2] = Ask(0, random.randrange(probe.context))
        head = random.randrange(len(probe.heads))
        if probe.heads[head].finds == "distance":
            last = min(probe.heads[head].window or length, length)
            if probe.heads[head].chunk is not None:
                last = min(last, length % probe.heads[head].chunk + 1)
            arguments = [0, 1, last - 1, last, random.randint(0, last)]
            if probe.heads[head].echoes:
                arguments += [last + 1, random.randrange(probe.context)]
        else:
            arguments = [tags[0], tags[-1], random.choice(tags)]
            if probe.heads[head].echoes:
                arguments.append(random.randrange(probe.content))
        argument = random.choice(arguments)
        if not isinstance(argument, int):
            continue
        prompt = [*tags, Ask(head, argument)]
        if find(probe.heads, probe.usual, prompt) is not None:
            yielded += 1
            yield prompt


def list_wrong(
    config: Config,
    answer: Callable[[Sequence[int], int], Sequence[int]],
    count: int,
    tokens: int = 4,
) -> list[tuple[list[Token], Sequence[Token], Sequence[int]]]:
    """Lists prompts with the right answer and with another that an engine gives.

    Args:
        config: the config of the probe.
        answer: generates ids behind the ids of a prompt.
        count: the number of prompts.
        tokens: the number of generated tokens.
    """
    probe, random = get_probe(config), Random(7)
    wrong = []
    for prompt in iter_prompts(probe, random, count):
        right = generate(probe.heads, probe.usual, prompt, tokens)
        if right is None:  # only its first token is defined
            right = generate(probe.heads, probe.usual, prompt, 1)
        assert right is not None
        got = answer([probe.get_id(token) for token in prompt], len(right))
        if list(got) != [probe.get_id(token) for token in right]:
            wrong.append((prompt, right, got))
    return wrong
