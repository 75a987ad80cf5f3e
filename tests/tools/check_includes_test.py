#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feeds scripts/check-includes a tree with one violation at a time: each must be found, and a clean tree must pass."""
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(sys.argv[1])

VIOLATIONS = {
    "include/sluice/a.h": ['#include <fmt/format.h>\n', '#include "core/error.h"\n', '#include <cuda_runtime.h>\n'],
    "src/core/a.cpp": ['#include "format/formats.h"\n', '#include <nlohmann/json.hpp>\n',
                       'const char* a = std::getenv("A");\n', 'void f() { std::printf("x"); }\n',
                       'void f() { std::cerr << 1; }\n', 'void f() { abort(); }\n', 'void f() { std::exit(1); }\n'],
    "src/format/a.cpp": ['#include "routing/group.h"\n', '#include "activation/activation.h"\n'],
    "src/checkpoint/a.cpp": ['#include "experts/backend.h"\n', '#include "oracle/oracle.h"\n'],
    "src/experts/a.cpp": ['#include "experts/reference/definition.h"\n'],
    "src/experts/cpu/avx2/a.cpp": ['#include "experts/cpu/avx512/pack.h"\n', '#include "oracle/oracle.h"\n',
                                   '#include "checkpoint/config.h"\n', '#include "experts/reference/definition.h"\n'],
    "src/oracle/a.cpp": ['#include "experts/cpu/avx2/backend.h"\n', '#include "engine/packed_layer.h"\n'],
    "src/unknown/a.cpp": ['#include "core/error.h"\n'],
    "tools/sluice/a.cpp": ['#include "core/error.h"\n', '#include "oracle/oracle.h"\n'],
    "src/CMakeLists.txt": ['target_compile_options(a PRIVATE -ffast-math)\n'],
}
CLEAN = {
    "include/sluice/a.h": '#include <vector>\n#include "sluice/name.h"\n',
    "src/core/a.cpp": '#include <fmt/format.h>\n#include "core/error.h"\n// std::getenv, printf( and abort() in a comment\n',
    "src/experts/cpu/avx2/a.cpp": '#include <immintrin.h>\n#include "experts/backend.h"\n#include "experts/cpu/common/a.h"\n',
    "src/CMakeLists.txt": '# not -ffast-math\n',
    "tools/sluice/a.cpp": '#include <CLI/CLI.hpp>\n#include "output.h"\n#include "testing/check.h"\n#include "sluice/plan.h"\n',
}


def check(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, check=False)


def main():
    failures = []
    clean = check(CLEAN)
    if clean.returncode != 0:
        failures.append(f"a clean tree is refused: {clean.stdout}{clean.stderr}")
    for name, lines in VIOLATIONS.items():
        for line in lines:
            result = check(CLEAN | {name: line})
            if result.returncode != 1 or name not in result.stdout:
                failures.append(f"{name}: not refused: {line.strip()} {result.stdout}{result.stderr}")
    print("\n".join(failures) or "every violation was found")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
