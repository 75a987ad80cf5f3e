#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tables.h: what ml_dtypes and numpy make of every code of the small float types.

    python3 make_tables.py > tables.h        (numpy, ml_dtypes 0.5 or newer)

Sixteen-bit types and encoders would be long tables; of those, only hashes of the results are kept.
"""
import sys

import ml_dtypes
import numpy as np

PRIME = 0x100000001B3


def fnv(words):
    """64-bit FNV-1a over 32-bit words, one step a word."""
    h = 0xCBF29CE484222325
    for w in words:
        h = ((h ^ int(w)) * PRIME) & (2**64 - 1)
    return h


def decoded(dtype, count):
    codes = np.arange(count, dtype=np.uint8 if count <= 256 else np.uint16)
    return codes.view(dtype).astype(np.float32).view(np.uint32)


def one_nan(bits):
    """All NaN as 0x7FC00000: their payloads are nobody's business."""
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, np.uint32(0x7FC00000), bits)


def inputs(largest):
    """2^16 float32 that a linear congruential generator draws, of all magnitudes up to a little over `largest`."""
    state, out = 1, []
    for _ in range(1 << 16):
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        out.append(state >> 32)
    x = np.array(out, dtype=np.uint32).view(np.float32)
    x = np.where(np.isfinite(x), x, np.float32(0))
    exponent = np.log2(np.float32(largest)).astype(int)
    mantissa, _ = np.frexp(x)
    spread = (np.array(out, dtype=np.uint32) >> 3) % 44
    return np.ldexp(mantissa, exponent + 2 - spread.astype(np.int32)).astype(np.float32)


def encoded(dtype, largest, saturate):
    x = inputs(largest)
    if saturate:
        x = np.clip(x, -largest, largest)  # ml_dtypes turns an overflow into NaN
    view = np.uint16 if np.dtype(dtype).itemsize == 2 else np.uint8
    return x.astype(dtype).view(view)


def array(name, type_, values, digits):
    print(f"inline constexpr std::array<{type_}, {len(values)}> {name} = {{")
    per = 88 // (digits + 4)
    for i in range(0, len(values), per):
        print("    " + " ".join(f"0x{int(v):0{digits}x}," for v in values[i:i + per]))
    print("};\n")


def main():
    print("// SPDX-License-Identifier: Apache-2.0")
    print(f"// Written by make_tables.py with ml_dtypes {ml_dtypes.__version__} and numpy {np.__version__}.")
    print("// clang-format off")
    print("#pragma once\n\n#include <array>\n#include <cstdint>\n\nnamespace sluice::tables {\n")
    print("// Decoded, as bits of float32.")
    array("kE2m1", "std::uint32_t", decoded(ml_dtypes.float4_e2m1fn, 16), 8)
    array("kE4m3", "std::uint32_t", one_nan(decoded(ml_dtypes.float8_e4m3fn, 256)), 8)
    array("kE8m0", "std::uint32_t", one_nan(decoded(ml_dtypes.float8_e8m0fnu, 256)), 8)
    print("// Hashes of all 65536 decoded values.")
    for name, dtype in (("kBf16Decoded", ml_dtypes.bfloat16), ("kF16Decoded", np.float16)):
        print(f"inline constexpr std::uint64_t {name} = 0x{fnv(one_nan(decoded(dtype, 65536))):016x};")
    print("\n// Hashes of the codes of 65536 drawn values.")
    for name, dtype, largest, saturate in (("kE2m1Encoded", ml_dtypes.float4_e2m1fn, 6.0, True),
                                           ("kE4m3Encoded", ml_dtypes.float8_e4m3fn, 448.0, True),
                                           ("kF16Encoded", np.float16, 65504.0, False),
                                           ("kBf16Encoded", ml_dtypes.bfloat16, 1e4, False)):
        with np.errstate(over="ignore"):
            print(f"inline constexpr std::uint64_t {name} = 0x{fnv(encoded(dtype, largest, saturate)):016x};")
    print("\n}  // namespace sluice::tables")


if __name__ == "__main__":
    sys.exit(main())
