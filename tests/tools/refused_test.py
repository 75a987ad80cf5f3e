# SPDX-License-Identifier: Apache-2.0
"""Damaged checkpoints through the command: each is refused with exit code 3 and a message of its own."""
import json
import pathlib
import shutil
import struct
import tempfile
import unittest

import cli

GPT_OSS, DEEPSEEK, FP8, NVFP4 = "gpt_oss_mxfp4", "deepseek_v4_base_fp8", "qwen3_moe_fp8_block", "deepseek_v4_nvfp4"
ONE_FILE = "qwen3_moe_fp8_channel"


class Damage:
    """A copy of a fixture to be spoilt."""

    def __init__(self, folder, fixture):
        self.path = pathlib.Path(folder, "model")
        shutil.copytree(cli.fixture(fixture), self.path)

    def first_file(self):
        return sorted(self.path.glob("model*.safetensors"))[0]

    def config(self, **changes):
        config = json.loads((self.path / "config.json").read_text())
        (self.path / "config.json").write_text(json.dumps(config | changes))

    def index(self, change):
        path = self.path / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        change(index["weight_map"])
        path.write_text(json.dumps(index))

    def header(self, change):
        """`change` gets the header as text and returns another; its length field follows, the data stays."""
        data = self.first_file().read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        text = change(data[8:8 + length].decode())
        encoded = text if isinstance(text, bytes) else text.encode()
        self.first_file().write_bytes(struct.pack("<Q", len(encoded)) + encoded + data[8 + length:])

    def entry(self, change):
        """`change` gets the entries by name and one name, and may edit them."""
        def edit(text):
            entries = json.loads(text)
            change(entries, next(name for name in entries if name != "__metadata__"))
            return json.dumps(entries)
        self.header(edit)

    def length(self, length):
        data = self.first_file().read_bytes()
        self.first_file().write_bytes(struct.pack("<Q", length) + data[8:])

    def tensors(self, change):
        path = self.first_file()
        tensors = cli.read_safetensors(path)
        change(tensors)
        cli.write_safetensors(path, tensors)

    def poke(self, suffix, data):
        """Overwrites the first bytes of the first tensor whose name ends in `suffix`."""
        def change(tensors):
            name = next(name for name in sorted(tensors) if name.endswith(suffix))
            dtype, shape, old = tensors[name]
            tensors[name] = (dtype, shape, data + old[len(data):])
        self.tensors(change)


def shift_all(by):
    def change(entries, _):
        for name, entry in entries.items():
            if name != "__metadata__":
                entry["data_offsets"] = [offset + by for offset in entry["data_offsets"]]
    return change


def set_offsets(offsets):
    def change(entries, name):
        entries[name]["data_offsets"] = offsets
    return change


def overlap(entries, _):
    names = sorted((n for n in entries if n != "__metadata__"), key=lambda n: entries[n]["data_offsets"])
    size = entries[names[1]]["data_offsets"][1] - entries[names[1]]["data_offsets"][0]
    entries[names[1]]["data_offsets"] = [0, size]


def set_entry(key, value):
    def change(entries, name):
        entries[name][key] = value
    return change


def drop(suffix):
    def change(tensors):
        name = next(name for name in sorted(tensors) if name.endswith(suffix))
        del tensors[name]
    return change


def drop_all(part):
    def change(tensors):
        for name in [name for name in tensors if part in name]:
            del tensors[name]
    return change


def extra_scale(tensors):
    name = next(name for name in sorted(tensors) if name.endswith(".weight_scale"))
    tensors[name + "_3"] = tensors[name]


def rename_shard(to):
    def change(weight_map):
        weight_map[next(iter(weight_map))] = to
    return change


DAMAGE = {
    "header longer than the file": (GPT_OSS, lambda d: d.length(1 << 40)),
    "header over 100 MB": (GPT_OSS, lambda d: d.length(100_000_001)),
    "file shorter than a length": (GPT_OSS, lambda d: d.first_file().write_bytes(b"abc")),
    "bad UTF-8": (GPT_OSS, lambda d: d.header(lambda t: t.encode().replace(b"model.layers", b"model\xff\xfelayers", 1))),
    "bad JSON": (GPT_OSS, lambda d: d.header(lambda t: t.rstrip()[:-1])),
    "duplicate key": (GPT_OSS, lambda d: d.header(lambda t: t.rstrip()[:-1] + "," + t.lstrip()[1:])),
    "overlap": (GPT_OSS, lambda d: d.entry(overlap)),
    "gap at the start": (GPT_OSS, lambda d: d.entry(shift_all(8))),
    "offsets out of range": (GPT_OSS, lambda d: d.entry(set_offsets([1 << 40, (1 << 40) + 16]))),
    "offsets reversed": (GPT_OSS, lambda d: d.entry(set_offsets([16, 0]))),
    "offsets overflow": (GPT_OSS, lambda d: d.entry(set_offsets([0, 18446744073709551616]))),
    "shape overflows": (GPT_OSS, lambda d: d.entry(set_entry("shape", [1 << 32, 1 << 32, 16]))),
    "negative shape": (GPT_OSS, lambda d: d.entry(set_entry("shape", [-1, 16]))),
    "unknown dtype": (GPT_OSS, lambda d: d.entry(set_entry("dtype", "F7"))),
    "dtype and size disagree": (GPT_OSS, lambda d: d.entry(set_entry("dtype", "F64"))),
    "truncated": (GPT_OSS, lambda d: d.first_file().write_bytes(d.first_file().read_bytes()[:-1])),
    "trailing bytes": (GPT_OSS, lambda d: d.first_file().write_bytes(d.first_file().read_bytes() + b"x")),
    "wrong dtype": (GPT_OSS, lambda d: d.tensors(lambda t: t.update(
        {"model.layers.0.mlp.router.weight": ("I16", *t["model.layers.0.mlp.router.weight"][1:])}))),
    "wrong shape": (GPT_OSS, lambda d: d.config(intermediate_size=320)),
    "missing tensor": (GPT_OSS, lambda d: d.tensors(drop("down_proj_bias"))),
    "missing scales": (GPT_OSS, lambda d: d.tensors(drop("down_proj_scales"))),
    "scale tensor that nobody used": (ONE_FILE, lambda d: d.tensors(extra_scale)),
    "missing shard": (DEEPSEEK, lambda d: sorted(d.path.glob("model-*.safetensors"))[-1].unlink()),
    "index names a tensor that its shard lacks": (DEEPSEEK, lambda d: d.index(
        lambda m: m.update({"layers.0.ffn.experts.0.w9.weight": next(iter(m.values()))}))),
    "path traversal": (DEEPSEEK, lambda d: d.index(rename_shard("../model-00001-of-00002.safetensors"))),
    "absolute path": (DEEPSEEK, lambda d: d.index(rename_shard("/etc/passwd"))),
    "experts missing from the middle": (DEEPSEEK, lambda d: (
        d.tensors(drop_all("layers.0.ffn.experts.2.")),
        d.index(lambda m: [m.pop(n) for n in list(m) if n.startswith("layers.0.ffn.experts.2.")]))),
    "zero scale": (FP8, lambda d: d.poke(".weight_scale_inv", struct.pack("<f", 0.0))),
    "negative scale": (FP8, lambda d: d.poke(".weight_scale_inv", struct.pack("<f", -1.0))),
    "NaN scale": (FP8, lambda d: d.poke(".weight_scale_inv", struct.pack("<f", float("nan")))),
    "infinite scale": (FP8, lambda d: d.poke(".weight_scale_inv", struct.pack("<f", float("inf")))),
    "E8M0 byte 255": (GPT_OSS, lambda d: d.poke("_scales", b"\xff")),
    "zero second scale": (NVFP4, lambda d: d.poke(".weight_scale_2", struct.pack("<f", 0.0))),
    "negative limit": (GPT_OSS, lambda d: d.config(swiglu_limit=-7.0)),
    "NaN limit": (GPT_OSS, lambda d: d.config(swiglu_limit=float("nan"))),
    "limits shorter than the layers": (NVFP4, lambda d: d.config(swiglu_limit=[10.0])),
    "unknown quantisation method": (GPT_OSS, lambda d: d.config(quantization_config={"quant_method": "magic"})),
    "unknown activation": (GPT_OSS, lambda d: d.config(hidden_act="quelu")),
    "configuration is no JSON": (GPT_OSS, lambda d: (d.path / "config.json").write_text("{")),
    "more experts than top_k allows": (GPT_OSS, lambda d: d.config(num_experts_per_tok=9)),
}


class Refused(unittest.TestCase):
    def test_each_damage_exits_3_with_a_message_of_its_own(self):
        messages = {}
        for name, (fixture, spoil) in DAMAGE.items():
            with self.subTest(damage=name), tempfile.TemporaryDirectory() as folder:
                damage = Damage(folder, fixture)
                spoil(damage)
                result = cli.run("inspect", damage.path)
                self.assertEqual(result.returncode, cli.REFUSED, result.stdout + result.stderr)
                self.assertEqual(result.stdout, "")
                error = cli.document("inspect", damage.path, code=cli.REFUSED)["error"]
                self.assertTrue(error["file"] and error["do"], error)
                told = (error["code"], error["what"], error["why"])
                self.assertNotIn(told, messages, f"the same message as {messages.get(told)}")
                messages[told] = name

    def test_other_verbs_refuse_too(self):
        with tempfile.TemporaryDirectory() as folder:
            damage = Damage(folder, GPT_OSS)
            damage.poke("_scales", b"\xff")
            self.assertEqual(cli.run("check", damage.path).returncode, cli.REFUSED)
            damage.config(swiglu_limit=-1.0)
            for verb in (("explain",), ("check",)):
                self.assertEqual(cli.run(*verb, damage.path).returncode, cli.REFUSED)

    def test_an_undamaged_copy_is_not_refused(self):
        for fixture in (GPT_OSS, DEEPSEEK, FP8, NVFP4):
            with tempfile.TemporaryDirectory() as folder:
                self.assertEqual(cli.run("inspect", Damage(folder, fixture).path).returncode, cli.OK)


if __name__ == "__main__":
    unittest.main()
