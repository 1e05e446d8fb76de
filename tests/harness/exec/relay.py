"""A driver that relays: what a backend in Python answers, by the protocol of drivers.

    python -m tests.harness.exec.relay package.module:factory

So every kind that some backend declares can be checked through the protocol, which shows
that nothing of it is lost there.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lockstep.harness.backends.interface import STATISTICS
from lockstep.harness.contracts.prefix.model import get_layer_config, get_unified_config

Message = Mapping[str, Any]
Answer = dict[str, Any]


class Table:
    """The objects that are numbers on the wire."""

    def __init__(self) -> None:
        self.items: dict[int, Any] = {}

    def put(self, item: Any) -> int:
        number = next(n for n in range(len(self.items) + 1) if n not in self.items)
        self.items[number] = item
        return number


class Relay:
    def __init__(self, backend: Any) -> None:
        self.backend, self.arrays = backend, backend.arrays
        self.caches, self.snapshots, self.saved = Table(), Table(), Table()
        self.configs: dict[int, Any] = {}

    # --- messages -----------------------------------------------------------------------

    def answer(self, message: Message) -> Answer:
        op = message["op"]
        if op in ("hello", "open", "drop"):
            answer: Answer = getattr(self, op)(message)
            return answer
        config = self.configs[message["cache"]]
        cache = self.caches.items[message["cache"]]
        if "type" in message:
            cache = cache.of(message["type"])
        if "part" in message:
            cache = cache.parts[message["part"]]
            config = {**config["parts"][message["part"]], **get_rows(config)}
        if config["kind"].startswith("paged-"):
            return relay_paged(self, cache, config, message)
        if config["kind"] in PREFIX and op in PREFIX_PLANS:
            return self.relay(cache, config, message, PREFIX_PLANS[op])
        if is_batch(config) and op in BATCHED_PLANS:
            return self.relay(cache, config, message, BATCHED_PLANS[op])
        if config["kind"] == "batch-list" and op in LIST_PLANS:
            return self.relay(cache, config, message, LIST_PLANS[op])
        if op in PLANS:
            return self.relay(cache, config, message, PLANS[op])
        answer = getattr(self, f"do_{op}")(cache, config, message)
        return answer

    def relay(self, cache: Any, config: Message, message: Message, plan: str) -> Answer:
        """Calls the method that an operation names, with the fields that a message has,
        and gives what it returns the names of the plan."""
        fields, _, names = plan.partition("->")
        own = {name: message[name] for name in fields.split() if name in message}
        dtype = config["dtype"]
        arguments = [self.take(name, value, dtype) for name, value in own.items()]
        got = getattr(cache, message["op"])(*arguments)
        for name in CONSUMING.get(message["op"], ()):
            table = self.caches if name == "other" else self.snapshots
            table.items.pop(message.get(name), None)
        answered = [name for name in names.split() if name not in OFFSETS]
        items = [got] if len(answered) < 2 else got or [None, None]
        several = zip(answered, items, strict=False)
        answer = {name: self.give(name, item, config) for name, item in several}
        return answer | tell_offsets(cache, names.split())

    def take(self, name: str, value: Any, dtype: str) -> Any:
        """The argument that a field stands for."""
        if name in ARRAYS:
            content = np.array(value["data"], np.float32).reshape(value["shape"])
            return self.arrays.from_numpy(
                content, "float32" if name == "delta" else dtype
            )
        if name in ("snapshot", "parent", "child"):
            return None if value is None else self.snapshots.items[value]
        if name == "other":
            return self.caches.items[value]
        return self.saved.items[value] if name == "saved" else value

    def give(self, name: str, got: Any, config: Message) -> Any:
        """The field that stands for what was returned."""
        if name in ("snapshot", "parent", "child"):
            return self.give_snapshot(got)
        if name == "snapshots":
            return [self.give_snapshot(taken) for taken in got]
        if name == "cache":
            return self.keep(got, config)
        if name == "saved":
            return self.saved.put(got)
        if name in (*ARRAYS, "mask"):
            return self.give_array(got)
        if name == "rows":
            names = "conv delta" if config["kind"] == "batch-state" else "keys values"
            return [self.give_row(names.split(), pair) for pair in got]
        return got if isinstance(got, bool | int) else list(got)

    def give_array(self, array: Any) -> Any:
        if array is None or isinstance(array, str):
            return array
        content = self.arrays.to_numpy(array)
        data = content.ravel().tolist()
        if content.dtype == np.bool_:
            data = [int(seen) for seen in data]
        words = {math.inf: "1e999", -math.inf: "-1e999"}
        data = [words.get(x, x) if x == x else None for x in data]
        dtype = self.arrays.dtype(array)
        return {"shape": list(content.shape), "data": data, "dtype": dtype}

    def give_row(self, names: list[str], pair: Any) -> Any:
        """One row of the state of a batch."""
        if pair is None:
            return None
        arrays = map(self.give_array, pair)
        return dict(zip(names, arrays, strict=True))

    def give_snapshot(self, snapshot: Any) -> Any:
        if snapshot is None:
            return None
        number = self.snapshots.put(snapshot)
        return {"number": number, "begin": snapshot.begin, "end": snapshot.end}

    def hello(self, message: Message) -> Answer:
        backend = self.backend
        contracts = {
            contract: {
                kind: {
                    "operations": sorted(declared.operations - HARNESS),
                    "config": {k: list(v) for k, v in declared.config.items()},
                    "refuses": declared.refuses,
                    "atomic": declared.atomic,
                    "tells": sorted(declared.tells),
                    "duties": [asdict(duty) for duty in declared.duties],
                }
                for kind, declared in kinds.items()
            }
            for contract, kinds in backend.contracts.items()
        }
        names = ("poison", "causal", "tolerance")
        return {
            "protocol": 1,
            "name": f"relay-{backend.name}",
            "dtypes": list(backend.dtypes),
            "contracts": contracts,
            **{name: getattr(backend, name) for name in names},
        }

    def open(self, message: Message) -> Answer:
        config = message["config"]
        cache = self.backend.open(self.complete(config))
        if is_batch(config):  # single caches that became its rows are used up
            for number in config["caches"] or ():
                del self.caches.items[number]
        return {"cache": self.keep(cache, config)}

    def complete(self, config: Message) -> Message:
        """Of a prefix cache that builds on others: with those. Of a batch: with the
        single caches that it is made of."""
        if is_batch(config) and config["caches"] is not None:
            caches = [self.caches.items[number] for number in config["caches"]]
            return {**config, "caches": caches}
        if config["kind"] not in self.backend.contracts.get("prefix", {}):
            return config
        if config["kind"] == "slots":
            below = [get_unified_config(config)]
        else:
            below = [spec and get_layer_config(config, spec) for spec in config["layers"]]
        poison = {"poison": config["poison"]}
        caches = [each and self.backend.open({**each, **poison}) for each in below]
        return {**config, "caches": caches}

    def keep(self, cache: Any, config: Message) -> int:
        for number, item in self.caches.items.items():
            if item is cache:
                return number
        number = self.caches.put(cache)
        self.configs[number] = config
        return number

    def drop(self, message: Message) -> Answer:
        for what in ("caches", "snapshots", "saved"):
            for number in message.get(what, ()):
                del getattr(self, what).items[number]
        return {}

    # --- operations that are not one call -----------------------------------------------

    def do_update(self, cache: Any, config: Message, m: Message) -> Answer:
        if is_batch(config):
            return self.relay(cache, config, m, "keys values -> keys values")
        mask = cache.make_mask(m["keys"]["shape"][2], m["rows"])
        answer = self.relay(cache, config, m, "keys values -> keys values")
        return {"offset": cache.offset, **answer, "mask": self.give_array(mask)}

    def do_state(self, cache: Any, config: Message, m: Message) -> Answer:
        is_state = config["kind"] in ("state", "batch-state")
        names = "conv delta" if is_state else "keys values"
        return self.relay(cache, config, m, f"-> {names}")

    do_view = do_read = do_state

    def do_offsets(self, cache: Any, config: Message, m: Message) -> Answer:
        offsets = cache.offsets
        if not isinstance(offsets, list | tuple):
            offsets = self.arrays.to_numpy(offsets).tolist()
        return {"offsets": [int(offset) for offset in offsets]}

    def do_extract(self, cache: Any, config: Message, m: Message) -> Answer:
        single = cache.extract(m["row"])
        number = self.keep(single, {**config, "rows": None, "caches": None})
        name = "offsets" if config["kind"] == "batch-list" else "offset"
        return {"cache": number, **tell_offsets(single, [name])}

    def do_cached(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"cached": cache.cached}

    def do_layers(self, cache: Any, config: Message, m: Message) -> Answer:
        layers = [
            layer
            and {
                "cache": self.keep(layer, get_layer_config(config, spec)),
                "offset": layer.offset,
            }
            for layer, spec in zip(cache.layers, config["layers"], strict=True)
        ]
        return {"layers": layers}

    def do_below(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"cache": self.keep(cache.cache, get_unified_config(config))}

    def do_get_statistics(self, cache: Any, config: Message, m: Message) -> Answer:
        counted = cache.get_statistics()
        return {name: getattr(counted, name) for name in STATISTICS}

    def do_begin(self, cache: Any, config: Message, m: Message) -> Answer:
        if config["kind"] == "slots":
            return {"slot": cache.begin(m["tokens"])}
        return {"remaining": list(cache.begin(m["tokens"], m["checkpoints"]))}


PREFIX = ("session", "trie", "slots")
ARRAYS = ("keys", "values", "conv", "delta", "queries")

PLANS = {
    "size": "-> size",
    "prepare": "offsets",
    "boundaries": "length -> lengths",
    "forward": "positions sequences exceptions multimodal reserve",
    "copy_prefix": "source target length",
    "remove": "sequence begin end",
    "can_resume": "sequence position -> result",
    "write": "conv delta length -> offset",
    "trim": "count -> trimmed offset",
    "clone": "-> cache",
    "free": "-> offset",
    "snapshot": "begin -> snapshot",
    "restore": "snapshot target -> ok offset",
    "split": "snapshot at -> parent child",
    "merge": "parent child -> snapshot",
    "close": "snapshot",
    "take": "-> snapshots",
    "put": "layer keys values",
    "get": "layer -> keys values mask",
    "save": "-> saved",
    "load": "saved",
    "read_states": "layer -> conv delta",
    "write_states": "layer conv delta",
}
"""Operation → the method's arguments, and the fields of the answer."""

BATCHED_PLANS = {
    "pad_left": "padding",
    "pad_right": "lengths",
    "finalize": "",
    "make_mask": "length -> mask",
    "write": "conv delta length",
    "state": "-> rows",
    "size": "-> sizes",
    "trim": "count -> trimmed",
    "rollback": "counts -> done",
    "filter": "rows",
    "select": "rows",
    "repeat": "times",
    "extend": "other",
    "free": "",
}
"""The same, of batches."""

LIST_PLANS = {"trim": "count -> trimmed offsets", "free": "-> offsets"}
"""The same, of single caches of lists."""

OFFSETS = ("offset", "offsets")


def tell_offsets(cache: Any, names: Sequence[str]) -> Answer:
    """The offset of a single cache; of a list, those of its parts."""
    if "offsets" in names:
        return {"offsets": [part.offset for part in cache.parts]}
    return {"offset": cache.offset} if "offset" in names else {}


CONSUMING = {
    "split": ["snapshot"],
    "merge": ["parent", "child"],
    "close": ["snapshot"],
    "extend": ["other"],
}
"""Operations after which these snapshots and batches are used up."""


def is_batch(config: Message) -> bool:
    """Whether a cache has rows; a single one of the batched contract has none."""
    is_batched = config["kind"].startswith("batch-")
    return is_batched and not config["rows"] is config["caches"] is None


def get_rows(config: Message) -> Answer:
    """What tells a batch from a single cache; its parts are what it is."""
    return {name: config[name] for name in ("rows", "caches")}


PREFIX_PLANS = {
    "extend": "slot tokens",
    "close": "slot -> stored",
    "cancel": "slot -> stored",
    "free": "",
    "set_limit": "limit",
    "count_tokens": "-> count",
    "count_bytes": "-> count",
    "get_tokens": "slot -> tokens",
    "get_remaining": "slot -> tokens",
    "reserve": "slot count -> positions",
    "commit": "slot count",
}
"""The same, of the prefix contract; `slot` is handed over where a message has it."""

PAGED_PLANS = {
    "open": "request tokens namespace",
    "match": "request -> hit",
    "schedule": "request count -> start",
    "run": "",
    "accept": "request kept sampled drafts",
    "preempt": "request",
    "free": "request reuse",
    "fork": "source target tokens -> ok",
    "rewind": "request to tokens -> ok",
    "evict": "count -> evicted",
    "reset": "-> ok",
    "offload": "request transfer -> copies",
    "load": "request transfer -> loaded copies",
    "landed": "transfer",
    "failed": "transfer arrived -> kept",
    "save": "-> saved",
    "restore": "saved",
    "tables": "request -> tables",
    "copies": "-> copies",
    "pool": "-> references free cached pinned idle",
    "entries": "-> entries",
    "host_entries": "-> entries",
    "events": "-> events",
    "update": "layer keys values -> requests",
    "attend": "layer queries -> attended",
    "read_states": "layer -> requests",
    "list_ends": "layer -> ends",
    "write_states": "layer keys values",
}
"""The same, of the paged contract."""


def relay_paged(relay: Relay, cache: Any, config: Message, message: Message) -> Answer:
    operation = "open" if message["op"] == "open_request" else message["op"]
    fields, _, answered = PAGED_PLANS[operation].partition("->")
    arguments = [
        relay.take(name, message[name], config["dtype"]) for name in fields.split()
    ]
    got = getattr(cache, operation)(*arguments)
    if operation == "load":
        got = got or (None, ())
    names = answered.split()
    items = [got] if len(names) == 1 else got
    told = zip(names, items or (), strict=bool(names))
    return {name: give_paged(relay, name, item) for name, item in told}


def give_paged(relay: Relay, name: str, got: Any) -> Any:
    if name == "saved":
        return None if got is None else relay.saved.put(got)
    if name == "requests":
        return [relay.give_row(["keys", "values"], pair) for pair in got]
    if name == "attended":
        return relay.give_array(got)
    if name == "references":
        return list(got.items())
    if name == "entries":
        return [entry._asdict() for entry in got]
    if name == "events":
        return [{"event": event, "entry": of and of._asdict()} for event, of in got]
    return got


HARNESS = {"refuse"}
"""What the harness does to caches that it opened itself."""


def refuse(relay: Relay, error: Exception) -> Answer:
    errors = {ValueError: "usage"}
    errors |= {kind: name for name, kind in relay.backend.errors.items()}
    name = next((errors[kind] for kind in errors if isinstance(error, kind)), "failed")
    return {"error": name, "message": str(error)}


def main() -> None:
    module, _, factory = sys.argv[1].partition(":")
    make: Callable[[], Any] = getattr(importlib.import_module(module), factory)
    serve(Relay(make()))


def serve(relay: Relay) -> None:
    """One message a line, one answer a line."""
    for line in sys.stdin:
        message = json.loads(line)
        try:
            answer = relay.answer(message)
        except Exception as error:
            answer = refuse(relay, error)
        text = json.dumps({"id": message["id"], **answer})
        text = text.replace('"1e999"', "1e999").replace('"-1e999"', "-1e999")
        print(text, flush=True)


if __name__ == "__main__":
    main()
