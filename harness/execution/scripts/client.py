"""Sends requests to a server and compares the generated tokens; scripts contain a copy.

This module imports nothing of this project.
"""

import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"

REFUSED = "refused"


def send(prompt: list[int], count: int, **more: Any) -> Any:
    """Sends a request, and returns the answer before it is read."""
    body = {
        "prompt": prompt,
        "max_tokens": count,
        "temperature": 0,
        "logprobs": 1,
        **more,
    }
    headers = {"Content-Type": "application/json"}
    request = Request(f"{URL}/v1/completions", json.dumps(body).encode(), headers)
    return urlopen(request, timeout=60)


def read(answer: Any) -> list[int]:
    """Returns the ids of the generated tokens of all choices in an answer or in a part of
    a stream."""
    generated: list[int] = []
    for choice in answer["choices"]:
        logprobs = choice.get("logprobs") or {}
        ids = [token["id"] for token in logprobs.get("content") or ()]
        words = map(int, re.findall("t([0-9]+)", choice.get("text", "")))
        generated += choice.get("token_ids") or ids or list(words)
    return generated


def complete(request: tuple[list[int], Any, dict[str, Any]]) -> Any:
    prompt, expected, more = request
    try:
        count = 1 if expected == REFUSED else len(expected) // more.get("n", 1)
        with send(prompt, count, **more) as answer:
            return read(json.load(answer))
    except HTTPError as error:
        return REFUSED if error.code == 400 else str(error)


def iterate(lines: Any) -> Iterator[int]:
    """Yields the ids of the generated tokens of a stream."""
    for line in lines:
        if line.startswith(b"data: {"):
            yield from read(json.loads(line[6:]))


def compare(name: str, got: Any, expected: Any) -> bool:
    print(f"{name}: {got}{'' if got == expected else f', but expected {expected}'}")
    return bool(got == expected)


def run(steps: list[Any]) -> int:
    """Runs all steps; returns the number of wrong answers."""
    wrong, streams = 0, {}
    with ThreadPoolExecutor(32) as pool:
        for name, *fields in steps:
            if name == "complete":
                for got, (_, expected, _) in zip(pool.map(complete, *fields), *fields):
                    wrong += not compare(name, got, expected)
            elif name == "begin":
                key, prompt, expected, more = fields
                answer = send(prompt, len(expected), stream=True, **more)
                streams[key] = answer, iter(expected), iterate(answer)
            elif name == "read":
                key, count = fields
                pairs = [*zip(range(count), *streams[key][1:])]
                got = [token for _, _, token in pairs]
                wrong += not compare(name, got, [token for _, token, _ in pairs])
            else:
                streams[fields[0]][0].close()
    print(f"{wrong} wrong answers")
    return wrong
