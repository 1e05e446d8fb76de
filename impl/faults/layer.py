"""Mistakes of layer caches. The ids are those under which the bugs are known here."""

from __future__ import annotations

from functools import partial

from lockstep.impl.faults import buffers, chunks, quantized, snapshots, windows
from lockstep.impl.faults.fault import Fault, make_plain_fault

make_fault = partial(make_plain_fault, "layer")


FAULTS = {
    fault.id: fault
    for fault in (
        make_fault(
            "rotating-chunk-mid-ring",
            "ollama 06ae6367b (#15591), mlx-examples#1000",
            "rotating",
            "several tokens appended to a ring that stands mid-rotation drop the slots"
            " behind the cursor",
            2,
            windows.drop_behind_cursor,
        ),
        make_fault(
            "rotating-trim-after-wrap",
            "ollama 96e36c0d9, mlx-lm#1776",
            "rotating",
            "trim after a wrap only moves counters; stale tokens count as valid",
            2,
            windows.trim_anyway,
        ),
        make_fault(
            "rotating-restore-after-wrap",
            "ollama d1151e18a",
            "rotating",
            "rewind below the window accepted",
            2,
            windows.rewind_anyway,
        ),
        make_fault(
            "rotating-state-past-buffer",
            "ollama 55fa80d07",
            "rotating",
            "state sliced to the offset, not to the length of the buffer",
            3,
            windows.read_past_ring,
        ),
        make_fault(
            "rotating-order",
            "ollama 2bbe2405f",
            "rotating",
            "ring returned in slot order under a positional mask",
            2,
            windows.return_in_slots,
        ),
        Fault(
            "window-off-by-one",
            "mlx-lm PR#390",
            "rotating",
            "`<=` for `<` in the window mask: one token too wide",
            1,
            windows.widen_mask,
        ),
        make_fault(
            "window-roll-at-exactly-w",
            "transformers#37574",
            "rotating",
            "strict inequality: slid one step late at exactly the window",
            2,
            windows.slide_late,
        ),
        make_fault(
            "decode-mask-dropped",
            "mlx-lm PR#843",
            "rotating",
            "one-token step on a full cache returned no mask although a window was asked",
            2,
            windows.drop_decode_mask,
        ),
        Fault(
            "clamped-mask-width",
            "mlxcel PR#418",
            "rotating",
            "mask sized for a trimmed cache, keys for the whole one",
            2,
            windows.clamp_mask,
        ),
        Fault(
            "mask-from-stale-offset",
            "mlx-swift-lm PR#39",
            "rotating",
            "mask one column wider than the keys once the window is full",
            2,
            windows.mask_by_offset,
        ),
        make_fault(
            "trim-all-whole-buffer",
            "ollama 6f8ddbb26",
            "kv",
            'slice with stop 0 meant "to the end"',
            3,
            buffers.read_to_end,
        ),
        make_fault(
            "free-keeps-offset",
            "ollama, x/mlxrunner/cache of 2026-02",
            "kv",
            "free drops the buffer, keeps the offset",
            2,
            buffers.keep_offset,
        ),
        make_fault(
            "crop-negative-slice",
            "transformers#47433",
            "kv",
            "trimming more than is stored keeps tokens, through a negative slice",
            2,
            buffers.crop_from_behind,
        ),
        make_fault(
            "growth-at-step",
            "constructed",
            "kv",
            "growth decided with `>` for `>=`: the token behind a full block is lost",
            2,
            buffers.grow_late,
        ),
        make_fault(
            "clone-shares",
            "mlx-lm PR#976",
            "kv",
            "clone shares storage with the original",
            3,
            buffers.share_memory,
        ),
        make_fault(
            "snapshot-alias",
            "ollama 144893850",
            "kv",
            "lazy snapshot overwritten by an append after a rewind",
            6,
            snapshots.never_copy,
        ),
        make_fault(
            "snapshot-shares-buffer",
            "mlx-lm `state`",
            "rotating",
            "snapshot is a view of the live buffer",
            5,
            snapshots.view_ring,
        ),
        make_fault(
            "split-at-edge",
            "constructed",
            "kv",
            "split at the first or last offset makes an empty part instead of none",
            3,
            snapshots.split_off_nothing,
        ),
        make_fault(
            "merge-order",
            "constructed",
            "kv",
            "parent and child concatenated in the wrong order",
            6,
            snapshots.merge_backwards,
        ),
        make_fault(
            "restore-keeps-cursor",
            "constructed",
            "kv",
            "restore to less than the snapshot clamps the offset, not the write cursor",
            4,
            snapshots.keep_cursor,
        ),
        make_fault(
            "chunk-front-trim",
            "mlx-lm#80, PR#1673",
            "kv",
            "front trim compared with the padded buffer width",
            2,
            chunks.trim_by_capacity,
            chunks.CHUNKED,
        ),
        make_fault(
            "chunk-boundary",
            "transformers PR#37414",
            "kv",
            "chunk start off by one at the first position of a chunk",
            1,
            chunks.begin_late,
            chunks.CHUNKED,
        ),
        make_fault(
            "quantized-residual-crop",
            "transformers PR#48700",
            "kv",
            "an operation touches the full-precision residual only",
            2,
            quantized.trim_residual,
            quantized.QUANTIZED,
        ),
    )
}
