"""Writes a model as a Hugging Face folder or as a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.harness.core.errors import UsageError
from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.model import Model

NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""dtype → its name in safetensors and in `gguf`."""


def write_folder(model: Model, folder: Path, dtype: str) -> Path:
    """Writes model.safetensors, config.json and a tokenizer whose words are t0, t1, …

    Returns:
        The path of the weights.
    """
    unused = model.settings["vocab_size"] - 1
    word = f"t{unused}"
    settings = {**model.settings, "torch_dtype": dtype, "dtype": dtype}
    write_json(folder / "config.json", settings)
    end = {"bos_token_id": unused, "eos_token_id": unused, "do_sample": False}
    write_json(folder / "generation_config.json", end)
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.settings["max_position_embeddings"],
        **{f"{name}_token": word for name in ("bos", "eos", "unk", "pad")},
    }
    write_json(folder / "tokenizer_config.json", tokenizer)
    write_json(folder / "tokenizer.json", make_tokenizer(unused + 1))
    return write_safetensors(model.tensors, folder / "model.safetensors", dtype)


def make_tokenizer(count: int) -> dict[str, Any]:
    """Returns a tokenizer of words between spaces."""
    vocabulary = {f"t{number}": number for number in range(count)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": vocabulary,
            "unk_token": f"t{count - 1}",
        },
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_safetensors(tensors: Mapping[str, Array], path: Path, dtype: str) -> Path:
    """Writes a file of safetensors: the length of a JSON header, the header, the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    arrays = {name: convert(tensor, dtype) for name, tensor in tensors.items()}
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": NAMES[dtype],
            "shape": array.shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            array.tofile(file)
    return path


def convert(tensor: Array, dtype: str) -> Array:
    """Rounds numbers to a dtype. Returns bfloat16 as its bits in uint16, since numpy has
    no bfloat16."""
    numbers = np.ascontiguousarray(tensor, "<f4")
    if dtype != "bfloat16":
        return numbers.astype(np.dtype(dtype).newbyteorder("<"))
    bits = numbers.view("<u4")
    half = 0x7FFF + (bits >> 16 & 1)  # ties go to the even number
    rounded: Array = ((bits + half) >> 16).astype("<u2")
    return rounded


# --- GGUF -------------------------------------------------------------------------------


ARCHITECTURES = {
    "llama": "LLAMA",
    "gemma3_text": "GEMMA3",
    "gpt_oss": "GPT_OSS",
    "llama4_text": "LLAMA4",
    "lfm2": "LFM2",
    "deepseek_v2": "DEEPSEEK2",
    "granitemoehybrid": "GRANITE_HYBRID",
}
"""`model_type` of a checkpoint → the name in `gguf.MODEL_ARCH`."""


def write_gguf(model: Model, folder: Path, dtype: str) -> Path:
    """Writes model.gguf with the library `gguf`.

    Returns:
        The path of the weights.

    Raises:
        UsageError: `gguf` is not installed.
    """
    try:
        import gguf
    except ImportError:
        raise UsageError(
            "--format gguf: the package gguf is not installed; run pip install"
            " 'kv-lockstep[serving]', or choose --format hf"
        ) from None
    settings, path = model.settings, folder / "model.gguf"
    kind = gguf.MODEL_ARCH[ARCHITECTURES[settings["model_type"]]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    add_settings(writer, settings)
    vocabulary = [f"\u2581t{number}" for number in range(settings["vocab_size"])]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(vocabulary)
    writer.add_token_scores([0.0] * len(vocabulary))
    writer.add_token_types([gguf.TokenType.NORMAL] * len(vocabulary))
    for add in (
        writer.add_bos_token_id,
        writer.add_eos_token_id,
        writer.add_unk_token_id,
    ):
        add(len(vocabulary) - 1)
    writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(kind, settings["num_hidden_layers"])
    matrix = gguf.GGMLQuantizationType[NAMES[dtype]]
    for name, tensor in iter_arranged(model):
        is_matrix = (
            tensor.ndim > 1 and name.endswith("weight") and not name.endswith(EXACT)
        )
        stored_as = matrix if is_matrix else gguf.GGMLQuantizationType.F32
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None, name
        numbers = gguf.quantize(tensor, stored_as)
        writer.add_tensor(stored_name, numbers, raw_dtype=stored_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_settings(writer: Any, settings: Mapping[str, Any]) -> None:
    writer.add_context_length(settings["max_position_embeddings"])
    writer.add_vocab_size(settings["vocab_size"])
    writer.add_embedding_length(settings["hidden_size"])
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_feed_forward_length(settings["intermediate_size"])
    writer.add_head_count(settings["num_attention_heads"])
    heads, rank = settings["num_key_value_heads"], settings.get("kv_lora_rank")
    if rank is not None:
        heads = 1
        writer.add_q_lora_rank(settings["q_lora_rank"])
        writer.add_kv_lora_rank(rank)
        writer.add_key_length_mla(settings["qk_nope_head_dim"] + settings["head_dim"])
        writer.add_value_length_mla(settings["v_head_dim"])
        writer.add_leading_dense_block_count(settings["first_k_dense_replace"])
        writer.add_expert_count(settings["n_routed_experts"])
        writer.add_expert_used_count(settings["num_experts_per_tok"])
        writer.add_expert_shared_count(settings["n_shared_experts"])
        writer.add_expert_feed_forward_length(settings["moe_intermediate_size"])
        writer.add_expert_weights_scale(1.0)
    if settings["model_type"] == "lfm2":
        writer.add_shortconv_l_cache(settings["conv_L_cache"])
    if settings["model_type"] == "granitemoehybrid":
        writer.add_attention_scale(settings["attention_multiplier"])
        writer.add_rope_scaling_finetuned(True)  # so that llama.cpp has RoPE
        writer.add_ssm_conv_kernel(settings["mamba_d_conv"])
        writer.add_ssm_inner_size(settings["mamba_expand"] * settings["hidden_size"])
        writer.add_ssm_state_size(settings["mamba_d_state"])
        writer.add_ssm_time_step_rank(settings["mamba_n_heads"])
        writer.add_ssm_group_count(settings["mamba_n_groups"])
    if settings["model_type"] in ("lfm2", "granitemoehybrid"):
        is_attention = ["attention" in kind for kind in settings["layer_types"]]
        heads = [heads * attention for attention in is_attention]
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(settings["rms_norm_eps"])
    writer.add_key_length(settings["head_dim"] + (rank or 0))
    writer.add_value_length(rank or settings["head_dim"])
    writer.add_rope_dimension_count(settings["head_dim"])
    writer.add_rope_freq_base(settings["rope_theta"])
    if "sliding_window" in settings:
        writer.add_sliding_window(settings["sliding_window"])
    if settings["model_type"] == "llama4_text":
        writer.add_expert_count(128)  # llama.cpp then norms neither queries nor keys
        writer.add_expert_used_count(1)
        writer.add_expert_feed_forward_length(settings["intermediate_size"])
        writer.add_interleave_moe_layer_step(1 << 16)  # so that no layer has experts
    elif "num_local_experts" in settings:
        writer.add_expert_count(settings["num_local_experts"])
        writer.add_expert_used_count(settings["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(settings["intermediate_size"])
    if "rope_local_base_freq" in settings:
        base = settings["rope_local_base_freq"]
        writer.add_float32(f"{writer.arch}.rope.freq_base_swa", base)


def iter_arranged(model: Model) -> Iterator[tuple[str, Array]]:
    """Iterates over the tensors, by names that `gguf` knows, as GGUF stores them."""
    settings = model.settings
    for name, tensor in model.tensors.items():
        tensor = tensor.astype(np.float32)
        if settings["model_type"] in ("llama", "granitemoehybrid") and name.endswith(
            SPLIT
        ):
            # RoPE turns adjacent numbers, which are half a head apart in checkpoints.
            halves = tensor.reshape(-1, 2, settings["head_dim"] // 2, tensor.shape[1])
            tensor = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(tensor.shape)
        elif settings["model_type"] == "gemma3_text" and name.endswith("norm.weight"):
            tensor = tensor + 1
        elif "conv" in name and tensor.ndim == 3:
            tensor = tensor[:, 0]
        elif name.endswith("A_log"):
            name, tensor = name, -np.exp(tensor)[:, None]
        elif name.endswith("mamba.D"):
            tensor = tensor[:, None]
        elif name.endswith("dt_bias"):
            name = name.replace("dt_bias", "dt_proj.bias")
        elif name.endswith("mamba.norm.weight"):
            tensor = tensor[None]
        elif name.endswith("kv_b_proj.weight"):
            heads, rank = settings["num_attention_heads"], settings["kv_lora_rank"]
            parts = np.split(tensor.reshape(heads, -1, rank), 2, 1)
            key = np.ascontiguousarray(parts[0].swapaxes(1, 2))
            yield name.replace("kv_b", "k_b"), key
            name, tensor = name.replace("kv_b", "v_b"), np.ascontiguousarray(parts[1])
        elif name.endswith("input_linear.weight"):
            gate, up = np.split(tensor, 2)
            yield name.replace("shared_mlp.input_linear", "mlp.gate_proj"), gate
            name, tensor = name.replace("shared_mlp.input_linear", "mlp.up_proj"), up
        elif name.endswith("output_linear.weight"):
            name = name.replace("shared_mlp.output_linear", "mlp.down_proj")
        yield from split_experts(name, tensor)


EXACT = ("conv.weight", "conv1d.weight", "mamba.norm.weight")
"""The ends of the names of matrices that GGUF stores in float32."""

SPLIT = ("q_proj.weight", "k_proj.weight")


def split_experts(name: str, tensor: Array) -> Iterator[tuple[str, Array]]:
    """Iterates over the tensors that GGUF has in place of a tensor of experts, whose
    numbers are all zero."""
    start, found, end = name.partition("mlp.experts.")
    if not found:
        has_suffix = name.endswith((".weight", ".bias", ".A_log", ".D"))
        yield (name if has_suffix else f"{name}.weight"), tensor
        return
    kind = "bias" if end.endswith("bias") else "weight"
    tensor = tensor if kind == "bias" else tensor.swapaxes(1, 2)
    halves = np.split(tensor, 2, 1) if end.startswith("gate_up") else [tensor]
    names = ["gate_proj", "up_proj"] if len(halves) > 1 else ["down_proj"]
    for part, half in zip(names, halves, strict=True):
        yield f"{start}{found}{part}.{kind}", np.ascontiguousarray(half)
