"""Content that was put aside: snapshots, and captures scheduled ahead of time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .token import Token


@dataclass(frozen=True)
class Snapshot:
    """The tokens that a cache held, under the label [begin, end).

    Immutable, and independent of the cache that it came from. What the tokens are depends
    on the kind of cache: kv keeps exactly the positions of the label, the others all that
    they hold. `split` and `merge` take their inputs over: whoever called them may not use
    those again.
    """

    begin: int
    end: int
    tokens: tuple[Token, ...]


class Captures:
    """Snapshots that were asked for before the tokens arrived.

    While a long prompt is computed in large updates, nobody can call `snapshot` in the
    middle of one; so the offsets are given beforehand, and the cache captures each one
    as a write reaches it: [the scheduled offset before it, or where the cache stood when
    they were scheduled; this offset).

    What was captured stays as it is. If the cache goes back afterwards and writes other
    tokens past the same offset, that does not capture a second time.
    """

    def __init__(self) -> None:
        self.scheduled: list[int] = []
        self.boundary: dict[int, int] = {}
        self.captured: dict[int, Snapshot] = {}

    def why_not(self, offsets: Sequence[int], offset: int) -> str | None:
        """The rule that `prepare(offsets)` would break at `offset`, or None."""
        if self.scheduled:
            return "the captures of an earlier prepare were not taken yet"
        if list(offsets) != sorted(set(offsets)):
            return "the offsets do not ascend"
        if offsets and offsets[0] < offset:
            return f"offset {offsets[0]} is behind the cache, which stands at {offset}"
        return None

    def prepare(self, offsets: Sequence[int], offset: int) -> None:
        """Schedules one capture for each of `offsets`; a cache at `offset` asks."""
        broken = self.why_not(offsets, offset)
        if broken:
            raise ValueError(f"prepare({list(offsets)}): {broken}")
        self.scheduled = list(offsets)
        self.boundary = dict(zip(offsets, [offset, *offsets], strict=False))

    def reach(self, offset: int, snapshot: Callable[[int], Snapshot | None]) -> None:
        """A write has just reached `offset`: takes the capture that is due there, if
        any, from the boundary before it."""
        if offset in self.scheduled and offset not in self.captured:
            capture = snapshot(self.boundary[offset])
            if capture is not None:
                self.captured[offset] = capture

    def take(self) -> list[Snapshot | None]:
        """One capture for each scheduled offset, None where no write reached it; then
        the schedule is empty again."""
        taken = [self.captured.get(offset) for offset in self.scheduled]
        self.clear()
        return taken

    def clear(self) -> None:
        self.scheduled, self.boundary, self.captured = [], {}, {}
