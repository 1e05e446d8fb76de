"""The probe: a model that generates the token that a head finds in the request.

`lockstep.impl.probe` writes the weights. An engine that loads them shows, in each
generated token, which token its caches hold at one position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest
from pathlib import Path
from typing import Any

from lockstep.harness.core.document import (
    DTYPE,
    Schema,
    complete,
    integer,
    name_type,
    optional,
    parse_json,
    read_text,
)
from lockstep.harness.core.errors import UsageError
from lockstep.reference.serving import Ask, Head, Token

KINDS = (
    "serving-full",
    "serving-sliding",
    "serving-mixed",
    "serving-sinks",
    "serving-chunked",
    "serving-convolution",
    "serving-state",
    "serving-latent",
)

WINDOWLESS = ("serving-full", "serving-state", "serving-latent")

WINDOWED = tuple(kind for kind in KINDS if kind not in WINDOWLESS)
"""The kinds with a window. It is the size of chunks, or the width of a convolution, in
the kinds with chunks and with convolutions."""

CONFIG: Mapping[str, Schema] = {
    "kind": {"enum": list(KINDS)},
    "layers": {**integer(1, 16), "default": 2},
    "heads": {**integer(1, 16), "default": 2},
    "window": optional(integer(1, 8192)),
    "content": {**integer(64, 1 << 16), "default": 2048},
    "context": {**integer(8, 16_384), "default": 1024},
    "distance": {**integer(1, 1024), "default": 3},
}
"""The fields of a config that determine a probe. `window` is null for a kind without
windows."""

NAME = "probe.json"
"""The file that describes a probe, beside its weights."""

FORMAT = "lockstep-probe/1"


@dataclass(frozen=True)
class Probe:
    """The heads of a probe model, and the numbers of its tokens.

    The ids below `content` are tags. Behind them, each head has one id for each of its
    arguments: distances below `context`, or tags. The last id is never used, so that an
    engine may treat it as the end of a text.

    Attributes:
        heads: the heads, layer by layer.
        content: the number of tags.
        context: the largest number of tokens of a request.
        distance: the distance that a tag asks the first head for.
    """

    heads: tuple[Head, ...]
    content: int
    context: int
    distance: int

    @property
    def usual(self) -> Ask:
        """The ask of every tag."""
        return Ask(0, self.distance)

    def count_arguments(self, head: int) -> int:
        return self.context if self.heads[head].finds == "distance" else self.content

    @cached_property
    def first_ids(self) -> list[int]:
        """The id of argument 0 of each head; the last entry is the id that is not
        used."""
        ids = [self.content]
        for head in range(len(self.heads)):
            ids.append(ids[-1] + self.count_arguments(head))
        return ids

    def get_id(self, token: Token) -> int:
        """Returns the id of a tag or of an ask."""
        if isinstance(token, int):
            return token
        return self.first_ids[token.head] + token.argument

    def get_token(self, number: int) -> Token | None:
        """Returns the token with an id; None if no token has it."""
        if 0 <= number < self.content:
            return number
        for head, first in enumerate(self.first_ids[:-1]):
            if first <= number < first + self.count_arguments(head):
                return Ask(head, number - first)
        return None


def get_probe(config: Mapping[str, Any]) -> Probe:
    """Returns the probe of a complete config of the serving contract."""
    heads = [
        head for layer in range(config["layers"]) for head in list_heads(config, layer)
    ]
    sizes = config["content"], config["context"], config["distance"]
    return Probe(tuple(heads), *sizes)


def list_heads(config: Mapping[str, Any], layer: int) -> list[Head]:
    """Lists the heads of one layer."""
    kind, heads, window = config["kind"], config["heads"], config["window"]
    if kind in ("serving-full", "serving-latent"):  # distance and content in turn
        return ([Head(), Head(finds="content")] * heads)[:heads]
    if kind == "serving-sliding":
        return [Head(window=window)] * heads
    if kind == "serving-mixed":  # every second layer sees all positions
        return [Head(window=None if layer % 2 else window)] * heads
    if kind == "serving-sinks":  # every second layer sees all positions
        return [Head(window=None if layer % 2 else window, echoes=True)] * heads
    if kind == "serving-chunked":
        return [Head(chunk=window)] * heads
    if kind == "serving-convolution":  # every second layer is a convolution
        return [Head(window=window, echoes=True)] if layer % 2 else [Head()] * heads
    if kind == "serving-state":  # every second layer has a state
        state = Head(finds="follower", echoes=True)
        return [state] if layer % 2 else [Head()] * heads
    raise NotImplementedError(kind)


# --- probe.json -------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbeFile:
    """The description of a written probe.

    Attributes:
        config: the fields of `CONFIG`.
        architecture: the `model_type` of the model in Hugging Face's transformers.
        dtype: the type of the weights.
        weights: the path of the file with the weights.
    """

    config: Mapping[str, Any]
    architecture: str
    dtype: str
    weights: Path


FIELDS: Mapping[str, Schema] = {
    "format": {"const": FORMAT},
    **CONFIG,
    "architecture": {"type": "string", "pattern": r"^[a-z0-9_]{1,64}(?![\s\S])"},
    "dtype": DTYPE,
    "weights": {"enum": ["model.safetensors", "model.gguf"]},
    "digest": {"type": "string", "pattern": r"^[0-9a-f]{64}(?![\s\S])"},
}


def check_config(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Adds the defaults to a config and checks it.

    Raises:
        UsageError: no probe has this config.
    """
    complete_config = complete(config, CONFIG, where)
    kind, window = complete_config["kind"], complete_config["window"]
    if kind in WINDOWED and window is None:
        raise UsageError(f"{where}: window: is missing; {kind} needs a window")
    if kind not in WINDOWED and window is not None:
        raise UsageError(f"{where}: window: {kind} has no window; leave it out")
    if complete_config["distance"] >= complete_config["context"]:
        raise UsageError(f"{where}: distance: must be below context")
    return complete_config


def read_probe(folder: Path) -> ProbeFile:
    """Reads the description of the probe in a folder.

    Raises:
        UsageError: the description is malformed, or does not belong to the weights.
    """
    path = folder / NAME
    where = str(path)
    if folder.is_dir() and not path.exists():
        raise UsageError(f"{folder}: has no {NAME}; `lockstep probe` writes a probe")
    document = parse_json(read_text(path), where)
    if not isinstance(document, dict):
        raise UsageError(f"{where}: is {name_type(document)}, not an object")
    fields = complete(document, FIELDS, where)
    config = check_config({name: fields[name] for name in CONFIG}, where)
    weights = folder / fields["weights"]
    try:
        with weights.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{weights}: cannot be read: {error.strerror}") from None
    if digest != fields["digest"]:
        raise UsageError(
            f"{weights}: is not the file that {NAME} describes; write both"
            " again with lockstep probe"
        )
    return ProbeFile(config, fields["architecture"], fields["dtype"], weights)
