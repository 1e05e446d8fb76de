"""Probe models: they generate what the reference says, without an engine and in two."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from lockstep.harness.backends.probe import KINDS, get_probe
from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.codes import POLYNOMIALS, get_capacity, make_codes
from lockstep.impl.probe.forward import Forward
from lockstep.impl.probe.write import BUILDERS
from lockstep.reference.serving import find
from tests.impl.probing import Config, iter_prompts, list_wrong, make_config

CONFIGS = [
    make_config(kind, **sizes)
    for kind in KINDS
    for sizes in (
        {},
        {"layers": 1, "heads": 1, "distance": 1},
        {"layers": 3, "heads": 1, "context": 100},
        {"layers": 1, "heads": 3, "distance": 5, "content": 300},
    )
]


def name_config(config: Config) -> str:
    return "-".join(map(str, config.values()))


def make_forward(config: Config, format: str = "hf", **changes: Any) -> Forward:
    return Forward(BUILDERS[config["kind"], format](config), **changes)


def answer_by(forward: Forward) -> Any:
    def answer(prompt: Sequence[int], count: int) -> list[int]:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(forward.compute_logits(ids).argmax()))
        return ids[len(prompt) :]

    return answer


@pytest.mark.parametrize("length", POLYNOMIALS)
def test_codes_differ(length: int) -> None:
    codes = make_codes(get_capacity(length), length)
    chosen = codes[np.random.default_rng(0).permutation(len(codes))[:2000]]
    products = chosen @ chosen.T
    assert (products.diagonal() == length).all()
    np.fill_diagonal(products, 0)
    assert products.max() <= max(2 * length**0.5, (2 * length) ** 0.5)


@pytest.mark.parametrize("config", CONFIGS, ids=name_config)
def test_a_model_generates_what_the_reference_says(config: Config) -> None:
    forwards = [make_forward(config, "hf")]
    if config["kind"] == "serving-sliding":  # another architecture in GGUF
        forwards.append(make_forward(config, "gguf"))
    for forward in forwards:
        assert list_wrong(config, answer_by(forward), 20) == []


@pytest.mark.parametrize("kind", KINDS)
def test_other_tokens_have_no_weight(kind: str) -> None:
    """The asked head gives less than exp(-10) to all other tokens together."""
    config = make_config(kind, layers=1, context=256, content=512)
    forward, probe = make_forward(config), get_probe(config)
    for prompt in iter_prompts(probe, Random(1), 40):
        position = find(probe.heads, probe.usual, prompt)
        forward.compute_logits([probe.get_id(token) for token in prompt])
        weights = forward.weights[0][prompt[-1].head]
        same = [token == prompt[position] for token in prompt]
        assert weights[~np.array(same)].sum() < np.exp(-10)


# --- mistakes of an engine that must show -----------------------------------------------


class Unrotated(Forward):
    rotated = 0

    def rotate(self, numbers: Array) -> Array:
        self.rotated += 1
        return numbers if self.rotated % 2 == 0 else super().rotate(numbers)


def test_a_window_that_is_too_wide_shows() -> None:
    config = make_config("serving-sliding")
    forward = make_forward(config)
    forward.settings = {**forward.settings, "sliding_window": config["window"] + 1}
    assert list_wrong(config, answer_by(forward), 40)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_are_not_rotated_show(kind: str) -> None:
    config = make_config(kind)
    forward = Unrotated(BUILDERS[kind, "hf"](config))
    assert len(list_wrong(config, answer_by(forward), 40)) > 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calls", [0, 1], ids=["keys", "values"])
def test_the_key_or_the_value_of_a_neighbour_shows(kind: str, calls: int) -> None:
    count = iter(range(1 << 30))

    def store(stored: Array) -> Array:
        return np.roll(stored, 1, 1) if next(count) % 2 == calls else stored

    config = make_config(kind)
    forward = make_forward(config, store=store)
    assert len(list_wrong(config, answer_by(forward), 40)) > 10
