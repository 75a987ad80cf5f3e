# SPDX-License-Identifier: Apache-2.0
"""`sluice check` on every fixture and the trained model, and that it fails when it should."""
import pathlib
import struct
import tempfile
import unittest

import cli

REFERENCE_LIMIT, BACKEND_LIMIT, INT8_LIMIT, WEIGHTS_LIMIT = 3e-6, 4e-3, 3.86e-2, 1e-5


def rounds(backend):
    """Activations, to int8: those are further off, by what docs/decisions/030-int8-activations.md derives."""
    return backend.endswith("_int8")


def limit_of(case):
    if case["backend"] == "reference":
        return REFERENCE_LIMIT
    return INT8_LIMIT if rounds(case["backend"]) else BACKEND_LIMIT


class Expected(unittest.TestCase):
    def test_all_backends_on_every_fixture_and_the_trained_model(self):
        for path in [cli.MODEL, *cli.FIXTURES]:
            with self.subTest(model=path.name):
                result = cli.document("check", path, "--backend", "all", "--expected", path / "expected.safetensors")
                self.assertTrue(result["passed"])
                layers = [layer["layer"] for layer in cli.document("inspect", path)["layers"]]
                reference = [case["layer"] for case in result["cases"] if case["backend"] == "reference"]
                self.assertEqual(reference, layers)
                backends = {case["backend"] for case in result["cases"]}
                plan = cli.document("explain", path, "--layer", 0, "--backend", "reference")["layers"][0]
                known = {verdict["backend"] for verdict in plan["verdicts"]}
                self.assertEqual(backends | {missing["backend"] for missing in result["not_run"]}, known)
                for case in result["cases"]:
                    self.assertLessEqual(case["rel_l2_max"], limit_of(case), case)
                    self.assertTrue(case["ids_equal"], case)
                    self.assertLessEqual(case["weights_max_error"], WEIGHTS_LIMIT, case)

    def test_k_quants_of_a_gguf_file(self):
        path = cli.SOURCE / "tests/data/gguf/deepseek2-q4_k.gguf"
        result = cli.document("check", path, "--backend", "all", "--expected", path.with_suffix(".expected.safetensors"))
        self.assertTrue(result["passed"])
        self.assertIn("reference", {case["backend"] for case in result["cases"]})
        for case in result["cases"]:
            self.assertEqual(case["layer"], 1)
            self.assertLessEqual(case["rel_l2_max"], limit_of(case), case)
            self.assertTrue(case["ids_equal"], case)
            self.assertLessEqual(case["weights_max_error"], WEIGHTS_LIMIT, case)

    def test_clamp_of_the_trained_model(self):
        result = cli.document("check", cli.MODEL, "--expected", cli.MODEL / "expected.safetensors")
        effects = {case["layer"]: round(case["clamp_effect"], 2) for case in result["cases"]}
        self.assertEqual(effects, {0: 0.19, 1: 0.14, 2: 0.33, 3: 0.43})
        text = cli.run("check", cli.MODEL, "--expected", cli.MODEL / "expected.safetensors").stdout
        self.assertTrue(text.endswith(
            "Dropping the clamp would change the blocks of layers 0 to 3 by 19, 14, 33 and 43 %.\n"), text)

    def test_clamp_statistics_agree_with_the_makers_of_the_fixture(self):
        # fixture.json: means over the layers of the two shares, the smallest of the effects.
        path = cli.fixture("gpt_oss_mxfp4")
        made = cli.strict_json((path / "fixture.json").read_text())
        cases = cli.document("check", path, "--backend", "reference", "--expected", path / "expected.safetensors")["cases"]
        mean = lambda key: sum(case[key] for case in cases) / len(cases)
        self.assertAlmostEqual(mean("gate_over_limit"), made["gate_over_limit"], places=4)
        self.assertAlmostEqual(mean("up_over_limit"), made["up_over_limit"], places=4)
        self.assertAlmostEqual(min(case["clamp_effect"] for case in cases), made["clamp_effect"], places=4)

    def test_one_layer_and_one_backend(self):
        result = cli.document("check", cli.MODEL, "--layer", 2, "--backend", "reference",
                              "--expected", cli.MODEL / "expected.safetensors")
        self.assertEqual([(case["backend"], case["layer"]) for case in result["cases"]], [("reference", 2)])


class Failing(unittest.TestCase):
    """A comparison that no wrong output has failed is no comparison."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = pathlib.Path(self.folder.name, "expected.safetensors")
        self.tensors = cli.read_safetensors(cli.MODEL / "expected.safetensors")

    def failing_cases(self):
        cli.write_safetensors(self.file, self.tensors)
        result = cli.document("check", cli.MODEL, "--backend", "all", "--expected", self.file, code=cli.CHECK_FAILED)
        self.assertFalse(result["passed"])
        return {(case["backend"], case["layer"]) for case in result["cases"] if not case["passed"]}

    def all_backends_of(self, layer):
        cases = cli.document("check", cli.MODEL, "--layer", layer)["cases"]
        return {(case["backend"], layer) for case in cases}

    def test_outputs_without_the_clamp(self):
        for layer in range(4):
            for name in ("experts_out", "block_out"):
                self.tensors[f"{layer}.{name}"] = self.tensors[f"{layer}.experts_out_noclamp"]
        wanted = set().union(*(self.all_backends_of(layer) for layer in range(4)))
        self.assertEqual(self.failing_cases(), wanted)

    def scale_a_token(self, factor):
        dtype, shape, data = self.tensors["1.block_out"]
        values = list(struct.unpack(f"<{len(data) // 4}f", data))
        values[:shape[1]] = [factor * value for value in values[:shape[1]]]
        self.tensors["1.block_out"] = (dtype, shape, struct.pack(f"<{len(values)}f", *values))

    def test_one_token_off_by_one_percent(self):
        self.scale_a_token(1.01)
        self.assertEqual(self.failing_cases(), {case for case in self.all_backends_of(1) if not rounds(case[0])})

    def test_one_token_off_by_five_percent(self):
        self.scale_a_token(1.05)
        self.assertEqual(self.failing_cases(), self.all_backends_of(1))

    def test_another_expert(self):
        dtype, shape, data = self.tensors["2.topk_ids"]
        ids = list(struct.unpack(f"<{len(data) // 4}i", data))
        ids[0] = next(e for e in range(16) if e not in ids[:4])
        self.tensors["2.topk_ids"] = (dtype, shape, struct.pack(f"<{len(ids)}i", *ids))
        self.assertEqual(self.failing_cases(), self.all_backends_of(2))

    def test_a_weight_off_by_a_thousandth(self):
        dtype, shape, data = self.tensors["0.topk_weights"]
        weights = list(struct.unpack(f"<{len(data) // 4}f", data))
        weights[5] += 1e-3
        self.tensors["0.topk_weights"] = (dtype, shape, struct.pack(f"<{len(weights)}f", *weights))
        self.assertEqual(self.failing_cases(), self.all_backends_of(0))

    def test_not_a_number(self):
        dtype, shape, data = self.tensors["3.experts_out"]
        self.tensors["3.experts_out"] = (dtype, shape, struct.pack("<f", float("nan")) + data[4:])
        self.assertEqual(self.failing_cases(), self.all_backends_of(3))

    def refused(self):
        cli.write_safetensors(self.file, self.tensors)
        return cli.document("check", cli.MODEL, "--expected", self.file, code=cli.REFUSED)["error"]

    def test_a_check_that_would_compare_nothing_is_refused(self):
        self.tensors = {"0.hidden": ("F32", [0, 256], b""), "0.block_out": ("F32", [0, 256], b"")}
        self.assertEqual(self.refused()["code"], "nothing_expected")

    def test_weights_without_their_ids_are_refused(self):
        del self.tensors["0.topk_ids"]
        error = self.refused()
        self.assertEqual((error["code"], error["tensor"]), ("missing_tensor", "0.topk_ids"))

    def test_a_file_of_another_model_is_refused(self):
        self.tensors["7.hidden"] = self.tensors["0.hidden"]
        self.assertEqual(self.refused()["code"], "layer_of_another_model")

    def test_text_says_failed_and_nothing_to_compare_is_refused(self):
        self.tensors["1.block_out"] = self.tensors["1.experts_out"] = self.tensors["1.experts_out_noclamp"]
        cli.write_safetensors(self.file, self.tensors)
        result = cli.run("check", cli.MODEL, "--expected", self.file)
        self.assertEqual(result.returncode, cli.CHECK_FAILED)
        self.assertIn("FAILED", result.stdout)
        del self.tensors["1.block_out"], self.tensors["1.experts_out"]
        cli.write_safetensors(self.file, self.tensors)
        self.assertEqual(cli.run("check", cli.MODEL, "--expected", self.file).returncode, cli.REFUSED)
        cli.write_safetensors(self.file, {"unrelated": ("F32", [1], bytes(4))})
        self.assertEqual(cli.run("check", cli.MODEL, "--expected", self.file).returncode, cli.REFUSED)


class WithoutExpected(unittest.TestCase):
    def test_the_clamp_fires_on_the_inputs(self):
        for case in cli.document("check", cli.MODEL)["cases"]:
            self.assertGreater(max(case["gate_over_limit"], case["up_over_limit"]), 0.1, case)
            self.assertTrue(case["passed"], case)

    def test_the_seed_decides_the_inputs(self):
        first, again, other = (cli.document("check", cli.MODEL, "--layer", 0, "--backend", "reference", "--seed", seed)
                               for seed in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertNotEqual(first["cases"], other["cases"])


if __name__ == "__main__":
    unittest.main()
