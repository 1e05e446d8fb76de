"""The ledger of the peers: all operations that an entry describes diverge as it says."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from itertools import islice

import pytest

from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate.drawer import Drawer, RandomSource
from lockstep.harness.programs.ledger import KnownProgram, load_ledger
from lockstep.harness.workers.registry import load

MOST, EACH = 1200, 20
"""Programs that are drawn at most for each kind, until each entry has some."""

PEERS = {
    "mlx-lm": "mlx_lm",
    "mlx-lm-batched": "mlx_lm",
    "mlx-lm-batched-list": "mlx_lm",
    "mlx-lm-batched-list-ring": "mlx_lm",
    "mlx-lm-batched-list-states": "mlx_lm",
    "mlx-lm-batched-max-kv-size": "mlx_lm",
    "mlx-lm-batched-restored": "mlx_lm",
    "mlx-lm-chunked": "mlx_lm",
    "mlx-lm-concatenate": "mlx_lm",
    "mlx-lm-max-kv-size": "mlx_lm",
    "mlx-lm-plamo3": "mlx_lm",
    "mlx-lm-prompt-cache": "mlx_lm",
    "mlx-lm-quantized-3": "mlx_lm",
    "mlx-lm-quantized-5": "mlx_lm",
    "mlx-lm-quantized-6": "mlx_lm",
    "mlx-lm-restored": "mlx_lm",
    "mlx-vlm-batched": "mlx_vlm",
    "mlx-vlm-batched-bare-offset": "mlx_vlm",
    "mlx-vlm-batched-half": "mlx_vlm",
    "mlx-vlm-batched-quantized": "mlx_vlm",
    "transformers": "transformers",
    "transformers-batched": "transformers",
    "transformers-batched-chunked": "transformers",
    "transformers-batched-encoder-decoder": "transformers",
    "transformers-batched-hybrid": "transformers",
    "transformers-batched-hybrid-list": "transformers",
    "transformers-batched-indexed": "transformers",
    "transformers-batched-quantized": "transformers",
    "transformers-batched-static": "transformers",
    "transformers-batched-static-chunked": "transformers",
    "transformers-batched-static-encoder-decoder": "transformers",
    "transformers-batched-static-hybrid": "transformers",
    "transformers-batched-static-hybrid-list": "transformers",
    "transformers-batched-static-indexed": "transformers",
    "transformers-chunked": "transformers",
    "transformers-fp8": "transformers",
    "transformers-quantized": "transformers",
    "transformers-recorded": "transformers",
}


@pytest.mark.parametrize("name", PEERS)
def test_all_that_an_entry_describes_diverges_as_it_says(name: str) -> None:
    if find_spec(PEERS[name]) is None:
        pytest.skip(f"{PEERS[name]} is not installed")
    backend = load(name)
    known: dict[str, list[KnownProgram]] = {}
    for entry in load_ledger(backend.ledger, name):
        assert backend.contracts[entry.program.contract][entry.program.kind]
        known[entry.id] = []
    for contract, kinds in backend.contracts.items():
        for kind, declared in kinds.items():
            avoid = load_ledger(backend.ledger, name, kind)
            drawer = Drawer(contract, kind, declared, backend.dtypes, avoid)
            source = RandomSource(3)
            own = [known[entry.id] for entry in avoid]
            for _ in range(MOST):
                if all(len(programs) >= EACH for programs in own):
                    break
                drawer.draw(source)
                for each in drawer.known:
                    known[each.entry.id].append(each)
    for id, programs in known.items():
        seen = Counter[str | None]()
        for each in islice(programs, EACH):
            divergence = run(each.program, backend).divergence
            shown = divergence and divergence.get_signature(each.program)
            seen[shown] += 1
            assert divergence is None or divergence.step == len(each.program.ops) - 1
        assert seen.keys() == {programs[0].entry.signature}, id
        assert seen.total() > EACH / 4
