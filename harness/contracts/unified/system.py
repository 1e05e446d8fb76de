"""Runs a unified program on a backend, and reads the answers of its cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.harness.backends.interface import Array
from lockstep.harness.contracts.answers import read_object
from lockstep.harness.contracts.memory import (
    Need,
    ask_held,
    count_state_bytes,
    count_token_bytes,
)
from lockstep.harness.contracts.operation import Answer, Config, Op
from lockstep.harness.contracts.recurrence import Recurrence, get_state_shapes
from lockstep.harness.contracts.system import (
    Column,
    Setup,
    System,
    VisibleColumns,
    broadcast_mask,
    get_visible_columns,
    read_mask_array,
    sort_columns,
)
from lockstep.harness.contracts.unified.model import (
    IMAGE,
    UnifiedModel,
    get_tokens,
    list_fed,
    list_offsets,
    list_part_configs,
)
from lockstep.harness.contracts.unified.reader import Attention, PositionReader, View
from lockstep.harness.core.errors import Broken
from lockstep.harness.core.payload import F32, Margins
from lockstep.reference.batch import Batch
from lockstep.reference.causal import CausalCache
from lockstep.reference.encoder import EncoderCache
from lockstep.reference.recurrent import RecurrentCache

FORWARD_FIELDS = ("positions", "sequences", "except", "multimodal", "reserve")

PART = ("put", "get")
"""The methods of a cache of a wrapper."""


class UnifiedSystem(System):
    """The cache of one program in a backend.

    Attributes:
        places: the (position, tag) of each token in the program.
        model: the reference after the last answer that matched; None before the first.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.places, self.offsets = list_fed(setup.ops), list_offsets(setup.ops)
        self.readers: dict[tuple[int, int], PositionReader] = {}
        self.recurrences: dict[tuple[int, int], Recurrence] = {}
        self.fed: dict[int, int] = {}
        self.saved: dict[str, Any] = {}
        self.reserved: dict[int, int] = {}
        self.attention = Attention(self.arrays, self.config)
        self.last: list[View] = []
        self.cache = self.backend.open(self.config)
        self.model: UnifiedModel | None = None

    @property
    def margins(self) -> Margins:  # type: ignore[override]  # read only
        keys = [reader.margin for reader in self.readers.values()]
        return {"attention": self.attention.margin, "keys": max(keys, default=0.0)}

    def get_reader(self, kind: str, which: int, layer: int) -> PositionReader:
        if (which, layer) not in self.readers:
            bases = self.config["rope_bases"]
            image = kind == "encoder"
            turns = self.config["shift"] and not image
            base = bases[layer % len(bases)] if turns else None
            number = which * self.config["layers"] + layer
            # An image is returned in the form in which it was put.
            form = {**self.config, "permuted_values": False} if image else self.config
            about = form, self.limit, number, base, self.offsets
            reader = PositionReader(self.backend, *about)
            reader.learn([] if image else self.places)
            self.readers[which, layer] = reader
        return self.readers[which, layer]

    def get_part(self, which: int) -> Any:
        """Returns the cache of part number `which`."""
        if self.config["kind"] != "wrapper":
            return self.cache
        return read_object(self.cache.of(which), PART, f"of({which})", "a cache")

    def open(self, config: Config) -> None:
        """Opens an additional cache and discards it."""
        self.backend.open(config)

    def save(self) -> Any:
        return self.cache.save()

    def load(self, saved: Any, fresh: bool) -> None:
        """Loads content into the cache; if `fresh`, into a new cache that replaces it."""
        if fresh:
            self.cache = self.backend.open(self.config)
        self.cache.load(saved)

    def load_other(self, sizes: Mapping[str, int]) -> Answer:
        """Loads content that a cache with other sizes saved; it must be refused."""
        if not self.declares(sizes):
            return {"error": "usage"}  # there is no such cache
        config = {**self.config, **sizes}
        source = self.backend.open(config)
        source.forward([0], [0], [], [], False)
        for which, member in enumerate(list_part_configs(config)):
            part = source.of(which) if config["kind"] == "wrapper" else source
            for layer in range(config["layers"] if member["kind"] != "encoder" else 0):
                pair = make_zeros(
                    {**config, "rows": 1, "value_heads": config["heads"]}, 4
                )
                put = (self.arrays.from_numpy(array, config["dtype"]) for array in pair)
                part.put(layer, *put)
        return self.ask(lambda: self.cache.load(source.save()))

    # --- a pass -------------------------------------------------------------------------

    def forward(self, op: Op, model: UnifiedModel) -> Answer:
        """Runs a whole pass: forward, then put and get in every layer of every part."""
        announced = [op[name] for name in FORWARD_FIELDS]
        announced += [op["coordinates"]] if self.config["sections"] else []
        answer = self.ask(lambda: self.cache.forward(*announced))
        self.last = []
        if answer or model.batch is None or model.tags.start != model.tag:
            return answer  # the reference refused, if the backend did not
        batch, tags = model.batch, model.tags
        self.fed.update(zip(tags, batch.positions, strict=True))
        answers = [self.pass_part(which, op, model) for which in range(len(model.parts))]
        if op["reserve"]:
            return {}
        if self.config["kind"] == "wrapper":
            return {"caches": answers}
        return answers[0]

    def pass_part(self, which: int, op: Op, model: UnifiedModel) -> Answer:
        """Runs every layer of a part, in some passes from the last layer to the first.

        Returns the answer of layer 0, with the answers of other layers in "layers".
        """
        layers = range(self.config["layers"])
        order = layers[::-1] if model.tag % 3 == 0 else layers
        if self.puts_at_once(which, model):
            self.put_all(which, model)
        answers = {layer: self.pass_layer(which, layer, op, model) for layer in order}
        return {**answers[0], "layers": [answers[layer] for layer in layers[1:]]}

    def pass_layer(self, which: int, layer: int, op: Op, model: UnifiedModel) -> Answer:
        """Puts K and V in one layer, and reads the tokens that the rows see."""
        cache, batch = self.get_part(which), model.batch
        assert batch is not None
        reader, tags = self.get_reader(model.kinds[which], which, layer), model.tags
        if isinstance(model.parts[which], EncoderCache):
            if op["multimodal"]:
                image = range(tags.stop, tags.stop + IMAGE)
                self.put(cache, layer, reader.feed(image, [0] * IMAGE))
            return {} if op["reserve"] else self.read_image(cache, layer, reader)
        if not self.puts_at_once(which, model):
            self.put(cache, layer, reader.feed(tags, batch.positions))
        if op["reserve"]:
            self.check_reserved(which, cache.get(layer), reader, batch)
            answer: Answer = {}
        else:
            answer = self.read_rows(which, layer, reader, model)
            answer |= {"where": f"layer {layer}"} if layer else {}
        if isinstance(model.parts[which], RecurrentCache):
            states = self.advance(which, layer, batch, model.tag)
            answer |= {} if op["reserve"] else {"states": states}
        return answer

    def put_some(self, count: int, model: UnifiedModel) -> None:
        """Runs an interrupted pass: puts K and V only in the first `count` parts."""
        batch = model.batch
        assert batch is not None
        self.fed.update(zip(model.tags, batch.positions, strict=True))
        for which in range(min(count, len(model.parts))):
            reader = self.get_reader(model.kinds[which], which, 0)
            self.put(self.get_part(which), 0, reader.feed(model.tags, batch.positions))

    def put(self, cache: Any, layer: int, pair: Sequence[Array]) -> None:
        with self.lend("a", "put", pair):
            cache.put(layer, *pair)

    def puts_at_once(self, which: int, model: UnifiedModel) -> bool:
        return bool(self.config["at_once"]) and model.kinds[which] != "encoder"

    def put_all(self, which: int, model: UnifiedModel) -> None:
        """Puts K and V of the open pass in all layers by one call."""
        assert model.batch is not None
        kind, layers = model.kinds[which], range(self.config["layers"])
        pairs = [
            self.get_reader(kind, which, layer).make(model.tags, model.batch.positions)
            for layer in layers
        ]
        keys, values = (
            self.arrays.from_numpy(np.stack(every), self.config["dtype"])
            for every in zip(*pairs, strict=True)
        )
        with self.lend("a", "put", (keys, values)):
            self.get_part(which).put_all(keys, values)

    def read_image(self, cache: Any, layer: int, reader: PositionReader) -> Answer:
        """Reads a stored image; the order of its vectors does not matter."""
        answer: Answer = {"cached": cache.cached, "stored": None}
        pair = cache.get(layer)
        if pair is not None:
            columns = reader.read(pair, {}, {}, "get")
            tags = [item[1] if isinstance(item, tuple) else item for item in columns]
            answer["stored"] = sort_columns(tags)
            if self.tells_layout:
                answer["columns"] = tags
        return answer

    def read_rows(
        self, which: int, layer: int, reader: PositionReader, model: UnifiedModel
    ) -> Answer:
        """Reads the tokens that each row of the open pass sees in one layer."""
        batch, tokens = model.batch, get_tokens(model.parts[which])
        assert batch is not None
        # Dropped tokens keep the position at which they were fed.
        places = {**self.fed, **{tag: position for tag, position, *_ in tokens}}
        keys, values, mask = split_triple(self.get_part(which).get(layer))
        floats = reader.check_forms(keys, values, "get")
        length, width = len(batch), floats[0].shape[2]
        rows = self.count_rows(length)
        content = read_mask_array(mask, self.arrays, self.config["mask_dtype"])
        visible = get_visible_columns(content, rows, width)
        self.check_padding(which, visible, length, width)
        columns = reader.read_floats(*floats, places, model.turns[which], visible.seen)
        if self.every:
            self.watch.keep("a", "get", (keys, values, mask))
        if self.attends:
            view = View(which, reader, keys, values, mask, visible.seen, places)
            self.last.append(view)
        shown = visible.rows[:length]
        answer: Answer = {
            "visible": [sort_columns([columns[at] for at in row]) for row in shown],
            "columns": columns,
        }
        if self.tells_layout:
            answer["seen"] = [list(row) for row in shown]
        return answer

    def count_rows(self, length: int) -> int:
        """Counts the rows of the mask, including padding rows."""
        padding: int = self.config["mask_padding"]
        return -(-length // padding) * padding

    def check_padding(
        self, which: int, visible: VisibleColumns, length: int, width: int
    ) -> None:
        """Checks that the padding rows of a mask see nothing, and checks its number of
        columns."""
        for row in range(length, len(visible.rows)):
            if visible.rows[row]:
                raise Broken(
                    "mask",
                    f"row {row} of the mask is padding, but sees columns; it must see"
                    " none",
                )
        padding = self.config["cache_padding"]
        if width % padding:
            message = f"{width} columns; a multiple of {padding} was requested"
            raise Broken("mask", message)
        if width > self.reserved.get(which, width):
            message = f"but only {self.reserved[which]} in a pass that reserved memory"
            raise Broken("mask", f"{width} columns, {message}")

    def check_reserved(
        self, which: int, result: Any, reader: PositionReader, batch: Batch
    ) -> None:
        """Checks the shapes of a reserving pass's arrays; their numbers are arbitrary."""
        keys, values, mask = split_triple(result)
        width = reader.check_forms(keys, values, "get")[0].shape[2]
        content = read_mask_array(mask, self.arrays, self.config["mask_dtype"])
        broadcast_mask(content, self.count_rows(len(batch)), width)
        self.reserved[which] = width

    # --- recurrent states ---------------------------------------------------------------

    def advance(
        self, which: int, layer: int, batch: Batch, tag: int
    ) -> list[list[Column]]:
        """Reads the states of the batch's sequences, adds the rows to them, and writes
        them back.

        Returns:
            For each sequence, the tags that its state has read afterwards, in order.
        """
        cache, arrays = self.get_part(which), self.arrays
        if (which, layer) not in self.recurrences:
            keys = self.get_reader("recurrent", which, layer).keys
            self.recurrences[which, layer] = Recurrence(arrays, keys, self.config)
        recurrence = self.recurrences[which, layer]
        owners = list(dict.fromkeys(batch.sequences))

        def read_states() -> list[list[Column]]:
            states = cache.read_states(layer)
            return recurrence.read_all(states, len(owners), "read_states")

        previous = read_states()
        conv, delta = [], []
        for owner, read in zip(owners, previous, strict=True):
            rows = [tag + at for at, name in enumerate(batch.sequences) if name == owner]
            old = tuple(seen for seen in read if isinstance(seen, int))
            conv.append(recurrence.compute_conv((*old, *rows)))
            delta.append(recurrence.compute_delta((*old, *rows), len(old)))
        pair = (
            arrays.from_numpy(np.concatenate(conv), self.config["dtype"]),
            arrays.from_numpy(np.concatenate(delta), "float32"),
        )
        with self.lend("a", "write_states", pair):
            cache.write_states(layer, *pair)
        # The written states are right even if the states read before were wrong.
        return [
            [*(text for text in old if isinstance(text, str)), *new]
            for old, new in zip(previous, read_states(), strict=True)
        ]

    # --- once more ----------------------------------------------------------------------

    def get(self, which: int, layer: int, model: UnifiedModel) -> Answer:
        cache = self.get_part(which)
        answer = self.ask(lambda: cache.get(layer) and None)
        if answer or model.batch is None or model.reserved:
            return answer
        if layer not in range(self.config["layers"]):
            return answer
        reader = self.get_reader(model.kinds[which], which, layer)
        if isinstance(model.parts[which], EncoderCache):
            return self.read_image(cache, layer, reader)
        return self.read_rows(which, layer, reader, model)

    def put_again(self, op: Op, model: UnifiedModel) -> Answer:
        """Calls `put` again with the K and V of the open pass or of the last pass,
        possibly in another shape."""
        if op.get("states") is not None:
            return self.write_wrongly(op)
        config, batch, cache = self.config, model.batch, self.get_part(op["type"])
        kind, first = model.kinds[op["type"]], model.tags.start
        rows = len(batch) if batch else 1
        positions: Sequence[int] = batch.positions if batch else ()
        if kind == "encoder":
            first, rows, positions = first + rows, IMAGE, [0] * IMAGE
        form = {name: config[name] for name in ("heads", "key_dim", "value_dim")}
        form |= {"rows": rows, "value_heads": op["heads"] or config["heads"]}
        sizes = {name: op[name] if op[name] is not None else form[name] for name in form}
        axes, at_once = op.get("axes") or 4, self.puts_at_once(op["type"], model)
        is_right = batch and sizes == form and axes == 4
        is_known = op["layer"] in range(config["layers"])
        if at_once and is_right and is_known:
            return self.ask(lambda: self.put_all(op["type"], model))
        if is_right:
            reader = self.get_reader(kind, op["type"], op["layer"] % config["layers"])
            pair = reader.make(range(first, first + rows), positions)
        else:
            pair = make_zeros(sizes, axes)
        if at_once:  # an unknown layer is passed as an additional layer
            count = config["layers"] + (not is_known)
            pair = np.stack([pair[0]] * count), np.stack([pair[1]] * count)
        keys, values = (self.arrays.from_numpy(array, config["dtype"]) for array in pair)
        with self.lend("a", "put", (keys, values)):
            if at_once:
                return self.ask(lambda: cache.put_all(keys, values))
            return self.ask(lambda: cache.put(op["layer"], keys, values))

    def write_wrongly(self, op: Op) -> Answer:
        """Writes states for another number of sequences than the pass has."""
        conv, delta = get_state_shapes(self.config, op["states"])
        pair = (
            self.arrays.from_numpy(np.zeros(conv, np.float32), self.config["dtype"]),
            self.arrays.from_numpy(np.zeros(delta, np.float32), "float32"),
        )
        cache = self.get_part(op["type"])
        return self.ask(lambda: cache.write_states(op["layer"], *pair))

    # --- checks beside the answer -------------------------------------------------------

    def verify_memory(self, op: Op, model: UnifiedModel) -> None:
        self.model = model
        if self.is_weighed():
            self.check_memory()

    def check_memory(self) -> None:
        if self.declared.held is None or self.model is None:
            return
        # A refused removal leaves a sequence undefined until it is cleared.
        if self.declared.atomic or self.model.unclear is None:
            need = count_need(self.model, self.config)
            need.check(ask_held([self.cache]), self.declared.held)

    def finish(self) -> None:
        super().finish()
        self.check_memory()

    def verify_attention(self, model: UnifiedModel) -> None:
        """Runs the framework's attention on the pass in each layer, and compares the
        result with the reference."""
        assert model.batch is not None
        self.compared["attention"] += bool(self.last)
        for view in self.last:
            cache = model.parts[view.which]
            assert isinstance(cache, CausalCache)
            self.attention.verify(view, cache, model.turns[view.which], model.tags)
        self.last = []


def make_zeros(sizes: Mapping[str, int], axes: int) -> tuple[F32, F32]:
    """Makes K and V with any shapes, which need not fit together, and 3 to 5 axes."""
    first = (1,) * (axes - 3)
    keys = *first, sizes["heads"], sizes["rows"], sizes["key_dim"]
    values = *first, sizes["value_heads"], sizes["rows"], sizes["value_dim"]
    return np.zeros(keys, np.float32), np.zeros(values, np.float32)


def count_need(model: UnifiedModel, config: Config) -> Need:
    """Returns the memory that the full capacity needs, and the memory that the stored
    tokens need."""
    token, state = count_token_bytes(config), count_state_bytes(config)
    size = tokens = 0
    for cache in model.parts:
        if isinstance(cache, EncoderCache):
            size += IMAGE * token
            continue
        size += cache.room * token
        tokens += len(cache.tokens)
        if isinstance(cache, RecurrentCache):
            checkpoint_count = cache.checkpoint_count if cache.interval else 0
            size += cache.slot_count * (1 + checkpoint_count) * state
    # The tokens that a wrapper drops before it refuses are not specified.
    counts = {} if config["kind"] == "wrapper" else {"blocks": tokens}
    return Need(config["layers"] * size, counts=counts)


def split_triple(result: Any) -> tuple[Array, Array, Any]:
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        type_name = "None" if result is None else f"{type(result).__name__}"
        raise Broken("malformed", f"get returned {type_name}, not K, V and a mask")
    keys, values, mask = result
    if keys is None or values is None or mask is None:
        raise Broken("malformed", "get returned None in the place of an array")
    return keys, values, mask
