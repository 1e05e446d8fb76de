"""A small engine with a prefix cache, and the mistakes that are planted in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.engine import NO_ARRAYS, Completion, Generation
from lockstep.harness.backends.probe import Probe, get_probe
from lockstep.harness.contracts.serving import SERVING
from lockstep.reference.serving import Ask, Shift, Token, find

Cached = list[Token | None]
"""The tokens whose K and V a sequence holds, by position; None for overwritten memory."""


@dataclass(eq=False)
class ToyEngine:
    """Keeps the K and V of ended requests, and reuses the longest common prefix.

    A mistake is a method that replaces a method of this class.

    Attributes:
        probe: the probe that the engine serves.
        caches: (tokens of an ended request, its K and V).
        first_tag: see `Engine`.
    """

    probe: Probe
    config: Mapping[str, Any]
    caches: list[tuple[list[Token], Cached]] = field(default_factory=list)
    first_tag: int = 0

    def complete(self, requests: Sequence[Generation]) -> list[Completion]:
        begun = [self.begin(request) for request in requests]
        return [stream.read(stream.left) for stream in begun]

    def fork(self, request: Generation, answers: int) -> list[Completion]:
        """Computes the prompt once; each answer has a copy of its K and V."""
        stream = self.begin(request)
        return [copied.read(copied.left) for copied in self.copy(stream, answers)]

    def copy(self, stream: ToyStream, answers: int) -> list[ToyStream]:
        return [
            replace(stream, tokens=[*stream.tokens], cached=[*stream.cached])
            for _ in range(answers)
        ]

    def begin(self, request: Generation) -> ToyStream:
        if not request.prompt:
            raise ValueError("the prompt is empty")
        added = request.count if self.config["keep"] is None else 1
        if len(request.prompt) + added > self.probe.context:
            raise ValueError("the request is longer than the context")
        tokens = [self.get_token(number) for number in request.prompt]
        kept = self.reuse(tokens)
        cached = [*kept, *tokens[len(kept) :]]
        return ToyStream(self, tokens, cached, len(kept), request.count)

    def get_token(self, number: int) -> Token:
        token = self.probe.get_token(number)
        if token is None:
            raise ValueError(f"the vocabulary has no id {number}")
        return token

    def reuse(self, tokens: list[Token]) -> Cached:
        """Returns the K and V that a new request reuses, never all of its tokens."""
        best: Cached = []
        for stored, cached in self.caches:
            pairs = zip(stored, tokens[:-1], strict=False)
            same = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
            length = min(len(stored), len(tokens) - 1) if same is None else same
            best = max(best, cached[:length], key=len)
        return best

    def find(self, cached: Cached) -> int | None:
        return find(self.probe.heads, self.probe.usual, cached)  # type: ignore[arg-type]

    def drop(self, tokens: list[Any]) -> list[Any]:
        """Drops what a full context must lose."""
        keep = self.config["keep"]
        return tokens if keep is None else Shift(self.probe.context, keep).drop(tokens)

    def load(self, stream: ToyStream, position: int) -> Token | None:
        """Returns the token whose V is at a position."""
        return stream.cached[position]

    def keep(self, stream: ToyStream) -> None:
        self.caches.append((stream.tokens, stream.cached))

    def flush(self) -> None:
        self.caches.clear()

    def close(self) -> None:
        self.caches.clear()


@dataclass(eq=False)
class ToyStream:
    """An open request of a `ToyEngine`."""

    engine: ToyEngine
    tokens: list[Token]
    cached: Cached
    reused: int
    left: int

    def read(self, count: int) -> Completion:
        probe, ids = self.engine.probe, []
        for _ in range(count):
            position = self.engine.find(self.cached)
            token = None if position is None else self.engine.load(self, position)
            ids.append(probe.first_ids[-1] if token is None else probe.get_id(token))
            self.tokens.append(probe.get_token(ids[-1]) or 0)
            self.cached.append(self.tokens[-1])
            self.tokens = self.engine.drop(self.tokens)
            self.cached = self.engine.drop(self.cached)
        self.left -= count
        if not self.left:
            self.engine.keep(self)
        return Completion(ids, [0.0] * count, self.reused)

    def abort(self) -> None:
        self.engine.keep(self)


class KeepsFirst(ToyEngine):
    """Reuses the first token of any cached request, whatever the prompt says."""

    def reuse(self, tokens: list[Token]) -> Cached:
        best = super().reuse(tokens)
        if not best and len(tokens) > 1 and self.caches:
            return self.caches[-1][1][:1]
        return best


class ComparesLengths(ToyEngine):
    """Compares prompts by their first token and their length."""

    def reuse(self, tokens: list[Token]) -> Cached:
        for stored, cached in self.caches:
            if stored[0] == tokens[0] and len(stored) == len(tokens):
                return cached[: len(tokens) - 1]
        return super().reuse(tokens)


class KeepsAborted(ToyEngine):
    """Stores an aborted request with tokens that it has not computed."""

    def keep(self, stream: ToyStream) -> None:
        if stream.left:
            stream.cached[len(stream.cached) // 2 :] = [0] * (-(-len(stream.cached) // 2))
        super().keep(stream)


class IgnoresFlush(ToyEngine):
    """Forgets at a flush which tokens the caches of the last request hold."""

    def flush(self) -> None:
        for index, (stored, cached) in enumerate(self.caches):
            self.caches[index] = stored, [0] * len(cached)


class SeesTooFar(ToyEngine):
    """Its window has one token more."""

    more = 1

    def find(self, cached: Cached) -> int | None:
        heads = tuple(
            replace(head, window=head.window and head.window + self.more)
            for head in self.probe.heads
        )
        return find(heads, self.probe.usual, cached)  # type: ignore[arg-type]


class SeesTooNear(SeesTooFar):
    """Its window has one token less."""

    more = -1


class MovesReused(ToyEngine):
    """Holds reused tokens one position too late."""

    def reuse(self, tokens: list[Token]) -> Cached:
        best = super().reuse(tokens)
        return [*best[-1:], *best[:-1]]


class SwapsValues(ToyEngine):
    """Stores K of a reused token beside V of another."""

    def load(self, stream: ToyStream, position: int) -> Token | None:
        other = position ^ 1
        return stream.cached[other if other < stream.reused else position]


class LosesLayer(ToyEngine):
    """Restores only the first layer of a reused prefix; the second has the oldest one."""

    def load(self, stream: ToyStream, position: int) -> Token | None:
        token = stream.tokens[-1]
        is_second = isinstance(token, Ask) and token.head >= self.config["heads"]
        if is_second and position < min(stream.reused, len(self.caches[0][1])):
            return self.caches[0][1][position]
        return super().load(stream, position)


class DropsRow(ToyEngine):
    """Does not write the last row of a batch, which reads what the first row wrote."""

    def complete(self, requests: Sequence[Generation]) -> list[Completion]:
        begun = [self.begin(request) for request in requests]
        first, last = begun[0].cached, begun[-1].cached
        length = min(len(first), len(last)) - 1
        last[:length] = first[:length]
        return [stream.read(stream.left) for stream in begun]


class RepeatsToken(ToyEngine):
    """A later read of a stream begins with the last token of the read before it."""

    def begin(self, request: Generation) -> ToyStream:
        return RepeatingStream(**vars(super().begin(request)))


class RepeatingStream(ToyStream):
    last: Sequence[int] = ()

    def read(self, count: int) -> Completion:
        completion = super().read(count)
        ids, self.last = [*self.last, *completion.ids][:count], completion.ids[-1:]
        return completion._replace(ids=ids)


class MixesBatch(ToyEngine):
    """Gives requests that run at the same time the answers of their neighbours."""

    def complete(self, requests: Sequence[Generation]) -> list[Completion]:
        answers = super().complete(requests)
        same = [len(answer.ids) for answer in answers]
        return answers[::-1] if len(set(same)) == 1 else answers


class SharesAnswers(ToyEngine):
    """The answers to one prompt share the K and V of their generated tokens."""

    def copy(self, stream: ToyStream, answers: int) -> list[ToyStream]:
        return [replace(stream) for _ in range(answers)]


class DropsFirst(ToyEngine):
    """Drops also the first tokens, which it must keep, when the context is full."""

    def drop(self, tokens: list[Any]) -> list[Any]:
        kept = super().drop(tokens)
        return kept if kept is tokens else tokens[len(tokens) - len(kept) :]


class IsBlurred(ToyEngine):
    """Holds the last token of a reused prefix twice."""

    def complete(self, requests: Sequence[Generation]) -> list[Completion]:
        answers = super().complete(requests)
        blurred = [[-0.7] * len(answer.ids) for answer in answers]
        pairs = zip(answers, blurred, strict=True)
        return [a._replace(logprobs=b) if a.cached else a for a, b in pairs]


MISTAKES: Sequence[type[ToyEngine]] = (
    *(KeepsFirst, ComparesLengths, KeepsAborted, IgnoresFlush, SeesTooFar, SeesTooNear),
    *(MovesReused, SwapsValues, LosesLayer, DropsRow, RepeatsToken, MixesBatch),
    *(SharesAnswers, IsBlurred),
)


def make_backend(engine: type[ToyEngine] = ToyEngine) -> Backend:
    """Makes the backend of an engine class, with all operations but slots."""
    operations = frozenset(SERVING.operations) - {"save", "restore"}
    kinds = {kind: Kind(operations, refuses=True) for kind in SERVING.kinds}
    open_engine: Callable[[Mapping[str, Any]], ToyEngine] = lambda config: engine(  # noqa: E731
        get_probe(config), config
    )
    return Backend(engine.__name__, "cpu", {"serving": kinds}, NO_ARRAYS, open_engine)


def toy() -> Backend:
    """Makes the backend of the correct engine; full contexts may drop tokens."""
    kinds = {
        kind: replace(declared, config={"keep": (None, 1), "context": (64,)})
        for kind, declared in make_backend().contracts["serving"].items()
    }
    return replace(make_backend(), contracts={"serving": kinds})


(
    keeps_first,
    compares_lengths,
    keeps_aborted,
    ignores_flush,
    sees_too_far,
    sees_too_near,
    moves_reused,
    swaps_values,
    loses_layer,
    drops_row,
    repeats_token,
    mixes,
    shares_answers,
    blurred,
) = ((lambda kind=kind: make_backend(kind)) for kind in MISTAKES)
