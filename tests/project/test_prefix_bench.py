"""The benchmark of prefix caches counts what the rules of the reference allow."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))  # ci is not installed

from ci.bench.prefixes import runner
from ci.bench.prefixes.conversations import Kind
from ci.bench.prefixes.day import make_day, play
from ci.bench.prefixes.simulation import Simulation
from lockstep.harness.workers.registry import load
from lockstep.impl.prefix.trie import Trie as Cache
from lockstep.impl.shared.memory import Memory
from lockstep.reference.kv import KVCache
from lockstep.reference.layers import Layer
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.state import StateCache
from lockstep.reference.trie import Trie

PREFIX = Path(runner.__file__).parents[1] / "prefix.py"

WINDOW = 8
KINDS = {
    "kv": Kind(token_bytes=32),
    "rotating": Kind(token_bytes=16, window=WINDOW),
    "state": Kind(state_bytes=112),
}


def make_layer(kind: str) -> Layer:
    caches = {"kv": KVCache, "state": StateCache}
    cache = RotatingCache(WINDOW) if kind == "rotating" else caches[kind]()
    return Layer(cache, KINDS[kind].token_bytes, KINDS[kind].state_bytes)


class Both:
    """The simulation, and the reference, which are told the same."""

    def __init__(
        self, kinds: Sequence[str], limit: int | None, interval: int | None
    ) -> None:
        self.fast = Simulation([KINDS[kind] for kind in kinds], limit, interval)
        layers = [make_layer(kind) for kind in kinds]
        self.slow = Trie(layers, list, limit, interval)

    def begin(self, tokens: Sequence[int], checkpoints: Sequence[int]) -> int:
        remaining = self.slow.begin(tokens, checkpoints)
        reuse = self.fast.begin(tokens, checkpoints)
        assert reuse == len(tokens) - len(remaining)
        return reuse

    def feed(self, begin: int, end: int) -> None:
        if end > self.slow.computed:
            self.feed_some(end, None)

    def feed_some(self, end: int, layers: int | None) -> None:
        self.fast.feed(end, layers)
        self.slow.feed(end - self.slow.computed, layers)

    def extend(self, tokens: Sequence[int]) -> None:
        self.fast.extend(tokens)
        self.slow.extend(tokens)

    def close(self) -> None:
        assert self.fast.close() == self.slow.close()
        self.compare()

    def set_limit(self, limit: int | None) -> None:
        self.fast.set_limit(limit)
        self.slow.set_limit(limit)
        self.compare()

    def compare(self) -> None:
        assert self.fast.count_bytes() == self.slow.count_bytes()
        assert self.fast.stored.tokens == self.slow.count_tokens()
        stored = {tuple(each) for each in map(decode, self.fast.stored.paths)}
        assert stored == set(self.slow.points)


def decode(path: bytes) -> list[int]:
    starts = range(0, len(path), 4)
    return [int.from_bytes(path[at : at + 4], "big") for at in starts]


LAYERS = [("kv",), ("kv", "rotating"), ("state", "kv"), ("kv", "rotating", "state")]


@pytest.mark.parametrize("kinds", LAYERS, ids="-".join)
@pytest.mark.parametrize("limit", [None, 3000, 400])
def test_the_simulation_keeps_the_rules_of_the_reference(
    kinds: Sequence[str], limit: int | None
) -> None:
    for seed in range(25):
        chance = random.Random(seed)
        both = Both(kinds, limit, chance.choice((None, 4)))
        texts: list[list[int]] = [[]]
        for _ in range(30):
            base = chance.choice(texts)
            more = [chance.randrange(3) for _ in range(chance.randrange(12))]
            tokens = base[: chance.randrange(len(base) + 1)] + more or [0]
            checkpoints = chance.sample(range(1, 20), chance.randrange(3))
            end = chance.randint(both.begin(tokens, checkpoints), len(tokens))
            both.feed(0, end)
            if chance.random() < 0.1:
                both.feed_some(len(tokens), chance.randint(0, len(kinds)))
            elif end == len(tokens):
                answer = [chance.randrange(3) for _ in range(chance.randrange(1, 9))]
                both.extend(answer)
                if chance.random() < 0.2 and limit is not None:
                    both.set_limit(chance.choice((0, limit // 2, limit)))
                both.feed(end, end + len(answer) - 1)
                tokens += answer
            both.close()
            texts.append(tokens)


@pytest.mark.parametrize("limit", [None, 20_000])
def test_the_simulation_keeps_them_for_a_small_day(limit: int | None) -> None:
    """Every 64th token of a day."""
    both = Both(("kv", "rotating", "state", "kv"), limit, None)
    for request in make_day(3, 60):
        small = replace(
            request,
            prompt=request.prompt[::64],
            answer=request.answer[::16],
            checkpoints=tuple(-(-point // 64) for point in request.checkpoints),
        )
        both.begin(small.prompt.tolist(), small.checkpoints)
        play(small, both, both.feed, both.feed_some)
        both.close()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch")
    return subprocess.run(
        [sys.executable, str(PREFIX), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_a_day_reuses_what_can_be_reused_and_nothing_is_wrong(tmp_path: Path) -> None:
    done = run(tmp_path, "day", "--requests", "300", "--json", "day.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    found = json.loads((tmp_path / "day.json").read_text())
    assert found["wrong"] == found["over"] == 0
    assert found["other_reuse"] == found["other_bytes"] == 0
    assert 0 < found["reused"] == found["possible"] < found["unlimited"]


def test_a_wrong_token_is_seen(tmp_path: Path) -> None:
    done = run(tmp_path, "day", "--requests", "60", "--plant", "20")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "tokens in the layers that are wrong: " in done.stdout


def overwrite(patch: pytest.MonkeyPatch) -> None:
    """What was put aside is lost when the memory is written to."""
    patch.setattr(Memory, "secure", lambda *_: None)


def ignore_checkpoints(patch: pytest.MonkeyPatch) -> None:
    begin = Cache.begin
    patch.setattr(Cache, "begin", lambda self, tokens, checkpoints: begin(self, tokens))


def miscount(patch: pytest.MonkeyPatch) -> None:
    count = Cache.count_bytes
    patch.setattr(Cache, "count_bytes", lambda self: count(self) + 1)


def exceed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cache, "keep_limit", lambda *_: None)


FAULTS = [
    (overwrite, "wrong"),
    (ignore_checkpoints, "other_reuse"),
    (miscount, "other_bytes"),
    (exceed, "over"),
]


@pytest.mark.parametrize(("plant", "name"), FAULTS, ids=[name for _, name in FAULTS])
def test_a_fault_of_the_cache_is_a_complaint(
    plant: Callable[[pytest.MonkeyPatch], None],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    plant(monkeypatch)
    requests = make_day(0, 60)
    limit = runner.simulate(requests, None)[1] // 2
    day = runner.Runner(load("torch-cpu"), limit)
    found = runner.run_day(day, requests, limit)
    assert found[name] > 0
    assert any(
        each.startswith(runner.COMPLAINTS[name]) for each in runner.get_complaints(found)
    )


def test_nothing_leaks(tmp_path: Path) -> None:
    done = run(tmp_path, "leaks", "--operations", "5000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_begin_is_timed(tmp_path: Path) -> None:
    done = run(tmp_path, "begin", "--stored", "4", "--stored", "8", "--rounds", "2")
    assert done.stdout.count("2,000 repeat") == 2, done.stdout + done.stderr
