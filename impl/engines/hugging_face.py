"""Hugging Face's transformers in this process: `generate`, and continuous batching."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    StaticCache,
)
from transformers.utils import logging as verbosity

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.engine import Completion, Generation
from lockstep.harness.backends.probe import KINDS
from lockstep.harness.core.errors import Broken
from lockstep.impl.engines.models import (
    COMPLETE,
    SECONDS,
    STREAMS,
    declare,
    get_weights,
    make_draft,
)
from lockstep.reference.layers import count_common

DRAFTED = 3
"""The number of drafts of a step."""


def load(config: Mapping[str, Any], **settings: Any) -> Any:
    """Loads a probe. Models are not shared between engines, because `generate` keeps
    settings in the model."""
    verbosity.set_verbosity_error()
    verbosity.disable_progress_bar()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    folder = get_weights(config, "hf").parent
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **settings)


# --- generate ---------------------------------------------------------------------------


class Batches:
    """Calls `generate` with batches of requests, which are padded on the left.

    Args:
        config: the config of the probe.
        settings: arguments of `generate`.
    """

    first_tag = 0

    def __init__(self, config: Mapping[str, Any], **settings: Any) -> None:
        self.model, self.settings = load(config), settings
        self.pad = self.model.generation_config.eos_token_id

    def complete(self, requests: Sequence[Generation]) -> Sequence[Completion]:
        length = max(len(request.prompt) for request in requests)
        missing = [length - len(request.prompt) for request in requests]
        prompts = zip(missing, (request.prompt for request in requests), strict=True)
        output = self.generate(
            [[self.pad] * count + list(prompt) for count, prompt in prompts],
            [[0] * count + [1] * (length - count) for count in missing],
            max(request.count for request in requests),
        )
        generated = output.sequences[:, length:]
        logprobs = torch.stack(output.logits, 1).log_softmax(-1)
        chosen = logprobs.gather(-1, generated[..., None])[..., 0]
        return [
            Completion(ids[: request.count], reported[: request.count])
            for request, ids, reported in zip(
                requests, generated.tolist(), chosen.tolist(), strict=True
            )
        ]

    def generate(self, ids: list[list[int]], mask: list[list[int]], count: int) -> Any:
        return self.model.generate(
            torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=self.pad,
            return_dict_in_generate=True,
            output_logits=True,
            **self.settings,
        )

    def close(self) -> None:
        del self.model


class Alone(Batches):
    """Calls `generate` with one request after the other."""

    def complete(self, requests: Sequence[Generation]) -> Sequence[Completion]:
        complete = super().complete
        return [completion for item in requests for completion in complete([item])]


class Assisted(Alone):
    """Generates with a model that drafts tokens."""

    def __init__(self, config: Mapping[str, Any], **settings: Any) -> None:
        draft = load(make_draft(config))
        draft.generation_config.num_assistant_tokens = DRAFTED
        super().__init__(config, assistant_model=draft, **settings)


class Conversation(Alone):
    """Passes the cache of the last request to the next request. First removes the tokens
    that the two requests do not share: crops the cache, or resets it.

    Args:
        config: the config of the probe.
        make: makes the cache from the config of the model.
        crops: whether the cache is cropped.
    """

    def __init__(
        self, config: Mapping[str, Any], make: Callable[..., Any], crops: bool = False
    ) -> None:
        super().__init__(config)
        self.settings["cache"] = self.cache = make(config=self.model.config)
        self.crops, self.held = crops, list[int]()

    def generate(self, ids: list[list[int]], mask: list[list[int]], count: int) -> Any:
        remaining = len(self.held) - count_common(self.held, ids[0][:-1])
        if remaining and self.crops:
            self.cache.crop(-remaining)
        elif remaining:
            self.cache.reset()
        output = super().generate(ids, mask, count)
        self.held = output.sequences[0, :-1].tolist()
        return output


# --- continuous batching ----------------------------------------------------------------


class Continuous:
    """A manager of continuous batches, whose thread runs the model."""

    first_tag = 0

    def __init__(self, config: Mapping[str, Any], **settings: Any) -> None:
        self.manager = load(config).init_continuous_batching(
            GenerationConfig(do_sample=False, eos_token_id=-1),
            ContinuousBatchingConfig(return_logprobs=True, **settings),
        )
        self.results: dict[str, Any] = {}
        self.manager.start()

    def submit(self, request: Generation, streaming: bool = False) -> str:
        name: str = self.manager.add_request(
            list(request.prompt), max_new_tokens=request.count, streaming=streaming
        )
        self.results[name] = None
        return name

    def wait(self, name: str, count: int) -> Any:
        """Waits until a request has generated `count` tokens."""
        while True:
            result = self.results[name]
            if result is not None and result.error is not None:
                raise RuntimeError(result.error)
            if result is not None and len(result.generated_tokens) >= count:
                return result
            result = self.manager.get_result(timeout=SECONDS)
            if result is None:
                raise Broken("hang", f"no token came for {SECONDS:g} s")
            self.results[result.request_id] = result

    def complete(self, requests: Sequence[Generation]) -> Sequence[Completion]:
        names = [self.submit(request) for request in requests]
        results = [
            self.wait(name, request.count)
            for name, request in zip(names, requests, strict=True)
        ]
        return [Completion(item.generated_tokens, item.logprobs) for item in results]

    def begin(self, request: Generation) -> ContinuousStream:
        return ContinuousStream(self, self.submit(request, streaming=True))

    def close(self) -> None:
        self.manager.stop(hard_stop=True)
        self.manager.destroy()


class ContinuousStream:
    """A request to a manager."""

    def __init__(self, engine: Continuous, name: str) -> None:
        self.engine, self.name, self.begin = engine, name, 0

    def read(self, count: int) -> Completion:
        begin, self.begin = self.begin, self.begin + count
        result = self.engine.wait(self.name, self.begin)
        reported = result.generated_tokens, result.logprobs
        return Completion(*(item[begin : self.begin] for item in reported))

    def abort(self) -> None:
        self.engine.manager.cancel_request(self.name)


# --- rows -------------------------------------------------------------------------------

Settings = Mapping[str, Any]
CONTEXT = {"context": (32,)}
TOGETHER, STREAMED = Kind(COMPLETE, CONTEXT), Kind(STREAMS, CONTEXT)
EACH = Kind(COMPLETE - {"interrogate"}, CONTEXT)
"""Each call of `generate` has a cache of its own, so that `interrogate` shows nothing."""

SHARE = 600
"""A program takes about a second, so that a check runs one for each kind."""

STATIC: Settings = {"cache_implementation": "static"}
FP8: Settings = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
NGRAM: Settings = {"prompt_lookup_num_tokens": DRAFTED}
FIXED = partial(StaticCache, max_cache_len=CONTEXT["context"][0])
BLOCKS: Settings = {"page_size": 4, "num_blocks": 16, "max_batch_tokens": 16}
"""So few blocks that requests wait, and batches so small that prompts are cut."""

FULL, SLIDING, MIXED, SINKS, CHUNKED, CONVOLUTION, STATE, LATENT = KINDS

ROWS: Mapping[str, tuple[Callable[..., Any], Kind, Sequence[str]]] = {
    "generate": (Batches, EACH, (FULL, CHUNKED)),
    "generate-static": (partial(Batches, **STATIC), EACH, (MIXED,)),
    "generate-fp8": (partial(Batches, **FP8), EACH, (LATENT,)),
    "generate-prefill": (partial(Batches, prefill_chunk_size=4), EACH, (SINKS,)),
    "generate-ngram": (partial(Alone, **NGRAM), EACH, (SLIDING,)),
    "generate-static-ngram": (partial(Alone, **STATIC, **NGRAM), EACH, (FULL,)),
    "generate-assisted": (Assisted, EACH, (CONVOLUTION,)),
    "generate-kept": (partial(Conversation, make=FIXED), TOGETHER, (SLIDING,)),
    "generate-cropped": (
        partial(Conversation, make=DynamicCache, crops=True),
        TOGETHER,
        (LATENT,),
    ),
    "continuous": (partial(Continuous, **BLOCKS), STREAMED, (SLIDING,)),
    "continuous-unshared": (
        partial(Continuous, allow_block_sharing=False, **BLOCKS),
        STREAMED,
        (FULL,),
    ),
}


def make_backend(name: str) -> Backend:
    open, kind, kinds = ROWS[name]
    return declare(f"transformers-{name}", open, kind, kinds, SHARE, "transformers")


(
    generate,
    generate_static,
    generate_fp8,
    generate_prefill,
    generate_ngram,
    generate_static_ngram,
    generate_assisted,
    generate_kept,
    generate_cropped,
    continuous,
    continuous_unshared,
) = (partial(make_backend, name) for name in ROWS)
