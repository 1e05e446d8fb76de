"""Programs as code in SGLang's own API; see `harness.backends.backend`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import Call, Code
from lockstep.harness.core.errors import UsageError
from lockstep.impl.peers.sglang_facts import Layout
from lockstep.impl.peers.sglang_pools import count_slots

SOURCE = Path(__file__).parent / "snippets" / "sglang.py"
LOST = {"slots that are not free, cached or held just once": "{cache}.list_lost()"}

CALLS = {
    "open": Call("{cache}.open({request}, {tokens}, {namespace})"),
    "match": Call("hit = {cache}.match({request})", {"hit": "hit"}),
    "schedule": Call(
        "start = {cache}.schedule({request}, {count})", {"start": "start"}, wrong=LOST
    ),
    "run": Call("read = {cache}.run()", wrong={"slots with another content": "read"}),
    "accept": Call("{cache}.accept({request}, {sampled})", wrong=LOST),
    "preempt": Call("{cache}.preempt({request})", wrong=LOST),
    "free": Call("{cache}.free({request})", wrong=LOST),
    "evict": Call("{cache}.evict({count})", wrong=LOST),
    "reset": Call("ok = {cache}.reset()", {"ok": "ok"}),
}


def write_code(config: Mapping[str, Any], keeps_prompt: bool) -> Code:
    """Returns the code for a config.

    Args:
        config: complete.
        keeps_prompt: as in `Options`.

    Raises:
        UsageError: it has other layers than sliding ones.
    """
    if config["kind"] != "paged-sliding":
        raise UsageError("a snippet for SGLang has sliding layers alone")
    settings = {
        "WIDTH": str(config["groups"][0]["width"]),
        "SLOTS": str(count_slots(config, Layout.read(config["groups"]))),
        "MAX_LENGTH": str(config["max_length"]),
        "CACHES": str(config["prefix_cache"]),
        "KEEPS_PROMPT": str(keeps_prompt),
    }
    return Code(SOURCE, settings, "Engine()", CALLS, shows=frozenset({"references"}))
