"""Mistakes of caches of many sequences. The ids are those under which the bugs are known
here."""

from __future__ import annotations

from functools import partial

from lockstep.impl.faults import changes, defragment, passes
from lockstep.impl.faults.fault import make_plain_fault

make_fault = partial(make_plain_fault, "unified")


FAULTS = {
    fault.id: fault
    for fault in (
        make_fault(
            "swa-idle-sequence",
            "ollama 1fc35f126 (#10127)",
            "swa",
            "only the batch's sequences slide; others keep their batch buffer",
            2,
            passes.slide_batch_only,
        ),
        make_fault(
            "swa-memory-at-capacity",
            "ollama 1fc35f126",
            "swa",
            "memory equal to capacity treated as sliding",
            1,
            passes.slide_at_capacity,
        ),
        make_fault(
            "can-resume-beyond-end",
            "ollama 1fc35f126",
            "swa",
            "can_resume accepts positions after the stored end",
            2,
            changes.resume_anywhere,
        ),
        make_fault(
            "resume-evicted-window",
            "ollama b42970063",
            "swa",
            "resumes where the window has been evicted",
            2,
            changes.resume_without_window,
        ),
        make_fault(
            "defrag-block-copy",
            "ollama, up to 53985b3c4",
            "causal",
            "metadata moves cell by cell, data in merged blocks: cells swap owners",
            3,
            defragment.copy_blocks,
        ),
        make_fault(
            "defrag-range-stale",
            "ollama 4183bb057",
            "swa",
            "visible range not recomputed after defragmenting",
            2,
            defragment.keep_old_columns,
        ),
        make_fault(
            "exceptions-by-position",
            "ollama a8e83a765",
            "causal",
            "non-causal rows matched by position, not by row",
            1,
            passes.free_positions,
        ),
        make_fault(
            "exceptions-leak",
            "ollama e95278932",
            "causal",
            "non-causal rows leak into the next pass",
            2,
            passes.keep_exceptions,
        ),
        make_fault(
            "reserve-writes",
            "ollama dbb149e6f",
            "causal",
            "reserving memory changes metadata",
            2,
            passes.reserve_cells,
        ),
        make_fault(
            "remove-to-end-constant",
            "ollama 3d9498a42",
            "causal",
            '-1 taken as a position instead of "to the end"',
            2,
            changes.remove_before_all,
        ),
        make_fault(
            "remove-shared-half-done",
            "ollama, kvcache/causal.go at 1fc35f126",
            "causal",
            "error in the middle of a removal leaves half of it",
            4,
            changes.remove_before_check,
        ),
        make_fault(
            "copy-prefix-keeps-target",
            "constructed",
            "causal",
            "target keeps cells it had before",
            3,
            changes.copy_to_old,
        ),
        make_fault(
            "shift-twice",
            "llama.cpp#3825",
            "causal",
            "the second shift overwrites the first one that was still pending",
            4,
            changes.overwrite_pending,
        ),
        make_fault(
            "shift-other-stream",
            "llama.cpp PR#14742",
            "causal",
            "shift applied to sequence 0 only",
            3,
            changes.turn_first_sequence,
        ),
        make_fault(
            "shift-values",
            "constructed",
            "causal",
            "V rotated as well as K",
            3,
            changes.turn_values,
        ),
        make_fault(
            "shift-window-base",
            "llama.cpp#12357",
            "swa",
            "windowed layers shifted with the wrong RoPE base",
            3,
            changes.turn_by_first_base,
        ),
        make_fault(
            "fragmented-save",
            "llama.cpp PR#5840",
            "causal",
            "state size from the count of used cells, not the last one",
            5,
            changes.save_first_cells,
        ),
        make_fault(
            "wrapper-unwind",
            "ollama, wrapper.go until 7b22ac968",
            "wrapper",
            "a failed child makes the others drop what they held before",
            3,
            passes.unwind_all,
        ),
        make_fault(
            "encoder-position",
            "ollama a1cda80bc",
            "encoder",
            "first position of the batch taken for the image",
            3,
            passes.take_first_position,
        ),
    )
}
