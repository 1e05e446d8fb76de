"""A call that breaks a rule of usage is refused, and changes nothing."""

from __future__ import annotations

import pickle

import pytest
from cases import Case, each, read_table
from unified_program import check_case, get_program

from lockstep.harness.programs.program import walk

FORWARD = """
more positions than sequences: forward 2 3 sequences=[0]
more sequences than positions: forward 2 sequences=[0,0]
no rows: forward
more rows than announced: forward 2 3 4 5 6
a negative position: forward 2 -1
a sequence too many: forward 2 1@2
a negative sequence: forward 2 1@-1
an exception behind the rows: forward 2 3 except=[0,2]
a negative exception: forward 2 except=[-1]
an image behind the rows: forward 2 multimodal=[1]
a negative image: forward 2 multimodal=[-1]
no rows to reserve for: forward reserve=True
too many to reserve for: forward 2 3 4 5 6 reserve=True
"""
CALLS = """
a copy onto itself: copy 0 0 1
a copy onto itself of nothing: copy 1 1 0
a copy from a sequence too many: copy 2 0 1
a copy to a sequence too many: copy 0 2 1
a copy from a negative sequence: copy -1 0 1
a copy to a negative sequence: copy 0 -1 1
a copy of a negative length: copy 0 1 -1
a removal from a sequence too many: remove 2 0 end
a removal from a negative sequence: remove -1 0 end
a removal from a negative position: remove 0 -1 end
a removal from behind its end: remove 0 2 1
a removal from behind its end, of nothing: remove 1 9 8
to resume a sequence too many: resume 2 0
to resume a negative sequence: resume -1 0
to resume at a negative position: resume 0 -1
"""
LAYER = """
a layer that is never written: get layer=1
K and V of more rows: put rows=4
K and V of fewer rows: put rows=2
K and V of more heads: put heads=2
K of another size: put key_dim=6
V of another size: put value_dim=5
K and V of a layer too many: put layer=1
"""


HEADS = (
    "causal sequences=2 capacity=3 | forward 0 1 0@1",
    "swa window=1 sequences=2 | forward 0 1 0@1",  # some of the rows would evict
    "encoder sequences=2 | forward 0 0@1 multimodal=[1]",
    "recurrent interval=1 sequences=2 | forward 0 0@1",
    "wrapper (encoder) (causal) sequences=2 | forward 0 0@1 multimodal=[1]",
)


@pytest.mark.parametrize("head", HEADS)
def test_a_wrong_call_changes_nothing(head: str) -> None:
    config, _, first = head.partition(" | ")
    text = FORWARD + FORWARD.replace(" 2", " 9") + CALLS + LAYER * (head == HEADS[0])
    calls = [line.partition(": ")[2] for line in text.splitlines() if line]
    steps = walk(get_program(Case(head, config, [first, *calls])))
    first = next(steps)
    assert "error" not in first.run_reference()

    def read_content() -> bytes:
        return pickle.dumps((first.model.cache, first.model.batch, first.model.tags))

    content = read_content()
    for call, step in zip(calls, steps, strict=True):
        assert step.run_reference() == {"error": "usage"}, call
        assert read_content() == content, call


CASES = read_table(
    """
before the first pass there is nothing to get and nowhere to put
    causal | get > usage; put > usage; forward 0 > 0; get > 0; put
an image is not to be had before a pass either
    encoder | get > usage; forward 0 > no image; get > no image
nor a layer that is never written, in a wrapper and with a state
    wrapper (causal) (recurrent) layers=2 | forward 0 > 0 + 0 [0];
    get type=1 layer=1 > 0; get type=0 layer=2 > usage; get type=1 layer=2 > usage;
    get type=1 > 0
where the cache was full there is no pass until the next
    causal capacity=1 | forward 0 > 0; forward 1 > cache-full; get > usage; put > usage;
    forward reserve=True > usage; get > usage; remove 0 0 end; forward 0 > 0:2;
    get > 0:2
a removal, a copy and a load end the pass
    causal sequences=2 | forward 0 > 0; remove 1 0 end; get > usage; put > usage;
    forward 1 > 0 1; copy 0 1 1; get > usage; save x; forward 2 > 0 1 2; load x;
    get > usage; forward 5 > 0 1 5:3; get > 0 1 5:3
that of an encoder, too
    encoder | forward 0 multimodal=[0] > image 1 2 3; remove 0 5 end; get > usage;
    put > usage; forward 1 > image 1 2 3
and of a wrapper
    wrapper (causal) (causal) sequences=2 | forward 0 1 > 0 / 0 1 + 0 / 0 1; copy 0 1 1;
    get > usage; forward 1@1 > 0 1:2 + 0 1:2; remove 0 1 end; get > usage;
    forward 1 > 0 1:3 + 0 1:3
a wrong call does not end a pass
    causal sequences=2 | forward 0 > 0; remove 0 2 1 > usage; copy 0 0 1 > usage;
    get > 0
nor that of an encoder
    encoder sequences=2 | forward 0 multimodal=[0] > image 1 2 3;
    remove 0 2 1 > usage; copy 0 0 1 > usage; get > image 1 2 3
a question does not end a pass
    swa window=1 | forward 0 > 0; resume 0 2 > no; get > 0
"""
)


@each(CASES)
def test_case(case: Case) -> None:
    check_case(case)
