"""Until when a pass is open. Calls that break a rule whenever they come are drawn: caches
refuse them, and the reference must."""

from __future__ import annotations

from cases import Case, each, read_table
from unified_program import check_case

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
