"""Mistakes of compressed entries: windows, tokens that are in no entry yet, and trims."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import edit, mistake
from lockstep.impl.shared.memory import Arrays
from lockstep.impl.shared.pooled import cut

# --- entries and their tokens -----------------------------------------------------------


@mistake("pooled", 1)
def pooled_open_window_seen(cache: Any) -> None:
    """A query sees the entry of its window before the window is closed."""
    wrong = "min(-(-end // self.pool), ends[-1] // self.pool) for end in ends"
    edit(cache, "make_mask", "end // self.pool for end in ends", wrong)


@mistake("pooled", 2)
def pooled_overlap_forgotten(cache: Any) -> None:
    """The first window of an update has no overlap with the tokens of the update
    before."""
    make_entries = cache.make_entries

    def make_first(run: Arrays, window: int) -> Arrays:
        skipped = window * cache.pool - cache.get_start(window)
        entries: Arrays = make_entries(cut(run, skipped, run[0].shape[2]), 0)
        return entries

    cache.make_entries = make_first


@mistake("pooled", 2)
def pooled_open_tokens_lost(cache: Any) -> None:
    """At the end of an update with several tokens, the open tokens are cleared."""
    kept = "cut(arrays, kept - begin, end - begin)"
    wrong = f"[array * (end == begin + 1) for array in {kept}]"
    edit(cache, "append", kept, wrong)


# --- trims ------------------------------------------------------------------------------


@mistake("pooled", 3, "transformers: `crop` of DeepseekV4HCACache")
def pooled_entry_outlives_trim(cache: Any) -> None:
    """A trim that opens a window again leaves the entry of this window."""
    wrong = "target // self.pool if snapshot else self.entries.offset"
    edit(cache, "restore", "entries, target // self.pool", f"entries, {wrong}")


@mistake("pooled", 3, "llama.cpp#27994")
def pooled_entry_found_by_position(cache: Any) -> None:
    """A closed window gets the entry that was made at its position first, also after its
    tokens were replaced."""
    make_entries, known = cache.make_entries, dict[int, Arrays]()

    def make_new(run: Arrays, window: int) -> Arrays:
        entries = make_entries(run, window)
        pieces = [
            known.setdefault(window + at, cut(entries, at, at + 1))
            for at in range(entries[0].shape[2])
        ]
        return cache.memory.join(pieces)

    cache.make_entries = make_new


@mistake("pooled", 3, "sglang PR#34189")
def pooled_drafts_unwritten(cache: Any) -> None:
    """Of an update with several tokens, the cache keeps the open window, but no earlier
    tokens, which a trim of drafts needs."""
    append = cache.append

    def append_few(arrays: Arrays) -> None:
        append(arrays)
        begin, end = cache.get_start(cache.oldest), cache.offset
        begin = max(begin, end - arrays[0].shape[2])
        lost = cache.get_start(end // cache.pool) - begin
        if lost > 0:
            kept = cache.memory.read(begin, end)
            gone = cut((kept[0] * 0, kept[1] * 0), 0, lost)
            arrays = cache.memory.join([gone, cut(kept, lost, end - begin)])
            cache.store(cache.get_start(cache.oldest), begin, end, arrays)

    cache.append = append_few


@mistake("pooled", 4)
def pooled_trim_counts_from_end(cache: Any) -> None:
    """The lookahead counts from the present end, not from the largest offset: a second
    trim finds tokens that were overwritten."""
    latest = "(end - self.lookahead) // self.pool"
    edit(cache, "append", f"max(self.oldest, {latest})", f"max(0, {latest})")
