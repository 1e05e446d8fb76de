"""Bugs that batch caches of mlx-lm had, put back into its source, and mistakes in those
of mlx-vlm: the adapters show each.

The identifiers are those of the issues and pull requests at ml-explore/mlx-lm.
"""

from __future__ import annotations

from typing import Any

from tests.impl.released import Mistake, check, each, edit, list_mistakes


def skip_padding(state: Any) -> Any:
    """What from_state skipped was missing."""

    def write(self: Any, stored: Any) -> None:
        self.cache = stored[0]

    return state.setter(write)


GROWING = "self.offset = self.offset + keys.shape[2]"
SKIP = "if c.keys is None:\n            continue"
EMPTY_STATE = "a = mx.zeros((a_batch,) + shape[1:], dtype=dtype)"
LENGTHS = edit("if self._lengths is not None", "if False")
ROWS = edit("Bc = c.offset.shape[0]", "Bc = B")
TRIM = edit("self._idx -= n", "pass")

PAST = [
    # 1699: arrays that were handed out changed
    ("", "batch-kv", "BatchKVCache.update_and_fetch",
     edit(GROWING, "self.offset += keys.shape[2]")),
    ("", "batch-rotating", "BatchRotatingKVCache._update_concat",
     edit(GROWING, "self.offset += keys.shape[2]")),
    ("", "batch-rotating", "BatchRotatingKVCache._update_in_place",
     edit("self.offset = self.offset + S", "self.offset += S")),
    # 738
    ("", "batch-rotating", "BatchRotatingKVCache.merge",
     edit("[c.size() for c in caches]", "[c.offset for c in caches]")),
    # 755
    ("", "batch-kv", "BatchKVCache.merge", edit(SKIP, "pass")),
    ("", "batch-rotating", "BatchRotatingKVCache.merge", edit(SKIP, "pass")),
    # 983
    ("", "batch-rotating", "BatchRotatingKVCache.merge",
     edit("c._temporal_order(c.keys)[..., -l:, :]", "c._temporal_order(c.keys)")),
    # 1141
    ("", "batch-kv", "BatchKVCache.extend", ROWS),
    ("", "batch-rotating", "BatchRotatingKVCache.extend", ROWS),
    # 1169, 1736, 439
    ("", "batch-state", "ArraysCache.extend", edit(EMPTY_STATE, "return b")),
    ("", "batch-state", "ArraysCache.make_mask",
     edit("else (mask & in_length)", "else mask")),
    ("", "batch-rotating", "BatchRotatingKVCache._update_concat", LENGTHS),
    # 807
    ("", "batch-state", "ArraysCache.state", skip_padding),
    ("-restored", "batch-state", "ArraysCache.state", skip_padding),
]  # fmt: skip

WAYS = [
    ("-restored", "batch-kv", "BatchKVCache.__init__",
     edit("self.left_padding = mx.array(left_padding)",
          "self.left_padding = mx.array([0 for _ in left_padding])")),
    ("-restored", "batch-kv", "BatchKVCache.trim", TRIM),
    ("-max-kv-size", "batch-rotating", "BatchRotatingKVCache.make_mask",
     edit("or self.max_size", "or self.max_size + 1")),
    ("-max-kv-size", "batch-rotating", "BatchRotatingKVCache.trim", TRIM),
    ("-list", "batch-list", "CacheList.filter", edit("self.caches", "self.caches[:1]")),
    ("-list", "batch-list", "CacheList.extract", edit("c.extract(idx)", "c.extract(0)")),
    ("-list-ring", "batch-list", "CacheList.is_trimmable", edit("all(", "any(")),
    ("-list-ring", "batch-list", "CacheList.trim",
     edit("c.trim(n)", "c.trim(n) if c is self.caches[0] else n")),
    ("-list-states", "batch-list", "CacheList.prepare",
     edit("self.caches", "self.caches[1:]")),
    ("-list-states", "batch-list", "CacheList.extend",
     edit("c.extend(o)", "c.extend(o) if hasattr(c, 'offset') else None")),
]  # fmt: skip
"""Each way of driving shows its own mistake."""

VLM = [
    ("", "batch-kv", "BatchKVCache.trim", TRIM),
    ("", "batch-rotating", "BatchRotatingKVCache._update_concat", LENGTHS),
    ("", "batch-state", "ArraysCache.extend", edit(EMPTY_STATE, "return b")),
    ("-half", "batch-kv", "BatchKVCache.filter",
     edit("self._idx -= min_left_pad", "pass")),
    ("-quantized", "batch-kv", "BatchQuantizedKVCache.make_mask",
     edit("left_padding=self.left_padding", "left_padding=None")),
]  # fmt: skip


@each(
    [
        *list_mistakes("mlx_lm.models.cache", "mlx-lm-batched", [*PAST, *WAYS]),
        *list_mistakes("mlx_vlm.models.cache", "mlx-vlm-batched", VLM),
    ]
)
def test_a_mistake_is_found(mistake: Mistake) -> None:
    check(mistake)
