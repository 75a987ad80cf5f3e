#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/data/adapters: tiny models saved by transformers, LoRA adapters on their experts saved by PEFT, and
what the merged model answers.

    python3 make_adapters.py OUT

Needs torch, transformers >= 5.17, peft >= 0.21, safetensors. Each OUT/<model>/ holds
  model/                 config.json and the MoE layer's tensors, under the names that transformers saves
  adapter/               adapter_config.json and adapter_model.safetensors
  expected.safetensors   0.hidden bf16 [T, H]; 0.block_out f32 [T, H] of the layer with the adapter merged, in float64;
                         0.plain f32 [T, H] without it
"""
import json
import os
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

TOKENS, HIDDEN, INTERMEDIATE, EXPERTS = 8, 32, 24, 4
COMMON = dict(hidden_size=HIDDEN, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
              vocab_size=64, head_dim=16)


def models():
    t = transformers
    yield "qwen3_moe", t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(
        **COMMON, intermediate_size=64, moe_intermediate_size=INTERMEDIATE, num_experts=EXPERTS,
        num_experts_per_tok=2, norm_topk_prob=True))
    yield "mixtral", t.MixtralForCausalLM(t.MixtralConfig(
        **COMMON, intermediate_size=INTERMEDIATE, num_local_experts=EXPERTS, num_experts_per_tok=2))
    yield "gpt_oss", t.GptOssForCausalLM(t.GptOssConfig(
        **COMMON, intermediate_size=INTERMEDIATE, num_local_experts=EXPERTS, num_experts_per_tok=2))
    yield "llama4", t.Llama4ForCausalLM(t.Llama4TextConfig(
        **COMMON, intermediate_size=INTERMEDIATE, intermediate_size_mlp=INTERMEDIATE, num_local_experts=EXPERTS,
        num_experts_per_tok=1, moe_layers=[0]))


def block_of(model):
    layer = model.model.layers[0]
    return layer.feed_forward if hasattr(layer, "feed_forward") else layer.mlp


def answer(model, hidden):
    """What the MoE block answers, in float64. Some blocks return the router's scores as well."""
    model = model.double()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    with torch.no_grad():
        out = block_of(model)(hidden.double())
    return (out[0] if isinstance(out, tuple) else out).reshape(TOKENS, HIDDEN).float().contiguous()


def keep_only_moe(directory):
    """The other tensors are of no use to a library of MoE layers."""
    path = os.path.join(directory, "model.safetensors")
    tensors = load_file(path)
    kept = {k: v.contiguous() for k, v in tensors.items() if any(part in k for part in (".mlp.", ".feed_forward.", "_moe."))}
    save_file(kept, path, metadata={"format": "pt"})


def write(name, model, out):
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.2).bfloat16().float()
    directory = os.path.join(out, name)
    hidden = torch.randn((1, TOKENS, HIDDEN), generator=generator).bfloat16()
    model.bfloat16().save_pretrained(os.path.join(directory, "model"))
    keep_only_moe(os.path.join(directory, "model"))
    plain = answer(model, hidden)
    model = model.float()

    stacks = sorted({".".join(n.split(".")[-3:]) for n, _ in model.named_parameters()
                     if "shared" not in n and n.endswith(("gate_up_proj", "down_proj"))})
    config = peft.LoraConfig(r=3, lora_alpha=6, target_parameters=stacks, target_modules=[])
    adapted = peft.get_peft_model(model, config)
    for parameter_name, parameter in adapted.named_parameters():
        if "lora_" in parameter_name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    adapted.save_pretrained(os.path.join(directory, "adapter"))
    merged = adapted.double().merge_and_unload()
    save_file({"0.hidden": hidden[0].contiguous(), "0.block_out": answer(merged, hidden), "0.plain": plain},
              os.path.join(directory, "expected.safetensors"))
    for extra in ("model/generation_config.json", "adapter/README.md"):
        path = os.path.join(directory, extra)
        if os.path.exists(path):
            os.remove(path)
    with open(os.path.join(directory, "adapter", "adapter_config.json")) as f:
        print(name, json.load(f).get("peft_version"), stacks)


if __name__ == "__main__":
    for each, built in models():
        write(each, built, sys.argv[1])
