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
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Message = Mapping[str, Any]
Answer = dict[str, Any]


class Table:
    """What goes over the wire as a number."""

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

    # --- arrays -------------------------------------------------------------------------

    def take(self, value: Message, dtype: str) -> Any:
        content = np.array(value["data"], np.float32).reshape(value["shape"])
        return self.arrays.from_numpy(content, dtype)

    def give(self, array: Any) -> Any:
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

    def give_some(self, names: str, arrays: Any) -> Answer:
        arrays = arrays or [None, None]
        return {
            name: self.give(array)
            for name, array in zip(names.split(), arrays, strict=True)
        }

    def give_snapshot(self, snapshot: Any) -> Any:
        if snapshot is None:
            return None
        number = self.snapshots.put(snapshot)
        return {"number": number, "begin": snapshot.begin, "end": snapshot.end}

    def find(self, number: int | None, consume: bool = False) -> Any:
        if number is None:
            return None
        items = self.snapshots.items
        return items.pop(number) if consume else items[number]

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
        is_prefix = config["kind"] in PREFIX
        if op in PREFIX_ONLY if is_prefix else op in PLAIN:
            return relay(cache, message, (PREFIX_ONLY if is_prefix else PLAIN)[op])
        answer = getattr(self, f"do_{op}")(cache, config, message)
        return answer

    def hello(self, message: Message) -> Answer:
        backend = self.backend
        contracts = {
            contract: {
                kind: {
                    "operations": sorted(declared.operations - HARNESS),
                    "config": {k: list(v) for k, v in declared.config.items()},
                    "refuses": declared.refuses,
                }
                for kind, declared in kinds.items()
            }
            for contract, kinds in backend.contracts.items()
        }
        return {
            "protocol": 1,
            "name": f"relay-{backend.name}",
            "dtypes": list(backend.dtypes),
            "poison": backend.poison,
            "causal": backend.causal,
            "tolerance": backend.tolerance,
            "contracts": contracts,
        }

    def open(self, message: Message) -> Answer:
        config = message["config"]
        cache = self.backend.open(self.complete(config))
        return {"cache": self.keep(cache, config)}

    def complete(self, config: Message) -> Message:
        """Of a prefix cache that builds on others: with those."""
        if config["kind"] not in self.backend.contracts.get("prefix", {}):
            return config
        from lockstep.harness.contracts.prefix.sides import (
            get_layer_config,
            get_unified_config,
        )

        if config["kind"] == "slots":
            below = {**get_unified_config(config), "poison": config["poison"]}
            return {**config, "caches": [self.backend.open(below)]}
        layers = [
            spec
            and self.backend.open(
                {**get_layer_config(config, spec), "poison": config["poison"]}
            )
            for spec in config["layers"]
        ]
        return {**config, "caches": layers}

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

    # --- operations that take or give arrays, caches or snapshots -----------------------

    def do_update(self, cache: Any, config: Message, m: Message) -> Answer:
        keys, values = (
            self.take(m[name], config["dtype"]) for name in ("keys", "values")
        )
        mask = cache.make_mask(m["keys"]["shape"][2], m["rows"])
        pair = cache.update(keys, values)
        return {
            "offset": cache.offset,
            **self.give_some("keys values", pair),
            "mask": self.give(mask),
        }

    def do_state(self, cache: Any, config: Message, m: Message) -> Answer:
        names = "conv delta" if config["kind"] == "state" else "keys values"
        return self.give_some(names, getattr(cache, m["op"])())

    do_view = do_read = do_state

    def do_write(self, cache: Any, config: Message, m: Message) -> Answer:
        conv = self.take(m["conv"], config["dtype"])
        cache.write(conv, self.take(m["delta"], "float32"), m["length"])
        return {"offset": cache.offset}

    def do_trim(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"trimmed": cache.trim(m["count"]), "offset": cache.offset}

    def do_clone(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"cache": self.keep(cache.clone(), config)}

    def do_free(self, cache: Any, config: Message, m: Message) -> Answer:
        cache.free()
        return {"offset": cache.offset}

    def do_snapshot(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"snapshot": self.give_snapshot(cache.snapshot(m["begin"]))}

    def do_restore(self, cache: Any, config: Message, m: Message) -> Answer:
        ok = cache.restore(self.find(m["snapshot"]), m["target"])
        return {"ok": ok, "offset": cache.offset}

    def do_split(self, cache: Any, config: Message, m: Message) -> Answer:
        parent, child = cache.split(self.find(m["snapshot"], consume=True), m["at"])
        return {"parent": self.give_snapshot(parent), "child": self.give_snapshot(child)}

    def do_merge(self, cache: Any, config: Message, m: Message) -> Answer:
        merged = cache.merge(self.find(m["parent"]), self.find(m["child"]))
        for side in ("parent", "child"):
            self.find(m[side], consume=True)
        return {"snapshot": self.give_snapshot(merged)}

    def do_close(self, cache: Any, config: Message, m: Message) -> Answer:
        cache.close(self.find(m["snapshot"], consume=True))
        return {}

    def do_take(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"snapshots": [self.give_snapshot(taken) for taken in cache.take()]}

    def do_put(self, cache: Any, config: Message, m: Message) -> Answer:
        pair = [self.take(m[name], config["dtype"]) for name in ("keys", "values")]
        cache.put(m["layer"], *pair)
        return {}

    def do_get(self, cache: Any, config: Message, m: Message) -> Answer:
        got = cache.get(m["layer"])
        names = "keys values" if got is None or len(got) == 2 else "keys values mask"
        return self.give_some(names, got)

    def do_save(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"saved": self.saved.put(cache.save())}

    def do_load(self, cache: Any, config: Message, m: Message) -> Answer:
        cache.load(self.saved.items[m["saved"]])
        return {}

    def do_cached(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"cached": cache.cached}

    def do_read_states(self, cache: Any, config: Message, m: Message) -> Answer:
        return self.give_some("conv delta", cache.read_states(m["layer"]))

    def do_write_states(self, cache: Any, config: Message, m: Message) -> Answer:
        conv = self.take(m["conv"], config["dtype"])
        cache.write_states(m["layer"], conv, self.take(m["delta"], "float32"))
        return {}

    def do_layers(self, cache: Any, config: Message, m: Message) -> Answer:
        from lockstep.harness.contracts.prefix.sides import get_layer_config

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
        from lockstep.harness.contracts.prefix.sides import get_unified_config

        return {"cache": self.keep(cache.cache, get_unified_config(config))}

    def do_begin(self, cache: Any, config: Message, m: Message) -> Answer:
        if config["kind"] == "slots":
            return {"slot": cache.begin(m["tokens"])}
        return {"remaining": list(cache.begin(m["tokens"], m["checkpoints"]))}


PREFIX = ("session", "trie", "slots")

PLAIN = {
    "size": " -> size",
    "prepare": "offsets",
    "boundaries": "length -> lengths",
    "forward": "positions sequences exceptions multimodal reserve",
    "copy_prefix": "source target length",
    "remove": "sequence begin end",
    "can_resume": "sequence position -> result",
}
"""Operations of numbers alone: the method's arguments, and the field of the answer."""

PREFIX_ONLY = {
    "extend": "slot tokens",
    "close": "slot -> stored",
    "cancel": "slot -> stored",
    "free": "",
    "set_limit": "limit",
    "count_tokens": " -> count",
    "count_bytes": " -> count",
    "get_tokens": "slot -> tokens",
    "get_remaining": "slot -> tokens",
    "reserve": "slot count -> positions",
    "commit": "slot count",
}
"""The same, of the prefix contract; `slot` is handed over where a message has it."""


def relay(cache: Any, message: Message, plan: str) -> Answer:
    """Calls the method that an operation names."""
    fields, _, answered = plan.partition(" -> ")
    arguments = [message[field] for field in fields.split() if field in message]
    got = getattr(cache, message["op"])(*arguments)
    if not answered:
        return {}
    return {answered: got if isinstance(got, bool | int) else list(got)}


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
