"""Makes a backend from a server, whose name is "http://HOST:PORT".

The server must serve the probe in a given folder. A handshake finds out which form the
requests must have, and which operations the server supports.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from typing import Any

from msgspec import Struct

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.backends.engine import NO_ARRAYS, Generation
from lockstep.harness.backends.http.client import HttpServer, find_address
from lockstep.harness.backends.http.completions import CompletionEngine, Form, decode
from lockstep.harness.backends.probe import Probe, get_probe, read_probe
from lockstep.harness.core.errors import Broken, UsageError
from lockstep.reference.serving import Ask, generate

FIELDS: tuple[Mapping[str, Any], ...] = (
    {"logprobs": 1, "return_token_ids": True},
    {"return_token_ids": True},
    {"logprobs": 1},
    {},
)
"""The fields that a request gets if the server accepts them: vLLM returns the ids of
tokens only on demand, and no log-probabilities if it has no tokenizer; strict servers
refuse fields that they do not know."""

FLUSHES = ("/flush_cache", "/reset_prefix_cache")
"""The requests of SGLang and vLLM that drop all cached prefixes."""

ASKS = 8
"""The number of asks of the handshake."""

MOST_SLOTS = 64

STRIDE = 257
"""The distance between the first tags of two programs, which run on the same server. Few
programs have more tags."""


class Model(Struct):
    id: str


class Models(Struct):
    """The answer to /v1/models."""

    data: list[Model]


def load_server(name: str, limits: Limits) -> Backend:
    """Makes a backend from a running server.

    Raises:
        UsageError: the server does not serve the probe, or it is another machine.
    """
    address = find_address(name, limits.allow_host)
    if limits.probe is None:
        raise UsageError(
            f"--backend {name}: name the folder of the probe that it serves with --probe"
            " DIR; `lockstep probe` writes the folder"
        )
    config = read_probe(Path(limits.probe)).config
    server = HttpServer(address, limits.message_seconds, limits.rate)
    try:
        form = find_form(server, get_probe(config))
    except Broken as broken:
        raise UsageError(f"--backend {name}: {broken}") from None
    first_tags = (number % config["content"] for number in count(0, STRIDE))

    def open_engine(_: Mapping[str, Any]) -> CompletionEngine:
        return CompletionEngine(server, form, server.seconds, next(first_tags))

    kind = find_kind(open_engine(config), form, config)
    require_context(open_engine(config), config, name)
    return Backend(
        name=name,
        device="a server",
        contracts={"serving": {config["kind"]: kind}},
        arrays=NO_ARRAYS,
        open=open_engine,
        is_fatal=lambda error: isinstance(error, ConnectionRefusedError),
    )


def find_form(server: HttpServer, probe: Probe) -> Form:
    """Finds a form of requests to which the server answers like the probe.

    Raises:
        UsageError: the server answers no form like the probe.
    """
    url, asks = server.address.url, list(draw_asks(probe))
    model, problem = find_model(server), ""
    for words, fields in product((False, True), FIELDS):
        form = Form({**model, **fields}, words)
        engine = CompletionEngine(server, form, server.seconds)
        try:
            answers = [engine.run(request).ids for request, _ in asks]
        except ValueError as error:
            problem = problem or f"it refuses the requests of the probe: {error}"
            continue
        wrong = [
            f"asked for {wanted}, it generated {list(got)[:9]}"
            for got, (_, wanted) in zip(answers, asks, strict=True)
            if list(got) != wanted
        ]
        if not wrong:
            return find_features(server, form)
        problem = f"it serves another model than the probe: {wrong[0]}"
    raise UsageError(f"--backend {url}: {problem}")


def draw_asks(probe: Probe) -> Iterator[tuple[Generation, list[int]]]:
    """Yields requests, and the ids that only the probe generates."""
    source = random.Random(0)
    drawn = 0
    while drawn < ASKS:
        tags = source.sample(range(probe.content), 12)
        head = drawn % len(probe.heads)
        is_distance = probe.heads[head].finds == "distance"
        ask = Ask(head, source.randrange(12) if is_distance else source.choice(tags))
        generated = generate(probe.heads, probe.usual, [*tags, ask], 1)
        if generated is not None:
            request = Generation([*tags, probe.get_id(ask)], 1)
            yield request, [probe.get_id(token) for token in generated]
            drawn += 1


def find_model(server: HttpServer) -> Mapping[str, str]:
    """Returns the field that names the model; empty if the server tells no name."""
    with suppress(ValueError, Broken):
        models = decode(server.get("/v1/models"), Models).data
        return {"model": models[0].id} if models else {}
    return {}


def find_features(server: HttpServer, form: Form) -> Form:
    """Adds the slots and the request for a flush to a form."""
    slots, flush = 0, None
    with suppress(ValueError, Broken):
        slots = len(decode(server.get("/slots"), list[dict[str, Any]]))
    for path in FLUSHES:
        if flush is None and not slots and works(server.post, path, {}):
            flush = path
    return replace(form, slots=min(slots, MOST_SLOTS), flush=flush)


def works(call: Callable[..., Any], *arguments: Any) -> bool:
    """Returns whether a request succeeds."""
    try:
        call(*arguments)
    except (ValueError, Broken):
        return False
    return True


def require_context(
    engine: CompletionEngine, config: Mapping[str, Any], name: str
) -> None:
    """Raises UsageError if the server refuses the longest request."""
    context = config["context"]
    prompt = [number % config["content"] for number in range(context - 1)]
    try:
        engine.run(Generation(prompt, 1))
    except (ValueError, Broken) as error:
        raise UsageError(
            f"--backend {name}: a request of {context} tokens, the context of the probe,"
            f" fails: {error}; serve more, or write a probe with a smaller --context"
        ) from None


def find_kind(engine: CompletionEngine, form: Form, config: Mapping[str, Any]) -> Kind:
    """Finds out the operations of a server."""
    request = Generation([0, 1, 2, 3], 1)
    operations = {"complete", "queue", "run", "interrogate"}
    with suppress(ValueError, Broken):
        if len(engine.fork(request, 2)) == 2:  # others ignore the number of answers
            operations.add("fork")
    if works(lambda: engine.begin(request).read(1)):
        operations |= {"begin", "read", "abort"}
    if form.flush or (form.slots and works(engine.flush)):
        operations.add("flush")
    if form.slots and works(engine.save, 0, "s0") and works(engine.restore, 0, "s0"):
        operations |= {"save", "restore"}
    lengths = (0, config["context"], config["context"] + 1)
    refuses = not any(
        works(engine.run, Generation([*range(length)], 1)) for length in lengths
    )
    fields = {**config, "alphabet": None, "slots": form.slots or None}
    values = {name: (value,) for name, value in fields.items() if name != "kind"}
    return Kind(frozenset(operations), values, refuses=refuses)
