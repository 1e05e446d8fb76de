"""Prints the margins of probe models for each storage of K and V, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np

from lockstep.harness.backends.probe import KINDS, WINDOWED, get_probe
from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.forward import Forward
from lockstep.impl.probe.write import BUILDERS
from lockstep.reference.serving import Ask, Token, find

PROMPTS = 60
MEASURED = [
    kind for kind in KINDS if kind not in ("serving-convolution", "serving-state")
]
"""The first layer of the others is a layer of serving-sliding without a window."""

SIZES = {"layers": 1, "heads": 2, "content": 512, "context": 512, "distance": 3}


def round_to_bits(numbers: Array, bits: int) -> Array:
    """Keeps so many bits of each mantissa, the first bit included."""
    mantissas, exponents = np.frexp(numbers)
    rounded: Array = np.ldexp(np.round(mantissas * 2**bits) / 2**bits, exponents)
    return rounded


def round_blocks(numbers: Array, steps: int) -> Array:
    """Rounds blocks of 32 numbers to multiples of their largest number / steps."""
    blocks = numbers.reshape(*numbers.shape[:-1], -1, 32)
    most = blocks.max(-1, keepdims=True), blocks.min(-1, keepdims=True)
    largest = np.where(most[0] > -most[1], *most)
    scale = np.where(largest == 0, 1, largest / -steps)
    # As in llama.cpp, the largest number is at the end of the range of integers that is
    # longer by one.
    rounded = np.clip(np.round(blocks / scale), -steps, steps - 1) * scale
    return rounded.reshape(numbers.shape)


STORAGES: Mapping[str, Callable[[Array], Array]] = {
    "float32": lambda numbers: numbers.astype(np.float32).astype(np.float64),
    "bfloat16": lambda numbers: round_to_bits(numbers, 8),
    "float16": lambda numbers: round_to_bits(numbers, 11),
    "fp8 (3 bits of mantissa)": lambda numbers: round_to_bits(numbers, 4),
    "8 bits, blocks of 32": lambda numbers: round_blocks(numbers, 128),
    "4 bits, blocks of 32": lambda numbers: round_blocks(numbers, 8),
}


def measure(config: Mapping[str, Any], store: Callable[[Array], Array]) -> str:
    """Returns the number of wrong answers if there are any; else the least margins of
    scores and of logits."""
    probe, random, wrong = get_probe(config), Random(1), 0
    forward = Forward(BUILDERS[config["kind"], "hf"](config), store)
    scores, logits = [], []
    for number in range(PROMPTS):
        length = random.randint(20, probe.context - 2)
        tags: list[Token] = [*random.sample(range(probe.content), length)]
        ask = Ask(number % len(probe.heads), 0)
        head = probe.heads[ask.head]
        seen = [place for place in range(length + 1) if head.sees(length, place)]
        argument = random.choice([1, len(seen) - 1, random.randrange(len(seen))])
        tag = random.choice([token for token in tags if isinstance(token, int)])
        ask = Ask(ask.head, argument if head.finds == "distance" else tag)
        prompt = [*tags, ask]
        position = find(probe.heads, probe.usual, prompt)
        assert position is not None
        answers = forward.compute_logits([probe.get_id(token) for token in prompt])
        wrong += answers.argmax() != probe.get_id(prompt[position])
        logits.append(np.diff(np.sort(answers)[-2:])[0])
        others = np.delete(forward.weights[0][ask.head], position).sum()
        scores.append(-np.log(max(others, 1e-30)))
    return f"{wrong} wrong" if wrong else f"{min(scores):.0f}, {min(logits):.0f}"


def main() -> None:
    print(f"| kind | {' | '.join(STORAGES)} |")
    print("|---" * (len(STORAGES) + 1) + "|")
    for kind in MEASURED:
        config = {"kind": kind, "window": 64 if kind in WINDOWED else None, **SIZES}
        margins = [measure(config, store) for store in STORAGES.values()]
        print(f"| `{kind}` | {' | '.join(margins)} |", flush=True)


if __name__ == "__main__":
    main()
