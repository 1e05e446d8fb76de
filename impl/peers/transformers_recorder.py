"""Records caches of transformers in a running engine.

This module is the inverse of `transformers_layers` and `transformers_batches`, where you
find the operation for each call. A cache does not get masks. Therefore padding is not
recorded, and a chunked layer is recorded as a sliding layer, because both have the same
class.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
    Fp8QuantizedLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from lockstep.harness.backends.recorder import Form, Scribe, Tape, Then, get_scribe
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.recording import Recording
from lockstep.impl.peers.transformers import ROOM

BATCHED = {
    "transformers": "transformers-batched",
    "transformers-static": "transformers-batched-static",
}
"""Backend of single caches → the backend of batches in these caches."""


def record(cache: Any, recording: Recording) -> None:
    """Records the cache that a model takes as `cache`.

    Raises:
        UsageError: the object is not a cache, is not empty, or is already recorded.
    """
    if isinstance(cache, EncoderDecoderCache):
        recording.skip("cross attention", "its cache is written once")
        cache = cache.self_attention_cache
    if not isinstance(cache, Cache):
        kind = type(cache).__name__
        raise UsageError(
            f"cannot record a {kind}; pass the cache that the model takes as `cache`"
        )
    if get_scribe(cache) is not None:
        raise UsageError("the cache is recorded already")
    if any(layer.is_initialized for layer in cache.layers):
        raise UsageError(
            "the cache is not empty; start to record before the first update"
        )
    rooms = [getattr(layer, "max_cache_len", 0) for layer in cache.layers]
    tapes = {}
    for number, layer in enumerate(cache.layers):
        tape = open_tape(number, layer, max(rooms), recording)
        if tape is not None:
            tapes[number] = tape
    Whole(cache, tapes, "a", recording)


def open_tape(number: int, layer: Any, room: int, recording: Recording) -> Tape | None:
    """Opens the tape of a layer and returns it; returns None if no backend opens such a
    layer.

    Args:
        number: the number of the layer in its cache.
        layer: the layer.
        room: the number of tokens that a static cache can hold.
        recording: the recording, which has the tapes.
    """
    label, form = f"layer {number}", get_form(layer, room)
    if form is not None:
        return recording.open_tape(label, form)
    recording.skip(label, f"no backend drives such a {type(layer).__name__}")
    return None


def get_form(layer: Any, room: int) -> Form | None:
    """Returns the form of a layer, or None if no backend opens such a layer.

    A subclass of a class in this function has no form, because it stores more than K and
    V, such as a recurrent state.
    """
    rooms = [size for size in ROOM["step"] if size >= room]
    options = {"step": min(rooms)} if rooms else {}
    about = f"room for {room} tokens"
    if type(layer) is DynamicLayer:
        return Form("transformers", "layer", {"kind": "kv"})
    if type(layer) is DynamicSlidingWindowLayer:
        sizes = {"kind": "rotating", "window": layer.sliding_window}
        return Form("transformers", "layer", sizes)
    if type(layer) is StaticLayer and rooms:
        return Form("transformers-static", "layer", {"kind": "kv", **options}, about)
    if type(layer) is StaticSlidingWindowLayer and rooms:
        sizes = {"kind": "rotating", "window": layer.max_cache_len, **options}
        return Form("transformers-static", "layer", sizes, about)
    if type(layer) is Fp8QuantizedLayer:
        sizes = {"kind": "kv", "key_dim": 64, "value_dim": 64}
        return Form("transformers-fp8", "layer", sizes)
    return None


class Whole(Scribe):
    """A recorded cache with all its layers.

    Args:
        cache: the engine's cache.
        layers: number → tape, for the recorded layers.
        name: the name of the cache.
        recording: opens tapes for layers that a dynamic cache adds.

    Attributes:
        rows: number of a layer → the number of rows of its batch; a layer is missing
            before its first update.
    """

    calls = (
        *("update", "crop", "reset", "reorder_cache", "batch_select_indices"),
        *("batch_repeat_interleave", "activate_past_recording"),
    )

    def __init__(
        self, cache: Any, layers: dict[int, Tape], name: str, recording: Recording
    ) -> None:
        self.layers, self.recording = layers, recording
        self.rows: dict[int, int] = {}
        super().__init__(cache, list(layers.values()), name)

    def update(
        self,
        key_states: Any,
        value_states: Any,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> Then:
        tape = self.find_tape(layer_idx)
        if tape is None:
            return None
        tape.note_sizes(key_states, value_states)
        rows = key_states.shape[0]
        if self.rows.setdefault(layer_idx, 1) != rows:
            self.turn_to_batches(tape)
            tape.note(self.name, "open", rows=rows)
            self.rows[layer_idx] = rows
        tape.note(self.name, "update", length=key_states.shape[2])
        return None

    def find_tape(self, number: int) -> Tape | None:
        """Returns the tape of a layer; opens the tape if a dynamic cache is about to add
        the layer."""
        cache = self.cache()
        layer_class = None if cache is None else cache.layer_class_to_replicate
        if layer_class is not None and number >= len(cache.layers):
            tape = open_tape(number, layer_class(), 0, self.recording)
            if tape is not None:
                self.layers[number] = tape
                self.tapes.append(tape)
                tape.bind(self.name, cache)
        return self.layers.get(number)

    def turn_to_batches(self, tape: Tape) -> None:
        """Changes the program of a layer to the batched contract. In this contract, the
        cache is a batch of one row, which must be opened."""
        form = tape.draft.form
        if form.contract == "batched":
            return
        if form.backend not in BATCHED:
            tape.stop(f"a batch in the cache of {form.backend}")
            return
        config = {**form.config, "kind": f"batch-{form.config['kind']}"}
        turned = Form(BATCHED[form.backend], "batched", config, form.about)
        is_begun = tape.draft.is_begun
        tape.draft.turn(turned, [{"op": "open", "rows": 1}] if is_begun else [])

    def crop(self, tokens_to_remove: int) -> Then:
        self.note("trim", count=-tokens_to_remove)
        return None

    def reset(self) -> Then:
        self.note("free")
        return None

    def move(self, op: str, count: int, **fields: Any) -> Then:
        """Notes an operation that moves rows; afterwards, there are `count` rows."""
        for tape in self.tapes:
            self.turn_to_batches(tape)
        self.note(op, **fields)
        self.rows = dict.fromkeys(self.layers, count)
        return None

    def reorder_cache(self, beam_idx: Any) -> Then:
        rows = beam_idx.tolist()
        return self.move("select", len(rows), rows=rows)

    def batch_select_indices(self, indices: Any) -> Then:
        is_mask = str(indices.dtype) == "torch.bool"
        rows = (indices.nonzero()[:, 0] if is_mask else indices).tolist()
        return self.move("filter", len(rows), rows=rows)

    def batch_repeat_interleave(self, repeats: int) -> Then:
        rows = max(self.rows.values(), default=1) * repeats
        return self.move("repeat", rows, times=repeats)

    def activate_past_recording(self) -> Then:
        """Notes that sliding layers now keep the tokens that leave the window."""
        for tape in self.tapes:
            form = tape.draft.form
            if form.backend == "transformers" and form.config["kind"] == "rotating":
                if tape.draft.is_begun:
                    tape.draft.remark("that activate_past_recording came later")
                turned = replace(form, backend="transformers-recorded")
                tape.draft.turn(turned.with_fields(record=True))
            elif form.contract == "batched" and form.config["kind"] == "batch-rotating":
                tape.stop("activate_past_recording of a batch")
        return None

    def join(self, joined: Any, name: str) -> None:
        copy = Whole(joined, self.layers, name, self.recording)
        copy.rows = dict(self.rows)
