# SPDX-License-Identifier: Apache-2.0
"""sluice --cache DIR, end to end: what is kept, found, refused and rebuilt, and by several processes at once."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import cli


def keeping_backend():
    layer = cli.document("explain", cli.MODEL, "--layer", 0)["layers"][0]
    return layer["chosen"]


class Cache(unittest.TestCase):
    def setUp(self):
        if not (keeping_backend() or "").startswith("cpu."):
            self.skipTest("no backend here keeps packed weights")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.cache = self.root / "cache"

    def command(self, model, output="out.safetensors"):
        return ("run", model, "--layer", 1, "--input", cli.MODEL / "expected.safetensors", "--output",
                self.root / output)

    def run_layer(self, model=cli.MODEL, cache=None, output="out.safetensors"):
        """The document's `cache` and the bytes of the output."""
        named = ("--cache", cache) if cache else ()
        document = cli.document(*self.command(model, output), *named)
        return document["cache"], (self.root / output).read_bytes()

    def files(self):
        return sorted(path for path in self.cache.iterdir())

    def test_the_second_start_maps_what_the_first_wrote(self):
        none, want = self.run_layer()
        self.assertEqual(none, {"loaded": 0, "written": 0, "repaired": 0, "notes": []})
        for counts in ({"written": 1, "loaded": 0}, {"written": 0, "loaded": 1}):
            got, output = self.run_layer(cache=self.cache)
            self.assertEqual(got, {"repaired": 0, "notes": [], **counts})
            self.assertEqual(output, want)
            self.assertEqual(len(self.files()), 1)

    def test_damage_is_found_told_and_rebuilt(self):
        _, want = self.run_layer(cache=self.cache)
        [path] = self.files()
        whole = path.read_bytes()
        body = 2 << 20
        for at, repaired in ((0, 0), (20, 0), (60, 0), (body + 17, 1), (len(whole) - 1, 1)):
            with self.subTest(byte=at):
                changed = bytearray(whole)
                changed[at] ^= 0x10
                path.write_bytes(changed)
                got, output = self.run_layer(cache=self.cache)
                self.assertEqual(output, want)
                self.assertLessEqual(got["repaired"], repaired)
                if repaired == 0:
                    self.assertEqual((got["written"], len(got["notes"])), (1, 1))
                path.write_bytes(changed)
                result = cli.run(*self.command(cli.MODEL), "--cache", self.cache)
                self.assertEqual(result.returncode, cli.OK)
                if repaired == 0:
                    self.assertIn("cache: ", result.stderr)
                    self.assertIn("damaged", result.stderr)
        for length in (0, 10, body, len(whole) - 1):
            with self.subTest(length=length):
                path.write_bytes(whole[:length])
                got, output = self.run_layer(cache=self.cache)
                self.assertEqual((got["written"], output), (1, want))
                self.assertEqual(path.read_bytes(), whole)

    def test_a_touched_model_is_packed_again_into_the_same_file(self):
        model = self.root / "model"
        shutil.copytree(cli.MODEL, model)
        self.run_layer(model, self.cache)
        [path] = self.files()
        os.utime(model / "model.safetensors", ns=(1, 1))
        got, _ = self.run_layer(model, self.cache)
        self.assertEqual(got["written"], 1)
        self.assertIn("stale", got["notes"][0])
        self.assertEqual(self.files(), [path])
        got, _ = self.run_layer(model, self.cache)
        self.assertEqual(got["loaded"], 1)

    def test_processes_at_once(self):
        _, want = self.run_layer()
        for _ in range(3):
            shutil.rmtree(self.cache, ignore_errors=True)
            started = [subprocess.Popen([cli.SLUICE, *map(str, self.command(cli.MODEL, f"out{i}")), "--cache", self.cache,
                                         "--json"], stdout=subprocess.PIPE, text=True) for i in range(4)]
            for i, process in enumerate(started):
                text, _ = process.communicate(timeout=600)
                self.assertEqual(process.returncode, cli.OK, text)
                got = json.loads(text)["cache"]
                self.assertEqual((got["loaded"] + got["written"], got["notes"]), (1, []))
                self.assertEqual((self.root / f"out{i}").read_bytes(), want)
            self.assertEqual(len(self.files()), 1)
            self.assertEqual(self.run_layer(cache=self.cache)[0]["loaded"], 1)

    def test_what_cannot_be_written_is_told_and_no_error(self):
        _, want = self.run_layer()
        file = self.root / "file"
        file.write_text("")
        got, output = self.run_layer(cache=file / "below")
        self.assertEqual((got["written"], output), (0, want))
        self.assertIn("works without", got["notes"][0])
        if os.geteuid() != 0:
            self.cache.mkdir(mode=0o500)
            got, output = self.run_layer(cache=self.cache)
            self.assertEqual((got["written"], output), (0, want))

    def test_check_and_bench_take_it_too(self):
        for _ in range(2):
            document = cli.document("check", cli.MODEL, "--layer", 2, "--cache", self.cache)
            self.assertTrue(document["passed"])
        self.assertTrue(self.files())
        result = cli.run("bench", cli.MODEL, "--layer", 2, "--tokens", 1, "--cache", self.cache)
        self.assertEqual(result.returncode, cli.OK, result.stderr)
        self.assertNotIn("cache:", result.stderr)

    def test_backends_that_keep_nothing_say_so(self):
        result = cli.run(*self.command(cli.MODEL), "--backend", "reference", "--cache", self.cache)
        self.assertEqual(result.returncode, cli.OK)
        self.assertIn("reference keeps no packed weights", result.stderr)

    def test_an_empty_directory_name_is_a_slip(self):
        self.assertEqual(cli.run(*self.command(cli.MODEL), "--cache", "").returncode, cli.USAGE)


if __name__ == "__main__":
    unittest.main()
