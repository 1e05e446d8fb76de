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
    """Has all methods of `harness.backends.paged.PagedCache`; a driver need not answer
    those that its kind does not declare."""

    contract = "paged"

    def open(self, request: str, tokens: Sequence[int], namespace: str | None) -> None:
        """The message `open` opens a cache."""
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
        more = [() if told is UNSET else told for told in (answer.pinned, answer.idle)]
        return Pool(dict(answer.references), answer.free, answer.cached, *more)

    def entries(self) -> list[Entry]:
        return [make_entry(told) for told in self.ask("entries").entries]

    def host_entries(self) -> list[Entry]:
        return [make_entry(told) for told in self.ask("host_entries").entries]

    def events(self) -> list[tuple[str, Entry | None]]:
        answer = self.ask("events")
        for number, told in enumerate(answer.events):
            if (told.entry is None) != (told.event == "cleared"):
                has = "no entry" if told.entry is None else "an entry"
                self.reject(f'events[{number}] is "{told.event}" and has {has}')
        return [
            (told.event, told.entry and make_entry(told.entry)) for told in answer.events
        ]

    def reject(self, words: str) -> NoReturn:
        self.driver.reject(Malformed(words))


def make_entry(told: messages.Entry) -> Entry:
    return Entry(*astuple(told))
