"""Engines that run, recorded: what they did is replayed."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlx_lm")
pytest.importorskip("transformers")

import mlx.core as mx
import torch
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step
from mlx_lm.models import llama, qwen2
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
    trim_prompt_cache,
)
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    Gemma2Config,
    LlamaConfig,
    StaticCache,
)

import lockstep
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Program, load_programs
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.registry import load
from lockstep.impl.torch import backend as ours
from lockstep.impl.torch.kv import KVCache as OurKV
from lockstep.impl.torch.rotating import RotatingCache as OurRing
from lockstep.impl.torch.state import StateCache as OurState
from tests.harness.commands import ROOT, invoke, run_here

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32}
SLIDING = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4}
PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mx.random.seed(0)
    torch.manual_seed(0)


def load_recorded(recording: Any) -> list[Program]:
    programs = [one for path in recording.paths for one in load_programs(path)]
    assert programs
    return programs


def replay(recording: Any) -> list[Program]:
    """The programs, all of which agree."""
    programs = load_recorded(recording)
    for program in programs:
        result = run(program, load(str(program.meta["backend"])))
        assert result.divergence is None
        assert (result.steps, result.skipped) == (len(program.ops), 0)
    return programs


def tell(program: Program) -> list[tuple[Any, ...]]:
    """The operations of a program, without defaults."""
    return [tuple(op.values()) for op in program.to_json()["ops"]]


def list_backends(programs: Sequence[Program]) -> list[tuple[Any, str]]:
    return [(program.meta["backend"], program.kind) for program in programs]


# --- mlx-lm -----------------------------------------------------------------------------


def make_mlx(**more: Any) -> Any:
    args = {**SIZES, **HEADS, "rms_norm_eps": 1e-5, **more}
    if more:
        return llama.Model(llama.ModelArgs("llama", **args))
    return qwen2.Model(qwen2.ModelArgs("qwen2", **args))


def generate(model: Any, cache: Any, prompt: Sequence[int] = PROMPT) -> list[int]:
    steps = generate_step(
        mx.array(prompt), model, max_tokens=3, prompt_cache=cache, prefill_step_size=4
    )
    return [token for token, _ in steps]


def test_generation_of_mlx_lm_goes_on_as_it_would() -> None:
    model = make_mlx(**SLIDING)
    alone = generate(model, make_prompt_cache(model))
    cache = make_prompt_cache(model)
    with lockstep.record(cache, "run") as recording:
        assert generate(model, cache) == alone
        trim_prompt_cache([cache[0]], 2)
        trim_prompt_cache([cache[1]], 2)  # full: nothing is trimmed
    assert [type(layer) for layer in cache] == [KVCache, RotatingKVCache]
    full, ring = replay(recording)
    lengths = [("update", length) for length in (4, 3, 1, 1, 1, 1)]
    assert (tell(full), tell(ring)) == ([*lengths, ("trim", 2)], lengths)
    assert list_backends([full, ring]) == [("mlx-lm", "kv"), ("mlx-lm", "rotating")]
    assert (ring.config["window"], ring.config["step"]) == (4, 256)
    assert recording.lines == []


def test_the_example_of_the_readme_finds_a_bug_of_mlx_lm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Pool, "run", run_here)
    text = (ROOT / "harness" / "cli" / "README.md").read_text()
    section = text.partition("## From a running engine")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    exec(compile(code, "README.md", "exec"), {})
    replayed = invoke("replay", "run.json")
    assert replayed.status == 1
    assert replayed.words.startswith("FAILED mlx-lm-max-kv-size run.json: step 1 (update")
    shrunk = invoke("shrink", "run.json", "--time", "5")
    assert shrunk.status == 1
    (saved,) = Path("failures").glob("*/*.json")
    (program,) = load_programs(saved)
    assert tell(program) == [("update", 3)]


def test_requests_become_rows_of_a_batch_and_leave_it() -> None:
    model = make_mlx(**SLIDING)
    prompts = [PROMPT, [3, 4], [9] * 12, [5, 5, 5]]
    caches = [make_prompt_cache(model) for _ in prompts]
    with lockstep.record(caches, "run") as recording:
        engine = BatchGenerator(
            model, completion_batch_size=3, prefill_batch_size=2, prefill_step_size=4
        )
        engine.insert(prompts, max_tokens=[3, 7, 4, 5], caches=caches)
        left = len(prompts)
        while left:
            for responses in engine.next():
                left -= sum(bool(getattr(r, "finish_reason", None)) for r in responses)
    programs = replay(recording)
    backend = "mlx-lm-batched"
    wanted = [(backend, "batch-kv"), (backend, "batch-rotating")]
    assert list_backends(programs) == wanted
    names = {"stack", "pad_right", "update", "finalize", "clone", "filter", "extend"}
    for program in programs:
        assert {op[0] for op in tell(program)} == {*names, "extract"}
    assert recording.lines == []


def feed(cache: Any, *lengths: int, rows: int = 1) -> None:
    """Updates as a model does that has K of 32 numbers."""
    for length in lengths:
        arrays = mx.ones((rows, 3, length, 32), mx.bfloat16)
        cache.update_and_fetch(arrays, arrays)


def test_other_caches_of_mlx_lm() -> None:
    states = ArraysCache(2)
    batch = BatchKVCache([2, 0])
    caches = [
        *(QuantizedKVCache(32, 8), ChunkedKVCache(4), states, batch),
        *(CacheList(KVCache(), KVCache()), ArraysCache(3)),
    ]
    with lockstep.record(caches, "run") as recording:
        feed(caches[0], 3, 1)
        feed(caches[1], 3, 1)
        states[0] = mx.ones((1, 2, 4), mx.float16)
        states.advance(5)
        other = copy.deepcopy(batch)
        feed(batch, 4, 1, rows=2)
        feed(other, 3, rows=2)
        for part in caches[4].caches:
            feed(part, 2)
        caches[4].trim(1)
    programs = replay(recording)
    assert list_backends(programs) == [
        *(("mlx-lm-quantized", "kv"), ("mlx-lm-chunked", "kv"), ("mlx-lm", "state")),
        *(("mlx-lm-batched", "batch-kv"), ("mlx-lm", "kv")),
    ]
    assert tell(programs[3]) == [
        *(("open", 2), ("clone", "b"), ("update", 4, [2, 0]), ("update", 1)),
        ("update", 3, [2, 0], "b"),
    ]
    assert tell(programs[4]) == [("update", 2), ("trim", 1)]
    sizes = ("heads", "key_dim", "value_dim", "dtype")
    assert [programs[0].config[name] for name in sizes] == [2, 32, 32, "bfloat16"]
    assert [programs[4].config[name] for name in sizes] == [2, 4, 4, "bfloat16"]
    assert programs[2].config["conv_width"] == 3
    (line,) = recording.lines
    assert line == "not recorded: layer 5: no backend drives such a ArraysCache"


@pytest.mark.parametrize("joins", [False, True])
def test_a_cache_that_became_part_of_a_batch_is_used_up(joins: bool) -> None:
    singles = [KVCache(), KVCache()]
    with lockstep.record([[one] for one in singles], "run.json") as recording:
        feed(singles[0], 2)
        batch = singles[0].merge([singles[0]])
        other = singles[1].merge([singles[1], KVCache()])
        feed(other, 1, rows=2)
        if joins:
            batch.extend(other)
            feed(other, 1, rows=2)
        else:
            feed(singles[0], 1)
        feed(batch, 1, rows=1 + 2 * joins)
    (program,) = replay(recording)
    assert [op["op"] for op in program.ops[:4]] == ["update", "stack", "stack", "update"]
    (line,) = recording.lines
    assert "update of a cache that became part of a batch" in line


def test_what_no_operation_says_ends_a_program_of_mlx_lm() -> None:
    ring, full, merged = RotatingKVCache(2), KVCache(), KVCache()
    with lockstep.record(ring, "ring.json") as rings:
        feed(ring, 3)
        ring.trim(1)
    with lockstep.record([full, merged], "run") as recording:
        feed(full, 3)
        feed(merged, 3)
        full.to_quantized(32, 8)
        full.state = full.state
    assert "trim of a full ring: callers ask is_trimmable()" in rings.lines[0]
    assert "operation 1 on: to_quantized, and what" in recording.lines[0]
    for cache, why in ((full, "not empty"), ([[merged]], "not empty")):
        with pytest.raises(UsageError, match=why):
            lockstep.record(cache, "other.json")
    with pytest.raises(UsageError, match="pass the caches that make_prompt_cache"):
        lockstep.record(make_mlx(), "other.json")
    cache = KVCache()
    with lockstep.record(cache, "other.json"):
        with pytest.raises(UsageError, match="recorded already"):
            lockstep.record(cache, "again.json")
        feed(cache, 1)
    assert Path("other.json").exists()


# --- transformers -----------------------------------------------------------------------


def make_gemma() -> Any:
    from transformers import Gemma2ForCausalLM  # takes as long as torch

    config = Gemma2Config(**SIZES, **HEADS, head_dim=8, sliding_window=4)
    return Gemma2ForCausalLM(config)


def make_llama() -> Any:
    from transformers import LlamaForCausalLM  # the same

    return LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS))


def answer(model: Any, cache: Any, rows: int = 1, **more: Any) -> list[Any]:
    found = model.generate(
        torch.tensor([PROMPT] * rows), cache=cache, max_new_tokens=4,
        do_sample=False, pad_token_id=0, eos_token_id=None, **more,
    )  # fmt: skip
    return list(found.tolist())


def test_generation_of_transformers_goes_on_as_it_would() -> None:
    model = make_gemma()
    alone = answer(model, DynamicCache(config=model.config))
    cache, static = DynamicCache(config=model.config), StaticCache(model.config, 16)
    with (
        lockstep.record(cache, "run") as recording,
        lockstep.record(static, "static") as second,
    ):
        assert answer(model, cache) == alone == answer(model, static)
    assert (type(cache), type(static)) == (DynamicCache, StaticCache)
    for one, name in ((recording, "transformers"), (second, "transformers-static")):
        programs = replay(one)
        assert list_backends(programs) == [(name, "rotating"), (name, "kv")]
        for program in programs:
            lengths = (8, 1, 1, 1)
            assert tell(program) == [("update", length) for length in lengths]
    assert programs[0].config["step"] == 16


def test_beams_and_rows_are_a_batch() -> None:
    model, cache = make_llama(), DynamicCache()
    with lockstep.record(cache, "beams.json") as recording:
        answer(model, cache, num_beams=2)
    (program,) = replay(recording)
    assert program.kind == "batch-kv"
    assert tell(program)[:2] == [("open", 2), ("update", 8)]
    assert [op[0] for op in tell(program)].count("select") == 4
    assert recording.lines == []
    cache = DynamicCache()
    with lockstep.record(cache, "rows.json") as recording:
        answer(model, cache)
        cache.batch_repeat_interleave(3)
        cache.batch_select_indices(torch.tensor([2, 0]))
        cache.batch_select_indices(torch.tensor([False, True]))
        cache.reset()
        answer(model, cache, rows=2)
    (program,) = replay(recording)
    moved = [op for op in tell(program) if op[0] != "update"]
    assert moved == [
        *(("open", 1), ("repeat", 3), ("filter", [2, 0]), ("filter", [1])),
        *(("free",), ("open", 2)),
    ]
    assert recording.lines == []


def test_what_no_backend_of_transformers_has_is_told() -> None:
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    with lockstep.record(cache, "run.json") as recording:
        cache.self_attention_cache.update(*[torch.ones(1, 1, 3, 4)] * 2, 0)
        with pytest.raises(ValueError, match="positive"):
            cache.self_attention_cache.crop(1)
    assert len(replay(recording)[0].ops) == 2
    assert "cross attention: its cache is written once" in recording.lines[0]
    assert "crop raised ValueError" in recording.lines[1]
    with pytest.raises(UsageError, match="cannot record a LlamaConfig"):
        lockstep.record(LlamaConfig(), "other.json")


# --- our own ----------------------------------------------------------------------------


def drive(cache: Any) -> None:
    """What an engine with snapshots may do."""

    def update(cache: Any, length: int) -> None:
        arrays = torch.ones(1, 2, length, 8)
        cache.make_mask(length, length)
        cache.update(arrays, arrays)

    update(cache, 3)
    snapshot = cache.snapshot(0)
    cache.trim(1)
    update(cache, 1)
    assert cache.restore(snapshot, 3)
    other = cache.clone()
    parent, child = other.split(snapshot, 2)
    merged = other.merge(parent, child)
    other.prepare([4])
    update(other, 2)
    (taken,) = other.take()
    for one in filter(None, (merged, taken)):
        other.close(one)
    cache.free()
    update(cache, 1)


def test_our_own_caches_with_their_snapshots() -> None:
    states = OurState((1, 3, 4), (1, 1, 4, 4))
    layers = [OurKV(), OurRing(4), states]
    with lockstep.record(layers, "run") as recording:
        for layer in layers[:2]:
            drive(layer)
        states.write(torch.ones(1, 3, 4), torch.ones(1, 1, 4, 4), 2)
    programs = replay(recording)
    kinds = [(name, kind) for name, kind in list_backends(programs)]
    assert kinds == [("torch-cpu", kind) for kind in ("kv", "rotating", "state")]
    names = {op["op"] for program in programs for op in program.ops}
    declared = ours.cpu().contracts["layer"]["kv"].operations
    assert names == declared - {"state", "view", "size"}
    assert recording.lines == []


def test_a_cache_of_ours_with_two_rows_is_told() -> None:
    """The program of a layer has one row. The engine goes on."""
    cache, states = OurKV(), OurState((2, 3, 4), (2, 1, 4, 4))
    with lockstep.record([cache, states], "run") as recording:
        cache.update(*[torch.ones(1, 1, 3, 4)] * 2)
        states.write(torch.ones(2, 3, 4), torch.ones(2, 1, 4, 4), 2)
    assert (cache.offset, states.offset) == (3, 2)
    rows = "an update of 2 rows; the program of a layer has one row"
    line = "not recorded: layer 1: no operation was seen; anything from operation 0 on: "
    assert recording.lines == [line + rows]
    both = OurKV()
    with lockstep.record(both, "both.json") as recording:
        both.update(*[torch.ones(2, 1, 3, 4)] * 2)
    assert rows in recording.lines[0] and not Path("both.json").exists()


class Forgetful(OurRing):
    """Loses a token when it is trimmed."""

    def trim(self, count: int) -> int:
        return super().trim(count + 1) - 1


def test_candidates_are_cropped() -> None:
    model = make_gemma()
    cache = DynamicCache(config=model.config)
    with lockstep.record(cache, "run") as recording:
        answer(model, cache, prompt_lookup_num_tokens=2)
    programs = replay(recording)
    wanted = [("transformers-recorded", "rotating"), ("transformers", "kv")]
    assert list_backends(programs) == wanted
    for program in programs:
        assert {op[0] for op in tell(program)} == {"update", "trim"}


def test_drafts_are_recorded_beside_the_model() -> None:
    model, draft = make_mlx(), make_mlx()
    caches = make_prompt_cache(model), make_prompt_cache(draft)
    together = [*caches[0], *caches[1]]
    with (
        lockstep.record(caches[0], "model.json") as first,
        lockstep.record(caches[1], "draft.json") as second,
    ):
        steps = speculative_generate_step(
            mx.array(PROMPT), model, draft, prompt_cache=together, max_tokens=6
        )
        assert len(list(steps)) == 6
    for recording in (first, second):
        (program,) = replay(recording)
        assert recording.lines == []
        assert {op[0] for op in tell(program)} == {"update", "trim"}


def test_a_planted_mistake_is_found_in_what_the_engine_did() -> None:
    broken = replace(ours.cpu(), open=lambda config: Forgetful(config["window"]))
    cache = Forgetful(8)
    with lockstep.record(cache, "run.json") as recording:
        for length in (3, 2, 1):
            arrays = torch.ones(1, 1, length, 4)
            cache.update(arrays, arrays)
            cache.trim(1)
    (program,) = replay(recording)  # without the mistake
    found = run(program, broken).divergence
    assert found is not None
    assert (found.step, found.operation, found.what) == (1, "trim", "offset")
    with pytest.raises(lockstep.Diverged) as diverged:
        lockstep.run(program, broken)
    assert len(diverged.value.failure.program.ops) == 2
