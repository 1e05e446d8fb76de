"""The probe: a model that generates the token that a head finds in the request.

`lockstep.impl.probe` writes the weights. An engine that loads them shows, in each
generated token, which token its caches hold at one position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lockstep.reference.serving import Ask, Head, Token


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
    kind, window = config["kind"], config["window"]
    if kind == "serving-full":
        return [Head()] * config["heads"]
    if kind == "serving-sliding":
        return [Head(window=window)] * config["heads"]
    raise NotImplementedError(kind)
