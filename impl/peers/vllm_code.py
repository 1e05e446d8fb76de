"""Programs as code in vLLM's own API; see `harness.backends.backend`."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import Call, Code
from lockstep.harness.core.errors import UsageError

SOURCE = Path(__file__).parent / "snippets" / "vllm.py"
LIES = {"blocks with another content than their hash": "{cache}.list_lies()"}

CALLS = {
    "open": Call("{cache}.open({request}, {tokens}, {namespace})"),
    "match": Call("hit = {cache}.match({request})", {"hit": "hit"}),
    "schedule": Call(
        "start = {cache}.schedule({request}, {count})", {"start": "start"}, wrong=LIES
    ),
    "run": Call("read = {cache}.run()", wrong={"slots with another content": "read"}),
    "accept": Call("{cache}.accept({request}, {sampled})", wrong=LIES),
    "preempt": Call("{cache}.preempt({request})", wrong=LIES),
    "free": Call("{cache}.free({request})", wrong=LIES),
    "evict": Call("{cache}.evict({count})", wrong=LIES),
    "reset": Call("ok = {cache}.manager.reset_prefix_cache()", {"ok": "ok"}),
}


def write_code(config: Mapping[str, Any]) -> Code:
    """Returns the code for a config; drafts and parts of blocks would make it long.

    Raises:
        UsageError: why there is none.
    """
    blocks = [group["block"] for group in config["groups"]]
    if config["lookahead"] or config["hash_block"] not in (None, gcd(*blocks)):
        raise UsageError("a snippet for vLLM has no drafts, and hashes whole blocks")
    groups = [
        (group["type"], group["block"], group.get("width", 0))
        for group in config["groups"]
    ]
    settings = {
        "GROUPS": repr(groups),
        "BLOCKS": str(config["blocks"]),
        "MAX_LENGTH": str(config["max_length"]),
        "CACHES": str(config["prefix_cache"]),
        "UNIT": str(gcd(*blocks)),
    }
    return Code(SOURCE, settings, "Engine()", CALLS, shows=frozenset({"hash"}))
