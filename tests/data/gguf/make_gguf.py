#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the GGUF fixtures with the public `gguf` package (PyPI, 0.19.0), which shares no code with Sluice.

  blocks.gguf          random blocks of every type that is read, and what the package decodes them to
  gpt-oss-mxfp4.gguf   ../fixtures/gpt_oss_mxfp4 as llama.cpp's converter stores it; the fixture's
                       expected.safetensors says what it computes

  pip install gguf==0.19.0 numpy && python3 make_gguf.py
"""
import json
import pathlib
import struct

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent
T = gguf.GGMLQuantizationType


def bf16_to_f32(raw):
    return (raw.astype(np.uint32) << 16).view(np.float32)


def random_blocks(kind, rows, cols, random):
    columns, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows, cols // columns, size), dtype=np.uint8)
    numbers = {T.Q4_0: [0], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}.get(kind, [])
    for at in numbers:  # any finite binary16, subnormal and negative ones too
        bits = random.integers(0, 0x7C00, blocks.shape[:2], dtype=np.uint16)
        bits |= random.integers(0, 2, blocks.shape[:2], dtype=np.uint16) << 15
        blocks[:, :, at:at + 2] = bits[..., None].view(np.uint8)
    if kind == T.MXFP4:
        blocks[:, :, 0] = random.integers(0, 250, blocks.shape[:2])
    if kind == T.NVFP4:
        blocks[:, :, :4] = random.integers(0, 0x7F, blocks.shape[:2] + (4,))
    return blocks.reshape(rows, -1)


def write_blocks():
    random = np.random.default_rng(20261130)
    writer = gguf.GGUFWriter(HERE / "blocks.gguf", "test")
    for kind in (T.Q4_0, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K, T.MXFP4, T.NVFP4):
        data = random_blocks(kind, 3, 512, random)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        writer.add_tensor(kind.name + ".decoded", gguf.quants.dequantize(data, kind).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_safetensors(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    types = {"BF16": np.uint16, "U8": np.uint8}
    return {name: np.frombuffer(raw[8 + length:][slice(*entry["data_offsets"])], types[entry["dtype"]])
            .reshape(entry["shape"])
            for name, entry in json.loads(raw[8:8 + length]).items() if name != "__metadata__"}


def ggml_mxfp4(blocks, scales):
    """[..., groups, 16] bytes of neighbours and their scales, as ggml has them."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(blocks.shape[:-1] + (32,))
    halves = codes[..., :16] | codes[..., 16:] << 4
    whole = np.concatenate([scales[..., None], halves], -1)
    return whole.reshape(whole.shape[:-2] + (-1,))


def write_gpt_oss():
    fixture = HERE.parent / "fixtures" / "gpt_oss_mxfp4"
    config = json.loads((fixture / "config.json").read_text())
    tensors = read_safetensors(fixture / "model.safetensors")
    writer = gguf.GGUFWriter(HERE / "gpt-oss-mxfp4.gguf", "gpt-oss")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}.mlp."
        experts = block + "experts."
        both = ggml_mxfp4(tensors[experts + "gate_up_proj_blocks"], tensors[experts + "gate_up_proj_scales"])
        both_bias = bf16_to_f32(tensors[experts + "gate_up_proj_bias"])
        down = ggml_mxfp4(tensors[experts + "down_proj_blocks"], tensors[experts + "down_proj_scales"])
        for name, first in (("gate", 0), ("up", 1)):  # rows take turns in gpt-oss, and no longer do in GGUF
            writer.add_tensor(f"blk.{layer}.ffn_{name}_exps.weight", np.ascontiguousarray(both[:, first::2]), raw_dtype=T.MXFP4)
            writer.add_tensor(f"blk.{layer}.ffn_{name}_exps.bias", np.ascontiguousarray(both_bias[:, first::2]))
        writer.add_tensor(f"blk.{layer}.ffn_down_exps.weight", down, raw_dtype=T.MXFP4)
        writer.add_tensor(f"blk.{layer}.ffn_down_exps.bias", bf16_to_f32(tensors[experts + "down_proj_bias"]))
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", bf16_to_f32(tensors[block + "router.weight"]))
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.bias", bf16_to_f32(tensors[block + "router.bias"]))
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", np.ones(config["hidden_size"], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


write_blocks()
write_gpt_oss()
