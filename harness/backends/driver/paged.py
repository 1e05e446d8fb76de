"""The proxy of the paged contract: a block manager in a driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from msgspec import UNSET
from msgspec.structs import astuple

from lockstep.harness.backends.driver import messages
from lockstep.harness.backends.driver.decoding import Malformed
from lockstep.harness.backends.driver.proxy import Cache
from lockstep.harness.backends.paged import Entry, Pool


class PagedCache(Cache):
    """A proxy with all methods of `harness.backends.paged.PagedCache`.

    A driver only needs to answer the methods that its kind declares.
    """

    contract = "paged"

    def open(self, request: str, tokens: Sequence[int], namespace: str | None) -> None:
        """Opens a request; the message has another name, since `open` opens a cache."""
        self.call("open_request", request, tokens, namespace)

    def load(self, request: str, transfer: str) -> tuple[int, list[Any]] | None:
        end, copies = self.call("load", request, transfer)
        return None if end is None else (end, copies)

    def pool(self) -> Pool:
        answer = self.ask("pool")
        counted = Counter(block for block, _ in answer.references)
        for block, times in counted.items():
            if times > 1:
                self.reject(f"references has block {block} {times} times")
        optional = [
            () if blocks is UNSET else blocks for blocks in (answer.pinned, answer.idle)
        ]
        return Pool(dict(answer.references), answer.free, answer.cached, *optional)

    def entries(self) -> list[Entry]:
        return [make_entry(entry) for entry in self.ask("entries").entries]

    def host_entries(self) -> list[Entry]:
        return [make_entry(entry) for entry in self.ask("host_entries").entries]

    def events(self) -> list[tuple[str, Entry | None]]:
        answer = self.ask("events")
        for number, event in enumerate(answer.events):
            if (event.entry is None) != (event.event == "cleared"):
                has = "no entry" if event.entry is None else "an entry"
                self.reject(f'events[{number}] is "{event.event}" and has {has}')
        return [
            (event.event, event.entry and make_entry(event.entry))
            for event in answer.events
        ]

    def reject(self, problem: str) -> NoReturn:
        self.driver.reject(Malformed(problem))


def make_entry(entry: messages.Entry) -> Entry:
    return Entry(*astuple(entry))
