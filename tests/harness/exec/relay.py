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
            return getattr(self, op)(message)
        cache = self.caches.items[message["cache"]]
        config = self.configs[message["cache"]]
        return getattr(self, f"do_{op}")(cache, config, message)

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
        from lockstep.harness.contracts.prefix.config import (
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

    # --- layer --------------------------------------------------------------------------

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

    def do_boundaries(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"lengths": list(cache.boundaries(m["length"]))}

    def do_write(self, cache: Any, config: Message, m: Message) -> Answer:
        conv = self.take(m["conv"], config["dtype"])
        cache.write(conv, self.take(m["delta"], "float32"), m["length"])
        return {"offset": cache.offset}

    def do_size(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"size": cache.size()}

    def do_trim(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"trimmed": cache.trim(m["count"]), "offset": cache.offset}

    def do_clone(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"cache": self.keep(cache.clone(), config)}

    def do_free(self, cache: Any, config: Message, m: Message) -> Answer:
        cache.free()
        offset = {} if "layers" in config and config["kind"] in PREFIX else None
        return {"offset": cache.offset} if offset is None else {}

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
        if config["kind"] in PREFIX:
            return self.do_cancel(cache, config, m)
        cache.close(self.find(m["snapshot"], consume=True))
        return {}

    def do_prepare(self, cache: Any, config: Message, m: Message) -> Answer:
        cache.prepare(m["offsets"])
        return {}

    def do_take(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"snapshots": [self.give_snapshot(taken) for taken in cache.take()]}

    # --- unified ------------------------------------------------------------------------

    def do_forward(self, cache: Any, config: Message, m: Message) -> Answer:
        fields = ("positions", "sequences", "exceptions", "multimodal", "reserve")
        cache.forward(*(m[field] for field in fields))
        return {}

    def do_put(self, cache: Any, config: Message, m: Message) -> Answer:
        pair = [self.take(m[name], config["dtype"]) for name in ("keys", "values")]
        find_part(cache, m).put(m["layer"], *pair)
        return {}

    def do_get(self, cache: Any, config: Message, m: Message) -> Answer:
        got = find_part(cache, m).get(m["layer"])
        if got is None or len(got) == 2:
            return self.give_some("keys values", got)
        return self.give_some("keys values mask", got)

    def do_copy_prefix(self, cache: Any, config: Message, m: Message) -> Answer:
        cache.copy_prefix(m["source"], m["target"], m["length"])
        return {}

    def do_remove(self, cache: Any, config: Message, m: Message) -> Answer:
        cache.remove(m["sequence"], m["begin"], m["end"])
        return {}

    def do_can_resume(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"result": cache.can_resume(m["sequence"], m["position"])}

    def do_save(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"saved": self.saved.put(cache.save())}

    def do_load(self, cache: Any, config: Message, m: Message) -> Answer:
        cache.load(self.saved.items[m["saved"]])
        return {}

    def do_cached(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"cached": find_part(cache, m).cached}

    def do_read_states(self, cache: Any, config: Message, m: Message) -> Answer:
        return self.give_some("conv delta", find_part(cache, m).read_states(m["layer"]))

    def do_write_states(self, cache: Any, config: Message, m: Message) -> Answer:
        conv = self.take(m["conv"], config["dtype"])
        delta = self.take(m["delta"], "float32")
        find_part(cache, m).write_states(m["layer"], conv, delta)
        return {}

    # --- prefix -------------------------------------------------------------------------

    def do_begin(self, cache: Any, config: Message, m: Message) -> Answer:
        if config["kind"] == "slots":
            return {"slot": cache.begin(m["tokens"])}
        return {"remaining": list(cache.begin(m["tokens"], m["checkpoints"]))}

    def do_layers(self, cache: Any, config: Message, m: Message) -> Answer:
        from lockstep.harness.contracts.prefix.config import get_layer_config

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
        from lockstep.harness.contracts.prefix.config import get_unified_config

        return {"cache": self.keep(cache.cache, get_unified_config(config))}

    def do_extend(self, cache: Any, config: Message, m: Message) -> Answer:
        slot = [m["slot"]] if config["kind"] == "slots" else []
        cache.extend(*slot, m["tokens"])
        return {}

    def do_cancel(self, cache: Any, config: Message, m: Message) -> Answer:
        slot = [m["slot"]] if config["kind"] == "slots" else []
        return {"stored": getattr(cache, m["op"])(*slot)}

    def do_set_limit(self, cache: Any, config: Message, m: Message) -> Answer:
        cache.set_limit(m["limit"])
        return {}

    def do_count_tokens(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"count": getattr(cache, m["op"])()}

    do_count_bytes = do_count_tokens

    def do_get_tokens(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"tokens": list(getattr(cache, m["op"])(m["slot"]))}

    do_get_remaining = do_get_tokens

    def do_reserve(self, cache: Any, config: Message, m: Message) -> Answer:
        return {"positions": list(cache.reserve(m["slot"], m["count"]))}

    def do_commit(self, cache: Any, config: Message, m: Message) -> Answer:
        cache.commit(m["slot"], m["count"])
        return {}


PREFIX = ("session", "trie", "slots")

HARNESS = {"refuse"}
"""What the harness does to caches that it opened itself."""


def find_part(cache: Any, message: Message) -> Any:
    return cache.of(message["type"]) if "type" in message else cache


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
