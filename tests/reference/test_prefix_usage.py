"""Tries and slots are not opened with what cannot be. Other calls that break a rule are
drawn: caches refuse them, and the reference must."""

from __future__ import annotations

import pytest
from prefix_book import ConversationDesk, SlotsDesk

from lockstep.reference.trie import Trie


@pytest.mark.parametrize("options", ["limit=-1", "interval=0", "interval=-1"])
def test_a_trie_is_not_opened_with_less_than_nothing(options: str) -> None:
    with pytest.raises(ValueError, match=r"limit|interval"):
        ConversationDesk(Trie, f"kv {options}")


@pytest.mark.parametrize(("keep", "context"), [(-1, 8), (8, 8), (9, 8), (0, 0)])
def test_what_is_kept_leaves_room(keep: int, context: int) -> None:
    with pytest.raises(ValueError, match="keep"):
        SlotsDesk(f"causal keep={keep} context={context}")


def test_a_pass_has_at_most_what_is_not_kept() -> None:
    desk = SlotsDesk("causal context=8 keep=2")
    desk.check(["begin abcdefgh > 0 abcdefgh"])
    with pytest.raises(ValueError, match="7 tokens cannot be computed"):
        desk.cache.reserve(0, 7)
    desk.check(["feed 0 6 > 0", "feed 0 2 > 6", "holds 0 > abcdefgh"])
