#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint as large as published ones, for measuring how a model is loaded.

    bench/large_checkpoint.py DIR [LAYERS]

The MoE layers of gpt-oss-20b (32 experts of 2880 x 2880 in MXFP4, 0.42 GB each; 10 layers by default, 4.2 GB) with drawn
codes and scales, in the layout in which that model ships. Nothing else of a model is there.
"""
import json
import pathlib
import random
import struct
import sys

HIDDEN = INTERMEDIATE = 2880
EXPERTS, TOP_K = 32, 4
PART = 1 << 24


def tensors(layer):
    """name -> (dtype, shape), in the order of the file."""
    mlp = f"model.layers.{layer}.mlp."
    both, groups = 2 * INTERMEDIATE, HIDDEN // 32
    return {
        mlp + "router.weight": ("BF16", [EXPERTS, HIDDEN]),
        mlp + "router.bias": ("BF16", [EXPERTS]),
        mlp + "experts.gate_up_proj_bias": ("BF16", [EXPERTS, both]),
        mlp + "experts.down_proj_bias": ("BF16", [EXPERTS, HIDDEN]),
        mlp + "experts.gate_up_proj_blocks": ("U8", [EXPERTS, both, groups, 16]),
        mlp + "experts.down_proj_blocks": ("U8", [EXPERTS, HIDDEN, groups, 16]),
        mlp + "experts.gate_up_proj_scales": ("U8", [EXPERTS, both, groups]),
        mlp + "experts.down_proj_scales": ("U8", [EXPERTS, HIDDEN, groups]),
    }


def size(dtype, shape):
    count = {"U8": 1, "BF16": 2}[dtype]
    for extent in shape:
        count *= extent
    return count


def write(path, layers):
    all_tensors = {name: entry for layer in range(layers) for name, entry in tensors(layer).items()}
    header, offset = {}, 0
    for name, (dtype, shape) in all_tensors.items():
        end = offset + size(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = random.Random(1)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, (dtype, shape) in all_tensors.items():
            left = size(dtype, shape)
            while left > 0:
                part = draw.randbytes(min(left, PART))
                if name.endswith("scales"):  # 2^-9 to 2^-6
                    part = part.translate(bytes(118 + code % 4 for code in range(256)))
                elif dtype == "BF16":  # small numbers of either sign
                    part = part.translate(bytes(range(256)))
                    part = b"".join(part[i:i + 1] + (b"\x3c" if part[i] & 1 else b"\xbc") for i in range(0, len(part), 2))
                file.write(part)
                left -= len(part)


def main():
    directory, layers = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10
    directory.mkdir(parents=True)
    published = pathlib.Path(__file__).parent.parent / "models/tiny-gpt-oss-mxfp4/config.json"
    config = json.loads(published.read_text())
    config.update(hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_local_experts=EXPERTS, num_hidden_layers=layers,
                  num_experts_per_tok=TOP_K, experts_per_token=TOP_K)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    write(directory / "model.safetensors", layers)


if __name__ == "__main__":
    main()
