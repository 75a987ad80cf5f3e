# SPDX-License-Identifier: Apache-2.0
"""Each verb on the trained model and on fixtures: its text, its document, its files."""
import json
import os
import pathlib
import random
import re
import struct
import tempfile
import unittest

import cli


class Help(unittest.TestCase):
    def test_alone_prints_help_and_is_a_usage_error(self):
        result = cli.run()
        self.assertEqual(result.returncode, cli.USAGE)
        self.assertIn("sluice inspect", result.stderr)
        self.assertEqual(result.stdout, "")

    def test_help_starts_with_three_examples(self):
        result = cli.run("--help")
        self.assertEqual(result.returncode, cli.OK)
        lines = result.stdout.splitlines()
        self.assertEqual(lines[0], "Examples:")
        self.assertTrue(all(line.startswith("  sluice ") for line in lines[1:4]), lines[:5])

    def test_every_verb_has_help(self):
        for verb in ("inspect", "explain", "run", "check", "bench", "sample"):
            with self.subTest(verb=verb):
                result = cli.run(verb, "--help")
                self.assertEqual(result.returncode, cli.OK)
                self.assertIn(f"sluice {verb}", result.stdout)

    def test_version(self):
        result = cli.run("--version")
        self.assertEqual(result.returncode, cli.OK)
        self.assertRegex(result.stdout, r"^sluice \d+\.\d+\.\d+\n$")


class Inspect(unittest.TestCase):
    def test_trained_model(self):
        result = cli.document("inspect", cli.MODEL)
        self.assertEqual(result["family"], "gpt_oss")
        self.assertEqual([layer["layer"] for layer in result["layers"]], [0, 1, 2, 3])
        layer = result["layers"][0]
        self.assertEqual((layer["hidden"], layer["intermediate"], layer["experts"], layer["top_k"]), (256, 256, 16, 4))
        self.assertEqual(layer["activation"], {"name": "silu", "limit": 7.0, "slope": 1.702, "shift": 1.0,
                                               "situ_beta": None, "situ_linear_beta": None})
        self.assertEqual(layer["formats"], {"gate": "mxfp4", "up": "mxfp4", "down": "mxfp4", "shared": None, "others": []})
        self.assertEqual(layer["router"]["score"], "softmax_selected")
        self.assertEqual(layer["bits_a_weight"], 4.25)

    def test_no_limit_is_null(self):
        layer = cli.document("inspect", cli.fixture("mixtral_bf16"))["layers"][0]
        self.assertIsNone(layer["activation"]["limit"])

    def test_shared_expert_and_routing_by_token_id(self):
        layers = cli.document("inspect", cli.fixture("deepseek_v4_nvfp4"))["layers"]
        self.assertEqual([layer["router"]["by_token_id"] for layer in layers], [True, False, False])
        self.assertEqual(layers[1]["formats"]["shared"], "fp8_block128")
        self.assertEqual(layers[1]["shared"]["activation"]["limit"], 10.0)

    def test_integers_say_their_groups(self):
        def formats(name):
            return cli.document("inspect", cli.fixture(name))["layers"][0]["formats"]["down"]
        self.assertEqual(formats("qwen3_moe_ct_int3"), "int3 g32")
        self.assertEqual(formats("mixtral_awq"), "int4 g64, zero points")
        self.assertEqual(formats("mixtral_gptq_act_order"), "int4 g64, act-order")
        self.assertIn("int4 g64, act-order, 4.46 bits a weight", cli.run("inspect", cli.fixture("mixtral_gptq_act_order")).stdout)

    def test_text_names_family_limit_and_layers(self):
        result = cli.run("inspect", cli.MODEL)
        self.assertEqual(result.returncode, cli.OK)
        for words in ("gpt_oss", "limit 7", "layers 0 to 3", "4.25 bits"):
            self.assertIn(words, result.stdout)
        self.assertEqual(result.stderr, "", "nothing but data when nobody is watching")

    def test_every_fixture(self):
        for path in cli.FIXTURES:
            with self.subTest(fixture=path.name):
                cli.document("inspect", path)


class Lint(unittest.TestCase):
    def test_every_fixture_has_no_error(self):
        for path in cli.FIXTURES:
            with self.subTest(fixture=path.name):
                result = cli.document("inspect", path, "--lint")
                self.assertEqual((result["errors"], result["warnings"]), (0, 0), result["findings"])
                self.assertTrue(result["ranges"])

    def test_text_ends_with_what_there_was(self):
        result = cli.run("inspect", cli.fixture("deepseek_v4_nvfp4"), "--lint")
        self.assertEqual(result.returncode, cli.OK)
        self.assertIn("note[second_scales_differ] layer 0, experts 0 to 7, gate:", result.stdout)
        self.assertRegex(result.stdout, r"\n0 errors, 0 warnings, 3 notes; [0-9.]+ MiB read\n$")
        self.assertEqual(result.stderr, "", "nothing but data when nobody is watching")

    def test_errors_exit_3_and_are_all_listed(self):
        with tempfile.TemporaryDirectory() as folder:
            source = cli.fixture("mixtral_bf16")
            tensors = cli.read_safetensors(source / "model.safetensors")
            for name in ("experts.1.w1", "experts.2.w3"):
                full = f"model.layers.0.block_sparse_moe.{name}.weight"
                dtype, shape, data = tensors[full]
                tensors[full] = (dtype, shape, b"\xc0\x7f" + data[2:])
            cli.write_safetensors(pathlib.Path(folder, "model.safetensors"), tensors)
            pathlib.Path(folder, "config.json").write_bytes((source / "config.json").read_bytes())
            result = cli.document("inspect", folder, "--lint", code=cli.REFUSED)
            self.assertEqual(result["errors"], 2)
            first = result["findings"][0]
            self.assertEqual((first["severity"], first["code"], first["layer"], first["matrix"], first["experts"]),
                             ("error", "weight_not_finite", 0, "gate", [1]))
            self.assertEqual(first["tensor"], "model.layers.0.block_sparse_moe.experts.1.w1.weight")
            self.assertEqual(first["numbers"], {"count": 1, "of": 32768})
            text = cli.run("inspect", folder, "--lint")
            self.assertEqual(text.returncode, cli.REFUSED)
            self.assertIn("experts.1.w1.weight in model.safetensors)", text.stdout)


class HuggingFaceCache(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        repository = pathlib.Path(self.folder.name, "hub/models--some--tiny")
        (repository / "blobs").mkdir(parents=True)
        snapshot = repository / "snapshots/0123abc"
        snapshot.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            (repository / "blobs" / name[:5]).write_bytes((cli.fixture("gpt_oss_bf16") / name).read_bytes())
            (snapshot / name).symlink_to(f"../../blobs/{name[:5]}")
        (repository / "refs").mkdir()
        (repository / "refs/main").write_text("0123abc")

    def test_found_through_each_variable(self):
        for env in ({"HF_HOME": self.folder.name, "HF_HUB_CACHE": ""},
                    {"HF_HUB_CACHE": self.folder.name + "/hub", "HF_HOME": "/nowhere"}):
            with self.subTest(env=env):
                self.assertEqual(cli.document("inspect", "some/tiny", env=env)["family"], "gpt_oss")

    def test_absent_name_is_an_io_error_that_says_how_to_get_it(self):
        result = cli.run("inspect", "some/other", env={"HF_HOME": self.folder.name, "HF_HUB_CACHE": ""})
        self.assertEqual(result.returncode, cli.IO, result.stderr)
        self.assertIn("some/other", result.stderr)


class Explain(unittest.TestCase):
    def backends(self):
        layer = cli.document("explain", cli.MODEL, "--layer", 0)["layers"][0]
        return {verdict["backend"] for verdict in layer["verdicts"]}

    def test_cards_without_a_backend_exit_4_and_list_every_backend_with_reasons(self):
        for device in ("a100", "h100", "sm90"):
            with self.subTest(device=device):
                result = cli.document("explain", cli.fixture("mixtral_awq"), "--device", device,
                                      code=cli.UNSUPPORTED)
                for layer in result["layers"]:
                    self.assertIsNone(layer["chosen"])
                    self.assertEqual({v["backend"] for v in layer["verdicts"]}, self.backends())
                    for verdict in layer["verdicts"]:
                        self.assertFalse(verdict["fits"])
                        self.assertTrue(verdict["misses"])
                text = cli.run("explain", cli.fixture("mixtral_awq"), "--device", device)
                self.assertEqual(text.returncode, cli.UNSUPPORTED)
                for backend in self.backends():
                    self.assertIn(backend, text.stdout)
                self.assertIn("error[unsupported]", text.stderr)

    def test_a_backend_whose_kernels_are_not_in_the_build_is_named(self):
        text = cli.run("explain", cli.MODEL, "--device", "h100")
        if text.returncode == cli.OK:
            self.skipTest("this build has the kernels of cuda.mma")
        self.assertEqual(text.returncode, cli.UNSUPPORTED)
        self.assertIn("use a build that has the kernels of cuda.mma", text.stderr)

    def test_cpu_takes_the_widest_instructions_present(self):
        flags = pathlib.Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
        levels = {" amx_bf16": "cpu.amx", " avx512bw": "cpu.avx512", " avx2": "cpu.avx2"}
        widest = next((backend for flag, backend in levels.items() if flag in flags), None)
        if widest is None:
            self.skipTest("this processor has neither AVX-512 nor AVX2")
        for path in [cli.MODEL, *cli.FIXTURES]:
            with self.subTest(model=path.name):
                layers = cli.document("explain", path, "--device", "cpu")["layers"]
                self.assertEqual({layer["chosen"] for layer in layers}, {widest})

    def test_a_named_instruction_level_is_taken(self):
        layers = cli.document("explain", cli.MODEL, "--device", "cpu.avx2")["layers"]
        self.assertEqual({layer["chosen"] for layer in layers}, {"cpu.avx2"})

    def test_reference_only_by_name(self):
        layer = cli.document("explain", cli.MODEL, "--layer", 0, "--device", "cpu")["layers"][0]
        reference = next(v for v in layer["verdicts"] if v["backend"] == "reference")
        self.assertEqual([miss["trait"] for miss in reference["misses"]], ["choice"])
        layer = cli.document("explain", cli.MODEL, "--layer", 0, "--backend", "reference")["layers"][0]
        self.assertEqual(layer["chosen"], "reference")

    def test_token_counts(self):
        layer = cli.document("explain", cli.MODEL, "--layer", 1, "--tokens", "1,7", "--device", "cpu")["layers"][0]
        self.assertEqual([kernel["tokens"] for kernel in layer["verdicts"][0]["kernels"]], [1, 7])


class Run(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.output = pathlib.Path(self.folder.name, "out.safetensors")
        self.input = pathlib.Path(self.folder.name, "in.safetensors")

    def run_layer(self, model, layer, source, *more):
        result = cli.document("run", model, "--layer", layer, "--input", source, "--output", self.output, *more)
        return result, cli.read_safetensors(self.output)

    def assert_expected(self, got, expected, layer, tolerance):
        want = {name: expected[f"{layer}.{name}"] for name in ("topk_ids", "topk_weights", "experts_out", "block_out")}
        self.assertEqual(got["topk_ids"][0], "I32")
        top_k = want["topk_ids"][1][1]
        rows = lambda ids: [sorted(ids[i:i + top_k]) for i in range(0, len(ids), top_k)]
        self.assertEqual(rows(cli.ints(got["topk_ids"])), rows(cli.ints(want["topk_ids"])))
        for name in ("experts_out", "block_out"):
            self.assertEqual(got[name][1], want[name][1])
            self.assertLess(cli.rel_l2(cli.floats(got[name]), cli.floats(want[name])), tolerance, name)

    def test_expected_file_as_input(self):
        for model, layer in ((cli.MODEL, 3), (cli.fixture("deepseek_v4_fp4"), 0)):
            for backend, tolerance in (("reference", 3e-6), (None, 4e-3)):
                with self.subTest(model=model.name, backend=backend):
                    expected = cli.read_safetensors(model / "expected.safetensors")
                    named = ["--backend", backend] if backend else []
                    result, got = self.run_layer(model, layer, model / "expected.safetensors", *named)
                    self.assertEqual(result["routing"], "router")
                    self.assert_expected(got, expected, layer, tolerance)

    def write_adapter(self, name, rank, seed):
        """An adapter on the stacks of layer 1 of the trained model (16 experts of 256 x 256)."""
        folder = pathlib.Path(self.folder.name, name)
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({
            "peft_type": "LORA", "peft_version": "0.19.1", "r": rank, "lora_alpha": 2 * rank,
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}))
        draw, block = random.Random(seed), "base_model.model.model.layers.1.mlp.experts."
        shapes = {"base_layer.lora_A": [16 * rank, 256], "base_layer.lora_B": [512, 16 * rank],
                  "lora_A": [16 * rank, 256], "lora_B": [256, 16 * rank]}
        cli.write_safetensors(folder / "adapter_model.safetensors", {
            f"{block}{module}.weight": ("F32", shape, struct.pack(f"<{shape[0] * shape[1]}f", *(
                draw.gauss(0, 0.05) for _ in range(shape[0] * shape[1])))) for module, shape in shapes.items()})
        return folder

    def test_adapters_by_token(self):
        expected = cli.read_safetensors(cli.MODEL / "expected.safetensors")
        tokens = expected["1.hidden"][1][0]
        ids = [token % 3 - 1 for token in range(tokens)]
        adapters = [self.write_adapter("a", 3, 1), self.write_adapter("b", 8, 2)]
        outputs = {}
        for name, options, given in (("-1", [], None), ("0", ["--lora", adapters[0]], None),
                                     ("1", ["--lora", adapters[1]], None),
                                     ("mixed", ["--lora", adapters[0], "--lora", adapters[1]], ids)):
            tensors = {"hidden": expected["1.hidden"]}
            if given is not None:
                tensors["adapter_ids"] = ("I32", [tokens], struct.pack(f"<{tokens}i", *given))
            cli.write_safetensors(self.input, tensors)
            _, got = self.run_layer(cli.MODEL, 1, self.input, *options)
            values = cli.floats(got["block_out"])
            outputs[name] = [values[256 * token:256 * (token + 1)] for token in range(tokens)]
        for token, number in enumerate(ids):
            self.assertEqual(outputs["mixed"][token], outputs[str(number)][token], token)
            self.assertNotEqual(outputs["0"][token], outputs["1"][token])
            self.assertNotEqual(outputs["0"][token], outputs["-1"][token])

    def test_adapters_refused(self):
        adapter = self.write_adapter("a", 3, 1)
        expected = cli.read_safetensors(cli.MODEL / "expected.safetensors")
        tokens = expected["1.hidden"][1][0]
        cli.write_safetensors(self.input, {"hidden": expected["1.hidden"],
                                           "adapter_ids": ("I64", [tokens], struct.pack(f"<{tokens}q", *[1] * tokens))})
        arguments = ("--input", self.input, "--output", self.output, "--lora")
        for code, name, layer, folder in ((cli.REFUSED, "bad_adapter_id", 1, adapter),
                                          (cli.USAGE, "layer_not_adapted", 2, adapter),
                                          (cli.IO, None, 1, adapter / "none")):
            with self.subTest(name=name):
                error = cli.document("run", cli.MODEL, "--layer", layer, *arguments, folder, code=code)["error"]
                if name:
                    self.assertEqual(error["code"], name)
        config = adapter / "adapter_config.json"
        config.write_text(config.read_text().replace('"r": 3', '"r": 4'))
        error = cli.document("run", cli.MODEL, "--layer", 1, *arguments, adapter, code=cli.REFUSED)["error"]
        self.assertEqual(error["code"], "wrong_shape")
        self.assertIn("[48, 256], expected [64, 256]", error["why"])

    def test_plain_names_and_given_routing(self):
        model, layer = cli.fixture("deepseek_v4_nvfp4"), 2
        expected = cli.read_safetensors(model / "expected.safetensors")
        for given in ((), ("router_logits",), ("topk_ids", "topk_weights")):
            with self.subTest(given=given):
                names = ("hidden", "input_ids", *given)
                cli.write_safetensors(self.input, {name: expected[f"{layer}.{name}"] for name in names})
                result, got = self.run_layer(model, layer, self.input, "--backend", "reference")
                self.assertEqual(result["routing"], given[0] if given else "router")
                self.assert_expected(got, expected, layer, 3e-6)

    def test_given_routing_is_used(self):
        expected = cli.read_safetensors(cli.MODEL / "expected.safetensors")
        tokens, top_k = expected["0.topk_ids"][1]
        cli.write_safetensors(self.input, {
            "hidden": expected["0.hidden"],
            "topk_ids": ("I64", [tokens, top_k], b"\xff" * 8 * tokens * top_k),
            "topk_weights": expected["0.topk_weights"]})
        _, got = self.run_layer(cli.MODEL, 0, self.input)
        self.assertEqual(set(cli.ints(got["topk_ids"])), {-1})
        self.assertEqual(set(cli.floats(got["experts_out"])), {0.0})

    def refused(self, model, layer, tensors):
        cli.write_safetensors(self.input, tensors)
        return cli.document("run", model, "--layer", layer, "--input", self.input, "--output", self.output,
                            code=cli.REFUSED)["error"]

    def test_ids_that_the_layer_has_not_are_refused_with_their_place(self):
        hidden = ("F32", [2, 256], bytes(4 * 512))
        for bad in (16, -2, 2**40):
            error = self.refused(cli.MODEL, 0, {
                "hidden": hidden, "topk_ids": ("I64", [2, 4], struct.pack("<8q", *[0] * 5, bad, 1, 2)),
                "topk_weights": ("F32", [2, 4], bytes(32))})
            self.assertEqual((error["code"], error["tensor"]), ("bad_expert_id", "topk_ids"))
            self.assertIn(f"id {bad} at token 1", error["why"])
        by_token_id = cli.fixture("deepseek_v4_fp4")
        error = self.refused(by_token_id, 0, {"hidden": hidden})
        self.assertEqual((error["code"], error["tensor"]), ("missing_tensor", "input_ids"))
        error = self.refused(by_token_id, 0, {"hidden": hidden, "input_ids": ("I64", [2], struct.pack("<2q", 3, 32))})
        self.assertEqual((error["code"], error["tensor"]), ("bad_token_id", "input_ids"))
        self.assertIn("id 32 at token 1", error["why"])

    def test_a_misspelt_tensor_is_refused(self):
        error = self.refused(cli.MODEL, 0, {"hidden": ("F32", [1, 256], bytes(1024)), "topk_id": ("I32", [1, 4], bytes(16))})
        self.assertEqual((error["code"], error["tensor"]), ("unknown_tensor", "topk_id"))

    def test_what_is_no_plain_file_and_the_model_itself_are_not_replaced(self):
        cli.write_safetensors(self.input, {"hidden": ("F32", [1, 256], bytes(1024))})
        command = ("run", cli.MODEL, "--layer", 0, "--input", self.input, "--output")
        os.mkfifo(self.output)
        cli.document(*command, self.output, code=cli.IO)
        self.assertTrue(self.output.is_fifo())
        error = cli.document(*command, cli.MODEL / "model.safetensors", code=cli.USAGE)["error"]
        self.assertEqual(error["code"], "output_in_model")
        self.assertEqual(sorted(path.name for path in self.output.parent.iterdir()),
                         ["in.safetensors", "out.safetensors"])

    def test_no_tokens(self):
        cli.write_safetensors(self.input, {"hidden": ("F32", [0, 256], b"")})
        result, got = self.run_layer(cli.MODEL, 0, self.input)
        self.assertEqual(result["tokens"], 0)
        self.assertEqual(got["block_out"][1], [0, 256])

    def test_nothing_is_left_behind_when_it_fails(self):
        cli.write_safetensors(self.input, {"hidden": ("F32", [1, 255], bytes(4 * 255))})
        result = cli.run("run", cli.MODEL, "--layer", 0, "--input", self.input, "--output", self.output)
        self.assertEqual(result.returncode, cli.REFUSED, result.stderr)
        self.assertEqual([path.name for path in self.output.parent.iterdir()], ["in.safetensors"])


class Sample(unittest.TestCase):
    FAMILIES = ("gpt-oss", "gpt-oss-bf16", "deepseek-v4", "deepseek-v4-nvfp4", "deepseek-v4-base", "mixtral",
                "qwen3-moe", "qwen3-moe-fp8", "qwen3-moe-nvfp4", "qwen3-moe-mxfp4", "qwen3.5-moe", "granite-moe",
                "llama-4", "gemma-4", "mixtral-gptq", "mixtral-awq", "qwen3-moe-ignored", "qwen3-moe-int3",
                "nemotron-3-super", "kimi-k3")
    REFERENCE = ("mixtral-gptq", "mixtral-awq", "qwen3-moe-int3")  # the reference runs these on any machine

    def test_each_family_is_written_read_explained_and_checked(self):
        for family in self.FAMILIES:
            with self.subTest(family=family), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "sample")
                cli.document("sample", family, path, "--seed", 3)
                cli.document("inspect", path)
                named = ("--backend", "reference") if family in self.REFERENCE else ()
                cli.document("explain", path, "--device", "cpu", *named)
                cases = cli.document("check", path, "--backend", "all")["cases"]
                clamped = family.startswith(("gpt-oss", "deepseek"))
                for case in cases:
                    self.assertTrue(case["passed"], case)
                    self.assertEqual(case["clamp_effect"] > 0.1, clamped, case)
                    self.assertEqual(max(case["gate_over_limit"], case["up_over_limit"]) >= 0.1, clamped, case)

    def test_a_gguf_sample_is_read_linted_and_checked(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "sample", "model.gguf")
            written = cli.document("sample", "deepseek-gguf", path.parent, "--seed", 3)
            self.assertEqual((written["files"], written["layers"]), (["model.gguf"], [1, 2]))
            self.assertEqual(cli.document("sample", "deepseek-gguf", path.parent, code=cli.IO)["error"]["code"], "not_empty")
            formats = [layer["formats"] for layer in cli.document("inspect", path)["layers"]]
            self.assertEqual([(one["gate"], one["up"], one["down"], one["shared"]) for one in formats],
                             [("q4_k", "q4_k", "q6_k", "q5_k"), ("q4_k", "q4_k", "q8_0", "q5_k")])
            self.assertTrue(all(case["passed"] for case in cli.document("check", path, "--backend", "all")["cases"]))
            report = cli.document("inspect", path, "--lint")
            self.assertEqual((report["errors"], report["warnings"]), (0, 0), report["findings"])
            raw = path.read_bytes()

            def offset(name, dimensions):
                at = raw.index(name) + len(name) + 4 + 8 * dimensions + 4
                return struct.unpack("<Q", raw[at:at + 8])[0]

            # The scale of the first block of layer 2's down, Q8_0, becomes NaN. The last tensor is 256 x 256 in Q5_K.
            begin = len(raw) - 256 * 176 - offset(b"blk.2.ffn_down_shexp.weight", 2)
            at = begin + offset(b"blk.2.ffn_down_exps.weight", 3)
            path.write_bytes(raw[:at] + b"\x00\x7e" + raw[at + 2:])
            report = cli.document("inspect", path, "--lint", code=cli.REFUSED)
            found = [one for one in report["findings"] if one["severity"] == "error"]
            self.assertEqual([(one["layer"], one["matrix"], one["experts"]) for one in found], [(2, "down", [0])], found)

    def test_latent_experts_say_both_widths_and_run(self):
        for family, epsilon in (("nemotron-3-super", None), ("kimi-k3", 1e-5)):
            with self.subTest(family=family), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "sample")
                cli.document("sample", family, path)
                layer = cli.document("inspect", path)["layers"][0]
                self.assertEqual((layer["hidden"], layer["latent"]["width"]), (128, 64))
                if epsilon is None:
                    self.assertIsNone(layer["latent"]["norm_epsilon"])
                else:
                    self.assertAlmostEqual(layer["latent"]["norm_epsilon"], epsilon)
                self.assertIn("hidden 128 to 64", cli.run("inspect", path).stdout)
                rows, output = pathlib.Path(folder, "in.safetensors"), pathlib.Path(folder, "out.safetensors")
                draw = random.Random(1)
                cli.write_safetensors(rows, {"hidden": ("F32", [3, 128], struct.pack(
                    "<384f", *(draw.gauss(0, 1) for _ in range(384))))})
                cli.document("run", path, "--layer", layer["layer"], "--input", rows, "--output", output)
                for name in ("experts_out", "block_out"):
                    self.assertEqual(cli.read_safetensors(output)[name][1], [3, 128])

    def test_the_seed_decides_every_byte(self):
        def written(folder, name, seed):
            path = pathlib.Path(folder, name)
            cli.document("sample", "deepseek-v4", path, "--seed", seed)
            return {file.name: file.read_bytes() for file in path.iterdir()}
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(written(folder, "a", 1), written(folder, "b", 1))
            self.assertNotEqual(written(folder, "c", 1), written(folder, "d", 2))

    def test_a_model_is_not_overwritten(self):
        with tempfile.TemporaryDirectory() as folder:
            cli.document("sample", "mixtral", folder)
            self.assertEqual(cli.document("sample", "mixtral", folder, code=cli.IO)["error"]["code"], "not_empty")


class Bench(unittest.TestCase):
    """What is said, not how fast: times are asserted nowhere. Slow calls, as few of those fill the second of a result."""
    OPTIONS = ("--layer", 0, "--threads", 1, "--backend", "reference")

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.page = pathlib.Path(self.folder.name, "bench.html")

    def check(self, result):
        cli.validate(result)
        for key in ("floor_p10_us", "share_of_floor_p10", "share_of_floor_best", "ceilings", "processor"):
            self.assertIn(key, result)
        self.assertIn(result["roof"]["arithmetic"], result["ceilings"]["gflops"])
        for rate in (*result["ceilings"]["read_gbps"].values(), *result["ceilings"]["gflops"].values()):
            self.assertTrue(0 < rate["median"] <= rate["p10"] <= rate["best"], rate)
        self.assertAlmostEqual(result["share_of_floor"] * result["median_us"], result["floor_us"], delta=1e-6 * result["floor_us"])

    def test_lines_and_a_page_with_the_same_data(self):
        result = cli.run("bench", cli.MODEL, *self.OPTIONS, "--tokens", "40,32", "--json", "--html", self.page)
        self.assertEqual(result.returncode, cli.OK, result.stderr)
        documents = [cli.strict_json(line) for line in result.stdout.splitlines()]
        self.assertEqual([document["tokens"] for document in documents], [40, 32])
        for document in documents:
            self.check(document)
        text = self.page.read_text()
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
        self.assertEqual(cli.strict_json(data[1]), documents)
        self.assertNotIn("@@", text)
        self.assertIn("var uPlot", text)
        self.assertIn("Copyright (c) 2021, Leon Sorokin", text)
        self.assertIsNone(re.search(r'<(?:script|img|link)[^>]*(?:src|href)=|@import|url\(', text), "loads something")

    def test_text_has_ceilings_and_shares(self):
        result = cli.run("bench", cli.MODEL, *self.OPTIONS, "--tokens", "32")
        self.assertEqual(result.returncode, cli.OK, result.stderr)
        for words in ("random slices, huge pages", "random slices, 4 KiB pages", "f32_fma"):
            self.assertIn(words, result.stdout)
        self.assertRegex(result.stdout, r"\d+ % \(\d+, \d+\)")

    def test_a_page_that_cannot_be_written_is_noticed_first(self):
        result = cli.document("bench", cli.MODEL, *self.OPTIONS, "--html", self.folder.name, code=cli.IO)
        self.assertEqual(result["error"]["code"], "page_not_written")

    def test_the_line_of_a_card_is_what_the_schema_says(self):
        # tests/testing/measure_card_test.cpp compares the file with what is printed.
        document = cli.strict_json((cli.SOURCE / "tests/data/bench_card.json").read_text())
        cli.validate(document)
        for field in ("device", "driver", "sm_clock", "launches"):
            with self.subTest(missing=field), self.assertRaises(Exception):
                cli.validate({key: value for key, value in document.items() if key != field} | {"driver": 1})

    def test_without_a_card_or_without_code_for_one_that_is_said(self):
        for options in (("--device", "cuda"), ("--device", "cuda:7"), ("--backend", "cuda.mma"),
                        ("--backend", "cuda.decode", "--from", "logits", "--routing", "zipf")):
            with self.subTest(options=options):
                result = cli.run("bench", "--shape", "gpt-oss-120b", *options, "--tokens", 1, "--json")
                if result.returncode == cli.OK:
                    self.skipTest("there is a card")
                self.assertEqual(result.returncode, cli.DEVICE, result.stderr)
                error = cli.strict_json(result.stdout)["error"]
                self.assertIn(error["code"], ("no_device", "no_cuda_build"))
                self.assertIn("where a card is", error["do"])
                if error["code"] == "no_cuda_build":
                    self.assertIn("SLUICE_CUDA", error["why"])

    def test_what_only_cards_take_is_refused_elsewhere(self):
        for options, code in ((("--from", "logits"), "only_on_cards"), (("--routing", "zipf"), "only_on_cards"),
                              (("--device", "h200"), "not_measurable"), (("--group", 64), "no_groups")):
            with self.subTest(options=options):
                result = cli.document("bench", "--shape", "gpt-oss-20b", *options, code=cli.USAGE)
                self.assertEqual(result["error"]["code"], code)


if __name__ == "__main__":
    unittest.main()
