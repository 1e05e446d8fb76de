"""The encoder, the wrapper and the recurrent cache, by cases worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import Case, each, read_table
from unified_program import check_case, check_command, get_program

from lockstep.harness.contracts.unified.forward import MOST_OTHERS
from lockstep.harness.programs.program import walk
from lockstep.reference.batch import Batch
from lockstep.reference.encoder import EncoderCache
from lockstep.reference.recurrent import RecurrentCache

CASES = read_table(
    """
# --- encoders
an image has the tags behind those of the rows, and stays until the next
    encoder | forward 0 > no image; forward 1 2 3 multimodal=[1] > image 4 5 6;
    forward 4 > image 4 5 6; forward 5 6 multimodal=[0] > image 10 11 12;
    get > image 10 11 12
of several images the last row's counts, not the highest position's
    encoder | forward 7 3 9 multimodal=[1,0] > image 3 4 5; remove 0 4 20;
    forward 10 > image 3 4 5; remove 0 3 4; forward 11 > no image
a removal that ends at the image leaves it
    encoder | forward 4 5 multimodal=[1] > image 2 3 4; remove 0 4 5; remove 0 6 9;
    remove 0 6 end; remove 0 5 5; forward 6 > image 2 3 4
one that begins at it does not
    encoder | forward 4 5 multimodal=[1] > image 2 3 4; remove 0 5 6;
    forward 6 > no image; forward 7 multimodal=[0] > image 7 8 9; remove 0 7 end;
    forward 8 > no image
there is one place, whatever the sequence
    encoder sequences=2 capacity=1 | forward 0 4@1 multimodal=[1] > image 2 3 4;
    forward 1 > image 2 3 4; remove 0 4 5; forward 5@1 > no image
it is never full, can always resume, and cannot be copied
    encoder sequences=2 capacity=1 | forward 0 1 2 3 multimodal=[3] > image 4 5 6;
    forward 4 5 6 7 > image 4 5 6; resume 0 50 > yes; resume 1 0 > yes;
    copy 0 1 2 > not-supported; forward 8 > image 4 5 6
to reserve stores nothing
    encoder | forward 0 multimodal=[0] reserve=True; forward 0 > no image;
    forward 1 multimodal=[0] > image 6 7 8; forward 2 multimodal=[0] reserve=True;
    remove 0 2 3; forward 3 > image 6 7 8
# --- wrappers
each cache answers as it would alone
    wrapper (causal) (swa window=1) (chunked chunk=2) | forward 0 1 2 > 0 / 0 1 / 0 1 2 +
    0 / 0 1 / 1 2 + 0 / 0 1 / 2; forward 3 except=[0] > 0 1 2 3 + 2 3 + 2 3;
    get type=0 > 0 1 2 3; get type=2 > 2 3
and so does the only one
    wrapper (causal) | forward 0 1 > + 0 / 0 1; get type=0 > 0 / 0 1
all take a batch or none
    wrapper (causal) (causal capacity=2) | forward 0 1 2 > cache-full; get > usage;
    forward 0 1 > 0:3 / 0:3 1:4 + 0:3 / 0:3 1:4; forward 2 > cache-full; remove 0 1 end;
    forward 1 > 0:3 1:6 + 0:3 1:6
a batch that is refused takes nothing that stood at its positions
    wrapper (causal) (causal capacity=2) | forward 0 1 > 0 / 0 1 + 0 / 0 1;
    forward 0 > cache-full; forward 1 reserve=True; remove 0 1 end;
    forward 1 > 0 1:4 + 0 1:4
a batch that one cache refuses may have made room in another
    wrapper (swa window=1) (causal capacity=4) | forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3 + 0
    / 0 1 / 0 1 2 / 0 1 2 3; resume 0 2 > yes; forward 4 > cache-full; get > usage;
    resume 0 4 > yes; resume 0 2 > yes or no = no; resume 0 1 > no; remove 0 2 end;
    forward 2 > 2:5 + 0 1 2:5
    # memory 1: the first cache has 0 to 3, or has evicted 0 to 2
or not
    wrapper (swa window=1) (causal capacity=4) | forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3 + 0
    / 0 1 / 0 1 2 / 0 1 2 3; forward 4 > cache-full; resume 0 2 > yes or no = yes;
    resume 0 1 > yes; remove 0 2 end; forward 2 > 1 2:5 + 0 1 2:5
    # and keeps 1 for the row at 2
in which order they stand does not matter
    wrapper (causal capacity=4) (swa window=1) | forward 0 1 2 3 > 0 / 0 1 / 0 1 2 /
    0 1 2 3 + 0 / 0 1 / 1 2 / 2 3; forward 4 > cache-full; resume 0 2 > yes or no = no;
    resume 0 1 > no
what a row sees tells it, too
    wrapper (swa window=1) (causal capacity=4) | forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3 + 0
    / 0 1 / 0 1 2 / 0 1 2 3; forward 4 > cache-full; remove 0 3 end;
    forward 3 > 2 3:5 + 0 1 2 3:5 or 3:5 + 0 1 2 3:5 = 3:5 + 0 1 2 3:5; resume 0 3 > no
    # 2 is gone, so no window that begins there
what the next batch evicts anyway is no question any more
    wrapper (swa window=1) (causal capacity=4) | forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3 + 0
    / 0 1 / 0 1 2 / 0 1 2 3; forward 4 > cache-full; remove 0 0 1;
    forward 3 > 2:3 3:5 + 0:1 1:2 2:3 3:5; resume 0 2 > no; resume 0 3 > yes
    # what moved to 0 and 1 is evicted, or was before it moved
of two windows each may have made room or not
    wrapper (swa window=1) (swa window=2) (causal capacity=4) |
    forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3 + 0 / 0 1 / 0 1 2 / 1 2 3 +
    0 / 0 1 / 0 1 2 / 0 1 2 3; forward 4 > cache-full; remove 0 3 end;
    forward 3 > 2 3:5 + 1 2 3:5 + 0 1 2 3:5 or 2 3:5 + 2 3:5 + 0 1 2 3:5 or
    3:5 + 1 2 3:5 + 0 1 2 3:5 or 3:5 + 2 3:5 + 0 1 2 3:5 = 3:5 + 1 2 3:5 + 0 1 2 3:5;
    resume 0 3 > no
    # the first has 2 no more, the second has 1 still
of two batches that were refused each may have made room or not
    wrapper (swa-memory window=2 memory=2) (causal capacity=4) |
    forward 0 1 2 3 > 0 / 0 1 / 0 1 2 / 1 2 3 + 0 / 0 1 / 0 1 2 / 0 1 2 3;
    forward 3 > cache-full; forward 4 > cache-full; resume 0 3 > yes or no = yes;
    resume 0 2 > yes or no = no
    # it begins at 0, 1 or 2; from 1 on a window may begin that ends at 3
if it made room, the next batch may fit
    wrapper (swa window=1) (recurrent) sequences=2 |
    forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3 + 0 / 0 1 / 0 1 2 / 0 1 2 3 [0 1 2 3];
    forward 0@1 1@1 2@1 3@1 > 0:4 / 0:4 1:5 / 1:5 2:6 / 2:6 3:7 + 0:4 / 0:4 1:5 /
    0:4 1:5 2:6 / 0:4 1:5 2:6 3:7 [4 5 6 7]; forward 4 5 4@1 > not-supported;
    forward 1@1 1@1 > 0:4 1:5 1:11 1:12 / 0:4 1:5 1:11 1:12 + 0:4 1:5 1:11 1:12 /
    0:4 1:5 1:11 1:12 [4 5 6 7 11 12] or 1:11 1:12 / 1:11 1:12 + 0:4 1:5 1:11 1:12 /
    0:4 1:5 1:11 1:12 [4 5 6 7 11 12]; forward 1@1 > cache-full
    # memory 2, room for 8: 2 and 3 of sequence 0, 0 to 3 of sequence 1, or 2 and 3
but for more rows there is only room then
    wrapper (swa window=1) (recurrent) sequences=2 |
    forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3 + 0 / 0 1 / 0 1 2 / 0 1 2 3 [0 1 2 3];
    forward 0@1 1@1 2@1 3@1 > 0:4 / 0:4 1:5 / 1:5 2:6 / 2:6 3:7 + 0:4 / 0:4 1:5 /
    0:4 1:5 2:6 / 0:4 1:5 2:6 3:7 [4 5 6 7]; forward 4 5 4@1 > not-supported;
    forward 1@1 1@1 1@1 > cache-full or 1:11 1:12 1:13 / 1:11 1:12 1:13 /
    1:11 1:12 1:13 + 0:4 1:5 1:11 1:12 1:13 / 0:4 1:5 1:11 1:12 1:13 /
    0:4 1:5 1:11 1:12 1:13 [4 5 6 7 11 12 13] = cache-full;
    forward 1@1 > 0:4 1:5 1:14 + 0:4 1:5 1:14 [4 5 6 7 14]
    # it was full, so 0 and 1 of sequence 1 are there
a removal ends with the first cache that refuses it
    wrapper (causal) (recurrent) | forward 0 1 2 > 0 / 0 1 / 0 1 2 + 0 / 0 1 / 0 1 2 [0 1
    2]; remove 0 0 1 > not-supported; forward 3 > 0:1 1:2 3 + 0 1 2 3 [0 1 2 3]
those behind it keep what they have
    wrapper (recurrent) (causal) | forward 0 1 > 0 / 0 1 [0 1] + 0 / 0 1;
    remove 0 0 1 > not-supported; forward 2 > 0 1 2 [0 1 2] + 0 1 2; remove 0 0 end;
    forward 0 > 0:3 [3] + 0:3
it can resume where all can
    wrapper (causal) (swa window=1) (encoder) | resume 0 0 > no;
    forward 0 1 > 0 / 0 1 + 0 / 0 1 + no image; resume 0 0 > yes; resume 0 2 > yes;
    resume 0 3 > no; forward 2 > 0 1 2 + 1 2 + no image; resume 0 1 > no; resume 0 2 > yes
an image is stored only if the batch is
    wrapper (encoder) (causal capacity=2) | forward 0 1 multimodal=[0] > image 2 3 4 + 0 /
    0 1; forward 2 multimodal=[0] > cache-full; remove 0 1 end;
    forward 1 > image 2 3 4 + 0 1:9; get type=0 > image 2 3 4; remove 0 0 1;
    forward 1 > no image + 0:9 1:10
    # the image stands at 0 still, not at 2
an image in it cannot be copied, and what stands behind is not
    wrapper (encoder) (causal) sequences=2 | forward 0 > no image + 0;
    copy 0 1 1 > not-supported; forward 1@1 > no image + 1; forward 1 > no image + 0 1:2
a copied prefix is in all of them
    wrapper (causal) (swa window=1) sequences=2 | forward 0 1 2 > 0 / 0 1 / 0 1 2 + 0 / 0
    1 / 1 2; copy 0 1 2; forward 2@1 > 0 1 2:3 + 1 2:3
to reserve for an uneven batch is refused, too, and changes nothing
    wrapper (causal) (recurrent) sequences=2 |
    forward 0 1 0@1 reserve=True > not-supported; get > usage;
    forward 0 0@1 > 0:3 / 0:4 + 0:3 / 0:4 [3] [4]
an uneven batch is refused for all
    wrapper (causal) (recurrent) sequences=2 | forward 0 1 0@1 > not-supported;
    get > usage; forward 0 0@1 > 0:3 / 0:4 + 0:3 / 0:4 [3] [4]
what was saved comes back in all of them, and so does an image
    wrapper (encoder) (swa window=1) (recurrent) | forward 0 1 multimodal=[0] >
    image 2 3 4 + 0 / 0 1 + 0 / 0 1 [0 1]; save x; forward 2 multimodal=[0] >
    image 6 7 8 + 1 2:5 + 0 1 2:5 [0 1 5]; load x;
    forward 2 > image 2 3 4 + 1 2:9 + 0 1 2:9 [0 1 9]
what may have made room or not is not saved
    wrapper (swa window=1) (causal capacity=4) | forward 0 1 2 3 > 0 / 0 1 / 1 2 / 2 3 + 0
    / 0 1 / 0 1 2 / 0 1 2 3; forward 4 > cache-full; save x > not known
# --- states
a state reads on, and begins with nothing
    recurrent | forward 0 1 > 0 / 0 1 [0 1]; forward 2 > 0 1 2 [0 1 2]; get > 0 1 2
sequences come with as many rows each, or nothing is added
    recurrent sequences=2 | forward 0 1 0@1 > not-supported; get > usage;
    forward 0@1 0 1@1 1 > 0:3 / 0:4 / 0:3 1:5 / 0:4 1:6 [3 5] [4 6];
    forward 2 2@1 3 > not-supported; forward 2 > 0:4 1:6 2:10 [4 6 10];
    forward 2@1 > 0:3 1:5 2:11 [3 5 11]
nor is memory reserved for others
    recurrent sequences=2 | forward 0 1 0@1 reserve=True > not-supported; get > usage;
    forward 0 > 0:3 [3]
an uneven batch for which there is no room is refused for either reason
    recurrent sequences=2 capacity=1 | forward 0 1 0@1 > not-supported or cache-full;
    get > usage; forward 0 0@1 > 0:3 / 0:4 [3] [4]
so is one for whose states there is none
    recurrent sequences=2 slots=1 | forward 0 > 0 [0];
    forward 1 2 0@1 > not-supported or cache-full = cache-full; forward 1 > 0 1:4 [0 4]
without a slot for it a sequence finds the cache full
    recurrent sequences=2 slots=1 | forward 0 > 0 [0]; forward 0@1 > cache-full;
    forward 1 0@1 > cache-full; get > usage; forward 1 > 0 1:4 [0 4]; remove 0 0 end;
    forward 0@1 > 0:5 [5]; forward 0 > cache-full
without room for its tokens a state stays as it was
    recurrent capacity=2 | forward 0 > 0 [0]; forward 1 2 > cache-full;
    forward 1 > 0 1:3 [0 3]; forward 2 > cache-full
a shared state parts when one goes on
    recurrent sequences=2 | forward 0 1 > 0 / 0 1 [0 1]; copy 0 1 2;
    forward 2@1 > 0 1 2 [0 1 2]; forward 2 > 0 1 2:3 [0 1 3];
    forward 3 3@1 > 0 1 2:3 3:4 / 0 1 2 3:5 [0 1 3 4] [0 1 2 5]
or when both do in one batch
    recurrent sequences=2 | forward 0 > 0 [0]; copy 0 1 1;
    forward 1@1 1 > 0 1 / 0 1:2 [0 1] [0 2]
to share takes no slot, to part takes one
    recurrent sequences=3 slots=2 | forward 0 > 0 [0]; copy 0 1 1; copy 1 2 1;
    forward 1 > 0 1 [0 1]; forward 1@1 > cache-full; remove 2 0 end;
    forward 1@1 > 0 1:3 [0 3]; forward 1@2 > cache-full
a state is shared whole, however short the prefix
    recurrent sequences=2 | forward 0 1 > 0 / 0 1 [0 1]; copy 0 1 1;
    forward 2@1 > 0 2 [0 1 2]
the target of a copy gives its own state up
    recurrent sequences=2 slots=2 | forward 0 0@1 > 0 / 0:1 [0] [1]; copy 0 1 1;
    forward 1@1 > 0 1:2 [0 2]; remove 0 0 end; copy 0 1 1; forward 0@1 > 0:3 [3]
without checkpoints only all of a sequence can go
    recurrent | forward 0 1 2 > 0 / 0 1 / 0 1 2 [0 1 2]; remove 0 2 end > not-supported;
    remove 0 1 end > not-supported; remove 0 1 2 > not-supported;
    get > 0 / 0 1 / 0 1 2; remove 0 3 end;
    forward 3 > 0 1 2 3 [0 1 2 3]; remove 0 0 end; forward 0 > 0:4 [4]
with them the end can go where one stands, exactly
    recurrent interval=1 checkpoints=2 | forward 0 1 > 0 / 0 1 [0 1];
    forward 2 > 0 1 2 [0 1 2]; forward 3 4 > 0 1 2 3 / 0 1 2 3 4 [0 1 2 3 4];
    remove 0 4 end > not-supported; remove 0 2 end > not-supported;
    remove 0 2 3 > not-supported; remove 0 3 end; forward 3 > 0 1 2 3:5 [0 1 2 5];
    remove 0 3 end; forward 3 > 0 1 2 3:6 [0 1 2 6]
    # a pass went on over 3; the checkpoint at 1 was the third last
what was saved has its states again, and their checkpoints
    recurrent interval=1 checkpoints=2 | forward 0 1 > 0 / 0 1 [0 1];
    forward 2 > 0 1 2 [0 1 2]; save x; forward 3 > 0 1 2 3 [0 1 2 3]; remove 0 0 end;
    load x; resume 0 2 > yes; resume 0 1 > no; forward 3 > 0 1 2 3:4 [0 1 2 4];
    load x fresh=True; remove 0 2 end; forward 2 > 0 1 2:5 [0 1 5]
what was shared is shared again
    recurrent sequences=3 slots=2 | forward 0 > 0 [0]; copy 0 1 1; save x; remove 1 0 end;
    forward 0@1 > 0:1 [1]; load x; forward 1@1 > 0 1:2 [0 2]; forward 1@2 > cache-full
it stands at the highest position that was read, whatever came last
    recurrent interval=1 checkpoints=2 | forward 1 0 > 0:1 1:0 / 0:1 [0 1];
    resume 0 2 > yes; resume 0 1 > no; forward 2 > 0:1 1:0 2 [0 1 2];
    remove 0 1 end > not-supported; remove 0 2 end;
    forward 2 > 0:1 1:0 2:3 [0 1 3]
a checkpoint stands the interval behind the last, or further
    recurrent interval=3 checkpoints=8 | forward 0 > 0 [0];
    forward 1 2 > 0 1 / 0 1 2 [0 1 2]; remove 0 3 end; remove 0 2 end > not-supported;
    forward 3 4 > 0 1 2 3 / 0 1 2 3 4 [0 1 2 3 4]; forward 5 > 0 1 2 3 4 5 [0 1 2 3 4 5];
    forward 6 > 0 1 2 3 4 5 6 [0 1 2 3 4 5 6]; remove 0 6 end > not-supported;
    remove 0 3 end > not-supported; remove 0 5 end;
    forward 5 > 0 1 2 3 4 5:7 [0 1 2 3 4 7]; remove 0 1 end; forward 1 > 0 1:8 [0 8]
to go back to a checkpoint leaves a shared state to the other
    recurrent sequences=2 interval=1 checkpoints=2 | forward 0 > 0 [0];
    forward 1 > 0 1 [0 1]; copy 0 1 2; remove 1 1 end; forward 1@1 > 0 1:2 [0 2];
    forward 2 > 0 1 2:3 [0 1 3]
to go back alone takes a slot, as to go on alone does
    recurrent sequences=2 slots=1 interval=1 checkpoints=4 | forward 0 > 0 [0];
    forward 1 > 0 1 [0 1]; copy 0 1 2; remove 1 1 end > cache-full; get > usage;
    remove 0 0 end; remove 1 1 end; forward 1@1 > 0 1:2 [0 2]
to reserve reads nothing
    recurrent sequences=2 slots=1 | forward 0 > 0 [0]; forward 0@1 reserve=True;
    forward 1 > 0 1:2 [0 2]
it can resume where it or a checkpoint stands and has read nothing further on
    recurrent interval=1 checkpoints=4 | forward 0 > 0 [0]; forward 1 > 0 1 [0 1];
    forward 3 > 0 1 3:2 [0 1 2]; forward 2 > 0 1 2:3 [0 1 2 3]; resume 0 0 > yes;
    resume 0 1 > yes; resume 0 2 > yes; resume 0 3 > no; resume 0 4 > yes
it stands behind all that it has read
    recurrent | forward 3 1 2 > 1 2 3:0 / 1 / 1 2 [0 1 2]; resume 0 3 > no;
    resume 0 4 > yes
it can resume at its begin and where it stands
    recurrent | resume 0 0 > yes; forward 0 1 > 0 / 0 1 [0 1]; resume 0 0 > yes;
    resume 0 2 > yes
"""
)


@each(CASES)
def test_case(case: Case) -> None:
    check_case(case)


def test_the_command_says_the_same(tmp_path: Path) -> None:
    check_command(CASES, tmp_path)


def test_a_removal_ends_the_pass_of_an_encoder() -> None:
    cache = EncoderCache(1, 1)
    cache.forward(Batch([0], [0], multimodal=[0]), [0])
    cache.remove(0, 5, None)
    with pytest.raises(ValueError, match="no row of this pass stands for an image"):
        cache.put([1])
    assert not cache.cached


def test_a_state_resumes_only_where_the_window_is_still_there() -> None:
    """Window and memory of 1, a checkpoint after every token: of 0 … 3, 2 and 3 stay."""
    cache = RecurrentCache(1, 16, 4, interval=1, checkpoints=8, window=1, memory=1)
    for position in range(4):
        cache.forward(Batch([position], [0]), [position])
    assert [token.position for token in cache.visible(0)] == [2, 3]
    assert [token.position for token in cache.get_read(0)] == [0, 1, 2, 3]
    assert [cache.can_resume(0, position) for position in (4, 3, 2)] == [1, 1, 0]


def test_no_pass_is_asked_for_once_too_many_contents_are_possible() -> None:
    """Each of these passes, which are all refused, would have evicted one token more."""
    sizes = "(swa-memory window=1 memory=50) (causal capacity=60)"
    written = [
        "forward " + " ".join(map(str, range(at, at + 4))) for at in range(0, 60, 4)
    ]
    refused = [f"forward {at}" for at in range(60, 110)]
    case = Case("many", f"wrapper {sizes} capacity=99", written + refused)
    steps = list(walk(get_program(case), rows=False))
    skipped = [step.skipped for step in steps if step.skipped]
    assert skipped == ["too many passes were refused without a change"] * len(skipped)
    assert 0 < len(skipped) < 40
    assert len(steps[-1].model.others) <= 2 * MOST_OTHERS
