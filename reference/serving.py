"""Defines the answers of an inference engine, which depend only on the tokens of the
request.

The engine runs a probe model. Each token of the request asks a head of this model for an
earlier token, and the model generates the token that the head finds. So each generated
token shows which token the engine's caches hold at one position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Head:
    """One head of one layer of the probe model.

    Attributes:
        finds: the token that a head finds. "distance": the token at a distance before the
            asking token. "content": a token that equals a given token. "follower": the
            token behind a token that equals a given token.
        window: the number of positions that the head sees, including the position of the
            asking token; None for all positions.
        chunk: the head sees only positions of its own chunk; None for no chunks.
        echoes: whether the head finds the asking token if it does not see the requested
            token. If not, it finds the visible token that is nearest to the distance.
    """

    finds: Literal["distance", "content", "follower"] = "distance"
    window: int | None = None
    chunk: int | None = None
    echoes: bool = False

    def sees(self, asking: int, position: int) -> bool:
        """Tells whether a token at `asking` sees the token at `position`."""
        if not 0 <= position <= asking:
            return False
        if self.window is not None and position <= asking - self.window:
            return False
        return self.chunk is None or position // self.chunk == asking // self.chunk


@dataclass(frozen=True)
class Ask:
    """A token that asks a head.

    Attributes:
        head: the index of the head.
        argument: the distance, or the given token.
    """

    head: int
    argument: int


Token = int | Ask
"""A token of a request: a tag, which asks the usual question, or an ask."""


def find(heads: Sequence[Head], usual: Ask, tokens: Sequence[Token]) -> int | None:
    """Finds the position of the token that the model generates behind `tokens`.

    Args:
        heads: the heads of the probe model.
        usual: the ask of every token that is not an `Ask`.
        tokens: the request, at least one token.

    Returns:
        The position; None if the weights of the model determine it and not this rule: a
        distance is more than one position beyond the visible tokens of the head, a head
        that does not echo finds no token, or a head finds several followers that differ.
    """
    asking = len(tokens) - 1
    ask = tokens[-1] if isinstance(tokens[-1], Ask) else usual
    head = heads[ask.head]
    if head.finds == "distance":
        wanted = asking - ask.argument
        matching = [wanted] if head.echoes or head.sees(asking, wanted) else [wanted + 1]
    else:
        behind = 1 if head.finds == "follower" else 0
        equal = [at for at, token in enumerate(tokens) if token == ask.argument]
        matching = [at + behind for at in equal if head.sees(asking, at)]
    found = [position for position in matching if head.sees(asking, position)]
    if not found:
        return asking if head.echoes else None
    return found[-1] if len({tokens[position] for position in found}) == 1 else None


class Shift(NamedTuple):
    """The rule for the tokens that an engine drops when a request fills the context.

    Attributes:
        context: the number of tokens that the engine holds.
        keep: the number of first tokens that are never dropped.
    """

    context: int
    keep: int

    def drop(self, tokens: list[Token]) -> list[Token]:
        """Returns the tokens that the engine holds when it computes the last of `tokens`.

        If they fill the context, it has dropped the older half of the tokens between the
        kept ones and the last one. The later tokens move to their positions.
        """
        if len(tokens) < self.context:
            return tokens
        dropped = (len(tokens) - 1 - self.keep) // 2
        return tokens[: self.keep] + tokens[self.keep + dropped :]


def generate(
    heads: Sequence[Head],
    usual: Ask,
    prompt: Sequence[Token],
    count: int,
    shift: Shift | None = None,
) -> list[Token] | None:
    """Lists the `count` tokens that the model generates behind a prompt.

    Returns:
        The tokens; None if the weights of the model determine one of them (see `find`).
    """
    tokens, generated = list(prompt), []
    for _ in range(count):
        position = find(heads, usual, tokens)
        if position is None:
            return None
        generated.append(tokens[position])
        tokens.append(tokens[position])
        if shift is not None:
            tokens = shift.drop(tokens)
    return generated
