"""Bugs that batch caches of mlx-lm had, put back into its source, and mistakes in those
of mlx-vlm: the adapters show each.

The identifiers are those of the issues and pull requests at ml-explore/mlx-lm.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.harness.execution.executor import run
from lockstep.harness.workers.registry import load
from tests.impl.released import find_program, shows_mistake


def find(name: str, kind: str) -> str | None:
    """The first signature of a few programs."""
    program = find_program(name, kind)
    divergence = program and run(program, load(name)).divergence
    return divergence.get_signature(program) if program and divergence else None


def edit(
    module: Any, owner: str, method: str, now: str, before: str
) -> Callable[..., Any]:
    """The method of a class with a piece of its source as it was before a fix."""
    source = textwrap.dedent(inspect.getsource(vars(vars(module)[owner])[method]))
    assert now in source
    scope: dict[str, Any] = {}
    exec(source.replace(now, before), vars(module), scope)
    return scope[method]  # type: ignore[no-any-return]


KV, RING, STATE = "BatchKVCache", "BatchRotatingKVCache", "ArraysCache"
LIST = "CacheList"
GROWING = "self.offset = self.offset + keys.shape[2]"
IN_PLACE = "self.offset += keys.shape[2]"
SKIP = "if c.keys is None:\n            continue"
ORDERED = "c._temporal_order(c.keys)[..., -l:, :]"
ROLL = "if self._lengths is not None:\n            roll"
EMPTY_STATE = "a = mx.zeros((a_batch,) + shape[1:], dtype=dtype)"
MISTAKES = {
    "1699-kv": (KV, "update_and_fetch", GROWING, IN_PLACE, "alias"),
    "1699-rotating": (RING, "_update_concat", GROWING, IN_PLACE, "alias"),
    "1699-decode": (RING, "_update_in_place", "self.offset = self.offset + S",
                    "self.offset += S", "alias"),
    "738": (RING, "merge", "lengths = [c.size() for c in caches]",
            "lengths = [c.offset for c in caches]", "error"),
    "755-kv": (KV, "merge", SKIP, "pass", "error"),
    "755-rotating": (RING, "merge", SKIP, "pass", "error"),
    "983": (RING, "merge", ORDERED, "c._temporal_order(c.keys)", "error"),
    "1141-kv": (KV, "extend", "Bc = c.offset.shape[0]", "Bc = B", ""),
    "1141-rotating": (RING, "extend", "Bc = c.offset.shape[0]", "Bc = B", ""),
    "1169": (STATE, "extend", EMPTY_STATE, "return b", ""),
    "1736": (STATE, "make_mask", "else (mask & in_length)", "else mask", "contents"),
    "439": (RING, "_update_concat", "if self._lengths is not None", "if False", ""),
}  # fmt: skip
"""Issue or pull request → class, method, its source, the source before the fix, and what
differs, if that is always the same."""
KINDS = {KV: "batch-kv", RING: "batch-rotating", STATE: "batch-state"}


@pytest.fixture
def cache() -> Any:
    return pytest.importorskip("mlx_lm.models.cache")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_bug_of_the_past_is_found(
    cache: Any, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, method, now, before, what = MISTAKES[mistake]
    monkeypatch.setattr(
        vars(cache)[owner], method, edit(cache, owner, method, now, before)
    )
    found = find("mlx-lm-batched", KINDS[owner])
    assert found is not None
    assert found.endswith(what)


def test_a_state_without_its_padding_is_found(
    cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PR 807: what from_state skipped was missing."""

    def write(self: Any, state: Any) -> None:
        self.cache = state[0]

    whole = cache.ArraysCache.state
    monkeypatch.setattr(cache.ArraysCache, "state", whole.setter(write))
    assert find("mlx-lm-batched", "batch-state") == "batched-batch-state-load-error"
    found = find("mlx-lm-batched-restored", "batch-state")
    assert found == "batched-batch-state-update-error"


@pytest.mark.parametrize(
    ("name", "kind", "owner", "method", "now", "before"),
    [
        ("mlx-lm-batched-restored", "batch-kv", KV, "__init__",
         "self.left_padding = mx.array(left_padding)",
         "self.left_padding = mx.array([0 for _ in left_padding])"),
        ("mlx-lm-batched-restored", "batch-kv", KV, "trim",
         "self._idx -= n", "pass"),
        ("mlx-lm-batched-max-kv-size", "batch-rotating", RING, "make_mask",
         "or self.max_size", "or self.max_size + 1"),
        ("mlx-lm-batched-max-kv-size", "batch-rotating", RING, "trim",
         "self._idx -= n", "pass"),
        ("mlx-lm-batched-list", "batch-list", LIST, "filter",
         "self.caches", "self.caches[:1]"),
        ("mlx-lm-batched-list", "batch-list", LIST, "extract",
         "c.extract(idx)", "c.extract(0)"),
        ("mlx-lm-batched-list-ring", "batch-list", LIST, "is_trimmable", "all(", "any("),
        ("mlx-lm-batched-list-ring", "batch-list", LIST, "trim", "c.trim(n)",
         "c.trim(n) if c is self.caches[0] else n"),
        ("mlx-lm-batched-list-states", "batch-list", LIST, "prepare",
         "self.caches", "self.caches[1:]"),
        ("mlx-lm-batched-list-states", "batch-list", LIST, "extend",
         "c.extend(o)", "c.extend(o) if hasattr(c, 'offset') else None"),
    ],
)  # fmt: skip
def test_each_way_of_driving_shows_its_own_mistake(
    cache: Any,
    name: str,
    kind: str,
    owner: str,
    method: str,
    now: str,
    before: str,
) -> None:
    changed = edit(cache, owner, method, now, before)
    assert shows_mistake(name, kind, vars(cache)[owner], method, changed)


@pytest.mark.parametrize(
    ("name", "kind", "owner", "method", "now", "before"),
    [
        ("mlx-vlm-batched", "batch-kv", KV, "trim", "self._idx -= n", "pass"),
        ("mlx-vlm-batched", "batch-rotating", RING, "_update_concat",
         "if self._lengths is not None", "if False"),
        ("mlx-vlm-batched", "batch-state", STATE, "extend", EMPTY_STATE, "return b"),
        ("mlx-vlm-batched-half", "batch-kv", KV, "filter", "self._idx -= min_left_pad",
         "pass"),
        ("mlx-vlm-batched-quantized", "batch-kv", "BatchQuantizedKVCache", "make_mask",
         "left_padding=self.left_padding", "left_padding=None"),
    ],
)  # fmt: skip
def test_a_mistake_in_mlx_vlm_is_found(
    name: str,
    kind: str,
    owner: str,
    method: str,
    now: str,
    before: str,
) -> None:
    cache = pytest.importorskip("mlx_vlm.models.cache")
    changed = edit(cache, owner, method, now, before)
    assert shows_mistake(name, kind, vars(cache)[owner], method, changed)
