"""Mistakes of sessions that we thought up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockstep.impl.faults.fault import Inventor
from lockstep.impl.prefix.tokens import check_tokens

invent = Inventor("prefix")
FAULTS = invent.faults


@invent("begin", "aliasing", "session", 3)
def request_handed_out(session: Any) -> None:
    """Where nothing is reused, the list of what remains is the request's own: what the
    caller does with it changes the request."""
    begin = session.begin

    def begin_and_share(tokens: Sequence[int], checkpoints: Sequence[int]) -> Any:
        remaining = begin(tokens, checkpoints)
        return session.request if remaining == session.request else remaining

    session.begin = begin_and_share


@invent("begin", "wrong dtype", "session", 4)
def tokens_in_sixteen_bits(session: Any) -> None:
    """Tokens are compared in 16 bits, and many a vocabulary has more than 65,536."""
    check_begin = session.check_begin

    def check_alike(tokens: Sequence[int]) -> Any:
        request = check_begin(tokens)
        for place, (new, old) in enumerate(zip(request, session.stored, strict=False)):
            if new % 65_536 == old % 65_536:
                session.stored[place] = new
        return request

    session.check_begin = check_alike


@invent("feed", "order", "session", 5)
def generated_before_the_rest(session: Any) -> None:
    """Tokens that are generated stand behind what was computed, before what still
    remains."""

    def extend(tokens: Sequence[int]) -> None:
        request, reached = session.get_request("extend"), session.get_reached()
        request[reached:reached] = check_tokens(tokens)

    session.extend = extend


@invent("close", "silent clamp", "session", 4)
def stored_as_asked(session: Any) -> None:
    """At most the tokens that a request began with are stored, however many were
    generated and computed."""
    begin, close = session.begin, session.close

    def begin_and_note(tokens: Sequence[int], checkpoints: Sequence[int]) -> Any:
        remaining = begin(tokens, checkpoints)
        session.asked = len(session.request)
        return remaining

    def close_as_asked() -> int:
        del session.get_request("close")[session.asked :]
        stored: int = close()
        return stored

    session.begin, session.close = begin_and_note, close_as_asked


@invent("break", "wrong layer", "session", 5)
def last_layer_for_all(session: Any) -> None:
    """If the last layer stands where the request goes on, no layer is moved; after a pass
    that broke off, those before it are ahead."""
    move = session.move

    def move_unless_there(target: int, common: int, restore: Callable[..., Any]) -> Any:
        offsets = [layer.offset for _, layer in session.cached]
        return None if offsets[-1:] == [target] else move(target, common, restore)

    session.move = move_unless_there


@invent("refuse", "missing rollback", "session", 5)
def moved_layers_stay(session: Any) -> None:
    """When one layer refuses to go back, those that went before it stay there."""
    go, free_layers = session.go, session.free_layers

    def go_and_stay(target: int) -> Any:
        def free_others() -> None:
            for _, layer in session.cached:
                if layer.offset != target:
                    layer.free()

        session.free_layers = free_others
        try:
            return go(target)
        finally:
            session.free_layers = free_layers

    session.go = go_and_stay


@invent("count", "wrong layer", "session", 4)
def counted_in_the_longest(session: Any) -> None:
    """Between requests, what the layer that is furthest has read counts as stored."""

    def count_tokens() -> int:
        if session.request is not None:
            return len(session.stored)
        return max((layer.offset for _, layer in session.cached), default=0)

    session.count_tokens = count_tokens


@invent("free", "stale metadata", "session", 5)
def freed_without_tokens(session: Any) -> None:
    """The layers are emptied, but their tokens still count as stored."""
    free = session.free

    def free_layers_only() -> None:
        stored = session.stored
        free()
        session.stored = stored

    session.free = free_layers_only
