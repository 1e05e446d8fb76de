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
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from lockstep.harness.backends.driver.messages import PLACE
from lockstep.harness.backends.interface import STATISTICS
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.prefix.model import get_layer_config, get_unified_config
from lockstep.harness.contracts.protocol import make_protocol

PROTOCOL = make_protocol()

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
            config = {**config, **config["caches"][message["type"]]}
        if "part" in message:
            cache = cache.parts[message["part"]]
            config = {**config["parts"][message["part"]], **get_rows(config)}
        if op in TOLD:
            told: Answer = getattr(self, f"tell_{op}")(cache, config)
            return told
        if op == "update" and get_contract(config) == "layer":
            mask = cache.make_mask(message["keys"]["shape"][2], message["rows"])
            answer = self.relay(cache, config, message, {"rows"}, {"mask"})
            return {**answer, "mask": self.give_array(mask)}
        return self.relay(cache, config, message)

    def relay(
        self,
        cache: Any,
        config: Message,
        message: Message,
        not_sent: Collection[str] = (),
        not_returned: Collection[str] = (),
    ) -> Answer:
        """Calls the method of a message with its fields, and gives what it returns the
        names of the fields of the answer, both as the protocol lists them."""
        op, table = message["op"], PROTOCOL.messages[get_contract(config)]
        variant = f"{op}.{VARIANTS.get(config['kind'].removeprefix('batch-'))}"
        asked, answered = table[variant if variant in table else op]
        arguments = [
            self.take(name, message[name], config["dtype"])
            for name in asked
            if name in message and name not in (*PLACE, *not_sent)
        ]
        returned = getattr(cache, op.removesuffix("_request"))(*arguments)
        for name in CONSUMING.get(op, ()):
            objects = self.caches if name == "other" else self.snapshots
            objects.items.pop(message.get(name), None)
        if op == "extract":
            config = {**config, "rows": None, "caches": None}
        names = [name for name in answered if name not in (*OFFSETS, *not_returned)]
        names = [name for name in names if name != "moves" or returned]
        items = [returned] if len(names) < 2 else returned or [None] * len(names)
        pairs = zip(names, items, strict=bool(names))
        offsets = tell_offsets(returned if op == "extract" else cache, answered)
        return {name: self.give(name, item, config) for name, item in pairs} | offsets

    def take(self, name: str, value: Any, dtype: str) -> Any:
        """The argument that a field stands for."""
        if name in ARRAYS:
            content = np.array(value["data"], np.float32).reshape(value["shape"])
            default = "float32" if name == "delta" else dtype
            return self.arrays.from_numpy(content, value.get("dtype", default))
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
            return None if got is None else self.saved.put(got)
        if name in (*ARRAYS, "mask"):
            return self.give_array(got)
        if name in ("rows", "requests"):
            is_state = config["kind"] == "batch-state"
            names = ["conv", "delta"] if is_state else ["keys", "values"]
            return [self.give_row(names, pair) for pair in got]
        if name == "copies":
            return got or ()
        if name == "references":
            return list(got.items())
        if name == "entries":
            return [entry._asdict() for entry in got]
        if name == "events":
            return [{"event": event, "entry": of and of._asdict()} for event, of in got]
        return list(got) if isinstance(got, range) else got

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

    # --- messages that are not one call -------------------------------------------------

    def tell_offsets(self, cache: Any, config: Message) -> Answer:
        offsets = cache.offsets
        if not isinstance(offsets, list | tuple):
            offsets = self.arrays.to_numpy(offsets).tolist()
        return {"offsets": [int(offset) for offset in offsets]}

    def tell_cached(self, cache: Any, config: Message) -> Answer:
        return {"cached": cache.cached}

    def tell_layers(self, cache: Any, config: Message) -> Answer:
        layers = [
            layer
            and {
                "cache": self.keep(layer, get_layer_config(config, spec)),
                "offset": layer.offset,
            }
            for layer, spec in zip(cache.layers, config["layers"], strict=True)
        ]
        return {"layers": layers}

    def tell_below(self, cache: Any, config: Message) -> Answer:
        return {"cache": self.keep(cache.cache, get_unified_config(config))}

    def tell_get_statistics(self, cache: Any, config: Message) -> Answer:
        counted = cache.get_statistics()
        return {name: getattr(counted, name) for name in STATISTICS}


TOLD = ("offsets", "cached", "layers", "below", "get_statistics")
ARRAYS = ("keys", "values", "conv", "delta", "queries", "attended")
VARIANTS = {"state": "states", "list": "list", "slots": "slot", "encoder": "image"}
"""Kind → the variant of its messages."""


def get_contract(config: Message) -> str:
    kind = config["kind"]
    if kind.startswith("batch-"):
        return "batched" if is_batch(config) else "layer"
    return next(name for name, rules in CONTRACTS.items() if kind in rules.kinds)


OFFSETS = ("offset", "offsets")


def tell_offsets(cache: Any, names: Collection[str]) -> Answer:
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
    relay = Relay(make())
    for line in sys.stdin:
        print(reply(relay, json.loads(line)), flush=True)


def reply(relay: Relay, message: Message) -> str:
    """The line that answers a message."""
    try:
        answer = relay.answer(message)
    except Exception as error:
        answer = refuse(relay, error)
    text = json.dumps({"id": message["id"], **answer})
    return text.replace('"1e999"', "1e999").replace('"-1e999"', "-1e999")


if __name__ == "__main__":
    main()
