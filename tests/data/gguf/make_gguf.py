#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the GGUF fixtures with the public `gguf` package (PyPI, 0.19.0), which shares no code with Sluice.

  blocks.gguf          random blocks of every type that is read, and what the package decodes them to
  gpt-oss-mxfp4.gguf   ../fixtures/gpt_oss_mxfp4 as llama.cpp's converter stores it; the fixture's
                       expected.safetensors says what it computes
  deepseek2-q4_k.gguf  a layer of DeepSeek-V3's kind below a dense one, as files of "Q4_K_M" are: gate and up in
                       Q4_K, down in Q6_K, the shared expert in Q5_K and Q8_0; what it computes, in float64 on
                       the weights that the package decodes, is in deepseek2-q4_k.expected.safetensors

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


def weights_in(kind, rows, cols, random):
    """Blocks with scales such that weights are about 0.06 large, and what the package decodes them to."""
    columns, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows, cols // columns, size), dtype=np.uint8)
    step = {T.Q4_K: 3e-4, T.Q5_K: 1.5e-4, T.Q6_K: 1e-4, T.Q8_0: 8e-4}[kind]
    scale = (step * random.uniform(0.5, 1.5, blocks.shape[:2])).astype(np.float16)
    at = 208 if kind == T.Q6_K else 0
    blocks[:, :, at:at + 2] = scale[..., None].view(np.uint8)
    if kind in (T.Q4_K, T.Q5_K):  # the minimum takes the mean away
        middle = 7.5 if kind == T.Q4_K else 15.5
        blocks[:, :, 2:4] = (middle * scale.astype(np.float64)).astype(np.float16)[..., None].view(np.uint8)
    if kind == T.Q6_K:
        blocks[:, :, 192:208] = random.integers(-40, 41, blocks.shape[:2] + (16,), dtype=np.int8).view(np.uint8)
    blocks = blocks.reshape(rows, -1)
    return blocks, gguf.quants.dequantize(blocks, kind).astype(np.float64)


def write_safetensors(path, tensors):
    names = {np.dtype(np.float32): "F32", np.dtype(np.int32): "I32", np.dtype(np.int64): "I64",
             np.dtype(np.uint16): "BF16"}
    header, data = {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def silu_mlp(x, gate, up, down):
    g = x @ gate.T
    return (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T


def write_deepseek():
    size, experts, top_k, groups, kept, tokens, factor = 256, 4, 2, 2, 1, 11, 2.5
    random = np.random.default_rng(20261131)
    writer = gguf.GGUFWriter(HERE / "deepseek2-q4_k.gguf", "deepseek2")
    writer.add_block_count(2)
    writer.add_leading_dense_block_count(1)
    writer.add_embedding_length(size)
    writer.add_feed_forward_length(4 * size)
    writer.add_expert_feed_forward_length(size)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(top_k)
    writer.add_expert_shared_count(1)
    writer.add_expert_group_count(groups)
    writer.add_expert_group_used_count(kept)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(factor)
    router = random.normal(0, 0.06, (experts, size)).astype(np.float32)
    bias = random.normal(0, 0.1, experts).astype(np.float32)
    writer.add_tensor("blk.1.ffn_gate_inp.weight", router)
    writer.add_tensor("blk.1.exp_probs_b.bias", bias)
    routed, shared = [], []
    for name, kind, shared_kind in (("gate", T.Q4_K, T.Q5_K), ("up", T.Q4_K, T.Q5_K), ("down", T.Q6_K, T.Q8_0)):
        stack, values = zip(*(weights_in(kind, size, size, random) for _ in range(experts)))
        writer.add_tensor(f"blk.1.ffn_{name}_exps.weight", np.stack(stack), raw_dtype=kind)
        routed.append(values)
        one, value = weights_in(shared_kind, size, size, random)
        writer.add_tensor(f"blk.1.ffn_{name}_shexp.weight", one, raw_dtype=shared_kind)
        shared.append(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    stored = (random.normal(0, 1, (tokens, size)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    hidden = bf16_to_f32(stored).astype(np.float64)
    logits = hidden @ router.astype(np.float64).T
    scores = 1 / (1 + np.exp(-logits))
    select = (scores + bias).reshape(tokens, groups, -1)
    best = np.sort(select, -1)[..., -2:].sum(-1)
    out = np.argsort(-best, -1)[:, kept:]
    np.put_along_axis(select, out[..., None], -np.inf, 1)
    ids = np.argsort(-select.reshape(tokens, -1), -1)[:, :top_k]
    weights = np.take_along_axis(scores, ids, -1)
    weights *= factor / weights.sum(-1, keepdims=True)
    answer = np.zeros((tokens, size))
    for t in range(tokens):
        for e, w in zip(ids[t], weights[t]):
            answer[t] += w * silu_mlp(hidden[t], routed[0][e], routed[1][e], routed[2][e])
    write_safetensors(HERE / "deepseek2-q4_k.expected.safetensors", {
        "1.hidden": stored, "1.input_ids": np.zeros(tokens, np.int64), "1.router_logits": logits.astype(np.float32), "1.topk_ids": ids.astype(np.int32),
        "1.topk_weights": weights.astype(np.float32), "1.experts_out": answer.astype(np.float32),
        "1.block_out": (answer + silu_mlp(hidden, *shared)).astype(np.float32)})


write_blocks()
write_gpt_oss()
write_deepseek()
