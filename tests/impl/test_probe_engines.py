"""Probe models in third-party engines: transformers, and llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.probe import KINDS, read_probe
from lockstep.impl.probe.write import BUILDERS, write
from tests.impl.probing import list_wrong, make_config

needs_transformers = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("transformers")),
    reason="transformers is not installed",
)
needs_llama = pytest.mark.skipif(
    not (find_spec("xllamacpp") and find_spec("gguf")),
    reason="xllamacpp or gguf is not installed",
)


@needs_transformers
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_answers_like_the_reference(kind: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = make_config(kind, context=128, content=256)
    write(config, "hf", "float32", tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("t17 t4").input_ids == [17, 4]
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)

        def answer(prompt: Sequence[int], count: int, model: Any = model) -> list[int]:
            asked = torch.tensor([prompt])
            mask = torch.ones_like(asked)
            ids = model.generate(
                asked, attention_mask=mask, max_new_tokens=count, do_sample=False
            )
            return [int(number) for number in ids[0, len(prompt) :]]

        assert list_wrong(config, answer, 50) == []


@needs_transformers
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_stored_types_load(dtype: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    for name in ("float32", dtype):
        (tmp_path / name).mkdir()
        write(make_config("serving-full"), "hf", name, tmp_path / name)
    exact, stored = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype="auto").state_dict()
        for name in ("float32", dtype)
    )
    for name, tensor in stored.items():
        assert tensor.dtype == getattr(torch, dtype)
        assert torch.equal(tensor, exact[name].to(tensor.dtype))


@needs_llama
@pytest.mark.parametrize("kind", [kind for kind in KINDS if (kind, "gguf") in BUILDERS])
def test_llama_cpp_answers_like_the_reference(kind: str, tmp_path: Path) -> None:
    import xllamacpp

    config = make_config(kind, context=128, content=256)
    if kind == "serving-chunked":
        config["window"] = 8192
    write(config, "gguf", "float32", tmp_path)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(read_probe(tmp_path).weights)
    parameters.n_ctx, parameters.n_parallel = 256, 1
    parameters.cpuparams.n_threads = 1
    parameters.verbosity, parameters.warmup = -1, False
    server = xllamacpp.Server(parameters)

    def answer(prompt: Sequence[int], count: int) -> list[int]:
        request = {
            "prompt": prompt,
            "max_tokens": count,
            "temperature": 0,
            "logprobs": 1,
            "cache_prompt": False,
        }
        answers = []

        def receive(message: Any) -> bool:
            answers.append(json.loads(message) if isinstance(message, str) else message)
            return False

        server.handle_completions(json.dumps(request), receive)
        tokens = answers[-1]["choices"][0]["logprobs"]["content"]
        return [token["id"] for token in tokens]

    assert list_wrong(config, answer, 50) == []
