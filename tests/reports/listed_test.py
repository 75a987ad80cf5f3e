# SPDX-License-Identifier: Apache-2.0
"""Every id of the list of reports is in reports.json once and in order, and what is marked as tested has a test.

    listed_test.py TEST_PROGRAM
"""
import json
import pathlib
import re
import subprocess
import sys

# The list of reports has these ids; the gaps are its own.
ABSENT = {7, 8, 12, 24, 31, 33, 37, 40, 43, 47, 52, 57, 63, 69, 73, 77, 79, 83, 88, 96, 99, 108}
IDS = [f"B{number:02}" for number in range(1, 117) if number not in ABSENT]
FIELDS = {"tested": {"id", "title", "elsewhere", "status", "here", "test"},
          "pending": {"id", "title", "elsewhere", "status", "here"},
          "cannot apply": {"id", "title", "elsewhere", "status", "here"}}


def main():
    reports = json.loads((pathlib.Path(__file__).parent / "reports.json").read_text(encoding="utf-8"))
    listed = subprocess.run([sys.argv[1], "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
    there = re.findall(r"^  (B\d+_\w+)", listed, re.MULTILINE)
    faults = []

    def expect(ok, fault):
        if not ok:
            faults.append(fault)

    expect(len(IDS) == 94, f"the list has 94 reports, {len(IDS)} ids are known")
    expect([report["id"] for report in reports] == IDS, "the ids are not those of the list, each once and in order")
    for report in reports:
        name = report["id"]
        expect(set(report) == FIELDS.get(report["status"]), f"{name}: fields {sorted(report)} do not fit its status")
        expect(all(report.values()), f"{name}: something is empty")
        if report["status"] == "tested":
            expect(report["test"].startswith(name + "_"), f"{name}: {report['test']} is named after another report")
            expect(report["test"] in there, f"{name}: there is no test {report['test']}")
    named = [report.get("test") for report in reports]
    for test in there:
        expect(named.count(test) == 1, f"{test} is not the test of one report in reports.json")
    tested = sum(report["status"] == "tested" for report in reports)
    expect(tested >= 85, f"{tested} reports are tested, 85 were promised")
    print("\n".join(faults) or f"{len(reports)} reports, {tested} tested")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
