"""The adapters of the peers are thin: no call is guarded, and nothing is copied, but what
stands here with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ADAPTERS = sorted(
    path
    for path in (Path(__file__).parents[2] / "impl" / "peers").glob("*.py")
    if not path.stem.endswith(("_code", "_recorder"))  # these call no library
)

COPIES = {
    "copy", "deepcopy", "clone", "array", "contiguous", "detach", "tensor", "asarray",
    "copy_", "copyto", "save_prompt_cache",
}  # fmt: skip
"""The names of functions and methods that copy an array or a cache."""

ALLOWED = {
    "mlx_lm_layers.Layer.clone: copy": "the adapter, which holds the cache",
    "mlx_lm_layers.Layer.clone: deepcopy": "LRUPromptCache.fetch_nearest_cache does so",
    "mlx_lm_layers.StoredLayer.clone: copy": "the adapter, which holds the cache",
    "mlx_lm_layers.RecurrentLayer.clone: copy": "the adapter, which holds the cache",
    "mlx_lm_layers.RecurrentLayer.clone: deepcopy": "fetch_nearest_cache does so",
    "mlx_lm_layers.RecurrentLayer.write: contiguous": "qwen3_next does so",
    "mlx_lm_layers.store_and_load: save_prompt_cache": "cache_prompt.py does so",
    "mlx_vlm_batches.VLMBatch.offsets: array": "Gemma 4 does so",
    "mlx_vlm_batches.VLMStateBatch.pad_left: array": "_make_cache does so",
    "transformers_layers.Layer.clone: copy": "the adapter, which holds the cache",
    "transformers_layers.Layer.clone: deepcopy": "documented for reuse of a prompt",
    "transformers_layers.IdentityLayer._quantize: clone": "a stand-in for a quantizer",
    "transformers_layers.IdentityLayer._dequantize: clone": "a stand-in for a quantizer",
    "transformers_batches.Batch.clone: copy": "the adapter, which holds the cache",
    "transformers_batches.Batch.clone: deepcopy": "documented for reuse of a prompt",
    "transformers_batches.Batch.pad_left: tensor": "the numbers of the harness",
    "transformers_batches.Rows.filter: tensor": "the numbers of the harness",
    "transformers_batches.Rows.select: tensor": "the numbers of the harness",
    "transformers_batches.Batch.make_mask: if": "SDPA takes no mask as causal",
    "transformers_batches.Batch.read_row: if": "a layer has no tensors before an update",
    "transformers_lists.ListLayer.clone: deepcopy": "documented for reuse of a prompt",
    "transformers_layers.build_mask: if": "one sequence has no 2-D mask",
    "transformers_layers.get_attention: if": "each kind has a type of layer",
    "transformers_layers.get_hybrid: if": "its state or its window is compared",
    "transformers_layers.get_room: if": "its state or its window is compared",
    "transformers_pooled.CompressedLayer.make_mask: clone": "models mask after an update",
    "transformers_pooled.CompressedLayer.state: if": "no entries before an update",
    "transformers_pages.Pages.schedule: if": "without room prepare_next_batch goes on so",
    "transformers_pages.Pages.prepare: if": "inputs are made once for all layers",
    "transformers_pages.Pages.free: if": "no_cache is a call of its own",
    "transformers_pages.Pages.fork: if": "without room the next step evicts",
    "transformers_pages.Pages.get_table: if": "a ring has no table",
    "transformers_tables.TablePages.update: if": "flash attention chooses so",
    "mlx_lm_layers.Layer.state: if": "state of an empty cache is (None, None, 0)",
    "mlx_lm_layers.ConcatenateLayer.state: if": "state of an empty cache is (None, None)",
    "mlx_lm_layers.QuantizedLayer.state: if": "MLX dequantizes no array without rows",
    "mlx_lm_layers.QuantizedLayer.held: if": "of None, before the first update",
    "mlx_lm_layers.TurningLayer.update: if": "which of the two caches answered",
    "mlx_lm_layers.read_states: if": "a model starts from zeros",
    "mlx_lm_layers.RecurrentLayer.write: if": "which of the two backends this is",
    "mlx_lm_layers.RecurrentLayer.clone: if": "which of the two backends this is",
    "mlx_lm_layers.set_step: if": "the growth step is the config's",
    "mlx_lm_batches.Batch.clone: copy": "the adapter, which holds the cache",
    "mlx_lm_batches.Batch.clone: deepcopy": "PromptProcessingBatch.split does so",
    "mlx_lm_batches.Batch.state: if": "an empty batch has no arrays",
    "mlx_lm_batches.StateBatch.count: if": "counts tokens, as no mask says all",
    "mlx_lm_batches.save: save_prompt_cache": "cache_prompt.py does so",
    "mlx_lm_lists.ListLayer.clone: deepcopy": "fetch_nearest_cache does so",
    "mlx_lm_lists.ListBatch.clone: deepcopy": "PromptProcessingBatch.split does so",
    "mlx_lm_lists.StatePart.offsets: array": "numbers that are counted here",
    "mlx_lm_prompts.PromptCache.begin: if": "a server makes caches where it finds none",
    "transformers_layers.Layer.make_mask: if": "SDPA takes no mask as causal",
    "transformers_layers.Layer.state: if": "a layer has no tensors before an update",
    "transformers_layers.States.read: if": "a model starts from zeros",
    "exllamav3.Pages.schedule: if": "the generator has the same (G:2189, J:370)",
    "exllamav3.Pages.open: tensor": "the numbers of the harness",
    "exllamav3.Pages.accept: tensor": "the numbers of the harness",
    "exllamav3.Pages.accept: if": "Job does so (J:826)",
    "exllamav3.Pages.pool: if": "tells which pages are held, free and cached",
    "lmdeploy_sequences.Sequences.match: if": "the scheduler has the same",
    "lmdeploy_sequences.Sequences.schedule: if": "the engine has the same (I:339, I:980)",
    "lmdeploy_sequences.Sequences.prefill: if": "the engine has the same (I:580)",
    "lmdeploy_sequences.Sequences.go_on: if": "the engine has the same (I:620)",
    "lmdeploy_sequences.Sequences.launch: if": "the engine has the same (I:1257)",
    "lmdeploy_sequences.Sequences.reserve: if": "the engine has the same (I:1000)",
    "lmdeploy_sequences.Sequences.accept: array": "the numbers of the harness",
    "lmdeploy_sequences.Sequences.pool: if": "tells which blocks are held and cached",
    "lmdeploy_sequences.Sequences.entries: if": "tells what can be hit",
    "lmdeploy_sequences.Sequences.iter_checkpoints: if": "few nodes have a checkpoint",
    "litgpt.Layer.make_mask: if": "a compiled model keeps all columns",
    "litgpt.Layer.update: if": "a compiled model keeps all columns",
    "executorch.Layer.make_mask: if": "AttentionMHA.forward does so (line 622)",
    "executorch.Layer.update: if": "with dynamic shapes callers pass one position",
    "executorch.Ring.update: copy_": "the mask is made after the update",
    "fla.Layer.update: if": "Attention.forward does so",
    "fla.Layer.clone: copy": "the adapter, which holds the cache",
    "fla.Layer.clone: deepcopy": "documented for reuse of a prompt",
    "fla.States.read: if": "a layer starts from zeros",
    "vllm_mlx.Row.state: if": "the state of an empty cache raises an exception",
    "vllm_mlx.Conversations.close: if": "a batch without tokens cannot be extracted",
    "vllm_blocks.Scheduler.__init__: if": "only some servers have a connector",
    "vllm_blocks.Blocks.schedule: if": "the scheduler has the same (lines 830 to 1600)",
    "vllm_blocks.Blocks.finish: if": "the scheduler has the same (line 2317)",
    "vllm_blocks.Blocks.send: if": "a null block is not sent",
    "vllm_blocks.Blocks.receive: if": "None is no table",
    "vllm_blocks.Blocks.landed: if": "the scheduler has the same (line 2689)",
    "vllm_blocks.Blocks.failed: if": "connectors have one report for several groups",
    "vllm_blocks.Blocks.append: if": "the scheduler has the same (lines 2406, 2766)",
    "vllm_blocks.Blocks.pool: if": "tells which blocks are held, free and cached",
    "vllm_blocks.Blocks.translate: if": "each event has a class",
    "vllm_blocks.list_extras: if": "tells which images begin in a prefix",
    "vllm_blocks.list_ids: if": "of one hash there is a block, or a dict of several",
    "sglang_trees.Trees.__init__: if": "states are copied in the harness's memory",
    "sglang_trees.Trees.open: if": "a server tells a salt from another key",
    "sglang_trees.Trees.open: array": "the scheduler has tokens in such arrays",
    "sglang_trees.Trees.schedule: if": "where the scheduler has a request",
    "sglang_trees.Trees.admit: if": "the scheduler has the same (H:4216, P:1395)",
    "sglang_trees.Trees.give_back_state: if": "the scheduler has the same (H:4291)",
    "sglang_trees.Trees.go_on: if": "the scheduler has the same (P:1174)",
    "sglang_trees.Trees.extend: if": "the scheduler has the same (H:4359)",
    "sglang_trees.Trees.decode: if": "the scheduler has the same (H:4469)",
    "sglang_trees.Trees.make_batch: tensor": "the numbers of the harness",
    "sglang_drafts.DraftingTrees.decode: if": "the scheduler has the same (H:4469)",
    "sglang_drafts.DraftingTrees.decode: tensor": "the numbers of the harness",
    "sglang_drafts.DraftingTrees.accept: if": "the scheduler has the same (R:831)",
    "sglang_pools.open_slots: if": "each kind of model has a pool",
    "sglang_pools.count_slots: if": "a pool of sliding layers keeps whole prompts",
    "sglang_pools.open_rows: if": "each kind of model has a pool",
    "sglang_pools.open_tree: if": "each kind of model has a tree",
    "sglang_facts.EventReader.note: if": "with EAGLE events tell pairs",
    "sglang_pools.count_reserved: if": "a server without drafts reserves nothing",
    "sglang_trees.Trees.run: if": "chunks that do not end a prompt",
    "sglang_trees.Trees.accept: if": "the scheduler has the same (R:393)",
    "sglang_trees.Trees.preempt: if": "counts the others",
    "sglang_trees.Trees.free: if": "the scheduler has the same (C:402)",
    "sglang_trees.Trees.reset: if": "the scheduler has the same (H:5518)",
    "sglang_facts.Layout.read: if": "finds the group with a window",
    "sglang_facts.EventReader.translate_one: if": "each event has a class",
    "sglang_facts.Facts.count: if": "the pools that there are",
    "sglang_facts.Facts.evict: if": "which parts are evicted",
    "sglang_facts.Facts.find_locked: if": "a tree that is disabled has no paths",
    "sglang_facts.Facts.get_pool: if": "tells which blocks are held, free and cached",
    "sglang_facts.Facts.has_room: if": "the pools that there are",
    "sglang_facts.Facts.is_boundary: if": "a Rust tree tells no marks",
    "sglang_facts.Facts.iter_free: if": "the pools that there are",
    "sglang_facts.Facts.list_all: if": "the pools that there are",
    "sglang_facts.Facts.list_blocks: if": "a part that is evicted has no slots",
    "sglang_facts.Facts.list_entries: if": "states lie at the ends of nodes",
    "sglang_facts.Facts.list_tables: if": "the groups that there are",
    "sglang_facts.Facts.list_window: if": "without full layers there are no locks",
    "sglang_facts.Facts.name_pages: if": "a slot that is freed",
    "sglang_facts.Facts.read_parts: if": "the parts that there are",
}
"""Place: construct → reason. Functions of a module that open caches and declare them
choose by the config, and are not listed."""


def iter_constructs(path: Path) -> Iterator[str]:
    """Each `try`, check and copy in the code that drives a library, as "place: what"."""
    for place, node in iter_nodes(ast.parse(path.read_text()), path.stem):
        if isinstance(node, ast.Try | ast.TryStar):
            yield f"{place}: try"
        elif isinstance(node, ast.With) and "suppress" in ast.unparse(node.items[0]):
            yield f"{place}: suppress"
        elif isinstance(node, ast.If | ast.IfExp | ast.comprehension | ast.Assert):
            is_check = not isinstance(node, ast.comprehension) or node.ifs
            if is_check and not place.partition(".")[2].startswith(OPENING):
                yield f"{place}: if"
        elif isinstance(node, ast.Attribute) and node.attr in COPIES:
            yield f"{place}: {node.attr}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in COPIES:
            yield f"{place}: {ast.unparse(node.func)}"


OPENING = (
    *("_open", "_model", "_kind", "_backend", "_quantized", "_stepping", "_write"),
    *("make_model", "declare", "mlx_lm"),
)
"""Beginnings of the names of functions that open caches, declare them, or write code."""


def iter_nodes(tree: ast.AST, place: str) -> Iterator[tuple[str, ast.AST]]:
    """All nodes with the qualified name of the function around them."""
    for node in ast.iter_child_nodes(tree):
        is_named = isinstance(node, ast.FunctionDef | ast.ClassDef)
        inner = f"{place}.{node.name}" if is_named else place
        yield place, node
        yield from iter_nodes(node, inner)


def test_adapters_guard_and_copy_nothing_else() -> None:
    found = {each for path in ADAPTERS for each in iter_constructs(path)}
    assert found - ALLOWED.keys() == set(), "not allowed"
    assert ALLOWED.keys() - found == set(), "no longer there"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("try:\n    self.cache.trim(1)\nexcept ValueError:\n    return 0", "try"),
        ("if self.cache.keys is None:\n    return None", "if"),
        ("return None if self.cache.empty() else self.cache.keys", "if"),
        ("return [k for k in self.cache if k]", "if"),
        ("assert self.cache.is_trimmable()", "if"),
        ("with suppress(ValueError):\n    self.cache.trim(1)", "suppress"),
        ("return self.cache.keys.clone()", "clone"),
        ("return mx.array(self.cache.keys)", "array"),
        ("return deepcopy(self.cache)", "deepcopy"),
    ],
)
def test_a_guard_or_a_copy_is_found(tmp_path: Path, body: str, what: str) -> None:
    lines = "".join(f"        {line}\n" for line in body.split("\n"))
    path = tmp_path / "peer.py"
    path.write_text(f"class Layer:\n    def state(self):\n{lines}")
    assert set(iter_constructs(path)) == {f"peer.Layer.state: {what}"}


def test_adapters_are_all_looked_at() -> None:
    assert {path.stem for path in ADAPTERS} >= {
        "mlx_lm", "mlx_lm_batched", "mlx_lm_batches", "mlx_lm_layers", "mlx_lm_lists",
        "mlx_lm_prompts",
        "transformers", "transformers_batched", "transformers_batches",
        "transformers_layers", "transformers_lists", "transformers_paged",
        "transformers_pages", "transformers_tables", "vllm", "vllm_blocks", "vllm_mlx",
        "litgpt", "executorch", "exllamav3", "fla", "static",
        "lmdeploy", "lmdeploy_sequences",
        "sglang", "sglang_drafts", "sglang_facts", "sglang_pools", "sglang_trees",
    }  # fmt: skip
