#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/write-performance on trees made for it, and on this one, whose page must be up to date."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts/write-performance"
README = "before\n<!-- performance: begin (scripts/write-performance) -->\nold\n<!-- performance: end -->\nafter\n"


def result(tokens, us, **more):
    return {"schema": "sluice.bench/1", "backend": "cuda.decode", "shape": "gpt-oss-120b", "format": "mxfp4", "tokens": tokens,
            "median_us": us, "p10_us": 0.9 * us, "share_of_floor": 0.5} | more


class Page(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "bench/results").mkdir(parents=True)
        (self.root / "docs").mkdir()
        (self.root / "README.md").write_text(README)
        self.lines("bench/other_engines.jsonl", {"machine": "NVIDIA H200 (132 SMs)", "date": "2026-11-29"},
                   self.other(30, "layer"), self.other(25, "experts"), self.other(99, "layer", "zipf"))

    @staticmethod
    def other(us, covers, routing="uniform"):
        return {"engine": "Marlin", "shape": "gpt-oss-120b", "format": "mxfp4", "routing": routing, "tokens": 1, "median_us": us,
                "covers": covers}

    def lines(self, path, *documents):
        (self.root / path).write_text("".join(json.dumps(document) + "\n" for document in documents))

    def file(self, name, *results, **head):
        self.lines(f"bench/results/{name}.jsonl", {"machine": "NVIDIA H200 (132 SMs), a driver", "commit": name, "date": "2026-11-30"} | head,
                   *results)

    def run_script(self, *options):
        return subprocess.run([sys.executable, SCRIPT, *options, self.root], capture_output=True, text=True, check=False)

    def page(self):
        run = self.run_script()
        self.assertEqual(run.returncode, 0, run.stderr)
        return (self.root / "docs/performance.md").read_text()

    def row(self, start):
        found = [line for line in self.page().splitlines() if line.startswith(start)]
        self.assertEqual(len(found), 1, self.page())
        return [cell.strip() for cell in found[0].strip("|").split("|")]

    def test_a_row_has_its_numbers_beside_the_fastest_other(self):
        self.file("a", result(1, 20.0, p90_us=21, sm_clock=1980, launches=1.0))
        self.assertEqual(self.row("| 1 |"), ["1", "`cuda.decode`", "20.0", "50 %", "\u221210.0 +5.0 %", "1", "1980",
                                             "25.0 Marlin\u2020 (layer: 30.0 Marlin)", "1.25"])
        self.assertIn("[a.jsonl](../bench/results/a.jsonl), commit a", self.page())
        self.assertIn("| gpt-oss-120b, mxfp4 | 20.0 (25.0\u2020) |", (self.root / "README.md").read_text())

    def test_what_surrounds_the_table_of_the_readme_stays(self):
        self.file("a", result(1, 20))
        self.page()
        text = (self.root / "README.md").read_text()
        self.assertTrue(text.startswith("before\n<!--") and text.endswith("<!-- performance: end -->\nafter\n"), text)
        self.assertNotIn("old", text)

    def test_the_newest_count(self):
        for newer, older in (({"date": "2026-12-01"}, {}), ({}, {"time": "2026-11-30T23:00Z"}), ({"time": "2026-11-30T09:00Z"}, {"time": "2026-11-30T08:00Z"})):
            for names in (("a", "b"), ("b", "a")):
                with self.subTest(newer=newer, names=names):
                    self.file(names[0], result(1, 20), result(4, 40), **newer)
                    self.file(names[1], result(1, 10), result(16, 160), **older)
                    self.assertEqual(self.row("| 1 |")[2], "20.0")
                    self.assertEqual(self.row("| 16 |")[2], "160")
                    self.assertIn(names[1], self.row("| 16 |"), "of another commit, which is said")

    def test_the_time_of_a_line_goes_before_that_of_its_file(self):
        self.file("a", result(1, 20, time="2026-12-02T00:00:00Z"))
        self.file("b", result(1, 10), date="2026-12-01")
        self.assertEqual(self.row("| 1 |")[2], "20.0")

    def test_runs_of_a_file_count_together(self):
        self.file("a", result(1, 20), result(1, 40))
        self.assertEqual(self.row("| 1 |")[2], "30.0")

    def test_other_routing_start_and_machines_are_other_tables(self):
        self.file("a", result(1, 20, routing="uniform"), result(1, 30, routing="zipf"), result(1, 50, **{"from": "logits"}))
        self.file("b", result(1, 70, device="NVIDIA A100"))
        text = self.page()
        for title in ("from ids, uniform", "from ids, Zipf", "from logits, uniform"):
            self.assertIn(f"### gpt-oss-120b, mxfp4, {title} routing", text)
        self.assertIn("| 30.0 | 50 % | \u221210.0 % | 99.0 Marlin | 3.30 |", text)
        self.assertIn("## NVIDIA A100", text)
        self.assertIn("| 70.0 | 50 % | \u221210.0 % |\n", text, "nothing of other engines on that card")

    def test_processors_are_told_apart_by_backend_and_threads(self):
        self.file("a", *(result(1, us, backend=backend, threads=threads) for us, backend, threads in
                         ((5, "cpu.avx2", 2), (4, "cpu.avx2", 16), (3, "cpu.amx", 16))), machine="A processor, 16 cores of a host")
        text = self.page()
        self.assertIn("## A processor, 16 cores\n", text)
        self.assertEqual([line.split("|")[4].strip() for line in text.splitlines() if line.startswith("| 1 |")], ["3.0", "4.0", "5.0"])

    def test_what_is_no_result_of_the_tree_is_passed_over(self):
        self.file("a", result(1, 20), result(4, 1, variant="an idea"), {"check": "x", "tokens": 1}, {"tokens": 1, "error": "no room"})
        self.file("b", result(1, 1), superseded="everything is new")
        self.file("c", {"start_s": 1})
        self.assertEqual(self.row("| 1 |")[2], "20.0")
        self.assertNotIn("| 4 |", self.page())
        self.assertIn("Superseded: everything is new.", self.page())

    def test_check_changes_nothing_and_fails_when_there_is_something_to_write(self):
        self.file("a", result(1, 20))
        stale = self.run_script("--check")
        self.assertEqual(stale.returncode, 1, stale.stderr)
        self.assertIn("is out of date: run scripts/write-performance", stale.stdout)
        self.assertEqual((self.root / "README.md").read_text(), README)
        self.assertFalse((self.root / "docs/performance.md").exists())
        self.page()
        self.assertEqual(self.run_script("--check").returncode, 0)
        self.file("a", result(1, 21))
        self.assertEqual(self.run_script("--check").returncode, 1)

    def test_what_is_broken_is_named(self):
        for broken, words in ((lambda: (self.root / "bench/results/a.jsonl").write_text("{\n"), "a.jsonl:1"),
                              (lambda: self.file("a", {"schema": "sluice.bench/1", "backend": "cuda.mma"}), "without shape"),
                              (lambda: self.lines("bench/results/a.jsonl", result(1, 2)), "has no machine"),
                              (lambda: (self.root / "README.md").write_text("no markers"), "README.md has no lines")):
            with self.subTest(words=words):
                self.file("a", result(1, 20))
                (self.root / "README.md").write_text(README)
                broken()
                run = self.run_script()
                self.assertNotEqual(run.returncode, 0)
                self.assertIn(words, run.stderr)
                self.assertNotIn("Traceback", run.stderr)


class Here(unittest.TestCase):
    def test_the_page_and_the_readme_are_up_to_date(self):
        run = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)


if __name__ == "__main__":
    unittest.main()
