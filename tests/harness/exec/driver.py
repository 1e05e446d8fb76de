"""A driver that misbehaves, in one way that its first argument names.

    python tests/harness/exec/driver.py WAY [FILE]

It has the kv cache of the layer contract, with update, size and trim, and speaks the
protocol of drivers with nothing but the standard library, so that it is up at once. It
behaves well until an update brings a third token; FILE is where it writes its process id.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Message = Mapping[str, Any]
Answer = dict[str, Any]

SMALL = {"step": [1], "conv_width": [2]}
KV = {
    "operations": ["update", "size", "trim"],
    "config": {"heads": [1], "key_dim": [4], "value_dim": [4], **SMALL},
}
HELLO: Answer = {
    "protocol": 1,
    "name": "misbehaving",
    "version": "7",
    "contracts": {"layer": {"kv": KV}},
}


def write(text: str | bytes) -> None:
    content = text.encode() if isinstance(text, str) else text
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(0)


class Driver:
    """The one that behaves well."""

    def __init__(self) -> None:
        self.caches: list[dict[str, list[Any]]] = []

    def answer(self, message: Message) -> Answer:
        operation: Callable[[Message], Answer] = getattr(self, message["op"])
        return {"id": message["id"], **operation(message)}

    def hello(self, message: Message) -> Answer:
        return dict(HELLO)

    def open(self, message: Message) -> Answer:
        self.caches.append({"keys": [], "values": []})
        return {"cache": len(self.caches) - 1}

    def drop(self, message: Message) -> Answer:
        return {}

    def update(self, message: Message) -> Answer:
        held = self.caches[message["cache"]]
        begin = len(held["keys"])
        answer: Answer = {}
        for name, tokens in held.items():
            data = message[name]["data"]
            tokens += [data[at : at + 4] for at in range(0, len(data), 4)]
            flat = [number for token in tokens for number in token]
            answer[name] = {"shape": [1, 1, len(tokens), 4], "data": flat}
        width, length = len(held["keys"]), len(held["keys"]) - begin
        rows = range(message["rows"])
        seen = [
            int(row < length and at <= begin + row) for row in rows for at in range(width)
        ]
        mask = {"shape": [message["rows"], width], "data": seen}
        return {"offset": width, **answer, "mask": mask}

    def size(self, message: Message) -> Answer:
        return {"size": len(self.caches[message["cache"]]["keys"])}

    def trim(self, message: Message) -> Answer:
        held = self.caches[message["cache"]]
        trimmed = min(message["count"], len(held["keys"]))
        left = len(held["keys"]) - trimmed
        for tokens in held.values():
            del tokens[left:]
        return {"trimmed": trimmed, "offset": left}


# --- ways, each given the answer that it should have written ----------------------------


def dump(answer: Answer) -> str:
    return json.dumps(answer) + "\n"


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def stays_silent(answer: Answer) -> None:
    time.sleep(3600)


def writes_without_end(answer: Answer) -> None:
    lines = b'{"id": 1}\n' * 1000
    while True:
        write(lines)


def complains_without_end(answer: Answer) -> None:
    while True:
        os.write(2, b"oh no, oh no\n" * 1000)


def exits_with_1(answer: Answer) -> None:
    sys.stderr.write("assertion failed: ring.size > 0\x1b[31m\n")
    sys.exit(1)


def panics(answer: Answer) -> None:
    """As a program in Go: the cause comes first."""
    sys.stderr.write("panic: index out of range\n\n" + "goroutine 1\n" * 2000)
    sys.stderr.write("exit status 2\n")
    sys.exit(2)


def closes_its_output(answer: Answer) -> None:
    os.close(1)
    time.sleep(3600)


def change(**fields: Any) -> Callable[[Answer], None]:
    return lambda answer: write(dump({**answer, **fields}))


def leave_out(name: str) -> Callable[[Answer], None]:
    def act(answer: Answer) -> None:
        del answer[name]
        write(dump(answer))

    return act


def change_keys(**fields: Any) -> Callable[[Answer], None]:
    return lambda answer: change(keys={**answer["keys"], **fields})(answer)


def writes_a_nan(answer: Answer) -> None:
    data = answer["keys"]["data"]
    change_keys(data=[float("nan"), *data[1:]])(answer)


UPDATES: Mapping[str, Callable[[Answer], Any]] = {
    "silent": stays_silent,
    "half-a-line": lambda answer: (write(dump(answer)[:20]), time.sleep(3600)),
    "dead-in-a-line": lambda answer: (write(dump(answer)[:20]), die()),
    "100-megabytes": lambda answer: [write(b"x" * (1 << 20)) for _ in range(100)],
    "endless": writes_without_end,
    "complaining": complains_without_end,
    "exit-0": lambda answer: os._exit(0),
    "exit-1": exits_with_1,
    "panic": panics,
    "segfault": lambda answer: die(),
    "closed": closes_its_output,
    "not-utf-8": lambda answer: write(b'{"id": "\xff\xfe"}\n'),
    "not-json": lambda answer: write("update: ok\n"),
    "not-an-object": lambda answer: write("[1, 2]\n"),
    "deep": lambda answer: write("[" * 100_000 + "\n"),
    "nan": writes_a_nan,
    "wrong-offset": change(offset="3"),
    "no-mask": leave_out("mask"),
    "mask-in-words": change(mask="triangular"),
    "mask-of-one-axis": change(mask={"shape": [3], "data": [1, 1, 1]}),
    "wrong-order": lambda answer: change(id=answer["id"] - 1)(answer),
    "twice": lambda answer: write(dump(answer) * 2),
    "unknown-error": change(error="oops", message="?"),
    "fails": change(error="failed", message="no such tensor"),
    "unwritten": change(error="missing", message="later"),
    "exit-after": lambda answer: (write(dump(answer)), os._exit(3)),
    "exit-soon-after": lambda answer: (
        write(dump(answer)),
        time.sleep(0.05),
        os._exit(3),
    ),
    "more-after": lambda answer: (write(dump(answer)), time.sleep(0.05), write("hm\n")),
    "silent-after": lambda answer: (write(dump(answer)), time.sleep(3600)),
    "slow": lambda answer: (time.sleep(0.2), change()(answer)),
    "talkative": change(mood="fine"),
}
"""What it does instead of answering the update that brings the third token."""

MORE = ["update", "clone"]


def declare_duty(**duty: Any) -> Callable[[Answer], None]:
    duties = [{"when": {"op": "trim"}, "rule": "no trim", **duty}]
    return change(contracts={"layer": {"kv": {**KV, "duties": duties}}})


def declare_tells(tells: Any) -> Callable[[Answer], None]:
    return change(contracts={"layer": {"kv": {**KV, "tells": tells}}})


HELLOS: Mapping[str, Callable[[Answer], Any]] = {
    "hello-silent": stays_silent,
    "hello-exit": exits_with_1,
    "hello-old": change(protocol=0),
    "hello-error": change(error="failed", message="no device"),
    "hello-unknown-contract": change(contracts={"layers": {"kv": KV}}),
    "hello-unknown-field": change(contract={}),
    "hello-kind-is-a-list": change(contracts={"layer": {"kv": ["update"]}}),
    "hello-colours": change(contracts={"layer": {"\x1b[31mkv": KV}}),
    "hello-dtype": change(dtypes=["float64"]),
    "hello-duty": declare_duty(),
    "hello-duty-when": declare_duty(when={"op": "trim", "ofset": 3}),
    "hello-duty-number": declare_duty(when=3),
    "hello-duty-rule": declare_duty(rule="two\nlines"),
    "hello-duty-more": declare_duty(why="?"),
    "hello-tells": declare_tells(["pool"]),
    "hello-tells-tables": declare_tells(["table"]),
    "hello-tells-twice": declare_tells(["pool", "pool"]),
    "hello-tells-one": declare_tells("pool"),
    "hello-lies": change(contracts={"layer": {"kv": {**KV, "operations": MORE}}}),
}
"""What it does instead of saying what it has."""


def main() -> None:
    way = sys.argv[1]
    if len(sys.argv) > 2:
        with open(sys.argv[2], "a") as file:
            file.write(f"{os.getpid()}\n")
    driver = Driver()
    for line in sys.stdin:
        message = json.loads(line)
        answer = driver.answer(message)
        if message["op"] == "hello" and way in HELLOS:
            HELLOS[way](answer)
        elif message["op"] == "update" and answer["offset"] > 2 and way in UPDATES:
            UPDATES[way](answer)
        else:
            write(dump(answer))


if __name__ == "__main__":
    main()
