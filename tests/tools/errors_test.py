# SPDX-License-Identifier: Apache-2.0
"""Exit codes, the four parts of an error, and that data and everything else keep to their streams."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import cli


class Usage(unittest.TestCase):
    COMMANDS = (
        ("inspekt", cli.MODEL),
        ("inspect",),
        ("inspect", cli.MODEL, "--layers", "0"),
        ("inspect", cli.MODEL, "another"),
        ("explain", cli.MODEL, "--device", "h999"),
        ("explain", cli.MODEL, "--tokens", "0"),
        ("explain", cli.MODEL, "--tokens", "1,x"),
        ("explain", cli.MODEL, "--layer", "-1"),
        ("explain", cli.MODEL, "--layer", "99"),
        ("explain", cli.MODEL, "--backend", "cpu.abacus"),
        ("run", cli.MODEL, "--layer", "0"),
        ("run", cli.MODEL, "--layer", "99", "--input", "a", "--output", "b"),
        ("check", cli.MODEL, "--backend", "cpu.abacus"),
        ("bench",),
        ("bench", "--shape", "gpt-oss-20b", "--format", "mxfp4", "--layer", "3"),
        ("sample", "mixtral", "/tmp/never-written", "--seed", "-1"),
        ("bench", "--shape", "no-such-model", "--format", "mxfp4"),
        ("bench", "--shape", "gpt-oss-20b", "--format", "mxfp5"),
        ("bench", "--shape", "gpt-oss-20b", "--from", "hidden"),
        ("bench", "--shape", "gpt-oss-20b", "--routing", "even"),
        ("bench", "--shape", "gpt-oss-20b", "--seconds", "-1"),
        ("bench", "--shape", "gpt-oss-20b", "--device", "h999"),
        ("bench", cli.MODEL, "--group", "32"),
        ("sample", "no-such-family", "/tmp/never-written"),
    )

    def test_usage_errors_exit_2_in_text_and_json(self):
        for command in self.COMMANDS:
            with self.subTest(command=command):
                result = cli.run(*command)
                self.assertEqual(result.returncode, cli.USAGE, result.stdout + result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertRegex(result.stderr, r"^error\[[a-z0-9_]+\]: ")
                self.assertIn("  do ", result.stderr)
                error = cli.document(*command, code=cli.USAGE)["error"]
                self.assertIn(error["what"].splitlines()[0], result.stderr)

    def test_json_may_stand_before_the_verb(self):
        result = cli.run("--json", "inspect", cli.MODEL)
        self.assertEqual(result.returncode, cli.OK, result.stderr)
        cli.validate(cli.strict_json(result.stdout))


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def test_missing_directory_is_an_io_error(self):
        for verb in ("inspect", "explain", "check"):
            error = cli.document(verb, self.path / "absent", code=cli.IO)["error"]
            self.assertIn("absent", error["what"] + error["file"])
            self.assertTrue(error["do"])

    def test_missing_input_and_unwritable_output_are_io_errors(self):
        run = ("run", cli.MODEL, "--layer", "0")
        cli.document(*run, "--input", self.path / "absent", "--output", self.path / "out", code=cli.IO)
        cli.document(*run, "--input", cli.MODEL / "expected.safetensors", "--output", self.path / "no/such/folder/out",
                     code=cli.IO)
        cli.document("check", cli.MODEL, "--expected", self.path / "absent", code=cli.IO)
        cli.document("sample", "mixtral", "/proc/no-such-place", code=cli.IO)

    def test_full_standard_output_is_an_io_error(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([cli.SLUICE, "inspect", str(cli.MODEL)], stdout=full, stderr=subprocess.PIPE,
                                    text=True, check=False)
        self.assertEqual(result.returncode, cli.IO, result.stderr)

    def test_unknown_family_is_unsupported_and_unknown_scheme_refused(self):
        model = self.path / "model"
        shutil.copytree(cli.fixture("mixtral_bf16"), model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"model_type": "perceptron", "architectures": ["P"]}))
        self.assertIn("perceptron", str(cli.document("inspect", model, code=cli.UNSUPPORTED)["error"]))

    def test_a_backend_that_does_not_fit_here_is_unsupported(self):
        # Unless this machine has everything, one of the CPU backends is refused; otherwise ask for no device at all.
        missing = cli.document("check", cli.MODEL, "--layer", 0)["not_run"]
        if not missing:
            self.skipTest("every backend of this build runs here")
        name = missing[0]["backend"]
        for verb in (("check", cli.MODEL, "--backend", name), ("explain", cli.MODEL, "--backend", name)):
            self.assertEqual(cli.run(*verb).returncode, cli.UNSUPPORTED)
        text = cli.run("check", cli.MODEL, "--backend", name).stderr
        self.assertRegex(text, rf"(?m)^error\[no_backend\]: {re.escape(name)} does not run this layer$")
        self.assertNotIn("\\x0a", text)

    def test_control_characters_of_a_file_do_not_reach_the_terminal(self):
        evil = self.path / "in.safetensors"
        cli.write_safetensors(evil, {"\x1b]0;owned\x07": ("F32", [1], bytes(4))})
        result = cli.run("run", cli.MODEL, "--layer", 0, "--input", evil, "--output", self.path / "out")
        self.assertEqual(result.returncode, cli.REFUSED)
        self.assertNotIn("\x1b", result.stderr)
        self.assertNotIn("\x07", result.stderr)

    def test_no_colour_and_no_suggestion_without_a_terminal(self):
        result = cli.run("inspect", cli.MODEL, env={"TERM": "xterm-256color"})
        self.assertNotIn("\x1b", result.stdout + result.stderr)
        self.assertNotIn("next:", result.stdout + result.stderr)


class Terminal(unittest.TestCase):
    def test_success_ends_with_the_next_command(self):
        primary, secondary = os.openpty()
        process = subprocess.Popen([cli.SLUICE, "inspect", str(cli.MODEL)], stdout=secondary, stderr=secondary)
        os.close(secondary)
        output = b""
        while True:
            try:
                piece = os.read(primary, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            output += piece
        os.close(primary)
        self.assertEqual(process.wait(), 0)
        self.assertTrue(output.decode().strip().splitlines()[-1].startswith("next: sluice explain "), output)


if __name__ == "__main__":
    unittest.main()
